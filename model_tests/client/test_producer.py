"""Sends on threads and on an event loop: retries at other brokers, callbacks, batches, cancelled sends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.client import (
    RUNTIME,
    STORED,
    Clients,
    Cluster,
    OneServer,
    mute,
    name_server_of,
    polled,
    route_of,
    take,
)
from model_tests.support.service import ShiftedRuntime

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    AnswerTimeoutError,
    AsyncProducer,
    ClientError,
    ConfigError,
    ConnectionLostError,
    Credentials,
    LifecycleError,
    LocalProtocolError,
    LongpollError,
    NoRouteError,
    OutgoingMessage,
    Permission,
    Producer,
    RefusedError,
    SendResult,
    UnreachableError,
)
from longpoll_client.aio import connection
from longpoll_client.instance import ClientInstance
from longpoll_client.link.exchange import Exchange
from longpoll_client.produce.outgoing import HeadTemplates, Parcel, batch_parcel, single_parcel
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import WAIT_COUNT_MAX, SingleFlight
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign


@pytest.fixture
def name_server(broker: Broker) -> str:
    """Start a broker for this test alone, because every test uses the same group; returns its name server."""
    return name_server_of(broker)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "0 messages"),
        ([OutgoingMessage(b"x", delay_s=1)], "cannot be delayed"),
        ([OutgoingMessage(b"x" * (3 * 1024 * 1024))] * 2, "over the limit"),
        ([OutgoingMessage(b"x", properties={"DELAY": "1"})], "reserved for the client"),
        ([b"x"], "a bytes is not a message"),
        ([OutgoingMessage(b"x", tag="\ud800")], "not Unicode"),
    ],
)
def test_an_invalid_batch_is_refused_before_it_is_sent(messages: Sequence[OutgoingMessage], words: str) -> None:
    """A batch with text that no frame can hold is refused like a single message."""
    kind = LocalProtocolError if words == "not Unicode" else ConfigError
    with ScriptedServer(mute) as server:
        with Producer(server.address) as producer, pytest.raises(kind, match=words):
            producer.send_batch("T", messages)
        assert server.received == []


def busy(peer: Peer, command: Command) -> None:
    peer.answer(command, ResponseCode.SYSTEM_ERROR, STORED)


@pytest.mark.parametrize("is_loop", [False, True])
def test_each_callback_is_called_once_whatever_fails(is_loop: bool) -> None:
    """A callback gets a result or an error, also at a close. An invalid call raises at once."""
    told: list[object] = []

    def tell(outcome: object) -> None:
        told.append(outcome)
        raise ValueError("mistake")

    brokers: dict[str, str] = {}
    server = OneServer(route=lambda _address: route_of(*brokers.items(), queue_count=4))
    with ExitStack() as stack:
        living = stack.enter_context(server.served())
        brokers |= {"a": stack.enter_context(ScriptedServer(busy)).address, "b": living.address}
        producer = Clients(living.address, stack, is_loop=is_loop).producer()
        for _number in range(8):
            producer.send_nowait("T", b"x", callback=tell)
        producer.send_nowait("T", b"x", callback=tell, queue_selector=lambda queues: queues[0])
        with pytest.raises(ConfigError, match="not allowed"):
            producer.send_nowait("a topic", b"x", callback=tell)
        wait_until(lambda: len(told) == 9)
        del brokers["b"]
        brokers["a"] = stack.enter_context(ScriptedServer(mute)).address
        (producer.client if is_loop else producer)._instance.forget_route("T")
        producer.send_nowait("T", b"x", callback=tell)
        producer.close()
        with pytest.raises(LifecycleError):
            producer.send_nowait("T", b"x", callback=tell)
    kinds = [type(one).__name__ for one in told]
    assert sorted(kinds[:9]) == ["RefusedError"] + ["SendResult"] * 8
    assert len(kinds) == 10
    assert isinstance(told[9], ClientError)


def test_a_topic_without_permission_is_reported(name_server: str) -> None:
    """Writing to a read-only topic and reading a write-only topic each give an error of one line."""
    with new_topic(name_server, 1) as topic, Producer(name_server) as producer, Admin(name_server) as admin:
        admin.create_topic(topic, 1, Permission.READ)
        with pytest.raises(NoRouteError, match="permission lacks W"):
            producer.send(topic, b"x")
        admin.create_topic(topic, 1, Permission.WRITE)
        assert admin.topic(topic).permission == "W"
        producer._instance.forget_route(topic)
        assert producer.send(topic, b"x").queue_offset == 0


def test_an_admin_lists_and_changes_topics_groups_and_offsets(clients: Clients, topic: str) -> None:
    """`Admin` lists and changes topics, groups, members and offsets."""
    admin, made = clients.admin(), f"made-{topic}"
    admin.create_topic(made, 2)
    clients.producer().send_batch(made, [OutgoingMessage(b"x")] * 3, queue_id=1)
    assert set(admin.topic_names()) == {made, topic}
    assert "TBW102" in admin.topic_names(with_system=True)
    consumer = clients.pulling(made)
    polled(consumer, 3)
    assert [len(group.members) for group in admin.groups() if group.name == "G"] == [1]
    consumer.close()
    assert [group.members for group in admin.groups() if group.name == "G"] == [()]
    rows = {row.queue.queue_id: (row.first, row.end, row.stored, row.lag) for row in admin.offsets("G", [made])}
    assert rows == {0: (0, 0, 0, 0), 1: (0, 3, 0, 3)}
    assert admin.set_offset("G", admin.topic(made).readable[1], "last") == 3
    assert sum(row.lag for row in admin.offsets("G", made)) == 0
    assert admin.set_offset("G", admin.topic(made).readable[1], datetime.fromtimestamp(0, UTC)) == 0
    admin.delete_topic(made)
    with pytest.raises(NoRouteError):
        admin.topic(made)
    with pytest.raises(ConfigError, match="topic"):
        admin.create_topic("no topic!", 1)
    with pytest.raises(RefusedError):
        admin.create_topic("T", 100_000)
    admin.close()
    with pytest.raises(LifecycleError, match="closed"):
        admin.masters()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with the topics `good`, `bad` and `flaky`; the brokers of the last two close their first connection."""
    with ExitStack() as stack:
        found = Cluster(stack)
        found.serve("good")
        for topic in ("bad", "flaky"):
            found.serve(topic, loses_first())
        yield found


def loses_first() -> Callable[[Peer, Command], None]:
    """Return a handler that closes the first connection with a message, and stores the messages of others."""
    lost: list[Peer] = []

    def handle(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2 and not lost:
            lost.append(peer)
            peer.close()
        else:
            take(peer, command)

    return handle


@pytest.fixture
def released(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until this event is set, every later connection to the broker of `bad` takes long."""
    released, connect, times = threading.Event(), ClientInstance.client, list[str]()

    def slow(self: ClientInstance, address: str) -> RemotingClient:
        times.append(address)
        if address == cluster.brokers["bad"] and times.count(address) > 1:
            assert released.wait(PATIENCE_S)
        return connect(self, address)

    monkeypatch.setattr(ClientInstance, "client", slow)
    yield released
    released.set()


def wait_connecting(producer: Producer, cluster: Cluster) -> None:
    """Wait until a send waits for a connection to the broker of `bad`."""
    wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._in_flight._single_flight._waiting)


def test_a_send_does_not_wait_for_a_connection_of_another_send(cluster: Cluster, released: threading.Event) -> None:
    told: dict[str, object] = {}
    with Producer(cluster.name_server) as producer:
        producer.send_nowait("bad", b"x", callback=lambda outcome: told.setdefault("bad", outcome))
        wait_connecting(producer, cluster)
        producer.send_nowait("flaky", b"x", callback=lambda outcome: told.setdefault("flaky", outcome))
        wait_until(lambda: "flaky" in told)
        assert list(told) == ["flaky"]
        released.set()
        wait_until(lambda: len(told) == 2)
    assert all(isinstance(outcome, SendResult) for outcome in told.values()), told


def test_a_close_ends_sends_that_wait_for_a_connection(cluster: Cluster, released: threading.Event) -> None:
    """A close calls each waiting callback once, and leaves no thread behind."""
    told: list[object] = []

    def release() -> None:
        wait_until(lambda: bool(told))
        released.set()

    with Producer(cluster.name_server) as producer:
        producer.send_nowait("bad", b"x", callback=told.append)
        wait_connecting(producer, cluster)
        # The close calls the callbacks first, and then joins the connecting thread.
        releasing = threading.Thread(target=release, daemon=True)
        releasing.start()
    releasing.join()
    assert [type(outcome) for outcome in told] == [LifecycleError]
    wait_until(lambda: not any(thread.name == "sends-again" for thread in threading.enumerate()))


def test_a_send_that_times_out_while_it_connects_is_not_sent(cluster: Cluster, released: threading.Event) -> None:
    """A send that has timed out while it connected is not sent, because the broker would store it."""
    told: list[object] = []
    runtime = ShiftedRuntime()
    with Producer(cluster.name_server, runtime=runtime) as producer:
        producer.send_nowait("bad", b"x", callback=told.append, timeout_s=PATIENCE_S)
        wait_connecting(producer, cluster)
        runtime.gone_ms = int(PATIENCE_S * 1000)
        released.set()
        wait_until(lambda: bool(told))
    assert [type(outcome) for outcome in told] == [AnswerTimeoutError]
    assert "the time-out passed" in str(told[0])


def test_an_error_of_the_queue_selector_is_raised(cluster: Cluster) -> None:
    """An error in the queue selector reaches the caller, also at a second try."""
    told: list[object] = []
    picked = iter([0])
    with Producer(cluster.name_server) as producer:
        producer.send_nowait("bad", b"x", callback=told.append, queue_selector=lambda queues: queues[next(picked)])
        wait_until(lambda: bool(told))
    assert "could not be retried: StopIteration" in str(told[0])
    assert isinstance(told[0], ClientError)


def test_concurrent_callers_share_one_look_up() -> None:
    """Callers of the same look-up share its result or exception, and a closed client raises at once."""
    waits = SingleFlight(RUNTIME, "waits")
    going, begun, told = threading.Event(), list[int](), list[object]()

    def work(number: int) -> int:
        begun.append(number)
        assert going.wait(PATIENCE_S)
        if number % 2:
            raise KeyError(number)
        return number

    for number in range(40):
        for _time in range(3):
            waits.wait(("kind", str(number)), lambda number=number: work(number), told.append)  # type: ignore[misc] # bound early
    wait_until(lambda: len(begun) == WAIT_COUNT_MAX == 32)
    assert told == []
    going.set()
    wait_until(lambda: len(told) == 120)
    assert sorted(begun) == list(range(40))
    assert sorted(one for one in told if isinstance(one, int)) == sorted(list(range(0, 40, 2)) * 3)
    assert (
        sum(isinstance(one, ClientError) and "waiting for kind 7 failed: KeyError(7)" in str(one) for one in told) == 3
    )
    waits.close()
    told.clear()
    waits.wait(("kind", "x"), lambda: 1, told.append)
    assert [type(one) for one in told] == [LifecycleError]


def run(cluster: Cluster, story: Callable[[AsyncProducer], Awaitable[None]], **options: object) -> None:
    """Run a coroutine with one producer, and assert that nothing is left after its close."""

    async def told() -> None:
        made = AsyncProducer(cluster.name_server, **options)  # type: ignore[arg-type] # a test's own
        async with asyncio.timeout(PATIENCE_S), made:
            await story(made)
        assert_nothing_left(made)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(told())


def assert_nothing_left(producer: AsyncProducer) -> None:
    assert producer._instance._tasks == {}
    for one in producer._instance._connections.values():
        assert one._exchange.calls.pending == {}
        assert not one._waiting


async def outcome(sending: Awaitable[object]) -> object:
    try:
        return await sending
    except LongpollError as error:
        return error


@pytest.mark.parametrize("where", ["broker", "name server", "connecting"])
def test_an_unresponsive_server_delays_no_unrelated_call(cluster: Cluster, where: str) -> None:
    """40 sends wait for a silent server, and a send to another broker completes at once."""
    if where == "connecting":
        listening = socket.create_server(("127.0.0.1", 0), backlog=0)
        cluster.stack.callback(listening.close)
        # A socket with a full backlog neither accepts nor refuses a connection.
        for _number in range(2):
            full = socket.socket()
            full.setblocking(False)
            full.connect_ex(listening.getsockname())
            cluster.stack.callback(full.close)
        cluster.brokers["bad"] = "{}:{}".format(*listening.getsockname())
    elif where == "broker":
        cluster.serve("bad", mute)

    async def story(producer: AsyncProducer) -> None:
        await producer.send("good", b"x")
        cluster.is_mute = where == "name server"
        waiting = [asyncio.create_task(producer.send("bad", b"x", timeout_s=PATIENCE_S)) for _number in range(40)]
        await asyncio.sleep(0)
        for _number in range(20):
            await producer.send("good", b"x")
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in ended} == {asyncio.CancelledError}
        error = await outcome(producer.send("bad", b"x", timeout_s=0.1))
        assert isinstance(error, AnswerTimeoutError | UnreachableError | ConnectionLostError)

    run(cluster, story)


def test_a_timeout_of_the_send_is_not_reported_as_a_missing_reply(cluster: Cluster) -> None:
    """If the send of a request times out, the error says so, because no reply is expected yet."""

    async def unanswered(_properties: object) -> None:
        raise AnswerTimeoutError("no answer to the send")

    async def story(producer: AsyncProducer) -> None:
        with pytest.raises(AnswerTimeoutError, match="no answer to the send"):
            await producer._requests.ask("1", PATIENCE_S, unanswered)

    run(cluster, story)


def test_a_send_may_be_cancelled_at_every_await(cluster: Cluster) -> None:
    """No call remains after a cancelled send, and the next send works."""
    story_turns: list[int] = []

    async def story(_producer: AsyncProducer) -> None:
        for turns in range(40):
            async with AsyncProducer(cluster.name_server) as fresh:
                sending = asyncio.create_task(fresh.send("good", b"x"))
                for _turn in range(turns):
                    await asyncio.sleep(0.0002)
                is_late = sending.done()
                sending.cancel()
                with suppress(asyncio.CancelledError):
                    await sending
                for one in fresh._instance._connections.values():
                    pending = one._exchange.calls.pending.values()
                    assert all(call.code == RequestCode.GET_ROUTEINFO_BY_TOPIC for call in pending)
                assert isinstance(await fresh.send("good", b"y"), SendResult)
                assert_nothing_left(fresh)
            if is_late:
                break
            story_turns.append(turns)

    run(cluster, story)
    assert len(story_turns) > 2


def test_a_cancelled_send_does_not_cancel_other_sends(cluster: Cluster) -> None:
    """Other sends that wait for the same connection and route continue."""

    async def story(producer: AsyncProducer) -> None:
        sending = [asyncio.create_task(producer.send("good", b"x")) for _number in range(10)]
        await asyncio.sleep(0)
        sending[0].cancel()
        ended = await asyncio.gather(*sending, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert all(isinstance(result, SendResult) for result in ended[1:])

    run(cluster, story)


def test_close_ends_pending_sends(cluster: Cluster) -> None:
    """Each pending send gets one error, whether it waits for an answer, a route or a connection."""
    cluster.serve("bad", mute)

    async def story(producer: AsyncProducer) -> None:
        told: list[SendResult | LongpollError] = []
        await producer.send("good", b"x")
        sending = [asyncio.create_task(outcome(producer.send("bad", b"x"))) for _number in range(5)]
        sending.append(asyncio.create_task(outcome(producer.send("unknown", b"x"))))
        producer.send_nowait("bad", b"x", callback=told.append)
        await asyncio.sleep(0.05)
        await producer.close()
        ended = await asyncio.gather(*sending)
        assert all(isinstance(error, ClientError) for error in [*ended, *told]), [*ended, *told]
        assert len(told) == 1
        with pytest.raises(LifecycleError, match="closed"):
            await producer.send("good", b"x")
        with pytest.raises(LifecycleError, match="closed"):
            producer.send_nowait("good", b"x", callback=told.append)
        await producer.close()

    run(cluster, story)


def test_little_is_buffered_for_a_peer_that_does_not_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 sends of 1 MiB wait before they are written and end in time, while other brokers are served."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(connection, "CALL_TIMEOUT_S", 0.1)
    listening = cluster.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    cluster.brokers["full"] = "{}:{}".format(*listening.getsockname())

    async def story(producer: AsyncProducer) -> None:
        body = b"x" * (1 << 20)
        sending = [asyncio.create_task(outcome(producer.send("full", body, timeout_s=0.5))) for _number in range(100)]
        await asyncio.sleep(0.2)
        (one,) = [one for one in producer._instance._connections.values() if one.address == cluster.brokers["full"]]
        assert one._transport is not None
        assert one._transport.get_write_buffer_size() + one._batch_size < 4 << 20
        assert isinstance(await producer.send("good", b"x"), SendResult)
        with pytest.raises(AnswerTimeoutError, match="does not read"):
            await one.one_way(10)
        monkeypatch.setattr(connection, "OUTPUT_BYTES_MAX", 1000)
        with pytest.raises(LocalProtocolError, match="does not read"):
            one.call_async(10, body=body, callback=print)
        ended = await asyncio.gather(*sending)
        assert {type(error) for error in ended} <= {AnswerTimeoutError, ConnectionLostError}

    run(cluster, story, compression=None)


class OtherTransport:
    """A transport like uvloop's: it has the required methods, but not asyncio's base class."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.write = transport.write
        self.set_write_buffer_limits = transport.set_write_buffer_limits
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.close = transport.close
        self.abort = transport.abort


class OtherLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections use `OtherTransport`."""

    async def create_connection(self, protocol_factory: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        protocol = protocol_factory()
        made = protocol.connection_made
        protocol.connection_made = lambda transport: made(OtherTransport(transport))
        return await super().create_connection(lambda: protocol, *arguments, **options)


def test_a_producer_runs_on_other_event_loops_than_asyncios(cluster: Cluster) -> None:

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncProducer(cluster.name_server) as producer:
            assert (await producer.send("good", b"x")).queue_offset == 7

    with asyncio.Runner(loop_factory=OtherLoop) as runner:
        runner.run(story())


def test_a_producer_belongs_to_one_event_loop(cluster: Cluster) -> None:
    """A call on another event loop raises at once, even after the first loop is closed."""
    producer = AsyncProducer(cluster.name_server)

    async def first() -> None:
        await producer.send("good", b"x")
        await producer.close()

    async def another() -> None:
        with pytest.raises(LifecycleError, match="another event loop"):
            await producer.send("good", b"x")

    asyncio.run(first())
    asyncio.run(another())

    async def own(fresh: AsyncProducer) -> None:
        await fresh.send_one_way("good", b"x")

    for _number in range(2):
        run(cluster, own)


def test_requests_are_signed(cluster: Cluster) -> None:
    server = cluster.serve("signed", take)

    async def story(producer: AsyncProducer) -> None:
        await producer.send("signed", b"body")
        await producer.send_one_way("signed", b"other")

    run(cluster, story, credentials=Credentials("me", "secret"))
    assert server.received
    for command in server.received:
        fields = dict(command.ext_fields or {})
        signature = fields.pop(SIGNATURE)
        assert fields[ACCESS_KEY] == "me"
        assert signature == sign(fields, command.body, "secret")


@pytest.mark.parametrize("topic", ["T", "%RETRY%G%d"])
def test_a_template_writes_the_same_bytes_as_the_plain_encoder(topic: str) -> None:
    """The template encoder equals the plain encoder in every byte, for any properties, also at its second use."""
    templates, plain = HeadTemplates(), Exchange("b:1")
    parcels: list[Parcel] = [
        single_parcel('g"%s', topic, OutgoingMessage(b"x" * 128), "id", 5),
        single_parcel('g"%s', topic, OutgoingMessage(b"", 'a"b%', "\u00e9\u4e2d", {"p": "\\ %d \n"}, 3), "id-2", 6),
        batch_parcel('g"%s', topic, [OutgoingMessage(b"x")] * 2, ["a", "b"], 7),
    ]
    for opaque, parcel in enumerate(parcels * 2):
        header = parcel.header(opaque % 3)
        expected = plain.written(parcel.code, opaque, header, parcel.body, one_way=False)
        written = [templates.head(parcel, opaque % 3, opaque), parcel.body]
        assert b"".join(written) == b"".join(expected)


def test_the_next_pull_is_sent_before_the_listener_runs() -> None:
    """The next pull is written before the listener gets the messages of the last one."""
    sent: list[bytes] = []

    class Watched(connection.AsyncConnection):
        """A transport that keeps the written bytes."""

        def _flush(self) -> None:
            sent.extend(bytes(part) for part in self._batch)
            super()._flush()

    def answer(peer: Peer, command: Command) -> None:
        if command.code != 12:
            peer.answer(command)

    async def story() -> list[bool]:
        with ScriptedServer(answer) as server:
            link = await Watched.open(RUNTIME, server.host, server.port)
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            seen: list[bool] = []

            def told(_answer: object) -> None:
                loop.call_soon(lambda: seen.append(any(b'"code":77' in part for part in sent)))
                link.call_async(77, callback=lambda _answer: ended.set_result(None))

            # A single request is written at once, without waiting for the end of the event loop's iteration.
            link.call_async(12, callback=lambda _answer: None)
            link.call_async(11, callback=told)
            await asyncio.wait_for(ended, PATIENCE_S)
            await link.close()
            return seen

    assert asyncio.run(story()) == [True]


@pytest.mark.parametrize("is_loop", [False, True], ids=["threads", "loop"])
def test_a_producer_that_has_sent_sends_heartbeats(broker: Broker, is_loop: bool) -> None:
    """Each new connection and each fresh route is followed by a heartbeat."""
    name_server = "{}:{}".format(*broker.name_server_address)
    with ExitStack() as stack, RawClient(broker.address) as client:

        def is_known(group: str) -> bool:
            return client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}).code == 0

        Clients(name_server, stack, is_loop=is_loop).producer(group="known").send("T", b"x")
        wait_until(lambda: is_known("known"))
        assert not is_known("another")
