"""Runs threads and locks in one thread and in virtual time, with every choice from a schedule.

`world` and `sync` do not depend on a broker. `lockstep` runs the broker's hold service next to the specification, and
`refinement` makes it follow a counterexample. The simulation of the whole broker, with network and disk, is in the
project's tests.
"""
