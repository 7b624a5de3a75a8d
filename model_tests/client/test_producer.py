"""Batches, picking queues, other brokers, and the same for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    ConsumerConfig,
    MessageQueue,
    OutgoingMessage,
    Producer,
    PullConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.errors import ClientError, LifecycleError, NoRouteError, RefusedError, UnreachableError
from longpoll_client.link import routes
from longpoll_client.link.name_servers import NameServers
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import Permission, RequestCode, ResponseCode
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 10.0


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of an embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


def consume(name_server: str, topic: str, count: int) -> list[ReceivedMessage]:
    """The first so many messages of a topic."""
    found: list[ReceivedMessage] = []
    with PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.FIRST)) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        while len(found) < count:
            messages = consumer.poll(PATIENCE_S)
            assert messages
            found += messages
    return found


def test_a_batch_stands_together_in_one_queue(name_server: str) -> None:
    """Its results name each message's own offset and both of its ids, and each keeps its tags, keys and properties."""
    messages = [OutgoingMessage(b"%d" % number, "t", f"k{number}", {"n": str(number)}) for number in range(50)]
    with new_topic(name_server, 4) as topic, Producer(RUNTIME, name_server) as producer:
        results = producer.send_batch(topic, messages)
        found = consume(name_server, topic, 50)
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(50))
    assert len({result.broker_msg_id for result in results}) == 50
    assert [message.msg_id for message in found] == [result.msg_id for result in results]
    assert [(message.body, message.tags, message.keys, message.properties["n"]) for message in found] == [
        (one.body, one.tags, one.keys, one.properties["n"]) for one in messages
    ]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "0 messages"),
        ([OutgoingMessage(b"x", delay_level=1)], "cannot be delayed"),
        ([OutgoingMessage(b"x" * (3 * 1024 * 1024))] * 2, "over the limit"),
        ([OutgoingMessage(b"x", properties={"DELAY": "1"})], "reserved for the client"),
        ([b"x"], "a bytes is not a message"),
    ],
)
def test_a_batch_that_no_broker_takes_is_refused_before_it_is_sent(
    messages: Sequence[OutgoingMessage], words: str
) -> None:
    """The user's mistake is told without asking anybody."""
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(RUNTIME, server.address) as producer, pytest.raises(ConfigError, match=words):
            producer.send_batch("T", messages)
        assert server.received == []


def test_a_batch_of_text_that_no_frame_can_hold_fails_as_one_message_does() -> None:
    """With an error of the client's, so that whoever catches those catches it too."""
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(RUNTIME, server.address) as producer, pytest.raises(LocalProtocolError, match="not Unicode"):
            producer.send_batch("T", [OutgoingMessage(b"x", tags="\ud800")])
        assert server.received == []


def test_a_delayed_message_comes_later(name_server: str) -> None:
    """By its level's second at least, by the broker's own clock."""
    with new_topic(name_server, 1) as topic, Producer(RUNTIME, name_server) as producer:
        producer.send(topic, b"x", delay_level=1)
        (message,) = consume(name_server, topic, 1)
    assert message.store_ms - message.born_ms >= 1000


def test_whoever_sends_may_pick_the_queue(name_server: str) -> None:
    """By its number or by a function of all queues; not in both ways, and no queue that is not there."""
    with new_topic(name_server, 4) as topic, Producer(RUNTIME, name_server) as producer:
        assert producer.send(topic, b"x", queue_id=2).queue.queue_id == 2
        assert producer.send(topic, b"x", select=lambda queues: queues[-1]).queue.queue_id == 3
        with pytest.raises(ConfigError, match="cannot be used together"):
            producer.send(topic, b"x", queue_id=2, select=lambda queues: queues[-1])
        with pytest.raises(ConfigError, match="not a writable queue"):
            producer.send(topic, b"x", select=lambda _queues: MessageQueue(topic="other", broker_name="b", queue_id=0))


class Fleet:
    """Two brokers of one topic, of which some answer with an error, behind one name server."""

    def __init__(self, *, bad: str, code: int) -> None:
        self.asked: list[str] = []
        self._bad = bad
        self._code = code
        self.addresses: dict[str, str] = {}

    def name_server(self, peer: Peer, command: Command) -> None:
        """Answer every route."""
        route = TopicRouteData(
            broker_datas=[BrokerData(broker_name=name, broker_addrs={0: at}) for name, at in self.addresses.items()],
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=4, write_queue_nums=4, perm=6) for name in self.addresses
            ],
        )
        peer.answer(command, body=route.encode())

    def broker(self, name: str, peer: Peer, command: Command) -> None:
        """Take a message, or refuse it."""
        assert command.code == RequestCode.SEND_MESSAGE_V2
        self.asked.append(name)
        fields = SendMessageResponseHeader(msg_id="id", queue_id=0, queue_offset=0).encode()
        peer.answer(command, self._code if name == self._bad else 0, fields)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_another_broker_is_tried_after_an_answer_that_another_may_not_give(code: ResponseCode) -> None:
    """Never the same one twice running, although its queues are next in turn."""
    fleet = Fleet(bad="a", code=code)
    with ExitStack() as stack:
        for name in "ab":
            server = stack.enter_context(
                ScriptedServer(lambda peer, command, name=name: fleet.broker(name, peer, command))  # type: ignore[misc] # bound early
            )
            fleet.addresses[name] = server.address
        server = stack.enter_context(ScriptedServer(fleet.name_server))
        with Producer(RUNTIME, server.address) as producer:
            results = [producer.send("T", b"x") for _number in range(8)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert "aa" not in "".join(fleet.asked)


def test_a_route_of_a_dead_broker_goes_to_the_living_one() -> None:
    """The name server still names a broker that is down: the message is stored all the same."""
    fleet = Fleet(bad="", code=0)
    with ExitStack() as stack:
        with ScriptedServer(lambda _peer, _command: None) as gone:
            fleet.addresses["a"] = gone.address
        server = stack.enter_context(ScriptedServer(lambda peer, command: fleet.broker("b", peer, command)))
        fleet.addresses["b"] = server.address
        names = stack.enter_context(ScriptedServer(fleet.name_server))
        with Producer(RUNTIME, names.address) as producer:
            assert {producer.send("T", b"x").queue.broker_name for _number in range(4)} == {"b"}
            del fleet.addresses["b"]
            producer._instance.forget_route("T")
            with pytest.raises(UnreachableError, match=gone.address):
                producer.send("T", b"x")


def test_callbacks_are_told_once_whatever_fails() -> None:
    """With the result after another broker was tried, with the error, and by a close; a mistake is raised at once."""
    fleet = Fleet(bad="a", code=ResponseCode.SYSTEM_ERROR)
    told: list[object] = []
    done = threading.Event()

    def tell(outcome: object) -> None:
        told.append(outcome)
        if len(told) == 9:
            done.set()
        raise ValueError("mistake")

    with ExitStack() as stack:
        for name in "ab":
            server = stack.enter_context(
                ScriptedServer(lambda peer, command, name=name: fleet.broker(name, peer, command))  # type: ignore[misc] # bound early
            )
            fleet.addresses[name] = server.address
        names = stack.enter_context(ScriptedServer(fleet.name_server))
        with Producer(RUNTIME, names.address) as producer:
            for _number in range(8):
                producer.send_async("T", b"x", tell)
            producer.send_async("T", b"x", tell, select=lambda queues: queues[0])
            with pytest.raises(ConfigError, match="not allowed"):
                producer.send_async("a topic", b"x", tell)
            assert done.wait(PATIENCE_S)
            mute = stack.enter_context(ScriptedServer(lambda _peer, _command: None))
            fleet.addresses = {"a": mute.address}
            producer._instance.forget_route("T")
            producer.send_async("T", b"x", tell)
        with pytest.raises(LifecycleError):
            producer.send_async("T", b"x", tell)
    kinds = [type(one).__name__ for one in told]
    assert sorted(kinds[:9]) == ["RefusedError"] + ["SendResult"] * 8
    assert len(kinds) == 10
    assert isinstance(told[9], ClientError)


def test_a_lost_name_server_leaves_what_is_known(
    name_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Routes that were learned serve on, with one line each time; an unknown topic is told of."""
    with new_topic(name_server, 1) as topic, Producer(RUNTIME, name_server) as producer:
        producer.send(topic, b"x")
        monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.0)
        with ScriptedServer(lambda _peer, _command: None) as gone:
            address = gone.address
        producer._instance._name_servers = NameServers(address)
        assert producer.send(topic, b"y").queue_offset == 1
        wait_until(lambda: "goes on by its last route" in caplog.text)
        with pytest.raises(UnreachableError, match="cannot reach any name server"):
            producer.send("unknown", b"z")


def test_a_topic_without_permission_is_told_of(name_server: str) -> None:
    """Writing to one that may only be read, and reading one that may only be written, each in one line."""
    with (
        new_topic(name_server, 1) as topic,
        Producer(RUNTIME, name_server) as producer,
        Admin(RUNTIME, name_server) as admin,
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
    with new_topic(name_server, 2) as topic, Admin(RUNTIME, name_server) as admin:
        with Producer(RUNTIME, name_server) as producer:
            producer.send_batch(topic, [OutgoingMessage(b"x")] * 3, queue_id=1)
        assert admin.topic_names() == [topic]
        assert "TBW102" in admin.topic_names(with_system=True)
        consume(name_server, topic, 3)
        (group,) = [group for group in admin.groups() if group.name == "G"]
        assert group.members == ()
        rows = {row.queue.queue_id: (row.first, row.end, row.stored, row.lag) for row in admin.offsets("G", [topic])}
        assert rows == {0: (0, 0, 0, 0), 1: (0, 3, 0, 3)}
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=1)
        assert admin.set_offset("G", queue, StartAt.LAST) == 3
        assert sum(row.lag for row in admin.offsets("G", [topic])) == 0
        admin.delete_topic(topic)
        with pytest.raises(NoRouteError):
            admin.topic(topic)
        with pytest.raises(RefusedError):
            admin.create_topic("T", 100_000)


def test_asyncio_sends_and_polls_and_loses_nothing_when_cancelled(name_server: str) -> None:
    """Sends go side by side; a poll that is cancelled in the middle gives what it found to the next one."""

    async def story(topic: str) -> list[bytes]:
        seen: list[bytes] = []
        config = ConsumerConfig("G", start_at=StartAt.FIRST)
        consumer = AsyncPullConsumer(RUNTIME, name_server, config)
        consumer.subscribe(topic)
        async with AsyncProducer(RUNTIME, name_server) as producer, consumer as polling:
            waiting = asyncio.create_task(polling.poll(PATIENCE_S, 1))
            await asyncio.wait([waiting], timeout=0.05)
            waiting.cancel()
            await asyncio.gather(*(producer.send(topic, b"%d" % number, queue_id=0) for number in range(20)))
            await producer.send_batch(topic, [OutgoingMessage(b"20")], queue_id=0)
            seen += [message.body for message in await polling.poll(PATIENCE_S, 1)]
            async for message in polling:
                seen.append(message.body)
                if len(seen) == 21:
                    break
            await polling.commit()
        return seen

    with new_topic(name_server, 1) as topic:
        assert sorted(asyncio.run(story(topic)), key=int) == [b"%d" % number for number in range(21)]
