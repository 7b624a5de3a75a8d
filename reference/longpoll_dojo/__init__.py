"""A dojo for hold tables: drives a program in any language through every order of messages, in virtual time.

It needs no broker, only JSON lines (docs/dojo.md). The command: `longpoll.commands.dojo`.
"""
