"""Client scenarios for any broker: rebalance, order, flow control, dead letters and more.

Each function runs one scenario with its own topic and group, and returns its observations for a test to check. The
scenarios use only RocketMQ's protocol and do not restart the broker.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, TypeAlias

from attrs import define, field, fields, frozen

from longpoll_client import (
    Admin,
    ConsumerConfig,
    MessageModel,
    MessageQueue,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendResult,
)
from longpoll_client.errors import ClientError, NoRouteError, RefusedError
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
PATIENCE_S = 60.0
"""Time limit in seconds for expected events; only a failing scenario waits so long."""
BATCH_SIZE: Final = 100


def member_options(config: MemberConfig) -> dict[str, Any]:
    rest = {each.name: getattr(config, each.name) for each in fields(ConsumerConfig)}
    return {"group": config.group, "start_at": config.start_at, "config": ConsumerConfig(**rest)}


def share_options(shared: Callable[[MessageQueue, bool], object]) -> dict[str, Any]:
    """Returns consumer options that call `shared` with each queue, and with whether it was assigned or revoked."""

    def call(queues: Sequence[MessageQueue], is_ours: bool) -> None:
        for queue in queues:
            shared(queue, is_ours)

    return {
        "on_assigned": lambda queues: call(queues, True),
        "on_revoked": lambda queues: call(queues, False),
    }


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until other threads make the condition true, with pauses that save processor time."""
    pause = threading.Event()
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
        pause.wait(0.01)


def wait_for_all(seen: Collection[object], count: int) -> None:
    """Wait until `seen` has `count` items; raises AssertionError if it stops growing."""
    before = -1
    while before < len(seen) < count:
        before = len(seen)
        wait_for(lambda: len(seen) > before, f"{count} messages, of which {before} came")  # noqa: B023 - awaited at once


@contextmanager
def new_topic(name_server: str, queue_count: int = 8) -> Iterator[str]:
    """Create a topic of `queue_count` queues that the name server knows."""
    topic = f"story-{uuid.uuid4().hex[:12]}"
    with Admin(name_server) as admin:
        admin.create_topic(topic, queue_count)

        def is_known() -> bool:
            try:
                return len(admin.topic(topic).readable) >= queue_count
            except NoRouteError:
                return False

        wait_for(is_known, f"a route of {topic}")
        yield topic


def send_numbered(name_server: str, topic: str, count: int) -> list[str]:
    """Send messages with the bodies 0, 1, ... in batches over all queues in turn; returns their ids."""
    ids: list[str] = []
    with Producer(name_server) as producer:
        for start in range(0, count, BATCH_SIZE):
            numbers = range(start, min(start + BATCH_SIZE, count))
            messages = [OutgoingMessage(b"%d" % number, tag="t", keys=f"k{number}") for number in numbers]
            ids += [result.msg_id for result in _send_patiently(producer, topic, messages)]
    return ids


def _send_patiently(producer: Producer, topic: str, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
    """Send a batch, and send it again while the broker reports SYSTEM_BUSY and has stored nothing."""
    results: list[SendResult] = []

    def is_sent() -> bool:
        try:
            results.extend(producer.send_batch(topic, messages))
        except RefusedError as error:
            if error.code != ResponseCode.SYSTEM_BUSY:
                raise
            return False
        return True

    wait_for(is_sent, "the broker takes a batch")
    return results


# ---------------------------------------------------------------- rebalance


@frozen
class Arrival:
    number: int
    """The event's number in the `Log`."""
    member: str
    queue: tuple[str, int]
    """(the broker's host, the queue's id)"""
    offset: int
    msg_id: str


@frozen
class Handover:
    """The assignment of a queue to a member, or its revocation."""

    number: int
    member: str
    queue: tuple[str, int]
    is_ours: bool


@define(eq=False)
class Log:
    """Arrivals and handovers in one order. Invariant: changes happen under `_lock`, and numbers increase."""

    arrivals: list[Arrival] = field(factory=list)
    seen: set[str] = field(factory=set)
    handovers: list[Handover] = field(factory=list)
    _lock: threading.Lock = field(factory=threading.Lock)
    _next: int = 0

    def arrived(self, member: str, messages: Sequence[ReceivedMessage]) -> None:
        with self._lock:
            for message in messages:
                self._next += 1
                queue = (message.store_host, message.queue_id)
                self.seen.add(message.msg_id)
                self.arrivals.append(Arrival(self._next, member, queue, message.queue_offset, message.msg_id))

    def shared(self, member: str, queue: MessageQueue, is_ours: bool) -> None:
        with self._lock:
            self._next += 1
            self.handovers.append(Handover(self._next, member, (queue.topic, queue.queue_id), is_ours))


@frozen
class RebalanceReport:
    sent: int
    distinct: int
    lost: tuple[str, ...] = field(repr=False)
    duplicates: int
    unexplained: tuple[Arrival, ...]
    """Second arrivals of a message at the same member during one ownership of its queue, so not due to a rebalance."""
    handovers: int


def explain(log: Log, sent: Sequence[str]) -> RebalanceReport:
    """Classify every message as lost, received once, or received again for a reason.

    A member's ownership of a queue begins with an assignment and ends with the member's next assignment of the queue,
    because a listener may still handle messages after a revocation. A member may receive each message once per
    ownership.
    """
    begins: dict[tuple[str, int], list[int]] = defaultdict(list)
    for handover in log.handovers:
        if handover.is_ours:
            begins[handover.member, handover.queue[1]].append(handover.number)
    seen: set[tuple[str, str, int]] = set()
    known: set[str] = set()
    unexplained = []
    for arrival in log.arrivals:
        spell = bisect(begins[arrival.member, arrival.queue[1]], arrival.number)
        place = (arrival.msg_id, arrival.member, spell)
        if place in seen:
            unexplained.append(arrival)
        seen.add(place)
        known.add(arrival.msg_id)
    return RebalanceReport(
        sent=len(sent),
        distinct=len(known & set(sent)),
        lost=tuple(msg_id for msg_id in sent if msg_id not in known),
        duplicates=len(log.arrivals) - len(known),
        unexplained=tuple(unexplained),
        handovers=len(log.handovers),
    )


Push: TypeAlias = Callable[..., Any]
"""Creates a consumer like `PushConsumer`, or an asynchronous consumer with blocking calls."""


def rebalance(name_server: str, count: int, push: Push = PushConsumer, **options: Any) -> RebalanceReport:
    """Send messages while a second and a third member join and then the first and the second member leave."""
    log = Log()
    with new_topic(name_server) as topic, ExitStack() as stack:
        group = f"group-{uuid.uuid4().hex[:8]}"

        def join(member: str) -> Any:
            def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
                log.arrived(member, messages)
                return None

            def shared(queue: MessageQueue, is_ours: bool) -> None:
                if queue.topic == topic:
                    log.shared(member, queue, is_ours)

            config = MemberConfig(group=group, start_at="stored", consume_count_max=16, rebalance_s=5.0, **options)
            consumer = push(
                name_server, topics=topic, listener=listen, **member_options(config), **share_options(shared)
            )
            consumer.start()
            return consumer

        def share_of(consumer: Any) -> int:
            return sum(queue.topic == topic for queue in consumer.queues)

        members = {"first": join("first")}
        stack.callback(lambda: _close_all(members))
        sent: list[str] = []
        sending = threading.Thread(target=lambda: sent.extend(send_numbered(name_server, topic, count)), daemon=True)
        sending.start()
        members["second"] = join("second")
        wait_for(lambda: share_of(members["second"]) == 4, "the second member's share")
        members["third"] = join("third")
        wait_for(lambda: share_of(members["third"]) == 2, "the third member's share")
        members.pop("first").close()
        wait_for(lambda: share_of(members["third"]) == 4, "the share of the first is dealt out")
        members.pop("second").close()
        sending.join()
        wait_for_all(log.seen, count)
    return explain(log, sent)


def _close_all(members: dict[str, Any]) -> None:
    for member in members.values():
        member.close()


# ---------------------------------------------------------------- order


@frozen
class OrderReport:
    count: int
    out_of_order: int
    """The number of messages that a listener received before an earlier message of the same queue was consumed."""
    at_once: int
    """How often two listeners had messages of one queue at the same time."""
    put_off: int


def orderly(name_server: str, count: int, push: Push = PushConsumer) -> OrderReport:
    """Run two members of an ordered group; each fiftieth message is retried once before the queue's next message."""
    lock = threading.Lock()
    consumed: dict[int, int] = defaultdict(int)
    busy: Counter[int] = Counter()
    tried: set[str] = set()
    faults: Counter[str] = Counter()
    moment = threading.Event()

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        (message,) = messages
        queue_id = message.queue_id
        with lock:
            busy[queue_id] += 1
            faults["at once"] += busy[queue_id] > 1
            faults["out of order"] += message.queue_offset > consumed[queue_id]
            put_off = message.queue_offset % 50 == 7 and message.msg_id not in tried
            tried.add(message.msg_id)
        if message.queue_offset % 10 == 0:
            # During this pause another listener would get a message of the same queue if the client allowed it.
            moment.wait(0.002)
        with lock:
            busy[queue_id] -= 1
            if put_off:
                faults["put off"] += 1
                return Retry()
            consumed[queue_id] = max(consumed[queue_id], message.queue_offset + 1)
        return None

    with new_topic(name_server) as topic, ExitStack() as stack:
        group = f"group-{uuid.uuid4().hex[:8]}"
        config = MemberConfig(group=group, start_at="first", suspend_s=0.02, rebalance_s=2.0)
        send_numbered(name_server, topic, count)
        for _member in range(2):
            consumer = push(name_server, topics=topic, listener=listen, **member_options(config), orderly=True)
            consumer.start()
            stack.callback(consumer.close)
        wait_for(lambda: sum(consumed.values()) >= count, f"{count} messages in order")
    return OrderReport(sum(consumed.values()), faults["out of order"], faults["at once"], faults["put off"])


# ---------------------------------------------------------------- flow control

FLOW_LIMITS: Final[Mapping[str, Mapping[str, int]]] = {
    "count": {"cached_count_max": 16},
    "size": {"cached_size_max": 20_000},
    "span": {"cached_span_max": 16},
}
"""Maps names in a `FlowReport` to limits that stop pulling long before 80 messages of 1,000 bytes are cached."""


@frozen
class FlowReport:
    stopped_by: str | None
    """The limit that stopped pulling while the listener was blocked."""
    waiting: int
    """The number of cached messages when pulling stopped."""
    consumed: int
    """The number of messages that were consumed in all after the listener continued."""
    stopped_after: str | None
    """The limit that still stops pulling after everything is consumed, which must be None."""


def flow_control(name_server: str, count: int, body_size: int, **limits: Any) -> FlowReport:
    """Block a listener until pulling stops, then continue until everything is consumed.

    With a span limit, the listener blocks only on the first message and consumes later messages meanwhile.
    """
    going_on = threading.Event()
    seen: list[int] = []
    by_span = "cached_span_max" in limits

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        if not by_span or messages[0].queue_offset == 0:
            assert going_on.wait(PATIENCE_S)
        seen.extend(message.queue_offset for message in messages)
        return None

    with new_topic(name_server, 1) as topic, Producer(name_server) as producer:
        for number in range(count):
            producer.send(topic, b"x" * body_size, keys=str(number))
        config = MemberConfig(group=f"group-{topic}", start_at="first", batch_count_max=8, thread_count=2, **limits)
        with PushConsumer(name_server, topics=topic, listener=listen, **member_options(config)) as consumer:
            (puller,) = [
                puller for queue, puller in consumer._member.assigned_queues.pullers().items() if queue.topic == topic
            ]
            wait_for(lambda: puller.stopped_by is not None, "flow control")
            stopped_by, waiting = puller.stopped_by, puller.cached_count
            going_on.set()
            wait_for(lambda: len(seen) >= count, "everything consumed")
            wait_for(lambda: puller.cached_count == 0, "everything noted")
            return FlowReport(stopped_by, waiting, len(set(seen)), puller.stopped_by)


# ---------------------------------------------------------------- broadcasting, dead letters, restart


def broadcasting(name_server: str, count: int, offsets_file: str) -> tuple[list[int], list[int], list[int]]:
    """Returns the bodies that two concurrent members receive, and those that the first receives after a restart.

    One more message is sent before the first member restarts with the same offsets file.
    """
    results: list[list[int]] = []
    with new_topic(name_server) as topic, ExitStack() as stack:

        def join(file: str | None, due: int) -> None:
            config = MemberConfig(
                group="broadcast-" + topic, start_at="first", message_model=MessageModel.BROADCASTING, offsets_file=file
            )
            results.append(_numbers(name_server, topic, config, due, stack))

        send_numbered(name_server, topic, count)
        join(offsets_file, count)
        join(None, count)
        stack.pop_all().close()
        send_numbered(name_server, topic, 1)
        join(offsets_file, 1)
    return results[0], results[1], results[2]


def _numbers(name_server: str, topic: str, config: MemberConfig, count: int, stack: ExitStack) -> list[int]:
    """Returns the sorted bodies of the first `count` messages that a member polls. `stack` closes the member."""
    consumer = stack.enter_context(PullConsumer(name_server, topics=topic, **member_options(config)))
    found: list[int] = []
    while len(found) < count:
        messages = consumer.poll(PATIENCE_S)
        assert messages, f"{len(found)} of {count} messages came"
        found += [int(message.body) for message in messages]
    consumer.commit()
    return sorted(found)


@frozen
class RetryReport:
    reconsume_times: tuple[int, ...]
    """The message's number of retries in each call of the listener, in order."""
    topics: frozenset[str]
    """The topics under which the listener saw the message. Even a retried message must have its original topic."""
    dead: tuple[bytes, ...]
    tags: str | None


def retry(name_server: str, *, raises: bool, push: Push = PushConsumer) -> RetryReport:
    """Let a listener ask for a retry, or raise, until the message becomes a dead letter after two retries."""
    seen: list[ReceivedMessage] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        seen.extend(messages)
        if raises and len(seen) == 1:
            raise ZeroDivisionError("the listener's own fault")
        return Retry(delay_s=1)

    with new_topic(name_server, 1) as topic, Producer(name_server) as producer:
        group = f"retry-{topic}"
        producer.send(topic, b"poison", tag="red", keys="k")
        config = MemberConfig(group=group, start_at="first", max_attempts=3, rebalance_s=1.0)
        with closing(push(name_server, topics=topic, listener=listen, **member_options(config))) as consumer:
            consumer.start()
            wait_for(lambda: len(seen) >= 3, "three tries")
            dead = dead_letters(name_server, group)
    return RetryReport(
        tuple(message.reconsume_times for message in seen),
        frozenset(message.topic for message in seen),
        tuple(message.body for message in dead),
        dead[0].tag if dead else None,
    )


def dead_letters(name_server: str, group: str) -> list[ReceivedMessage]:
    """Read the first dead letters of a group through another group."""
    topic = f"%DLQ%{group}"
    config = MemberConfig(group=f"undertaker-{group}", start_at="first")
    with ExitStack() as stack:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                consumer = stack.enter_context(PullConsumer(name_server, topics=topic, **member_options(config)))
            except ClientError:
                assert time.monotonic() < deadline_s, f"no {topic}"
                stack.pop_all().close()
                threading.Event().wait(0.2)
                continue
            return consumer.poll(PATIENCE_S)


def restart(name_server: str, count: int) -> tuple[list[int], list[int]]:
    """Returns the messages that a member consumed before it left, and the remaining ones that the next member got."""
    with new_topic(name_server) as topic:
        send_numbered(name_server, topic, count)
        config = MemberConfig(group=f"group-{topic}", start_at="first")
        with ExitStack() as stack:
            first = _numbers(name_server, topic, config, count // 2, stack)
        with ExitStack() as stack:
            config = MemberConfig(group=f"group-{topic}", start_at="stored")
            second = _numbers(name_server, topic, config, count - len(first), stack)
    return first, second
