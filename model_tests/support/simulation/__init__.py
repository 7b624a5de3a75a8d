"""A simulated runtime for the whole broker and its clients: threads, clock, sockets and disk in one thread.

Code that uses `longpoll_runtime` runs here unchanged and in virtual time. Schedules of the run can be searched,
recorded and shortened. `network`, `disk` and `files` are independent of a broker; `run` and `search` run a whole
broker. The scheduler is `longpoll_simulation.world`.
"""
