"""The real runtime: the operating system's threads, clock, sockets and files; step points do nothing.

A test may subclass it to act at a step point.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from longpoll_runtime import tls
from longpoll_runtime.files import RealFiles
from longpoll_runtime.interface import (
    Condition,
    Event,
    Files,
    Listener,
    Lock,
    PlainSocket,
    Poller,
    Queue,
    Socket,
    Thread,
)
from longpoll_runtime.sockets import RealListener, RealPoller, begin_connect, connect, look_up, own_address
from longpoll_runtime.threads import Died, RealCondition, RealEvent, RealQueue, spawn, when_forked


class RealRuntime:
    """The `Runtime` for production.

    With `server_tls` every listener accepts TLS connections, and plain ones unless that forbids them. With `client_tls`
    every outgoing connection uses TLS. A thread that ends by an exception ends the process with exit code 70. If
    `thread_died` is given, it is called instead, with the thread's name and the exception.
    """

    def __init__(
        self,
        *,
        server_tls: tls.ServerTls | ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        thread_died: Died | None = None,
    ) -> None:
        self._thread_died = thread_died
        self._server_tls = tls.ServerTls(server_tls) if isinstance(server_tls, ssl.SSLContext) else server_tls
        self._client_tls = client_tls
        self._files = RealFiles()
        self.monotonic_ns: Callable[[], int] = time.monotonic_ns

    process_id = staticmethod(os.getpid)
    """Returns this process's id."""
    when_forked = staticmethod(when_forked)
    """Register an object for forked processes."""

    @property
    def files(self) -> Files:
        """The file layer."""
        return self._files

    def unix_ms(self) -> int:
        """Returns wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def lock(self) -> Lock:
        """Create a lock."""
        return threading.Lock()

    def condition(self) -> Condition:
        """Create a condition variable with its lock."""
        return RealCondition(threading.Lock())

    def event(self) -> Event:
        """Create a flag, not set."""
        return RealEvent()

    def queue(self, capacity: int) -> Queue[Any]:
        """Create a queue for up to `capacity` items."""
        return RealQueue(capacity)

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread."""
        return spawn(name, target, self._thread_died)

    def listen(self, host: str, port: int) -> Listener:
        """Listen for connections; port 0 picks one. Raises OSError."""
        return RealListener(host, port) if self._server_tls is None else tls.listen(host, port, self._server_tls)

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect and return a non-blocking socket. Raises OSError."""
        if self._client_tls is not None:
            return tls.connect(host, port, timeout_s, self._client_tls)
        return connect(host, port, timeout_s)

    def look_up(self, host: str, port: int) -> str:
        """Resolve a host to its first address. Raises OSError."""
        return look_up(host, port)

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect without waiting. Raises OSError."""
        return begin_connect(address, port)

    def poller(self) -> Poller:
        """Create a poller."""
        return RealPoller()

    def memory_size(self) -> int:
        """Returns the machine's physical memory, bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        """The TLS context of outgoing connections."""
        return self._client_tls

    def identity(self) -> bytes:
        """Returns the address of the outgoing interface, and four random bytes."""
        return own_address() + os.urandom(4)

    def step(self, action: str) -> None:
        """A step point; does nothing in production."""
