"""Programs on standard input and output as services under test: every short schedule, in virtual time.

Users call `longpoll dojo`; the protocol is on its page, docs/dojo.md.
"""
