"""A client that does exactly what a test asks: any request, any bytes, in any order, on one connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from model_tests.support.broker.wire_connection import BrokerConnection
from model_tests.support.simulation.client import pull_fields, records_of, send_fields

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import EMPTY, Buffer, Command, Serialisation
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime

__all__ = ["PATIENCE_S", "RawClient", "pull_fields", "records_of", "send_fields", "send_message"]

PATIENCE_S: Final = 240.0
"""Time limit for what must come: that of a whole test."""
LONG_MS: Final = 10_000
"""A pull that may be held for longer must be woken: an answer near its deadline shows a lost wakeup."""


class RawClient(BrokerConnection):
    """One connection. Unclaimed replies are kept by opaque; `pushes` are the peer's requests."""

    def __init__(self, address: Address) -> None:
        """Connect; raises OSError."""
        # A test that sends without reading does so on purpose.
        super().__init__(RealRuntime(), address, reads_while_writing=False)
        self._replies: dict[int, Command] = {}
        self._patience_s: dict[int, float] = {}
        """Of long pulls, by opaque."""
        self.pushes: list[Command] = []

    def send(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        flag: int = 0,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> int:
        """Send a request; returns its opaque."""
        opaque, content = self._request(code, fields, body, flag=flag, serialisation=serialisation)
        self._note_hold(opaque, fields)
        self.send_bytes(content)
        return opaque

    def send_burst(self, code: int, burst: Sequence[tuple[dict[str, str], Buffer]]) -> list[int]:
        """Send requests with these fields and bodies in one piece; returns their opaques."""
        requests = [self._request(code, fields, body) for fields, body in burst]
        for (opaque, _content), (fields, _body) in zip(requests, burst, strict=True):
            self._note_hold(opaque, fields)
        self.send_bytes(b"".join(content for _opaque, content in requests))
        return [opaque for opaque, _content in requests]

    def reply(self, opaque: int, timeout_s: float | None = None) -> Command | None:
        """Returns the reply to a request; None if none arrives in time or the peer closes.

        Without a time-out, a long pull must be answered well before its deadline.
        """
        if timeout_s is None:
            timeout_s = self._patience_s.get(opaque, PATIENCE_S)
        self._wait(lambda: opaque in self._replies, timeout_s)
        return self._replies.pop(opaque, None)

    def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> Command:
        """Send a request and return its reply; AssertionError without one."""
        return self.answer(self.send(code, fields, body, serialisation=serialisation))

    def answer(self, opaque: int) -> Command:
        """Returns the reply to a request; AssertionError without one."""
        reply = self.reply(opaque)
        assert reply is not None, f"no reply to request {opaque}"
        return reply

    def wait_closed(self) -> bool:
        """Whether the peer closes the connection in time."""
        self._wait(lambda: False, PATIENCE_S)
        return self.closed

    def wait_push(self) -> Command:
        """Returns the peer's next request; AssertionError without one."""
        self._wait(lambda: bool(self.pushes), PATIENCE_S)
        assert self.pushes, "the peer pushed nothing"
        return self.pushes.pop(0)

    def _note_hold(self, opaque: int, fields: dict[str, str] | None) -> None:
        hold = (fields or {}).get("suspendTimeoutMillis", "")
        if hold.isdecimal() and int(hold) >= LONG_MS:
            self._patience_s[opaque] = min(0.8 * int(hold) / 1000, PATIENCE_S)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        deadline_ns = self._runtime.monotonic_ns() + int(timeout_s * 1e9)
        self._read_until(is_done, lambda: deadline_ns - self._runtime.monotonic_ns())

    def _received(self, command: Command, read_ns: int) -> None:
        if command.is_response:
            self._replies[command.opaque] = command
        else:
            self.pushes.append(command)


def send_message(client: RawClient, topic: str, body: bytes = b"x", *, queue_id: int = 0, properties: str = "") -> int:
    """Send one message and return its queue offset."""
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)
    assert reply.code == 0, reply.remark
    assert reply.ext_fields is not None
    return int(reply.ext_fields["queueOffset"])
