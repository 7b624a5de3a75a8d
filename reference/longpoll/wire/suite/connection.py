"""One connection of the suite: requests out, replies in by opaque, each with the time at which it was read.

Unlike a real client it is passive: no thread, no retry, no time-out. It is strict: an unexpected or repeated reply is a
violation.

If the broker has no room for a request (2, 215), it is sent again a few times, as real clients do. A pull is not,
because its deadline would restart.

The meaning of replies: `answers`. The required ones: `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from attrs import frozen

from longpoll.wire.connection import STALL_S, BrokerConnection
from longpoll.wire.suite.model import ViolationError
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import EMPTY, Buffer, Command, Serialisation
from longpoll_runtime import Address, Runtime

BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY.value, ResponseCode.FLOW_CONTROL.value})
"""RocketMQ's brokers answer so if a request has waited 200 ms for a thread, as on a busy machine."""
TRIES_MAX: Final = 100

Stalled: TypeAlias = Callable[[int, int], float]
"""The ms for which the machine paused between two times of the runtime's clock: no broker answers meanwhile."""


def never(_begin_ns: int, _end_ns: int) -> float:
    """A machine that never pauses, as far as known."""
    return 0.0


@frozen
class Reply:
    """A command that answers a request of ours."""

    command: Command
    read_ns: int
    """When it was read from the socket, possibly some time after it arrived."""


class SuiteConnection(BrokerConnection):
    """One connection.

    Invariant: an opaque is in `_asked` (no reply yet), in `_replies` (not yet taken), or done; only the first may be
    answered.
    """

    def __init__(self, runtime: Runtime, address: Address, number: int, stalled_ms: Stalled = never) -> None:
        """Connect; raises OSError."""
        # The broker may wait until its answers are read before it reads on.
        super().__init__(runtime, address, reads_while_writing=True)
        self.number = number
        self._stalled_ms = stalled_ms
        self._asked: set[int] = set()
        self._repeatable: dict[int, tuple[bytes, int]] = {}
        """Requests except pulls: their bytes, and how often they were sent."""
        self._replies: dict[int, Reply] = {}

    # -- out ---------------------------------------------------------------------------------------------------------

    def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        serialisation: Serialisation = Serialisation.JSON,
        one_way: bool = False,
    ) -> int:
        """Send a request; returns its opaque for `wait`. A one-way request must never be answered."""
        if one_way:
            flag = CommandFlag.ONE_WAY.value
            opaque, content = self._request(code, fields, body, flag=flag, serialisation=serialisation)
        else:
            opaque, content = self.prepare(code, fields, body, serialisation)
        self.write(content)
        return opaque

    def prepare(
        self,
        code: int,
        fields: Mapping[str, str] | None,
        body: Buffer = EMPTY,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> tuple[int, bytes]:
        """As `ask`, but returns the bytes, to be written together with others."""
        opaque, content = self._request(code, fields, body, serialisation=serialisation)
        self._asked.add(opaque)
        if code != RequestCode.PULL_MESSAGE:
            self._repeatable[opaque] = content, 1
        return opaque, content

    def write(self, content: bytes) -> None:
        """Send bytes as they are; raises ViolationError if the broker does not accept them."""
        try:
            self.send_bytes(content)
        except TimeoutError:
            raise ViolationError(f"the broker read nothing from connection {self.number} for {STALL_S:g} s") from None
        except OSError as error:
            raise ViolationError(f"connection {self.number} was closed by the broker: {error}") from None

    # -- in ----------------------------------------------------------------------------------------------------------

    def wait(self, opaque: int, deadline_ns: int, *, since_ns: int | None = None) -> Reply | None:
        """Take the reply; None if it did not come by the deadline (of the runtime's clock) or never can.

        The deadline moves by the host pauses after `since_ns` (None: from now on).
        """
        self._wait(lambda: opaque in self._replies, deadline_ns, since_ns)
        return self.take(opaque)

    def take(self, opaque: int) -> Reply | None:
        """Take the reply if it has been read."""
        return self._replies.pop(opaque, None)

    def wait_closed(self, deadline_ns: int) -> bool:
        """Whether the broker closes the connection by the deadline, plus host pauses."""
        self._wait(lambda: False, deadline_ns, None)
        return self.closed

    def _wait(self, is_done: Callable[[], bool], deadline_ns: int, since_ns: int | None) -> None:
        """Read until the condition holds, the connection is closed, or the time is over."""
        begun_ns = self._runtime.monotonic_ns() if since_ns is None else since_ns

        def left_ns() -> float:
            now_ns = self._runtime.monotonic_ns()
            wait_ns: float = deadline_ns - now_ns
            if wait_ns <= 0:
                wait_ns += self._stalled_ms(begun_ns, now_ns) * 1e6
            return wait_ns

        self._read_until(is_done, left_ns)

    def drain(self) -> None:
        """Read everything that has arrived, without waiting."""
        try:
            super().drain()
        except RemoteProtocolError as error:
            raise ViolationError(f"the broker sent something other than a command: {error}") from None

    def _received(self, command: Command, read_ns: int) -> None:
        if not command.is_response:
            return
        opaque = command.opaque
        if opaque not in self._asked:
            what = "a second answer to" if 0 < opaque <= self._opaque else "an answer to"
            raise ViolationError(
                f"connection {self.number} got {what} request {opaque}, which waits for none: code {command.code}"
            )
        content, tries = self._repeatable.pop(opaque, (b"", TRIES_MAX))
        if command.code in BUSY and tries < TRIES_MAX:
            self._repeatable[opaque] = content, tries + 1
            self.write(content)
            return
        self._asked.discard(opaque)
        self._replies[opaque] = Reply(command, read_ns)
