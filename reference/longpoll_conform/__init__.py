"""Tests any broker against clauses: the requirements on an implementation of RocketMQ's pull path.

A clause (`clauses`) is a sentence with a stable id. A vector (`vectors`) is a conversation that shows one: the
requests, and the recorded answers of a real broker. `suite` plays the vectors that apply, continues after a failure,
and reports for each clause whether it is kept, with the bytes that show it.

This package shares no code with the broker or its wire, not even the codec, so that a bug there cannot hide itself.
"""
