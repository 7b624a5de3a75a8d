"""A consumer that runs is sent elsewhere, paused, given other queues and other topics."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import pytest

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    Admin,
    ConsumerConfig,
    ConsumeStatus,
    LifecycleError,
    MessageModel,
    MessageQueue,
    NotOursError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.consume.own_queues import OwnQueues
from longpoll_client.consume.puller import Puller
from longpoll_client.errors import NoRouteError, RefusedError
from longpoll_client.offsets import RemoteOffsets
from longpoll_client.timer import Timer
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME: Final = RealRuntime()
COUNT: Final = 10
PATIENCE_S: Final = 10.0


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """Two queues; the first has the bodies 0 to 9, the even ones red and the others blue."""
    with new_topic(name_server, 2) as made:
        send(name_server, made, range(COUNT))
        yield made


def send(name_server: str, topic: str, numbers: Sequence[int], queue_id: int = 0) -> None:
    """Send numbers to a queue."""
    with Producer(RUNTIME, name_server) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, queue_id=queue_id, tags="blue" if number % 2 else "red")


def config(**options: object) -> ConsumerConfig:
    """A group of its own, of the first message on."""
    return ConsumerConfig(f"G-{uuid.uuid4().hex[:8]}", start_at=StartAt.FIRST, **options)  # type: ignore[arg-type]


def polling(name_server: str, topic: str, stack: ExitStack, of_group: ConsumerConfig | None = None) -> PullConsumer:
    """A member that runs and has both queues."""
    consumer = stack.enter_context(PullConsumer(RUNTIME, name_server, of_group or config(batch_count_max=3)))
    consumer.subscribe(topic)
    consumer.start()
    assert len(consumer.queues) == 2
    return consumer


def numbers_of(messages: Sequence[ReceivedMessage]) -> list[int]:
    """Their bodies."""
    return [int(message.body) for message in messages]


def poll(consumer: PullConsumer, count: int, most: int | None = None) -> list[int]:
    """The numbers of the next messages, `count` at least."""
    found: list[int] = []
    while len(found) < count:
        came = consumer.poll(PATIENCE_S, most)
        assert came, f"{found} came, and {count} should"
        found += numbers_of(came)
    return found


def first_queue(consumer: PullConsumer, topic: str) -> MessageQueue:
    """The queue with messages."""
    return next(queue for queue in consumer.topic_queues(topic) if queue.queue_id == 0)


def stored(name_server: str, group: str, queue: MessageQueue) -> int | None:
    """Where the group stands by its broker."""
    with Admin(RUNTIME, name_server) as admin:
        return next(row.stored for row in admin.offsets(group, [queue.topic]) if row.queue == queue)


def test_after_a_seek_nothing_comes_from_before(name_server: str, topic: str) -> None:
    """Back, ahead, to the beginning, to the end; what was pulled and returned by then counts for nothing."""
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack)
        queue = first_queue(consumer, topic)
        assert poll(consumer, 1, 1) == [0]
        consumer.seek(queue, 7)
        assert poll(consumer, 3) == [7, 8, 9]
        consumer.seek(queue, 2)
        assert poll(consumer, 1, 1) == [2]
        consumer.seek_to_beginning(queue)
        assert poll(consumer, COUNT) == list(range(COUNT))
        consumer.seek(queue, 4)
        assert poll(consumer, 2, 1) == [4, 5]
        consumer.seek_to_end(queue)
        send(name_server, topic, [10])
        assert poll(consumer, 1) == [10]


@pytest.mark.parametrize("place", [0, 4])
def test_the_next_commit_stores_the_new_place(name_server: str, topic: str, place: int) -> None:
    """Also where the group stood when it began, although pulls have told the broker of later ones since then."""
    of_group = config(persist_s=3600.0)
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack, of_group)
        queue = first_queue(consumer, topic)
        assert consumer.committed(queue) == 0
        if place:
            consumer.seek(queue, place)
            consumer._member._queues.persist()
        assert poll(consumer, COUNT - place) == list(range(place, COUNT))
        consumer.commit()
        send(name_server, topic, [10])
        assert poll(consumer, 1) == [10]
        # The pull after it has told the broker that ten are consumed; the store knows nothing of that.
        wait_until(lambda: consumer.committed(queue) == COUNT)
        consumer.seek(queue, place)
        consumer._member._queues.persist()
        assert consumer.committed(queue) == place
        assert stored(name_server, of_group.group, queue) == place


def test_a_place_that_the_queue_does_not_have_is_refused(name_server: str, topic: str) -> None:
    """As is a queue that is another's, and one that is nobody's."""
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack)
        queue = first_queue(consumer, topic)
        for offset in (-1, COUNT + 1):
            with pytest.raises(ConfigError, match=f"offset {offset} is not in {topic} queue 0, which has .* 0 to 10"):
                consumer.seek(queue, offset)
        consumer.seek(queue, COUNT)
        with pytest.raises(NotOursError, match="does not belong to this consumer now"):
            consumer.seek(MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=7), 0)
        with pytest.raises(NoRouteError, match="broker 'nobody' has no queue"):
            consumer.seek(MessageQueue(topic=topic, broker_name="nobody", queue_id=0), 0)
        with pytest.raises(NotOursError):
            consumer.pause([MessageQueue(topic=topic, broker_name="nobody", queue_id=0)])


def test_offsets_can_be_asked_for(name_server: str, topic: str) -> None:
    """By time, and as stored, by a consumer that has not begun as well."""
    with PullConsumer(RUNTIME, name_server, config()) as consumer:
        queue = first_queue(consumer, topic)
        assert consumer.committed(queue) in {0, None}
        assert consumer.offset_for_timestamp(queue, 0) == 0
        consumer.assign([queue])
        consumer.start()
        messages = consumer.poll(PATIENCE_S)
        found = consumer.offset_for_timestamp(queue, messages[-1].store_ms)
        assert messages[found].store_ms == messages[-1].store_ms
    with pytest.raises(LifecycleError, match="closed"):
        consumer.committed(queue)


def test_a_paused_queue_waits_and_the_other_goes_on(name_server: str, topic: str) -> None:
    """What it has already waits too, in order, and comes when it is resumed, by another thread as well."""
    send(name_server, topic, range(100, 106), queue_id=1)
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack)
        queue = first_queue(consumer, topic)
        found: list[int] = []
        while 1 not in found:
            found += numbers_of(consumer.poll(PATIENCE_S, 1))
        before = [number for number in found if number < 100]
        consumer.pause([queue])
        rest = [number for number in found if number >= 100]
        rest += poll(consumer, 6 - len(rest)) if len(rest) < 6 else []
        assert rest == list(range(100, 106))
        assert consumer.poll(0.05) == []
        waker = RUNTIME.spawn("waker", lambda: consumer.resume([queue]))
        assert before + poll(consumer, COUNT - len(before)) == list(range(COUNT))
        waker.join()


def test_everything_may_be_paused_and_a_queue_that_is_sought_stays_so(name_server: str, topic: str) -> None:
    """A seek moves a paused queue, and it begins there when it is resumed."""
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack)
        queue = first_queue(consumer, topic)
        consumer.pause()
        consumer.seek(queue, 6)
        assert consumer.poll(0.05) == []
        consumer.resume([queue])
        assert poll(consumer, 4) == [6, 7, 8, 9]
        assert consumer._member._queues.pullers()[evolved(queue, 1)].is_paused
        consumer.resume()
        send(name_server, topic, [200], queue_id=1)
        assert poll(consumer, 1) == [200]


def evolved(queue: MessageQueue, queue_id: int) -> MessageQueue:
    """Another queue of the same topic."""
    return MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue_id)


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_paused_listener_gets_nothing_more(name_server: str, topic: str, is_orderly: bool) -> None:
    """It ends what it has; then it waits until it is resumed, and nothing is left out."""
    got: list[int] = []
    first, going_on = threading.Event(), threading.Event()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        first.set()
        assert going_on.wait(PATIENCE_S)
        got.extend(numbers_of(messages))
        return ConsumeStatus.SUCCESS

    of_group = config(thread_count=1)
    with PushConsumer(RUNTIME, name_server, of_group, listen, is_orderly=is_orderly) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert first.wait(PATIENCE_S)
        consumer.pause()
        going_on.set()
        wait_until(lambda: sum(len(each._deferred) for each in consumer._member._queues.pullers().values()) > 0)
        assert got == [0]
        send(name_server, topic, [200], queue_id=1)
        consumer.resume()
        wait_until(lambda: len(got) == COUNT + 1)
    assert sorted(got) == [*range(COUNT), 200]


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_paused_consumer_closes(name_server: str, topic: str, is_orderly: bool) -> None:
    """And the next one goes on where it stood."""
    seen: list[int] = []
    of_group = config()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        seen.extend(numbers_of(messages))
        return ConsumeStatus.SUCCESS

    for is_paused in (True, False):
        with PushConsumer(RUNTIME, name_server, of_group, listen, is_orderly=is_orderly) as consumer:
            consumer.subscribe(topic)
            consumer.start()
            if is_paused:
                consumer.pause()
            else:
                wait_until(lambda: set(seen) == set(range(COUNT)))
    assert len(seen) <= 2 * COUNT


def test_assigned_queues_are_read_and_no_group_is_joined(name_server: str, topic: str) -> None:
    """Others of the group share all queues as if it were not there; another choice gives the first one's place up."""
    of_group = config(persist_s=0.05)
    with ExitStack() as stack:
        member = polling(name_server, topic, stack, of_group)
        consumer = stack.enter_context(PullConsumer(RUNTIME, name_server, of_group))
        one, other = member.topic_queues(topic)
        consumer.assign([one])
        consumer.start()
        assert consumer.queues == (one,)
        consumer.seek(one, 8)
        assert poll(consumer, 2) == [8, 9]
        consumer.commit()
        with Admin(RUNTIME, name_server) as admin:
            (group,) = [each for each in admin.groups() if each.name == of_group.group]
            assert group.members == (member._member.client_id,)
        assert len(member.queues) == 2
        member.close()
        consumer.seek(one, 9)
        assert poll(consumer, 1) == [9]
        consumer.commit()
        consumer.assign([other])
        consumer.seek(other, 0)
        send(name_server, topic, [200], queue_id=1)
        assert poll(consumer, 1) == [200]
        assert consumer.queues == (other,)
        assert consumer.committed(one) == COUNT
        consumer.assign([])
        wait_until(lambda: consumer.queues == ())


def test_an_assigned_queue_may_be_sought_and_paused_before_it_has_begun(name_server: str, topic: str) -> None:
    """The place is kept for it; a place of a queue that is chosen no more is not."""
    with PullConsumer(RUNTIME, name_server, config()) as consumer:
        one, other = consumer.topic_queues(topic)
        consumer.assign([other])
        consumer.start()
        with consumer._member._sharing.rebalancing:
            consumer.assign([one, other])
            consumer.seek(one, 5)
            consumer.pause([one])
            assert consumer.queues == (other,)
        wait_until(lambda: one in consumer.queues)
        assert consumer.poll(0.02) == []
        consumer.resume()
        assert poll(consumer, 5) == [5, 6, 7, 8, 9]
        with consumer._member._sharing.rebalancing:
            consumer.assign([other])
        wait_until(lambda: one not in consumer.queues)
        with pytest.raises(NotOursError):
            consumer.seek(one, 0)


def test_two_ways_to_choose_are_one_too_many(name_server: str, topic: str) -> None:
    """Subscribe or assign; who does both is told so."""
    with PullConsumer(RUNTIME, name_server, config()) as consumer:
        (queue, _other) = consumer.topic_queues(topic)
        consumer.subscribe(topic)
        with pytest.raises(ConfigError, match="not both"):
            consumer.assign([queue])
        consumer.unsubscribe(topic)
        consumer.assign([queue])
        with pytest.raises(ConfigError, match="not both"):
            consumer.subscribe(topic)
        with pytest.raises(ConfigError, match="is not subscribed"):
            consumer.unsubscribe(topic)
        consumer.assign([])
        with pytest.raises(ConfigError, match="has no topic"):
            consumer.start()


@pytest.mark.parametrize("is_push", [True, False])
def test_a_running_consumer_takes_and_leaves_topics(name_server: str, topic: str, is_push: bool) -> None:
    """A new topic's messages come, the broker knows of it, and what is left is given up and its place stored."""
    got: list[int] = []

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        got.extend(numbers_of(messages))
        return ConsumeStatus.SUCCESS

    of_group = config(persist_s=3600.0)

    def came(consumer: PushConsumer | PullConsumer) -> int:
        if isinstance(consumer, PullConsumer):
            got.extend(numbers_of(consumer.poll(0.01)))
        return len(got)

    made: Callable[[], PushConsumer | PullConsumer] = (
        (lambda: PushConsumer(RUNTIME, name_server, of_group, listen))
        if is_push
        else (lambda: PullConsumer(RUNTIME, name_server, of_group))
    )
    with new_topic(name_server, 1) as second, made() as consumer:
        send(name_server, second, [50])
        consumer.subscribe(topic)
        consumer.start()
        wait_until(lambda: came(consumer) == COUNT)
        consumer.subscribe(second)
        wait_until(lambda: came(consumer) == COUNT + 1)
        consumer.unsubscribe(topic)
        kept = {second, "%RETRY%" + of_group.group}
        wait_until(lambda: came(consumer) > 0 and {queue.topic for queue in consumer.queues} <= kept)
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
        wait_until(lambda: stored(name_server, of_group.group, queue) == COUNT)
        send(name_server, topic, [10])
        send(name_server, second, [51])
        wait_until(lambda: came(consumer) == COUNT + 2)
        assert sorted(got) == [*range(COUNT), 50, 51]
        consumer.unsubscribe(second)
        wait_until(lambda: second not in {queue.topic for queue in consumer.queues})


def test_other_tags_hold_from_the_next_pull_on(name_server: str, topic: str) -> None:
    """The pull that is held for the old ones is of no account any more."""
    with ExitStack() as stack:
        consumer = stack.enter_context(PullConsumer(RUNTIME, name_server, config()))
        consumer.subscribe(topic, "red")
        consumer.start()
        assert poll(consumer, 5) == [0, 2, 4, 6, 8]
        wanted = consumer._member._membership.subscriptions[topic]
        consumer.subscribe(topic, "red")
        assert consumer._member._membership.subscriptions[topic] is wanted
        consumer.subscribe(topic, "blue")
        pullers = consumer._member._queues.pullers()
        wait_until(lambda: all(each.subscription.sub_string == "blue" for each in pullers.values()))
        send(name_server, topic, [12, 13])
        assert poll(consumer, 1) == [13]
        assert consumer._member._queues.pullers() == pullers


def test_a_filter_that_no_broker_knows_is_refused(name_server: str, topic: str) -> None:
    """While it runs as at the start; the topic is wanted as before."""
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack)
        with pytest.raises(RefusedError):
            consumer.subscribe(topic, "a is is", "SQL92")
        assert poll(consumer, COUNT) == list(range(COUNT))


def test_a_poll_ends_when_the_consumer_is_closed(name_server: str, topic: str) -> None:
    """By another thread, and at once."""
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack)
        assert poll(consumer, COUNT) == list(range(COUNT))
        results: list[object] = []
        poller = RUNTIME.spawn("poller", lambda: results.append(consumer.poll(3600.0)))
        wait_until(lambda: not consumer._returned)
        consumer.close()
        poller.join(PATIENCE_S)
        assert results == [[]]


def test_a_broadcasting_member_s_own_place_can_be_asked_and_changed(name_server: str, topic: str) -> None:
    """Nobody else has it."""
    with ExitStack() as stack:
        consumer = polling(name_server, topic, stack, config(message_model=MessageModel.BROADCASTING))
        queue = first_queue(consumer, topic)
        assert poll(consumer, COUNT) == list(range(COUNT))
        consumer.seek(queue, 8)
        consumer._member._queues.persist()
        assert consumer.committed(queue) == 8
        assert poll(consumer, 2) == [8, 9]


def test_what_is_due_again_and_again_is_so_although_it_raised() -> None:
    """A callback's mistake must not end rebalancing for good."""
    timer = Timer(RUNTIME, "consumer-T")
    count: list[int] = []

    def fail() -> None:
        count.append(1)
        raise ZeroDivisionError

    timer.every(0.001, fail)
    wait_until(lambda: len(count) >= 3)
    timer.close()
    assert len(count) >= 3


def test_a_timer_that_is_cleared_is_as_if_it_were_new() -> None:
    """Also where an action that runs at that moment wants to be run again."""
    timer = Timer(RUNTIME, "consumer-T")
    begun, go_on, again, done = (threading.Event() for _ in range(4))

    def act() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        timer.after(0.0, again.set)

    timer.after(0.0, act)
    assert begun.wait(PATIENCE_S)
    clearing = threading.Thread(target=timer.clear)
    clearing.start()
    wait_until(lambda: timer._is_ending)
    go_on.set()
    clearing.join()
    timer.after(0.0, done.set)
    assert done.wait(PATIENCE_S)
    timer.close()
    assert not again.is_set()


def test_a_timer_that_is_closed_stays_so_when_it_is_cleared() -> None:
    """As where a member is closed while its start fails."""
    timer = Timer(RUNTIME, "consumer-T")
    timer.close()
    timer.clear()
    timer.after(0.0, lambda: None)
    assert (timer._thread, timer._entries) == (None, [])


def seek_the_puller_on(self: OwnQueues, queue: MessageQueue, offset: int, _due: object) -> None:
    """Planted: pull elsewhere, and leave what waits."""
    self._pullers[queue]._cached.offset_next = offset


def soon(condition: Callable[[], bool]) -> None:
    """What a test with a plant waits, in vain."""
    pause = threading.Event()
    for _attempt in range(50):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("not soon")


PLANTED: Final = {
    "what waits comes after a seek": (OwnQueues, "seek", seek_the_puller_on),
    "a place that is not told": (RemoteOffsets, "doubt", lambda _self, _queue: None),
    "a pause that only stops pulling": (Puller, "is_paused", property(lambda _self: False)),
    "a listener that is given paused messages": (Puller, "defer", lambda _self, _action: False),
    "tags that are changed for later queues only": (OwnQueues, "resubscribe", lambda _self, _subscriptions: None),
}
SEEN_BY: Final[dict[str, Callable[[str, str], None]]] = {
    "what waits comes after a seek": test_after_a_seek_nothing_comes_from_before,
    "a place that is not told": lambda names, topic: test_the_next_commit_stores_the_new_place(names, topic, 0),
    "a pause that only stops pulling": test_a_paused_queue_waits_and_the_other_goes_on,
    "a listener that is given paused messages": lambda names, topic: test_a_paused_listener_gets_nothing_more(
        names, topic, False
    ),
    "tags that are changed for later queues only": test_other_tags_hold_from_the_next_pull_on,
}


@pytest.mark.parametrize("name", SEEN_BY)
def test_planted_control_that_does_half_is_seen(
    name: str, name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the test of what it breaks."""
    monkeypatch.setattr(*PLANTED[name])
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.3)
    monkeypatch.setitem(globals(), "wait_until", soon)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        SEEN_BY[name](name_server, topic)
