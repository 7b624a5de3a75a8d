"""Producers on threads: batches, picking queues, callbacks, other brokers, and sends that are tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.client import (
    PATIENCE_S,
    RUNTIME,
    STORED,
    Clients,
    Cluster,
    mute,
    name_server_of,
    polled,
    polling,
    route_of,
    take,
)

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    MessageQueue,
    OutgoingMessage,
    Producer,
    SendResult,
)
from longpoll_client.errors import (
    AnswerTimeoutError,
    ClientError,
    LifecycleError,
    NoRouteError,
    RefusedError,
    UnreachableError,
)
from longpoll_client.instance import ClientInstance
from longpoll_client.link import routes
from longpoll_client.link.routes import NameServers
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import WAIT_COUNT_MAX, SingleFlight
from longpoll_protocol.codes import Permission, RequestCode, ResponseCode
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames import Command
from longpoll_spec.errors import ConfigError


@pytest.fixture
def name_server(broker: Broker) -> str:
    """That of a broker of the test's own: the group has one name in every test."""
    return name_server_of(broker)


def test_a_batch_stands_together_in_one_queue(name_server: str) -> None:
    """Its results name each message's own offset and both of its ids, and each keeps its tags, keys and properties."""
    messages = [OutgoingMessage(b"%d" % number, "t", f"k{number}", {"n": str(number)}) for number in range(50)]
    with new_topic(name_server, 4) as topic, Producer(name_server) as producer:
        results = producer.send_batch(topic, messages)
        with polling(name_server, topic) as consumer:
            found = polled(consumer, 50)
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(50))
    assert len({result.broker_msg_id for result in results}) == 50
    assert [message.msg_id for message in found] == [result.msg_id for result in results]
    assert [(message.body, message.tag, message.keys, message.properties["n"]) for message in found] == [
        (one.body, one.tag, (one.keys,), one.properties["n"]) for one in messages
    ]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "0 messages"),
        ([OutgoingMessage(b"x", delay_s=1)], "cannot be delayed"),
        ([OutgoingMessage(b"x" * (3 * 1024 * 1024))] * 2, "over the limit"),
        ([OutgoingMessage(b"x", properties={"DELAY": "1"})], "reserved for the client"),
        ([b"x"], "a bytes is not a message"),
    ],
)
def test_a_batch_that_no_broker_takes_is_refused_before_it_is_sent(
    messages: Sequence[OutgoingMessage], words: str
) -> None:
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(server.address) as producer, pytest.raises(ConfigError, match=words):
            producer.send_batch("T", messages)
        assert server.received == []


def test_a_batch_of_text_that_no_frame_can_hold_fails_as_one_message_does() -> None:
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(server.address) as producer, pytest.raises(LocalProtocolError, match="not Unicode"):
            producer.send_batch("T", [OutgoingMessage(b"x", tag="\ud800")])
        assert server.received == []


def test_whoever_sends_may_pick_the_queue(name_server: str) -> None:
    """By its number or by a function of all queues; not in both ways, and no queue that is not there."""
    with new_topic(name_server, 4) as topic, Producer(name_server) as producer:
        assert producer.send(topic, b"x", queue_id=2).queue.queue_id == 2
        assert producer.send(topic, b"x", queue_selector=lambda queues: queues[-1]).queue.queue_id == 3
        with pytest.raises(ConfigError, match="cannot be used together"):
            producer.send(topic, b"x", queue_id=2, queue_selector=lambda queues: queues[-1])
        with pytest.raises(ConfigError, match="not a writable queue"):
            producer.send(
                topic, b"x", queue_selector=lambda _queues: MessageQueue(topic="other", broker_name="b", queue_id=0)
            )


class Fleet(ExitStack):
    """A name server and brokers of one topic; each answers sends with its own code."""

    def __init__(self, **codes: int) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.addresses = {name: self._served(name, code) for name, code in codes.items()}
        self.name_server = self.enter_context(ScriptedServer(self._route)).address

    def _served(self, name: str, code: int) -> str:
        def answer(peer: Peer, command: Command) -> None:
            self.asked.append(name)
            peer.answer(command, code, STORED)

        return self.enter_context(ScriptedServer(answer)).address

    def _route(self, peer: Peer, command: Command) -> None:
        peer.answer(command, body=route_of(*self.addresses.items(), queue_count=4))


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_another_broker_is_tried_after_an_answer_that_another_may_not_give(code: ResponseCode) -> None:
    """Never the same one twice running, although its queues are next in turn."""
    with Fleet(a=code, b=0) as fleet, Producer(fleet.name_server) as producer:
        results = [producer.send("T", b"x") for _number in range(8)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert "aa" not in "".join(fleet.asked)


def test_a_route_of_a_dead_broker_goes_to_the_living_one() -> None:
    """The name server still names a broker that is down; the message is stored."""
    with ScriptedServer(mute) as gone, Fleet(b=0) as fleet, Producer(fleet.name_server) as producer:
        gone.refuse_connections()
        fleet.addresses = {"a": gone.address, **fleet.addresses}
        assert {producer.send("T", b"x").queue.broker_name for _number in range(4)} == {"b"}
        del fleet.addresses["b"]
        producer._instance.forget_route("T")
        with pytest.raises(UnreachableError, match=gone.address):
            producer.send("T", b"x")


@pytest.mark.parametrize("is_loop", [False, True])
def test_callbacks_are_told_once_whatever_fails(is_loop: bool) -> None:
    """With the result after another broker was tried, with the error, and by a close; a mistake is raised at once."""
    told: list[object] = []

    def tell(outcome: object) -> None:
        told.append(outcome)
        raise ValueError("mistake")

    with Fleet(a=ResponseCode.SYSTEM_ERROR, b=0) as fleet:
        producer = Clients(fleet.name_server, fleet, is_loop=is_loop).producer()
        for _number in range(8):
            producer.send_nowait("T", b"x", callback=tell)
        producer.send_nowait("T", b"x", callback=tell, queue_selector=lambda queues: queues[0])
        with pytest.raises(ConfigError, match="not allowed"):
            producer.send_nowait("a topic", b"x", callback=tell)
        wait_until(lambda: len(told) == 9)
        fleet.addresses = {"a": fleet.enter_context(ScriptedServer(mute)).address}
        (producer.client if is_loop else producer)._instance.forget_route("T")
        producer.send_nowait("T", b"x", callback=tell)
        producer.close()
        with pytest.raises(LifecycleError):
            producer.send_nowait("T", b"x", callback=tell)
    kinds = [type(one).__name__ for one in told]
    assert sorted(kinds[:9]) == ["RefusedError"] + ["SendResult"] * 8
    assert len(kinds) == 10
    assert isinstance(told[9], ClientError)


def test_a_lost_name_server_leaves_what_is_known(
    name_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Known routes still work, with one log line each time; an unknown topic is reported."""
    with (
        new_topic(name_server, 1) as topic,
        Producer(name_server) as producer,
        ScriptedServer(mute) as gone,
    ):
        producer.send(topic, b"x")
        monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.0)
        gone.refuse_connections()
        producer._instance._name_servers = NameServers(gone.address)
        assert producer.send(topic, b"y").queue_offset == 1
        wait_until(lambda: "goes on by its last route" in caplog.text)
        with pytest.raises(UnreachableError, match="cannot reach any name server"):
            producer.send("unknown", b"z")


def test_a_topic_without_permission_is_told_of(name_server: str) -> None:
    """Writing to one that may only be read, and reading one that may only be written, each in one line."""
    with (
        new_topic(name_server, 1) as topic,
        Producer(name_server) as producer,
        Admin(name_server) as admin,
    ):
        admin.create_topic(topic, 1, Permission.READ)
        with pytest.raises(NoRouteError, match="permission lacks W"):
            producer.send(topic, b"x")
        admin.create_topic(topic, 1, Permission.WRITE)
        assert admin.topic(topic).permission == "W"
        producer._instance.forget_route(topic)
        assert producer.send(topic, b"x").queue_offset == 0


def test_what_there_is_can_be_asked_and_changed(name_server: str) -> None:
    """Topics, groups with their members, and offsets."""
    with new_topic(name_server, 2) as topic, Admin(name_server) as admin:
        with Producer(name_server) as producer:
            producer.send_batch(topic, [OutgoingMessage(b"x")] * 3, queue_id=1)
        assert admin.topic_names() == [topic]
        assert "TBW102" in admin.topic_names(with_system=True)
        with polling(name_server, topic) as consumer:
            polled(consumer, 3)
        (group,) = [group for group in admin.groups() if group.name == "G"]
        assert group.members == ()
        rows = {row.queue.queue_id: (row.first, row.end, row.stored, row.lag) for row in admin.offsets("G", [topic])}
        assert rows == {0: (0, 0, 0, 0), 1: (0, 3, 0, 3)}
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=1)
        assert admin.set_offset("G", queue, "last") == 3
        assert sum(row.lag for row in admin.offsets("G", [topic])) == 0
        admin.delete_topic(topic)
        with pytest.raises(NoRouteError):
            admin.topic(topic)
        with pytest.raises(RefusedError):
            admin.create_topic("T", 100_000)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """With topics `bad` and `flaky`, whose brokers lose the connection of each one's first message."""
    with ExitStack() as stack:
        found = Cluster(stack)
        for topic in ("bad", "flaky"):
            found.serve(topic, loses_first())
        yield found


def loses_first() -> Callable[[Peer, Command], None]:
    """Close the first connection on which a message comes, then store what comes."""
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
    """Until it is set, every connection to the broker of `bad`, except the first, takes long."""
    released, connect, times = threading.Event(), ClientInstance.client, list[str]()

    def slow(self: ClientInstance, address: str) -> RemotingClient:
        times.append(address)
        if address == cluster.brokers["bad"] and times.count(address) > 1:
            assert released.wait(PATIENCE_S)
        return connect(self, address)

    monkeypatch.setattr(ClientInstance, "client", slow)
    yield released
    released.set()


def test_a_send_waits_for_no_other_s_connection(cluster: Cluster, released: threading.Event) -> None:
    told: dict[str, object] = {}
    with Producer(cluster.name_server) as producer:
        producer.send_nowait("bad", b"x", callback=lambda outcome: told.setdefault("bad", outcome))
        wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._in_flight._single_flight._waiting)
        producer.send_nowait("flaky", b"x", callback=lambda outcome: told.setdefault("flaky", outcome))
        wait_until(lambda: "flaky" in told)
        assert list(told) == ["flaky"]
        released.set()
        wait_until(lambda: len(told) == 2)
    assert all(isinstance(outcome, SendResult) for outcome in told.values()), told


def test_a_close_tells_those_that_wait_for_a_connection(cluster: Cluster, released: threading.Event) -> None:
    """Once, and leaves no thread behind."""
    told: list[object] = []
    with Producer(cluster.name_server) as producer:
        producer.send_nowait("bad", b"x", callback=told.append)
        wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._in_flight._single_flight._waiting)
        threading.Timer(0.05, released.set).start()
    assert [type(outcome) for outcome in told] == [LifecycleError]
    wait_until(lambda: not any(thread.name == "sends-again" for thread in threading.enumerate()))


def test_nothing_is_sent_when_the_time_was_up_once_it_was_connected(
    cluster: Cluster, released: threading.Event
) -> None:
    """The broker would store what its sender has been told is late."""
    told: list[object] = []
    with Producer(cluster.name_server) as producer:
        producer.send_nowait("bad", b"x", callback=told.append, timeout_s=0.6)
        wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._in_flight._single_flight._waiting)
        threading.Timer(0.8, released.set).start()
        wait_until(lambda: bool(told))
    assert [type(outcome) for outcome in told] == [AnswerTimeoutError]
    assert "the time-out passed" in str(told[0])


def test_a_mistake_of_who_picks_queues_is_told() -> None:
    """Also where the queue is picked again."""
    told: list[object] = []
    with ExitStack() as stack:
        cluster = Cluster(stack)
        cluster.serve("bad", loses_first())
        picked = iter([0])
        with Producer(cluster.name_server) as producer:
            producer.send_nowait("bad", b"x", callback=told.append, queue_selector=lambda queues: queues[next(picked)])
            wait_until(lambda: bool(told))
    assert "could not be retried: StopIteration" in str(told[0])
    assert isinstance(told[0], ClientError)


def test_what_many_wait_for_is_done_once_and_only_so_much_at_a_time() -> None:
    """Later callers share the work and its exception; a closed one fails at once."""
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
