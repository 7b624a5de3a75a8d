"""A queue's puller between its calls: what it asks, how long it waits for that, and when it asks again."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from attrs import define, field

from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.process_queue import FlowLimits
from longpoll_client.consume.puller import Batch, Puller, PullSettings
from longpoll_client.consume.statistics import GIVEN_COUNT_MAX, Statistics
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import ConsumerConfig
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from longpoll_runtime.real import RealRuntime


@define
class Calls:
    """A client, its connection and its timer. Invariant: `asked` has each pull's offset, and `rests` each rest, s."""

    runtime: RealRuntime = field(factory=RealRuntime)
    asked: list[int] = field(factory=list)
    answers: list[Callable[[Any], None]] = field(factory=list)
    rests: list[float] = field(factory=list)
    commits: list[bool] = field(factory=list)
    """Whether each pull commits the offset that it carries."""

    def client(self, _address: str) -> Calls:
        """The connection."""
        return self

    def broker_address_of(self, _broker_name: str, _broker_id: int) -> str:
        """Anywhere."""
        return "127.0.0.1:1"

    def call_async(
        self, _code: int, header: PullMessageRequestHeader, *, callback: Callable[[Any], None], timeout_s: float
    ) -> None:
        """Note the pull."""
        self.asked.append(header.queue_offset)
        self.commits.append(header.has_commit_offset)
        self.answers.append(callback)

    def after(self, delay_s: float, _action: Callable[[], None]) -> None:
        """Note the rest."""
        self.rests.append(delay_s)


def puller_of(calls: Calls, *, count_max: int = 1000, deliver: Callable[[Batch], None] = lambda _batch: None) -> Puller:
    """A puller that stands at offset 5."""
    any_of: Any = calls
    limits = FlowLimits(count_max, 1 << 20, 2000)
    return Puller(
        instance=any_of,
        timer=any_of,
        statistics=Statistics(calls.runtime),
        settings=PullSettings("G", 32, 15_000, 30.0, limits, commits=True),
        queue=MessageQueue(topic="T", broker_name="b", queue_id=0),
        subscription=SubscriptionData(topic="T", sub_string="*"),
        offset=5,
        deliver=deliver,
        pass_over=lambda _message: None,
    )


def answer(code: int) -> Command:
    """An answer that says to go on at 2."""
    header = PullMessageResponseHeader(suggest_which_broker_id=0, next_begin_offset=2, min_offset=0, max_offset=2)
    return Command(code, 1, 1, header.encode())


HEAD: Final = struct.Struct(">iIiiiqqiq8sq8siqi")


def record(offset: int) -> bytes:
    """A message of topic T, as it is stored."""
    host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
    size = HEAD.size + 1 + 2 + 2
    crc = zlib.crc32(b"x") & 0x7FFFFFFF
    return HEAD.pack(size, 0xDAA320A7, crc, 0, 0, offset, 0, 0, 0, host, 0, host, 0, 0, 1) + b"x" + b"\x01T" + b"\0\0"


def found(first: int, count: int) -> Command:
    """An answer with messages from an offset on."""
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=first + count, min_offset=0, max_offset=first + count
    )
    body = b"".join(record(first + number) for number in range(count))
    return Command(ResponseCode.SUCCESS, 1, 1, header.encode(), memoryview(body))


def test_an_offset_that_has_moved_is_gone_on_from_at_once() -> None:
    """And one that is not served rests before it is tried again from the same offset."""
    calls = Calls()
    puller_of(calls).pull()
    calls.answers[-1](answer(ResponseCode.PULL_OFFSET_MOVED))
    assert (calls.asked, calls.rests) == ([5, 2], [])

    calls.answers[-1](answer(ResponseCode.SYSTEM_ERROR))
    assert calls.asked == [5, 2]
    assert len(calls.rests) == 1


def test_a_pull_commits_nothing_once_the_lock_of_its_queue_has_run_out() -> None:
    """Another member may have the queue, and have committed more; a queue that needs no lock has none to run out."""
    for lock_s, commits in ((None, True), (1000.0, True), (-0.001, False)):
        calls = Calls()
        puller = puller_of(calls)
        puller.locked_until_ns = None if lock_s is None else calls.runtime.monotonic_ns() + int(lock_s * 1e9)
        puller.pull()

        assert calls.commits == [commits]


def test_a_consumer_waits_longer_than_it_asks_to_be_held() -> None:
    """An answer at the deadline has its way to make still; the settings say how long that may take."""
    delivery: Any = SimpleNamespace(deliver=None, is_busy=None)
    config = ConsumerConfig(group="G")
    consumer = GroupMember(RealRuntime(), "127.0.0.1:1", config, delivery)
    try:
        settings = consumer._settings
        assert settings.timeout_s == config.pull_timeout_s
        assert settings.timeout_s > settings.hold_ms / 1000
    finally:
        cast("Any", consumer)._timer.close()


def test_what_is_consumed_is_seen_to_be_at_once() -> None:
    """Whoever asks for counts or the offset, though it is only noted; no more once the queue is given up."""
    calls = Calls()
    batches: list[Batch] = []
    puller = puller_of(calls, deliver=batches.append)
    puller.pull()
    calls.answers[-1](found(5, 3))
    first, second, third = ((message,) for message in batches[0].messages)
    assert (puller.cached_count, puller.cached_size, puller.offset_done) == (3, 3, 5)
    puller.done(second)
    assert (puller.cached_count, puller.cached_size, puller.offset_done) == (2, 2, 5)
    assert puller.first(9) == [*first, *third]
    puller.done(first)
    puller.drop()
    puller.done(third)
    assert (puller.cached_count, puller.offset_done) == (1, 7)
    assert calls.asked == [5, 8]


def test_a_queue_that_was_full_is_pulled_as_soon_as_there_is_room() -> None:
    """By whoever notes that a message is consumed; while a pull is on its way nobody asks for another."""
    calls = Calls()
    batches: list[Batch] = []
    puller = puller_of(calls, count_max=3, deliver=batches.append)
    puller.pull()
    calls.answers[-1](found(5, 3))
    assert (calls.asked, puller.stopped_by) == ([5], "count")
    puller.done(batches[0].messages[:1])
    assert (calls.asked, puller.stopped_by) == ([5, 8], None)
    puller.done(batches[0].messages[1:])
    assert calls.asked == [5, 8]


def test_nothing_is_lost_that_threads_note_while_answers_come() -> None:
    """Every message that is consumed is taken out once, and counted once."""
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


def test_messages_that_were_not_asked_for_are_not_delivered() -> None:
    """One before the offset, one twice and one out of order: the answer is refused, and asked for again later."""
    for offsets in ([4], [5, 5], [5, 7, 6]):
        calls = Calls()
        batches: list[Batch] = []
        puller_of(calls, deliver=batches.append).pull()
        came = found(5, 3)
        calls.answers[-1](Command(0, 1, 1, came.ext_fields, memoryview(b"".join(map(record, offsets)))))
        assert (batches, calls.asked, len(calls.rests)) == ([], [5], 1)


def test_each_topic_is_counted_by_itself() -> None:
    """Whatever order listeners have told of them in; of a topic that none told of nothing is said."""
    statistics = Statistics(RealRuntime())
    for topic, count, is_consumed in (("A", 1, True), ("B", 2, True), ("B", 3, False), ("A", 4, True), ("A", 5, False)):
        statistics.given(topic, count, count * 1_000_000, is_consumed=is_consumed)
    found = statistics.snapshot()
    counts = {topic: (each.consumed_count, each.later_count, each.consume_ms) for topic, each in found.items()}
    assert counts == {"A": (5, 5, 10.0), "B": (2, 3, 5.0)}
