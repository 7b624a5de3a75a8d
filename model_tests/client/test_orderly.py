"""Orderly consumers: order during membership changes, locks, and queues that leave and return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias
from unittest import mock

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import RUNTIME, Answers, Clients, Held, fill, from_first, run, send

from longpoll_client import AsyncPushConsumer, MessageQueue, ReceivedMessage, Reject, Retry
from longpoll_client.consume.listener import OrderlyQueues
from longpoll_client.consume.membership import QueueLocks
from longpoll_client.consume.offsets import RemoteOffsets
from longpoll_client.consume.puller import Batch
from longpoll_client.consume.rebalance import Rebalancer, RevokedQueues
from longpoll_client.link.steps import Ask
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import LockBatchRequest
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command

MESSAGE: Final = ReceivedMessage("T", 0, 0, b"", {}, "id", 0, "", 0, "", 0, 0, 0, 0)
LOOKS: Final = 5
"""An event that has not happened after this many rebalances will not happen."""


class Share:
    """The number of queues that a member is assigned, and how often it has rebalanced."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.looks = 0

    def __call__(
        self, _client_id: str, _members: Iterable[str], queues: Iterable[MessageQueue]
    ) -> tuple[MessageQueue, ...]:
        """Allocate queues, as `ConsumerConfig.allocate` does."""
        found = tuple(queues)
        if found[0].topic.startswith("%RETRY%"):
            return ()
        self.looks += 1
        return found[: self.count]

    def wait_looks(self) -> None:
        """Wait until the member has rebalanced several times more."""
        before = self.looks
        wait_until(lambda: self.looks >= before + LOOKS)


class OrderlyMember:
    """An orderly consumer that rebalances often. `close` also releases its listener."""

    def __init__(self, clients: Clients, topic: str, *, count: int = 1, close_timeout_s: float = PATIENCE_S) -> None:
        self.share, self.held = Share(count), Held()
        self._topic, self._clients = topic, clients
        config = from_first(
            f"in-order-{topic}", rebalance_s=0.02, thread_count=2, close_timeout_s=close_timeout_s, allocate=self.share
        )
        self.consumer = clients.push(config, self.held, is_orderly=True)
        self.consumer.subscribe(topic)

    @property
    def own(self) -> int:
        return sum(queue.topic == self._topic for queue in self.consumer.queues)

    @property
    def inner(self) -> Any:
        return self._clients.member(self.consumer)

    def start_held(self) -> None:
        """Start, and wait until the listener has a message and blocks."""
        self.consumer.start()
        self.held.wait()

    def lose(self) -> None:
        self.share.count = 0
        wait_until(lambda: self.own == 0)


@pytest.fixture
def two_kinds(clients: Clients, name_server: str) -> Iterator[Callable[..., OrderlyMember]]:
    """Makes members on threads or on an event loop; the fixture releases their listeners at the end."""
    with ExitStack() as stack:
        threads = Clients(name_server, stack, is_loop=False)

        def make(topic: str, *, on_threads: bool = False, **options: Any) -> OrderlyMember:
            made = OrderlyMember(threads if on_threads else clients, topic, **options)
            stack.callback(made.consumer.close)
            stack.callback(made.held.go.set)
            return made

        yield make


Make: TypeAlias = Callable[..., OrderlyMember]


def test_a_returning_queue_waits_for_the_listener_that_has_its_messages(
    name_server: str, topic: str, two_kinds: Make
) -> None:
    """A second listener must not get the first listener's message, and consumed messages are not delivered again."""
    send(name_server, topic, b"1", b"2", b"3")
    one = two_kinds(topic)
    one.start_held()
    one.lose()
    one.share.count = 1
    one.share.wait_looks()
    assert (one.own, one.held.running) == (0, 1)
    one.held.go.set()
    wait_until(lambda: one.held.bodies == [b"1", b"2", b"3"])
    assert one.held.running_max == 1


def test_a_closing_member_gives_back_a_queue_that_it_has_not_started(name_server: str, two_kinds: Make) -> None:
    """The closing member got a second queue while it waited for its listener, and must give this queue back at once."""
    with new_topic(name_server, 2) as topic:
        send(name_server, topic, b"1")
        one = two_kinds(topic)
        one.start_held()
        closing = threading.Thread(target=one.consumer.close)
        closing.start()
        wait_until(lambda: one.inner.lifecycle.is_closed)
        one.share.count = 2
        one.share.wait_looks()
        one.held.go.set()
        closing.join()
        following = two_kinds(topic, count=2)
        following.held.go.set()
        following.consumer.start()
        wait_until(lambda: following.own == 2)
        assert (one.held.bodies, following.held.bodies) == ([b"1"], [])
        following.consumer.close()


@pytest.mark.parametrize("is_given_up", [False, True], ids=["its-own", "given-up"])
def test_a_closing_member_keeps_the_lock_of_a_hanging_listeners_queue(
    name_server: str, topic: str, two_kinds: Make, is_given_up: bool
) -> None:
    """The queue of a listener that is left behind stays locked, so no other listener gets the same message."""
    send(name_server, topic, b"1")
    one = two_kinds(topic, close_timeout_s=0.05)
    one.start_held()
    if is_given_up:
        one.lose()
    one.consumer.close()
    following = two_kinds(topic, on_threads=True)
    following.held.go.set()
    following.consumer.start()
    following.share.wait_looks()
    assert (following.own, following.held.bodies) == (0, [])


def test_the_next_member_starts_after_the_consumed_messages(name_server: str, topic: str, two_kinds: Make) -> None:
    """The offset is stored after the listener has returned, and before the queue is unlocked."""
    send(name_server, topic, b"1", b"2")
    one, following = two_kinds(topic), two_kinds(topic, on_threads=True)
    following.held.go.set()
    one.start_held()
    one.lose()
    following.consumer.start()
    following.share.wait_looks()
    assert following.own == 0
    one.held.go.set()
    wait_until(lambda: following.held.bodies == [b"2"])
    assert one.held.bodies == [b"1"]


def test_a_reset_releases_the_lock_for_the_next_owner(
    clients: Clients, topic: str, two_kinds: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator resets the group's offsets, and the next owner of the queue begins at the new offset."""
    send(clients.name_server, topic, b"1")
    one = two_kinds(topic)
    one.held.go.set()
    one.consumer.start()
    steps: list[str] = []

    def noted(whose: Any, name: str) -> None:
        called = getattr(whose, name)

        def note(*given: Any) -> Any:
            if name == "reset" or steps:
                steps.append(name)
            return called(*given)

        monkeypatch.setattr(whose, name, note)

    wait_until(lambda: one.held.bodies == [b"1"] and not one.held.running)
    (queue,) = [each for each in one.consumer.queues if each.topic == topic]
    noted(one.inner.offsets, "reset")
    noted(one.inner.locks, "unlock")
    clients.call(one.inner.reset_soon, {queue: 0})
    wait_until(lambda: one.held.bodies == [b"1", b"1"])
    assert steps == ["reset", "unlock"]


def test_a_queue_is_unlocked_only_after_its_last_offset_is_stored() -> None:
    """If a queue were unlocked earlier, its last messages would be delivered twice.

    A queue that was given up is unlocked when its listener returns, or at the close if nothing released it before. A
    listener that returns while an offset is stored counts as busy: it may have consumed more than that offset says.
    """
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(3)]
    pullers = {queue: mock.Mock(queue=queue, offset_done=3, is_locked=True) for queue in queues}
    first, second, third = pullers.values()
    busy = {first, second, third}
    returns_during = {2: third}
    asked: list[tuple[int, object]] = []

    def answer(question: Ask) -> Command:
        header: Any = question.header
        count = None if header else len(LockBatchRequest.decode(question.body).mq_set)
        asked.append((question.code, header.commit_offset if header else count))
        puller = returns_during.pop(header.queue_id, None) if header else None
        if puller is not None:
            busy.discard(puller)
            puller.offset_done += 1
        return Command(ResponseCode.SUCCESS, 0)

    answers = Answers(answer)
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
        answers.run(rebalancer.give_up(queue, stores=True))
    assert asked == [(RequestCode.UPDATE_CONSUMER_OFFSET, 3)] * 3
    asked.clear()
    answers.run(rebalancer.release(second))
    assert asked == [], "another listener got its messages"
    answers.run(rebalancer.release(third))
    assert asked == [(RequestCode.UPDATE_CONSUMER_OFFSET, 4), (RequestCode.UNLOCK_BATCH_MQ, 1)]

    asked.clear()
    first.offset_done = 5
    busy.discard(first)
    returns_during[0] = second
    answers.run(rebalancer.leave())
    stored = [(RequestCode.UPDATE_CONSUMER_OFFSET, offset) for offset in (5, 4)]
    assert asked == [*stored, (RequestCode.UNLOCK_BATCH_MQ, 1)]


def test_a_member_that_has_lost_the_lock_sends_no_dead_letter() -> None:
    """Another member may have the queue and the message, so a member without the lock sends no dead letter."""
    puller = mock.Mock(is_locked=True, is_dropped=False, defer=lambda _later: False, first=lambda _count: [MESSAGE])
    of: Any = mock.Mock(config=MemberConfig(group="G"), retry_topic="%RETRY%G")
    queues = OrderlyQueues(RUNTIME, mock.Mock(), of)
    queues.deliver(Batch(puller, (MESSAGE,)))

    def listen(_messages: Sequence[ReceivedMessage]) -> Reject:
        assert queues.is_busy(puller)
        puller.is_locked, puller.is_dropped = False, True
        return Reject()

    Answers(mock.Mock()).run(queues.consume(puller, listen))
    assert not queues.is_busy(puller)
    puller.done.assert_not_called()
    of.send_back.assert_not_called()
    of.release_soon.assert_called_once_with(puller)


def test_only_the_waiting_owner_is_notified_of_a_released_queue() -> None:
    """The waiting owner is notified at once; otherwise the queue would start at the next rebalance, after 20 s."""
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


def test_the_message_of_a_hanging_coroutine_is_retried_in_order(name_server: str, topic: str) -> None:
    """A coroutine is cancelled after its time limit, and its message comes again before the next one."""
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


def test_a_reset_waits_for_the_listener_that_has_the_queue(
    clients: Clients, name_server: str, topic: str, two_kinds: Make
) -> None:
    """The listener finishes first, and then the queue continues at the administrator's offset."""
    send(name_server, topic, *(b"%d" % number for number in range(5)))
    one = two_kinds(topic)
    one.start_held()
    (queue,) = [queue for queue in one.consumer.queues if queue.topic == topic]
    given_up = one.inner.assigned_queues.pullers()[queue]
    clients.call(one.inner.reset_soon, {queue: 3})
    wait_until(lambda: given_up.is_dropped)
    assert one.held.bodies == [b"0"]
    one.held.go.set()
    wait_until(lambda: one.held.bodies == [b"0", b"3", b"4"])
    assert one.held.running_max == 1
