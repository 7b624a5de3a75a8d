"""Looks up the host names of brokers on a thread of its own, for an answer may take seconds and nobody's bytes wait.

Leaves out what is done with an address (`relay_loop`). An address that is written in digits needs no look-up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Final

from longpoll_observe.links import Visitor
from longpoll_runtime import Address, Queue, Runtime, Thread

ASKED_MAX: Final = 1_000
"""Most look-ups that may wait."""
TAKE_S: Final = 0.2
"""How often the thread looks whether the proxy ends."""
END_S: Final = 1.0
"""How long the end waits for a look-up that is under way; the thread then ends by itself, or with the process."""


def is_literal(host: str) -> bool:
    """Whether a host is written as an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class NameLookup:
    """Clients that wait for the address of their broker, and the thread that looks it up.

    Invariants: of every target that someone in `waiting` has, the look-up was asked for and its answer not taken;
    `_found` is not called once `stop` has returned. Everything but `_run` happens on one thread.
    """

    def __init__(self, runtime: Runtime, found: Callable[[], None]) -> None:
        """`found` is called on the thread of the look-ups when there are answers."""
        self._runtime = runtime
        self._found = found
        self.waiting: dict[Visitor, None] = {}
        self._asked: Queue[Address] = runtime.queue(ASKED_MAX)
        self._answers: Queue[tuple[Address, str | OSError]] = runtime.queue(ASKED_MAX)
        self._lock = runtime.lock()
        self._stopping = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        if self._thread is None:
            self._thread = self._runtime.spawn("look-up", self._run)

    def admit(self, visitor: Visitor) -> bool:
        """Have a client wait for its broker's address; false when too many look-ups are asked for already."""
        target = visitor.door.target
        is_asked = any(waiting.door.target == target for waiting in self.waiting)
        if not is_asked and not self._asked.offer(target):
            return False
        self.waiting[visitor] = None
        return True

    def answered(self) -> Iterator[tuple[Visitor, str | OSError]]:
        """Those that need not wait any longer, each with the address of its broker or why there is none."""
        while (answer := self._answers.take(0)) is not None:
            target, found = answer
            for visitor in [waiting for waiting in self.waiting if waiting.door.target == target]:
                del self.waiting[visitor]
                yield visitor, found

    def overdue(self, came_ns: int) -> list[Visitor]:
        """Those that came before that moment; they wait no longer."""
        late = [visitor for visitor in self.waiting if visitor.came_ns < came_ns]
        for visitor in late:
            del self.waiting[visitor]
        return late

    def stop(self) -> None:
        """Close the connections of those that wait, and look up nothing more."""
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
