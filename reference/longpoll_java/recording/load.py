"""A load with recorded times: per queue two consumers that pull continuously, and sends that race them.

A consumer continues where its last answer said. The broker's steps: `trace_rules`.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from attrs import define, field, frozen

from longpoll_java.errors import JavaUnavailableError
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.connection import Connection, Signal

CONSUMERS: Final = 2
"""Per queue: as many as in the smallest bounds with a race."""
HELD_SCANS: Final = 3
"""How many scan periods a pull is held: 15 s, as Java's push consumer requests."""
LINES: Final = 4
"""Connections shared by the consumers; the senders use another one."""
PAUSE_S: Final = 0.004
"""The most time between an acknowledgement and the next send to the same queue."""
LAG_MAX: Final = 16
"""How many messages a consumer may be behind before its queue's sender waits: a read in the specification has no limit,
Java's has one of 32.
"""
LAG_PAUSE_S: Final = 0.002
SILENT_S: Final = 30.0
"""A broker that is silent for this long is given up; a pull is held for half of it."""
SUSPEND_SUBSCRIPTION: Final = "6"
RECEIVED_MAX: Final = 1 << 18


@define
class PullSeen:
    """A pull as its consumer saw it; times are nanoseconds of the monotonic clock, -1 for none."""

    queue: int
    slot: int
    offset: int
    sent_ns: int
    answered_ns: int = -1
    offset_next: int = -1


@define
class SendSeen:
    """A message as its sender saw it."""

    queue: int
    sent_ns: int
    acknowledged_ns: int = -1
    queue_offset: int = -1


@frozen
class Seen:
    """The load's observations. `pulls` are by their opaque."""

    topic: str
    queues: int
    pulls: dict[int, PullSeen]
    sends: list[SendSeen]


@define(eq=False)
class _Line:
    socket: socket.socket
    received: Connection = field(factory=Connection)


@define(eq=False)
class Load:
    """Drives a broker. Invariant: each consumer has one pull in flight, each queue at most one send."""

    address: tuple[str, int]
    topic: str
    queues: int
    messages: int
    seed: int
    rest_s: float
    """How long nothing is sent after half of the messages, so that scans and deadlines reach waiting pulls."""
    hold_ms: int
    on_progress: Callable[[int], None]
    _selector: selectors.BaseSelector = field(factory=selectors.DefaultSelector)
    _lines: list[_Line] = field(factory=list)
    _pulls: dict[int, PullSeen] = field(factory=dict)
    _sends: list[SendSeen] = field(factory=list)
    _sending: dict[int, SendSeen] = field(factory=dict)
    _due: list[tuple[float, int]] = field(factory=list)
    _ends: list[int] = field(init=False)
    _read: list[list[int]] = field(init=False)
    """For each queue the next offsets of its consumers."""
    _left: int = field(init=False)
    _rests_until_s: float = 0.0
    _random: random.Random = field(init=False)
    _opaque: int = 0

    def __attrs_post_init__(self) -> None:
        self._ends = [0] * self.queues
        self._read = [[0] * CONSUMERS for _ in range(self.queues)]
        self._left = self.messages
        self._random = random.Random(self.seed)

    def run(self) -> Seen:
        """Send everything, and wait until all consumers have read it. Raises JavaUnavailableError, and OSError."""
        try:
            self._connect()
            self._ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, self._number(), 0, self._topic_fields()))
            for queue in range(self.queues):
                for slot in range(CONSUMERS):
                    self._pull(queue, slot, 0)
                self._due.append((time.monotonic(), queue))
            self._serve(lambda: not self._left and not self._sending and self._all_read())
        finally:
            for line in self._lines:
                line.socket.close()
            self._selector.close()
        return Seen(self.topic, self.queues, self._pulls, self._sends)

    def _all_read(self) -> bool:
        waiting = [pull for pull in self._pulls.values() if pull.answered_ns < 0]
        return all(pull.offset >= self._ends[pull.queue] for pull in waiting)

    def _serve(self, is_done: Callable[[], bool]) -> None:
        heard_s = time.monotonic()
        looked_s = 0.0
        while True:
            now_s = time.monotonic()
            while self._due and self._due[0][0] <= now_s:
                self._send(heapq.heappop(self._due)[1])
            wait_s = min(self._due[0][0] - now_s, 0.05) if self._due else 0.05
            heard = self._selector.select(max(wait_s, 0))
            for key, _ in heard:
                self._receive(key.data)
            heard_s = time.monotonic() if heard else heard_s
            if time.monotonic() - heard_s > SILENT_S:
                raise JavaUnavailableError(f"the Java broker has been silent for {SILENT_S:g} s")
            if not self._left and now_s - looked_s > 0.1:
                looked_s = now_s
                if is_done():
                    return

    def _connect(self) -> None:
        for _ in range(LINES + 1):
            line = _Line(socket.create_connection(self.address, SILENT_S))
            line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines.append(line)
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    def _number(self) -> int:
        self._opaque += 1
        return self._opaque

    def _ask(self, command: Command) -> None:
        line = self._lines[0]
        line.socket.sendall(b"".join(map(bytes, encode(command))))
        while isinstance(reply := line.received.next_event(), Signal):
            data = line.socket.recv(RECEIVED_MAX)
            if not data:
                raise JavaUnavailableError("the Java broker closed the connection")
            line.received.receive_data(data)
        if reply.code != ResponseCode.SUCCESS:
            raise JavaUnavailableError(f"the Java broker created no topic: {reply.remark}")

    def _topic_fields(self) -> dict[str, str]:
        return {
            "topic": self.topic, "defaultTopic": "TBW102", "readQueueNums": str(self.queues),
            "writeQueueNums": str(self.queues), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false",
        }  # fmt: skip

    def _send(self, queue: int) -> None:
        if not self._left:
            return
        now_s = time.monotonic()
        if self._ends[queue] - min(self._read[queue]) >= LAG_MAX:
            heapq.heappush(self._due, (now_s + LAG_PAUSE_S, queue))
            return
        if self._left == self.messages // 2 and not self._rests_until_s:
            self._rests_until_s = now_s + self.rest_s
        if now_s < self._rests_until_s:
            heapq.heappush(self._due, (self._rests_until_s, queue))
            return
        self._left -= 1
        opaque = self._number()
        fields = {
            "producerGroup": "load", "topic": self.topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
            "queueId": str(queue), "sysFlag": "0", "bornTimestamp": str(int(time.time() * 1e3)), "flag": "0",
            "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        frame = b"".join(map(bytes, encode(Command(RequestCode.SEND_MESSAGE, opaque, 0, fields, b"message"))))
        sent = SendSeen(queue, time.monotonic_ns())
        self._sends.append(sent)
        self._sending[opaque] = sent
        self._lines[0].socket.sendall(frame)

    def _pull(self, queue: int, slot: int, offset: int) -> None:
        opaque = self._number()
        fields = {
            "consumerGroup": f"load-{slot}", "topic": self.topic, "queueId": str(queue), "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": SUSPEND_SUBSCRIPTION, "commitOffset": "0",
            "suspendTimeoutMillis": str(self.hold_ms), "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        frame = b"".join(map(bytes, encode(Command(RequestCode.PULL_MESSAGE, opaque, 0, fields))))
        self._pulls[opaque] = PullSeen(queue, slot, offset, time.monotonic_ns())
        self._lines[1 + (queue + slot) % LINES].socket.sendall(frame)

    def _receive(self, line: _Line) -> None:
        data = line.socket.recv(RECEIVED_MAX)
        if not data:
            raise JavaUnavailableError("the Java broker closed the connection")
        now_ns = time.monotonic_ns()
        line.received.receive_data(data)
        while not isinstance(reply := line.received.next_event(), Signal):
            self._take(reply, now_ns)

    def _take(self, reply: Command, now_ns: int) -> None:
        fields = reply.ext_fields or {}
        sent = self._sending.pop(reply.opaque, None)
        if sent is not None:
            self._acknowledged(sent, reply, now_ns)
            return
        pull = self._pulls[reply.opaque]
        found = reply.code == ResponseCode.SUCCESS
        pull.answered_ns = now_ns
        pull.offset_next = int(fields.get("nextBeginOffset", pull.offset)) if found else pull.offset
        self._read[pull.queue][pull.slot] = pull.offset_next
        self._pull(pull.queue, pull.slot, pull.offset_next)

    def _acknowledged(self, sent: SendSeen, reply: Command, now_ns: int) -> None:
        """A message is in the log; or the broker was too busy, and it is sent again."""
        if reply.code == ResponseCode.SUCCESS:
            sent.acknowledged_ns, sent.queue_offset = now_ns, int((reply.ext_fields or {})["queueOffset"])
            self._ends[sent.queue] = sent.queue_offset + 1
            self.on_progress(self.messages - self._left)
        elif reply.code == ResponseCode.SYSTEM_BUSY:
            self._left += 1
        else:
            raise JavaUnavailableError(f"the Java broker rejects a message (code {reply.code}): {reply.remark}")
        heapq.heappush(self._due, (time.monotonic() + self._random.random() * PAUSE_S, sent.queue))
