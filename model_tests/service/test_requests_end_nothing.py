"""Whatever a request raises is answered, or costs its own connection; the broker and its name server go on."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, Final

import pytest
from attrs import frozen
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from model_tests.support.service import answer_of, served

from longpoll_broker.broker import Broker
from longpoll_broker.handler import BrokerHandler
from longpoll_broker.io.channel import Channel
from longpoll_broker.rocketmq.name_server.name_server import NameServer
from longpoll_broker.rocketmq.timers.schedule_service import ScheduleService
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.log_record import as_int32
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.policy import preset

POLICIES: Final = ("strict", "rocketmq-4.9", "rocketmq-5")
TIMES: Final = (2**31 - 1, 2**31 - 2, -1, -3, -5, -(2**31))
RAISED: Final[tuple[Callable[[], Exception], ...]] = (
    lambda: struct.error("'i' format requires -2147483648 <= number <= 2147483647"),
    MemoryError,
    lambda: AssertionError("injected"),
    lambda: StopIteration("injected"),
    lambda: Exception("injected"),
)
QUEUE: Final = {"topic": "T", "queueId": "0"}


def assert_serves(broker: Broker, connect: Connect) -> None:
    """A stranger sends, pulls and asks for a route, and gets what is right."""
    names, client = connect(broker.name_server_address), connect(broker.address)
    offset = send_message(client, "SAFE", b"still there")
    reply = answer_of(client, client.send(RequestCode.PULL_MESSAGE, pull_fields("SAFE", offset, timeout_ms=9_000)))
    assert [bytes(record.body) for record in records_of(reply)] == [b"still there"]
    assert names.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "SAFE"}).code == 0


def sent_back(client: RawClient, times: int, **fields: str) -> int:
    """Send a message that was tried so often, send it back, and return the answer's code."""
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T") | {"j": str(times)}, b"poison")
    assert reply.ext_fields is not None, reply
    offset = int(reply.ext_fields["msgId"][16:], 16)
    return client.call(
        RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": str(offset), "group": "G", "delayLevel": "0"} | fields
    ).code


@pytest.mark.parametrize("policy", POLICIES)
def test_a_count_of_tries_that_overflows(start_broker: StartBroker, connect: Connect, policy: str) -> None:
    broker, client = served(start_broker, connect, policy=preset(policy))
    for times in TIMES:
        assert [sent_back(client, times), sent_back(client, times, maxReconsumeTimes=str(2**31 - 1))] == [0, 0]
    wait_until(lambda: broker.store.dispatched_end == broker.store.log_end)
    found = [
        record.reconsume_times
        for topic in ("%DLQ%G", "%RETRY%G")
        for record in records_of(client.call(RequestCode.PULL_MESSAGE, pull_fields(topic, 0)))
    ]
    # What is tried as often as allowed is dead; a negative level is no delay, and a level above 0 waits.
    assert -(2**31) in found
    assert set(found) <= {as_int32(times + 1) for times in TIMES}
    assert_serves(broker, connect)
    broker.stop()

    again = start_broker(policy=preset(policy))
    assert sent_back(connect(again.address), 2**31 - 1) == 0
    assert_serves(again, connect)


@frozen
class Raises:
    """A hook, and much else, that fails for one code."""

    code: int
    make: Callable[[], Exception]

    def before_request(self, _peer: str, command: Command) -> None:
        if command.code == self.code:
            raise self.make()

    def after_response(self, peer: str, command: Command, response: Command | None) -> None:
        """Nothing."""

    def refusal(self, _channel: object, command: Command) -> None:
        if command.code == self.code:
            raise self.make()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_what_a_processor_raises_is_answered(
    start_broker: StartBroker,
    connect: Connect,
    make: Callable[[], Exception],
    caplog: pytest.LogCaptureFixture,
    broken_invariants: list[str],
) -> None:
    broker, client = served(start_broker, connect, hooks=[Raises(RequestCode.GET_MAX_OFFSET, make)])
    reply = client.call(RequestCode.GET_MAX_OFFSET, QUEUE)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]

    assert (reply.code, (reply.remark or "").split(":")[0]) == (1, type(make()).__name__)
    assert len(told) == 1
    assert "request 30 of /127.0.0.1" in told[0].getMessage()
    assert told[0].exc_info is not None
    assert client.call(RequestCode.GET_MIN_OFFSET, QUEUE).code == 0
    assert_serves(broker, connect)
    broken_invariants.clear()


@pytest.mark.parametrize("make", RAISED[:2], ids=lambda make: type(make()).__name__)
def test_what_access_control_and_the_name_server_raise_is_answered(
    start_broker: StartBroker, connect: Connect, make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(NameServer, "topic_list", lambda *_: Raises(0, make).refusal(None, Command(0)))
        broker = start_broker()
        assert connect(broker.name_server_address).call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == 1
    monkeypatch.setattr(broker.handler, "access", Raises(RequestCode.GET_MAX_OFFSET, make))
    assert connect(broker.address).call(RequestCode.GET_MAX_OFFSET, QUEUE).code == 1
    assert_serves(broker, connect)


def channels(broker: Broker) -> set[Channel]:
    return {channel for loop in broker.loops for channel in loop._channels}


@pytest.mark.parametrize("method", ["receive_data", "next_event"])
def test_what_reading_raises_costs_the_connection_only(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, method: str, caplog: Any
) -> None:
    broker, bystander = served(start_broker, connect)
    assert bystander.call(RequestCode.GET_MAX_OFFSET, QUEUE).code == 0
    others = channels(broker)
    victim = connect(broker.address)
    assert victim.call(RequestCode.GET_MAX_OFFSET, QUEUE).code == 0
    (channel,) = channels(broker) - others

    def fails(*_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(channel, "connection", type("Full", (Connection,), {method: fails})())
        victim.send(RequestCode.GET_MAX_OFFSET, QUEUE)
        assert victim.wait_closed()
    assert f"what {channel} sent cannot be" in caplog.text
    assert bystander.call(RequestCode.GET_MAX_OFFSET, QUEUE).code == 0
    assert_serves(broker, connect)


def test_faults_beside_requests(start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start_broker()
    raised: list[str] = []

    def once(name: str, then: Callable[..., Any]) -> Callable[..., Any]:
        def fails(*arguments: object) -> Any:
            if name not in raised:
                raised.append(name)
                raise struct.error(name)
            return then(*arguments)

        return fails

    monkeypatch.setattr(BrokerHandler, "closed", once("closed", BrokerHandler.closed))
    monkeypatch.setattr(BrokerHandler, "end_pass", once("pass", BrokerHandler.end_pass))
    monkeypatch.setattr(type(broker.hold_service), "run", once("clock", type(broker.hold_service).run))
    connect(broker.address).close()
    wait_until(lambda: len(raised) == 3)
    assert_serves(broker, connect)


def test_a_delayed_message_that_cannot_be_delivered_keeps_nothing_back(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[str] = []
    deliver = ScheduleService._deliver

    def fails(service: ScheduleService, physical_offset: int) -> None:
        if not raised:
            raised.append("memory")
            raise MemoryError
        deliver(service, physical_offset)

    def read(store: Any, physical_offset: int) -> Any:
        record = found(store, physical_offset)
        if record is not None and bytes(record.body) == b"poison" and record.topic.startswith("SCHEDULE"):
            raise struct.error
        return record

    broker = start_broker()
    found = type(broker.store).read_record
    monkeypatch.setattr(ScheduleService, "_deliver", fails)
    monkeypatch.setattr(type(broker.store), "read_record", read)
    client = connect(broker.address)
    for body in (b"poison", b"good"):
        client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, "DELAY\x011\x02"), body)
    reply = answer_of(client, client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=9_000)))
    assert [bytes(record.body) for record in records_of(reply)] == [b"good"]
    assert raised == ["memory"]


def test_keep_going_lets_out_what_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test")
    with KeepGoing(log, "planted"):
        raise struct.error("told")
    with pytest.raises(SystemExit), KeepGoing(log, "planted"):
        raise SystemExit
    assert [(record.message, record.funcName) for record in caplog.records] == [
        ("planted", "test_keep_going_lets_out_what_is_no_fault")
    ]
    assert "told" in caplog.text


def test_each_edge_of_java_arithmetic() -> None:
    edges = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63]
    assert [as_int32(value) for value in edges] == [0, 1, -1, 2**31 - 1, -(2**31), -(2**31), 2**31 - 1, 0, 0]


def test_a_send_back_that_does_not_fit_the_record(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injected fault is a count that does not wrap."""
    monkeypatch.setattr("longpoll_broker.send.send_back_processor.as_int32", lambda value: value)
    broker, client = served(start_broker, connect)
    assert sent_back(client, 2**31 - 1) == 1
    assert_serves(broker, connect)
