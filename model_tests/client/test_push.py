"""A push consumer with a misbehaving listener, and how its threads or tasks share a batch."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pytest
from attrs import define, field
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import (
    QUEUE,
    RUNTIME,
    Clients,
    Heard,
    Held,
    awaited,
    consumed,
    lag,
    listening,
    name_server_of,
    polled,
    polling,
    run,
    send,
)
from msgspec.structs import replace

from longpoll_broker.broker import Broker
from longpoll_client import (
    AsyncListener,
    AsyncPushConsumer,
    Listener,
    MessageQueue,
    OutgoingMessage,
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

COUNT: Final = 10
TEN: Final = [b"%d" % number for number in range(COUNT)]


@pytest.fixture
def name_server(broker: Broker) -> str:
    """Start a broker for this test alone, because every test uses the same group; returns its name server."""
    return name_server_of(broker)


def wait_consumed(consumer: Any, topic: str, count: int) -> None:
    wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count >= count)


def test_a_listener_may_reject_and_defer_messages(clients: Clients, topic: str) -> None:
    """A listener rejects or defers a message by an exception or a result; any other result consumes the message."""

    def answer(message: ReceivedMessage) -> object:
        wanted = Reject() if b"bad" in message.body else Retry(delay_s=0.5) if message.attempt == 1 else None
        if b"raised" in message.body and wanted is not None:
            raise wanted
        return wanted or 7

    heard, group = Heard(answer), f"G-{topic}"
    bad, late = [[f"{kind} {how}".encode() for how in ("raised", "returned")] for kind in ("bad", "late")]
    send(clients.name_server, topic, *bad, *late)
    clients.pushing(topic, heard, group=group)
    with polling(clients.name_server, f"%DLQ%{group}", f"dead-{group}") as dead:
        assert sorted(message.body for message in polled(dead, 2)) == bad
    wait_until(lambda: {(body, 1) for body in late} <= set(heard.tries))
    assert sorted(heard.tries) == sorted([*((body, 0) for body in bad + late), *((body, 1) for body in late)])


def test_a_hanging_listener_is_logged_and_its_message_is_redelivered(
    name_server: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After the time limit the message is sent back once, and a close does not wait for the listener for ever."""
    held = Held()
    options: dict[str, Any] = {"consume_timeout_s": 0.2, "close_timeout_s": 0.05}
    with caplog.at_level(logging.WARNING):
        send(name_server, topic, b"x")
        with listening(name_server, topic, held, thread_count=1, **options) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].sent_back_count == 1)
        held.go.set()
    assert "has not answered for 0.2 s" in caplog.text
    assert "left behind" in caplog.text
    assert caplog.text.count("has not answered") == 1


@define(slots=False)
class Watched(RealRuntime):
    """A runtime whose clock stands still, then jumps by half an hour and runs the check for hanging listeners.

    The jump happens at the `look_at`-th reading of the clock, which is read first at the listener's begin and then at
    its end.
    """

    look_at: int = 0
    look: Callable[[], None] = lambda: None
    now_ns: int = field(default=10**12, init=False)
    read_count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        self.monotonic_ns = self.read

    def read(self) -> int:
        self.read_count += 1
        found = self.now_ns
        if self.read_count == self.look_at:
            self.late()
        return found

    def late(self) -> None:
        """Advance the clock by half an hour, and run the check."""
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
    puller: Any = SimpleNamespace(queue=QUEUE, is_open=True, is_dropped=False, done=done.extend)
    message: Any = SimpleNamespace(topic="T", queue_id=0, queue_offset=0)
    listening._consume_again(puller, (message,), 0)
    assert member.statistics.snapshot()["T"].consumed_count == 1 - len(back)
    return done, back


def test_a_listener_that_ends_in_time_does_not_count_as_hanging() -> None:
    runtime = Watched(look_at=2)
    done, back = consumed_at(runtime, lambda _messages: None)
    assert runtime.read_count == 3, "the clock was not read"
    assert (len(done), back) == (1, [])


def test_the_late_result_of_a_hanging_listener_is_ignored() -> None:
    """The message of a hanging listener was already sent back, so the listener's late result is ignored."""
    runtime = Watched()

    def listen(_messages: Sequence[ReceivedMessage]) -> Retry | None:
        runtime.late()
        return Retry()

    done, back = consumed_at(runtime, listen)
    assert done == back
    assert len(back) == 1


def test_a_hanging_orderly_listener_blocks_its_queue(
    name_server: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hanging orderly listener is logged once, and its queue continues in order when it returns."""
    held = Held()
    with caplog.at_level(logging.WARNING):
        send(name_server, topic, b"1", b"2")
        with listening(name_server, topic, held, is_orderly=True, consume_timeout_s=0.1):
            wait_until(lambda: "the queue waits for it" in caplog.text)
            assert held.bodies == [b"1"]
            held.go.set()
            wait_until(lambda: held.bodies == [b"1", b"2"])


def test_a_message_that_cannot_be_sent_back_is_redelivered_locally(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client counts the local delivery as another try, which the broker does not know."""
    monkeypatch.setattr(group_member, "LOCAL_RETRY_S", 0.01)
    done: set[int] = set()

    def refuse(refused: Member, _message: ReceivedMessage, queue: MessageQueue, _level: int) -> None:
        # The stored offset does not move during the tries, because a crash must not lose the message that is tried.
        done.add(refused.assigned_queues.pullers()[queue].offset_done)
        raise RefusedError("CONSUMER_SEND_MSG_BACK", 1, "planted")

    monkeypatch.setattr(Member, "send_back", refuse)
    heard = Heard(lambda message: None if message.attempt == 3 else Retry())
    send(name_server, topic, b"x")
    with listening(name_server, topic, heard) as consumer:
        wait_consumed(consumer, topic, 1)
    assert ([times for _body, times in heard.tries], done) == ([0, 1, 2], {0})


def test_an_orderly_message_is_a_dead_letter_after_its_tries(clients: Clients, broker: Broker, topic: str) -> None:
    """The message blocks its queue for two more tries, and then it becomes a dead letter."""
    heard = Heard(lambda message: Retry() if message.body == b"poison" else None)
    send(clients.name_server, topic, b"poison", b"next")
    clients.pushing(topic, heard, is_orderly=True, suspend_s=0.01, max_attempts=3)
    heard.wait(4)
    assert heard.tries == [(b"poison", 0), (b"poison", 1), (b"poison", 2), (b"next", 0)]
    assert broker.store.visible_end("%DLQ%G", 0) == 1


def test_a_queue_that_another_member_has_locked_is_not_read(clients: Clients, topic: str) -> None:
    """An orderly member waits for another member's lock, although the queue is assigned to it."""
    heard = Heard()
    send(clients.name_server, topic, b"x")
    with ClientInstance(RUNTIME, clients.name_server) as stranger:
        locks = QueueLocks(RUNTIME, "G", lambda: stranger.client_id, is_orderly=True)
        (queue,) = stranger.route(topic).readable
        assert stranger.run(locks.lock([queue])) == ({queue}, set())
        consumer = clients.pushing(topic, heard, is_orderly=True, rebalance_s=0.02)
        assert queue not in consumer.queues
        assert heard.bodies == []
        stranger.run(locks.unlock([queue]))
        assert heard.wait(1) == [b"x"]


@pytest.mark.parametrize(
    ("is_orderly", "has_run_out", "stored"), [(False, False, 3), (True, False, 3), (True, True, 0)]
)
def test_a_member_whose_lock_has_run_out_stores_nothing(
    broker: Broker, clients: Clients, topic: str, *, is_orderly: bool, has_run_out: bool, stored: int
) -> None:
    """Another member may have the queue and a later offset; only orderly members use locks."""
    held = Held()
    send(clients.name_server, topic, b"0", b"1", b"2")
    consumer = clients.pushing(topic, held, is_orderly=is_orderly, consume_count_max=3)

    def puller() -> Puller | None:
        return next((each for queue, each in clients.pullers(consumer).items() if queue.topic == topic), None)

    wait_until(lambda: (found := puller()) is not None and found.cached_count == 3)
    own = puller()
    assert own is not None
    # A pull is sent while the listener waits; later pulls commit no offset.
    wait_until(lambda: own._is_pulling)
    # Without the lock a waiting message is not delivered to the listener.
    held.wait()
    assert held.bodies == [b"0", b"1", b"2"]
    assert (own.locked_until_ns is None) is not is_orderly
    if has_run_out:
        own.locked_until_ns = 1
    held.go.set()
    wait_until(lambda: own.offset_done == 3)
    consumer.close()
    assert broker.offsets.query(topic, "G", 0) == stored


def test_a_listener_may_empty_its_list_of_messages(
    name_server: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:

    def greedy(messages: Sequence[ReceivedMessage]) -> Retry | None:
        assert isinstance(messages, list)
        if messages.pop().body == b"bad":
            raise ZeroDivisionError("the listener's own fault")
        return None

    with caplog.at_level(logging.WARNING):
        send(name_server, topic, b"bad", b"good")
        with listening(name_server, topic, greedy, thread_count=1) as consumer:
            wait_consumed(consumer, topic, 1)
            counts = consumer.statistics[topic]
    assert (counts.later_count, counts.sent_back_count) == (1, 1)
    assert f"{topic} queue 0 offset 0" in caplog.text


def test_a_batch_is_shared_among_threads_or_tasks_whose_listener_waits(clients: Clients, topic: str) -> None:
    """Each message is consumed once, in calls of the configured size, by as many threads or tasks as configured."""
    got: list[list[bytes]] = []
    all_wait, at_once = threading.Barrier(3, timeout=PATIENCE_S), threading.Lock()

    def slow(messages: Sequence[ReceivedMessage]) -> None:
        with at_once:
            got.append([message.body for message in messages])
            is_first = len(got) <= 3
        if is_first:
            all_wait.wait()

    # All threads and tasks wait by then, so one pull returns the whole batch.
    consumer = clients.pushing(topic, slow, thread_count=3, consume_count_max=3)
    clients.producer().send_batch(topic, [OutgoingMessage(body) for body in TEN])
    wait_consumed(consumer, topic, COUNT)
    assert sorted(body for lot in got for body in lot) == TEN
    assert max(map(len, got)) == 3


def test_an_internal_error_ends_neither_thread_nor_task(
    clients: Clients, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an internal error another thread, or the next task, consumes the remaining messages."""
    kind: Any = AsyncPushConsumer if clients.is_loop else ConcurrentConsumeService
    honest = kind._consume
    failures = [ZeroDivisionError("planted")]

    def consume(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return honest(*arguments)

    monkeypatch.setattr(kind, "_consume", consume)
    send(clients.name_server, topic, *TEN)
    consumer = clients.pushing(topic, consumed, thread_count=1)
    wait_until(lambda: failures == [])
    send(clients.name_server, topic, b"next")
    wait_consumed(consumer, topic, 1 if clients.is_loop else COUNT)
    assert failures == []


class Given:
    """A consumer with running tasks, and a queue with ten pulled messages."""

    def __init__(self, listener: AsyncListener, task_count: int = 4, lot_size: int = 1) -> None:
        config = MemberConfig(group="G", consume_count_max=lot_size)
        self.consumer = AsyncPushConsumer("127.0.0.1:1", topics=(), listener=listener, **member_options(config))
        self.tasks = [asyncio.create_task(self.consumer._work()) for _number in range(task_count)]
        self.puller = self.queue(QUEUE)

    def queue(self, queue: MessageQueue) -> Puller:
        """Return the puller of a queue."""
        subscription = SubscriptionData(topic="T", sub_string="*")
        puller: Puller = self.consumer._member._make_puller(queue, subscription, 0, False)
        puller._is_pulling = True  # A pull is in progress, so no other pull begins.
        return puller

    def deliver(self, puller: Puller | None = None) -> None:
        puller = puller or self.puller
        puller._is_pulling = True
        ten = [
            ReceivedMessage("T", 0, offset, b"%d" % offset, {}, "", 0, "", 0, "", 0, 0, 0, 0) for offset in range(COUNT)
        ]
        puller._take(tuple(ten), COUNT, 0, is_moved=False)
        puller._is_pulling = True

    async def consume(self) -> None:
        self.deliver()
        await turned(lambda: self.puller.offset_done == COUNT)


def offsets(messages: Sequence[ReceivedMessage]) -> list[int]:
    return [each.queue_offset for each in messages]


async def turned(is_so: Callable[[], bool]) -> None:
    for _turn in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it is not so after a thousand turns")


def run_given(story: Callable[[], Awaitable[Given]]) -> None:
    async def ended() -> None:
        given = await story()
        for task in given.tasks:
            task.cancel()
        await asyncio.gather(*given.tasks, return_exceptions=True)

    run(ended)


@pytest.mark.parametrize("last", [0, COUNT - 1])
def test_progress_is_visible_to_a_task_that_the_listener_wakes(last: int) -> None:

    async def story() -> Given:
        came = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            if offsets(messages) == [last]:
                came.set()

        given = Given(listen)
        given.deliver()
        await came.wait()
        assert given.consumer.statistics["T"].consumed_count == COUNT
        assert given.puller.offset_done == COUNT
        return given

    run_given(story)


def test_a_revoked_queue_is_released_with_its_last_offset(monkeypatch: pytest.MonkeyPatch) -> None:

    async def story() -> Given:
        released: list[int] = []
        given = Given(lambda messages: given.puller.drop() if offsets(messages) == [3] else None, 1)
        monkeypatch.setattr(given.consumer._member, "release_soon", lambda puller: released.append(puller.offset_done))
        given.deliver()
        await turned(lambda: bool(released))
        assert set(released) == {4}
        return given

    run_given(story)


def test_one_task_with_two_queues_reports_progress_to_each_queue() -> None:

    async def story() -> Given:
        given = Given(awaited, task_count=1)
        pullers = [given.puller, given.queue(replace(QUEUE, queue_id=1))]
        for puller in pullers:
            given.deliver(puller)
        await turned(lambda: [puller.offset_done for puller in pullers] == [COUNT, COUNT])
        assert given.consumer.statistics["T"].consumed_count == 2 * COUNT
        return given

    run_given(story)


def test_the_progress_of_a_slow_listener_is_stored_at_once() -> None:
    """The client stores progress within a batch, because a crash would deliver the whole batch again."""

    async def story() -> Given:
        seen: list[int] = []

        async def listen(_messages: Sequence[ReceivedMessage]) -> None:
            seen.append(given.puller.offset_done)
            await asyncio.sleep(0)

        given = Given(listen, task_count=1)
        await given.consume()
        assert seen == list(range(COUNT))
        return given

    run_given(story)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_paused_or_revoked_queue_keeps_the_rest_of_its_batch(is_dropped: bool) -> None:
    """Messages in the listener stay pending, and after a resume the rest of the batch comes once."""

    async def story() -> Given:
        got: list[int] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            got.extend(offsets(messages))
            if got == [0, 1, 2]:
                (given.puller.drop if is_dropped else given.puller.pause)()

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
        return given

    run_given(story)


THREADS = 6


def workers_of(count: int) -> Workers:
    workers = Workers(RealRuntime(), "group", count)
    workers.start()
    return workers


def test_a_task_is_started_while_others_hang() -> None:
    """Each new task wakes another thread while others hang."""
    begun, release, done = threading.Semaphore(0), threading.Event(), threading.Event()

    def hang() -> None:
        begun.release()
        release.wait(PATIENCE_S)

    workers = workers_of(3)
    for _number in range(2):
        workers.submit(hang)
        assert begun.acquire(timeout=PATIENCE_S)
    workers.submit(done.set)
    assert done.wait(PATIENCE_S)
    release.set()
    workers.stop(PATIENCE_S, lambda: None)


def test_every_task_runs_once(caplog: pytest.LogCaptureFixture) -> None:
    """No wake-up is lost between threads that take tasks and a thread that adds tasks."""
    ran: list[int] = []
    ended, workers = threading.Event(), workers_of(THREADS)
    for first in range(0, 4000, 100):
        workers.submit(*(partial(ran.append, number) for number in range(first, first + 100)))
    wait_until(lambda: len(ran) == 4000)
    workers.stop(PATIENCE_S, ended.set)
    assert ended.is_set()
    assert not any(thread.is_alive() for thread in workers._threads)
    assert not caplog.records
    assert sorted(ran) == list(range(4000))


def test_a_topic_is_unsubscribed_after_its_last_message_was_consumed(clients: Clients, topic: str) -> None:
    """The listener had the message when its topic was unsubscribed, and the message does not come again."""
    held = Held()
    send(clients.name_server, topic, b"1")
    consumer = clients.pushing(topic, held, persist_s=3600.0)
    held.wait()
    consumer.unsubscribe(topic)
    wait_until(lambda: consumer.queues == ())
    consumer.subscribe(topic)
    held.go.set()
    wait_until(lambda: lag(clients.name_server, topic) == 0)
    send(clients.name_server, topic, b"2")
    wait_until(lambda: b"2" in held.bodies)
    consumer.close()
    assert held.bodies == [b"1", b"2"]


class Late(Workers):
    """Workers that are stopped when a thread has just taken a task."""

    def _take(self, life: int) -> Callable[[], None]:
        task = super()._take(life)
        self.is_stopping = True
        return task


def test_a_task_that_was_taken_before_the_stop_is_run() -> None:
    """If the task were dropped, later messages of its queue that are consumed already would be delivered again."""
    workers, ran = Late(RealRuntime(), "group", 1), threading.Event()
    workers.submit(ran.set)
    workers.start()
    assert ran.wait(PATIENCE_S)


def test_threads_take_messages_in_order_and_consume_all_that_they_took() -> None:
    """If they did not, messages that were consumed after an unconsumed one would be delivered again after a close."""
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
