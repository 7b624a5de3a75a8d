"""A runtime of which nothing is real: threads, locks, clock, sockets and disk in one thread, every choice from a seed.

What runs on `longpoll_runtime.interface` runs here unchanged, with virtual time, under schedules that are searched for,
kept and made shorter. Leaves out what is run (`longpoll.broker_simulation`), and everything that knows a broker.
"""
