"""Processes that are forked or interrupted (Ctrl-C) while they have clients."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pytest
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.client import PATIENCE_S, RUNTIME, consumed

from longpoll_client import (
    Admin,
    Producer,
    PullConsumer,
    PushConsumer,
    Tracing,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.link.steps import Steps
from longpoll_client.produce import requests as produce_requests
from longpoll_client.produce import transactions
from longpoll_client.settings import MemberConfig
from longpoll_client.timer import Timer
from longpoll_runtime.recoverable import ANYTHING, FAULTS

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def nothing() -> None:
    """Nothing is done meanwhile."""


def in_child(story: Callable[[], object], meanwhile: Callable[[], None] = nothing) -> Any:
    """The result of a function in a forked process, or the error's name; a hanging process is ended.

    This process runs `meanwhile` once the other one exists.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            told = story()
        except ANYTHING as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    ending = threading.Timer(PATIENCE_S, os.kill, (child, 9))
    ending.start()
    meanwhile()
    with os.fdopen(reading) as told_by:
        text = told_by.read()
    os.waitpid(child, 0)
    ending.cancel()
    assert text, "the child hangs"
    return json.loads(text)


def test_a_child_that_closes_its_parent_s_consumer_leaves_it_alone(name_server: str, topic: str) -> None:
    """As at the end of a `with`: the parent stays in its group, and no older offset is put over its own."""
    config = MemberConfig(group="parents", start_at="first", persist_s=3600.0)

    def stored() -> int:
        with Admin(name_server) as admin:
            return sum(row.stored or 0 for row in admin.offsets("parents", [topic]))

    with (
        Producer(name_server) as producer,
        PullConsumer(name_server, topics=topic, **member_options(config)) as consumer,
    ):
        for body in (b"1", b"2"):
            producer.send(topic, body)
        assert [message.body for message in consumer.poll(PATIENCE_S, 1)] == [b"1"]
        consumer.commit()
        resumed, resume = os.pipe()

        def story() -> list[str]:
            os.read(resumed, 1)
            told = []
            for call in (consumer.close, lambda: consumer.poll(0.1), consumer.commit, consumer.start):
                try:
                    told.append(f"done {call()}")
                except FAULTS as error:
                    told.append(f"{type(error).__name__}: {error}")
            return told

        def go_on() -> None:
            # Wherever the parent stands by now: the child knows of one message, which was not stored when it was made.
            assert [message.body for message in consumer.poll(PATIENCE_S, 1)] == [b"2"]
            consumer.commit()
            consumer._member.run(consumer._member.rebalancer.persist())
            os.write(resume, b"x")

        told = in_child(story, go_on)
        for end in (resumed, resume):
            os.close(end)
        words = (
            "LifecycleError: the consumer of group parents belongs to the parent process of a fork; create a new one"
        )
        assert told == ["done None", words, words, words]
        assert stored() == 2
        # Nobody has said that the parent is gone: its group has it as its one member.
        member = consumer._member
        (route,) = member.run(member.rebalancer.routes()).values()
        assert member.run(member.membership.members(route)) == [consumer._member.client_id]
        producer.send(topic, b"3")
        assert [message.body for message in consumer.poll(PATIENCE_S)] == [b"3"]


def test_children_that_start_one_consumer_are_members_of_their_own(name_server: str, topic: str) -> None:
    """As where a server makes it and forks its workers then: under one name both would have every queue."""
    config = MemberConfig(group="workers", start_at="first")
    consumer = PushConsumer(name_server, topics=topic, listener=consumed, **member_options(config))

    def story() -> str:
        with consumer:
            return consumer._member.client_id

    names = {in_child(story), in_child(story)}
    with consumer:
        names.add(consumer._member.client_id)
    assert len(names) == 3


def test_a_client_of_an_event_loop_has_another_name_in_a_child(name_server: str) -> None:
    """As long as it was given none; the child makes its connections itself."""
    instance, named = AsyncInstance(RUNTIME, name_server), AsyncInstance(RUNTIME, name_server, client_id="given")

    assert len({instance.client_id, in_child(lambda: instance.client_id), in_child(lambda: instance.client_id)}) == 3
    assert named.client_id == in_child(lambda: named.client_id) == "given"


def test_a_child_that_closes_a_producer_says_nothing_by_its_connection(name_server: str, topic: str) -> None:
    """The parent sends its pending data, and its connection stays."""
    with Producer(name_server) as producer:
        before = producer.send(topic, b"1")
        (client,) = [each for each in producer._instance._clients.values() if each.address != name_server]

        def story() -> bool:
            client._output.add([b"a half of a frame"])
            producer.close()
            return client._output.size > 0

        assert in_child(story)
        after = producer.send(topic, b"2")
        assert after.queue_offset == before.queue_offset + 1
        assert client in producer._instance._clients.values()


LOCKS: Final = (
    "_instance._lock",
    "_instance._lifecycle._lock",
    "_instance._single_flight._lock",
    "_in_flight._single_flight._lock",
    "_requests._lock",
    "_sender.watch._lock",
    "_sender.ids._lock",
)


@pytest.mark.parametrize("name", LOCKS)
def test_a_child_waits_for_no_lock_that_a_thread_of_its_parent_s_had(name_server: str, topic: str, name: str) -> None:
    """Each for a moment only, but a fork in that moment left it taken for ever: of 20 children 6 never sent."""
    with Producer(name_server) as producer:
        producer.send(topic, b"1")
        producer._instance.doubt_route(topic)

        def story() -> list[object]:
            told: SimpleQueue[object] = SimpleQueue()
            outcomes: list[object] = [producer.send(topic, b"2").code]
            producer.send_nowait(topic, b"3", callback=told.put)
            outcomes += [type(told.get(timeout=PATIENCE_S)).__name__, producer.metrics().failures]
            producer.close()
            return outcomes

        with operator.attrgetter(name)(producer):
            assert in_child(story) == [0, "SendResult", 0]
        assert producer.send(topic, b"4").code == 0


def test_a_child_connects_where_a_thread_of_its_parent_s_was_about_to(name_server: str, topic: str) -> None:
    """To the same brokers and name servers: whose turn that was is for the parent alone to say."""
    with Producer(name_server) as producer, ExitStack() as stack:
        producer.send(topic, b"1")
        for connecting in producer._instance._connecting.values():
            stack.enter_context(connecting)
        assert in_child(lambda: producer.send(topic, b"2").code) == 0


def test_a_child_that_asks_for_replies_is_known_to_brokers_for_as_long_as_it_lives(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent had asked before, and its thread sends the heartbeats."""
    with Producer(name_server) as producer:
        producer.send(topic, b"1")
        assert producer._requests is not None
        requests = producer._requests
        requests.expect("1", 3600.0, print)

        def story() -> bool:
            known = threading.Event()
            monkeypatch.setattr(produce_requests, "HEARTBEAT_S", 0.02)

            def heartbeat_all(_heartbeat: object) -> Steps[None]:
                known.set()
                yield from ()

            monkeypatch.setattr(type(requests._heartbeat), "heartbeat_all", heartbeat_all)
            requests.expect("2", 3600.0, print)
            return known.wait(PATIENCE_S / 4)

        assert in_child(story) is True


def test_a_timer_of_a_child_waits_for_no_thread_of_its_parent_s() -> None:
    """Nor does it do what its parent's is to do."""
    timer, told = Timer(RUNTIME, "forked"), SimpleQueue[str]()
    timer.after(3600.0, lambda: told.put("the parent's"))

    def story() -> str:
        timer.after(0.0, lambda: told.put("the child's"))
        return told.get(timeout=PATIENCE_S)

    with timer._changed:
        assert in_child(story) == "the child's"
    timer.close()


def test_a_child_writes_none_of_the_trace_that_its_parent_is_to_write(name_server: str) -> None:
    tracing = Tracing(name_server)
    tracing._lines.append(("key", "line"))

    def story() -> list[object]:
        with tracing._lock:
            return list(tracing._lines)

    with tracing._lock:
        assert in_child(story) == []
    assert tracing._lines == [("key", "line")]
    tracing._lines.clear()
    tracing.close()


def test_a_child_does_what_its_parent_waits_for_itself_and_tells_nobody_of_the_parent_s(
    name_server: str, topic: str
) -> None:
    """The thread that asks for a route is the parent's, and so are those who send by it, and who wait for replies."""
    told: list[object] = []
    asked, go = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        assert go.wait(PATIENCE_S)

    with Producer(name_server) as producer:
        producer.send(topic, b"1")
        producer._instance._single_flight.wait(("route", topic), hold, told.append)
        assert producer._requests is not None
        producer._requests.expect("1", 3600.0, told.append)
        assert asked.wait(PATIENCE_S)
        producer._instance.doubt_route(topic)

        def story() -> list[object]:
            producer.send(topic, b"2")
            is_fresh = producer._instance.fresh_route(topic) is not None
            producer.close()
            return [is_fresh, *told]

        assert in_child(story, go.set) == [True]
    assert len(told) == 2


def test_a_child_that_sends_transactions_is_known_to_brokers_for_as_long_as_it_lives(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers forget clients without a heartbeat after two minutes, and then check no transactions."""
    greeted: list[int] = []
    monkeypatch.setattr(transactions, "HEARTBEAT_S", 0.02)
    with TransactionProducer(
        name_server, group="forked-sellers", check_transaction=lambda _message: TransactionState.COMMIT
    ) as producer:

        def story() -> bool:
            known, heartbeat = threading.Event(), producer._heartbeat.heartbeat_all

            def heartbeat_all(_heartbeat: object) -> Steps[None]:
                yield from heartbeat()
                greeted.append(len(producer._heartbeat._registered))
                known.set()

            monkeypatch.setattr(type(producer._heartbeat), "heartbeat_all", heartbeat_all)
            producer.send(topic, b"1", lambda: TransactionState.COMMIT)
            return known.wait(PATIENCE_S)

        assert in_child(story) is True


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("what", ["send", "poll", "subscribe"])
def test_a_client_that_was_interrupted_often_goes_on(name_server: str, what: str) -> None:
    """No lock is left taken, on which a thread of the client's would wait for ever; and nothing is in the way of it."""
    with new_topic(name_server, 2) as topic:
        command = [sys.executable, "-m", "model_tests.client.interrupted", what, name_server, topic, "7"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["after"] == (topic if what == "send" else "last")
    assert said["interrupted"] == 200
