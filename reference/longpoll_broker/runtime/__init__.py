"""The one door to threads, locks, clock, sockets and files: `interface` says what there is, its neighbours do it.

Leaves out the simulated doors, which live in `longpoll_broker.testing`.
"""

from longpoll_broker.runtime.interface import (
    AppendFile,
    Condition,
    Event,
    Files,
    Listener,
    Lock,
    MappedFile,
    Poller,
    Runtime,
    Socket,
    Thread,
)

__all__ = [
    "AppendFile",
    "Condition",
    "Event",
    "Files",
    "Listener",
    "Lock",
    "MappedFile",
    "Poller",
    "Runtime",
    "Socket",
    "Thread",
]
