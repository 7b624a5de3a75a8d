"""One queue's pulls: order, flow control, messages that cannot be read, pauses and other tags."""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from unittest import mock

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.broker.raw_client import RawClient
from model_tests.support.client import BAD, RUNTIME, Answers, Heard, bodies_of, listening, polling, send

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    ConnectionLostError,
    MessageModel,
    MessageQueue,
    OutgoingMessage,
    Permission,
    Producer,
    PullConsumer,
    ReceivedMessage,
    RefusedError,
    StartAt,
    Unreadable,
    UnreadableMessage,
)
from longpoll_client.consume import group_member, puller
from longpoll_client.consume.membership import QueueLocks
from longpoll_client.consume.offsets import RemoteOffsets
from longpoll_client.consume.puller import Batch, ProcessQueue, Puller
from longpoll_client.consume.rebalance import Rebalancer
from longpoll_client.consume.statistics import GIVEN_COUNT_MAX, Statistics
from longpoll_client.link.steps import Ask
from longpoll_client.messages import decode_readable
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import OffsetTable, SubscriptionData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_runtime.real import RealRuntime


@define
class Calls:
    """A client, its connection and its timer.

    Invariant: `asked` has the offset of each pull, and `rests` each pause in seconds.
    """

    runtime: RealRuntime = field(factory=RealRuntime)
    asked: list[int] = field(factory=list)
    answers: list[Callable[[Any], None]] = field(factory=list)
    rests: list[float] = field(factory=list)
    commits: list[bool] = field(factory=list)
    """For each pull, whether it commits the offset that it carries."""
    waits: list[tuple[int, float]] = field(factory=list)
    """(Hold in ms, timeout in s) of each pull."""

    def broker_address_of(self, _broker_name: str, _broker_id: int) -> str:
        return "127.0.0.1:1"

    def call_async(
        self,
        _address: str,
        _code: int,
        header: PullMessageRequestHeader,
        *,
        callback: Callable[[Any], None],
        timeout_s: float,
    ) -> None:
        self.asked.append(header.queue_offset)
        self.commits.append(header.has_commit_offset)
        self.waits.append((header.suspend_timeout_millis or 0, timeout_s))
        self.answers.append(callback)

    def after(self, delay_s: float, _action: Callable[[], None]) -> None:
        self.rests.append(delay_s)


def puller_of(calls: Calls, *, count_max: int = 1000, deliver: Callable[[Batch], None] = lambda _batch: None) -> Puller:
    any_of: Any = calls
    return Puller(
        instance=any_of,
        timer=any_of,
        statistics=Statistics(calls.runtime),
        config=MemberConfig(group="G", cached_count_max=count_max, cached_size_max=1 << 20),
        is_orderly=False,
        queue=MessageQueue(topic="T", broker_name="b", queue_id=0),
        subscription=SubscriptionData(topic="T", sub_string="*"),
        offset=5,
        deliver=deliver,
        handle_unreadable=lambda _message, then: then(None),
    )


def answer(code: int) -> Command:
    """Return an answer whose next offset is 2."""
    header = PullMessageResponseHeader(suggest_which_broker_id=0, next_begin_offset=2, min_offset=0, max_offset=2)
    return Command(code, 1, 1, header.encode())


HEAD: Final = struct.Struct(">iIiiiqqiq8sq8siqi")


def record(offset: int) -> bytes:
    host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
    size = HEAD.size + 1 + 2 + 2
    crc = zlib.crc32(b"x") & 0x7FFFFFFF
    return HEAD.pack(size, 0xDAA320A7, crc, 0, 0, offset, 0, 0, 0, host, 0, host, 0, 0, 1) + b"x" + b"\x01T" + b"\0\0"


def found(first: int, count: int) -> Command:
    """Return an answer with messages from this offset on."""
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=first + count, min_offset=0, max_offset=first + count
    )
    body = b"".join(record(first + number) for number in range(count))
    return Command(ResponseCode.SUCCESS, 1, 1, header.encode(), memoryview(body))


def test_pulling_continues_from_a_moved_offset_at_once() -> None:
    """The client continues at once from a moved offset; if no broker serves the queue, it pauses before each pull."""
    calls = Calls()
    puller_of(calls).pull()
    calls.answers[-1](answer(ResponseCode.PULL_OFFSET_MOVED))
    assert (calls.asked, calls.rests) == ([5, 2], [])

    calls.answers[-1](answer(ResponseCode.SYSTEM_ERROR))
    assert calls.asked == [5, 2]
    assert len(calls.rests) == 1


def answered(body: bytes, fields: dict[str, str] | None = None) -> Command:
    """Return an answer with a body that may be unreadable."""
    return Command(ResponseCode.SUCCESS, 1, 1, answer(0).ext_fields if fields is None else fields, memoryview(body))


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        (answer(ResponseCode.SUBSCRIPTION_NOT_EXIST), "the broker says 24"),
        (answer(ResponseCode.FLOW_CONTROL), "the broker says 215"),
        (answered(bytes(100)), "is damaged"),
        (answered(b"\x01"), "expected a record"),
        (answered(b"", {}), "'suggestWhichBrokerId'"),
        (answered(b"", {"suggestWhichBrokerId": "x"}), "not a whole number"),
    ],
)
def test_a_failed_pull_is_retried_from_the_same_offset(
    failing: Command, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable message is pulled again at once and alone; after other failures the client pauses first."""
    calls = Calls()
    puller = puller_of(calls)
    puller.pull()
    with caplog.at_level(logging.WARNING):
        calls.answers[-1](failing)
    assert words in caplog.text
    if "asking for it alone" not in caplog.text:
        assert (calls.asked, len(calls.rests)) == ([5], 1)
        puller.pull()
    assert calls.asked == [5, 5]


def test_a_pull_commits_no_offset_and_times_out_later_than_its_hold() -> None:
    """Java's broker may apply a pull's commit after a later store, and the group would get messages again.

    An answer at the deadline needs time on the network, so the timeout is longer than the hold by a setting.
    """
    calls = Calls()
    puller_of(calls).pull()
    ((hold_ms, timeout_s),) = calls.waits
    assert calls.commits == [False]
    assert timeout_s == MemberConfig(group="G").pull_timeout_s
    assert timeout_s > hold_ms / 1000 > 0


def test_no_message_is_lost_when_threads_consume_while_answers_arrive() -> None:
    """Every consumed message is removed once and counted once, while other threads consume too."""
    calls = Calls()
    count, at_once = 2000, 32
    messages: list[ReceivedMessage] = []
    puller = puller_of(calls, count_max=count * at_once, deliver=lambda batch: messages.extend(batch.messages))
    statistics = Statistics(calls.runtime)
    left = iter(range(count))
    puller.pull()

    def listen() -> None:
        for number in left:
            while len(messages) <= number:
                pass
            puller.done((messages[number],))
            statistics.given("T", 1, 1_000_000, is_consumed=number % 2 == 0)

    threads = [threading.Thread(target=listen) for _number in range(3)]
    for thread in threads:
        thread.start()
    for first in range(5, 5 + count, at_once):
        calls.answers[-1](found(first, min(at_once, 5 + count - first)))
    for thread in threads:
        thread.join(30.0)
    assert (puller.cached_count, puller.cached_size, puller.offset_done) == (0, 0, 5 + count)
    assert not puller._consumed
    assert len(statistics._given) < GIVEN_COUNT_MAX < count
    counts = statistics.snapshot()["T"]
    assert (counts.consumed_count, counts.later_count, counts.consume_ms) == (count // 2, count // 2, count)


def test_messages_that_were_not_requested_are_not_delivered() -> None:
    """An answer with a message before the offset, a repeated or an unordered one is refused, and pulled again later."""
    for wrong in ([4], [5, 5], [5, 7, 6]):
        calls = Calls()
        batches: list[Batch] = []
        puller_of(calls, deliver=batches.append).pull()
        came = found(5, 3)
        calls.answers[-1](Command(0, 1, 1, came.ext_fields, memoryview(b"".join(map(record, wrong)))))
        assert (batches, calls.asked, len(calls.rests)) == ([], [5], 1)


def test_each_topic_is_counted_separately() -> None:
    """Counts are kept per topic, and a topic without consumed messages is not reported."""
    statistics = Statistics(RealRuntime())
    for topic, count, is_consumed in (("A", 1, True), ("B", 2, True), ("B", 3, False), ("A", 4, True), ("A", 5, False)):
        statistics.given(topic, count, count * 1_000_000, is_consumed=is_consumed)
    found = statistics.snapshot()
    counts = {topic: (each.consumed_count, each.later_count, each.consume_ms) for topic, each in found.items()}
    assert counts == {"A": (5, 5, 10.0), "B": (2, 3, 5.0)}


def message(offset: int, size: int = 1) -> ReceivedMessage:
    return ReceivedMessage("T", 0, offset, b"x" * size, {}, "id", 0, "", 0, "", 0, 0, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=30), st.randoms())
def test_counts_are_those_of_a_plain_list(steps: list[tuple[int, int]], chance: object) -> None:
    """Number, size, span and consumed offset equal those of a simple list after every `put` and every `done`."""
    queue, plain, end = ProcessQueue(0), list[ReceivedMessage](), 0
    for gap, size in steps:
        found = message(end + gap - 1, size)
        end = found.queue_offset + 1
        queue.put([found], end)
        plain.append(found)
        if len(plain) % 3 == 0:
            chosen = plain[len(plain) // 2]
            queue.done([chosen, chosen, message(chosen.queue_offset)])
            plain.remove(chosen)
        assert queue.count == len(plain)
        assert queue.size == sum(len(one.body) for one in plain)
        assert queue.span == (end - plain[0].queue_offset if plain else 0)
        assert queue.offset_done == (plain[0].queue_offset if plain else end)
        assert queue.first(2) == plain[:2]
    queue.done(plain)
    assert (queue.count, queue.size, queue.offset_done) == (0, 0, end)


def test_each_limit_stops_pulling_and_is_named() -> None:
    """If a limit is reached, the queue stops pulling and reports the limit's name; below all limits it pulls."""
    queue = ProcessQueue(0)
    queue.put([message(0, 10), message(9, 10)], 10)

    def stop(count_max: int, size_max: int, span_max: int, *, is_orderly: bool = False) -> str | None:
        config = MemberConfig(group="G", cached_count_max=count_max, cached_size_max=size_max, cached_span_max=span_max)
        return queue.stop(config, is_orderly=is_orderly)

    assert stop(2, 100, 100) == "count"
    assert stop(3, 20, 100) == "size"
    assert stop(3, 21, 10) == "span"
    assert stop(3, 21, 10, is_orderly=True) is None
    queue.move(4)
    assert (queue.count, queue.offset_done) == (0, 4)


FIRST = 2
FIRST_QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
RETRY = MessageQueue(topic="%RETRY%G", broker_name="a", queue_id=0)


class OneQueue(Answers):
    """A broker of one queue.

    If the group has no stored offset, the broker answers with `told_for_none`, or with code 22 (QUERY_NOT_FOUND) if
    `told_for_none` is None.
    """

    def __init__(self) -> None:
        super().__init__(self._asked)
        self.end = 5
        self.stored: int | None = None
        self.told_for_none: int | None = None
        self.refuses_tables = False
        self.may_answer_22 = False
        """Whether it answers 22 for none where it is asked to, as 5.x."""

    def _asked(self, asked: Ask) -> Command:
        """Answer the requests for a group's offsets."""
        if isinstance(asked.header, UpdateConsumerOffsetRequestHeader):
            self.stored = asked.header.commit_offset
            return Command(ResponseCode.SUCCESS)
        if asked.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            if self.refuses_tables:
                raise RefusedError("the table", ResponseCode.NO_PERMISSION, None)
            row = {} if self.stored is None else {0: self.stored}
            table = OffsetTable(offset_table={"T@other": {0: 0}, "T@G": row})
            return Command(ResponseCode.SUCCESS, body=table.encode())
        is_22 = self.may_answer_22 and getattr(asked.header, "set_zero_if_not_found", None) is False
        none = None if is_22 else self.told_for_none
        offset = {
            RequestCode.QUERY_CONSUMER_OFFSET: none if self.stored is None else self.stored,
            RequestCode.GET_MIN_OFFSET: FIRST,
            RequestCode.GET_MAX_OFFSET: self.end,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: 3,
        }[asked.code]
        if offset is None:
            raise RefusedError("the offset", ResponseCode.QUERY_NOT_FOUND, None)
        return Command(ResponseCode.SUCCESS, ext_fields=OffsetResponseHeader(offset=offset).encode())

    def begin(self, member: RemoteOffsets, queue: MessageQueue = FIRST_QUEUE) -> int:
        found: int = self.run(member.begin(queue))
        return found

    def store(self, member: RemoteOffsets, offset: int) -> None:
        self.run(member.store(FIRST_QUEUE, offset))


@pytest.fixture
def one_queue() -> OneQueue:
    return OneQueue()


@pytest.mark.parametrize(
    ("start_at", "begun"), [("first", FIRST), ("last", 5), (datetime.fromtimestamp(1.7e9, UTC), 3)]
)
def test_a_group_continues_at_its_offset_whatever_start_at_says(
    one_queue: OneQueue, start_at: StartAt, begun: int
) -> None:
    """The first member begins as configured, and the next one at the group's offset; 4.x reports 0 for a new group."""
    first, second = RemoteOffsets("G", start_at), RemoteOffsets("G", start_at)
    # A start at the first message does not need the broker's table of offsets.
    one_queue.told_for_none, one_queue.refuses_tables = 0, start_at == "first"
    assert one_queue.begin(first) == begun
    assert one_queue.stored == begun
    one_queue.end = 9
    assert one_queue.begin(second) == begun
    one_queue.store(second, 7)
    assert one_queue.begin(first) == 7


def test_a_new_group_starts_at_the_end_if_the_broker_hides_its_offsets(one_queue: OneQueue) -> None:
    one_queue.told_for_none, one_queue.refuses_tables, one_queue.may_answer_22 = 0, True, True
    assert one_queue.begin(RemoteOffsets("G", "stored")) == 0
    assert one_queue.begin(RemoteOffsets("G", "last")) == 5


@pytest.mark.parametrize("refuses_tables", [False, True])
def test_a_group_that_began_at_the_end_of_an_empty_queue_loses_nothing(
    one_queue: OneQueue, refuses_tables: bool
) -> None:
    """4.x reports offset 0 also for a group that has stored none, and the next member must not skip messages.

    A broker of 5.x that does not show its table reports offset 0 only for a group that has stored offset 0.
    """
    one_queue.end, one_queue.refuses_tables = 0, refuses_tables
    assert one_queue.begin(RemoteOffsets("G", "last")) == 0
    one_queue.end = 8
    assert one_queue.begin(RemoteOffsets("G", "last")) == 0
    one_queue.store(RemoteOffsets("G", "last"), 3)
    assert one_queue.begin(RemoteOffsets("G", "last")) == 3


@pytest.mark.parametrize(("start_at", "begun"), [("first", FIRST), ("last", 5), ("stored", 5)])
def test_a_queue_that_returns_continues_although_the_broker_lost_its_offset(
    one_queue: OneQueue, start_at: StartAt, begun: int
) -> None:
    """A member knows its old offset, so it does not begin at the end when the broker has lost the group's offset."""
    member = RemoteOffsets("G", start_at)
    assert one_queue.begin(member) == begun
    one_queue.store(member, 6)
    one_queue.stored, one_queue.end = None, 8
    assert one_queue.begin(member) == 6
    one_queue.stored = 7
    assert one_queue.begin(member) == 7


def test_messages_sent_back_are_delivered_again_wherever_the_group_starts(one_queue: OneQueue) -> None:
    """The retry topic begins at 0 if no offset is stored, also for a group that begins at the end."""
    assert one_queue.begin(RemoteOffsets("G", "stored"), RETRY) == 0
    assert one_queue.begin(RemoteOffsets("G", "last"), RETRY) == 0


def rebalancer_of(puller: Any, *, is_busy: bool) -> Rebalancer:
    assigned: Any = mock.Mock(pullers=lambda: {puller.queue: puller}, let_go=lambda _queue, **_given: puller)
    locks = QueueLocks(RUNTIME, "G", lambda: "c", is_orderly=False)
    membership: Any = mock.Mock(subscriptions={"T": None})
    busy, anything = mock.Mock(return_value=is_busy), mock.Mock()
    return Rebalancer(membership, assigned, RemoteOffsets("G", "stored"), locks, busy, anything, anything)


def test_no_offset_is_stored_for_a_queue_that_another_member_may_have(one_queue: OneQueue) -> None:
    """The other member may have stored a later offset by the time the listener returns, so nothing is stored."""
    puller = mock.Mock(queue=FIRST_QUEUE, offset_done=6, is_locked=True, locked_until_ns=None)
    rebalancer = rebalancer_of(puller, is_busy=True)
    one_queue.run(rebalancer.give_up(FIRST_QUEUE, stores=True))
    assert rebalancer._revoked.pullers() == []
    puller.offset_done = 7
    one_queue.run(rebalancer.release(puller))
    assert one_queue.stored == 6


def test_the_close_stores_an_offset_that_has_not_changed(one_queue: OneQueue) -> None:
    """A broker that crashed may have lost the offset, so the close stores it again."""
    rebalancer = rebalancer_of(mock.Mock(queue=FIRST_QUEUE, offset_done=6, is_locked=True), is_busy=False)
    for steps, stored in ((rebalancer.persist, 6), (rebalancer.persist, None), (rebalancer.leave, 6)):
        one_queue.stored = None
        one_queue.run(steps())
        assert one_queue.stored == stored
    one_queue.stored = 7
    one_queue.run(rebalancer.leave())
    assert one_queue.stored == 7, "another consumer has stored a later offset"


def test_an_offset_whose_store_failed_is_stored_again(one_queue: OneQueue) -> None:
    """A failed store is repeated, also for an offset that the broker had before; an acknowledged store is not."""
    member = RemoteOffsets("G", "stored")
    one_queue.begin(member)
    storing = member.store(FIRST_QUEUE, 6)
    next(storing)
    with pytest.raises(ConnectionLostError):
        storing.throw(ConnectionLostError("planted"))
    for known in (5, None):
        one_queue.stored = None
        one_queue.store(member, 5)
        assert one_queue.stored == known


@pytest.mark.parametrize("refusal", [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.SYSTEM_ERROR])
def test_a_group_that_is_unknown_to_a_broker_starts(refusal: ResponseCode) -> None:
    """5.x refuses an offset of an unknown group (26), so the client sends it later; other refusals are errors."""
    kept = RemoteOffsets("G", "first")

    def ask(asked: Ask) -> Command:
        if asked.code == RequestCode.QUERY_CONSUMER_OFFSET:
            raise RefusedError("stored", ResponseCode.QUERY_NOT_FOUND, "none")
        if asked.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            raise RefusedError("storing", refusal, "no")
        return Command(ResponseCode.SUCCESS, 1, 1, {"offset": "7"})

    begun = Answers(ask).run
    if refusal == ResponseCode.SYSTEM_ERROR:
        with pytest.raises(RefusedError):
            begun(kept.begin(FIRST_QUEUE))
    else:
        assert begun(kept.begin(FIRST_QUEUE)) == 7
        assert kept._failed == {FIRST_QUEUE}


def failed_pulls(consumer: PullConsumer) -> int:
    """Return the number of failed pulls of all topics."""
    return sum(each.failed_pull_count for each in consumer.statistics.values())


@pytest.mark.parametrize("bodies", [(BAD,), (b"1", BAD, BAD, b"2"), (BAD, b"1"), (b"1", b"2", BAD)])
@pytest.mark.parametrize("what", [Unreadable.SKIP, Unreadable.DEAD_LETTER])
def test_unreadable_messages_are_reported_and_the_others_are_delivered(
    name_server: str, topic: str, bodies: Sequence[bytes], what: Unreadable
) -> None:
    """An unreadable message anywhere is reported and skipped, and becomes a dead letter if so configured."""
    told: list[UnreadableMessage] = []
    send(name_server, topic, *bodies, b"last")
    with polling(name_server, topic, f"G-{topic}", unreadable=what, on_unreadable=told.append) as consumer:
        assert bodies_of(consumer, sum(body != BAD for body in bodies) + 1) == [
            *(body for body in bodies if body != BAD),
            b"last",
        ]
        consumer.commit()
        count = bodies.count(BAD)
        assert [each.queue_offset for each in told] == [n for n, body in enumerate(bodies) if body == BAD]
        assert {each.topic for each in told} == {topic}
        assert all("not zlib" in each.why and BAD in each.record for each in told)
        assert consumer.statistics[topic].unreadable_count == count
        assert consumer._member.assigned_queues.pullers()[consumer.queues[0]].offset_done == len(bodies) + 1
        dead = f"%DLQ%G-{topic}"
        sent_back = consumer.statistics[topic].sent_back_count
        assert sent_back == (count if what is Unreadable.DEAD_LETTER else 0)
        if sent_back:
            told.clear()
            with polling(name_server, dead, f"D-{topic}", unreadable=Unreadable.SKIP, on_unreadable=told.append):
                wait_until(lambda: len(told) == count)
                assert all(BAD in each.record for each in told)


def test_a_queue_stops_if_so_configured(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages before the unreadable one are delivered, and then the queue is pulled repeatedly without skipping it."""
    monkeypatch.setattr(puller, "RETRY_S", 0.01)
    send(name_server, topic, b"1", BAD, b"2")
    with (
        caplog.at_level(logging.WARNING),
        polling(name_server, topic, f"G-{topic}", unreadable=Unreadable.STOP) as consumer,
    ):
        assert bodies_of(consumer, 1) == [b"1"]
        wait_until(lambda: failed_pulls(consumer) > 2)
        consumer.commit()
        assert consumer._member.assigned_queues.pullers()[consumer.queues[0]].offset_done == 1
        assert consumer.statistics[topic].unreadable_count == 0
    assert f"{topic} queue 0 offset 1 is unreadable and blocks its queue" in caplog.text


def test_a_message_that_is_readable_at_a_second_pull_is_delivered(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were damaged on the network are pulled again, and every message comes once."""
    honest, spoiled = decode_readable, [2]

    def spoils(body: Any) -> Any:
        if spoiled[0] and len(body):
            spoiled[0] -= 1
            return honest(bytes(body[:-1]))
        return honest(body)

    monkeypatch.setattr(puller, "decode_readable", spoils)
    send(name_server, topic, b"1", b"2")
    told: list[UnreadableMessage] = []
    with polling(name_server, topic, f"G-{topic}", on_unreadable=told.append) as consumer:
        assert bodies_of(consumer, 2) == [b"1", b"2"]
    assert (told, spoiled) == ([], [0])


@pytest.mark.parametrize("model", MessageModel)
def test_a_listener_continues_after_an_unreadable_message(name_server: str, topic: str, model: MessageModel) -> None:
    """A broadcasting member sends nothing back, and a callback that raises loses no message."""
    heard, told = Heard(), list[UnreadableMessage]()

    def raises(message: UnreadableMessage) -> None:
        told.append(message)
        raise ZeroDivisionError("the callback's own fault")

    send(name_server, topic, BAD, b"good")
    with listening(name_server, topic, heard, group=topic, message_model=model, on_unreadable=raises) as consumer:
        assert heard.wait(1) == [b"good"]
        assert len(told) == 1
        assert consumer.statistics[topic].sent_back_count == int(model is MessageModel.CLUSTERING)


@contextmanager
def ten_sent(broker: Broker) -> Iterator[tuple[str, str]]:
    name_server = "{}:{}".format(*broker.name_server_address)
    with new_topic(name_server, 1) as topic:
        with Producer(name_server) as producer:
            producer.send_batch(topic, [OutgoingMessage(b"%d" % number) for number in range(10)])
        yield name_server, topic


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def test_a_topic_without_read_permission_is_logged_and_read_once_permitted(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic without read permission gives one log line per rebalance, no error, and no lost message."""
    monkeypatch.setattr(group_member, "RETRY_S", 0.2)
    with ten_sent(broker) as (name_server, topic), Admin(name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with closing(PullConsumer(name_server, group="G", topics=topic)) as consumer:
            with caplog.at_level(logging.WARNING):
                consumer.start()
            (line,) = set(lines(caplog, topic))
            assert line.endswith(f"topic {topic!r} is not readable: its permission lacks R")
            assert consumer.poll(0.0) == []
            admin.create_topic(topic, 1)
            consumer._member._instance.forget_route(topic)
            assert bodies_of(consumer, 10) == [b"%d" % number for number in range(10)]


def test_a_stored_offset_beyond_the_log_is_moved_to_its_end(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """As in 4.9.7 the client logs one line and continues at the log's end, and the right offset is stored."""
    with ten_sent(broker) as (name_server, topic):
        fields = {"consumerGroup": "G", "topic": topic, "queueId": "0", "commitOffset": "1000"}
        with RawClient(broker.address) as client:
            assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0
        with caplog.at_level(logging.WARNING):
            with PullConsumer(name_server, group="G", topics=topic, start_at="stored") as consumer:
                wait_until(lambda: bool(lines(caplog, topic)))
                with Producer(name_server) as producer:
                    producer.send(topic, b"10")
                assert bodies_of(consumer, 1) == [b"10"]
                consumer.commit()
            assert lines(caplog, topic) == [f"{topic} queue 0: the offset is moved to 10"]
        wait_until(lambda: broker.offsets.by_pair[f"{topic}@G"] == {0: 11})


def test_repeated_failures_do_not_multiply_the_retries(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often queues are rebalanced, only one further try is scheduled."""
    due: list[Callable[[], object]] = []
    with ten_sent(broker) as (name_server, topic), Admin(name_server) as admin:
        admin.create_topic(topic, 1, Permission.WRITE)
        with closing(PullConsumer(name_server, group="G", topics=topic, start_at="stored")) as consumer:
            member = consumer._member
            monkeypatch.setattr(member, "soon", lambda make, *_delay, **_options: due.append(make))
            for _time in range(5):
                member.run(member.rebalancer.rebalance())
            assert due.count(member._try_again) == 1
            member.run(member._try_again())
            member.run(member.rebalancer.rebalance())
            assert due.count(member._try_again) == 2


@pytest.mark.parametrize("start_at", ["stored", "first"])
def test_a_queue_that_was_created_again_is_read_from_its_start(
    start_at: StartAt, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stored offsets belong to the deleted queue, so the new queue begins at 0 and no message is skipped."""
    with (
        new_topic(name_server, queue_count=1) as topic,
        Admin(name_server) as admin,
        PullConsumer(name_server, topics=topic, group="Again", start_at=start_at) as consumer,
    ):
        send(name_server, topic, *[b"old %d" % number for number in range(10)])
        assert bodies_of(consumer, 10) == [b"old %d" % number for number in range(10)]
        admin.delete_topic(topic)
        wait_until(lambda: "the broker says 17" in caplog.text)
        admin.create_topic(topic, 1)
        new = [b"new %d" % number for number in range(15)]
        send(name_server, topic, *new)
        assert bodies_of(consumer, 15) == new
        assert "was created again: continuing at 0" in caplog.text
        consumer.commit(sync=True)
        (queue,) = consumer.queues
        assert consumer.committed(queue) == 15
