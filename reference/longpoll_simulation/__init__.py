"""A fully simulated runtime: threads, locks, clock, sockets and disk in one thread, with every choice from a seed.

Code that uses `longpoll_runtime` runs here unchanged, in virtual time, under schedules that can be searched,
recorded and shortened. It knows no broker; what runs on it is in `longpoll.broker_simulation`.
"""
