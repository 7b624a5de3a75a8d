"""A load with a known answer: producers and long-polling consumers over real sockets, with every delivery checked.

Each producer sends one message after another, cycling through tags and queues. Each consumer is a group with its own
tag expression and one pull in flight per queue, which the broker holds until a message arrives. A message carries its
send time, so its arrival gives the delivery time. Only RocketMQ's protocol is assumed of the broker.

With `commits`, each pull of every second group commits the preceding offset, and each group queries its offsets now and
then (`_Commits`).

The judge checks the recorded history; `model_tests/bench` measures limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

from attrs import define, field, frozen

from longpoll.wire.requests import BUSY, BUSY_TRIES, call_patiently, pull_header, send_header, topic_header
from longpoll_client.errors import ClientError
from longpoll_client.messages import decode_messages
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import ProtocolError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    Header,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_runtime import Address, Condition, Runtime

TAGS: Final = ("red", "green", "blue")
EXPRESSIONS: Final = ("*", "red || blue", "green")
"""The tag expressions of the consumer groups: each expression has one group."""
BY_REQUESTS: Final = frozenset({"group-1"})
"""Groups that commit only by requests, one after another, so that the record shows each commit. In the other groups,
pulls commit too."""
HOLD_MS: Final = 500
"""The broker may hold a pull for this long in ms, which is so short that some pulls expire during a run."""
LONG_MS: Final = 10_000
"""A hold time in ms, so long that a prompt answer shows that the pull was woken and did not expire."""
ASKED_EVERY: Final = 4
"""A group queries a queue's offset after every fourth answer to its pulls: about a thousand times in a load."""
SEND_S: Final = 90.0
STALL_S: Final = 30.0
"""If a load makes no progress for this many seconds, a message or an answer is lost."""
ANSWER_S: Final = 30.0
"""A call waits this many seconds for its answer: longer than the judge needs to report a missing answer."""
PULLED: Final = frozenset(
    {ResponseCode.SUCCESS.value, ResponseCode.PULL_NOT_FOUND.value, ResponseCode.PULL_RETRY_IMMEDIATELY.value}
)


@frozen
class LoadPlan:
    """What a load sends: its messages, producers and queues, and whether groups commit offsets."""

    topic: str
    message_count: int = 6_000
    queue_count: int = 8
    producer_count: int = 3
    commits: bool = False
    """Whether the groups commit and query offsets."""
    send_s: float = SEND_S
    """The load sends no message after this many seconds, so a slow or distant broker gets fewer messages."""


@frozen
class LoadReport:
    """The result of a load; `problems` is empty if every group got each requested message once, in order."""

    sent_count: int
    delivered_count: int
    pull_count: int
    expired_count: int
    """Pulls answered with PULL_NOT_FOUND."""
    seconds: float
    delivery_ms: Sequence[float]
    """For each delivery, the time from send to receipt, ascending."""
    problems: Sequence[str]
    """Faults of the broker: a message that is duplicated, out of order, not requested, unreadable, or lost."""
    troubles: Sequence[str] = ()
    """Interruptions of the load: a closed connection, a missing answer, a rejection."""
    unknown_codes: frozenset[int] = frozenset()
    """The codes of offset requests that the broker does not support."""
    told_count: int = 0
    """The number of offset queries that the broker answered with an offset."""

    def percentile_ms(self, share: float) -> float:
        """The delivery time that this share of the deliveries does not exceed; 0 without deliveries."""
        if not self.delivery_ms:
            return 0.0
        return self.delivery_ms[min(len(self.delivery_ms) - 1, int(share * len(self.delivery_ms)))]


@define(eq=False)
class _Run:
    """State shared by the threads of a run.

    Invariant: a thread changes the state only while it holds `moved`, and then notifies `moved`.
    """

    runtime: Runtime
    plan: LoadPlan
    moved: Condition
    sent: Counter[tuple[int, str]] = field(factory=Counter)
    """Maps (queue, tag) to the number of acknowledged messages."""
    producers_left: int = 0
    delivered: int = 0
    problems: list[str] = field(factory=list)
    troubles: list[str] = field(factory=list)
    ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether a problem or an interruption was recorded, because later problems would only be its consequences."""
        return bool(self.problems or self.troubles)

    def problem(self, text: str) -> None:
        """Record a fault of the broker; the run ends soon after."""
        self._note(self.problems, text)

    def trouble(self, text: str) -> None:
        """Record an interruption of the load; the run ends soon after."""
        self._note(self.troubles, text)

    def _note(self, notes: list[str], text: str) -> None:
        with self.moved:
            notes.append(text)
            self.moved.notify_all()


def wanted_tags(expression: str) -> frozenset[str]:
    """The tags of this load that an expression names."""
    return frozenset(TAGS) if expression == "*" else frozenset(part.strip() for part in expression.split("||"))


@define(eq=False)
class _Consumer:
    """A consumer group: a connection with one pull in flight per queue. The connection's reader owns its counters."""

    run: _Run
    expression: str
    client: RemotingClient
    received: Counter[tuple[int, str]] = field(factory=Counter)
    last: dict[int, int] = field(factory=dict)
    """Maps each queue to the highest queue offset received."""
    delivery_ns: list[int] = field(factory=list)
    pull_count: int = 0
    expired_count: int = 0
    busy_count: int = 0
    """The number of pulls that the broker rejected because it was busy."""
    asked: dict[int, int] = field(factory=dict)
    """Maps each queue to the offset of its pull in flight."""
    commits: _Commits = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.commits = _Commits(self.client, self.group, self.run.plan.topic)

    @property
    def group(self) -> str:
        return f"group-{EXPRESSIONS.index(self.expression)}"

    @property
    def commits_by_pulls(self) -> bool:
        return self.group not in BY_REQUESTS

    def pull(self, queue: int, offset: int) -> None:
        """Request messages from the offset on. The handler of the answer sends the next request."""
        self.asked[queue] = offset
        commit_offset = offset if self.run.plan.commits and self.commits_by_pulls else None
        header = pull_header(
            self.group, self.run.plan.topic, queue, offset, HOLD_MS,
            expression=self.expression, commit_offset=commit_offset,
        )  # fmt: skip
        self.client.call_async(
            RequestCode.PULL_MESSAGE, header, callback=partial(self._answered, queue), timeout_s=STALL_S
        )

    def _answered(self, queue: int, answer: Command | ClientError) -> None:
        if self.run.ended:
            return
        asked = f"pull of queue {queue} by {self.expression!r}"
        if isinstance(answer, ClientError):
            self.run.trouble(f"{asked}: {answer}")
            return
        self.pull_count += 1
        if answer.code in BUSY and self.busy_count < BUSY_TRIES:
            self.busy_count += 1
            self._ask_again(queue, self.asked[queue])
            return
        if answer.code not in PULLED:
            self.run.trouble(f"{asked}: code {answer.code} {answer.remark}")
            return
        try:
            if answer.code == ResponseCode.SUCCESS:
                self._receive(queue, answer)
            elif answer.code == ResponseCode.PULL_NOT_FOUND:
                self.expired_count += 1
            offset = PullMessageResponseHeader.decode(answer.ext_fields).next_begin_offset
            if self.run.plan.commits:
                self.commits.answered(queue, offset)
            self._ask_again(queue, offset)
        except (ProtocolError, ValueError) as error:  # ValueError: the body is not a time that this load wrote
            self.run.problem(f"{asked}: {error}")

    def _ask_again(self, queue: int, offset: int) -> None:
        try:
            self.pull(queue, offset)
        except ClientError as error:
            if not self.run.ended:
                self.run.trouble(f"pull of queue {queue} by {self.expression!r}: {error}")

    def _receive(self, queue: int, answer: Command) -> None:
        now_ns = self.run.runtime.monotonic_ns()
        messages = decode_messages(answer.body)
        for message in messages:
            tag = message.tag or ""
            if message.queue_offset <= self.last.get(queue, -1):
                self.run.problem(f"queue {queue}: offset {message.queue_offset} came twice or late")
            self.last[queue] = message.queue_offset
            self.received[queue, tag] += 1
            self.delivery_ns.append(now_ns - int(message.body))
        with self.run.moved:
            self.run.delivered += len(messages)
            self.run.moved.notify_all()

    def problems(self) -> list[str]:
        """Return a line for each queue and tag with too many or too few messages; empty if the load was interrupted."""
        tags = wanted_tags(self.expression)
        expected = Counter({key: count for key, count in self.run.sent.items() if key[1] in tags})
        return [
            f"queue {queue}, tag {tag!r}, expression {self.expression!r}: "
            f"{self.received[queue, tag]} of {expected[queue, tag]} delivered"
            for queue, tag in sorted(expected.keys() | self.received.keys())
            if self._is_wrong(self.received[queue, tag] - expected[queue, tag])
        ]

    def _is_wrong(self, surplus: int) -> bool:
        return surplus != 0 and not self.run.troubles


# -- commits --------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Commits:
    """Sends a group's commits (code 15) and offset queries (code 14), one after another.

    While a commit is in flight, the next pull may commit too, so a group never commits less than before. The judge
    checks the answers in the record. The reader thread of `client` owns all attributes.
    """

    client: RemotingClient
    group: str
    topic: str
    unknown_codes: set[int] = field(factory=set)
    told_count: int = 0
    _answers: Counter[int] = field(factory=Counter)
    """Maps each queue to the number of answers to its pulls."""
    _waiting: set[int] = field(factory=set)
    """The queues that have a commit or a query in flight."""

    def answered(self, queue: int, offset: int) -> None:
        """Handle an answer to a pull of the queue; all messages below `offset` have come.

        At every fourth answer, the group queries its offset. In a group that commits only by requests it commits
        `offset` first, and in other groups before every second query.
        """
        self._answers[queue] += 1
        if self._answers[queue] % ASKED_EVERY or queue in self._waiting:
            return
        self._waiting.add(queue)
        if self._answers[queue] % (2 * ASKED_EVERY) and self.group not in BY_REQUESTS:
            self._ask(queue)
        else:
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group=self.group, topic=self.topic, queue_id=queue, commit_offset=offset
            )
            self._send(RequestCode.UPDATE_CONSUMER_OFFSET, header, partial(self._ask, queue))

    def _ask(self, queue: int) -> None:
        header = QueryConsumerOffsetRequestHeader(consumer_group=self.group, topic=self.topic, queue_id=queue)
        self._send(RequestCode.QUERY_CONSUMER_OFFSET, header, partial(self._waiting.discard, queue))

    def _send(self, code: RequestCode, header: Header, then: Callable[[], None]) -> None:
        def told(answer: Command | ClientError) -> None:
            # Without an answer the load stops querying the queue; the record shows that the answer is missing.
            if isinstance(answer, ClientError):
                return
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self.unknown_codes.add(code.value)
            self.told_count += code == RequestCode.QUERY_CONSUMER_OFFSET and answer.code == ResponseCode.SUCCESS
            then()

        with suppress(ClientError):  # the connection has ended, which the next pull reports
            self.client.call_async(code, header, callback=told, timeout_s=ANSWER_S)


# -- sending ---------------------------------------------------------------------------------------------------------


def _produce(run: _Run, client: RemotingClient, first: int) -> None:
    end_ns = run.runtime.monotonic_ns() + int(run.plan.send_s * 1e9)
    try:
        for number in range(first, run.plan.message_count, run.plan.producer_count):
            if run.runtime.monotonic_ns() > end_ns:
                break
            _send(run, client, number % run.plan.queue_count, TAGS[number // run.plan.queue_count % len(TAGS)])
    except (ClientError, ProtocolError) as error:
        run.trouble(f"send: {error}")
    finally:
        with run.moved:
            run.producers_left -= 1
            run.moved.notify_all()


def _send(run: _Run, client: RemotingClient, queue: int, tag: str) -> None:
    header = send_header(run.plan.topic, queue, {"TAGS": tag})
    body = str(run.runtime.monotonic_ns()).encode()
    answer = call_patiently(run.runtime, client, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=STALL_S)
    if answer.code != ResponseCode.SUCCESS:
        run.trouble(f"send to queue {queue}: code {answer.code} {answer.remark}")
        return
    with run.moved:
        run.sent[queue, tag] += 1
        run.moved.notify_all()


def drive(
    runtime: Runtime, address: Address, plan: LoadPlan, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> LoadReport:
    """Run the load against the broker at `address`; `progress` gets the deliveries done and to do.

    Raises ClientError if the broker cannot be reached at all; any later problem is in the report.
    """
    run = _Run(runtime, plan, runtime.condition())
    begun_ns = runtime.monotonic_ns()
    with ExitStack() as stack:

        def connect() -> RemotingClient:
            client = RemotingClient(runtime, *address)
            stack.callback(client.close)
            return client

        connect().call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header(plan.topic, plan.queue_count))
        consumers = [_Consumer(run, expression, connect()) for expression in EXPRESSIONS]
        for consumer in consumers:
            for queue in range(plan.queue_count):
                consumer.pull(queue, 0)
        run.producers_left = plan.producer_count
        producers = [
            runtime.spawn(f"producer-{number}", partial(_produce, run, connect(), number))
            for number in range(plan.producer_count)
        ]
        _wait(run, consumers, progress)
        _wait_for_expiries(run, consumers)
        run.ended = True
        for producer in producers:
            producer.join()
    seconds = (runtime.monotonic_ns() - begun_ns) / 1e9
    delivery_ns = sorted(nanoseconds for consumer in consumers for nanoseconds in consumer.delivery_ns)
    return LoadReport(
        sent_count=run.sent.total(),
        delivered_count=len(delivery_ns),
        pull_count=sum(consumer.pull_count for consumer in consumers),
        expired_count=sum(consumer.expired_count for consumer in consumers),
        seconds=seconds,
        delivery_ms=[nanoseconds / 1e6 for nanoseconds in delivery_ns],
        problems=[*run.problems, *(problem for consumer in consumers for problem in consumer.problems())],
        troubles=run.troubles,
        unknown_codes=frozenset(code for consumer in consumers for code in consumer.commits.unknown_codes),
        told_count=sum(consumer.commits.told_count for consumer in consumers),
    )


def _due(run: _Run) -> int:
    return sum(
        count for expression in EXPRESSIONS for (_, tag), count in run.sent.items() if tag in wanted_tags(expression)
    )


def _wait(run: _Run, consumers: Sequence[_Consumer], progress: Callable[[int, int], None]) -> None:
    """Wait until everything is delivered, something went wrong, or there is no progress."""
    all_count = sum(len(wanted_tags(expression)) for expression in EXPRESSIONS) * run.plan.message_count // len(TAGS)
    with run.moved:
        while not run.is_over and (run.producers_left or run.delivered < _due(run)):
            before = (run.delivered, run.sent.total())
            pulls_before = sum(consumer.pull_count for consumer in consumers)
            progress(run.delivered, all_count)
            if not run.moved.wait(STALL_S) and before == (run.delivered, run.sent.total()):
                if sum(consumer.pull_count for consumer in consumers) > pulls_before:
                    run.problems.append(f"pulls were answered for {STALL_S:g} s, and nothing was delivered")
                else:
                    run.troubles.append(f"nothing moved for {STALL_S:g} s")


def _wait_for_expiries(run: _Run, consumers: Sequence[_Consumer]) -> None:
    """Wait until every group has seen its pulls expire twice, so that each history contains deadlines.

    A broker that scans for deadlines may by chance answer the first expired pulls almost in time. The second expired
    pulls are then late by nearly a whole period.
    """
    due = 2 * run.plan.queue_count
    deadline_ns = run.runtime.monotonic_ns() + int(STALL_S * 1e9)
    with run.moved:
        while not run.is_over and any(consumer.expired_count < due for consumer in consumers):
            left_s = (deadline_ns - run.runtime.monotonic_ns()) / 1e9
            if left_s <= 0:
                run.troubles.append("held pulls did not expire")
                return
            run.moved.wait(min(left_s, HOLD_MS / 1000))
