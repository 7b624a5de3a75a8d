"""Defines a small broker that serves pops, correctly or with one fault, and the clauses that detect each fault.

One lock guards the whole broker, so it has no races. Messages, groups and invisible times are kept in memory.
"""

from __future__ import annotations

import contextlib
import json
import math
import socketserver
import struct
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BufferedIOBase
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_conform.connection import Address
from longpoll_conform.pops import ACKNOWLEDGE, CHANGE, FULL, NOTIFICATION, POP, TIMEOUT
from longpoll_conform.wire import decode_command, encode_command
from longpoll_runtime.services import Closeable
from longpoll_runtime.threads import spawn

Command = Mapping[str, Any]
Place = tuple[str, int, int]
NAME: Final = "broker-of-pops"
UNKNOWN: Final = 3
HEAD: Final = struct.Struct(">iIiiiqqiqIiqIiiqi")
"""The fields of a stored record before its body, with host addresses of four bytes."""


@frozen
class Flaw:
    codes: frozenset[int] = frozenset({POP, NOTIFICATION})
    hold: Callable[[float], float] = lambda hold_s: hold_s
    """Requested hold in seconds -> the time in seconds that the broker holds the request."""
    loses: Callable[[int, int], bool] = lambda _number, _queue: False
    """(Number of a held request, its queue) -> whether the broker loses the wake of this request."""
    wake_late_s: float = 0.0
    hidden: Callable[[float], float] = lambda hidden_s: hidden_s
    """Requested invisible time in seconds -> the time in seconds that the broker keeps the message invisible."""
    changed: Callable[[float], float | None] = lambda hidden_s: hidden_s
    """Requested new invisible time in seconds -> the new invisible time, or None if the broker ignores the change."""
    acknowledges: bool = True
    no_room: int | None = FULL
    """The response code to a pop if the broker already holds its maximum number of pops; with None it sends no
    response."""
    ack_code: int = 0


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = False
    request_queue_size = 256


@define(eq=False)
class _Waiting:
    peer: BufferedIOBase
    command: Command
    key: tuple[str, ...]
    deadline_s: float
    number: int
    woken_s: float | None = None


@define(eq=False)
class PopBroker(Closeable):
    flaw: Flaw
    room: int = 1_024
    _messages: dict[str, list[tuple[Place, bytes]]] = field(factory=lambda: defaultdict(list))
    _visible_s: dict[tuple[str, Place], float] = field(factory=dict)
    _waiting: list[_Waiting] = field(factory=list)
    _due_s: float = math.inf
    """The earliest time at which some request may have to be answered."""
    _count: int = 0
    _is_over: bool = False
    _moved: threading.Condition = field(factory=threading.Condition)
    _server: _Server = field(init=False)
    _threads: Sequence[threading.Thread] = field(init=False)

    def __attrs_post_init__(self) -> None:
        broker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    while head := self.rfile.read(4):
                        command = decode_command(self.rfile.read(int.from_bytes(head)))
                        with broker._moved:
                            broker._serve(self.wfile, command)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._threads = [spawn("pop-broker", partial(self._server.serve_forever, 0.02)), spawn("pop-wakes", self._wake)]

    @property
    def address(self) -> Address:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        self._server.shutdown()
        with self._moved:
            self._is_over = True
            self._moved.notify()
        for thread in self._threads:
            thread.join(5)
        self._server.server_close()

    def _serve(self, peer: BufferedIOBase, command: Command) -> None:
        code, fields = command["code"], command["extFields"] or {}
        if code in {POP, NOTIFICATION}:
            self._hold(peer, command)
        elif code == 310:
            self._tell(peer, command, 0, self._store(fields["b"], int(fields["e"]), command["body"]))
        elif code in {ACKNOWLEDGE, CHANGE}:
            self._settle(code, fields)
            self._tell(peer, command, self.flaw.ack_code)
        elif code == 106:
            addresses = {"0": "{}:{}".format(*self.address)}
            table = {NAME: {"brokerName": NAME, "cluster": "c", "brokerAddrs": addresses}}
            self._tell(peer, command, 0, {}, json.dumps({"brokerAddrTable": table}).encode())
        else:
            self._tell(peer, command, 0 if code == 17 else UNKNOWN)

    def _tell(self, peer: BufferedIOBase, asked: Command, code: int, fields: Any = None, body: bytes = b"") -> None:
        answer = {"code": code, "flag": 1, "opaque": asked["opaque"], "extFields": fields, "body": body}
        with contextlib.suppress(OSError):
            peer.write(encode_command(answer))

    # -- messages ----------------------------------------------------------------------------------------------------

    def _store(self, topic: str, queue: int, body: bytes) -> dict[str, str]:
        offset = sum(place[1] == queue for place, _record in self._messages[topic])
        rest = body + struct.pack(">B", len(topic)) + topic.encode() + struct.pack(">h", 0)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        sizes = (HEAD.size + len(rest), 0xDAA320A7, crc, queue, 0, offset, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len(body))
        self._messages[topic].append(((topic, queue, offset), HEAD.pack(*sizes) + rest))
        self._moved.notify()
        return {"queueId": str(queue), "queueOffset": str(offset), "msgId": "7F00000100002A9F0000000000000000"}

    def _found(self, fields: Mapping[str, str]) -> list[tuple[Place, bytes]]:
        group, queue, now_s = fields["consumerGroup"], int(fields["queueId"]), time.monotonic()
        return [
            (place, record)
            for place, record in self._messages[fields["topic"]]
            if queue in {-1, place[1]} and self._visible_s.get((group, place), 0.0) <= now_s
        ]

    def _settle(self, code: int, fields: Mapping[str, str]) -> None:
        """Serve an acknowledgement or a change. A handle without the broker's name has no effect."""
        if fields["extraInfo"].split(" ")[5] != NAME:
            return
        place = fields["topic"], int(fields["queueId"]), int(fields["offset"])
        hidden_s = math.inf if self.flaw.acknowledges else None
        if code == CHANGE:
            hidden_s = self.flaw.changed(int(fields["invisibleTime"]) / 1000)
        if hidden_s is not None:
            self._hide(fields["consumerGroup"], place, hidden_s)

    def _hide(self, group: str, place: Place, hidden_s: float) -> None:
        self._visible_s[group, place] = time.monotonic() + hidden_s
        self._moved.notify()

    # -- held requests -----------------------------------------------------------------------------------------------

    def _hold(self, peer: BufferedIOBase, command: Command) -> None:
        self._count += 1
        hold_s = int(command["extFields"]["pollTime"]) / 1000
        hold_s = self.flaw.hold(hold_s) if command["code"] in self.flaw.codes else hold_s
        key = tuple(command["extFields"][name] for name in ("topic", "consumerGroup", "queueId"))
        waiting = _Waiting(peer, command, key, time.monotonic() + hold_s, self._count)
        if self._answer(waiting):
            return
        if sum(each.key == waiting.key for each in self._waiting) >= self.room:
            if self.flaw.no_room is not None:
                self._tell(peer, command, self.flaw.no_room)
            return
        self._waiting.append(waiting)
        if waiting.deadline_s < self._due_s:
            self._moved.notify()

    def _wake(self) -> None:
        with self._moved:
            while not self._is_over:
                now_s = time.monotonic()
                self._waiting = [each for each in self._waiting if not self._answer(each, is_held=True)]
                times_s = [each.deadline_s if each.woken_s is None else each.woken_s for each in self._waiting]
                self._due_s = min([math.inf, *times_s, *(each for each in self._visible_s.values() if each > now_s)])
                self._moved.wait(None if self._due_s == math.inf else self._due_s - now_s)

    def _answer(self, waiting: _Waiting, *, is_held: bool = False) -> bool:
        command, now_s = waiting.command, time.monotonic()
        fields, found = command["extFields"], self._found(command["extFields"])
        waiting.woken_s = waiting.woken_s if found else None
        if found and is_held and waiting.woken_s is None and command["code"] in self.flaw.codes:
            lost = self.flaw.loses(waiting.number, int(fields["queueId"]))
            waiting.woken_s = waiting.deadline_s if lost else now_s + self.flaw.wake_late_s
        if now_s < waiting.deadline_s and (not found or now_s < (waiting.woken_s or 0.0)):
            return False
        if command["code"] == NOTIFICATION:
            self._tell(waiting.peer, command, 0, {"hasMsg": str(bool(found)).lower(), "pollingFull": "false"})
        else:
            self._tell(waiting.peer, command, 0 if found else TIMEOUT, *self._popped(fields, found))
        return True

    def _popped(self, fields: Mapping[str, str], found: list[tuple[Place, bytes]]) -> tuple[dict[str, str], bytes]:
        hidden_s = self.flaw.hidden(int(fields["invisibleTime"]) / 1000)
        for place, _record in found:
            self._hide(fields["consumerGroup"], place, hidden_s)
        starts = {queue: offset for (_topic, queue, offset), _record in reversed(found)}
        head = {
            "popTime": str(round(time.time() * 1000)), "invisibleTime": fields["invisibleTime"], "reviveQid": "1",
            "startOffsetInfo": ";".join(f"0 {queue} {offset}" for queue, offset in starts.items()), "restNum": "0",
        }  # fmt: skip
        return head, b"".join(record for _place, record in found)


# -- faults ----------------------------------------------------------------------------------------------------------

NOTIFIED: Final = frozenset({NOTIFICATION})
FLAWS: Final[Mapping[str, tuple[str, Flaw]]] = {
    "never holds": ("POP-1", Flaw(hold=lambda _hold_s: 0.0)),
    "holds half as long": ("POP-3", Flaw(hold=lambda hold_s: hold_s / 2)),
    "ends holds 300 ms early": ("POP-3", Flaw(hold=lambda hold_s: hold_s - 0.3)),
    "ends holds 300 ms late": ("POP-3", Flaw(hold=lambda hold_s: hold_s + 0.3)),
    "wakes one of five at its deadline": ("POP-2", Flaw(loses=lambda number, _queue: number % 5 == 0)),
    "wakes no pop of all queues": ("POP-2", Flaw(loses=lambda _number, queue: queue == -1)),
    "wakes late by 500 ms": ("POP-2", Flaw(wake_late_s=0.5)),
    "an invisible time of half the length": ("POP-4", Flaw(hidden=lambda hidden_s: hidden_s / 2)),
    "an invisible time without end": ("POP-5", Flaw(hidden=lambda _hidden_s: math.inf)),
    "forgets acknowledgements": ("POP-6", Flaw(acknowledges=False)),
    "rejects acknowledgements": ("POP-6", Flaw(ack_code=1)),
    "makes no invisible time longer": ("POP-7", Flaw(changed=lambda hidden_s: None if hidden_s > 3.2 else hidden_s)),
    "makes no invisible time shorter": ("POP-7", Flaw(changed=lambda hidden_s: None if hidden_s < 3.2 else hidden_s)),
    "holds no notification": ("POP-8", Flaw(NOTIFIED, hold=lambda _hold_s: 0.0)),
    "wakes one of five notifications late": ("POP-8", Flaw(NOTIFIED, loses=lambda number, _queue: number % 5 == 0)),
    "ends notifications 300 ms early": ("POP-8", Flaw(NOTIFIED, hold=lambda hold_s: hold_s - 0.3)),
    "never answers a pop without room": ("POP-9", Flaw(no_room=None)),
    "answers a pop without room with an error": ("POP-9", Flaw(no_room=1)),
}
"""Name of a fault -> (the clause that detects the fault, the fault)."""
