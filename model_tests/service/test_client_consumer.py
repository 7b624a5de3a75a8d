"""Producer and consumers over real sockets against the embedded broker, and against servers that misbehave."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import (
    ConsumerConfig,
    Producer,
    PullConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.consume.sharing import Sharing
from longpoll_client.errors import ClientError, NoRouteError, RefusedError, UnreachableError
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

PATIENCE_S = 10.0
RUNTIME = RealRuntime()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of an embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store")) as broker:
        yield "{}:{}".format(*broker.name_server_address)


@contextmanager
def consuming(name_server: str, group: str, expression: str = "*", **config: Any) -> Iterator[PullConsumer]:
    """A started pull consumer of topic T that begins at the first message."""
    options: dict[str, Any] = {"start_at": StartAt.FIRST} | config
    with PullConsumer(RUNTIME, name_server, ConsumerConfig(group, **options)) as consumer:
        consumer.subscribe("T", expression)
        consumer.start()
        yield consumer


def take(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """So many messages, or what came before nothing did for a while; the last ones not committed."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        messages = consumer.poll(PATIENCE_S, count - len(found))
        if not messages:
            break
        found += messages
    return found


def bodies(messages: Sequence[ReceivedMessage]) -> list[bytes]:
    """Their bodies."""
    return [message.body for message in messages]


def parity(number: int) -> str:
    """A tag."""
    return "even" if number % 2 == 0 else "odd"


def test_each_message_comes_once_with_everything_in_its_queues_order(name_server: str) -> None:
    """Bodies, tags, keys and properties survive, offsets are contiguous per queue, and nothing comes twice."""
    with Producer(RUNTIME, name_server) as producer:
        sent = {
            producer.send(
                "T",
                b"body-%d" % number,
                tags="even" if number % 2 == 0 else "odd",
                keys=f"k{number}",
                properties={"n": str(number)},
            ).msg_id: number
            for number in range(300)
        }
        with consuming(name_server, "G") as consumer:
            found = take(consumer, 300)
            assert consumer.poll(0.1) == []
    assert Counter(sent[message.msg_id] for message in found) == Counter(range(300))
    for message in found:
        number = sent[message.msg_id]
        assert (message.body, message.tags, message.keys) == (
            b"body-%d" % number,
            parity(number),
            f"k{number}",
        )
        assert message.properties["n"] == str(number)
    for queue_id in {message.queue_id for message in found}:
        offsets = [message.queue_offset for message in found if message.queue_id == queue_id]
        assert offsets == list(range(len(offsets)))


def test_a_held_pull_is_woken_by_a_send(name_server: str) -> None:
    """A consumer that waits gets each new message long before its hold of 15 s ends."""
    with Producer(RUNTIME, name_server) as producer, consuming_after_first(producer, name_server) as consumer:
        for number in range(20):
            producer.send("T", b"%d" % number)
            assert bodies(take(consumer, 1)) == [b"%d" % number]


@contextmanager
def consuming_after_first(producer: Producer, name_server: str) -> Iterator[PullConsumer]:
    """A consumer that has already taken one message, so that the topic is there and every queue is pulled."""
    producer.send("T", b"first")
    with consuming(name_server, "G") as consumer:
        assert bodies(take(consumer, 1)) == [b"first"]
        yield consumer


def test_the_client_filters_exactly_what_the_broker_filters_by_hash(name_server: str) -> None:
    """Aa and BB have one hash: the broker sends both, the consumer gives only what was asked for."""
    with Producer(RUNTIME, name_server) as producer:
        for tag in ("Aa", "BB", "C", "Aa"):
            producer.send("T", tag.encode(), tags=tag, queue_id=0)
        with consuming(name_server, "G", "Aa || C") as consumer:
            assert bodies(take(consumer, 3)) == [b"Aa", b"C", b"Aa"]
            assert consumer.poll(0.1) == []


def test_a_group_goes_on_where_it_stopped(name_server: str) -> None:
    """Committed messages do not come again, uncommitted ones do."""
    with Producer(RUNTIME, name_server) as producer:
        for number in range(10):
            producer.send("T", b"%d" % number, queue_id=0)
    with consuming(name_server, "G") as consumer:
        assert bodies(take(consumer, 4)) == [b"0", b"1", b"2", b"3"]
        consumer.commit()
        assert bodies(consumer.poll(PATIENCE_S, 2)) == [b"4", b"5"]
    with consuming(name_server, "G", start_at=StartAt.STORED) as consumer:
        assert bodies(take(consumer, 6)) == [b"4", b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize(("start_at", "wanted"), [(StartAt.FIRST, b"old"), (StartAt.LAST, b"new")])
def test_where_to_begin(name_server: str, start_at: StartAt, wanted: bytes) -> None:
    """The first message, or only those sent from now on."""
    with Producer(RUNTIME, name_server) as producer:
        producer.send("T", b"old", queue_id=0)
        with consuming(name_server, "G", start_at=start_at) as consumer:
            producer.send("T", b"new", queue_id=0)
            assert bodies(take(consumer, 1)) == [wanted]


def test_two_members_share_the_queues_and_one_that_leaves_gives_them_back(name_server: str) -> None:
    """After the second joins each queue has one owner; after it leaves the first has all of them again."""
    with Producer(RUNTIME, name_server) as producer:
        producer.send("T", b"make the topic")
        with consuming(name_server, "G") as first:
            every = set(first.queues)
            assert len(every) == 4
            with consuming(name_server, "G") as second:
                wait_until(lambda: len(first.queues) == 2, "the first gave two queues up")
                assert set(first.queues) | set(second.queues) == every
                assert not set(first.queues) & set(second.queues)
            wait_until(lambda: set(first.queues) == every, "the first took them back")


def wait_until(condition: Any, what: str) -> None:
    """Wait for something that another thread does; the pause only spares the processor."""
    pause = threading.Event()
    for _attempt in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail(f"not within {PATIENCE_S:g} s: {what}")


def test_flow_control_stops_and_resumes_pulling(name_server: str) -> None:
    """With 10 messages waiting to be consumed a queue is pulled no more, and goes on when they are."""
    with Producer(RUNTIME, name_server) as producer:
        for number in range(100):
            producer.send("T", b"%d" % number, queue_id=0)
        with consuming(name_server, "G", cached_count_max=10, batch_count_max=5) as consumer:
            puller = next(iter(consumer._member._queues.pullers().values()))
            wait_until(lambda: puller.cached_count == 10 and not puller._is_pulling, "pulling stopped")
            assert puller.stopped_by == "count"
            assert bodies(take(consumer, 100)) == [b"%d" % number for number in range(100)]
            assert puller.cached_count <= 10
            assert puller.stopped_by is None
            assert consumer.statistics["T"].stopped_by_count > 0


def test_nothing_is_left_running(name_server: str) -> None:
    """Closing a producer and a consumer ends every thread of theirs."""
    before = threading.active_count()
    with Producer(RUNTIME, name_server) as producer:
        producer.send("T", b"x")
        with consuming(name_server, "G") as consumer:
            assert bodies(take(consumer, 1)) == [b"x"]
    assert threading.active_count() == before


def test_one_way_sends_arrive(name_server: str) -> None:
    """Nothing is waited for, and the message is there all the same."""
    with Producer(RUNTIME, name_server) as producer, consuming_after_first(producer, name_server) as consumer:
        msg_id = producer.send_one_way("T", b"one way", tags="t")
        (message,) = take(consumer, 1)
        assert (message.msg_id, message.body, message.tags) == (msg_id, b"one way", "t")


def test_an_unknown_topic_has_no_route(name_server: str) -> None:
    """A consumer that is not to wait for it says so at once, in one line."""
    with (
        pytest.raises(NoRouteError, match="'T' is unknown to the name server"),
        consuming(name_server, "G", waits_for_topics=False),
    ):
        pytest.fail("a consumer of an unknown topic started")


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", ":9876"])
def test_a_wrong_address_is_the_users_mistake(address: str) -> None:
    """Nothing is started."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Producer(RUNTIME, address)


def test_no_name_server() -> None:
    """The error says which address was tried."""
    with ScriptedServer(lambda _peer, _command: None) as server:
        address = server.address
    with Producer(RUNTIME, address) as producer, pytest.raises(UnreachableError, match=address):
        producer.send("T", b"x")


@pytest.mark.parametrize(
    ("topic", "body", "properties", "words"),
    [
        ("../x", b"", {}, "not allowed"),
        ("", b"", {}, "not allowed"),
        ("t" * 128, b"", {}, "not allowed"),
        ("T", bytes(4 * 1024 * 1024 + 1), {}, "over the limit"),
        ("T", b"", {"TAGS": "x"}, "reserved for the client"),
        ("T", b"", {"a": "b\x01"}, "separate"),
        ("T", b"", {"a": "b" * 32_768}, "over the limit"),
    ],
)
def test_a_message_that_no_broker_takes_is_refused_before_it_is_sent(
    topic: str, body: bytes, properties: dict[str, str], words: str
) -> None:
    """The user's mistake is told without asking anybody."""
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(RUNTIME, server.address) as producer, pytest.raises(ConfigError, match=words):
            producer.send(topic, body, properties=properties)
        assert server.received == []


def route_to(address: str, *, queue_count: int = 2) -> bytes:
    """A route of one broker at this address."""
    return TopicRouteData(
        broker_datas=[BrokerData(broker_name="b", broker_addrs={0: address})],
        queue_datas=[QueueData(broker_name="b", read_queue_nums=queue_count, write_queue_nums=queue_count, perm=6)],
    ).encode()


class OneBroker:
    """Name server and broker in one scripted server: knows TBW102 only, and sends as told."""

    def __init__(self, *send_codes: int | None) -> None:
        self._send_codes = list(send_codes)
        self.address = ""
        self.queue_ids: list[int] = []

    def __call__(self, peer: Peer, command: Command) -> None:
        """Answer a route or a send; None closes the connection."""
        fields = command.ext_fields or {}
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            known = fields["topic"] == "TBW102"
            code = ResponseCode.SUCCESS if known else ResponseCode.TOPIC_NOT_EXIST
            peer.answer(command, code, body=route_to(self.address, queue_count=8) if known else b"")
            return
        header = SendMessageRequestHeaderV2.decode(fields)
        self.queue_ids.append(header.queue_id)
        send_code = self._send_codes.pop(0)
        if send_code is None:
            peer.close()
            return
        stored = SendMessageResponseHeader(msg_id="id", queue_id=header.queue_id, queue_offset=7)
        peer.answer(command, send_code, stored.encode())


def test_a_new_topic_borrows_the_default_topics_route() -> None:
    """It has at most four queues then, and each send takes the next."""
    broker = OneBroker(0, 0, 0, 0, 0)
    with ScriptedServer(broker) as server, Producer(RUNTIME, server.address) as producer:
        broker.address = server.address
        results = [producer.send("T", b"x") for _number in range(5)]
    assert broker.queue_ids == [0, 1, 2, 3, 0]
    assert {(result.queue_offset, result.broker_msg_id) for result in results} == {(7, "id")}


def test_a_lost_connection_is_tried_again_on_another_queue() -> None:
    """Twice; after that the error is the user's to know."""
    broker = OneBroker(None, None, 0, None, None, None)
    with ScriptedServer(broker) as server, Producer(RUNTIME, server.address) as producer:
        broker.address = server.address
        assert producer.send("T", b"x").queue.queue_id == 2
        with pytest.raises(ClientError, match="SEND_MESSAGE_V2"):
            producer.send("T", b"x")
    assert len(broker.queue_ids) == 6


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE])
def test_stored_but_not_yet_safe_is_told(code: ResponseCode) -> None:
    """These codes are no errors, and the result has them."""
    broker = OneBroker(code)
    with ScriptedServer(broker) as server, Producer(RUNTIME, server.address) as producer:
        broker.address = server.address
        assert producer.send("T", b"x").code == code


def test_a_refused_send_names_code_and_topic() -> None:
    """No retry: the broker has decided."""
    broker = OneBroker(ResponseCode.MESSAGE_ILLEGAL)
    with ScriptedServer(broker) as server, Producer(RUNTIME, server.address) as producer:
        broker.address = server.address
        with pytest.raises(RefusedError, match="'T': the broker says 13") as caught:
            producer.send("T", b"x")
    assert caught.value.code == 13
    assert len(broker.queue_ids) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"brokerDatas":7,"queueDatas":[]}'])
def test_a_route_that_cannot_be_read_is_an_error_of_the_client(body: bytes) -> None:
    """Not a crash: one line that says what was asked."""

    def answer(peer: Peer, command: Command) -> None:
        peer.answer(command, body=body)

    with (
        ScriptedServer(answer) as server,
        Producer(RUNTIME, server.address) as producer,
        pytest.raises(ClientError, match="route of topic"),
    ):
        producer.send("T", b"x")


class NoLock(nullcontext[None]):
    """A lock that everybody gets at once."""

    def acquire(self, *, blocking: bool) -> bool:
        """Whoever asks."""
        return not blocking

    def release(self) -> None:
        """Nothing to give back."""


def test_planted_a_consumer_that_rebalances_twice_at_once_is_noticed(
    name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its lock, and with two rebalances made to meet, a queue is pulled twice and messages come twice."""
    meeting = threading.Barrier(2)
    original = Sharing._begin

    def begin_together(self: Sharing, queue: Any) -> None:
        meeting.wait(PATIENCE_S)
        original(self, queue)

    with Producer(RUNTIME, name_server) as producer:
        producer.send("T", b"x", queue_id=0)
        with PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.FIRST)) as consumer:
            consumer.subscribe("T")
            monkeypatch.setattr(Sharing, "_begin", begin_together)
            monkeypatch.setattr(consumer._member._sharing, "rebalancing", NoLock())
            consumer.start()
            assert bodies(take(consumer, 2)) == [b"x", b"x"]
