"""Threads and locks in one thread, in virtual time, with every choice from a schedule: the hold service under control.

`world` and `sync` know no broker. `lockstep` runs the broker's hold service next to the specification, and
`refinement` makes it follow a counterexample. The simulation of the whole broker, with network and disk, is in the
project's tests.
"""
