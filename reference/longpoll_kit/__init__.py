"""A property kit for anybody's long polling: say how to publish and how to poll, and a machine looks for what is wrong.

`subject` is what one writes, `machine` what runs against it, `model` what a correct service may answer. It knows no
broker and no wire: `docs/kit.md` shows it from the outside.
"""
