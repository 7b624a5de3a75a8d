"""Creates requests as bytes without an encoder, and splits answers from a stream without a decoder.

Only the code, the opaque and the body size of an answer are read.
"""

from __future__ import annotations

import re
import socket
from struct import Struct
from typing import Final

from attrs import define, frozen
from model_tests.support.broker.raw_client import pull_fields, send_fields

from longpoll_client.errors import ClientError
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command, encode
from longpoll_runtime import Address

GROUP: Final = "harness"
RECEIVE_SIZE: Final = 1 << 20
OPAQUE_BASE: Final = 1_000_000_000
"""The opaque of the first send, so large that all opaques have the same length in JSON."""
HEAD: Final = Struct(">iI")
"""The first 8 bytes of a frame: the length of the rest, one byte for the serialisation, 3 bytes for the header size."""
_OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
_CODE: Final = re.compile(rb'"code":(\d+)')


def send_frame(topic: str, queue: int, body: bytes, opaque: int = 0, properties: str = "") -> bytes:
    """Create a send. Frames for queues 0 to 9 have the same size if their bodies and properties do."""
    fields = send_fields(topic, queue, properties)
    command = Command(RequestCode.SEND_MESSAGE_V2, OPAQUE_BASE + opaque, ext_fields=fields, body=body)
    return b"".join(encode(command))


@frozen
class PullTemplate:
    """Creates pulls of one topic. A pull whose `timeout_ms` is 0 is never held."""

    topic: str
    group: str = GROUP

    def frame(self, queue: int, offset: int, opaque: int, timeout_ms: int = 0) -> bytes:
        """Create a pull of up to 32 messages."""
        fields = pull_fields(self.topic, offset, queue_id=queue, timeout_ms=timeout_ms, group=self.group)
        return b"".join(encode(Command(RequestCode.PULL_MESSAGE, opaque, ext_fields=fields)))

    def patched(self) -> tuple[bytes, bytes, bytes]:
        """Returns the header of a pull of queue 0 in three parts, to be joined by an offset and an opaque."""
        mark_offset, mark_opaque = 7_000_000_001, 1_700_000_003
        header = self.frame(0, mark_offset, mark_opaque)[HEAD.size :]
        one, two = sorted((str(mark_offset).encode(), str(mark_opaque).encode()), key=header.index)
        before, rest = header.split(one)
        between, after = rest.split(two)
        return before, between, after


def framed(header: bytes) -> bytes:
    return HEAD.pack(4 + len(header), len(header)) + header


@frozen
class Answer:
    code: int
    opaque: int
    body_size: int


@define(slots=True)
class AnswerStream:
    """Splits received bytes into answers. Invariant: `_rest` is the beginning of at most one incomplete frame."""

    _rest: bytes = b""

    def count(self, received: bytes) -> tuple[int, int]:
        """Returns the number of answers that these bytes complete, and the total size of the answers' bodies."""
        buffer = self._rest + received if self._rest else received
        at, answers, body_bytes, size = 0, 0, 0, len(buffer)
        unpack = HEAD.unpack_from
        while at + 8 <= size:
            length, mark = unpack(buffer, at)
            if at + 4 + length > size:
                break
            at += 4 + length
            answers += 1
            body_bytes += length - 4 - (mark & 0xFFFFFF)
        self._rest = buffer[at:]
        return answers, body_bytes

    def answers(self, received: bytes) -> list[Answer]:
        buffer = self._rest + received if self._rest else received
        at, size = 0, len(buffer)
        found: list[Answer] = []
        while at + 8 <= size:
            length, mark = HEAD.unpack_from(buffer, at)
            if at + 4 + length > size:
                break
            header_stop = at + 8 + (mark & 0xFFFFFF)
            code = _CODE.search(buffer, at + 8, header_stop)
            opaque = _OPAQUE.search(buffer, at + 8, header_stop)
            if code is None or opaque is None:
                raise ClientError(f"not an answer: {buffer[at + 8 : header_stop][:200]!r}")
            found.append(Answer(int(code[1]), int(opaque[1]), at + 4 + length - header_stop))
            at += 4 + length
        self._rest = buffer[at:]
        return found


class Line:
    """A blocking connection to a broker."""

    __slots__ = ("_stream", "socket")

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, 60.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = AnswerStream()

    def write(self, content: bytes | memoryview) -> None:
        self.socket.sendall(content)

    def read(self) -> list[Answer]:
        """Receive once and return the completed answers. Raises ClientError if the broker closes the connection."""
        return self._stream.answers(self._received())

    def read_count(self) -> tuple[int, int]:
        """Receive once; returns the number and the total body size of the completed answers."""
        return self._stream.count(self._received())

    def call(self, frame: bytes) -> Answer:
        """Send one request and return its answer. No other request may be in flight."""
        self.write(frame)
        while True:
            found = self.read()
            if found:
                return found[0]

    def close(self) -> None:
        self.socket.close()

    def _received(self) -> bytes:
        received = self.socket.recv(RECEIVE_SIZE)
        if not received:
            raise ClientError("the broker closed the connection")
        return received


def expect_success(answer: Answer, what: str) -> None:
    """Raise ClientError if an answer has an error code."""
    if answer.code != ResponseCode.SUCCESS:
        raise ClientError(f"{what} was answered with code {answer.code}")
