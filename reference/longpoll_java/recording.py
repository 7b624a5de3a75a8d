"""Runs a Java broker under a load, and records its own steps as a history of steps, with one source per queue.

Each queue has two consumers that pull continuously, and sends that race with them. A thread prints one line before a
step and one after it, so the step certainly lies between the times of these lines.

Source: docs/history.md, "Histories of steps".
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from attrs import define, field, frozen

from longpoll_java.breakpoints import Breakpoints
from longpoll_java.broker import JavaBroker
from longpoll_java.byteman_rules import FILE_PROPERTY, OPTIONS, SCAN_MS, scanning_each, tracing_of
from longpoll_java.errors import JavaUnavailableError
from longpoll_java.jars import Jars
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command, Connection, Signal, encode
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Law, Meta, Source
from longpoll_spec.render.java_breakpoints import presets_of

CONSUMERS: Final = 2
"""The number of consumers per queue, as in the smallest bounds with a race."""
HELD_SCANS: Final = 3
"""The number of scan periods for which a pull is held: 15 s, as Java's push consumer requests."""
LINES: Final = 4
"""The number of connections that the consumers share. The senders use another connection."""
PAUSE_S: Final = 0.004
"""The longest pause between an acknowledgement and the next send to the same queue, in seconds."""
LAG_MAX: Final = 16
"""The number of messages that a consumer may be behind before the sender of its queue waits. The number has a limit
because a read in the specification returns all messages, and a read in Java at most 32."""
LAG_PAUSE_S: Final = 0.002
SILENT_S: Final = 30.0
"""If the broker sends nothing for this many seconds, twice as long as a pull is held, recording fails."""
SUSPEND_SUBSCRIPTION: Final = "6"
RECEIVED_MAX: Final = 1 << 18


@define
class PullSeen:
    """A pull as its consumer saw it. Times are nanoseconds of the monotonic clock, or -1 for none."""

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
    """The observations of a load. `pulls` maps the opaque of each pull to the pull."""

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
    """Drives a broker. Invariant: each consumer has one pull in flight, and each queue at most one send in flight."""

    address: tuple[str, int]
    topic: str
    queues: int
    messages: int
    seed: int
    rest_s: float
    """The seconds without sends after half of the messages, so that scans and deadlines reach waiting pulls."""
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
    """For each queue, the next offset of each consumer."""
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
        """Send all messages, and wait until all consumers have read them.

        Raises JavaUnavailableError, and OSError if a connection is lost.
        """
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
        """Record that a message is in the log, or send it again if the broker was too busy."""
        if reply.code == ResponseCode.SUCCESS:
            sent.acknowledged_ns, sent.queue_offset = now_ns, int((reply.ext_fields or {})["queueOffset"])
            self._ends[sent.queue] = sent.queue_offset + 1
            self.on_progress(self.messages - self._left)
        elif reply.code == ResponseCode.SYSTEM_BUSY:
            self._left += 1
        else:
            raise JavaUnavailableError(f"the Java broker rejects a message (code {reply.code}): {reply.remark}")
        heapq.heappush(self._due, (time.monotonic() + self._random.random() * PAUSE_S, sent.queue))


UNKNOWN: Final = "-"
SCAN_TICKS: Final = 2
HOLD_TICKS: Final = SCAN_TICKS * HELD_SCANS
"""The deadline of a pull in ticks, which is the length of `HELD_SCANS` scan periods."""
PART: Final = "part-0.ndjson"
WORDS: Final = 7


@frozen
class Line:
    """A parsed line of the trace. `byteman_rules` describes the words of a line."""

    gate: str
    thread: str
    at_ns: int
    queue: int
    request: int
    suspends: bool | None


@frozen
class Step:
    """A step of the specification that concerns one queue."""

    name: str
    actors: str
    after_ns: int
    before_ns: int
    queue_offset: int = -1
    visible_end: int = -1
    offset: int = -1


def lines_of(trace: Path, topic: str) -> Iterator[Line]:
    """Return the lines of a trace that name this topic or, like some lines about pulls, no topic. Raises OSError."""
    with trace.open(encoding="utf-8", errors="replace") as text:
        for words in map(str.split, text):
            if len(words) == WORDS and words[3] in {topic, UNKNOWN}:
                queue = -1 if words[4] == UNKNOWN else int(words[4])
                request = -1 if words[5] == UNKNOWN else int(words[5])
                suspends = {"true": True, "false": False}.get(words[6])
                yield Line(words[0], words[1], int(words[2]), queue, request, suspends)


@define(eq=False)
class _Maker:
    """Derives steps from lines. Invariant: `before` has each thread's last line, if a step may begin with that line."""

    seen: Seen
    steps: dict[int, list[Step]] = field(init=False)
    before: dict[str, Line] = field(factory=dict)
    dispatched: list[int] = field(init=False)
    """For each queue, the number of messages dispatched so far."""
    dispatched_ns: dict[tuple[int, int], int] = field(factory=dict)
    """Maps (queue, offset) to the time when the dispatch of this message began."""
    read_ns: dict[int, int] = field(factory=dict)
    """Maps each pull's opaque to the time when its first read began."""

    def __attrs_post_init__(self) -> None:
        self.steps = {queue: [] for queue in range(self.seen.queues)}
        self.dispatched = [0] * self.seen.queues

    def take(self, line: Line) -> None:
        if line.request >= 0 and line.request not in self.seen.pulls:
            return
        first = self.before.pop(line.thread, None)
        if first is not None:
            self._between(first, line)
        if line.gate not in {"held", "served", "done"}:
            self.before[line.thread] = line
        if line.gate == "read" and line.suspends:
            self.read_ns.setdefault(line.request, line.at_ns)

    def _between(self, first: Line, last: Line) -> None:
        match first.gate:
            case "dispatch" if last.gate == "notify":
                self._shown(first, last)
            case "notify" | "taken" | "each" | "keep":
                self._walked(first, last)
            case "read":
                name = "pull_read" if first.suspends else "run"
                self._of_pull(name, first, last, self._offset(first.request) if last.gate == "served" else -1)
            case "hold" if last.gate == "held":
                self._of_pull("hold", first, last)
            case _:
                pass

    def _offset(self, request: int) -> int:
        return self.seen.pulls[request].offset_next

    def _shown(self, first: Line, last: Line) -> None:
        offset = self.dispatched[first.queue]
        self.dispatched[first.queue] += 1
        self.dispatched_ns[first.queue, offset] = first.at_ns
        self._add(first.queue, Step("make_visible", "", first.at_ns, last.at_ns, visible_end=offset + 1))

    def _walked(self, first: Line, last: Line) -> None:
        kind = "scan" if first.thread.endswith("s") else "notify"
        if first.gate == "notify":
            self._add(first.queue, Step(f"{kind}_start", "", first.at_ns, last.at_ns))
        elif first.gate == "each":
            self._of_pull(f"{kind}_each", first, last)
        if last.gate == "done":
            self._add(last.queue, Step(f"{kind}_end", "", first.at_ns, last.at_ns))

    def _of_pull(self, name: str, first: Line, last: Line, offset: int = -1) -> None:
        pull = self.seen.pulls[first.request]
        self._add(pull.queue, Step(name, str(pull.slot), first.at_ns, last.at_ns, offset=offset))

    def _add(self, queue: int, step: Step) -> None:
        self.steps[queue].append(step)

    def from_outside(self) -> None:
        """Record the sends and pulls that the broker is known to have received."""
        for sent in self.seen.sends:
            shown_ns = self.dispatched_ns.get((sent.queue, sent.queue_offset))
            if sent.queue_offset >= 0:
                before_ns = min(sent.acknowledged_ns, shown_ns) if shown_ns is not None else sent.acknowledged_ns
                step = Step("append", "", sent.sent_ns, before_ns, queue_offset=sent.queue_offset)
                self._add(sent.queue, step)
        for opaque, pull in self.seen.pulls.items():
            if opaque in self.read_ns:
                step = Step("next_pull", str(pull.slot), pull.sent_ns, self.read_ns[opaque], offset=pull.offset)
                self._add(pull.queue, step)


def steps_of(lines: Iterable[Line], seen: Seen) -> dict[int, list[Step]]:
    """Return a map from each queue to its steps, unordered."""
    maker = _Maker(seen)
    for line in lines:
        maker.take(line)
    maker.from_outside()
    return maker.steps


def write_history(directory: Path, steps: dict[int, list[Step]], topic: str, policy: str) -> int:
    """Write a history of steps into a new directory; returns the number of steps. Raises OSError."""
    directory.mkdir(parents=True)
    encode = msgspec.json.Encoder().encode
    count = 0
    with (directory / PART).open("wb") as part:
        for queue, mine in sorted(steps.items()):
            for event in _events(f"queue-{queue}", topic, mine):
                part.write(encode(event) + b"\n")
            count += len(mine)
    sources = [Source(name=f"queue-{queue}", clock="monotonic") for queue in sorted(steps)]
    law = Law(requests=CONSUMERS, hold_ticks=HOLD_TICKS, scan_ticks=SCAN_TICKS, hidden=["tick"])
    meta = Meta(format_version=FORMAT_VERSION, sources=sources, policy=policy, law=law)
    (directory / META_FILE).write_bytes(encode(meta))
    return count


def _events(source: str, topic: str, steps: list[Step]) -> Iterator[Event]:
    ordered = sorted(steps, key=lambda step: (step.before_ns, step.after_ns))
    first_ns, last_ns = (ordered[0].after_ns, ordered[-1].before_ns) if ordered else (0, 0)
    first_ns = min([first_ns, *(step.after_ns for step in ordered)])
    yield Event(event="source_started", after_ns=first_ns, before_ns=first_ns, source=source, sequence=0)
    for number, step in enumerate(ordered, 1):
        yield Event(
            event=step.name, after_ns=step.after_ns, before_ns=step.before_ns, source=source, sequence=number,
            topic=topic, actors=step.actors, queue_offset=step.queue_offset,
            visible_end=step.visible_end, offset=step.offset,
        )  # fmt: skip
    yield Event(event="source_stopped", after_ns=last_ns, before_ns=last_ns, source=source, sequence=len(ordered) + 1)


TOPIC: Final = "steps"


@frozen
class Recorded:
    """The result of a recorded load."""

    policy: str
    steps: int
    messages: int
    pulls: int
    seconds: float
    send_us: float
    """The median time from a send to its acknowledgement, microseconds."""


@frozen
class Size:
    """The size of a load."""

    queues: int
    """The number of queues. Each queue becomes a source of the history, and has two consumers."""
    messages: int
    seed: int
    """The seed of the pauses between sends."""
    rest_s: float
    """The seconds without sends after half of the messages, so that scans and deadlines reach waiting pulls."""
    delayed_percent: int = 0
    """The percentage of arrivals at breakpoints that are delayed by some milliseconds."""
    scan_ms: int = SCAN_MS
    """The period of the scan in milliseconds. Pulls are held for three periods."""


def record(jars: Jars, directory: Path, size: Size, on_progress: Callable[[int], None]) -> Recorded:
    """Send messages to a newly started broker, and write its steps into a new directory.

    Args:
        jars: The broker's jars.
        directory: The directory of the history.
        size: The numbers of queues and messages, and the timing of the sends.
        on_progress: Gets the number of acknowledged messages.

    Raises JavaUnavailableError, and OSError.
    """
    with tempfile.TemporaryDirectory(prefix="longpoll-inside-") as folder:
        trace = Path(folder) / "trace.txt"
        options = (*OPTIONS, f"-D{FILE_PROPERTY}={trace}")
        seen, seconds = loaded(jars, _script(jars.version, size), options, size, on_progress)
        policy = presets_of(jars.version)[0]
        count = write_history(directory, steps_of(lines_of(trace, TOPIC), seen), TOPIC, policy)
    return Recorded(policy, count, size.messages, len(seen.pulls), seconds, send_us(seen))


def _script(version: str, size: Size) -> str:
    traced = tracing_of(version, delayed_percent=size.delayed_percent, seed=size.seed)
    return traced + (scanning_each(size.scan_ms) if size.scan_ms != SCAN_MS else "")


def loaded(
    jars: Jars, script: str, options: tuple[str, ...], size: Size, on_progress: Callable[[int], None]
) -> tuple[Seen, float]:
    """Run a load on a broker with these rules; returns its observations, and the seconds that it took."""
    with Breakpoints() as stage, JavaBroker(jars, stage, script=script, options=options) as broker:
        begun_s = time.monotonic()
        hold_ms = HELD_SCANS * size.scan_ms
        load = Load(broker.address, TOPIC, size.queues, size.messages, size.seed, size.rest_s, hold_ms, on_progress)
        seen = load.run()
        return seen, time.monotonic() - begun_s


def send_us(seen: Seen) -> float:
    """Return the median time from a send to its acknowledgement, microseconds."""
    return median((sent.acknowledged_ns - sent.sent_ns) / 1e3 for sent in seen.sends if sent.queue_offset >= 0)
