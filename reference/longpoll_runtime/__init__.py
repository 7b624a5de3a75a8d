"""The one door to threads, locks, clock, sockets and files: `interface` says what there is, its neighbours do it.

Leaves out the simulated doors, which live in `longpoll_simulation`.
"""

from longpoll_runtime.interface import (
    PARTS_MAX,
    Address,
    AppendFile,
    Buffer,
    Condition,
    Event,
    Files,
    Forked,
    Listener,
    Lock,
    MappedFile,
    PlainSocket,
    Poller,
    Queue,
    Runtime,
    Socket,
    Thread,
)

__all__ = [
    "PARTS_MAX",
    "Address",
    "AppendFile",
    "Buffer",
    "Condition",
    "Event",
    "Files",
    "Forked",
    "Listener",
    "Lock",
    "MappedFile",
    "PlainSocket",
    "Poller",
    "Queue",
    "Runtime",
    "Socket",
    "Thread",
]
