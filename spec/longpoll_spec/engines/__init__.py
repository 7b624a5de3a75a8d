"""The engines: meanings of one text, equal by test.

`python` is the plain one, `packed` the fast one. Leaves out choosing for the user: the command line does.
"""
