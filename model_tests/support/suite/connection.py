"""One connection of the property suite: it sends numbered requests, and a thread reads the replies.

Unlike a real client, the connection never reconnects, and an unexpected or repeated reply is a violation. If the broker
is too busy for a request (codes 2 and 215), the request is sent again a few times, as real clients do. A pull is not
sent again, because its deadline would restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from model_tests.support.broker.wire_connection import STALL_S, BrokerConnection
from model_tests.support.suite.model import broken

from longpoll.wire.requests import BUSY
from longpoll_kit.errors import ViolationError
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import EMPTY, Buffer, Command, Serialisation
from longpoll_runtime import Address, Runtime

TRIES_MAX: Final = 100
LOOK_S: Final = 1.0


class Link(BrokerConnection):
    """A connection whose replies a thread reads.

    Invariant: an opaque is in `asked` (no reply yet), in `_replies` (reply not taken yet), or done. Only an opaque in
    `asked` may get a reply. `asked` and `_replies` change only under `_changed`.
    """

    def __init__(self, runtime: Runtime, address: Address, number: int) -> None:
        """Connect; raises OSError."""
        super().__init__(runtime, address)
        self.number = number
        self.fault: Exception | None = None
        """The first violation that the reader thread has found."""
        self.asked: set[int] = set()
        self.is_ours = False
        """Whether this side has closed the connection."""
        self._changed = runtime.condition()
        self._writing = runtime.lock()
        self._repeatable: dict[int, tuple[bytes, int]] = {}
        """Maps the opaque of each request except pulls to (bytes, number of times sent)."""
        self._replies: dict[int, Command] = {}
        self._reader = runtime.spawn(f"suite-link-{number}", self._read)

    def close(self) -> None:
        """Close the connection, which ends all waits for replies."""
        self.is_ours = True
        self._poller.wake()
        self._reader.join()
        super().close()

    # -- sending requests --------------------------------------------------------------------------------------------

    def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        serialisation: Serialisation = Serialisation.JSON,
        one_way: bool = False,
    ) -> int:
        """Send a request; returns its opaque for `wait`. A one-way request must not get a reply."""
        opaque, content = self.prepare(code, fields, body, serialisation=serialisation, one_way=one_way)
        self.write(content)
        return opaque

    def prepare(
        self,
        code: int,
        fields: Mapping[str, str] | None,
        body: Buffer = EMPTY,
        *,
        serialisation: Serialisation = Serialisation.JSON,
        one_way: bool = False,
    ) -> tuple[int, bytes]:
        """Register a request; returns its opaque and its bytes, which the caller writes together with others."""
        flag = CommandFlag.ONE_WAY.value if one_way else 0
        with self._changed:
            opaque, content = self._request(code, fields, body, flag=flag, serialisation=serialisation)
            if not one_way:
                self.asked.add(opaque)
                if code != RequestCode.PULL_MESSAGE:
                    self._repeatable[opaque] = content, 1
        return opaque, content

    def write(self, content: bytes) -> None:
        """Send bytes as they are; raises ViolationError if the broker does not accept them."""
        try:
            with self._writing:
                self.send_bytes(content)
        except TimeoutError:
            raise broken(f"the broker read nothing from connection {self.number} for {STALL_S:g} s") from None
        except OSError as error:
            raise broken(f"connection {self.number} was closed by the broker: {error}") from None

    # -- receiving answers -------------------------------------------------------------------------------------------

    def wait(self, opaque: int, left_s: Callable[[], float] = lambda: LOOK_S) -> Command | None:
        """Wait for the reply and take it; None if it did not arrive in time or can no longer arrive."""
        self._wait(lambda: opaque in self._replies, left_s)
        with self._changed:
            return self._replies.pop(opaque, None)

    def wait_closed(self, left_s: Callable[[], float]) -> bool:
        self._wait(lambda: False, left_s)
        return self.closed

    def _wait(self, is_done: Callable[[], bool], left_s: Callable[[], float]) -> None:
        with self._changed:
            while not (is_done() or self.closed or self.is_ours or self.fault):
                wait_s = left_s()
                if wait_s <= 0:
                    return
                self._changed.wait(wait_s)

    def _read(self) -> None:
        while not (self.closed or self.is_ours or self.fault):
            self._poller.poll(LOOK_S)
            try:
                self.drain()
            except RemoteProtocolError as error:
                self._fail(broken(f"the broker sent something other than a command: {error}"))
            except ViolationError as error:
                self._fail(error)
        with self._changed:
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.fault = self.fault or error
            self._changed.notify_all()

    def _received(self, command: Command, read_ns: int) -> None:
        if not command.is_response:
            return
        opaque = command.opaque
        with self._changed:
            if opaque not in self.asked:
                what = "a second answer to" if 0 < opaque <= self._opaque else "an answer to"
                said = f"connection {self.number} got {what} request {opaque}, which waits for none"
                raise broken(f"{said}: code {command.code}", "answered_once")
            content, tries = self._repeatable.pop(opaque, (b"", TRIES_MAX))
            is_again = command.code in BUSY and tries < TRIES_MAX
            if is_again:
                self._repeatable[opaque] = content, tries + 1
            else:
                self.asked.discard(opaque)
                self._replies[opaque] = command
                self._changed.notify_all()
        if is_again:
            self.write(content)
