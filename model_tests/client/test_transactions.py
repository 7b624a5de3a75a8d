"""Transactions with the broker's checks, and requests with replies."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import (
    RUNTIME,
    Clients,
    Told,
    from_first,
    name_server_of,
    polled,
    polling,
    run,
)
from model_tests.support.ports import closed_port

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.rocketmq.transactions import GROUP, OP_TOPIC
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_client import (
    AsyncProducer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ClientError,
    ConfigError,
    ConnectionLostError,
    LifecycleError,
    Producer,
    ReceivedMessage,
    RefusedError,
    ReplyTimeoutError,
    Retry,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.consume import puller
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
CONFIG: Final = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=3_600_000)
"""The test itself starts each round of checks, because a check that is still running would be counted twice."""
STORE: Final = evolve(SMALL_STORE, flush_interval_ms=20)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that checks transactions of any age."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=CONFIG, store_config=STORE) as started:
        yield started


@pytest.fixture
def name_server(broker: Broker) -> str:
    return name_server_of(broker)


def unknown(_message: ReceivedMessage) -> TransactionState:
    """Answer a check with UNKNOWN."""
    return UNKNOWN


def delivered(broker: Broker, count: int) -> list[ReceivedMessage]:
    with polling(name_server_of(broker), "T") as consumer:
        found = polled(consumer, count)
        assert consumer.poll(0.1) == []
    return found


def check_now(broker: Broker) -> None:
    """Start one round of checks with the broker's next flush."""
    checks = broker.sending.checks
    checks._due_ns = 0
    wait_until(lambda: checks._due_ns != 0)


def all_ended(broker: Broker) -> bool:
    """Whether another round of checks finds no open transaction."""
    end = broker.store.visible_end(HALF_TOPIC, 0)
    check_now(broker)
    wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == end)
    return broker.store.visible_end(HALF_TOPIC, 0) == end


def test_only_committed_messages_are_delivered(clients: Clients, broker: Broker) -> None:
    """Committed messages are delivered after the work, in the order of the commits, with tags, keys and properties."""
    told = Told()
    producer = clients.transactions(unknown, hooks=[told])
    for number, state in enumerate((COMMIT, ROLLBACK, COMMIT)):

        def work(number: int = number, state: TransactionState = state) -> TransactionState:
            wait_until(lambda: broker.store.visible_end(HALF_TOPIC, 0) == number + 1)
            return state

        result = producer.send("T", b"%d" % number, clients.plain(work), tag="t", keys="k", properties={"a": "b"})
        assert result.state is state
        assert f"{result.state}" == str(result.state) == state.name
    assert (producer.metrics().sends, len(told.events)) == (3, 6)
    producer.close()
    with pytest.raises(LifecycleError, match="closed"):
        producer.send("T", b"late", clients.plain(lambda: COMMIT))
    first, second = delivered(broker, 2)
    assert (first.body, second.body) == (b"0", b"2")
    assert (first.tag, first.keys, first.properties["a"]) == ("t", ("k",), "b")


def test_the_broker_checks_an_open_transaction_and_uses_the_result(clients: Clients, broker: Broker) -> None:
    """The check gets the message with its real topic, and its result counts like the result of the work."""
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return COMMIT if message.body == b"kept" else ROLLBACK

    producer = clients.transactions(check)
    producer.send("T", b"dropped", clients.plain(lambda: UNKNOWN))
    producer.send("T", b"kept", clients.plain(lambda: UNKNOWN), tag="t")
    check_now(broker)
    # On an event loop checks run in parallel, so the rolled-back transaction may end last.
    wait_until(lambda: broker.store.visible_end(OP_TOPIC, 0) == 2)
    (message,) = delivered(broker, 1)
    assert all_ended(broker)
    assert (message.body, message.tag) == (b"kept", "t")
    assert {(one.topic, one.body) for one in asked} == {("T", b"dropped"), ("T", b"kept")}


def raises(error: BaseException) -> Any:
    raise error


class Stop(BaseException):
    """An exception that is not an Exception, such as pytest's own."""


FAULTS: list[tuple[bool, BaseException, BaseException]] = [
    *((is_loop, LookupError("the work's"), ZeroDivisionError("the check's")) for is_loop in (False, True)),
    (False, KeyboardInterrupt(), Stop()),
    (False, StopIteration(), Stop()),
]
"""Whether the producer is on an event loop (which Ctrl-C would end), and the exceptions of the work and of the check.
"""


@pytest.mark.parametrize(("is_loop", "of_work", "of_check"), FAULTS, ids=range(len(FAULTS)))
def test_work_and_checks_that_raise_or_exit_leave_the_transaction_open(  # noqa: PLR0917 - fixtures and a row of the table
    name_server: str,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    is_loop: bool,
    of_work: BaseException,
    of_check: BaseException,
) -> None:
    """The caller gets the exception of the work, and the broker repeats a check that raises or exits."""
    tries: list[int] = []

    def check(_message: ReceivedMessage) -> TransactionState:
        tries.append(1)
        if len(tries) == 1:
            raise of_check
        return COMMIT

    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        clients = Clients(name_server, stack, is_loop=is_loop)
        with pytest.raises(type(of_work)):
            clients.transactions(check).send("T", b"x", clients.plain(lambda: raises(of_work)))
        check_now(broker)
        wait_until(lambda: len(tries) == 1)
        check_now(broker)
        assert [message.body for message in delivered(broker, 1)] == [b"x"]
    assert f"failed: {of_check!r}; the broker asks again" in caplog.text
    assert len(tries) == 2


def test_another_member_answers_the_check_of_a_closed_producer(name_server: str, broker: Broker) -> None:
    """After a member's first send the broker may ask it about another member's open transaction."""
    with TransactionProducer(name_server, group="PG", check_transaction=lambda _message: COMMIT) as second:
        second.send("T", b"hello", lambda: ROLLBACK)
        with TransactionProducer(name_server, group="PG", check_transaction=unknown) as first:
            first._timer.close()
            first.send("T", b"left open", lambda: UNKNOWN)
        check_now(broker)
        assert [message.body for message in delivered(broker, 1)] == [b"left open"]


def test_a_forked_process_sends_heartbeats_after_its_first_message(name_server: str) -> None:
    """A forked process starts its own timer for heartbeats, and only one."""
    with TransactionProducer(name_server, group="PG", check_transaction=unknown) as producer:
        producer._timer._entries.clear()
        producer._heartbeat_process = None  # Without this process id, the timer counts as that of a parent process.
        for body in (b"1", b"2"):
            producer.send("T", body, lambda: ROLLBACK)
            assert len(producer._timer._entries) == 1


def test_a_user_cannot_prepare_a_message_by_a_property(name_server: str) -> None:
    """The broker would never deliver a message with this property, so the client refuses it."""
    with Producer(name_server) as producer, pytest.raises(ConfigError, match="TRAN_MSG is reserved for the client"):
        producer.send("T", b"x", properties={"TRAN_MSG": "true"})


def test_cancelled_work_leaves_the_transaction_open(name_server: str, broker: Broker) -> None:
    """If the work is cancelled, the transaction stays open and the broker checks it."""

    async def check(_message: ReceivedMessage) -> TransactionState:
        await asyncio.sleep(0)
        return COMMIT

    async def story() -> None:
        working = asyncio.Event()

        async def hangs() -> TransactionState:
            working.set()
            await asyncio.sleep(3600)
            return ROLLBACK

        async with AsyncTransactionProducer(name_server, group="PG", check_transaction=check) as producer:
            sending = asyncio.create_task(producer.send("T", b"cancelled", hangs))
            await working.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await asyncio.to_thread(check_now, broker)
            (message,) = await asyncio.to_thread(delivered, broker, 1)
            assert message.body == b"cancelled"

    run(story)


@pytest.mark.parametrize("by_itself", [True, False], ids=["in the check", "beside it"])
def test_a_producer_may_be_closed_while_a_check_runs(name_server: str, broker: Broker, by_itself: bool) -> None:
    """A close in the check does not wait for the check, and any other close does. The check's result counts."""

    async def story() -> None:
        checking = asyncio.Event()

        async def check(_message: ReceivedMessage) -> TransactionState:
            checking.set()
            if by_itself:
                await producer.close()
            await asyncio.sleep(0.01)
            return COMMIT

        async def work() -> TransactionState:
            return UNKNOWN

        producer = AsyncTransactionProducer(name_server, group="PG", check_transaction=check)
        await producer.send("T", b"x", work)
        await asyncio.to_thread(check_now, broker)
        await checking.wait()
        await producer.close()
        if by_itself:
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    run(story)
    if not by_itself:
        assert [message.body for message in delivered(broker, 1)] == [b"x"]


SHORT_S: Final = 0.2
SILENT: Final = b"no reply"


class Service:
    """Consumes a topic, and replies with the reversed body of each message; one message gets no reply."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self.asked: list[ReceivedMessage] = []
        self.refused: list[ClientError] = []
        self.replier = clients.producer("repliers")
        self.consumer = clients.push(from_first(f"service-{topic}"), self.listen)
        self.consumer.subscribe(topic)
        self.consumer.start()

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        for message in messages:
            self.asked.append(message)
            if message.body != SILENT:
                try:
                    self.replier.reply(message, message.body[::-1])
                except ClientError as error:
                    self.refused.append(error)
        return None


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    with new_topic(name_server, 2) as made:
        yield made


@pytest.fixture
def service(clients: Clients, topic: str) -> Service:
    return Service(clients, topic)


def connected(producer: Any, topic: str) -> None:
    """Send one request first, so that a short timeout concerns only the reply, not routes and connections."""
    producer.request(topic, b"first", timeout_s=PATIENCE_S)


def test_each_request_gets_its_own_reply(clients: Clients, topic: str, service: Service) -> None:
    """Eight threads send requests at once, also compressed ones; replies carry the request's number and no queue."""
    bodies = [b"%d" % number * (1 + 5000 * (number % 2)) for number in range(10, 40)]
    found: dict[bytes, ReceivedMessage] = {}
    producer = clients.producer("askers")

    def ask(part: list[bytes]) -> None:
        for body in part:
            found[body] = producer.request(topic, body, keys="k", timeout_s=PATIENCE_S)

    threads = [threading.Thread(target=ask, args=(bodies[first::8],)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {body: reply.body for body, reply in found.items()} == {body: body[::-1] for body in bodies}
    numbers = {message.body: message.properties["CORRELATION_ID"] for message in service.asked}
    for body, reply in found.items():
        assert reply.properties["CORRELATION_ID"] == numbers[body]
        assert (reply.topic, reply.queue_offset) == ("DefaultCluster_REPLY_TOPIC", -1)
        assert reply.properties["MSG_TYPE"] == "reply"
    assert len(set(numbers.values())) == len(bodies)
    assert service.refused == []


def test_a_request_without_a_reply_ends_in_time(clients: Clients, topic: str, service: Service) -> None:
    """The request times out, and its late reply is acknowledged and ignored."""
    producer = clients.producer("askers")
    connected(producer, topic)
    with pytest.raises(ReplyTimeoutError, match=r"no reply within 0\.2 s"):
        producer.request(topic, SILENT, timeout_s=SHORT_S)
    wait_until(lambda: len(service.asked) == 2)
    assert service.asked[1].properties["TTL"] == "200"
    service.replier.reply(service.asked[1], b"late")
    assert producer.request(topic, b"next", timeout_s=PATIENCE_S).body == b"txen"


def test_a_callback_gets_the_reply_or_the_error_once(clients: Clients, topic: str, service: Service) -> None:
    """A raising callback stops nothing, a request that cannot be sent is dropped, and a close ends the others."""
    got: list[Any] = []

    def receive(outcome: ReceivedMessage | ClientError) -> None:
        got.append(outcome)
        raise ValueError("planted")

    producer = clients.producer("askers")
    producer.request_nowait(topic, b"ab", callback=receive, timeout_s=PATIENCE_S)
    wait_until(lambda: len(got) == 1)
    producer.request_nowait(topic, SILENT, callback=receive, timeout_s=SHORT_S)
    wait_until(lambda: len(got) == 2)
    for wrong in ({"KEYS": "k"}, {"": "no name"}):
        with pytest.raises(ConfigError):
            producer.request_nowait(topic, b"x", callback=receive, properties=wrong)
    assert producer._requests._waiting == {}
    producer.request_nowait(topic, SILENT, callback=receive, timeout_s=PATIENCE_S)
    wait_until(lambda: len(service.asked) == 3)
    producer.close()
    assert [type(outcome) for outcome in got] == [ReceivedMessage, ReplyTimeoutError, ConnectionLostError]
    assert got[0].body == b"ba"
    with pytest.raises(LifecycleError):
        producer.request(topic, b"x")
    with pytest.raises(LifecycleError):
        producer.request_nowait(topic, b"x", callback=receive)


def test_a_producer_serves_no_other_request() -> None:
    """A producer answers the broker that it does not know this request."""
    with Producer("127.0.0.1:1") as producer:
        assert not producer._requests.requested(Command(RequestCode.CHECK_TRANSACTION_STATE), "127.0.0.1:1")


def test_a_closed_requester_gets_no_reply(clients: Clients, topic: str, service: Service) -> None:
    """The replier gets an error after its tries; a reply to a plain message is refused."""
    producer = clients.producer("askers")
    connected(producer, topic)
    with pytest.raises(ReplyTimeoutError):
        producer.request(topic, SILENT, timeout_s=SHORT_S)
    producer.close()
    wait_until(lambda: len(service.asked) == 2)
    with pytest.raises(RefusedError, match=r"channel of <.*> not found"):
        service.replier.reply(service.asked[1], b"x")
    clients.producer().send(topic, SILENT)
    wait_until(lambda: len(service.asked) == 3)
    with pytest.raises(ConfigError, match="not a request"):
        service.replier.reply(service.asked[2], b"x")


def test_a_cancelled_or_closed_request_is_forgotten(name_server: str, topic: str) -> None:
    """On an event loop a cancelled request leaves nothing, and a close ends a request with an error."""

    async def story() -> None:
        arrived = asyncio.Event()

        async def listen(_messages: Sequence[ReceivedMessage]) -> Retry | None:
            arrived.set()
            return None

        service = AsyncPushConsumer(
            name_server, topics=topic, listener=listen, **member_options(from_first(f"G-{topic}"))
        )
        asking = AsyncProducer(name_server, group="askers")
        async with service:
            assert asking._requests is not None
            for ends_by_close in (False, True):
                waiting = asyncio.create_task(asking.request(topic, SILENT, timeout_s=PATIENCE_S))
                await arrived.wait()
                arrived.clear()
                if ends_by_close:
                    await asking.close()
                    with pytest.raises(ConnectionLostError, match="before a reply came"):
                        await waiting
                else:
                    waiting.cancel()
                    await asyncio.wait([waiting])
                assert asking._requests._waiting == {}

    run(story)


def test_requests_work_after_the_broker_was_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the broker's restart the client registers again on its new connection."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    with ExitStack() as stack:
        store = str(tmp_path / "store")
        # The port stays bound from here on, so that no other test gets it between the two brokers.
        places: dict[str, Any] = {
            "listen": stack.enter_context(closed_port()),
            "name_server": stack.enter_context(closed_port()),
        }
        broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE, **places)
        stack.callback(broker.stop)
        clients = Clients(name_server_of(broker), stack, is_loop=False)
        producer = clients.producer("askers")
        with new_topic(clients.name_server, 1) as topic:
            service = Service(clients, topic)
            assert producer.request(topic, b"ab", timeout_s=PATIENCE_S).body == b"ba"
            broker.stop()
            stack.callback(Broker.start(RUNTIME, store, store_config=SMALL_STORE, **places).stop)
            assert producer.request(topic, b"cd", timeout_s=PATIENCE_S).body == b"dc"
            assert len(service.asked) >= 2
