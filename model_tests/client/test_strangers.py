"""What outsiders do to a client: callbacks that exit, machines that have nothing left, routes that lead nowhere."""

from __future__ import annotations

import array
import asyncio
import errno
import gc
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_tests.service.test_client_consumer import route_to

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import AsyncProducer, OutgoingMessage, Producer, SendResult
from longpoll_client.errors import ClientError, NoRouteError, ReplyTimeoutError, UnreachableError
from longpoll_client.produce.outgoing import BODY_SIZE_MAX, as_given, batch_parcel, single_parcel
from longpoll_client.timer import Timer
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_runtime import Poller
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

PATIENCE_S = 10.0
EXITS: list[type[BaseException]] = [SystemExit, KeyboardInterrupt, GeneratorExit]
STORED = SendMessageResponseHeader(msg_id="id", queue_id=0, queue_offset=7).encode()


class OneServer:
    """A name server and a broker that stores everything; `route` says where it is."""

    def __init__(self, route: Callable[[str], bytes] = route_to) -> None:
        self.address = ""
        self._route = route

    def __call__(self, peer: Peer, command: Command) -> None:
        """Answer a route or a send."""
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            peer.answer(command, body=self._route(self.address))
        else:
            peer.answer(command, fields=STORED)


class Alive(RealRuntime):
    """A runtime that keeps the names of threads that died, instead of ending the process."""

    def __init__(self) -> None:
        self.died: list[str] = []
        super().__init__(thread_died=lambda name, _error: self.died.append(name))


def raises(error: type[BaseException]) -> Callable[..., Any]:
    """What is called and leaves by this."""

    def called(*_said: object, **_more: object) -> None:
        raise error

    return called


def released(view: memoryview) -> memoryview:
    """One whose buffer was given back."""
    view.release()
    return view


@pytest.mark.parametrize("error", EXITS)
def test_a_callback_that_exits_ends_neither_its_thread_nor_the_process(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log, the others are told, and what is sent afterwards is stored."""
    server, runtime, outcomes = OneServer(), Alive(), list[object]()
    told = threading.Event()

    def last(outcome: object) -> None:
        outcomes.append(outcome)
        told.set()

    with ScriptedServer(server) as scripted, Producer(runtime, scripted.address) as producer:
        server.address = scripted.address
        producer.send_async("T", b"1", raises(error))
        producer.send_async("T", b"2", last)
        assert told.wait(PATIENCE_S)
        assert producer.send("T", b"3").queue_offset == 7
    assert [type(outcome) for outcome in outcomes] == [SendResult]
    assert runtime.died == []
    assert "the callback of SEND_MESSAGE_V2" in caplog.text


class Hook:
    """A hook that exits after a send."""

    def before_send(self, sending: Any) -> None:
        """Nothing."""

    after_send = staticmethod(raises(SystemExit))


def test_a_hook_that_exits_keeps_no_outcome_from_who_waits_for_it() -> None:
    """Who is told of every send by a thread of the client's."""
    server, runtime, outcomes = OneServer(), Alive(), list[object]()
    told = threading.Event()

    def last(outcome: object) -> None:
        outcomes.append(outcome)
        told.set()

    with ScriptedServer(server) as scripted, Producer(runtime, scripted.address, hooks=[Hook()]) as producer:
        server.address = scripted.address
        producer.send_async("T", b"1", last)
        assert told.wait(PATIENCE_S)
    assert [type(outcome) for outcome in outcomes] == [SendResult]
    assert runtime.died == []


@pytest.mark.parametrize("error", EXITS)
def test_what_is_due_later_may_exit_too(error: type[BaseException]) -> None:
    """Such as an `on_share`, or the check of a transaction: the next one is done all the same."""
    runtime, done = Alive(), threading.Event()
    timer = Timer(runtime, "later")
    timer.after(0.0, raises(error))
    timer.after(0.0, done.set)
    assert done.wait(PATIENCE_S)
    timer.close()
    assert runtime.died == []


class Poor(RealRuntime):
    """A machine that lacks something."""

    lacks = ""

    def poller(self) -> Poller:
        """May find no descriptor."""
        if self.lacks == "descriptors":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().poller()

    def spawn(self, name: str, target: Callable[[], None]) -> Any:
        """May start no thread."""
        if self.lacks == "threads":
            raise RuntimeError("can't start new thread")
        return super().spawn(name, target)


def descriptors() -> int:
    """How many this process has."""
    gc.collect()
    return sum(1 for _descriptor in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(("lacks", "words"), [("descriptors", "Too many open files"), ("threads", "start new thread")])
def test_a_connection_that_cannot_be_served_is_told_of_and_leaves_nothing(lacks: str, words: str) -> None:
    """As a thousand producers in one process find out; as soon as there is room the same producer sends."""
    server, runtime = OneServer(), Poor()
    with ScriptedServer(server) as scripted, Producer(runtime, scripted.address) as producer:
        server.address = scripted.address
        runtime.lacks = lacks
        before = descriptors()
        with pytest.raises(UnreachableError, match=words):
            producer.send("T", b"x", timeout_s=1.0)
        # What the server has of these connections ends when it sees that they did.
        wait_until(lambda: descriptors() <= before + len(scripted._sockets))
        runtime.lacks = ""
        assert producer.send("T", b"x").queue_offset == 7


class Interrupted(RealRuntime):
    """A machine at which somebody types Ctrl-C as soon as a thread of a connection has begun."""

    is_due = True

    def __init__(self) -> None:
        self.died: list[str] = []
        super().__init__(thread_died=lambda name, _error: self.died.append(name))

    def spawn(self, name: str, target: Callable[[], None]) -> Any:
        """Start it, and be interrupted before anybody knows of it."""
        thread = super().spawn(name, target)
        if self.is_due and name.startswith("client-127"):
            self.is_due = False
            raise KeyboardInterrupt
        return thread


def test_one_that_is_interrupted_while_it_connects_leaves_nothing() -> None:
    """The thread that has begun ends by itself, without a word, and the next send connects anew."""
    server, runtime = OneServer(), Interrupted()
    before = threading.active_count()
    with ScriptedServer(server) as scripted:
        server.address = scripted.address
        with Producer(runtime, scripted.address) as producer:
            with pytest.raises(KeyboardInterrupt):
                producer.send("T", b"x")
            assert producer.send("T", b"x").queue_offset == 7
    wait_until(lambda: threading.active_count() <= before)
    assert runtime.died == []


def two_brokers(address: str, other: str) -> bytes:
    """A route of this broker, and of another one elsewhere."""
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_name="a", broker_addrs={0: other}), BrokerData(broker_name="b", broker_addrs={0: address})
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6) for name in ("a", "b")
        ],
    ).encode()  # fmt: skip


@pytest.mark.parametrize("other", ["nowhere", "", "127.0.0.1:0", "127.0.0.1:70000", " :10911", "127.0.0.1:x"])
def test_a_route_that_leads_nowhere_at_one_broker_is_one_of_the_others(
    other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no mistake of the caller's, and no send goes there."""
    server = OneServer(lambda address: two_brokers(address, other))
    with ScriptedServer(server) as scripted, Producer(RealRuntime(), scripted.address) as producer:
        server.address = scripted.address
        assert {producer.send("T", b"x").queue.broker_name for _number in range(4)} == {"b"}
    assert "leads nowhere at broker a" in caplog.text


def test_a_route_that_leads_nowhere_at_all_is_no_route(caplog: pytest.LogCaptureFixture) -> None:
    """Told as any other that has no broker."""
    caplog.set_level(logging.WARNING)
    server = OneServer(lambda _address: route_to("nowhere"))
    with (
        ScriptedServer(server) as scripted,
        Producer(RealRuntime(), scripted.address) as producer,
        pytest.raises(NoRouteError, match="no running broker"),
    ):
        producer.send("T", b"x")
    assert "'nowhere' is not an address" in caplog.text


def test_a_body_is_sent_as_it_was_when_it_was_given() -> None:
    """However soon its buffer is used for the next one, and whatever the buffer's items are."""
    bodies: list[bytes] = []
    server = OneServer()

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            bodies.append(bytes(command.body))
        server(peer, command)

    outcomes: list[object] = []
    with ScriptedServer(serve) as scripted, Producer(RealRuntime(), scripted.address, compression=None) as producer:
        server.address = scripted.address
        producer.send("T", b"first")
        buffer = bytearray(1 << 20)
        for number in range(8):
            buffer[:] = bytes([number]) * len(buffer)
            producer.send_async("T", buffer, outcomes.append)  # type: ignore[arg-type] # a buffer will do as well
        buffer[:] = b"\xff" * len(buffer)
        wait_until(lambda: len(outcomes) == 8)
        words = memoryview(array.array("i", [1, 2, 3]))
        producer.send("T", words)  # type: ignore[arg-type]
    assert [body[:1] + body[-1:] for body in bodies[1:9]] == [bytes([number]) * 2 for number in range(8)]
    assert bodies[9] == array.array("i", [1, 2, 3]).tobytes()


def test_a_batch_of_buffers_likewise() -> None:
    """It is written when it is given."""
    bodies: list[bytes] = []
    server = OneServer()

    def serve(peer: Peer, command: Command) -> None:
        bodies.append(bytes(command.body))
        server(peer, command)

    with ScriptedServer(serve) as scripted, Producer(RealRuntime(), scripted.address) as producer:
        server.address = scripted.address
        words = memoryview(array.array("i", [1, 2, 3]))
        producer.send_batch("T", [OutgoingMessage(words)])  # type: ignore[arg-type]
    assert (12).to_bytes(4, "big") + array.array("i", [1, 2, 3]).tobytes() in bodies[-1]


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
def test_a_buffer_is_as_long_as_its_bytes(number: int) -> None:
    """Whatever its items, its dimensions and what lies between them: sent byte by byte, or refused by its size."""
    body, outcome = BUFFERS[number]
    message = OutgoingMessage(body)

    def written() -> list[bytes]:
        single = single_parcel("G", "T", message, "id", 0).body
        return [single, as_given("T", message).body]

    if isinstance(outcome, bytes):
        assert written() == [outcome] * 2
        return
    for write in (written, lambda: as_given("T", message), lambda: batch_parcel("G", "T", [message], ["id"], 0)):
        with pytest.raises(ConfigError, match=outcome):
            write()


def test_what_is_asked_is_asked_as_it_was_when_it_was_given() -> None:
    """A request on an event loop waits for a route first: its buffer and its properties may change meanwhile."""
    bodies: list[tuple[bytes, bool]] = []
    server = OneServer()

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            bodies.append((bytes(command.body), "late" in str(command.ext_fields)))
        server(peer, command)

    async def story(address: str) -> None:
        told: list[object] = []
        async with AsyncProducer(RealRuntime(), address, "askers") as producer:
            buffer, properties = bytearray(b"first"), {"mark": "early"}
            message = OutgoingMessage(buffer, properties=properties)  # type: ignore[arg-type]
            producer.request_async("T", message, told.append, timeout_s=0.2)
            asking = asyncio.create_task(
                producer.request("T", buffer, properties=properties, timeout_s=0.2)  # type: ignore[arg-type]
            )
            await asyncio.sleep(0)
            buffer[:], properties["mark"] = b"later", "late"
            with pytest.raises(ReplyTimeoutError):
                await asking
        assert len(told) == 1

    with ScriptedServer(serve) as scripted:
        server.address = scripted.address
        asyncio.run(story(scripted.address))
    assert bodies == [(b"first", False)] * 2


def test_a_frame_that_never_ends_costs_one_connection_at_most() -> None:
    """A broker that stalls in the middle of an answer, and is itself again for who connects anew."""
    server = OneServer()
    stalled: list[Command] = []

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2 and not stalled:
            stalled.append(command)
            peer.send_bytes(b"\x00\x00\x01\x00\x00\x00")
        else:
            server(peer, command)

    with ScriptedServer(serve) as scripted, Producer(RealRuntime(), scripted.address) as producer:
        server.address = scripted.address
        with pytest.raises(ClientError, match="no answer in time"):
            producer.send("T", b"x", timeout_s=1.2)
        assert producer.send("T", b"x").queue_offset == 7
