"""Clients are made, run and are closed: every public call at every moment, in order and out of it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    ConsumerConfig,
    ConsumeStatus,
    LifecycleError,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.consume import sharing
from longpoll_client.consume.member_consumer import MemberConsumer
from longpoll_client.errors import NoRouteError
from longpoll_client.lifecycle import Lifecycle, State
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME: Final = RealRuntime()
PATIENCE_S: Final = 10.0


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """One queue with one message."""
    with new_topic(name_server, 1) as made:
        with Producer(RUNTIME, name_server) as producer:
            producer.send(made, b"x")
        yield made


def consumed(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
    """Nothing to do."""
    return ConsumeStatus.SUCCESS


def config(**options: object) -> ConsumerConfig:
    """A group of its own, of the first message on."""
    return ConsumerConfig(f"G-{uuid.uuid4().hex}", start_at=StartAt.FIRST, **options)  # type: ignore[arg-type]


def client_threads() -> set[threading.Thread]:
    """Threads that a client may have started; those of the broker are there before."""
    return {each for each in threading.enumerate() if each.name.startswith(("client-", "listener-", "consumer-"))}


def assert_over(consumer: PushConsumer, before: set[threading.Thread]) -> None:
    """It is closed, and nothing of it runs any more."""
    assert consumer._member.lifecycle.state is State.CLOSED
    wait_until(lambda: client_threads() <= before)
    with pytest.raises(LifecycleError, match="closed; create a new one"):
        consumer.start()


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_listener_may_close_its_consumer(name_server: str, topic: str, is_orderly: bool) -> None:
    """It answers first, and that counts; then the member leaves, no thread stays, and the next one goes on at once."""
    before = client_threads()
    made: list[PushConsumer] = []
    closed = threading.Event()

    def listen(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        made[0].close()
        closed.set()
        return ConsumeStatus.SUCCESS

    of_group = config()
    made.append(PushConsumer(RUNTIME, name_server, of_group, listen, is_orderly=is_orderly))
    made[0].subscribe(topic)
    made[0].start()
    assert closed.wait(PATIENCE_S)
    assert_over(made[0], before)

    came = threading.Event()
    with Producer(RUNTIME, name_server) as producer:
        producer.send(topic, b"y")

    def listen_again(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        assert messages[0].body == b"y"
        came.set()
        return ConsumeStatus.SUCCESS

    with PushConsumer(RUNTIME, name_server, of_group, listen_again, is_orderly=is_orderly) as second:
        second.subscribe(topic)
        second.start()
        assert came.wait(PATIENCE_S)
    wait_until(lambda: client_threads() <= before)


def let_the_timer_share(consumer: PushConsumer) -> None:
    """The group has changed meanwhile: the timer's thread comes to share queues too, and must not wait for us."""
    passed = threading.Event()
    member = consumer._member
    assert member._asked.requested(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, 0), "")
    member._timer.after(0.0, passed.set)
    assert passed.wait(PATIENCE_S), "the timer's thread waits for who closes the member"


@pytest.mark.parametrize("ours", [True, False])
def test_a_share_s_callback_may_close_its_consumer(name_server: str, topic: str, ours: bool) -> None:
    """At its first queue, on the caller's thread; and later, on the timer's own thread. No queue is begun after it."""
    before = client_threads()
    made: list[PushConsumer] = []
    closed = threading.Event()

    def share(_queue: MessageQueue, is_ours: bool) -> None:
        if is_ours is ours and made:
            timer = made[0]._member._timer._thread
            if timer is None or not timer.is_current():
                let_the_timer_share(made[0])
            made[0].close()
            closed.set()

    made.append(PushConsumer(RUNTIME, name_server, config(), consumed, on_share=share))
    made[0].subscribe(topic)
    made[0].start()
    if not ours:
        # Its queues are another's as soon as the group's members are told to be others.
        member = made[0]._member
        member._timer.after(0.0, lambda: member._sharing._lose(member.queues))
    assert closed.wait(PATIENCE_S)
    assert_over(made[0], before)
    assert made[0].queues == () or ours


def test_a_check_may_close_its_producer(name_server: str, topic: str) -> None:
    """A transaction's check runs on the timer's thread, which does not wait for itself."""
    before = client_threads()
    made: list[TransactionProducer] = []
    producer = TransactionProducer(RUNTIME, name_server, "sellers", lambda _message: TransactionState.UNKNOWN)
    made.append(producer)
    closed = threading.Event()

    def close() -> None:
        made[0].close()
        closed.set()

    producer.send(topic, b"x", lambda: TransactionState.COMMIT)
    producer._timer.after(0.0, close)
    assert closed.wait(PATIENCE_S)
    producer.close()
    wait_until(lambda: client_threads() <= before)
    with pytest.raises(LifecycleError):
        producer.send(topic, b"y", lambda: TransactionState.COMMIT)


def test_a_closed_producer_opens_no_connection(name_server: str, topic: str) -> None:
    """Every way of sending is refused, and no thread comes of it."""
    before = client_threads()
    producer = Producer(RUNTIME, name_server)
    producer.send(topic, b"x")
    producer.close()
    producer.close()
    for send in (producer.send, producer.send_one_way):
        with pytest.raises(LifecycleError, match="closed; create a new one"):
            send(topic, b"y")
    assert client_threads() <= before


def test_a_start_that_failed_is_tried_again(name_server: str) -> None:
    """Once what it lacked is there; threads of the first try are not started twice."""
    before = client_threads()
    name = f"late-{uuid.uuid4().hex}"
    with PushConsumer(RUNTIME, name_server, config(waits_for_topics=False), consumed) as consumer:
        consumer.subscribe(name)
        with pytest.raises(NoRouteError, match="is unknown to the name server"):
            consumer.start()
        with Producer(RUNTIME, name_server) as producer:
            producer.send(name, b"x")
        consumer._member._instance.forget_route(name)
        consumer.start()
        wait_until(lambda: consumer.statistics.get(name) is not None and consumer.statistics[name].consumed_count == 1)
        with pytest.raises(LifecycleError, match="already started"):
            consumer.start()
        listeners = [each for each in client_threads() - before if each.name.startswith("listener-")]
        assert len(listeners) == 4
    wait_until(lambda: client_threads() <= before)


@pytest.mark.parametrize("is_push", [True, False])
def test_a_consumer_waits_for_a_topic_that_is_made_later(
    name_server: str, is_push: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other topics are read meanwhile."""
    monkeypatch.setattr(sharing, "RETRY_S", 0.02)
    late = f"late-{uuid.uuid4().hex}"
    got: set[bytes] = set()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        got.update(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    def came(consumer: MemberConsumer, body: bytes) -> bool:
        if isinstance(consumer, PullConsumer):
            got.update(message.body for message in consumer.poll(0.01))
        return body in got

    made: Callable[[], MemberConsumer] = (
        (lambda: PushConsumer(RUNTIME, name_server, config(), listen))
        if is_push
        else (lambda: PullConsumer(RUNTIME, name_server, config()))
    )
    with new_topic(name_server, 1) as there, Producer(RUNTIME, name_server) as producer, made() as consumer:
        producer.send(there, b"early")
        consumer.subscribe(there)
        consumer.subscribe(late)
        assert isinstance(consumer, PushConsumer | PullConsumer)
        consumer.start()
        wait_until(lambda: came(consumer, b"early"))
        producer.send(late, b"late")
        wait_until(lambda: came(consumer, b"late"))
    assert f"waits for its topic: topic '{late}' is unknown to the name server" in caplog.text


class ConsumerLife(RuleBasedStateMachine):
    """A consumer's public calls in any order: what fits its state is done, else it is a LifecycleError, never another.

    Invariant: `state` is the model's state of it.
    """

    name_server: ClassVar[str]
    topic: ClassVar[str]
    consumer: PushConsumer | PullConsumer

    @initialize(is_push=st.booleans(), is_orderly=st.booleans())
    def make(self, *, is_push: bool, is_orderly: bool) -> None:
        """A new one."""
        self.before = client_threads()
        self.state = State.CREATED
        self.has_topic = False
        if is_push:
            self.consumer = PushConsumer(RUNTIME, self.name_server, config(), consumed, is_orderly=is_orderly)
        else:
            self.consumer = PullConsumer(RUNTIME, self.name_server, config())

    def expect(self, call: Callable[[], object], allowed: set[State]) -> bool:
        """Make a call, which must be refused but in the states in which it is allowed; whether it was made."""
        if self.state in allowed:
            call()
            return True
        with pytest.raises(LifecycleError) as refused:
            call()
        assert refused.value.args
        return False

    @rule()
    def subscribe(self) -> None:
        """Until it is closed."""
        self.has_topic |= self.expect(lambda: self.consumer.subscribe(self.topic), {State.CREATED, State.RUNNING})

    @rule()
    def start(self) -> None:
        """Once, and with a topic."""
        if self.state is State.CREATED and not self.has_topic:
            with pytest.raises(ConfigError, match="call subscribe or assign before start"):
                self.consumer.start()
            return
        if self.expect(self.consumer.start, {State.CREATED}):
            self.state = State.RUNNING

    @rule(timeout_s=st.sampled_from([0.0, 0.01]))
    def poll(self, timeout_s: float) -> None:
        """While it runs."""
        consumer = self.consumer
        if isinstance(consumer, PullConsumer):
            self.expect(lambda: consumer.poll(timeout_s, 1), {State.RUNNING})

    @rule()
    def commit(self) -> None:
        """While it runs."""
        if isinstance(self.consumer, PullConsumer):
            self.expect(self.consumer.commit, {State.RUNNING})

    @rule(by_another=st.booleans())
    def close(self, *, by_another: bool) -> None:
        """At any time, as often as one likes, from any thread."""
        if by_another:
            thread = RUNTIME.spawn("closer", self.consumer.close)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        else:
            self.consumer.close()
        self.state = State.CLOSED

    @precondition(lambda self: self.state is State.CLOSED)
    @rule()
    def look_for_threads(self) -> None:
        """None of its threads stays."""
        wait_until(lambda: client_threads() <= self.before)

    @invariant()
    def it_tells_of_itself(self) -> None:
        """Its queues and counts can be asked for at any time."""
        if hasattr(self, "consumer"):
            assert self.consumer._member.lifecycle.state is self.state
            assert isinstance(self.consumer.queues, tuple)
            assert self.consumer.statistics is not None

    def teardown(self) -> None:
        """Close it in whatever state it is."""
        if hasattr(self, "consumer"):
            self.consumer.close()
            wait_until(lambda: client_threads() <= self.before)


def live(name_server: str, topic: str, phases: Sequence[Phase] = tuple(Phase), examples_max: int = 20) -> None:
    """Run the machine against a broker."""
    lives = settings(
        max_examples=examples_max,
        stateful_step_count=12,
        deadline=None,
        phases=phases,
        suppress_health_check=[HealthCheck.too_slow],
    )

    class Here(ConsumerLife):
        pass

    Here.name_server, Here.topic = name_server, topic
    run_state_machine_as_test(Here, settings=lives)


def test_every_call_at_every_moment(name_server: str, topic: str) -> None:
    """Nothing but what the state says, and no thread is left."""
    live(name_server, topic)


PLANTED: Final = {
    "a second start": ("begin", lambda _self: None),
    "a close that is forgotten": ("end", lambda _self: True),
    "a subscription without effect": ("check_open", lambda _self: None),
    "a poll of nothing": ("check_running", lambda _self, _asked: None),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_calls_out_of_order_are_seen(
    name: str, name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the machine, within its examples."""
    monkeypatch.setattr(Lifecycle, *PLANTED[name])
    with pytest.raises((AssertionError, BaseExceptionGroup, ConfigError, pytest.fail.Exception)):
        live(name_server, topic, [Phase.generate], 200)
