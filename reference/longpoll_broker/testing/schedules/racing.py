"""A load that races each message against the pull that waits for it: what provokes the lost wakeup of #7358.

On every queue, round after round, one message is sent and, a random moment of up to `gap_ms` later, the pull that takes
it. Nothing else happens on the queue until the message has come, so a missed wakeup is not healed by the next message
and shows as a wait for the broker's scan. One thread, two connections; the load itself measures every delivery, and a
control thread tells a late one from a machine that stood still.

Leaves out judging (`longpoll_judge`), and loads that look like users' (`load`).
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import time
from collections.abc import Callable
from typing import Final, Literal

from attrs import define, field, frozen

from longpoll_broker.testing.raw_client import pull_fields, send_fields
from longpoll_client.errors import ClientError
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.connection import Connection
from longpoll_runtime import Address
from longpoll_runtime.stalls import StallWatch

Step = Literal["send", "pull"]
STALL_S: Final = 30.0
"""A run in which nothing moves for so long has lost something for good."""
PAUSE_MS: Final = 1.0
"""Longest pause of a queue between two rounds."""
RECEIVE_SIZE: Final = 1 << 18
BODY: Final = bytes(128)
"""5.5.0 fails on an empty one."""


@frozen
class RacePlan:
    """What to race, and for how long."""

    topic: str
    seconds: float
    queue_count: int = 8
    gap_ms: float = 1.5
    hold_ms: int = 15_000
    late_ms: float = 500.0
    """A delivery later than this after both its message and its pull were written counts as late."""
    seed: int = 0


@frozen
class Delivery:
    """One late delivery."""

    queue: int
    offset: int
    delay_ms: float
    stalled_ms: float = 0.0
    """How much of the delay the machine, as a control thread saw it, stood still."""
    overtaken_count: int = 0
    """Deliveries on all queues meanwhile: few when everything stood still, many when this one was forgotten."""


@frozen
class RaceReport:
    """What came of a race."""

    delivered_count: int
    late: tuple[Delivery, ...]
    late_ms: float = 0.0
    """What counted as late."""

    @property
    def unexplained(self) -> tuple[Delivery, ...]:
        """The late deliveries that are late even without the machine's stalls."""
        return tuple(one for one in self.late if one.delay_ms - one.stalled_ms > self.late_ms)

    def later_than(self, late_ms: float) -> int:
        """How many came later than that, stalls or not."""
        return sum(one.delay_ms > late_ms for one in self.late)


@define(slots=True)
class _Queue:
    """One queue's round. Invariant: a round has at most one message and one pull under way."""

    offset: int = 0
    written_ns: int = 0
    """When the later of the message and the pull was written."""
    delivered_before: int = 0
    """Deliveries in all at that moment."""
    acknowledged: bool = False
    delivered: bool = False


@define(eq=False)
class _Race:
    plan: RacePlan
    sender: socket.socket
    puller: socket.socket
    sequence: random.Random
    watch: StallWatch
    due: list[tuple[int, Step, int]] = field(factory=list)
    queues: list[_Queue] = field(factory=list)
    late: list[Delivery] = field(factory=list)
    delivered_count: int = 0
    moved_ns: int = 0

    def begin(self, number: int, now_ns: int) -> None:
        """Plan a queue's next round."""
        at_ns = now_ns + int(self.sequence.uniform(0, PAUSE_MS) * 1e6)
        self.queues[number].acknowledged = self.queues[number].delivered = False
        heapq.heappush(self.due, (at_ns, "send", number))
        heapq.heappush(self.due, (at_ns + int(self.sequence.uniform(0, self.plan.gap_ms) * 1e6), "pull", number))

    def do(self, step: Step, number: int) -> None:
        """Write one request."""
        queue, plan = self.queues[number], self.plan
        if step == "send":
            fields = send_fields(plan.topic, number)
            message = Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=fields, body=BODY)
            self.sender.sendall(b"".join(encode(message)))
        else:
            fields = pull_fields(plan.topic, queue.offset, queue_id=number, timeout_ms=plan.hold_ms)
            self.puller.sendall(b"".join(encode(Command(RequestCode.PULL_MESSAGE, number, ext_fields=fields))))
        queue.written_ns = time.monotonic_ns()
        queue.delivered_before = self.delivered_count

    def answered(self, answer: Command, *, is_send: bool, stop_ns: int) -> None:
        """Take an answer; the opaque is the queue's number."""
        now_ns = time.monotonic_ns()
        number = answer.opaque
        queue = self.queues[number]
        self.moved_ns = now_ns
        if is_send:
            if answer.code != ResponseCode.SUCCESS:
                raise ClientError(f"send to queue {number}: code {answer.code} {answer.remark}")
            queue.acknowledged = True
        elif answer.code == ResponseCode.PULL_NOT_FOUND:
            heapq.heappush(self.due, (now_ns, "pull", number))
            return
        elif answer.code != ResponseCode.SUCCESS:
            raise ClientError(f"pull of queue {number}: code {answer.code} {answer.remark}")
        else:
            delay_ms = (now_ns - queue.written_ns) / 1e6
            self.delivered_count += 1
            if delay_ms > self.plan.late_ms:
                stalled_ms = self.watch.stalled_ms(queue.written_ns, now_ns)
                overtaken = self.delivered_count - queue.delivered_before - 1
                self.late.append(Delivery(number, queue.offset, delay_ms, stalled_ms, overtaken))
            queue.delivered = True
        if queue.acknowledged and queue.delivered:
            queue.offset += 1
            if now_ns < stop_ns:
                self.begin(number, now_ns)


def race(
    address: Address,
    plan: RacePlan,
    progress: Callable[[float], None] = lambda _seconds: None,
    *,
    first_offset: int = 0,
    process_id: int | None = None,
) -> RaceReport:
    """Race for the plan's time and until every message has come; the topic is there, each queue at `first_offset`.

    `process_id` is the broker's, where its waits for a processor are to be told from its own delays.
    Raises ClientError when an answer is an error or nothing moves any more, OSError when the broker is not there.
    """
    with (
        socket.create_connection(address) as sender,
        socket.create_connection(address) as puller,
        StallWatch(process_id) as watch,
    ):
        for one in (sender, puller):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        running = _Race(plan, sender, puller, random.Random(plan.seed), watch)
        running.queues = [_Queue(first_offset) for _ in range(plan.queue_count)]
        begun_ns = running.moved_ns = time.monotonic_ns()
        for number in range(plan.queue_count):
            running.begin(number, begun_ns)
        _run(running, begun_ns, begun_ns + int(plan.seconds * 1e9), progress)
        return RaceReport(running.delivered_count, tuple(running.late), plan.late_ms)


def _run(running: _Race, begun_ns: int, stop_ns: int, progress: Callable[[float], None]) -> None:
    connections = {running.sender: Connection(), running.puller: Connection()}
    while running.due or not all(queue.delivered and queue.acknowledged for queue in running.queues):
        now_ns = time.monotonic_ns()
        progress((now_ns - begun_ns) / 1e9)
        while running.due and running.due[0][0] <= now_ns:
            _at_ns, step, number = heapq.heappop(running.due)
            running.do(step, number)
        wait_s = max(0, running.due[0][0] - time.monotonic_ns()) / 1e9 if running.due else STALL_S
        ready, _, _ = select.select(list(connections), [], [], wait_s)
        if time.monotonic_ns() - running.moved_ns > STALL_S * 1e9:
            raise ClientError(f"nothing moved for {STALL_S:g} s")
        for readable in ready:
            content = readable.recv(RECEIVE_SIZE)
            if not content:
                raise ClientError("the broker closed the connection")
            connections[readable].receive_data(content)
            while isinstance(answer := connections[readable].next_event(), Command):
                running.answered(answer, is_send=readable is running.sender, stop_ns=stop_ns)
