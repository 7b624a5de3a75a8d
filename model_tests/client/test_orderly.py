"""Orderly consumers: order while members come and go, locks, and queues that leave a listener and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final
from unittest import mock

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic, share_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import RUNTIME, Loop, OnLoop, fill, from_first, lag, run

from longpoll_client import AsyncPushConsumer, MessageQueue, Producer, PushConsumer, ReceivedMessage, Reject, Retry
from longpoll_client.consume.listener import OrderlyQueues
from longpoll_client.consume.membership import QueueLocks
from longpoll_client.consume.offsets import RemoteOffsets
from longpoll_client.consume.puller import Batch
from longpoll_client.consume.rebalance import Rebalancer, RevokedQueues
from longpoll_client.link.steps import Ask, Call, Question, Together
from longpoll_client.link.steps import run as steps_run
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import LockBatchRequest
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command

MESSAGE: Final = ReceivedMessage("T", 0, 0, b"", {}, "id", 0, "", 0, "", 0, 0, 0, 0)
LOOKS: Final = 5
"""So often queues are shared anew until what is to happen would have happened."""


class Share:
    """How many queues of its topic a member is given, and how often it has asked."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.looks = 0

    def __call__(
        self, _client_id: str, _members: Iterable[str], queues: Iterable[MessageQueue]
    ) -> tuple[MessageQueue, ...]:
        """As `ConsumerConfig.allocate`."""
        found = tuple(queues)
        if found[0].topic.startswith("%RETRY%"):
            return ()
        self.looks += 1
        return found[: self.count]


class Held:
    """A listener that holds the first message back until `go`, and what it saw of itself."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.bodies: list[bytes] = []
        self.running = self.running_max = 0

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """On threads."""
        self._begin(messages)
        assert self.go.wait(PATIENCE_S)
        self.running -= 1
        return None

    async def listen_on_loop(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """The same as a coroutine."""
        self._begin(messages)
        waiting = asyncio.ensure_future(asyncio.to_thread(self.go.wait, PATIENCE_S))
        while not waiting.done():
            # It does not end when it is cancelled either, as one on a thread.
            with suppress(asyncio.CancelledError):
                await asyncio.shield(waiting)
        assert waiting.result()
        self.running -= 1
        return None

    def _begin(self, messages: Sequence[ReceivedMessage]) -> None:
        self.bodies.append(messages[0].body)
        self.running += 1
        self.running_max = max(self.running_max, self.running)


def config(group: str, share: Share, close_timeout_s: float = PATIENCE_S) -> MemberConfig:
    """A configuration that rebalances often."""
    return MemberConfig(
        group=group, start_at="first", rebalance_s=0.02, thread_count=2, close_timeout_s=close_timeout_s, allocate=share
    )


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Ends once what was left behind on it has ended."""
    with Loop() as made:
        yield made


def consumer_of(  # noqa: PLR0917 - tests differ in each of them
    kind: str,
    loop: Loop,
    name_server: str,
    share: Share,
    held: Held,
    topic: str,
    *,
    close_timeout_s: float = PATIENCE_S,
) -> PushConsumer | OnLoop:
    """One of the topic's group."""
    settings = config(f"in-order-{topic}", share, close_timeout_s)
    consumer = (
        OnLoop(
            loop,
            AsyncPushConsumer(
                name_server, topics=(), listener=held.listen_on_loop, **member_options(settings), orderly=True
            ),
        )
        if kind == "loop"
        else PushConsumer(name_server, topics=(), listener=held.listen, **member_options(settings), orderly=True)
    )
    consumer.subscribe(topic)
    return consumer


each_kind = pytest.mark.parametrize("kind", ["threads", "loop"])


def own(consumer: PushConsumer | OnLoop, topic: str) -> int:
    """How many queues of the topic it has."""
    return sum(queue.topic == topic for queue in consumer.queues)


@each_kind
def test_a_queue_that_comes_back_waits_for_who_has_its_messages(
    name_server: str, topic: str, loop: Loop, kind: str
) -> None:
    """A second listener must not get the first one's message; and what the first one consumed does not come again."""
    share, held = Share(1), Held()
    with Producer(name_server) as producer:
        for body in (b"1", b"2", b"3"):
            producer.send(topic, body)
    consumer = consumer_of(kind, loop, name_server, share, held, topic)
    consumer.start()
    try:
        wait_until(lambda: held.running == 1)
        share.count = 0
        wait_until(lambda: own(consumer, topic) == 0)
        share.count, looks = 1, share.looks
        wait_until(lambda: share.looks >= looks + LOOKS or held.running > 1)
        assert own(consumer, topic) == 0
        held.go.set()
        wait_until(lambda: held.bodies == [b"1", b"2", b"3"])
        assert held.running_max == 1
    finally:
        held.go.set()
        consumer.close()


@each_kind
def test_a_member_that_closes_keeps_no_queue_that_it_could_not_begin(name_server: str, loop: Loop, kind: str) -> None:
    """It was given a second one while it waited for its listener: the next member had it a minute later."""
    with new_topic(name_server, 2) as topic:
        share, held = Share(1), Held()
        with Producer(name_server) as producer:
            producer.send(topic, b"1", queue_id=0)
        consumer = consumer_of(kind, loop, name_server, share, held, topic)
        consumer.start()
        closing = threading.Thread(target=consumer.close)
        try:
            wait_until(lambda: held.running == 1)
            closing.start()
            wait_until(lambda: is_closed(consumer))
            share.count, looks = 2, share.looks
            wait_until(lambda: share.looks >= looks + LOOKS)
        finally:
            held.go.set()
            closing.join()
        following = consumer_of(kind, loop, name_server, Share(2), held, topic)
        following.start()
        try:
            wait_until(lambda: own(following, topic) == 2)
            assert held.bodies == [b"1"]
        finally:
            following.close()


def is_closed(consumer: PushConsumer | OnLoop) -> bool:
    """Whether it was closed."""
    found = consumer.client if isinstance(consumer, OnLoop) else consumer
    return bool(found._member.lifecycle.is_closed)


@each_kind
@pytest.mark.parametrize("is_given_up", [False, True], ids=["its-own", "given-up"])
def test_a_member_that_closes_keeps_what_a_listener_has_that_it_leaves_behind(
    name_server: str, topic: str, loop: Loop, kind: str, is_given_up: bool
) -> None:
    """Otherwise the next member's listener would get the same message at the same time."""
    share, held, following = Share(1), Held(), Held()
    with Producer(name_server) as producer:
        producer.send(topic, b"1")
    consumer = consumer_of(kind, loop, name_server, share, held, topic, close_timeout_s=0.05)
    consumer.start()
    next_share = Share(1)
    next_one = consumer_of("threads", loop, name_server, next_share, following, topic)
    following.go.set()
    try:
        wait_until(lambda: held.running == 1)
        if is_given_up:
            share.count = 0
            wait_until(lambda: own(consumer, topic) == 0)
        consumer.close()
        next_one.start()
        looks = next_share.looks
        wait_until(lambda: next_share.looks >= looks + LOOKS)
        assert own(next_one, topic) == 0
        assert not following.bodies
    finally:
        held.go.set()
        next_one.close()


@each_kind
def test_the_next_member_begins_after_what_the_listener_consumed(
    name_server: str, topic: str, loop: Loop, kind: str
) -> None:
    """The offset is stored after the listener has returned, and before the unlock."""
    share, held, following = Share(1), Held(), Held()
    with Producer(name_server) as producer:
        for body in (b"1", b"2"):
            producer.send(topic, body)
    consumer = consumer_of(kind, loop, name_server, share, held, topic)
    next_share = Share(1)
    next_one = consumer_of("threads", loop, name_server, next_share, following, topic)
    following.go.set()
    consumer.start()
    try:
        wait_until(lambda: held.running == 1)
        share.count = 0
        wait_until(lambda: own(consumer, topic) == 0)
        next_one.start()
        looks = next_share.looks
        wait_until(lambda: next_share.looks >= looks + LOOKS)
        assert own(next_one, topic) == 0
        held.go.set()
        wait_until(lambda: following.bodies == [b"2"])
        assert held.bodies == [b"1"]
    finally:
        held.go.set()
        consumer.close()
        next_one.close()


@each_kind
def test_the_lock_is_given_back_when_the_queue_goes_on_elsewhere(
    name_server: str, topic: str, loop: Loop, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator resets the group (220); the next owner begins at the new offset."""
    share, held = Share(1), Held()
    held.go.set()
    with Producer(name_server) as producer:
        producer.send(topic, b"1")
    consumer = consumer_of(kind, loop, name_server, share, held, topic)
    consumer.start()
    steps: list[str] = []

    def noted(whose: Any, name: str) -> None:
        called = getattr(whose, name)

        def note(*given: Any) -> Any:
            if name == "reset" or steps:
                steps.append(name)
            return called(*given)

        monkeypatch.setattr(whose, name, note)

    try:
        wait_until(lambda: held.bodies == [b"1"] and not held.running)
        (queue,) = [each for each in consumer.queues if each.topic == topic]
        member = (consumer.client if isinstance(consumer, OnLoop) else consumer)._member
        noted(member.offsets, "reset")
        noted(member.locks, "unlock")
        loop.loop.call_soon_threadsafe(member.reset_soon, {queue: 0})
        wait_until(lambda: held.bodies == [b"1", b"1"])
        assert steps == ["reset", "unlock"]
    finally:
        consumer.close()


def test_a_queue_is_unlocked_only_after_its_last_offset_is_stored() -> None:
    """Otherwise its last messages come twice.

    A queue that was given up is unlocked when its listener returns, or at the close if nothing released it before. A
    listener that returns while an offset is stored counts as busy: it may have consumed more than that offset says.
    """
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(3)]
    pullers = {queue: mock.Mock(queue=queue, offset_done=3, is_locked=True) for queue in queues}
    first, second, third = pullers.values()
    busy = {first, second, third}
    returns_during = {2: third}
    asked: list[tuple[int, object]] = []

    def answer(question: Question) -> object:
        if isinstance(question, Together):
            return [steps_run(each, answer) for each in question.steps]
        assert isinstance(question, Ask)
        header: Any = question.header
        count = None if header else len(LockBatchRequest.decode(question.body).mq_set)
        asked.append((question.code, header.commit_offset if header else count))
        puller = returns_during.pop(header.queue_id, None) if header else None
        if puller is not None:
            busy.discard(puller)
            puller.offset_done += 1
        return Command(ResponseCode.SUCCESS, 0)

    locks = QueueLocks(RUNTIME, "G", lambda: "c", is_orderly=True)
    locks.held.update(queues)
    membership: Any = mock.Mock(config=MemberConfig(group="G"))
    assigned: Any = mock.Mock(pullers=lambda: pullers, let_go=lambda queue, **_given: pullers.pop(queue))
    rebalancer = Rebalancer(
        membership,
        assigned,
        RemoteOffsets("G", "first"),
        locks,
        is_busy=busy.__contains__,
        try_soon=mock.Mock(),
        rebalance_soon=mock.Mock(),
    )
    for queue in queues:
        steps_run(rebalancer.give_up(queue, stores=True), answer)
    assert asked == [(RequestCode.UPDATE_CONSUMER_OFFSET, 3)] * 3
    asked.clear()
    steps_run(rebalancer.release(second), answer)
    assert asked == [], "another listener has its messages"
    steps_run(rebalancer.release(third), answer)
    assert asked == [(RequestCode.UPDATE_CONSUMER_OFFSET, 4), (RequestCode.UNLOCK_BATCH_MQ, 1)]

    asked.clear()
    first.offset_done = 5
    busy.discard(first)
    returns_during[0] = second
    steps_run(rebalancer.leave(), answer)
    stored = [(RequestCode.UPDATE_CONSUMER_OFFSET, offset) for offset in (5, 4)]
    assert asked == [*stored, (RequestCode.UNLOCK_BATCH_MQ, 1)]


def test_who_has_lost_the_lock_sends_no_dead_letter() -> None:
    """Another member may have the queue and the message by then."""
    puller = mock.Mock(is_locked=True, is_dropped=False, defer=lambda _later: False, first=lambda _count: [MESSAGE])
    of: Any = mock.Mock(config=MemberConfig(group="G"), retry_topic="%RETRY%G")
    queues = OrderlyQueues(RUNTIME, mock.Mock(), of)
    queues.deliver(Batch(puller, (MESSAGE,)))

    def listen(_messages: Sequence[ReceivedMessage]) -> Reject:
        assert queues.is_busy(puller)
        puller.is_locked, puller.is_dropped = False, True
        return Reject()

    def answer(question: Question) -> object:
        assert isinstance(question, Call)
        return question.work()

    steps_run(queues.consume(puller, listen), answer)
    assert not queues.is_busy(puller)
    puller.done.assert_not_called()
    of.send_back.assert_not_called()
    of.release_soon.assert_called_once_with(puller)


def test_who_wants_a_queue_that_is_leaving_is_told_and_nobody_else() -> None:
    """Else it came back with the next look alone, twenty seconds later; and each end would begin a look for nothing."""
    leaving, queue = RevokedQueues(), MessageQueue(topic="T", broker_name="b", queue_id=0)
    puller = mock.Mock(queue=queue)

    def leave(is_wanted_since: bool) -> bool:
        leaving.add(puller)
        assert leaving.has(puller)
        if is_wanted_since:
            assert leaving.free([queue]) == set()
        is_wanted = leaving.release(queue)
        assert not leaving.has(puller)
        return is_wanted

    assert leaving.free([queue]) == {queue}
    assert not leave(is_wanted_since=False)
    assert leave(is_wanted_since=True)
    assert not leave(is_wanted_since=False)


class Watched:
    """A listener of several members, and whether it was ever given two lots of one queue at once or out of order."""

    def __init__(self, count: int) -> None:
        self.seen: dict[int, list[int]] = {}
        self.overlaps = 0
        self.all_came = asyncio.Event()
        self._running: set[int] = set()
        self._count = count

    async def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """Note them; every seventh is put off once."""
        message = messages[0]
        self.overlaps += message.queue_id in self._running
        self._running.add(message.queue_id)
        await asyncio.sleep(0.001)
        self._running.discard(message.queue_id)
        if message.queue_offset % 7 == 3 and not message.reconsume_times:
            return Retry()
        self.seen.setdefault(message.queue_id, []).append(message.queue_offset)
        if sum(len(set(offsets)) for offsets in self.seen.values()) >= self._count:
            self.all_came.set()
        return None

    def is_in_order(self) -> bool:
        """Whether every message came, and none before one of a lower offset had."""
        firsts = {queue: list(dict.fromkeys(offsets)) for queue, offsets in self.seen.items()}
        return all(offsets == list(range(len(offsets))) for offsets in firsts.values())


def member_of(
    name_server: str,
    topic: str,
    watched: Watched,
    shared: Callable[[MessageQueue, bool], object] | None = None,
    **options: Any,
) -> AsyncPushConsumer:
    """One member."""
    settings = from_first(rebalance_s=0.2, suspend_s=0.01, **options)
    return AsyncPushConsumer(
        name_server,
        topics=topic,
        listener=watched.listen,
        **member_options(settings),
        orderly=True,
        **(share_options(shared) if shared else {}),
    )


async def come_and_go(name_server: str, topic: str) -> Watched:
    """One member has 200 messages; another one joins and leaves while they come."""
    watched, joined = Watched(200), asyncio.Event()
    async with member_of(name_server, topic, watched) as first:
        await fill(name_server, topic, 100)
        async with member_of(name_server, topic, watched, lambda _queue, _is_ours: joined.set()):
            await fill(name_server, topic, 100)
            await joined.wait()
        await watched.all_came.wait()
        assert first.statistics[topic].later_count > 0
        assert first.statistics[topic].sent_back_count == 0
    return watched


def test_messages_come_in_order_while_members_come_and_go(name_server: str) -> None:
    """Deferred messages come again before later ones; none is delivered twice at once."""

    async def story() -> None:
        watched = await come_and_go(name_server, topic)
        assert watched.overlaps == 0
        assert watched.is_in_order()

    with new_topic(name_server, 4) as topic:
        run(story)
        assert lag(name_server, topic) == 0


def test_a_coroutine_that_hangs_is_put_off_in_its_place(name_server: str, topic: str) -> None:
    """After its time it is cancelled, and its message comes again before the next one."""
    tries: list[tuple[bytes, int]] = []

    async def story() -> None:
        done = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            (message,) = messages
            tries.append((message.body, message.reconsume_times))
            if message.body == b"0" and not message.reconsume_times:
                await asyncio.sleep(3600)
            if message.body == b"1":
                done.set()
            return None

        settings = from_first(f"hang-{topic}", suspend_s=0.01, consume_timeout_s=0.2)
        consumer = AsyncPushConsumer(
            name_server, topics=topic, listener=listen, **member_options(settings), orderly=True
        )
        async with consumer:
            await fill(name_server, topic, 2)
            await done.wait()

    run(story)
    assert tries == [(b"0", 0), (b"0", 1), (b"1", 0)]


def test_a_reset_waits_for_the_listener_that_has_the_queue(name_server: str) -> None:
    """The listener ends first, then the queue continues at the administrator's offset."""

    async def story() -> None:
        got: asyncio.Queue[bytes] = asyncio.Queue()
        going_on = asyncio.Event()
        running = most = 0

        async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await got.put(messages[0].body)
            await going_on.wait()
            running -= 1
            return None

        consumer = AsyncPushConsumer(
            name_server, topics=topic, listener=listen, **member_options(from_first(rebalance_s=0.2)), orderly=True
        )
        await fill(name_server, topic, 5)
        async with consumer:
            assert await got.get() == b"0"
            (queue,) = [queue for queue in consumer.queues if queue.topic == topic]
            given_up = consumer._member.assigned_queues.pullers()[queue]
            consumer._member.reset_soon({queue: 3})
            await asyncio.to_thread(wait_until, lambda: given_up.is_dropped)
            going_on.set()
            assert [await got.get() for _number in range(2)] == [b"3", b"4"]
        assert most == 1

    with new_topic(name_server, 1) as topic:
        run(story)
