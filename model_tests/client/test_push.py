"""A push consumer whose listener misbehaves, and how its threads or tasks share a batch."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from attrs import define, field
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import (
    QUEUE,
    RUNTIME,
    Clients,
    awaited,
    consumed,
    from_first,
    lag,
    listening,
    name_server_of,
    polled,
    polling,
    run,
    send,
)

from longpoll_broker.broker import Broker
from longpoll_client import (
    AsyncListener,
    AsyncPushConsumer,
    Listener,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    RefusedError,
    Reject,
    Retry,
)
from longpoll_client.consume import group_member
from longpoll_client.consume.listener import ConcurrentConsumeService, Workers
from longpoll_client.consume.member import Member
from longpoll_client.consume.membership import QueueLocks
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.statistics import Statistics
from longpoll_client.instance import ClientInstance
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import SubscriptionData
from longpoll_runtime.real import RealRuntime


@pytest.fixture
def name_server(broker: Broker) -> str:
    """That of a broker of the test's own: the group has one name in every test."""
    return name_server_of(broker)


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_listener_rejects_a_message_and_puts_one_off(clients: Clients, topic: str, is_raised: bool) -> None:
    """Whether it raises or returns what it wants; whatever else it returns, the message is consumed."""
    seen: list[tuple[bytes, int]] = []

    def listen(messages: Sequence[ReceivedMessage]) -> object:
        (message,) = messages
        seen.append((message.body, message.attempt))
        answer = Reject() if message.body == b"bad" else Retry(delay_s=0.5) if message.attempt == 1 else None
        if is_raised and answer is not None:
            raise answer
        return answer or 7

    group = f"G-{topic}"
    send(clients.name_server, topic, b"bad", b"late")
    consumer = clients.push(from_first(group), listen)
    consumer.subscribe(topic)
    consumer.start()
    with polling(clients.name_server, f"%DLQ%{group}", f"dead-{group}") as dead:
        assert [message.body for message in polled(dead, 1)] == [b"bad"]
    wait_until(lambda: (b"late", 2) in seen)
    assert sorted(seen) == [(b"bad", 1), (b"late", 1), (b"late", 2)]


def test_a_listener_that_hangs_is_told_of_and_its_message_comes_again(
    name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After its time the message is sent back once, and closing does not wait for ever."""
    going_on = threading.Event()

    def hang(_messages: Sequence[ReceivedMessage]) -> Retry | None:
        going_on.wait(PATIENCE_S)
        return None

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"x")
        options: dict[str, Any] = {"consume_timeout_s": 0.2, "close_timeout_s": 0.05}
        with listening(name_server, topic, hang, thread_count=1, **options) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].sent_back_count == 1)
        going_on.set()
    assert "has not answered for 0.2 s" in caplog.text
    assert "left behind" in caplog.text
    assert caplog.text.count("has not answered") == 1


@define(slots=False)
class Watched(RealRuntime):
    """A runtime whose clock stands still, until the check for hanging listeners sees half an hour more.

    The check happens at the `look_at`-th clock reading: first the listener's begin, second its end.
    """

    look_at: int = 0
    look: Callable[[], None] = lambda: None
    now_ns: int = field(default=10**12, init=False)
    read_count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        self.monotonic_ns = self.read

    def read(self) -> int:
        """The time."""
        self.read_count += 1
        found = self.now_ns
        if self.read_count == self.look_at:
            self.late()
        return found

    def late(self) -> None:
        """Let half an hour pass, and run the check."""
        self.now_ns += 1800 * 10**9
        self.look()


def consumed_at(runtime: Watched, listener: Listener) -> tuple[list[object], list[object]]:
    """Give a listener one message; returns the consumed offset and the messages sent back."""
    listening = ConcurrentConsumeService(runtime, MemberConfig(group="G"), listener)
    runtime.look = listening._look_for_hanging
    done: list[object] = []
    back: list[object] = []

    def put_off(puller: Any, messages: Sequence[object], _level: int, _again: object) -> None:
        puller.done(messages)
        back.extend(messages)

    member: Any = SimpleNamespace(
        retry_topic="%RETRY%G", statistics=Statistics(runtime), put_off=put_off, run=lambda _steps: None
    )
    listening.belong_to(member)
    puller: Any = SimpleNamespace(
        queue=MessageQueue(topic="T", broker_name="b", queue_id=0), is_open=True, is_dropped=False, done=done.extend
    )
    message: Any = SimpleNamespace(topic="T", queue_id=0, queue_offset=0)
    listening._consume_again(puller, (message,), 0)
    assert member.statistics.snapshot()["T"].consumed_count == 1 - len(back)
    return done, back


def test_a_call_that_has_ended_in_time_is_not_found_to_hang() -> None:
    runtime = Watched(look_at=2)
    done, back = consumed_at(runtime, lambda _messages: None)
    assert runtime.read_count == 3, "nobody has looked"
    assert (len(done), back) == (1, [])


def test_the_answer_of_one_that_was_found_to_hang_is_of_no_account() -> None:
    """Its message was sent back once, and is not put off once more."""
    runtime = Watched()

    def listen(_messages: Sequence[ReceivedMessage]) -> Retry | None:
        runtime.late()
        return Retry()

    done, back = consumed_at(runtime, listen)
    assert done == back
    assert len(back) == 1


def test_an_orderly_listener_that_hangs_holds_its_queue_up(name_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, nothing overtakes, and everything comes when the listener returns."""
    going_on = threading.Event()
    seen: list[bytes] = []

    def hang(messages: Sequence[ReceivedMessage]) -> Retry | None:
        assert going_on.wait(PATIENCE_S)
        seen.extend(message.body for message in messages)
        return None

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"1", b"2")
        with listening(name_server, topic, hang, is_orderly=True, consume_timeout_s=0.1):
            wait_until(lambda: "the queue waits for it" in caplog.text)
            assert seen == []
            going_on.set()
            wait_until(lambda: seen == [b"1", b"2"])


def test_what_cannot_be_sent_back_is_given_again_from_here(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one more try counted, although the broker knows nothing of it."""
    monkeypatch.setattr(group_member, "LOCAL_RETRY_S", 0.01)

    tries: list[int] = []
    done: set[int] = set()

    def refuse(refused: Member, _message: ReceivedMessage, queue: MessageQueue, _level: int) -> None:
        # That of the tries before: a crash must not lose what waits here.
        done.add(refused.assigned_queues.pullers()[queue].offset_done)
        raise RefusedError("CONSUMER_SEND_MSG_BACK", 1, "planted")

    monkeypatch.setattr(Member, "send_back", refuse)

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        tries.append(messages[0].reconsume_times)
        return None if len(tries) == 3 else Retry()

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, b"x")
        with listening(name_server, topic, listen) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 1)
    assert (tries, done) == ([0, 1, 2], {0})


def test_an_orderly_message_is_a_dead_letter_after_its_tries(clients: Clients, broker: Broker, topic: str) -> None:
    """It holds its queue up for two more tries and then lets the next one pass."""
    seen: list[tuple[bytes, int]] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        (message,) = messages
        seen.append((message.body, message.reconsume_times))
        return Retry() if message.body == b"poison" else None

    send(clients.name_server, topic, b"poison", b"next")
    consumer = clients.push(from_first(suspend_s=0.01, max_attempts=3), listen, is_orderly=True)
    consumer.subscribe(topic)
    consumer.start()
    wait_until(lambda: len(seen) == 4)
    assert seen == [(b"poison", 0), (b"poison", 1), (b"poison", 2), (b"next", 0)]
    assert broker.store.visible_end("%DLQ%G", 0) == 1


def test_a_queue_that_another_member_has_locked_is_left_alone(clients: Clients, topic: str) -> None:
    """An orderly member waits for the lock of one that has the queue, although its share says that it is its own."""
    seen: list[bytes] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        seen.extend(message.body for message in messages)
        return None

    send(clients.name_server, topic, b"x")
    with ClientInstance(RUNTIME, clients.name_server) as stranger:
        locks = QueueLocks(RUNTIME, "G", lambda: stranger.client_id, is_orderly=True)
        (queue,) = stranger.route(topic).readable
        assert stranger.run(locks.lock([queue])) == ({queue}, set())
        consumer = clients.push(from_first(rebalance_s=0.02), listen, is_orderly=True)
        consumer.subscribe(topic)
        consumer.start()
        assert queue not in consumer.queues
        assert seen == []
        stranger.run(locks.unlock([queue]))
        wait_until(lambda: seen == [b"x"])


@pytest.mark.parametrize(
    ("is_orderly", "has_run_out", "stored"), [(False, False, 3), (True, False, 3), (True, True, 0)]
)
def test_a_member_whose_lock_has_run_out_stores_nothing(
    broker: Broker, clients: Clients, topic: str, *, is_orderly: bool, has_run_out: bool, stored: int
) -> None:
    """Not when it is closed either: another one may have the queue, and be further. Only orderly members lock."""
    has_them, goes_on = threading.Event(), threading.Event()

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        assert len(messages) == 3
        has_them.set()
        assert goes_on.wait(PATIENCE_S)
        return None

    send(clients.name_server, topic, b"0", b"1", b"2")
    consumer = clients.push(from_first(consume_count_max=3), listen, is_orderly=is_orderly)
    consumer.subscribe(topic)
    consumer.start()

    def puller() -> Puller | None:
        return next((each for queue, each in clients.pullers(consumer).items() if queue.topic == topic), None)

    wait_until(lambda: (found := puller()) is not None and found.cached_count == 3)
    own = puller()
    assert own is not None
    # From now on its pulls have nothing to commit: the next one is on its way while the listener waits.
    wait_until(lambda: own._is_pulling)
    # Without its lock nothing is given to a listener that has nothing yet.
    assert has_them.wait(PATIENCE_S)
    assert (own.locked_until_ns is None) is not is_orderly
    if has_run_out:
        own.locked_until_ns = 1
    goes_on.set()
    wait_until(lambda: own.offset_done == 3)
    consumer.close()
    assert broker.offsets.query(topic, "G", 0) == stored


def _fail(broker_name: str, error: Exception) -> None:
    pytest.fail(f"{broker_name}: {error}")


def test_a_listener_may_empty_the_list_that_it_is_given(name_server: str, caplog: pytest.LogCaptureFixture) -> None:

    def greedy(messages: Sequence[ReceivedMessage]) -> Retry | None:
        assert isinstance(messages, list)
        taken = messages.pop()
        if taken.body == b"bad":
            raise ZeroDivisionError("the listener's own fault")
        return None

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"bad", b"good")
        with listening(name_server, topic, greedy, thread_count=1) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 1)
            counts = consumer.statistics[topic]
    assert (counts.later_count, counts.sent_back_count) == (1, 1)
    assert f"{topic} queue 0 offset 0" in caplog.text


def test_a_batch_is_shared_among_threads_whose_listener_waits(name_server: str) -> None:
    """Each message once, in lots of the size that was asked for, as many at a time as there are threads."""
    got: list[list[bytes]] = []
    all_wait, at_once = threading.Barrier(3, timeout=PATIENCE_S), threading.Lock()

    def slow(messages: Sequence[ReceivedMessage]) -> Retry | None:
        with at_once:
            got.append([message.body for message in messages])
            is_first = len(got) <= 3
        if is_first:
            all_wait.wait()
        return None

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, *(b"%d" % number for number in range(10)))
        with listening(name_server, topic, slow, thread_count=3, consume_count_max=3) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 10)
    assert sorted(body for lot in got for body in lot) == [b"%d" % number for number in range(10)]
    assert max(map(len, got)) == 3


def test_a_batch_ends_with_its_consumer(name_server: str) -> None:
    """A close waits for the listener's messages, not for everything pulled."""
    got: list[bytes] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        closing.start()
        got.extend(message.body for message in messages)
        wait_until(lambda: workers.is_stopping)
        return None

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, *(b"%d" % number for number in range(10)))
        config = MemberConfig(group="G", start_at="first", thread_count=1)
        consumer = PushConsumer(name_server, topics=(), listener=listen, **member_options(config))
        assert isinstance(consumer._service, ConcurrentConsumeService)
        workers = consumer._service._workers
        closing = threading.Thread(target=consumer.close)
        consumer.subscribe(topic)
        consumer.start()
        wait_until(lambda: bool(got))
        closing.join(PATIENCE_S)
    assert got == [b"0"]


def test_a_fault_of_ours_ends_neither_thread_nor_task(
    clients: Clients, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On threads another one gives the rest of the batch; on a loop the next batch comes."""
    kind: Any = AsyncPushConsumer if clients.is_loop else ConcurrentConsumeService
    honest = kind._consume
    failures = [ZeroDivisionError("planted")]

    def consume(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return honest(*arguments)

    monkeypatch.setattr(kind, "_consume", consume)
    send(clients.name_server, topic, *(b"%d" % number for number in range(10)))
    consumer = clients.push(from_first(thread_count=1), consumed)
    consumer.subscribe(topic)
    consumer.start()
    wait_until(lambda: failures == [])
    send(clients.name_server, topic, b"next")
    count = 1 if clients.is_loop else COUNT
    wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count >= count)
    assert failures == []


COUNT = 10


def numbered(offset: int) -> ReceivedMessage:
    """With its offset as its body."""
    return ReceivedMessage("T", 0, offset, b"%d" % offset, {}, "", 0, "", 0, "", 0, 0, 0, 0)


class Given:
    """A consumer whose tasks run, and a queue of it with ten messages that were pulled."""

    def __init__(self, listener: AsyncListener, task_count: int = 4, lot_size: int = 1) -> None:
        config = MemberConfig(group="G", consume_count_max=lot_size)
        self.consumer = AsyncPushConsumer("127.0.0.1:1", topics=(), listener=listener, **member_options(config))
        self.tasks = [asyncio.create_task(self.consumer._work()) for _number in range(task_count)]
        self.puller = self.queue(QUEUE)

    def queue(self, queue: MessageQueue) -> Puller:
        """The puller of a queue."""
        subscription = SubscriptionData(topic="T", sub_string="*")
        puller: Puller = self.consumer._member._make_puller(queue, subscription, 0, False)
        puller._is_pulling = True  # a pull is on its way, so none is asked for
        return puller

    def deliver(self, puller: Puller | None = None) -> None:
        """As a pull does."""
        puller = puller or self.puller
        puller._is_pulling = True
        puller._take(tuple(numbered(offset) for offset in range(COUNT)), COUNT, 0, is_moved=False)
        puller._is_pulling = True

    async def end(self) -> None:
        """End the tasks."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def offsets(messages: Sequence[ReceivedMessage]) -> list[int]:
    """Of messages."""
    return [each.queue_offset for each in messages]


async def turned(is_so: Callable[[], bool]) -> None:
    """Have the loop turn until it is so."""
    for _turn in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it is not so after a thousand turns")


def test_who_is_woken_by_the_listener_sees_what_it_has_consumed() -> None:

    async def story() -> None:
        for last in (0, COUNT - 1):
            came = asyncio.Event()

            async def listen(
                messages: Sequence[ReceivedMessage], last: int = last, came: asyncio.Event = came
            ) -> Retry | None:
                if offsets(messages) == [last]:
                    came.set()
                return None

            given = Given(listen)
            given.deliver()
            await came.wait()
            assert given.consumer.statistics["T"].consumed_count == COUNT
            assert given.puller.offset_done == COUNT
            await given.end()

    run(story)


def test_a_queue_that_is_left_is_released_with_its_last_offset(monkeypatch: pytest.MonkeyPatch) -> None:

    async def story() -> None:
        released: list[int] = []
        given = Given(lambda messages: given.puller.drop() if offsets(messages) == [3] else None, 1)
        monkeypatch.setattr(given.consumer._member, "release_soon", lambda puller: released.append(puller.offset_done))
        given.deliver()
        await turned(lambda: bool(released))
        assert set(released) == {4}
        await given.end()

    run(story)


def test_each_queue_is_told_of_its_own_where_one_task_has_both_in_a_turn() -> None:

    async def story() -> None:
        given = Given(awaited, task_count=1)
        pullers = [given.puller, given.queue(MessageQueue(topic="T", broker_name="b", queue_id=1))]
        for puller in pullers:
            given.deliver(puller)
        await turned(lambda: [puller.offset_done for puller in pullers] == [COUNT, COUNT])
        assert given.consumer.statistics["T"].consumed_count == 2 * COUNT
        await given.end()

    run(story)


def test_what_a_slow_listener_has_consumed_is_told_at_once() -> None:
    """And not when the whole batch is done: a crash would bring all of it again."""

    async def story() -> None:
        seen: list[int] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            seen.append(given.puller.offset_done)
            await asyncio.sleep(0)
            return None

        given = Given(listen, task_count=1)
        given.deliver()
        await turned(lambda: given.puller.offset_done == COUNT)
        assert seen == list(range(COUNT))
        await given.end()

    run(story)


def test_a_batch_is_shared_among_tasks_whose_listener_waits() -> None:
    """Each numbered once, as many at a time as there are tasks, in lots of the size that was asked for."""

    async def story() -> None:
        got: list[list[int]] = []
        at_once, go_on = 0, asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            nonlocal at_once
            at_once += 1
            got.append(offsets(messages))
            await go_on.wait()
            return None

        given = Given(listen, task_count=4, lot_size=3)
        await asyncio.sleep(0)
        given.deliver()
        await turned(lambda: at_once == 4)
        go_on.set()
        await turned(lambda: given.puller.offset_done == COUNT)
        assert sorted(got) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        await given.end()

    run(story)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_queue_that_is_paused_or_given_up_keeps_the_rest_of_its_batch(is_dropped: bool) -> None:
    """The listener's messages stay pending; after a resume the rest comes once."""

    async def story() -> None:
        got: list[int] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            got.extend(offsets(messages))
            if got == [0, 1, 2]:
                (given.puller.drop if is_dropped else given.puller.pause)()
            return None

        given = Given(listen)
        given.deliver()
        for _turn in range(10):
            await asyncio.sleep(0)
        assert got == [0, 1, 2]
        if not is_dropped:
            assert given.puller.offset_done == 3
            given.puller.resume()
            await turned(lambda: given.puller.offset_done == COUNT)
            assert got == list(range(COUNT))
        await given.end()

    run(story)


THREADS = 6


def test_as_many_tasks_run_at_once_as_there_are_threads() -> None:
    """Each thread that takes a task wakes the next while there are more."""
    met = threading.Barrier(THREADS + 1)

    def meet() -> None:
        met.wait(PATIENCE_S)

    workers = Workers(RealRuntime(), "group", THREADS)
    workers.start()
    for _round in range(3):
        # None of them ends before all have begun, so each thread that takes one has to wake the next.
        workers.submit(*[meet] * THREADS)
        assert met.wait(PATIENCE_S) <= THREADS
    workers.stop(PATIENCE_S, lambda: None)


def test_a_task_is_begun_while_others_hang() -> None:
    """Each task that comes while others hang wakes one more thread."""
    begun, release, done = threading.Semaphore(0), threading.Event(), threading.Event()

    def hang() -> None:
        begun.release()
        release.wait(PATIENCE_S)

    workers = Workers(RealRuntime(), "group", 3)
    workers.start()
    for _number in range(2):
        workers.submit(hang)
        assert begun.acquire(timeout=PATIENCE_S)
    workers.submit(done.set)
    assert done.wait(PATIENCE_S)
    release.set()
    workers.stop(PATIENCE_S, lambda: None)


def test_every_task_is_run_once_however_quick(caplog: pytest.LogCaptureFixture) -> None:
    """No wake-up is lost between threads that take tasks and one that gives them."""
    ran: list[int] = []
    all_ran = threading.Event()
    workers = Workers(RealRuntime(), "group", THREADS)
    workers.start()

    def run(number: int) -> None:
        ran.append(number)
        if len(ran) == 4000:
            all_ran.set()

    for first in range(0, 4000, 100):
        workers.submit(*(partial(run, number) for number in range(first, first + 100)))
    assert all_ran.wait(PATIENCE_S)
    ended = threading.Event()
    workers.stop(PATIENCE_S, ended.set)
    assert ended.is_set()
    assert not any(thread.is_alive() for thread in workers._threads)
    assert not caplog.records
    assert sorted(ran) == list(range(4000))


def test_a_topic_is_left_after_its_last_message_was_consumed(clients: Clients, topic: str) -> None:
    """The listener had the message when the topic was unsubscribed: it does not come again."""
    begun, go, seen = threading.Event(), threading.Event(), list[bytes]()

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        seen.extend(message.body for message in messages)
        begun.set()
        assert go.wait(PATIENCE_S)

    send(clients.name_server, topic, b"1")
    consumer = clients.push(from_first(persist_s=3600.0), listen)
    consumer.subscribe(topic)
    consumer.start()
    assert begun.wait(PATIENCE_S)
    consumer.unsubscribe(topic)
    wait_until(lambda: consumer.queues == ())
    consumer.subscribe(topic)
    go.set()
    wait_until(lambda: lag(clients.name_server, topic) == 0)
    send(clients.name_server, topic, b"2")
    wait_until(lambda: b"2" in seen)
    consumer.close()
    assert seen == [b"1", b"2"]


class Late(Workers):
    """Workers that are stopped when a thread has just taken a task."""

    def _take(self, life: int) -> Callable[[], None]:
        """Take it, and stop."""
        task = super()._take(life)
        self.is_stopping = True
        return task


def test_what_a_thread_took_before_the_stop_is_consumed() -> None:
    """Later messages of its queue may be consumed by then, and would come twice."""
    workers, ran = Late(RealRuntime(), "group", 1), threading.Event()
    workers.submit(ran.set)
    workers.start()
    assert ran.wait(PATIENCE_S)


def test_threads_take_messages_in_order_and_consume_what_they_took() -> None:
    """Otherwise a close repeats the messages that were consumed after one that was not."""
    begun: list[int] = []
    both, go, ended = threading.Event(), threading.Event(), threading.Event()
    messages = [mock.Mock(queue_offset=offset) for offset in range(8)]
    puller = mock.Mock(queue=QUEUE, is_open=True)

    def listen(given: Sequence[ReceivedMessage]) -> None:
        begun.append(given[0].queue_offset)
        if len(begun) == 2:
            both.set()
        go.wait(PATIENCE_S)

    service = ConcurrentConsumeService(RealRuntime(), MemberConfig(group="G", thread_count=2), listen)
    service.belong_to(mock.Mock(retry_topic="%RETRY%G"))
    for first in (0, 4):
        service.deliver(Batch(puller, tuple(messages[first : first + 4])))
    service.start()
    assert both.wait(PATIENCE_S)
    assert sorted(begun) == [0, 1]
    closing = threading.Thread(target=service.stop, args=(ended.set,))
    closing.start()
    wait_until(lambda: service._workers.is_stopping)
    go.set()
    assert ended.wait(PATIENCE_S)
    closing.join()
    assert sorted(begun) == [0, 1]
    assert puller.done.call_count == 2

    class Lots(deque[Any]):
        """Messages of which one is taken just before the stop."""

        def popleft(self) -> Any:
            service._workers.is_stopping = True
            return super().popleft()

    service._workers.is_stopping = False
    service._share(puller, Lots(zip(messages[2:])))
    assert begun[2:] == [2]
