"""A load that races each message against its waiting pull, which provokes the lost wakeup of #7358.

In each round, every queue gets one message, and one pull at about the time when the message becomes visible. Rounds
alternate between single queues and all queues in one write, so that the dispatcher wakes up while the broker reads
pulls. Nothing else happens on a queue until its message arrives. Therefore no later message repairs a lost wakeup, and
the delivery waits for the broker's scan or the pull's deadline. One thread measures every delivery; a control thread
distinguishes a late delivery from a host pause. The load works with any broker, with or without a proxy.

When to pull (`PullTiming`): a pull that is held before its message arrives gets its answer one wake time after the
message was written. A pull that arrives later gets its answer one trip time after the pull was written. The race
happens if both answers would come at the same time, so the pull is written after the message by the difference between
the wake time and the trip time. Medians estimate the wake time and the trip time, so they include the delays of proxy,
network and load.

The topic (`prepare`): before the race, each queue gets its first message, for which a broker creates files, and the
race reads this message. A topic that a send creates has at most as many queues as the default topic: 8, unless
configured.

Source: `TopicConfigManager.createTopicInSendMessageMethod`.
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Final, Literal

from attrs import define, field, frozen

from longpoll.wire.requests import BUSY, call_patiently, pull_header, send_header, topic_header
from longpoll_client.errors import ClientError
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import ProtocolError
from longpoll_protocol.frames import Command, Connection, encode
from longpoll_runtime import Address, Runtime
from longpoll_runtime.host_pauses import HostPauseWatch

QUEUE_IDS: Final = (*range(56), 63, 64, 65, 126, 127, 128, 254, 255)
"""More queues than any known hold table has shards, because a misdirected wake affects only some ids."""


@frozen
class RacePlan:
    """The parameters of a race."""

    topic: str
    seconds: float
    queue_count: int = 8
    """The race uses queue ids from 0 on, unless its caller passes `queues`."""
    gap_ms: float = 1.5
    """The longest time from writing a message to writing its pull, until there is a better estimate."""
    hold_ms: int = 15_000
    late_ms: float = 500.0
    """A delivery is late if it comes this many ms after both the acknowledgement and the pull's write."""
    patience_ms: float = 30_000.0
    """The race stops waiting for an answer after this many ms."""
    connection_count: int = 4
    """The number of connections: with several, different broker threads may serve a message and its pull."""
    seed: int = 0


@frozen
class Delivery:
    """One late delivery; times are milliseconds since the start of the race."""

    queue: int
    offset: int
    delay_ms: float
    """The time from the later of acknowledgement and pull to the answer, or until now without an answer."""
    stalled_ms: float = 0.0
    """The host pauses within the delay, as measured by a control thread."""
    overtaken_count: int = 0
    """Deliveries on all queues during the delay: few in a host pause, many if the broker forgot this pull."""
    acknowledged_ms: float = 0.0
    asked_ms: float = 0.0
    answered_ms: float | None = None
    """When the pull was answered; None if it had no answer in time."""

    @property
    def own_ms(self) -> float:
        """The delay without host pauses."""
        return self.delay_ms - self.stalled_ms

    def __str__(self) -> str:
        answered = "never answered" if self.answered_ms is None else f"answered at {self.answered_ms:,.1f} ms"
        return (
            f"queue {self.queue}, offset {self.offset}: its send acknowledged at {self.acknowledged_ms:,.1f} ms, "
            f"pull asked at {self.asked_ms:,.1f} ms, {answered} ({self.delay_ms:,.1f} ms late, "
            f"of which the host paused for {self.stalled_ms:,.1f} ms, {self.overtaken_count:,} others delivered)"
        )


@frozen
class RaceReport:
    """The result of a race."""

    delivered_count: int
    late: tuple[Delivery, ...]
    late_ms: float = 0.0
    """A delivery counts as late from this many milliseconds on."""
    trouble: str | None = None
    """What interrupted the race: a rejection, a closed connection, silence."""
    unheld_count: int = 0
    """Pulls answered "no message" long before their deadline: a broker that holds no pull loses no wakeup."""

    @property
    def unexplained(self) -> tuple[Delivery, ...]:
        """The deliveries that are late even without host pauses."""
        return tuple(one for one in self.late if one.own_ms > self.late_ms)

    def later_than(self, late_ms: float) -> int:
        """The number of deliveries later than `late_ms`, including host pauses."""
        return sum(one.delay_ms > late_ms for one in self.late)


EARLY_SHARE: Final = 0.08
LATE_SHARE: Final = 0.08
"""The share of rounds that measure the wake time. The same share of rounds measures the trip time."""
WIDE_SHARE: Final = 0.25
"""Share of rounds that ignore the estimate, because the right time differs between queues."""
TOGETHER_SHARE: Final = 0.5
"""The share of bursts whose pulls are written right after their messages."""
SPREADS_MS: Final = (0.02, 0.08, 0.3)
CLEAR_MS: Final = 1.0
"""A round measures the wake time or the trip time if its pull is written further than this, in ms, from the estimated
race."""
STEP: Final = 0.02
"""The relative change of a median per round."""
FLOOR_MS: Final = 0.05
GAP_MS_MAX: Final = 50.0
"""The longest time between the writes of a message and its pull, however slow the broker is."""


@define
class PullTiming:
    """Draws the time from writing a message to writing its pull. Invariant: `wake_ms` and `trip_ms` are positive."""

    gap_ms: float
    """The longest time that is drawn in rounds that ignore the estimate."""
    wake_ms: float = 1.0
    trip_ms: float = 0.5

    @property
    def middle_ms(self) -> float:
        """The estimated time of the race after the message's write; negative if a trip takes longer than a wake."""
        return max(-GAP_MS_MAX, min(GAP_MS_MAX, self.wake_ms - self.trip_ms))

    def draw(self, sequence: random.Random) -> float:
        """Draw the delay of a pull after its message, in milliseconds; a negative delay puts the pull first."""
        kind = sequence.random()
        if kind < EARLY_SHARE:
            return self.middle_ms - CLEAR_MS * sequence.uniform(1.2, 3)
        if kind < EARLY_SHARE + LATE_SHARE:
            return self.middle_ms + CLEAR_MS * sequence.uniform(1.2, 3)
        if kind < EARLY_SHARE + LATE_SHARE + WIDE_SHARE:
            return sequence.uniform(0, self.gap_ms)
        return self.middle_ms + sequence.gauss(0, sequence.choice(SPREADS_MS))

    def draw_burst(self, sequence: random.Random) -> float:
        """Draw the delay for a burst of messages and pulls, which is often 0."""
        if sequence.random() < TOGETHER_SHARE:
            return 0.0
        return sequence.uniform(min(0.0, self.middle_ms), max(self.gap_ms, self.middle_ms))

    def learn(self, sent_ms: float, asked_ms: float, answered_ms: float) -> None:
        """Learn from a round's times: message written, pull written, pull answered."""
        beside_ms = asked_ms - sent_ms - self.middle_ms
        if beside_ms < -CLEAR_MS:
            self.wake_ms = _median(self.wake_ms, answered_ms - sent_ms)
        elif beside_ms > CLEAR_MS:
            self.trip_ms = _median(self.trip_ms, answered_ms - asked_ms)


def _median(now_ms: float, seen_ms: float) -> float:
    return max(FLOOR_MS, now_ms * (1 + STEP if seen_ms > now_ms else 1 - STEP))


BODY: Final = bytes(128)
"""The body of each message; RocketMQ 5.5.0 fails on an empty body."""
LOOKS: Final = 10
LOOK_MS: Final = 500
"""The broker may hold each pull for a queue's first message this long, in ms."""
ANSWER_S: Final = 10.0
DIGITS_MAX: Final = 19
REMARK_MAX: Final = 120
"""The maximum number of characters that are shown of a broker's remark."""


@frozen
class RaceTopic:
    """The queues available for the race."""

    name: str
    first_offsets: Mapping[int, int]
    """Maps a queue id to the offset that its next message gets."""
    refused: Mapping[int, str]
    """Maps a queue id to the broker's rejection of a message for this queue."""

    def __str__(self) -> str:
        return f"{len(self.first_offsets)} queues{self._left_out()}"

    def _left_out(self) -> str:
        if not self.refused:
            return ""
        ids = ", ".join(map(str, self.refused))
        return f" (not {ids}, which the broker rejects: {next(iter(self.refused.values()))})"


def prepare(
    runtime: Runtime, address: Address, topic: str, queue_ids: Sequence[int], tell: Callable[[], None] = lambda: None
) -> RaceTopic:
    """Create the topic if the broker allows it, and return which of the queues `queue_ids` the topic has.

    A broker that was just started may reject the topic; then a send creates the topic, with fewer queues. `tell` is
    called once per queue. Raises ClientError if the broker does not answer, or its answer is unreadable.
    """
    count = max(queue_ids) + 1
    offsets: dict[int, int] = {}
    refused: dict[int, str] = {}
    with closing(RemotingClient(runtime, *address)) as client:
        call_patiently(
            runtime, client, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header(topic, count), timeout_s=ANSWER_S
        )
        for queue in queue_ids:
            answer = call_patiently(
                runtime, client, RequestCode.SEND_MESSAGE_V2, send_header(topic, queue), BODY, timeout_s=ANSWER_S
            )
            if answer.code != ResponseCode.SUCCESS:
                refused[queue] = f"code {answer.code} {(answer.remark or '')[:REMARK_MAX]}".strip()
                continue
            offset = _offset_of(answer)
            _read(client, topic, queue, offset)
            offsets[queue] = offset + 1
            tell()
    if not offsets:
        raise ClientError(f"no message can be sent to {topic}: {next(iter(refused.values()))}")
    return RaceTopic(topic, offsets, refused)


def _read(client: RemotingClient, topic: str, queue: int, offset: int) -> None:
    """Wait until the first message is visible, with repeated pulls."""
    for _ in range(LOOKS):
        header = pull_header("race", topic, queue, offset, LOOK_MS)
        answer = client.call(RequestCode.PULL_MESSAGE, header, timeout_s=ANSWER_S)
        if answer.code == ResponseCode.SUCCESS:
            return
    raise ClientError(f"queue {queue} of {topic}: its first message, offset {offset}, cannot be read")


def _offset_of(answer: Command) -> int:
    """Return the offset in the answer to a send; raises ClientError. No other field is read."""
    told = (answer.ext_fields or {}).get("queueOffset", "")
    if not (told.isascii() and told.isdigit() and len(told) <= DIGITS_MAX):
        raise ClientError(f"acknowledgement has no valid queueOffset: {told[:40]!r}")
    return int(told)


Step = Literal["send", "pull"]
CONNECT_S: Final = 10.0
PAUSE_MS: Final = 1.0
"""The longest pause of a queue between two rounds."""
BUSY_PAUSE_MS: Final = 20.0
"""The pause before a request is repeated to a broker that is busy or does not hold pulls."""
SLICE_S: Final = 0.25
"""The seconds of a phase in which each queue has its own rounds. This phase alternates with a phase of bursts, which is
four times as long."""
ONE_PIECE_SHARE: Final = 0.9
"""The share of bursts with each message directly followed by its pull, on one connection."""
CHUNKS: Final = (1, 8, 16, 32, 32)
"""A burst on one connection writes groups of messages, each followed by their pulls. The size of the groups is one of
these numbers, chosen at random for each burst."""
SLOW_MS: Final = 20.0
"""A burst does not wait for a queue whose pull is later than this, in ms."""
LOOK_S: Final = 0.1
"""Seconds between two checks for overdue answers."""
RECEIVE_SIZE: Final = 1 << 18


@define(slots=True)
class _Queue:
    """The current round of a queue. Invariant: a round has at most one message and one pull in flight."""

    number: int
    offset: int
    pull_fields: dict[str, str]
    send_fields: dict[str, str]
    begun_ns: int = 0
    """When the round was planned."""
    sent_ns: int = 0
    asked_ns: int = 0
    """When the round's first pull was written."""
    acknowledged_ns: int = 0
    """When the broker acknowledged the message. In all times of a round, 0 means that the event has not happened yet.
    """
    answered_ns: int = 0
    delivered_before: int = 0
    """The number of all deliveries when the round's last request was written."""

    @property
    def is_done(self) -> bool:
        return bool(self.acknowledged_ns and self.answered_ns)

    def begin(self, now_ns: int) -> None:
        self.begun_ns = now_ns
        self.sent_ns = self.asked_ns = self.acknowledged_ns = self.answered_ns = 0

    def opaque(self, step: Step) -> int:
        """Return the request id of a step of this round: even for the message, odd for the pull."""
        return 2 * self.number + (step == "pull")

    def request(self, step: Step) -> Command:
        opaque = self.opaque(step)
        if step == "send":
            return Command(RequestCode.SEND_MESSAGE_V2, opaque, ext_fields=self.send_fields, body=BODY)
        self.pull_fields["queueOffset"] = str(self.offset)
        return Command(RequestCode.PULL_MESSAGE, opaque, ext_fields=self.pull_fields)

    def written(self, step: Step, now_ns: int) -> None:
        """Record that a request was written; only the time of its first write counts."""
        if step == "send":
            self.sent_ns = self.sent_ns or now_ns
        else:
            self.asked_ns = self.asked_ns or now_ns

    def waits_for(self, step: Step) -> bool:
        """Whether a request of this kind is in flight, or will be written again."""
        if step == "send":
            return bool(self.sent_ns and not self.acknowledged_ns)
        return bool(self.asked_ns and not self.answered_ns)

    @property
    def due_ns(self) -> int:
        """The time since which the pull should be answered; 0 if it need not be answered yet."""
        return max(self.acknowledged_ns, self.asked_ns) if self.acknowledged_ns and self.asked_ns else 0


@define(eq=False)
class _Race:
    """A race in progress.

    Invariant: `due` has each planned step, and each queue in `queues` has one round. The rounds of the queues in `idle`
    are over, and these queues wait for the next burst.
    """

    plan: RacePlan
    connections: Sequence[socket.socket]
    sequence: random.Random
    watch: HostPauseWatch
    begun_ns: int
    queues: dict[int, _Queue]
    aim: PullTiming
    due: list[tuple[int, tuple[int, ...]]] = field(factory=list)
    """(time, the opaques of the requests to write together)."""
    idle: list[_Queue] = field(factory=list)
    late: list[Delivery] = field(factory=list)
    delivered_count: int = 0
    unheld_count: int = 0

    @property
    def stop_ns(self) -> int:
        """The time after which no round begins."""
        return self.begun_ns + int(self.plan.seconds * 1e9)

    def begin(self, queue: _Queue, now_ns: int) -> None:
        """Plan a queue's next round: alone, or together with the idle queues."""
        if self._is_bursting(now_ns):
            self.idle.append(queue)
            return
        at_ns = now_ns + int(self.sequence.uniform(0, PAUSE_MS) * 1e6)
        self._plan([queue], at_ns, int(self.aim.draw(self.sequence) * 1e6), now_ns)

    def begin_idle(self, now_ns: int) -> None:
        """Begin the next rounds of the idle queues; a burst waits until all other queues are done or slow."""
        if not self.idle:
            return
        if not self._is_bursting(now_ns):
            queues, self.idle = self.idle, []
            for queue in queues:
                self.begin(queue, now_ns)
        elif all(self._is_slow(queue, now_ns) for queue in self.queues.values() if not queue.is_done):
            queues, self.idle = self.idle, []
            self._plan_burst(queues, now_ns)

    def _is_bursting(self, now_ns: int) -> bool:
        return int((now_ns - self.begun_ns) / 1e9 / SLICE_S) % 5 > 0

    def _is_slow(self, queue: _Queue, now_ns: int) -> bool:
        return bool(queue.due_ns) and now_ns - queue.due_ns > SLOW_MS * 1e6

    def _plan(self, queues: list[_Queue], at_ns: int, gap_ns: int, now_ns: int) -> None:
        for queue in queues:
            queue.begin(now_ns)
        self._push([queue.opaque("send") for queue in queues], at_ns + max(0, -gap_ns))
        self.sequence.shuffle(queues)
        self._push([queue.opaque("pull") for queue in queues], at_ns + max(0, gap_ns))

    def _plan_burst(self, queues: list[_Queue], now_ns: int) -> None:
        """Plan all messages and then all pulls, or one write with groups of messages followed by their pulls."""
        if self.sequence.random() > ONE_PIECE_SHARE:
            self._plan(queues, now_ns, int(self.aim.draw_burst(self.sequence) * 1e6), now_ns)
            return
        self.sequence.shuffle(queues)
        size = self.sequence.choice(CHUNKS)
        order: list[int] = []
        for first in range(0, len(queues), size):
            chunk = queues[first : first + size]
            order += [queue.opaque("send") for queue in chunk]
            order += [queue.opaque("pull") for queue in chunk]
        for queue in queues:
            queue.begin(now_ns)
        self._push(order, now_ns)

    def _push(self, opaques: Iterable[int], at_ns: int) -> None:
        heapq.heappush(self.due, (at_ns, tuple(opaques)))

    def do(self, opaques: Sequence[int]) -> None:
        """Write requests together on a random connection; one or two broker threads serve a message and its pull."""
        asked = [self._asked(opaque) for opaque in opaques]
        pieces = [part for queue, step in asked for part in encode(queue.request(step))]
        self.sequence.choice(self.connections).sendall(b"".join(pieces))
        now_ns = time.monotonic_ns()
        for queue, step in asked:
            queue.written(step, now_ns)
            queue.delivered_before = self.delivered_count

    def _asked(self, opaque: int) -> tuple[_Queue, Step]:
        """The queue and step of a request; raises ClientError."""
        queue = self.queues.get(opaque >> 1)
        step: Step = "pull" if opaque & 1 else "send"
        if queue is None:
            raise ClientError(f"the broker answered opaque {opaque}, which was never sent")
        return queue, step

    def answered(self, answer: Command) -> None:
        """Handle an answer. Raises ClientError if the answer is a rejection, a duplicate, or unexpected."""
        now_ns = time.monotonic_ns()
        queue, step = self._asked(answer.opaque)
        is_send = step == "send"
        if not queue.waits_for(step):
            raise ClientError(f"the {step} of queue {queue.number} was answered twice")
        if answer.code in BUSY:
            self._again(step, queue, now_ns + int(BUSY_PAUSE_MS * 1e6))
        elif is_send and answer.code == ResponseCode.SUCCESS:
            queue.acknowledged_ns = now_ns
        elif not is_send and answer.code in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            self._told_nothing(queue, now_ns)
        elif not is_send and answer.code == ResponseCode.SUCCESS:
            self._delivered(queue, now_ns)
        else:
            raise ClientError(
                f"{step} of queue {queue.number}: code {answer.code} {(answer.remark or '')[:REMARK_MAX]}"
            )
        if queue.is_done:
            if (queue.answered_ns - queue.due_ns) / 1e6 > self.plan.late_ms:
                self.late.append(self._delivery(queue, queue.answered_ns, is_missing=False))
            queue.offset += 1
            if now_ns < self.stop_ns:
                self.begin(queue, now_ns)

    def _again(self, step: Step, queue: _Queue, at_ns: int) -> None:
        self._push([queue.opaque(step)], at_ns)

    def _told_nothing(self, queue: _Queue, now_ns: int) -> None:
        """Pull again after an answer without a message.

        The round's clock continues, because a pull that misses an available message is late as well.
        """
        is_unheld = (now_ns - queue.asked_ns) / 1e6 < self.plan.hold_ms / 2
        self.unheld_count += is_unheld
        self._again("pull", queue, now_ns + is_unheld * int(BUSY_PAUSE_MS * 1e6))

    def _delivered(self, queue: _Queue, now_ns: int) -> None:
        queue.answered_ns = now_ns
        self.delivered_count += 1
        sent_ms, asked_ms, answered_ms = (each / 1e6 for each in (queue.sent_ns, queue.asked_ns, now_ns))
        self.aim.learn(sent_ms, asked_ms, answered_ms)

    def overdue(self, now_ns: int) -> list[_Queue]:
        patience_ns = self.plan.patience_ms * 1e6
        return [one for one in self.queues.values() if not one.is_done and self._since_ns(one, now_ns) > patience_ns]

    def _since_ns(self, queue: _Queue, now_ns: int) -> int:
        return now_ns - (queue.due_ns or max(queue.sent_ns, queue.asked_ns, queue.begun_ns))

    def give_up(self, queue: _Queue, now_ns: int) -> str | None:
        """Record a missing answer. A pull then counts as late; for a send, return why the race shows nothing."""
        if queue.due_ns:
            self.late.append(self._delivery(queue, now_ns, is_missing=True))
            return None
        return f"a send to queue {queue.number} was not answered for {self._since_ns(queue, now_ns) / 1e9:.1f} s"

    def _delivery(self, queue: _Queue, end_ns: int, *, is_missing: bool) -> Delivery:
        self.watch.wait_seen(end_ns)
        answered_ms = (queue.answered_ns - self.begun_ns) / 1e6
        return Delivery(
            queue.number,
            queue.offset,
            delay_ms=(end_ns - queue.due_ns) / 1e6,
            stalled_ms=self.watch.stalled_ms(queue.due_ns, end_ns),
            overtaken_count=self.delivered_count - queue.delivered_before - (not is_missing),
            acknowledged_ms=(queue.acknowledged_ns - self.begun_ns) / 1e6,
            asked_ms=(queue.asked_ns - self.begun_ns) / 1e6,
            answered_ms=None if is_missing else answered_ms,
        )


def race(
    address: Address,
    plan: RacePlan,
    progress: Callable[[float], None] = lambda _seconds: None,
    *,
    first_offset: int = 0,
    queues: Mapping[int, int] | None = None,
    process_id: int | None = None,
) -> RaceReport:
    """Race for the plan's time and until every message has come or is overdue.

    The topic must exist. `queues` maps queue ids to the offset of the next message; by default the plan's queues from 0
    on are used, each at `first_offset`. `process_id` is the broker's, to separate its waits for a processor from its
    own delays. `progress` gets the seconds so far. Faults of the broker are in the report; raises OSError if the broker
    cannot be reached.
    """
    offsets = dict.fromkeys(range(plan.queue_count), first_offset) if queues is None else queues
    with ExitStack() as stack:
        connections = [_connected(stack, address) for _ in range(plan.connection_count)]
        running = _Race(
            plan,
            connections,
            random.Random(plan.seed),
            stack.enter_context(HostPauseWatch(process_id)),
            begun_ns=time.monotonic_ns(),
            queues={number: _queue_of(plan, number, offset) for number, offset in offsets.items()},
            aim=PullTiming(plan.gap_ms),
        )
        for queue in running.queues.values():
            running.begin(queue, running.begun_ns)
        trouble = _run(running, progress)
        late = sorted(running.late, key=lambda one: one.asked_ms)
        return RaceReport(running.delivered_count, tuple(late), plan.late_ms, trouble, running.unheld_count)


def _connected(stack: ExitStack, address: Address) -> socket.socket:
    connected = stack.enter_context(socket.create_connection(address, CONNECT_S))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _queue_of(plan: RacePlan, number: int, offset: int) -> _Queue:
    pull = pull_header("race", plan.topic, number, offset, plan.hold_ms)
    return _Queue(number, offset, pull.encode(), send_header(plan.topic, number).encode())


def _run(running: _Race, progress: Callable[[float], None]) -> str | None:
    """Race to the end; return the interruption, if any."""
    try:
        trouble = _rounds(running, progress)
    except (OSError, ClientError, ProtocolError) as error:
        trouble = str(error)
    now_ns = time.monotonic_ns()
    told = [running.give_up(queue, now_ns) for queue in running.overdue(now_ns)]
    return trouble or next(filter(None, told), None)


def _rounds(running: _Race, progress: Callable[[float], None]) -> str | None:
    connections = {one: Connection() for one in running.connections}
    look_ns = 0
    while running.due or running.idle or not all(queue.is_done for queue in running.queues.values()):
        now_ns = time.monotonic_ns()
        if now_ns >= look_ns:
            look_ns = now_ns + int(LOOK_S * 1e9)
            progress((now_ns - running.begun_ns) / 1e9)
            if _is_over(running, now_ns):
                return None
        running.begin_idle(now_ns)
        while running.due and running.due[0][0] <= now_ns:
            running.do(heapq.heappop(running.due)[1])
        until_ns = min(running.due[0][0] if running.due else look_ns, look_ns)
        ready, _, _ = select.select(list(connections), [], [], max(0, until_ns - time.monotonic_ns()) / 1e9)
        for readable in ready:
            content = readable.recv(RECEIVE_SIZE)
            if not content:
                return "the broker closed the connection"
            connections[readable].receive_data(content)
            while isinstance(answer := connections[readable].next_event(), Command):
                if answer.is_response:
                    running.answered(answer)
    return None


def _is_over(running: _Race, now_ns: int) -> bool:
    """Return whether the race waits only for overdue answers."""
    if running.idle or running.due:
        return False
    overdue = running.overdue(now_ns)
    waited = [queue for queue in running.queues.values() if not queue.is_done]
    return bool(overdue) and len(overdue) == len(waited)
