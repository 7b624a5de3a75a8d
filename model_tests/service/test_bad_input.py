"""Bad input costs its sender an error code or its connection, and nobody else anything."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.io.totals import Reached
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields, send_message
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.frame import Serialisation, frame_head
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

PULL = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2


def frame(header: bytes, *, kind: int = 0, length: int | None = None, header_size: int | None = None) -> bytes:
    """A frame with any of its parts wrong."""
    size = len(header) if header_size is None else header_size
    return struct.pack(">iI", 4 + len(header) if length is None else length, kind << 24 | size) + header


CLOSING = {
    "huge length": frame(b"{}", length=2**31 - 1),
    "length over the limit": frame(b"{}", length=16 * 1024 * 1024 + 1),
    "negative length": frame(b"{}", length=-1),
    "length 0": struct.pack(">i", 0),
    "length 3": struct.pack(">i", 3) + b"abc",
    "header beyond the frame": frame(b"{}", header_size=1000),
    "unknown serialisation": frame(b"{}", kind=7),
    "garbage": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "garbage JSON": frame(b"{nonsense"),
    "JSON array": frame(b"[1,2,3]"),
    "cut ROCKETMQ header": frame(b"\x00\x01\x02", kind=1),
    "deep JSON": frame(b'{"extFields":' + b"[" * 100_000),
}


def still_serves(broker: Broker, connect: Connect) -> bool:
    """Whether the next client is served."""
    return connect(broker.address).call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0


@pytest.mark.parametrize("name", CLOSING)
def test_an_unreadable_frame_closes_its_connection_only(name: str, start_broker: StartBroker, connect: Connect) -> None:
    """The next client is served."""
    broker = start_broker()
    client = connect(broker.address)
    client.send_bytes(CLOSING[name])
    assert client.wait_closed()
    assert still_serves(broker, connect)


def test_what_came_before_the_bad_frame_is_answered(start_broker: StartBroker, connect: Connect) -> None:
    """A good request and garbage in one segment: the answer, then the end."""
    broker = start_broker()
    client = connect(broker.address)
    opaque = client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    client.send_bytes(CLOSING["garbage JSON"])
    assert client.reply(opaque) is not None
    assert client.wait_closed()


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9, ROCKETMQ_5, STRICT], ids=lambda policy: policy.name)
def test_only_5_waits_for_twelve_bytes_before_it_closes(
    start_broker: StartBroker, connect: Connect, policy: Policy
) -> None:
    """Both servers: a length of 0 and nothing more; a short request is answered with what comes behind it."""
    broker = start_broker(policy=policy)
    for address in (broker.address, broker.name_server_address):
        client = connect(address)
        client.send_bytes(bytes(8))
        if policy is ROCKETMQ_5:
            other = connect(address)
            assert other.call(RequestCode.GET_BROKER_CLUSTER_INFO).code in {0, 3}
            client.drain()
            assert not client.closed
            client.send_bytes(bytes(4))
        assert client.wait_closed()
    short = connect(broker.address)
    short.send_bytes(frame_head(Serialisation.JSON, b"{}", 0))
    opaque = short.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert short.reply(opaque) is not None


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (9999, {}, 3),
        (0, {}, 3),
        (PULL, {}, 1),
        (PULL, pull_fields("T", 0) | {"queueId": "abc"}, 1),
        (PULL, pull_fields("T", 0) | {"queueOffset": str(2**63)}, 1),
        (PULL, pull_fields("T", 0, queue_id=99), 1),
        (PULL, pull_fields("T", 0, queue_id=-1), 1),
        (PULL, pull_fields("../x", 0), 17),
        (PULL, pull_fields("T", -1), 21),
        (PULL, pull_fields("T", 2**62), 21),
        (SEND, {}, 1),
        (SEND, send_fields("../x"), 1),
        (SEND, send_fields("a@b"), 1),
        (SEND, send_fields("."), 1),
        (SEND, send_fields("x" * 128), 1),
        (SEND, send_fields("T", 99), 1),
        (SEND, send_fields("SCHEDULE_TOPIC_XXXX"), 16),
        (SEND, send_fields("T", properties="k\x01" + "v" * 40_000 + "\x02"), 13),
        (RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, 1),
        (RequestCode.HEART_BEAT, {}, 1),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G"}, 1),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "../x", "readQueueNums": "1", "writeQueueNums": "1"}, 1),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "Q", "readQueueNums": "-1", "writeQueueNums": "1"}, 1),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, 1),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "7"}, 1),
    ],
)
def test_a_wrong_request_gets_rocketmqs_code(
    code: int, fields: dict[str, str], expected: int, start_broker: StartBroker, connect: Connect
) -> None:
    """And its connection goes on to be served."""
    broker = start_broker()
    client = connect(broker.address)
    send_message(client, "T")
    reply = client.call(code, fields)
    assert (reply.code, reply.remark is not None) == (expected, True)
    assert client.call(PULL, pull_fields("T", 0)).code == 0
    assert still_serves(broker, connect)


def test_a_body_over_the_limit_is_refused(start_broker: StartBroker, connect: Connect) -> None:
    """With 13; nothing is stored."""
    broker = start_broker()
    client = connect(broker.address)
    assert client.call(SEND, send_fields("T"), b"x" * (4 * 1024 * 1024 + 1)).code == 13
    assert broker.store.visible_end("T", 0) == 0


def test_a_path_in_a_name_makes_no_file(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """Nothing appears beside the store."""
    broker = start_broker(directory=f"{tmp_path}/inner/store")
    client = connect(broker.address)
    for name in ("../x", "../../x", "/etc/x", "a/b"):
        assert client.call(SEND, send_fields(name), b"x").code == 1
        client.call(PULL, pull_fields(name, 0, group=name, timeout_ms=10))
    assert broker.runtime.files.list(f"{tmp_path}/inner") == ["store"]
    assert broker.runtime.files.list(str(tmp_path)) == ["inner"]


def test_a_reply_sent_to_the_broker_is_passed_over(start_broker: StartBroker, connect: Connect) -> None:
    """A request with the response bit has no answer, and the connection stays usable."""
    broker = start_broker()
    client = connect(broker.address)
    opaque = client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}, flag=CommandFlag.RESPONSE)
    assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
    assert client.reply(opaque, 0.05) is None


def test_a_one_way_request_is_done_and_not_answered(start_broker: StartBroker, connect: Connect) -> None:
    """A one-way commit is stored."""
    broker = start_broker()
    client = connect(broker.address)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "5"}
    opaque = client.send(RequestCode.UPDATE_CONSUMER_OFFSET, fields, flag=CommandFlag.ONE_WAY)
    asked = client.call(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": "0"})
    assert asked.ext_fields == {"offset": "5"}
    assert client.reply(opaque, 0.05) is None


def test_a_peer_that_does_not_read_is_closed_and_others_are_served(start_broker: StartBroker, connect: Connect) -> None:
    """Its answers pile up to the limit and no further."""
    broker = start_broker(config=BrokerConfig(output_bytes_max=100_000))
    client = connect(broker.address)
    send_message(client, "T", b"x" * 100_000)
    deaf = connect(broker.address)
    try:
        for _ in range(400):
            deaf.send(PULL, pull_fields("T", 0))
    except ConnectionError:
        pass
    # Only then: waiting for the end is reading.
    wait_until(lambda: broker.totals.reached[Reached.OUTPUT_BYTES] == 1)
    assert deaf.wait_closed()
    assert still_serves(broker, connect)


def test_over_the_limit_of_connections_the_next_is_closed(start_broker: StartBroker, connect: Connect) -> None:
    """And those that are open are served."""
    broker = start_broker(config=BrokerConfig(connection_count_max=2))
    first, second = connect(broker.address), connect(broker.address)
    for client in (first, second):
        assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0
    assert connect(broker.address).wait_closed()
    assert first.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_leave_the_broker_standing(shared_broker: Broker, chunks: list[bytes]) -> None:
    """Random bytes, also as the content of well-formed frames."""
    for content in (b"".join(chunks), b"".join(frame(chunk) for chunk in chunks)):
        with RawClient(shared_broker.address) as client:
            client.send_bytes(content)
    with RawClient(shared_broker.address) as client:
        assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0


@pytest.fixture
def shared_broker(start_broker: StartBroker) -> Broker:
    """One broker for every example."""
    return start_broker()
