"""A client that does exactly what a test says: any request, any bytes, in any order, over one blocking socket.

Leaves out everything that a real client does on its own.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Final

from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.frames.frame import EMPTY, Buffer, Serialisation
from longpoll_protocol.log_record import Record, decode
from longpoll_runtime.closeable import Closeable

_PHYSICAL_OFFSET: Final = struct.Struct(">q")
PATIENCE_S: Final = 10.0
"""How long a reply that must come is waited for; only a failing test waits so long."""


class RawClient(Closeable):
    """One connection. Replies that were not asked for yet are kept by opaque; `pushes` are the peer's requests."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection()
        self._opaque = 0
        self._replies: dict[int, Command] = {}
        self.pushes: list[Command] = []
        self.closed = False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send_bytes(self, content: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(content)

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
        self._opaque += 1
        command = Command(code, self._opaque, flag, ext_fields=fields, body=body, serialisation=serialisation)
        self._socket.sendall(b"".join(encode(command)))
        return self._opaque

    def send_row(self, code: int, row: Sequence[tuple[dict[str, str], Buffer]]) -> list[int]:
        """Send requests with these fields and bodies as one piece; returns their opaques."""
        opaques = [self._opaque + 1 + number for number in range(len(row))]
        self._opaque += len(row)
        commands = [
            Command(code, opaque, ext_fields=fields, body=body)
            for opaque, (fields, body) in zip(opaques, row, strict=True)
        ]
        self._socket.sendall(b"".join(b"".join(encode(command)) for command in commands))
        return opaques

    def reply(self, opaque: int, timeout_s: float = PATIENCE_S) -> Command | None:
        """The reply to a request; None when none came in time or the peer closed."""
        deadline_s = time.monotonic() + timeout_s
        while opaque not in self._replies and not self.closed:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._read(left_s)
        return self._replies.pop(opaque, None)

    def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> Command:
        """Send a request and return its reply; an AssertionError when none comes."""
        reply = self.reply(self.send(code, fields, body, serialisation=serialisation))
        assert reply is not None, f"no reply to request code {code}"
        return reply

    def wait_closed(self) -> bool:
        """Whether the peer closes the connection in time."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.closed and time.monotonic() < deadline_s:
            self._read(deadline_s - time.monotonic())
        return self.closed

    def wait_push(self) -> Command:
        """The peer's next request; an AssertionError when none comes."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.pushes and not self.closed and time.monotonic() < deadline_s:
            self._read(deadline_s - time.monotonic())
        assert self.pushes, "the peer pushed nothing"
        return self.pushes.pop(0)

    def _read(self, timeout_s: float) -> None:
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            received = self._socket.recv(1 << 20)
        except TimeoutError:
            return
        except ConnectionError:
            self.closed = True
            return
        if not received:
            self.closed = True
            return
        self._connection.receive_data(received)
        while isinstance(event := self._connection.next_event(), Command):
            if event.flag & CommandFlag.RESPONSE:
                self._replies[event.opaque] = event
            else:
                self.pushes.append(event)


def send_fields(topic: str, queue_id: int = 0, properties: str = "") -> dict[str, str]:
    """The fields of a 310 request."""
    values = ("PG", topic, "TBW102", "4", str(queue_id), "0", "1700000000000", "0", properties, "0", "false")
    return dict(zip("abcdefghijk", values, strict=True))


def pull_fields(
    topic: str,
    offset: int,
    *,
    queue_id: int = 0,
    timeout_ms: int = 0,
    subscription: str = "*",
    group: str = "G",
) -> dict[str, str]:
    """The fields of an 11 request that brings its subscription; it may be held when it has a timeout."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if timeout_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(timeout_ms),
        "subVersion": "0",
        "subscription": subscription,
        "expressionType": "TAG",
    }


def send_message(client: RawClient, topic: str, body: bytes = b"x", *, queue_id: int = 0, properties: str = "") -> int:
    """Send one message and return its queue offset."""
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)
    assert reply.code == 0, reply.remark
    assert reply.ext_fields is not None
    return int(reply.ext_fields["queueOffset"])


def records_of(reply: Command) -> list[Record]:
    """The messages of a pull's answer, decoded and checked."""
    body = memoryview(reply.body)
    records = []
    start = 0
    while start < len(body):
        (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(body, start + 28)
        record = decode(body, start, len(body), physical_offset)
        assert isinstance(record, Record), record
        records.append(record)
        start += record.size
    return records
