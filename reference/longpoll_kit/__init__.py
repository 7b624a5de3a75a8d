"""A property-based test kit for any long polling: you define how to publish and to poll, and a machine finds faults.

`subject` is the interface to implement, `machine` runs the test, and `model` defines correct answers. The kit does not
depend on any broker or wire format. Manual: `docs/kit.md`.
"""
