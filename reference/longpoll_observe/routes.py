"""Leads clients of a name server through the proxy: broker addresses in its answers become addresses of the proxy.

Only answers to 105 and 106 are changed, and of these only the addresses in `brokerAddrs` and, by what that makes, the
frame's length; every other byte passes as it came. A stream that cannot be read passes unchanged from there on.

Leaves out which door an address leads to (`observer`).

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
from longpoll_protocol.frames.command import decode_frame
from longpoll_protocol.frames.frame import FRAME_SIZE_MAX, HEAD, HEAD_SIZE, LENGTH, LENGTH_SIZE, FrameReader
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

ASKED: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC.value, RequestCode.GET_BROKER_CLUSTER_INFO.value})
TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
"""A text, a mark or anything else of JSON; fastjson's bare keys too."""
UNREADABLE: Final = (ProtocolError, msgspec.DecodeError, *FAULTS)


class RouteTap:
    """The tap and the rewriting of one client's connection to a name server.

    Invariants: `_asked` are the opaques of open route requests; `_waiting` is the beginning of one answer; once
    `_is_blind` nothing is held back or changed any more.
    """

    def __init__(self, door_of: Callable[[str], str]) -> None:
        self._door_of = door_of
        self._requests = CommandStream()
        self._asked: set[int] = set()
        self._waiting = bytearray()
        self._is_blind = False

    def opened(self, after_ns: int, before_ns: int) -> None:
        """Nothing to tell: a name server's connections are no part of a broker's history."""

    def forwarded(self, content: bytes, after_ns: int, before_ns: int) -> None:  # noqa: ARG002 - the tap's signature
        """Note the requests whose answers carry addresses."""
        if self._is_blind:
            return
        try:
            for command, _begun_ns in self._requests.feed(content, after_ns):
                if command.code in ASKED and not command.is_response:
                    self._asked.add(command.opaque)
        except UNREADABLE as error:
            self._go_blind("a client of the name server", error)

    def answered(self, content: bytes, after_ns: int, before_ns: int) -> None:
        """Nothing to tell: `rewrite` has seen the bytes."""

    def blocked(self, direction: str, after_ns: int, before_ns: int) -> None:
        """Nothing to tell."""

    def unblocked(self, direction: str, after_ns: int, before_ns: int) -> None:
        """Nothing to tell."""

    def closed(self, after_ns: int, before_ns: int) -> None:
        """Nothing to tell."""

    def rewrite(self, content: bytes) -> bytes:
        """What the client is sent instead of these bytes; an answer is held back until it is whole."""
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
        """One whole frame, changed if it answers a route request."""
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
    """The frame with another body; its header as it came."""
    _length, mark = HEAD.unpack_from(frame)
    body_at = HEAD_SIZE + (mark & 0xFFFFFF)
    return LENGTH.pack(body_at - LENGTH_SIZE + len(body)) + frame[LENGTH_SIZE:body_at] + body


def _with_doors(body: bytes, door_of: Callable[[str], str]) -> bytes:
    """The JSON text with every broker address in it replaced, and every other byte as it was; raises as `load_json`."""
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
    """Where texts stand in `body`, which is JSON, that are values of an object under the key `brokerAddrs`."""
    opened: list[bool] = []
    """Of each open object or list, whether it is an object of addresses."""
    key = last = b""
    for token in TOKEN.finditer(body):
        text = token[0]
        if text in b"{[":
            opened.append(text == b"{" and _is_addresses(key))
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


def _is_addresses(key: bytes) -> bool:
    return key.startswith(b'"') and msgspec.json.decode(key) == "brokerAddrs"
