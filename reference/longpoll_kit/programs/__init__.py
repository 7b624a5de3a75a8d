"""Tests programs that speak a protocol on standard input and output, with every short schedule in virtual time.

Users call `longpoll dojo`; docs/dojo.md describes the protocol.
"""
