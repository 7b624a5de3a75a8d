"""The property suite over the wire: the kit's machine with RocketMQ as its subject, and steps that only RocketMQ has.

`run_suite` runs the machine against an `EmbeddedBroker`, which it starts and restarts, or against any RocketMQ broker
by its address, a `RemoteBroker`. `machine_of` returns a machine class, whose `TestCase` is a separate test.

`longpoll_judge` checks the broker's internal steps from its history.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final, get_args

import attrs
from attrs import define, field
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model_tests.support.suite.brokers import TestedBroker
from model_tests.support.suite.model import WireMessage, WireQueue, broken
from model_tests.support.suite.requests import (
    BAD_REQUESTS,
    FORMS,
    MALFORMED,
    Bad,
    Draft,
    Form,
    PullTerms,
    Wanted,
    send_request,
)
from model_tests.support.suite.subject import RestartableSubject, RocketMQSubject, group_of, header_of, records_of

from longpoll.wire.requests import pull_header, send_header, topic_header
from longpoll_kit.example import Example, Order
from longpoll_kit.machine import LongPollMachine, step
from longpoll_kit.model import Ask, Queue
from longpoll_kit.run import KitReport, Run
from longpoll_protocol.codes import SEND_SUCCESS_CODES, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_protocol.message import BatchMessage, encode_batch, message_id_position
from longpoll_protocol.properties import encode_properties
from longpoll_runtime import Runtime

QUEUE_COUNTS: Final = (3, 1)
"""The number of queues of each topic in an example."""
GROUP_COUNT: Final = 2
LINK_COUNT: Final = 4
SHORT_MS: Final = (10, 70, 400)
ONE_WAY_TRIES: Final = 3
EMPTY_REFUSED: Final = "empty body refused"
"""The result of a send whose empty body 5.x refuses; 4.9 accepts an empty body."""

links = st.integers(0, LINK_COUNT - 1)
queues = st.integers(0, sum(QUEUE_COUNTS) - 1)
groups = st.integers(0, GROUP_COUNT - 1)
forms = st.sampled_from(FORMS)
tags = st.sampled_from(["", "a", "b", "c", "AaAa", "BBBB", "\u00fc\u20ac\U0001f600"])
expressions = st.sampled_from(["*", "a", "a || b", "AaAa", "c||BBBB", "\u00fc\u20ac\U0001f600||a"]).map(Wanted)
bodies = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"\x00" * 64, bytes(range(256)) * 4, b"long " * 1_000])
)
extra_properties = st.sampled_from(
    [
        {},
        {"KEYS": "k1 k2"},
        {"KEYS": "k", "WAIT": "false", "empty": ""},
        {"\u00d6\u00e4": "\u00fc \u20ac \U0001f600", "UNIQ_KEY": "7F0000010000"},
    ]
)
drafts = st.builds(Draft, bodies, tags, extra_properties, forms, links, st.sampled_from([False] * 7 + [True]))
plain_drafts = st.builds(Draft, st.just(b"cross"), tags, link=links)
batches = st.lists(st.builds(Draft, st.binary(max_size=12), tags), min_size=2, max_size=20)
ends = st.builds(PullTerms, wanted=expressions, form=forms, link=links)
held = st.builds(
    PullTerms, st.sampled_from(["end", "end", "end", "next", "last"]), expressions, group=groups, form=forms, link=links
)
unheld = st.builds(
    PullTerms,
    st.sampled_from(["end", "next", "start", "middle", "last", "negative", "beyond"]),
    expressions,
    st.sampled_from([32, 1, 3, 0]),
    groups,
    st.booleans(),
    forms,
    links,
)


@define(eq=False)
class RocketMQExample(Example):
    polls_max = 24
    committed: dict[tuple[int, str], int] = field(factory=dict)
    """Maps (group, queue) to the group's committed offset."""

    @property
    def broker(self) -> RocketMQSubject:
        assert isinstance(self.subject, RocketMQSubject)
        return self.subject

    def _make_queues(self) -> None:
        """Create the topics, and create each group by a pull."""
        self.broker.stalled_ms = self.watch.stalled_ms
        self.queues = []
        with ExitStack() as undo:
            undo.callback(self.broker.close)
            self._make_topics()
            undo.pop_all()

    def _make_topics(self) -> None:
        for index, count in enumerate(QUEUE_COUNTS):
            topic = f"{self.name}-t{index}"
            self.broker.call(0, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header(topic, count).encode())
            units = self.broker.broker.expectations.queue_file_units
            self.queues += [
                WireQueue(f"{topic}@{queue_id}", self.allowances, topic=topic, queue_id=queue_id, file_units=units)
                for queue_id in range(count)
            ]
        self._past += self.queues
        for group in range(GROUP_COUNT):
            self._pull(self.queues[0], PullTerms(group=group))

    # -- sends -------------------------------------------------------------------------------------------------------

    def _publish(self, queue: Queue, payload: Draft, size: int = 0) -> WireMessage | str:  # type: ignore[override]
        begun_ns = self.runtime.monotonic_ns()
        reply = self.broker.send(queue.name, payload)
        if not payload.body and reply.code == ResponseCode.SYSTEM_ERROR:
            return EMPTY_REFUSED
        if payload.is_anywhere:
            topic = _wire(queue).topic
            queue_id = header_of(reply, SendMessageResponseHeader).queue_id
            found = [each for each in map(_wire, self.queues) if (each.topic, each.queue_id) == (topic, queue_id)]
            if not found:
                raise broken(f"the broker put a message into queue {queue_id} of {topic}, which has no such queue")
            queue = found[0]
        return self._stored(_wire(queue), [payload], [reply], begun_ns)[0]

    def send_many(self, queue: WireQueue, link: int, messages: Sequence[Draft]) -> str:
        """Send messages in one write, and then wait for all replies."""
        begun_ns = self.runtime.monotonic_ns()
        requests = [
            (*send_request(queue.topic, queue.queue_id, each.properties, Form()), each.body) for each in messages
        ]
        self._stored(queue, messages, self.broker.replies(link, requests), begun_ns)
        self.settle()
        return f"end {queue.end}"

    def send_batch(self, queue: WireQueue, link: int, messages: Sequence[Draft]) -> str:
        """Send messages as one batch (SEND_BATCH_MESSAGE, 320)."""
        begun_ns = self.runtime.monotonic_ns()
        fields = send_header(queue.topic, queue.queue_id, batch=True).encode()
        parts = encode_batch([BatchMessage(each.body, encode_properties(each.properties)) for each in messages])
        header = header_of(
            self.broker.call(link, RequestCode.SEND_BATCH_MESSAGE, fields, parts, codes=SEND_SUCCESS_CODES),
            SendMessageResponseHeader,
        )
        if header.queue_offset != queue.end:
            raise broken(f"a batch was stored at {queue.name} offset {header.queue_offset}; expected {queue.end}")
        ids = header.msg_id.split(",")
        if len(ids) != len(messages):
            raise broken(f"a batch of {len(messages)} messages got {len(ids)} ids")
        now_ns = self.runtime.monotonic_ns()
        for each, message_id in zip(messages, ids, strict=True):
            queue.sent(each, begun_ns, now_ns, _physical_offset(message_id))
        self._made_visible(queue)
        self.settle()
        return f"end {queue.end}"

    def send_one_way(self, queue: WireQueue, draft: Draft) -> str:
        """Send one message as a one-way request, and wait until the queue's max offset shows that it is stored.

        A one-way send is not acknowledged, and a busy broker may drop it silently (`BrokerFastFailure`), so the send is
        repeated. If the message is dropped every time, this is a violation.
        """
        code, fields = send_request(queue.topic, queue.queue_id, draft.properties, draft.form)
        begun_ns = self.runtime.monotonic_ns()
        for tries in range(1, ONE_WAY_TRIES + 1):
            self.broker.link(draft.link).ask(
                code, fields, draft.body, serialisation=draft.form.serialisation, one_way=True
            )
            came = self.broker.wait_end(queue.name, queue.end + 1) - queue.end
            if came > tries:
                raise broken(f"{queue.name} got {came} more messages, although one was sent {tries} times")
            if came > 0:
                now_ns = self.runtime.monotonic_ns()
                for _ in range(came):
                    queue.sent(draft, begun_ns, now_ns)
                self.settle()
                return f"offset {queue.end - 1}"
        raise broken(
            f"the end of {queue.name} stays at {queue.end}, although message {queue.end} was sent {ONE_WAY_TRIES} times"
        )

    def _stored(
        self, queue: WireQueue, sent: Sequence[Draft], replies: Sequence[Command], begun_ns: int
    ) -> list[WireMessage]:
        """Check and record acknowledged messages, which must be at the queue's end, in any order."""
        by_offset: dict[int, tuple[Draft, int]] = {}
        for draft, reply in zip(sent, replies, strict=True):
            if reply.code not in SEND_SUCCESS_CODES:
                raise broken(f"a valid send was rejected: code {reply.code} {reply.remark}")
            header = header_of(reply, SendMessageResponseHeader)
            if header.queue_id != queue.queue_id:
                raise broken(f"a message for {queue.name} was put into queue {header.queue_id}")
            by_offset[header.queue_offset] = draft, _physical_offset(header.msg_id)
        if sorted(by_offset) != list(range(queue.end, queue.end + len(sent))):
            said = f"{len(sent)} messages were stored at {queue.name} offsets {sorted(by_offset)}"
            raise broken(f"{said}; expected {queue.end} and up")
        now_ns = self.runtime.monotonic_ns()
        stored = [queue.sent(draft, begun_ns, now_ns, at) for _, (draft, at) in sorted(by_offset.items())]
        self._made_visible(queue)
        return stored

    def _made_visible(self, queue: WireQueue) -> None:
        if self.broker.broker.expectations.visible_at_ack:
            return
        seen = self.broker.wait_end(queue.name, queue.end)
        if seen < queue.end:
            raise broken(f"the end of {queue.name} stays at {seen}, although message {seen} was acknowledged")

    # -- pulls -------------------------------------------------------------------------------------------------------

    def _first(self, queue: Queue, place: Any) -> PullTerms:
        """Returns the terms of a pull with the offset for their place."""
        terms = PullTerms() if place == "end" else place
        offset = {
            "end": queue.end,
            "next": _wire(queue).offset_next,
            "start": 0,
            "middle": queue.end // 2,
            "last": max(queue.end - 1, 0),
            "negative": -1,
            "beyond": queue.end + 3,
        }[terms.place]
        return attrs.evolve(terms, offset=offset)

    def _begin(self, queue: Queue, first: PullTerms, timeout_ms: int, pause: Any = None) -> Ask:
        """Begin a pull that commits no offset below the group's offset, because brokers differ in accepting this."""
        if first.commits and not timeout_ms:
            known = self.committed.get((first.group, queue.name), 0)
            first = attrs.evolve(first, commit_offset=max(first.offset, known))
        return super()._begin(queue, first, timeout_ms, pause)

    def _position(self, queue: Queue, first: PullTerms) -> tuple[int, PullTerms]:
        return max(first.offset, 0), first

    def _judge(self, ask: Ask) -> None:
        super()._judge(ask)
        terms: PullTerms = ask.position
        if terms.commit_offset is not None:
            self.committed[terms.group, ask.queue] = terms.commit_offset

    def _judge_ended(self) -> None:
        super()._judge_ended()
        self.broker.check()

    def _pull(self, queue: Queue, terms: PullTerms) -> Ask:
        ask = self._begin(queue, terms, 0)
        self.polls.wait_sent(ask)
        self.settle()
        return ask

    def _cancel(self, ask: Ask) -> None:
        """Close the pull's connection, which ends all pulls on this connection."""
        ended = [each for each in self.polls.under_way if each.handle and each.handle[0] is ask.handle[0]]
        for each in ended:
            self.told.abandoned(each)
        self.subject.cancel(ask.handle)
        for each in ended:
            each.cancelled_ns = self.runtime.monotonic_ns()

    # -- restarts, and checks of offsets -----------------------------------------------------------------------------

    def restart(self) -> str:
        """Restart the broker, which sets a group's offset beyond the queue's end back to the end."""
        ends = {queue.name: queue.end for queue in self.queues}
        self.committed = {key: min(offset, ends[key[1]]) for key, offset in self.committed.items()}
        return super().restart()

    def _read_all(self) -> None:
        """Check the min and max offset of every queue, all of its messages, and every group's offset."""
        for queue in map(_wire, self.queues):
            self.check_ends(0, queue)
            offset = 0
            while offset < queue.end:
                answer = self._pull(queue, PullTerms(offset=offset)).answer
                assert answer is not None
                offset = answer.position_next
        for group, name in self.committed:
            self.check_committed(0, group, self._queue_of(name))

    def end(self) -> None:
        """Read everything back, end all held pulls and delete the topics."""
        self.settle()
        while waiting := [ask for ask in self.polls.under_way if ask.cancelled_ns is None]:
            self._cancel(waiting[0])
        for ask in self.polls.under_way:
            self._wait_ended_by(ask, "cancelled_is_over", "its cancel")
        self._judge_ended()
        self._read_all()
        self._look_for_second_answers()
        for topic in sorted({_wire(queue).topic for queue in self.queues}):
            self.broker.call(0, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    def check_ends(self, link: int, queue: WireQueue) -> None:
        """Check the queue's max offset and min offset (GET_MAX_OFFSET, 30, and GET_MIN_OFFSET, 31)."""
        end = self.broker.end_of(link, queue.name)
        start = self.broker.end_of(link, queue.name, RequestCode.GET_MIN_OFFSET)
        if (start, end) != (0, queue.end):
            raise broken(f"{queue.name} has offsets {start} to {end}; expected 0 to {queue.end}", "kept_by_restart")

    def commit(self, link: int, group: int, queue: WireQueue, offset: int) -> None:
        """Commit a group's offset (UPDATE_CONSUMER_OFFSET, 15)."""
        name = group_of(queue.topic, group)
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=name, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        self.broker.call(link, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
        self.committed[group, queue.name] = offset

    def check_committed(self, link: int, group: int, queue: WireQueue) -> str:
        """Query a group's offset (code 14). A group that committed none has offset 0 while the first message exists."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group_of(queue.topic, group), topic=queue.topic, queue_id=queue.queue_id
        )
        expected = self.committed.get((group, queue.name))
        codes = {0} if expected is not None or queue.end > 0 else {0, 22}
        command = self.broker.call(link, RequestCode.QUERY_CONSUMER_OFFSET, header.encode(), codes=codes)
        if command.code != 0:
            return "none"
        offset = header_of(command, OffsetResponseHeader).offset
        if offset != (expected or 0):
            raise broken(f"group {group} has offset {offset} in {queue.name}, but {expected} was committed")
        return str(offset)

    def view(self, link: int, queue: WireQueue, offset: int) -> None:
        """Read a message by its log offset (VIEW_MESSAGE_BY_ID, 33) and compare it with the sent one."""
        physical_offset = queue.known[offset].physical_offset
        if physical_offset is None:
            return
        command = self.broker.call(link, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
        stored = records_of(memoryview(command.body))
        if [(each.queue_offset, each.physical_offset) for each in stored] != [(offset, physical_offset)]:
            raise broken(f"a view of log offset {physical_offset} returned {stored}")
        queue.check_stored(stored[0])

    def refuse(self, link: int, bad: Bad, form: Form) -> int:
        """Send a request that the broker must reject; returns the response code."""
        queue = _wire(self.queues[0])
        fields: dict[str, str] = {}
        if bad.code == RequestCode.PULL_MESSAGE:
            fields = pull_header(group_of(queue.topic, 0), queue.topic, 0, 0, 10_000).encode()
        elif bad.code == RequestCode.SEND_MESSAGE_V2:
            fields = send_request(queue.topic, 0, {}, Form())[1]
        for name, value in bad.changes.items():
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
        return self.broker.call(link, bad.code, fields, b"x", codes=bad.refusals, serialisation=form.serialisation).code

    def _queue_of(self, name: str) -> WireQueue:
        return next(_wire(queue) for queue in self.queues if queue.name == name)


class RocketMQMachine(LongPollMachine):
    """One example: steps over real connections, checked against the model. No rule depends on time."""

    kind: ClassVar[Any] = RocketMQExample
    short_ms = SHORT_MS
    example: RocketMQExample
    preempt = None  # type: ignore[assignment] # a broker's threads are not stopped between its lines

    @classmethod
    def _run_short(cls, run: Run) -> None:
        """Record the axes and run nothing, because the random steps cover the short cases."""
        run.axes = {"connections": f"{LINK_COUNT}", "queues": f"{sum(QUEUE_COUNTS)} in {len(QUEUE_COUNTS)} topics"}

    @rule(queue=queues, payload=drafts, count=st.sampled_from([1, 1, 2]))
    @step
    def publish(self, queue: int, payload: Draft, count: int) -> str:
        """Send messages to a queue, or to a queue of its topic that the broker chooses."""
        return self.example.publish(self.example.queues[queue], payload, count)

    @rule(link=links, queue=queues, messages=batches, as_batch=st.booleans())
    @step
    def send_many(self, link: int, queue: int, messages: list[Draft], as_batch: bool) -> str:
        """Send many messages without waiting for replies in between, or as one batch."""
        sent = [attrs.evolve(each, body=bytes([number]) + each.body) for number, each in enumerate(messages)]
        send = self.example.send_batch if as_batch else self.example.send_many
        return send(self._queue(queue), link, sent)

    @rule(queue=queues, draft=st.builds(Draft, st.just(b"one way"), tags, form=forms, link=links))
    @step
    def send_one_way(self, queue: int, draft: Draft) -> str:
        """Send one message that gets no reply."""
        return self.example.send_one_way(self._queue(queue), draft)

    @rule(queue=queues, place=unheld)
    @step
    def pull(self, queue: int, place: PullTerms) -> str:
        return self.example.poll(self._queue(queue), place, 0, 1)

    @rule(queue=queues, place=held, timeout_ms=st.sampled_from([0, 0, *SHORT_MS[1:]]), count=st.sampled_from([1, 1, 3]))
    @step
    def poll(self, queue: int, place: PullTerms, timeout_ms: int, count: int) -> str:
        """Send a pull that is held if it finds no message. A `timeout_ms` of 0 stands for a long hold."""
        return self.example.poll(self._queue(queue), place, timeout_ms or self.long_ms, count)

    @rule(queue=queues, payload=drafts, places=st.lists(held, min_size=1, max_size=4))
    @step
    def wake(self, queue: int, payload: Draft, places: list[PullTerms]) -> str:
        """Send messages after several different pulls have waited for some time."""
        for place in places[1:]:
            self.example.poll(self._queue(queue), place, self.long_ms, 1)
        return self.example.wake(self._queue(queue), payload, 1, places[0])

    @rule(queue=queues, which=st.integers(0, len(SHORT_MS) - 1), place=ends)
    @step
    def expire(self, queue: int, which: int, place: PullTerms) -> str:
        return self.example.expire(self._queue(queue), SHORT_MS[which], place)

    @rule(queue=queues, payload=plain_drafts, place=ends, rounds=st.sampled_from([1, 2, 4]))
    @step
    def cross(self, queue: int, payload: Draft, place: PullTerms, rounds: int) -> str:
        return self.example.cross(self._queue(queue), payload, rounds, 0, place)

    @rule(
        queue=queues,
        payload=plain_drafts,
        place=ends,
        order=st.sampled_from(get_args(Order)),
    )
    @step
    def cancel(self, queue: int, payload: Draft, place: PullTerms, order: Order) -> str:
        """Close a connection that has pulls, and send the message on another connection."""
        payload = attrs.evolve(payload, link=(place.link + 1) % LINK_COUNT)
        return self.example.cancel(self._queue(queue), payload, order, 0, place)

    @precondition(lambda self: "restart" in self.example.abilities)
    @rule(queue=queues, place=ends, settle=st.booleans())
    @step
    def restart(self, queue: int, place: PullTerms, settle: bool) -> str:
        """Restart the broker while one more pull is just sent, or is already read by the broker."""
        subject = self.example.broker
        assert isinstance(subject, RestartableSubject)
        subject.settling_queue = self._queue(queue).name if settle else ""
        self.example.poll(self._queue(queue), place, self.long_ms, 1)
        return self.example.restart()

    @rule(link=links, queue=queues, kind=st.sampled_from(sorted(MALFORMED)))
    @step
    def malformed(self, link: int, queue: int, kind: str) -> None:
        """Send bytes that are not a frame on a separate connection. Other connections must keep working."""
        self.example.broker.send_malformed(kind)
        self.example.check_ends(link, self._queue(queue))

    @rule(link=links, bad=st.sampled_from(BAD_REQUESTS), form=forms)
    @step
    def refuse(self, link: int, bad: Bad, form: Form) -> str:
        return f"code {self.example.refuse(link, bad, form)}"

    @rule(link=links, queue=queues, group=groups, offset=st.one_of(st.none(), st.integers(0, 2**40)))
    @step
    def committed(self, link: int, queue: int, group: int, offset: int | None) -> str:
        """Commit a group's offset unless it is None, and then query the group's offset."""
        if offset is not None:
            self.example.commit(link, group, self._queue(queue), offset)
        return self.example.check_committed(link, group, self._queue(queue))

    @rule(link=links, queue=queues, position=st.integers(0, 255))
    @step
    def look(self, link: int, queue: int, position: int) -> None:
        chosen = self._queue(queue)
        self.example.check_ends(link, chosen)
        if chosen.end:
            self.example.view(link, chosen, position % chosen.end)

    def _queue(self, number: int) -> WireQueue:
        return _wire(self.example.queues[number])


def _wire(queue: Queue) -> WireQueue:
    assert isinstance(queue, WireQueue)
    return queue


def _physical_offset(message_id: str) -> int:
    try:
        return message_id_position(message_id)[2]
    except HeaderError as error:
        raise broken(str(error)) from None


def machine_of(runtime: Runtime, broker: TestedBroker) -> type[RocketMQMachine]:
    """Returns a machine class for one broker."""
    limits = broker.expectations.allowances
    kind = RestartableSubject if broker.can_restart else RocketMQSubject
    names = {
        "subject": functools.partial(kind, runtime, broker),
        "wake_ms": limits.wake_ms,
        "late_ms": limits.late_ms,
        "long_ms": limits.wake_ms + 2_000,
    }
    return type("RocketMQ", (RocketMQMachine,), names)


def run_suite(
    runtime: Runtime,
    broker: TestedBroker,
    *,
    max_examples: int,
    step_count: int,
    seed: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    shrink: bool = True,
) -> KitReport:
    """Run up to `max_examples` examples of `step_count` steps each, until one fails; `shrink` then shortens it.

    Raises UnreachableError if the broker cannot be reached. A violated property is in the report and raises nothing.
    """
    chosen = settings(
        max_examples=max_examples,
        stateful_step_count=step_count,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
    )
    return machine_of(runtime, broker).exercise(
        chosen, seed, example_done=lambda done: progress(min(done, max_examples), max_examples)
    )
