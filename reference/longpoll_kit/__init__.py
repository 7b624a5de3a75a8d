"""A property-based test kit for any long polling: you define how to publish and to poll, and a machine finds faults.

`subject` is the interface to implement, `machine` runs the test, `model` defines correct answers. It knows no broker
and no wire; manual: `docs/kit.md`.
"""
