"""Holds any broker against clauses: what an implementation of RocketMQ's pull path must do, and what ours is held to.

A clause (`clauses`) is a sentence with a stable id. A vector (`vectors`) is a conversation that shows one: what is
sent, and what a real broker was recorded to answer. `suite` plays the vectors that apply, goes on after a failure, and
says of each clause whether it is kept, with the bytes that show it.

Nothing here shares code with the broker or its wire, not even the codec: a slip in ours must not hide itself.
"""
