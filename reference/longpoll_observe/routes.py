"""Redirects clients of a name server to the proxy by replacing broker addresses in its answers.

Only answers to GET_ROUTEINFO_BY_TOPIC (105) and GET_BROKER_CLUSTER_INFO (106) are changed: the addresses in
`brokerAddrs`, and with them the length of the frame. If a stream cannot be decoded, the rest of it is passed on
unchanged. `observer` supplies the proxy's addresses.

Source: `TopicRouteData.java`, `ClusterInfo.java`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from longpoll_observe.tap import CommandStream
from longpoll_protocol.bodies import load_json
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import ProtocolError
from longpoll_protocol.frames import FRAME_SIZE_MAX, HEAD, HEAD_SIZE, LENGTH, LENGTH_SIZE, FrameReader, decode_frame
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

ASKED: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC.value, RequestCode.GET_BROKER_CLUSTER_INFO.value})
TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
"""Matches a JSON string, a punctuation mark or any other token, including fastjson's unquoted keys."""
UNREADABLE: Final = (ProtocolError, msgspec.DecodeError, *FAULTS)


class RouteTap:
    """The tap of a client's connection to a name server, which also rewrites the answers.

    Invariants: `_asked` are the opaques (request ids) of open route requests; `_waiting` is the first part of an
    incomplete answer; once `_is_blind` is true, nothing is held back or changed.
    """

    def __init__(self, door_of: Callable[[str], str]) -> None:
        self._door_of = door_of
        self._requests = CommandStream()
        self._asked: set[int] = set()
        self._waiting = bytearray()
        self._is_blind = False

    def opened(self, after_ns: int, before_ns: int) -> None:
        """Do nothing, because connections to a name server are not in the history."""

    def forwarded(self, content: bytes, after_ns: int, before_ns: int) -> None:  # noqa: ARG002 - the tap's signature
        """Remember the requests whose answers contain addresses."""
        if self._is_blind:
            return
        try:
            for command, _begun_ns in self._requests.feed(content, after_ns):
                if command.code in ASKED and not command.is_response:
                    self._asked.add(command.opaque)
        except UNREADABLE as error:
            self._go_blind("a client of the name server", error)

    def answered(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """Do nothing, because `rewrite` has processed the bytes."""

    def blocked(self, direction: str, after_ns: int, before_ns: int) -> None:
        """Do nothing."""

    def unblocked(self, direction: str, after_ns: int, before_ns: int) -> None:
        """Do nothing."""

    def closed(self, after_ns: int, before_ns: int) -> None:
        """Do nothing."""

    def rewrite(self, content: bytes) -> bytes:
        """Returns the bytes for the client. Holds an answer back until the answer is complete."""
        if self._is_blind and not self._waiting:
            return content
        self._waiting += content
        ready = bytearray()
        while not self._is_blind and len(self._waiting) >= LENGTH_SIZE:
            (length,) = LENGTH.unpack_from(self._waiting)
            if not LENGTH_SIZE <= length <= FRAME_SIZE_MAX:
                self._go_blind("the name server", f"a frame of length {length}")
                break
            if len(self._waiting) < LENGTH_SIZE + length:
                break
            frame = bytes(self._waiting[: LENGTH_SIZE + length])
            del self._waiting[: LENGTH_SIZE + length]
            ready += self._frame(frame)
        if self._is_blind:
            ready += self._waiting
            self._waiting.clear()
        return bytes(ready)

    def _frame(self, frame: bytes) -> bytes:
        """Returns a complete frame, changed if it answers a route request."""
        try:
            reader = FrameReader()
            reader.feed(frame)
            cut = reader.next_frame()
            assert cut is not None, "the frame is whole"
            command = decode_frame(cut)
            if not command.is_response or command.opaque not in self._asked:
                return frame
            self._asked.discard(command.opaque)
            if not len(command.body):
                return frame
            return _with_body(frame, _with_doors(bytes(command.body), self._door_of))
        except UNREADABLE as error:
            log.warning("an answer of the name server was relayed unchanged, for it could not be read: %s", error)
            return frame

    def _go_blind(self, who: str, why: object) -> None:
        self._is_blind = True
        log.warning("%s sent what cannot be read (%s): its connection is relayed unchanged from here on", who, why)


def _with_body(frame: bytes, body: bytes) -> bytes:
    _length, mark = HEAD.unpack_from(frame)
    body_at = HEAD_SIZE + (mark & 0xFFFFFF)
    return LENGTH.pack(body_at - LENGTH_SIZE + len(body)) + frame[LENGTH_SIZE:body_at] + body


def _with_doors(body: bytes, door_of: Callable[[str], str]) -> bytes:
    """Replace every broker address in a JSON text and keep all other bytes. Raises the same errors as `load_json`."""
    load_json(body)
    pieces, kept_to = [], 0
    for start, stop in _address_places(body):
        address = msgspec.json.decode(body[start:stop], type=str)
        door = door_of(address)
        if door != address:
            pieces += [body[kept_to:start], msgspec.json.encode(door)]
            kept_to = stop
    return b"".join((*pieces, body[kept_to:]))


def _address_places(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each string in `body` that is a value of an object under `brokerAddrs`."""
    opened: list[bool] = []
    """For each object or list that is open at this place, whether it is an object of addresses."""
    key = last = b""
    for token in TOKEN.finditer(body):
        text = token[0]
        if text in b"{[":
            opened.append(text == b"{" and key.startswith(b'"') and msgspec.json.decode(key) == "brokerAddrs")
            key = b""
        elif text in b"}]":
            opened.pop()
            key = b""
        elif text == b":":
            key = last
        elif text == b",":
            key = b""
        elif key and opened and opened[-1] and text.startswith(b'"'):
            yield token.span()
        last = text
