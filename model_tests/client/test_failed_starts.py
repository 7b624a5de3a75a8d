"""Failed starts leave nothing behind, and a forked child makes its own threads and connections."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import attrs
import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic, share_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.client import RUNTIME, Machine, awaited, consumed, route_of, run
from model_tests.support.ports import closed_port

from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ClientError,
    ConfigError,
    LifecycleError,
    MessageQueue,
    NoRouteError,
    Producer,
    PullConsumer,
    PushConsumer,
    RefusedError,
    Sql,
    Tracing,
    TransactionProducer,
    TransactionState,
    UnreachableError,
    allocate_averagely,
)
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.link.steps import Steps
from longpoll_client.produce import requests as produce_requests
from longpoll_client.produce import transactions
from longpoll_client.settings import MemberConfig
from longpoll_client.timer import Timer
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_runtime.recoverable import ANYTHING, FAULTS

ABSENT: Final = "absent-topic"


@pytest.fixture(scope="module")
def topics(name_server: str) -> Sequence[str]:
    names = [f"T-{uuid.uuid4().hex}-{number}" for number in range(2)]
    with Admin(name_server) as admin:
        for name in names:
            admin.create_topic(name, queue_count=1)
        wait_until(lambda: set(names) <= set(admin.topic_names()))
    return names


@attrs.frozen
class Way:
    error: type[BaseException]
    says: str | None
    config: dict[str, Any] = attrs.field(factory=dict)
    topics: Sequence[int | None] = (0,)
    """The subscribed topic; None for a topic that does not exist."""
    expression: str = "*"
    server: Callable[[Peer, Command], None] | None = None
    """The server that answers instead of the broker."""
    is_absent: bool = False
    """Whether there is no name server."""
    threads_max: int = 1000
    """The largest number of threads; on an event loop it is 0."""


def raises(error: BaseException) -> Callable[..., Any]:
    """Return a callback that raises this error when queues are assigned, or when the result is reported."""

    def shares(*_given: object) -> Any:
        raise error

    return shares


def shares_one(client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return an allocation of queues that works for one topic and raises for others."""
    if queues[0].topic.endswith("-1"):
        raise ValueError("unshared")
    return allocate_averagely(client_id, members, queues)


def refuses(peer: Peer, command: Command) -> None:
    """Refuse every request of this group, as a broker and as its name server."""
    if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        peer.answer(command, body=route_of(("b", "{}:{}".format(*peer._socket.getsockname()))))
    else:
        peer.answer(command, ResponseCode.NO_PERMISSION)


def leads_nowhere(peer: Peer, command: Command) -> None:
    """Answer like a name server that names a broker which does not exist."""
    peer.answer(command, body=route_of(("b", "127.0.0.1:1")))


def hangs_up(peer: Peer, command: Command) -> None:
    """Close the connection when a member registers, as a broker."""
    if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        peer.answer(command, body=route_of(("b", "{}:{}".format(*peer._socket.getsockname()))))
    else:
        peer.close()


WAYS: Final[dict[str, Way]] = {
    "nothing is subscribed": Way(ConfigError, "has no topic; pass topics, or call assign before start", topics=()),
    "cannot reach any name server": Way(UnreachableError, "cannot reach any name server", is_absent=True),
    "no such topic": Way(NoRouteError, "is unknown", {"waits_for_topics": False}, (0, None)),
    "no running broker": Way(
        UnreachableError, "cannot connect to 127.0.0.1:1: Connection refused", server=leads_nowhere
    ),
    "no permission": Way(RefusedError, "16", server=refuses),
    "a broker that hangs up": Way(ClientError, "closed the connection|broke", server=hangs_up),
    "no such filter": Way(RefusedError, None, expression=Sql("a b c d")),
    "members cannot share": Way(ValueError, "unshared", {"allocate": raises(ValueError("unshared"))}, (None, 0)),
    "members cannot share the rest": Way(ValueError, "unshared", {"allocate": shares_one}, (0, 1)),
    "interrupted": Way(asyncio.CancelledError, None, {"allocate": raises(asyncio.CancelledError())}),
    **{f"{count} threads": Way(ClientError, "can't start new thread", threads_max=count) for count in range(7)},
}
OF_LISTENERS: Final = {f"{count} threads" for count in range(3, 7)}
"""A consumer without a listener has threads only for two connections and a timer."""
KINDS: Final = ("push", "orderly", "pull")
CELLS: Final = [(kind, way) for kind in KINDS for way in WAYS if kind != "pull" or way not in OF_LISTENERS]


def made(kind: str, runtime: Machine, name_server: str, topics: Sequence[str], way: Way, *, is_loop: bool) -> Any:
    """Return a consumer with a group of its own, whose start fails in this way."""
    options = member_options(MemberConfig(group=f"G-{uuid.uuid4().hex}", **way.config)) | {"runtime": runtime}
    consumer: Any
    if kind == "pull":
        consumer = (AsyncPullConsumer if is_loop else PullConsumer)(name_server, **options)
    else:
        options |= {"topics": (), "orderly": kind == "orderly"}
        if is_loop:
            consumer = AsyncPushConsumer(name_server, listener=awaited, **options)
        else:
            consumer = PushConsumer(name_server, listener=consumed, **options)
    for each in way.topics:
        consumer.subscribe(ABSENT if each is None else topics[each], way.expression)
    return consumer


def told(way: Way, name_server: str, story: Callable[[str], None]) -> None:
    """Run a coroutine with a client whose start fails in this way."""
    if way.server is not None:
        with ScriptedServer(way.server) as server:
            story(server.address)
    elif way.is_absent:
        with closed_port() as (host, port):
            story(f"{host}:{port}")
    else:
        story(name_server)


@pytest.mark.parametrize(("kind", "way"), CELLS)
def test_a_start_that_fails_leaves_nothing(name_server: str, topics: Sequence[str], kind: str, way: str) -> None:
    """A consumer on threads is started twice, as a user may retry, and then closed; nothing is left."""
    how = WAYS[way]

    def story(names: str) -> None:
        runtime = Machine(how.threads_max)
        with closing(made(kind, runtime, names, topics, how, is_loop=False)) as consumer:
            assert runtime.threads == [], "threads run before the start"
            for _try in range(2):
                runtime.threads.clear()
                # At the second start the route is known, so there is one connection less.
                runtime.threads_max -= _try
                with pytest.raises(how.error, match=how.says):
                    consumer.start()
                assert runtime.left() == []
            count = len(runtime.sockets)
        assert (runtime.left(), len(runtime.sockets)) == ([], count), "the close made a connection"
        with pytest.raises(LifecycleError):
            consumer.start()

    told(how, name_server, story)


@pytest.mark.parametrize("way", [name for name in WAYS if "threads" not in name])
@pytest.mark.parametrize("kind", KINDS)
def test_a_start_on_an_event_loop_that_fails_leaves_nothing(
    name_server: str, topics: Sequence[str], kind: str, way: str
) -> None:
    """No task, no socket and no timer of the event loop is left."""
    how = WAYS[way]

    async def tried(names: str) -> None:
        loop: Any = asyncio.get_running_loop()
        runtime = Machine()
        own = len(loop._selector.get_map())
        consumer = made(kind, runtime, names, topics, how, is_loop=True)
        try:
            for _try in range(2):
                with pytest.raises(how.error, match=how.says):
                    await consumer.start()
                assert asyncio.all_tasks() == {asyncio.current_task()}
                assert len(loop._selector.get_map()) == own, "a connection is left open"
                assert [handle for handle in loop._scheduled if not handle.cancelled()] == []
        finally:
            await consumer.close()
        assert len(loop._selector.get_map()) == own
        with pytest.raises(LifecycleError):
            await consumer.start()
        assert runtime.threads == []

    told(how, name_server, lambda names: asyncio.run(tried(names)))


CHECKS: Final[dict[str, Any]] = {"group": "G", "check_transaction": lambda _message: TransactionState.COMMIT}
MAKERS: Final[dict[Callable[..., Any], dict[str, Any]]] = {
    Producer: {"group": "P"},
    AsyncProducer: {"group": "P"},
    TransactionProducer: CHECKS,
    AsyncTransactionProducer: CHECKS,
    Admin: {},
    Tracing: {},
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_constructor_that_raises_leaves_nothing(kind: Callable[..., Any]) -> None:
    """A client with an invalid address or group raises in its constructor and leaves nothing."""
    runtime, options = Machine(), MAKERS[kind]
    with pytest.raises(ConfigError):
        kind("no address at all", runtime=runtime, **options)
    if options:
        with pytest.raises(ConfigError, match="group"):
            kind("127.0.0.1:1", runtime=runtime, **{**options, "group": ""})
    assert (runtime.threads, runtime.sockets) == ([], [])


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_consumer_that_is_closed_during_its_start_leaves_nothing(
    name_server: str, topic: str, is_orderly: bool
) -> None:
    """The first callback about assigned queues closes the consumer, on threads or from another task of the loop."""
    runtime, shares, closings = Machine(), list[MessageQueue](), list[asyncio.Task[None]]()
    options: dict[str, Any] = {"group": "closed", "topics": topic, "orderly": is_orderly, "runtime": runtime}

    def share(queue: MessageQueue, is_ours: bool) -> None:
        shares.append(queue)
        if is_ours:
            consumer.close()

    consumer = PushConsumer(name_server, listener=consumed, **options, **share_options(share))
    try:
        consumer.start()
    except LifecycleError:
        assert shares
    assert (len(shares) > 0, runtime.left()) == (True, [])

    async def story() -> None:
        def share_later(_queue: MessageQueue, is_ours: bool) -> None:
            if is_ours and not closings:
                closings.append(asyncio.create_task(listening.close()))

        listening = AsyncPushConsumer(name_server, listener=awaited, **options, **share_options(share_later))
        try:
            await listening.start()
        except LifecycleError:
            assert closings
        await closings[0]

    run(story)


def test_a_start_on_an_event_loop_may_be_cancelled_at_any_await(name_server: str, topic: str) -> None:
    """A timeout or a cancelled task at any await of the start leaves nothing, and the next start works."""

    async def story() -> None:
        loop: Any = asyncio.get_running_loop()
        own, turns, is_done = len(loop._selector.get_map()), 0, False
        while not is_done:
            listening = AsyncPushConsumer(name_server, group="cut", topics=topic, listener=awaited, orderly=True)
            starting = asyncio.create_task(listening.start())
            for _turn in range(turns):
                await asyncio.sleep(0)
            is_done = not starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if starting.cancelled():
                assert asyncio.all_tasks() == {asyncio.current_task()}
                assert len(loop._selector.get_map()) == own
                if turns % 7 == 0:
                    await listening.start()
            await listening.close()
            assert len(loop._selector.get_map()) == own
            turns += 1 if turns < 40 else turns
        assert turns > 1

    run(story)


pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def nothing() -> None:
    """Do nothing in the parent."""


def in_child(story: Callable[[], object], meanwhile: Callable[[], None] = nothing) -> Any:
    """Return the result of a function in a forked child, or the name of its error; a hanging child is ended.

    The parent runs `meanwhile` once the child exists.
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


def test_a_child_that_closes_its_parents_consumer_does_not_affect_the_parent(name_server: str, topic: str) -> None:
    """When a child closes its parent's consumer, the parent stays in its group and keeps its newer offset."""
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
            # After the fork the parent consumes another message and commits, so the child's offset is older.
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
        # The parent has not left, so its group still has one member.
        member = consumer._member
        (route,) = member.run(member.rebalancer.routes()).values()
        assert member.run(member.membership.members(route)) == [consumer._member.client_id]
        producer.send(topic, b"3")
        assert [message.body for message in consumer.poll(PATIENCE_S)] == [b"3"]


def test_children_that_start_the_same_consumer_are_separate_members(name_server: str, topic: str) -> None:
    """If a server makes a consumer and then forks workers, each child must get its own client id."""
    config = MemberConfig(group="workers", start_at="first")
    consumer = PushConsumer(name_server, topics=topic, listener=consumed, **member_options(config))

    def story() -> str:
        with consumer:
            return consumer._member.client_id

    names = {in_child(story), in_child(story)}
    with consumer:
        names.add(consumer._member.client_id)
    assert len(names) == 3


def test_a_client_of_an_event_loop_has_another_id_in_a_child(name_server: str) -> None:
    """A child's client has its own id, unless the user set one, and makes its own connections."""
    instance, named = AsyncInstance(RUNTIME, name_server), AsyncInstance(RUNTIME, name_server, client_id="given")

    assert len({instance.client_id, in_child(lambda: instance.client_id), in_child(lambda: instance.client_id)}) == 3
    assert named.client_id == in_child(lambda: named.client_id) == "given"


@pytest.fixture
def parent(name_server: str, topic: str) -> Iterator[Producer]:
    with Producer(name_server) as producer:
        assert producer.send(topic, b"1").queue_offset == 0
        yield producer


def test_a_child_that_closes_a_producer_writes_nothing_to_its_parents_connection(
    name_server: str, topic: str, parent: Producer
) -> None:
    """The child must not write to the parent's connection, and the parent still sends its pending data."""
    (client,) = [each for each in parent._instance._clients.values() if each.address != name_server]

    def story() -> bool:
        client._output.add([b"a half of a frame"])
        parent.close()
        return client._output.size > 0

    assert in_child(story)
    assert parent.send(topic, b"2").queue_offset == 1
    assert client in parent._instance._clients.values()


LOCKS: Final = (
    "_instance._lock",
    "_instance._lifecycle._lock",
    "_instance._connecting",
    "_instance._single_flight._lock",
    "_in_flight._single_flight._lock",
    "_requests._lock",
    "_sender.watch._lock",
    "_sender.ids._lock",
)
"""The locks of a producer, and those of each address that it connects to."""


@pytest.mark.parametrize("name", LOCKS)
def test_a_child_waits_for_no_lock_of_its_parents_threads(topic: str, parent: Producer, name: str) -> None:
    """A thread may hold a lock during the fork. Children used to wait for this lock, and 6 of 20 hung."""
    found = operator.attrgetter(name)(parent)
    locks = found.values() if isinstance(found, dict) else [found]
    if name != "_instance._connecting":
        parent._instance.doubt_route(topic)

    def story() -> list[object]:
        told: SimpleQueue[object] = SimpleQueue()
        outcomes: list[object] = [parent.send(topic, b"2").code]
        parent.send_nowait(topic, b"3", callback=told.put)
        outcomes += [type(told.get(timeout=PATIENCE_S)).__name__, parent.metrics().failures]
        parent.close()
        return outcomes

    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        assert in_child(story) == [0, "SendResult", 0]
    assert parent.send(topic, b"4").code == 0


def test_a_child_that_sends_requests_sends_heartbeats_too(parent: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's own thread sends heartbeats, although the parent had already registered."""
    requests = parent._requests
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


def test_a_timer_of_a_child_waits_for_no_thread_of_its_parent() -> None:
    """The child's timer waits for no thread of the parent, and runs no action of the parent's timer."""
    timer, told = Timer(RUNTIME, "forked"), SimpleQueue[str]()
    timer.after(3600.0, lambda: told.put("the parent's"))

    def story() -> str:
        timer.after(0.0, lambda: told.put("the child's"))
        return told.get(timeout=PATIENCE_S)

    with timer._changed:
        assert in_child(story) == "the child's"
    timer.close()


def test_a_child_does_not_write_its_parents_pending_trace(name_server: str) -> None:
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


def test_a_child_repeats_its_parents_look_ups_and_calls_no_callback_of_the_parent(topic: str, parent: Producer) -> None:
    """A child repeats look-ups that a thread of the parent has begun, and does not answer the parent's callers."""
    told: list[object] = []
    asked, go = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        assert go.wait(PATIENCE_S)

    parent._instance._single_flight.wait(("route", topic), hold, told.append)
    parent._requests.expect("1", 3600.0, told.append)
    assert asked.wait(PATIENCE_S)
    parent._instance.doubt_route(topic)

    def story() -> list[object]:
        parent.send(topic, b"2")
        is_fresh = parent._instance.fresh_route(topic) is not None
        parent.close()
        return [is_fresh, *told]

    assert in_child(story, go.set) == [True]
    parent.close()
    assert len(told) == 2


def test_a_child_that_sends_transactions_sends_heartbeats_too(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers forget a client without heartbeats after two minutes, and then do not check its transactions."""
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
def test_a_client_works_after_many_interrupts(name_server: str, what: str) -> None:
    """After thousands of interrupts no lock is left held, and every method of the client still works."""
    with new_topic(name_server, 2) as topic:
        command = [sys.executable, "-m", "model_tests.client.interrupted", what, name_server, topic, "7"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["after"] == (topic if what == "send" else "last")
    assert said["interrupted"] == 200
