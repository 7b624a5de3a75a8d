"""A fully simulated runtime: threads, locks, clock, sockets and disk in one thread, with every choice from a seed.

Code that uses `longpoll_runtime` runs here unchanged, in virtual time, under schedules that can be searched,
recorded and shortened. `world`, `sync`, `network`, `disk` and `files` know no broker. `run` and `search` run a whole
broker, and `lockstep` runs its hold service next to the specification.
"""
