"""Resolves host names of brokers on a separate thread, because a look-up may take seconds.

Numeric addresses are not resolved. `relay_loop` makes the connections.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Final

from longpoll_observe.links import Visitor
from longpoll_runtime import Address, Queue, Runtime, Thread

ASKED_MAX: Final = 1_000
"""The maximum number of look-ups that wait."""
TAKE_S: Final = 0.2
"""How often, in seconds, the look-up thread checks whether the proxy is stopping."""
END_S: Final = 1.0
"""How many seconds a shutdown waits for a running look-up. If the look-up takes longer, its thread ends later."""


def is_literal(host: str) -> bool:
    """Whether a host is a numeric address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class NameLookup:
    """Clients that wait for their broker's address, and the look-up thread.

    Invariants: for each client in `waiting`, a look-up of its target waits, is running, or has a result that was not
    read yet; `_found` is not called after `stop`. Only `_run` runs on the look-up thread.
    """

    def __init__(self, runtime: Runtime, found: Callable[[], None]) -> None:
        """Create an empty table of clients. The look-up thread calls `found` when results are available."""
        self._runtime = runtime
        self._found = found
        self.waiting: dict[Visitor, None] = {}
        self._asked: Queue[Address] = runtime.queue(ASKED_MAX)
        self._answers: Queue[tuple[Address, str | OSError]] = runtime.queue(ASKED_MAX)
        self._lock = runtime.lock()
        self._stopping = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread if it is not running."""
        if self._thread is None:
            self._thread = self._runtime.spawn("look-up", self._run)

    def admit(self, visitor: Visitor) -> bool:
        """Add a client that waits for its broker's address; returns false if too many look-ups wait."""
        target = visitor.door.target
        is_asked = any(waiting.door.target == target for waiting in self.waiting)
        if not is_asked and not self._asked.offer(target):
            return False
        self.waiting[visitor] = None
        return True

    def answered(self) -> Iterator[tuple[Visitor, str | OSError]]:
        """Iterate over the clients whose look-up ended, each with the address or the error."""
        while (answer := self._answers.take(0)) is not None:
            target, found = answer
            for visitor in [waiting for waiting in self.waiting if waiting.door.target == target]:
                del self.waiting[visitor]
                yield visitor, found

    def overdue(self, came_ns: int) -> list[Visitor]:
        """Remove and return the clients that began to wait before this time."""
        late = [visitor for visitor in self.waiting if visitor.came_ns < came_ns]
        for visitor in late:
            del self.waiting[visitor]
        return late

    def stop(self) -> None:
        """Close the waiting clients' connections, and stop look-ups."""
        for visitor in self.waiting:
            visitor.socket.close()
        with self._lock:
            self._stopping = True
        if self._thread is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stopping:
            target = self._asked.take(TAKE_S)
            if target is None:
                continue
            answer: str | OSError
            try:
                answer = self._runtime.look_up(*target)
            except OSError as error:
                answer = error
            with self._lock:
                if not self._stopping:
                    self._answers.offer((target, answer))
                    self._found()
