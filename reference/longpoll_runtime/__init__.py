"""The only access to threads, locks, clock, sockets and files: `interface` defines it, the other modules implement it.

Simulated implementation: see `longpoll_simulation`.
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
