"""A dojo for hold tables: drives a program in any language through every order of messages, in virtual time.

Knows no broker and no wire but JSON lines (docs/dojo.md). Leaves out the command (`longpoll.commands.dojo`).
"""
