"""The real runtime: the operating system's threads, clock, sockets and files, and step points that do nothing.

Leaves out any policy of its own; a test subclasses it to act at a step point.
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
    """The `Runtime` of production.

    With `server_tls` every listener takes TLS connections, beside plain ones unless it says otherwise; with
    `client_tls` every connection that waits to be made is a TLS one. A thread that ends by an exception ends the
    process with exit code 70, unless `thread_died` is given: it is called with the thread's name and the exception, and
    decides what becomes of the rest.
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
    """The number of this process."""
    when_forked = staticmethod(when_forked)
    """Have something told in each process that is forked from this one."""

    @property
    def files(self) -> Files:
        """The file layer."""
        return self._files

    def unix_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def lock(self) -> Lock:
        """A new lock."""
        return threading.Lock()

    def condition(self) -> Condition:
        """A new condition variable with a lock of its own."""
        return RealCondition(threading.Lock())

    def event(self) -> Event:
        """A new flag, down."""
        return RealEvent()

    def queue(self, capacity: int) -> Queue[Any]:
        """A new queue that holds up to `capacity` items."""
        return RealQueue(capacity)

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread."""
        return spawn(name, target, self._thread_died)

    def listen(self, host: str, port: int) -> Listener:
        """Listen for connections; port 0 picks one. Raises OSError."""
        return RealListener(host, port) if self._server_tls is None else tls.listen(host, port, self._server_tls)

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect, then switch the socket to non-blocking. Raises OSError."""
        if self._client_tls is not None:
            return tls.connect(host, port, timeout_s, self._client_tls)
        return connect(host, port, timeout_s)

    def look_up(self, host: str, port: int) -> str:
        """The first address of a host, waited for. Raises OSError."""
        return look_up(host, port)

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect without waiting. Raises OSError."""
        return begin_connect(address, port)

    def poller(self) -> Poller:
        """A new poller."""
        return RealPoller()

    def memory_size(self) -> int:
        """Bytes of physical memory of the machine."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        """With what connections that are made are secured."""
        return self._client_tls

    def identity(self) -> bytes:
        """The address of the interface that leads out, and four drawn bytes."""
        return own_address() + os.urandom(4)

    def step(self, action: str) -> None:
        """A step point; production has nothing to do there."""
