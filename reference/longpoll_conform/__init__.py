"""Tests any broker against clauses: the requirements on an implementation of RocketMQ's pull path.

A clause (`clauses`) is a sentence with a stable id. A vector (`vectors`) is a conversation that demonstrates a clause:
the requests, and the recorded answers of a real broker. `suite` plays the vectors that apply to the broker, continues
after a failure, and reports for each clause whether the broker keeps it, with the bytes as evidence.

This package shares no code with the broker, not even the codec, so that it cannot repeat the broker's bugs.
"""
