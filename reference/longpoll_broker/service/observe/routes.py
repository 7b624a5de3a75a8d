"""Leads clients of a name server through the proxy: broker addresses in its answers become addresses of the proxy.

Only answers to 105 and 106 are changed, and of these only the addresses in `brokerAddrs`; every other byte passes as it
came. A stream that cannot be read passes unchanged from there on. Leaves out which door an address leads to
(`observer`).

Source: `TopicRouteData.java`, `ClusterInfo.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from longpoll_broker.core.faults import FAULTS
from longpoll_broker.errors import ProtocolError
from longpoll_broker.service.observe.tap import CommandStream
from longpoll_broker.wire.bodies import load_json
from longpoll_broker.wire.codes import RequestCode
from longpoll_broker.wire.command import Command, decode_frame, encode
from longpoll_broker.wire.frame import FRAME_SIZE_MAX, LENGTH, LENGTH_SIZE, FrameReader

log = logging.getLogger(__name__)

ASKED: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC.value, RequestCode.GET_BROKER_CLUSTER_INFO.value})
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

    def opened(self, after_ns: int) -> None:
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
            return b"".join(encode(self._led_here(command)))
        except UNREADABLE as error:
            log.warning("an answer of the name server was relayed unchanged, for it could not be read: %s", error)
            return frame

    def _led_here(self, command: Command) -> Command:
        body = _with_doors(load_json(command.body), self._door_of)
        return msgspec.structs.replace(command, body=msgspec.json.encode(body))

    def _go_blind(self, who: str, why: object) -> None:
        self._is_blind = True
        log.warning("%s sent what cannot be read (%s): its connection is relayed unchanged from here on", who, why)


def _with_doors(value: Any, door_of: Callable[[str], str]) -> Any:
    """The JSON value with every broker address in it replaced."""
    if isinstance(value, list):
        return [_with_doors(item, door_of) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: (
            {number: door_of(address) for number, address in item.items()}
            if name == "brokerAddrs" and isinstance(item, dict)
            else _with_doors(item, door_of)
        )
        for name, item in value.items()
    }
