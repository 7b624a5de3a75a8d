"""Bad input costs its sender an error code or the connection, and does not affect other clients."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import frozen
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_visible
from model_tests.support.broker.fuzzing import SEEDS
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    send_fields,
    send_message,
)
from model_tests.support.service import ShiftedRuntime
from model_tests.support.spec.cases import quick_if
from model_tests.support.suite.requests import MALFORMED

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel
from longpoll_broker.rocketmq.delay_levels import ScheduleService
from longpoll_broker.rocketmq.name_server.name_server import NameServer
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command, Connection, Serialisation, frame_head
from longpoll_protocol.log_record import as_int32
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.policy import PRESETS, ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy, preset

PULL = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2


def still_serves(broker: Broker, brokers: Brokers) -> bool:
    return brokers.connect(broker).is_served()


def test_requests_before_a_bad_frame_are_answered(broker: Broker, client: RawClient) -> None:
    opaque = client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    client.send_bytes(MALFORMED["a JSON header that is no JSON"])
    assert client.reply(opaque) is not None
    assert client.wait_closed()


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9, ROCKETMQ_5, STRICT], ids=lambda policy: policy.name)
def test_only_5_closes_a_bad_frame_after_twelve_bytes(brokers: Brokers, policy: Policy) -> None:
    """4.9 closes the connection at once after a frame of length 0, and 5.x only after twelve bytes."""
    broker = brokers.start(policy=policy)
    for address in (broker.address, broker.name_server_address):
        client = brokers.connect(address)
        client.send_bytes(bytes(8))
        if policy is ROCKETMQ_5:
            other = brokers.connect(address)
            assert other.call(RequestCode.GET_BROKER_CLUSTER_INFO).code in {0, 3}
            client.drain()
            assert not client.closed
            client.send_bytes(bytes(4))
        assert client.wait_closed()
    short = brokers.connect(broker)
    short.send_bytes(frame_head(Serialisation.JSON, b"{}", 0))
    opaque = short.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert short.reply(opaque) is not None


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (PULL, pull_fields("T", 0) | {"queueOffset": str(2**63)}, 1),
        (SEND, send_fields("a@b"), 1),
        (SEND, send_fields("."), 1),
        (SEND, send_fields("T", properties="k\x01" + "v" * 40_000 + "\x02"), 13),
        (RequestCode.HEART_BEAT, {}, 1),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "Q", "readQueueNums": "-1", "writeQueueNums": "1"}, 1),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, 1),
    ],
)
def test_a_wrong_request_gets_rocketmqs_code(
    *, code: int, fields: dict[str, str], expected: int, broker: Broker, client: RawClient, brokers: Brokers
) -> None:
    """Invalid requests that neither a recorded conversation nor the conformance suite contains get RocketMQ's code."""
    send_message(client, "T")
    reply = client.call(code, fields)
    assert (reply.code, reply.remark is not None) == (expected, True)
    assert client.pull("T").code == 0
    assert still_serves(broker, brokers)


def test_a_path_in_a_name_makes_no_file(brokers: Brokers, tmp_path: Path) -> None:
    broker, client = brokers.served(directory=f"{tmp_path}/inner/store")
    for name in ("../x", "../../x", "/etc/x", "a/b"):
        assert client.put(name).code == 1
        client.pull(name, group=name, timeout_ms=10)
    assert broker.runtime.files.list(f"{tmp_path}/inner") == ["store"]
    assert broker.runtime.files.list(str(tmp_path)) == ["inner"]


def is_closed_after(client: RawClient, content: bytes) -> bool:
    try:
        client.send_bytes(content)
        return client.wait_closed()
    except ConnectionError:
        return True


def test_oversized_requests_do_not_affect_other_clients(broker: Broker, brokers: Brokers) -> None:
    huge = "x" * 1_000_000
    for frame in (
        struct.pack(">iI", 2**31 - 1, 4),
        struct.pack(">iI", 1_000, 2**24 - 1),
        struct.pack(">iI", 9_000_000, 8_999_996) + b" " * 8_999_996,
    ):
        with RawClient(broker.address) as client:
            assert is_closed_after(client, frame)
    with RawClient(broker.address) as client:
        for fields, body in (
            (send_fields("T", 0), b"x" * (5 * 1024 * 1024)),
            (send_fields("T", 0) | {"i": f"name\x01{huge}\x02"}, b"x"),
            (send_fields(huge, 0), b"x"),
        ):
            assert client.call(RequestCode.SEND_MESSAGE_V2, fields, body).code != 0
        pull = pull_fields("TBW102", 0) | {"subscription": huge, "sysFlag": "4"}
        assert client.call(RequestCode.PULL_MESSAGE, pull).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        wants = b'{"clientID":"x","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T",%b}]}]}'
        tags = b",".join(b'"%d"' % number for number in range(10_001))
        for part in (b'"subString":"%b"' % huge.encode(), b'"tagsSet":[%b]' % tags):
            assert client.call(RequestCode.HEART_BEAT, None, wants % part).code == 1
        heartbeat = b'{"clientID":"%b","consumerDataSet":[{"groupName":"%b","subscriptionDataSet":[]}]}'
        assert client.call(RequestCode.HEART_BEAT, None, heartbeat % (b"x", b"g" * 5_000_000)).code == 1
        assert client.is_served()
    assert still_serves(broker, brokers)


def test_an_idle_connection_is_closed(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longpoll_broker.io.transport.IDLE_CHECK_S", 0.02)
    clock, minute_ms = ShiftedRuntime(), 60_000
    broker = brokers.start(runtime=clock, config=BrokerConfig(channel_idle_ms_max=3_600_000))
    silent, speaking = brokers.connect(broker), brokers.connect(broker)
    for minute in (0, 40):
        clock.gone_ms = minute * minute_ms
        for client in (silent, speaking)[minute > 0 :]:
            assert client.is_served()
    clock.gone_ms = 61 * minute_ms
    assert silent.wait_closed()
    assert speaking.is_served()


EDGES: Final = (
    None, "", "0", "-1", "1", "32767", "32768", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 40, "x", "1.5",
)  # fmt: skip
TIMES: Final = "j"
"""The field of a send request that holds the message's number of retries, which each send-back increases."""
LEVELS: Final = ("0", "-1", "2147483647", "-2147483648")
LIVES: Final = 2


class Raised(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def watching() -> Iterator[list[str]]:
    handler = Raised()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.seen
    finally:
        logging.getLogger().removeHandler(handler)


def requests() -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yields each request with each field set to each edge value. The broker may hold no pull."""
    for code, fields, body in SEEDS:
        for name in fields:
            for edge in EDGES:
                changed = {key: value for key, value in fields.items() if key != name}
                if "suspendTimeoutMillis" in fields and name != "sysFlag":
                    changed["sysFlag"] = "4"
                if edge is not None:
                    changed[name] = edge
                yield code, changed, body


def send_back(client: RawClient, offset: int) -> None:
    for allowed in (None, "0", "2147483647", "-2147483648"):
        for level in LEVELS:
            fields = {"offset": str(offset), "group": "FG0", "delayLevel": level}
            client.call(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                fields if allowed is None else fields | {"maxReconsumeTimes": allowed},
            )


def sweep(broker: Broker) -> int:
    """Send all requests, and send every stored message back with edge values; returns the number of answers."""
    answered = 0
    with RawClient(broker.address) as client:
        for topic in ("F0", "F1", "F2"):
            fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        for code, fields, body in requests():
            if code == RequestCode.END_TRANSACTION or fields.get("sysFlag") not in {None, "4"}:
                # A request with an edge value may get no response, so the response to the next request shows that it
                # was served.
                client.send(code, fields, body)
                continue
            reply = client.call(code, fields, body)
            answered += 1
            stored = reply.ext_fields or {}
            if code == RequestCode.SEND_MESSAGE_V2 and fields.get(TIMES, "0") != "0" and "msgId" in stored:
                send_back(client, int(stored["msgId"][16:], 16))
    return answered


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "strict"))
def test_no_edge_of_any_field_raises(tmp_path: Path, policy: str) -> None:
    with watching() as raised:
        for _life in range(LIVES):
            with Broker.start(
                RealRuntime(), str(tmp_path / "store"), policy=preset(policy), store_config=SMALL_STORE
            ) as broker:
                assert sweep(broker) > 1000
                with RawClient(broker.address) as stranger, RawClient(broker.name_server_address) as names:
                    assert send_message(stranger, "F0") >= 0
                    assert names.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "F0"}).code == 0
    assert raised == []


RAISED: Final[tuple[Callable[[], Exception], ...]] = (
    lambda: struct.error("'i' format requires -2147483648 <= number <= 2147483647"),
    MemoryError,
    lambda: AssertionError("injected"),
    lambda: StopIteration("injected"),
    lambda: Exception("injected"),
)
QUEUE: Final = {"topic": "T", "queueId": "0"}


def assert_serves(broker: Broker, brokers: Brokers) -> None:
    names, client = brokers.names(broker), brokers.connect(broker)
    offset = send_message(client, "SAFE", b"still there")
    reply = client.answer(client.send_pull("SAFE", offset, timeout_ms=9_000))
    assert bodies_of(reply) == [b"still there"]
    assert names.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "SAFE"}).code == 0


@frozen
class Raises:
    code: int
    make: Callable[[], Exception]

    def before_request(self, _peer: str, command: Command) -> None:
        if command.code == self.code:
            raise self.make()

    def after_response(self, peer: str, command: Command, response: Command | None) -> None:
        """Do nothing after an answer."""

    def refusal(self, _channel: object, command: Command) -> None:
        if command.code == self.code:
            raise self.make()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_an_error_of_a_processor_is_answered(
    brokers: Brokers,
    make: Callable[[], Exception],
    caplog: pytest.LogCaptureFixture,
    broken_invariants: list[str],
) -> None:
    broker, client = brokers.served(hooks=[Raises(RequestCode.GET_MAX_OFFSET, make)])
    reply = client.call(RequestCode.GET_MAX_OFFSET, QUEUE)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (reply.code, (reply.remark or "").split(":")[0]) == (1, type(make()).__name__)
    assert len(told) == 1
    assert "request 30 of /127.0.0.1" in told[0].getMessage()
    assert told[0].exc_info is not None
    assert client.call(RequestCode.GET_MIN_OFFSET, QUEUE).code == 0
    assert_serves(broker, brokers)
    broken_invariants.clear()


@pytest.mark.parametrize("make", RAISED[:2], ids=lambda make: type(make()).__name__)
def test_errors_of_access_control_and_name_server_are_answered(
    brokers: Brokers, make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(NameServer, "topic_list", lambda *_: Raises(0, make).refusal(None, Command(0)))
        broker = brokers.start()
        assert brokers.names(broker).call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == 1
    monkeypatch.setattr(broker.handler, "access", Raises(RequestCode.GET_MAX_OFFSET, make))
    assert brokers.connect(broker).call(RequestCode.GET_MAX_OFFSET, QUEUE).code == 1
    assert_serves(broker, brokers)


def channels(broker: Broker) -> set[Channel]:
    return {channel for loop in broker.loops for channel in loop._channels}


@pytest.mark.parametrize("method", ["receive_data", "next_event"])
def test_an_error_while_reading_closes_only_its_connection(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, method: str, caplog: Any
) -> None:
    broker, bystander = brokers.served()
    assert bystander.is_served()
    others = channels(broker)
    victim = brokers.connect(broker)
    assert victim.is_served()
    (channel,) = channels(broker) - others

    def fails(*_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(channel, "connection", type("Full", (Connection,), {method: fails})())
        victim.send(RequestCode.GET_MAX_OFFSET, QUEUE)
        assert victim.wait_closed()
    assert f"what {channel} sent cannot be" in caplog.text
    assert bystander.is_served()
    assert_serves(broker, brokers)


def test_an_undeliverable_delayed_message_does_not_block_later_ones(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
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

    broker = brokers.start()
    found = type(broker.store).read_record
    monkeypatch.setattr(ScheduleService, "_deliver", fails)
    monkeypatch.setattr(type(broker.store), "read_record", read)
    client = brokers.connect(broker)
    for body in (b"poison", b"good"):
        client.put("T", body, properties="DELAY\x011\x02")
    wait_visible(broker, "T", 1)
    reply = client.pull("T")
    assert (bodies_of(reply), raised) == ([b"good"], ["memory"])


def test_keep_going_passes_on_system_exit(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test")
    with KeepGoing(log, "planted"):
        raise struct.error("told")
    with pytest.raises(SystemExit), KeepGoing(log, "planted"):
        raise SystemExit
    assert [(record.message, record.funcName) for record in caplog.records] == [
        ("planted", "test_keep_going_passes_on_system_exit")
    ]
    assert "told" in caplog.text


def test_each_edge_of_java_arithmetic() -> None:
    edges = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63]
    assert [as_int32(value) for value in edges] == [0, 1, -1, 2**31 - 1, -(2**31), -(2**31), 2**31 - 1, 0, 0]
