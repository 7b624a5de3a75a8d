"""All public methods of producers and consumers, called at random times on random threads.

Each call works or raises a documented error, and a closed client says that it is closed. `close` ends and leaves
neither thread nor socket, and every acknowledged message is consumed once or can still be consumed. `test_failures`
tests clients of failing servers.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import ClassVar, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import client_threads, socket_count

from longpoll_client import (
    Admin,
    ClientError,
    ConfigError,
    LifecycleError,
    MessageQueue,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendResult,
)
from longpoll_client.lifecycle import State
from longpoll_client.settings import MemberConfig
from longpoll_runtime.recoverable import ANYTHING

QUEUE_COUNT: Final = 2
LONG: Final = os.environ.get("LONGPOLL_PROFILE") == "long"
CALLS: Final = (
    "subscribe",
    "unsubscribe",
    "assign one",
    "assign all",
    "start",
    "pause",
    "pause one",
    "resume",
    "resume one",
    "seek",
    "seek to beginning",
    "seek to end",
    "poll",
    "commit",
    "committed",
    "by time",
    "queues",
)


class EveryCall(RuleBasedStateMachine):
    """A state machine with one producer and one consumer of a group and topic.

    Invariant: `sent` has the offset of each acknowledged message, `got` of each delivered one, and `skipped` the
    highest offset sought in each queue.
    """

    name_server: ClassVar[str]
    outcomes: ClassVar[Counter[str]]
    """Outcome -> number of calls; shows what the runs covered."""

    @initialize()
    def make(self) -> None:
        """Create a topic and a producer for it."""
        self.threads = client_threads()
        self.sockets = socket_count()
        self.topic = f"T-{uuid.uuid4().hex[:8]}"
        self.group = f"G-{uuid.uuid4().hex[:8]}"
        with Admin(self.name_server) as admin:
            admin.create_topic(self.topic, QUEUE_COUNT)
            self.queues = admin.topic(self.topic).readable
        self.lock = threading.Lock()
        self.sent: set[tuple[int, int]] = set()
        self.got: set[tuple[int, int]] = set()
        self.skipped: dict[int, int] = {}
        self.faults: list[str] = []
        self.inside: list[Callable[[], None]] = []
        self.producer = Producer(self.name_server)
        self.consumer: PushConsumer | PullConsumer | None = None

    # ------------------------------------------------------------ how a call is made

    def tried(self, what: str, call: Callable[[], object], state: Callable[[], State]) -> None:
        """Call a method; an undocumented exception is a fault, and so is a success of a closed client."""
        before = state()
        error: BaseException | None = None
        try:
            call()
        except ANYTHING as raised:
            error = raised
        self.outcomes[what if error is None else f"{what}: {type(error).__name__}"] += 1
        if error is not None and not isinstance(error, ClientError | ConfigError):
            self.faults.append(f"{what}: {error!r}")
        elif before is State.CLOSED and not isinstance(error, LifecycleError) and what not in {"close", "queues"}:
            self.faults.append(f"{what} of a closed client: {error!r}")

    def made(self, call: Callable[[], None], where: str) -> None:
        """Call a method here, on another thread, or in the listener at its next message."""
        if where == "inside":
            self.inside.append(call)
        elif where == "another":
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a call does not return"
        else:
            call()
        assert self.faults == []

    # ------------------------------------------------------------ sending

    def note_sent(self, results: Sequence[SendResult]) -> None:
        with self.lock:
            self.sent.update((result.queue.queue_id, result.queue_offset) for result in results)

    def producer_state(self) -> State:
        return State.CLOSED if self.producer._instance._lifecycle.is_closed else State.RUNNING

    @rule(count=st.integers(1, 3), how=st.sampled_from(["one", "batch", "one way"]))
    def send(self, count: int, how: str) -> None:
        producer = self.producer

        def send() -> None:
            if how == "batch":
                self.note_sent(producer.send_batch(self.topic, [OutgoingMessage(b"x", tag="t")] * count))
            elif how == "one way":
                producer.send_one_way(self.topic, b"x", tag="t")
            else:
                self.note_sent([producer.send(self.topic, b"x", tag="t")])

        self.made(lambda: self.tried("send", send, self.producer_state), "here")

    @rule(while_sending=st.booleans())
    def close_producer(self, *, while_sending: bool) -> None:
        """Close the producer; a new one is made unless the test sends with a closed one."""
        if while_sending:
            sending = threading.Thread(target=self._send_on, daemon=True)
            sending.start()
            self.producer.close()
            sending.join(PATIENCE_S)
            assert not sending.is_alive(), "a send does not return"
        self.producer.close()
        assert self.faults == []

    def _send_on(self) -> None:
        for _number in range(50):
            self.tried("send", lambda: self.note_sent([self.producer.send(self.topic, b"x", tag="t")]), self._any_state)
            if self.producer_state() is State.CLOSED:
                return

    @staticmethod
    def _any_state() -> State:
        return State.RUNNING

    @precondition(lambda self: self.producer_state() is State.CLOSED)
    @rule()
    def new_producer(self) -> None:
        self.producer = Producer(self.name_server)

    # ------------------------------------------------------------ consuming

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """Record the messages, and make the calls that were scheduled for the listener."""
        self.note_got(messages)
        while self.inside:
            self.outcomes["inside"] += 1
            self.inside.pop()()
        return None

    def note_got(self, messages: Sequence[ReceivedMessage]) -> None:
        with self.lock:
            self.got.update((message.queue_id, message.queue_offset) for message in messages)

    @precondition(lambda self: self.consumer is None or self.consumer._member.lifecycle.is_closed)
    @rule(
        kind=st.sampled_from(["push", "orderly", "pull", "pull"]),
        is_wanting=st.sampled_from([True, True, False]),
        is_started=st.sampled_from([True, True, False]),
    )
    def new_consumer(self, kind: str, *, is_wanting: bool, is_started: bool) -> None:
        """Make a new consumer after one was closed and its last thread has ended; it may remain unstarted."""
        self.look_at_rest()
        config = MemberConfig(group=self.group, start_at="first", thread_count=2, batch_count_max=2, persist_s=0.05)
        self.inside.clear()
        if kind == "pull":
            self.consumer = PullConsumer(self.name_server, topics=(), **member_options(config))
        else:
            self.consumer = PushConsumer(
                self.name_server, topics=(), listener=self.listen, **member_options(config), orderly=kind == "orderly"
            )
        if is_wanting:
            self.consumer.subscribe(self.topic)
            if is_started:
                self.consumer.start()

    @precondition(lambda self: self.consumer is not None)
    @rule(
        name=st.sampled_from(CALLS),
        place=st.integers(0, 6),
        queue_id=st.integers(0, QUEUE_COUNT - 1),
        where=st.sampled_from(["here", "here", "another", "inside"]),
    )
    def call(self, name: str, place: int, queue_id: int, where: str) -> None:
        """Call any method of a consumer."""
        consumer, queue = self.consumer, self.queues[queue_id]
        assert consumer is not None
        if name in {"poll", "commit"} and where != "here":
            # `poll` and `commit` may only be called on one thread.
            where = "here"
        self.made(
            lambda: self.tried(
                name, lambda: self._call(consumer, name, place, queue), lambda: consumer._member.lifecycle.state
            ),
            where,
        )

    def _call(self, consumer: PushConsumer | PullConsumer, name: str, place: int, queue: MessageQueue) -> None:
        calls: dict[str, Callable[[], object]] = {
            "subscribe": lambda: consumer.subscribe(self.topic, "t" if place % 2 else "*"),
            "unsubscribe": lambda: consumer.unsubscribe(self.topic),
            "start": consumer.start,
            "pause": consumer.pause,
            "pause one": lambda: consumer.pause([queue]),
            "resume": consumer.resume,
            "resume one": lambda: consumer.resume([queue]),
            "committed": lambda: consumer.committed(queue),
            "by time": lambda: consumer.offset_for_timestamp(queue, datetime.fromtimestamp(0, UTC)),
            "queues": lambda: (consumer.queues, consumer.statistics),
        }
        if isinstance(consumer, PullConsumer):
            calls |= {
                "assign one": lambda: consumer.assign([queue]),
                "assign all": lambda: consumer.assign(self.queues),
                "seek": lambda: self._seek(queue, place, lambda: consumer.seek(queue, place)),
                "seek to beginning": lambda: consumer.seek_to_beginning(queue),
                "seek to end": lambda: self._seek(queue, 1 << 62, lambda: consumer.seek_to_end(queue)),
                "poll": lambda: self.note_got(consumer.poll(0.01 * (place % 3), 1 + place)),
                "commit": consumer.commit,
            }
        if name in calls:
            calls[name]()
        else:
            consumer.topic_queues(self.topic)

    def _seek(self, queue: MessageQueue, place: int, seek: Callable[[], None]) -> None:
        """Seek; messages before the highest sought offset of a queue need not be consumed."""
        with self.lock:
            self.skipped[queue.queue_id] = max(place, self.skipped.get(queue.queue_id, 0))
        seek()

    @precondition(lambda self: self.consumer is not None)
    @rule(where=st.sampled_from(["here", "another", "inside"]))
    def close_consumer(self, where: str) -> None:
        consumer = self.consumer
        assert consumer is not None
        self.made(lambda: self.tried("close", consumer.close, lambda: consumer._member.lifecycle.state), where)

    # ------------------------------------------------------------ the end

    def look_at_rest(self) -> None:
        """Assert that closed consumers have no thread, and that the producer has one reader thread."""
        running = {each for each in client_threads() - self.threads if not each.name.startswith("client-")}
        wait_until(lambda: not any(each.is_alive() for each in running))

    def teardown(self) -> None:
        """Close the clients, assert that nothing is left, and consume the remaining messages."""
        if not hasattr(self, "producer"):
            return
        self.producer.close()
        if self.consumer is not None:
            self.consumer.close()
        wait_until(lambda: client_threads() <= self.threads)
        wait_until(lambda: socket_count() <= self.sockets)
        assert self.faults == []
        self._drain()
        lost = {
            (queue_id, offset) for queue_id, offset in self.sent - self.got if offset >= self.skipped.get(queue_id, 0)
        }
        assert lost == set()

    def _drain(self) -> None:
        """Consume the group's remaining messages from its offsets on."""
        config = MemberConfig(group=self.group, start_at="first")
        with closing(PullConsumer(self.name_server, topics=(), **member_options(config))) as consumer:
            consumer.assign(self.queues)
            places = {queue.queue_id: consumer.committed(queue) or 0 for queue in self.queues}
            consumer.start()
            due = {(queue_id, offset) for queue_id, offset in self.sent if offset >= places[queue_id]}
            came: set[tuple[int, int]] = set()
            while not due <= came:
                messages = consumer.poll(PATIENCE_S)
                assert messages, f"only {sorted(came)} of {sorted(due)} came"
                came.update((message.queue_id, message.queue_offset) for message in messages)
                assert all(message.queue_offset >= places[message.queue_id] for message in messages)
        self.got |= came


def live(name_server: str, examples_max: int, phases: Sequence[Phase] = tuple(Phase)) -> Counter[str]:
    """Run the state machine against a broker; returns the number of calls by outcome."""

    class Here(EveryCall):
        pass

    Here.name_server, Here.outcomes = name_server, Counter()
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples_max,
            stateful_step_count=25,
            deadline=None,
            phases=phases,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    return Here.outcomes


@pytest.mark.timeout(3_600)
def test_every_method_works_or_raises_at_any_time_on_any_thread(name_server: str) -> None:
    """A long run contains every call, both with success and with a refusal, and calls inside a listener."""
    outcomes = live(name_server, 500 if LONG else 10)
    assert outcomes["send"]
    if LONG:
        assert set(CALLS) | {"close", "inside"} <= set(outcomes)
        assert {f"{name}: LifecycleError" for name in ("send", "start", "poll", "seek", "pause")} <= set(outcomes)
