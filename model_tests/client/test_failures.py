"""Failures around a client: silent connections, name servers, bad routes, callbacks that exit, missing descriptors."""

from __future__ import annotations

import array
import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.client import RUNTIME, Clients, Cluster, Machine, OneServer, route_of, take
from model_tests.support.service import ShiftedRuntime

from longpoll.wire.relay import Relay
from longpoll_client import (
    Admin,
    AnswerTimeoutError,
    AsyncProducer,
    ClientError,
    ConfigError,
    ConnectionLostError,
    LifecycleError,
    NoRouteError,
    OutgoingMessage,
    Producer,
    PullConsumer,
    RefusedError,
    SendResult,
    UnreachableError,
    instance,
)
from longpoll_client.aio import instance as aio_instance
from longpoll_client.link import exchange
from longpoll_client.link.routes import ROUTE_AGE_S_MAX, NameServers, split_address
from longpoll_client.produce import attempts as tries
from longpoll_client.produce.outgoing import BODY_SIZE_MAX, as_given, batch_parcel, single_parcel
from longpoll_client.remoting import RemotingClient
from longpoll_client.settings import MemberConfig
from longpoll_client.timer import Timer
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command

AGED_MS = int(ROUTE_AGE_S_MAX * 1000)
"""A route that is older than this is looked up again, in ms."""


@define
class Broker:
    """A broker whose first `dead_count` connections get no more answers."""

    peers: list[Peer] = field(factory=list)
    dead_count: int = 0

    def __call__(self, peer: Peer, command: Command) -> None:
        if peer not in self.peers:
            self.peers.append(peer)
        if self.peers.index(peer) >= self.dead_count:
            take(peer, command)

    def fall_silent(self) -> None:
        """Answer only new connections from now on."""
        self.dead_count = len(self.peers)


@pytest.fixture
def silent() -> Broker:
    """The broker of topic T."""
    return Broker()


@pytest.fixture
def cluster(silent: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A name server and the broker `silent`. An unanswered call counts as silence, however late the call began."""
    monkeypatch.setattr(exchange, "SILENCE_S", 0.0)
    with ExitStack() as stack:
        made = Cluster(stack)
        made.serve("T", silent)
        yield made


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_connection_that_fell_silent_is_replaced(cluster: Cluster, silent: Broker, is_loop: bool) -> None:
    """A half-open connection shows no error, and a new one works, so at most one send fails."""
    producer = Clients(cluster.name_server, cluster.stack, is_loop=is_loop).producer()
    producer.send("T", b"x")
    silent.fall_silent()
    with pytest.raises(AnswerTimeoutError):
        producer.send("T", b"y", timeout_s=0.2)
    for _number in range(3):
        producer.send("T", b"z")
    assert len(silent.peers) == 2


def test_a_connection_whose_calls_are_all_cancelled_is_replaced(cluster: Cluster, silent: Broker) -> None:
    """On an event loop each caller's own timeout cancels its call, and still the silent connection is noticed."""

    async def story() -> list[SendResult | None]:
        async with AsyncProducer(cluster.name_server) as producer:
            await producer.send("T", b"x")
            silent.fall_silent()
            outcomes: list[SendResult | None] = []
            while not any(outcomes) and len(outcomes) < 20:
                outcomes.append(await sent_within(0.05 * (1 + len(outcomes)), producer))
            return outcomes

    async def sent_within(time_s: float, producer: AsyncProducer) -> SendResult | None:
        try:
            async with asyncio.timeout(time_s):
                return await producer.send("T", b"y", timeout_s=60.0)
        except TimeoutError:
            return None

    outcomes = asyncio.run(story())
    assert (outcomes[0] is None, outcomes[-1] is None) == (True, False)
    assert len(silent.peers) > 1


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_connection_whose_answer_trickles_is_replaced(
    cluster: Cluster, silent: Broker, monkeypatch: pytest.MonkeyPatch, is_loop: bool
) -> None:
    """Single bytes are not silence, but the frame never ends, so the connection is replaced."""
    monkeypatch.setattr(exchange, "SILENCE_S", PATIENCE_S)
    monkeypatch.setattr(exchange, "FRAME_S", 0.3)
    monkeypatch.setattr(tries, "ATTEMPT_COUNT", 1)
    relay = cluster.stack.enter_context(Relay(split_address(cluster.brokers["T"])))
    cluster.brokers["T"] = "{}:{}".format(*relay.address)
    producer = Clients(cluster.name_server, cluster.stack, is_loop=is_loop).producer()

    def outcome() -> object:
        try:
            return producer.send("T", b"x", timeout_s=0.4)
        except ClientError as error:
            return error

    producer.send("T", b"x")
    relay.begin("trickle")
    outcomes = [outcome()]
    while len(silent.peers) == 1:
        assert len(outcomes) < 30, "the connection is not replaced"
        outcomes.append(outcome())
    producer.send("T", b"x")
    assert isinstance(outcomes[0], AnswerTimeoutError)


def test_a_restarted_name_server_removes_no_route(
    cluster: Cluster, silent: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A restarted name server does not know the topic, so the client keeps the old route and logs that."""
    runtime = ShiftedRuntime()
    with Producer(cluster.name_server, runtime=runtime) as producer:
        producer.send("T", b"x")
        cluster.is_empty = True
        silent.fall_silent()
        with pytest.raises(AnswerTimeoutError):
            producer.send("T", b"y", timeout_s=0.2)
        producer.send("T", b"z")
        for is_empty in (True, False):
            runtime.gone_ms += AGED_MS
            cluster.is_empty = is_empty
            producer.send("T", b"z")
    assert cluster.asked >= 2
    assert "uses its last known route" in caplog.text


@pytest.mark.parametrize("is_loop", [False, True])
def test_an_unresponsive_name_server_delays_no_send(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_loop: bool
) -> None:
    """Neither a failed send nor a route that is too old makes the next send wait for the name server."""
    monkeypatch.setattr(aio_instance if is_loop else instance, "DOUBT_WAIT_S", 0.05)
    with ExitStack() as stack:
        runtime = ShiftedRuntime()
        producer = Clients(cluster.name_server, stack, is_loop=is_loop).producer(runtime=runtime)
        producer.send("T", b"x")
        cluster.is_mute = True
        runtime.gone_ms = AGED_MS
        producer.send("T", b"x")
        (producer.client if is_loop else producer)._instance.doubt_route("T")
        assert producer.send("T", b"x").queue_offset == 7


EXITS: list[type[BaseException]] = [SystemExit, KeyboardInterrupt, GeneratorExit]


def raises(error: type[BaseException]) -> Callable[..., Any]:
    """Return a callback that raises this exception."""

    def called(*_said: object, **_more: object) -> None:
        raise error

    return called


def released(view: memoryview) -> memoryview:
    """Return a memoryview whose buffer was released."""
    view.release()
    return view


class Hook:
    """A hook that raises SystemExit after a send."""

    def before_send(self, sending: Any) -> None:
        """Do nothing before a send."""

    after_send = staticmethod(raises(SystemExit))


@pytest.mark.parametrize(("error", "hooks"), [*((error, []) for error in EXITS), (None, [Hook()])])
def test_a_callback_that_exits_ends_neither_its_thread_nor_the_process(
    error: type[BaseException] | None, hooks: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The exit of a callback or hook is logged, other callbacks run, and the next send is stored."""
    runtime, outcomes = Machine(), list[object]()
    with OneServer().served() as server, Producer(server.address, hooks=hooks, runtime=runtime) as producer:
        if error is not None:
            producer.send_nowait("T", b"1", callback=raises(error))
        producer.send_nowait("T", b"2", callback=outcomes.append)
        wait_until(lambda: bool(outcomes))
        if error is not None:
            assert producer.send("T", b"3").queue_offset == 7
            assert "the callback of SEND_MESSAGE_V2" in caplog.text
    assert [type(outcome) for outcome in outcomes] == [SendResult]
    assert runtime.died == []


@pytest.mark.parametrize("error", EXITS)
def test_an_exit_in_on_assigned_or_a_reply_callback_stops_no_thread(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """If `on_assigned` or a reply's callback exits, later actions run and the connection's reader continues."""
    runtime, done = Machine(), threading.Event()
    timer = Timer(runtime, "later")
    timer.after(0.0, raises(error))
    timer.after(0.0, done.set)
    assert done.wait(PATIENCE_S)
    timer.close()
    assert runtime.died == []
    with OneServer().served() as server:
        host, port = split_address(server.address)
        with closing(RemotingClient(RUNTIME, host, port, on_request=raises(error))) as connection:
            connection._requested(Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT))
            assert connection.is_open
    assert f"a request of {server.address} could not be served" in caplog.text


def descriptors() -> int:
    gc.collect()
    return sum(1 for _descriptor in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(("lacks", "words"), [("descriptors", "Too many open files"), ("threads", "start new thread")])
def test_a_connection_without_a_thread_or_descriptor_raises_and_leaves_nothing(lacks: str, words: str) -> None:
    """If threads or descriptors run out, a send raises. Once they are free again, the same producer sends."""
    server, runtime = OneServer(), Machine()
    with server.served() as scripted, Producer(scripted.address, runtime=runtime) as producer:
        runtime.has_descriptors = lacks != "descriptors"
        runtime.threads_max = 0 if lacks == "threads" else 1000
        before = descriptors()
        with pytest.raises(UnreachableError, match=words):
            producer.send("T", b"x", timeout_s=1.0)
        # The server frees its state of a connection when it sees the close.
        wait_until(lambda: descriptors() <= before + len(scripted._sockets))
        runtime.has_descriptors, runtime.threads_max = True, 1000
        assert producer.send("T", b"x").queue_offset == 7


class Interrupted(Machine):
    """A runtime in which Ctrl-C arrives as soon as a connection's thread has begun."""

    is_due = True

    def spawn(self, name: str, target: Callable[[], None]) -> Any:
        """Start the thread, and raise before the caller gets it."""
        thread = super().spawn(name, target)
        if self.is_due and name.startswith("client-127"):
            self.is_due = False
            raise KeyboardInterrupt
        return thread


def test_an_interrupted_connect_leaves_nothing() -> None:
    """After an interrupt during a connect the thread ends silently, and the next send connects again."""
    server, runtime = OneServer(), Interrupted()
    before = threading.active_count()
    with server.served() as scripted, Producer(scripted.address, runtime=runtime) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send("T", b"x")
        assert producer.send("T", b"x").queue_offset == 7
    wait_until(lambda: threading.active_count() <= before)
    assert runtime.died == []


@pytest.mark.parametrize("other", ["nowhere", "", "127.0.0.1:0", "127.0.0.1:70000", " :10911", "127.0.0.1:x"])
def test_a_broker_without_a_valid_address_is_left_out_of_a_route(other: str, caplog: pytest.LogCaptureFixture) -> None:
    server = OneServer(route=lambda address: route_of(("a", other), ("b", address)))
    with server.served() as scripted, Producer(scripted.address) as producer:
        assert {producer.send("T", b"x").queue.broker_name for _number in range(4)} == {"b"}
    assert "leads nowhere at broker a" in caplog.text


def test_a_route_without_a_valid_address_counts_as_missing(caplog: pytest.LogCaptureFixture) -> None:
    """A route without any broker raises the same error as a missing route."""
    caplog.set_level(logging.WARNING)
    server = OneServer(route=lambda _address: route_of(("b", "nowhere")))
    with (
        server.served() as scripted,
        Producer(scripted.address) as producer,
        pytest.raises(NoRouteError, match="no running broker"),
    ):
        producer.send("T", b"x")
    assert "'nowhere' is not an address" in caplog.text


def test_a_body_is_copied_when_send_is_called() -> None:
    """A later change of the body's buffer does not change the message, whatever the buffer's items are."""
    bodies: list[bytes] = []
    server = OneServer()

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            bodies.append(bytes(command.body))
        server(peer, command)

    outcomes: list[object] = []
    with server.served(serve) as scripted, Producer(scripted.address, compression=None) as producer:
        producer.send("T", b"first")
        buffer = bytearray(1 << 20)
        for number in range(8):
            buffer[:] = bytes([number]) * len(buffer)
            producer.send_nowait("T", buffer, callback=outcomes.append)  # type: ignore[call-overload] # a buffer will do as well
        buffer[:] = b"\xff" * len(buffer)
        wait_until(lambda: len(outcomes) == 8)
        words = memoryview(array.array("i", [1, 2, 3]))
        producer.send("T", words)  # type: ignore[arg-type]
    assert [body[:1] + body[-1:] for body in bodies[1:9]] == [bytes([number]) * 2 for number in range(8)]
    assert bodies[9] == array.array("i", [1, 2, 3]).tobytes()


WORDS = array.array("I", range(BODY_SIZE_MAX // 4))
GRID = memoryview(bytes(BODY_SIZE_MAX)).cast("B", (4, BODY_SIZE_MAX // 4))
BUFFERS: list[tuple[Any, bytes | str]] = [
    (memoryview(WORDS), WORDS.tobytes()),
    (memoryview(array.array("I", [*WORDS, 1])), f"body of {BODY_SIZE_MAX + 4} bytes is over the limit"),
    (GRID, bytes(BODY_SIZE_MAX)),
    (memoryview(bytes(2 * BODY_SIZE_MAX)).cast("B", (2, BODY_SIZE_MAX)), f"body of {2 * BODY_SIZE_MAX} bytes"),
    (memoryview(b"a-b-c")[::2], b"abc"),
    (memoryview(b"abc")[::-1], b"cba"),
    (memoryview(WORDS)[::-2], WORDS[::-2].tobytes()),
    (memoryview(bytes(2 * BODY_SIZE_MAX))[::2], bytes(BODY_SIZE_MAX)),
    (memoryview(b"x").cast("B", ()), b"x"),
    (memoryview(b""), b""),
    (bytearray(BODY_SIZE_MAX), bytes(BODY_SIZE_MAX)),
    (bytearray(BODY_SIZE_MAX + 1), f"body of {BODY_SIZE_MAX + 1} bytes is over the limit"),
    (released(memoryview(b"x")), "the body is a released memoryview"),
    (array.array("b", b"abc"), "a body of type array cannot be sent; pass bytes"),
    ("abc", "a body of type str cannot be sent; pass bytes"),
    ([97], "a body of type list cannot be sent; pass bytes"),
]


@pytest.mark.parametrize("number", range(len(BUFFERS)))
def test_the_size_of_a_buffer_is_counted_in_bytes(number: int) -> None:
    """The client sends a buffer of any item type and dimension unchanged, or refuses it for its size in bytes."""
    body, outcome = BUFFERS[number]
    message = OutgoingMessage(body)

    def written() -> list[bytes]:
        single = single_parcel("G", "T", message, "id", 0).body
        return [single, as_given("T", message).body]

    if isinstance(outcome, bytes):
        assert written() == [outcome] * 2
        if len(outcome) < 100:
            batch = batch_parcel("G", "T", [message], ["id"], 0).body
            assert len(outcome).to_bytes(4, "big") + outcome in bytes(batch)
        return
    for write in (written, lambda: as_given("T", message), lambda: batch_parcel("G", "T", [message], ["id"], 0)):
        with pytest.raises(ConfigError, match=outcome):
            write()


def test_a_request_is_copied_when_it_is_made() -> None:
    """A request on an event loop copies its buffer and properties before it waits for a route."""
    bodies: list[tuple[bytes, bool]] = []
    server, codes = OneServer(), list[int]()

    def serve(peer: Peer, command: Command) -> None:
        codes.append(command.code)
        if command.code == RequestCode.SEND_MESSAGE_V2:
            bodies.append((bytes(command.body), "late" in str(command.ext_fields)))
        server(peer, command)

    async def story(address: str) -> None:
        is_told: list[object] = []
        async with AsyncProducer(address, group="askers") as producer:
            buffer, properties = bytearray(b"first"), {"mark": "early"}
            message = OutgoingMessage(buffer)  # type: ignore[arg-type]
            asking = asyncio.create_task(
                producer.request("T", buffer, properties=properties, timeout_s=PATIENCE_S)  # type: ignore[arg-type]
            )
            await asyncio.sleep(0)
            producer.request_nowait(
                "T", message.body, callback=is_told.append, properties=properties, timeout_s=PATIENCE_S
            )
            buffer[:], properties["mark"] = b"later", "late"
            await asyncio.to_thread(wait_until, lambda: len(bodies) == 2)
        with pytest.raises(ConnectionLostError, match="before a reply came"):
            await asking
        assert len(is_told) == 1

    with server.served(serve) as scripted:
        asyncio.run(story(scripted.address))
    assert bodies == [(b"first", False)] * 2
    assert codes[-1] == RequestCode.UNREGISTER_CLIENT, "a closed producer leaves its group"


@pytest.fixture
def first() -> Iterator[ScriptedServer]:
    """A broker that closes the connection on request."""

    def close(peer: Peer, _command: Command) -> None:
        peer.close()

    with ScriptedServer(close) as server:
        yield server


def test_the_name_server_that_answered_last_is_asked_first() -> None:
    """The name server that answered last is asked first, and the others in their order after it."""
    servers = NameServers("a:1;b:2;c:3")
    assert servers.in_turn() == [("a", 1), ("b", 2), ("c", 3)]
    servers.answered(("b", 2))
    assert servers.in_turn() == [("b", 2), ("c", 3), ("a", 1)]


def test_a_client_asks_a_silent_name_server_only_once(name_server: str, first: ScriptedServer) -> None:
    """A silent name server once cost 3 s for each topic, which delayed the heartbeats."""
    names = f"{first.address};{name_server}"
    topics = [f"Named-{number}" for number in range(4)]
    with Producer(names) as producer:
        for topic in topics:
            producer.send(topic, b"x")
        assert len(first.received) == 1
    config = MemberConfig(group="named", start_at="first")
    with closing(PullConsumer(names, topics=(), **member_options(config))) as consumer:
        for topic in topics:
            consumer.subscribe(topic)
        consumer.start()
        assert len(first.received) == 2

    async def send() -> None:
        async with AsyncProducer(names) as producer:
            for topic in topics:
                await producer.send(topic, b"x")

    asyncio.run(send())
    assert len(first.received) == 3


def test_an_admin_asks_the_next_name_server_too(name_server: str, first: ScriptedServer) -> None:
    """If the first name server is silent, an `Admin` asks the next one."""
    with Admin(f"{first.address};{name_server}") as admin:
        assert admin.masters()
        assert isinstance(admin.topic_names(), list)
    assert len(first.received) == 1
    with Admin(first.address) as admin, pytest.raises(UnreachableError, match="cannot reach any name server"):
        admin.masters()


@pytest.mark.parametrize(("is_closed", "words"), [(True, "is closed"), (False, "the name server")])
def test_an_admin_reports_that_it_is_closed_or_that_a_name_server_refuses(is_closed: bool, words: str) -> None:
    """A refusal by a name server raises an error, and is not taken for an empty answer."""

    def refuse(peer: Peer, command: Command) -> None:
        peer.answer(command, ResponseCode.SYSTEM_ERROR)

    with ScriptedServer(refuse) as server, Admin(server.address) as admin:
        if is_closed:
            admin.close()
        for ask in (admin.masters, admin.topic_names):
            with pytest.raises(LifecycleError if is_closed else RefusedError, match=words):
                ask()
