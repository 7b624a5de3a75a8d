"""A running consumer can be sought, paused, assigned queues and subscribed to topics, on threads and on a loop."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import RUNTIME, Clients, Heard, Held, from_first
from msgspec.structs import replace

from longpoll_client import (
    Admin,
    ConfigError,
    LifecycleError,
    MessageModel,
    MessageQueue,
    NoRouteError,
    NotOursError,
    Producer,
    PullConsumer,
    ReceivedMessage,
    RefusedError,
    Sql,
)
from longpoll_client.settings import MemberConfig
from longpoll_client.timer import Timer

COUNT: Final = 10


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """A topic with two queues. The first has the bodies 0 to 9: even ones with tag red, odd ones with tag blue."""
    with new_topic(name_server, 2) as made:
        send(name_server, made, range(COUNT))
        yield made


def send(name_server: str, topic: str, numbers: Sequence[int], queue_id: int = 0) -> None:
    with Producer(name_server) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, queue_id=queue_id, tag="blue" if number % 2 else "red")


def config(**options: Any) -> MemberConfig:
    return from_first(f"G-{uuid.uuid4().hex[:8]}", **options)


def polling(clients: Clients, topic: str, of_group: MemberConfig | None = None) -> Any:
    """Return a started member that has the two queues."""
    consumer = clients.pulling(topic, of_group or config(batch_count_max=3))
    assert len(consumer.queues) == 2
    return consumer


def numbers_of(messages: Sequence[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


def poll(consumer: Any, count: int, most: int | None = None) -> list[int]:
    """Return the numbers of the next messages, at least `count`."""
    found: list[int] = []
    while len(found) < count:
        came = consumer.poll(PATIENCE_S, most)
        assert came, f"{found} came, {count} expected"
        found += numbers_of(came)
    return found


def first_queue(consumer: Any, topic: str) -> MessageQueue:
    found: MessageQueue = next(queue for queue in consumer.topic_queues(topic) if queue.queue_id == 0)
    return found


def stored(name_server: str, group: str, queue: MessageQueue) -> int | None:
    with Admin(name_server) as admin:
        return next(row.stored for row in admin.offsets(group, [queue.topic]) if row.queue == queue)


def test_a_seek_drops_the_messages_that_were_pulled_before(clients: Clients, topic: str) -> None:
    """A seek back, ahead, to the beginning and to the end drops all messages that were pulled before."""
    consumer = polling(clients, topic)
    queue = first_queue(consumer, topic)
    assert poll(consumer, 1, 1) == [0]
    for place in (7, 2, 4):
        consumer.seek(queue, place)
        assert poll(consumer, COUNT - place) == list(range(place, COUNT))
    consumer.seek(queue, 4)
    assert poll(consumer, 2, 1) == [4, 5]
    consumer.seek_to_beginning(queue)
    assert poll(consumer, COUNT) == list(range(COUNT))
    consumer.seek_to_end(queue)
    send(clients.name_server, topic, [10])
    assert poll(consumer, 1) == [10]


@pytest.mark.parametrize("place", [0, 4])
def test_the_next_commit_stores_the_sought_offset(clients: Clients, topic: str, place: int) -> None:
    """The next commit stores the sought offset, also if it equals the group's offset at the start."""
    of_group = config(persist_s=3600.0)
    consumer = polling(clients, topic, of_group)
    queue = first_queue(consumer, topic)
    assert consumer.committed(queue) == 0
    if place:
        consumer.seek(queue, place)
        clients.persist(consumer)
    assert poll(consumer, COUNT - place) == list(range(place, COUNT))
    consumer.commit()
    clients.persist(consumer)
    assert consumer.committed(queue) == COUNT
    consumer.seek(queue, place)
    clients.persist(consumer)
    assert consumer.committed(queue) == place
    assert stored(clients.name_server, of_group.group, queue) == place


def test_a_seek_to_an_invalid_offset_or_queue_is_refused(clients: Clients, topic: str) -> None:
    """An offset outside the queue, a queue of another member, an unknown queue and a stopped consumer are refused."""
    with pytest.raises(LifecycleError, match="not started"):
        clients.pull(config()).seek(MessageQueue(topic=topic, broker_name="b", queue_id=0), 0)
    consumer = polling(clients, topic)
    queue = first_queue(consumer, topic)
    for offset in (-1, COUNT + 1):
        with pytest.raises(ConfigError, match=f"offset {offset} is not in {topic} queue 0, which has .* 0 to 10"):
            consumer.seek(queue, offset)
    consumer.seek(queue, COUNT)
    with pytest.raises(NotOursError, match="does not belong to this consumer now"):
        consumer.seek(replace(queue, queue_id=7), 0)
    nobodys = replace(queue, broker_name="nobody")
    with pytest.raises(NoRouteError, match="broker 'nobody' has no queue"):
        consumer.seek(nobodys, 0)
    with pytest.raises(NotOursError):
        consumer.pause([nobodys])


def test_offsets_can_be_looked_up(clients: Clients, topic: str) -> None:
    """A consumer can look up offsets by time and stored offsets, also before its start."""
    consumer = clients.pull(config())
    queue = first_queue(consumer, topic)
    assert consumer.committed(queue) in {0, None}
    assert consumer.offset_for_timestamp(queue, datetime.fromtimestamp(0, UTC)) == 0
    consumer.assign([queue])
    consumer.start()
    messages = consumer.poll(PATIENCE_S)
    found = consumer.offset_for_timestamp(queue, datetime.fromtimestamp(messages[-1].store_ms / 1000, UTC))
    assert messages[found].store_ms == messages[-1].store_ms
    consumer.close()
    with pytest.raises(LifecycleError, match="closed"):
        consumer.committed(queue)


def test_a_paused_queue_waits_and_the_other_queue_continues(clients: Clients, topic: str) -> None:
    """Buffered messages of a paused queue wait too, and come in order after another thread resumes the queue."""
    send(clients.name_server, topic, range(100, 106), queue_id=1)
    consumer = polling(clients, topic)
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


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_paused_listener_gets_no_message(clients: Clients, topic: str, is_orderly: bool) -> None:
    """A paused listener finishes its message, gets nothing until it is resumed, and misses no message."""
    held = Held()
    consumer = clients.pushing(topic, held, config(thread_count=1), is_orderly=is_orderly)
    held.wait()
    consumer.pause()
    held.go.set()
    wait_until(lambda: sum(len(each._deferred) for each in clients.pullers(consumer).values()) > 0)
    assert held.bodies == [b"0"]
    send(clients.name_server, topic, [200], queue_id=1)
    consumer.resume()
    wait_until(lambda: len(held.bodies) == COUNT + 1)
    assert sorted(map(int, held.bodies)) == [*range(COUNT), 200]


def test_assigned_queues_are_read_and_no_group_is_joined(clients: Clients, topic: str) -> None:
    """The group's members still share all queues; a new assignment drops the offset of the former queue."""
    of_group = config(persist_s=0.05, client_id="member@host#1")
    member = polling(clients, topic, of_group)
    consumer = clients.pull(MemberConfig(group=of_group.group, start_at=of_group.start_at, persist_s=0.05))
    one, other = member.topic_queues(topic)
    consumer.assign([one])
    consumer.start()
    assert consumer.queues == (one,)
    consumer.seek(one, 8)
    assert poll(consumer, 2) == [8, 9]
    consumer.commit()
    with Admin(clients.name_server) as admin:
        (group,) = [each for each in admin.groups() if each.name == of_group.group]
        assert group.members == ("member@host#1",)
    assert len(member.queues) == 2
    member.close()
    consumer.seek(one, 9)
    assert poll(consumer, 1) == [9]
    consumer.commit()
    consumer.assign([other])
    wait_until(lambda: consumer.queues == (other,))
    consumer.seek(other, 0)
    send(clients.name_server, topic, [200], queue_id=1)
    assert poll(consumer, 1) == [200]
    assert consumer.committed(one) == COUNT
    consumer.assign([])
    wait_until(lambda: consumer.queues == ())


def test_an_assigned_queue_may_be_sought_and_paused_before_it_has_begun(name_server: str, topic: str) -> None:
    with closing(PullConsumer(name_server, topics=(), **member_options(config()))) as consumer:
        one, other = consumer.topic_queues(topic)
        consumer.assign([other])
        consumer.start()
        with consumer._member.rebalancing:
            consumer.assign([one, other])
            consumer.seek(one, 5)
            consumer.pause([one])
            assert consumer.queues == (other,)
        wait_until(lambda: one in consumer.queues)
        assert consumer.poll(0.02) == []
        consumer.resume()
        assert poll(consumer, 5) == [5, 6, 7, 8, 9]
        with consumer._member.rebalancing:
            consumer.assign([other])
        wait_until(lambda: one not in consumer.queues)
        with pytest.raises(NotOursError):
            consumer.seek(one, 0)


def test_a_consumer_subscribes_or_is_assigned_queues_but_not_both(clients: Clients, topic: str) -> None:
    """A subscribed consumer cannot be assigned queues, and a consumer with assigned queues cannot subscribe."""
    consumer = clients.pull(config())
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
def test_a_running_consumer_subscribes_and_unsubscribes_topics(clients: Clients, topic: str, is_push: bool) -> None:
    """Messages of a new topic arrive; when a topic is removed, its offset is stored."""
    heard, of_group = Heard(), config(persist_s=3600.0)
    consumer = clients.push(of_group, heard) if is_push else clients.pull(of_group)

    def came() -> int:
        if not is_push:
            heard.messages += consumer.poll(0.01)
        return len(heard.messages)

    with new_topic(clients.name_server, 1) as second:
        send(clients.name_server, second, [50])
        consumer.subscribe(topic)
        consumer.start()
        wait_until(lambda: came() == COUNT)
        consumer.subscribe(second)
        wait_until(lambda: came() == COUNT + 1)
        consumer.unsubscribe(topic)
        kept = {second, "%RETRY%" + of_group.group}
        wait_until(lambda: came() > 0 and {queue.topic for queue in consumer.queues} <= kept)
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
        wait_until(lambda: stored(clients.name_server, of_group.group, queue) == COUNT)
        send(clients.name_server, topic, [10])
        send(clients.name_server, second, [51])
        wait_until(lambda: came() == COUNT + 2)
        assert sorted(map(int, heard.bodies)) == [*range(COUNT), 50, 51]
        consumer.unsubscribe(second)
        wait_until(lambda: second not in {queue.topic for queue in consumer.queues})


def test_new_tags_apply_from_the_next_pull(clients: Clients, topic: str) -> None:
    """A held pull for the old tags has no effect any more."""
    consumer = clients.pull(config())
    consumer.subscribe(topic, "red")
    consumer.start()
    assert poll(consumer, 5) == [0, 2, 4, 6, 8]
    consumer.subscribe(topic, "blue")
    pullers = clients.pullers(consumer)
    wait_until(lambda: all(each.subscription.sub_string == "blue" for each in pullers.values()))
    send(clients.name_server, topic, [12, 13])
    assert poll(consumer, 1) == [13]
    assert clients.pullers(consumer) == pullers


def test_a_filter_that_no_broker_knows_is_refused(clients: Clients, topic: str) -> None:
    """An invalid filter is refused at run time as at the start, and the consumer keeps its former filter."""
    consumer = polling(clients, topic)
    with pytest.raises(LifecycleError if clients.is_loop else RefusedError):
        consumer.subscribe(topic, Sql("a is is"))
    assert poll(consumer, COUNT) == list(range(COUNT))


def test_a_poll_ends_when_the_consumer_is_closed(clients: Clients, topic: str) -> None:
    """A close on another thread ends the poll at once."""
    consumer = polling(clients, topic)
    assert poll(consumer, COUNT) == list(range(COUNT))
    results: list[object] = []

    def ends() -> None:
        with suppress(LifecycleError):
            results.append(consumer.poll(3600.0))
        results.append("ended")

    poller = RUNTIME.spawn("poller", ends)
    consumer.close()
    poller.join(PATIENCE_S)
    assert results in (["ended"], [[], "ended"])


def test_a_broadcasting_members_own_offset_can_be_read_and_changed(clients: Clients, topic: str) -> None:
    """A broadcasting member can read and change its own offset; no other member has this offset."""
    consumer = polling(clients, topic, config(message_model=MessageModel.BROADCASTING))
    queue = first_queue(consumer, topic)
    assert poll(consumer, COUNT) == list(range(COUNT))
    consumer.seek(queue, 8)
    clients.persist(consumer)
    assert consumer.committed(queue) == 8
    (message,) = consumer.poll(PATIENCE_S, 1)
    with pytest.raises(ConfigError, match="is broadcasting, so messages are never redelivered"):
        consumer.retry(message)
    assert poll(consumer, 1) == [9]


def test_a_periodic_action_that_raises_runs_again() -> None:
    """If a callback raises, rebalancing must still run again."""
    timer = Timer(RUNTIME, "consumer-T")
    count: list[int] = []

    def fail() -> None:
        count.append(1)
        raise ZeroDivisionError

    timer.every(0.001, fail)
    wait_until(lambda: len(count) >= 3)
    timer.close()
    assert len(count) >= 3


def test_a_cleared_timer_behaves_like_a_new_one() -> None:
    """A cleared timer behaves like a new one, also if a running action schedules itself again."""
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


def test_a_closed_timer_stays_closed_when_it_is_cleared() -> None:
    """A member may be closed while its start fails, and its timer must stay closed."""
    timer = Timer(RUNTIME, "consumer-T")
    timer.close()
    timer.clear()
    timer.after(0.0, lambda: None)
    assert (timer._thread, timer._entries) == (None, [])


def test_polled_messages_can_be_deferred_and_rejected(clients: Clients, topic: str) -> None:
    """Only a message of the last poll can be deferred (to the retry topic) or rejected (to the dead letters)."""
    of_group = config(batch_count_max=3)
    consumer = polling(clients, topic, of_group)
    (late,) = consumer.poll(PATIENCE_S, 1)
    consumer.retry(late, delay_s=1)
    (bad,) = consumer.poll(PATIENCE_S, 1)
    consumer.reject(bad)
    with pytest.raises(ConfigError, match="not from the last poll"):
        consumer.retry(late)
    again: list[ReceivedMessage] = []
    while not any(message.attempt == 2 for message in again):
        again += consumer.poll(PATIENCE_S)
    assert [(message.body, message.topic) for message in again if message.attempt > 1] == [(late.body, topic)]
    dead = clients.pulling(f"%DLQ%{of_group.group}", config())
    assert [message.body for message in dead.poll(PATIENCE_S)] == [bad.body]
