"""All connections together may cost no more than the broker has, and who costs least is kept."""

from __future__ import annotations

import random
import struct
import threading
from pathlib import Path

import pytest
from model_tests.service.test_metrics import values
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import RawClient
from model_tests.support.service import served, served_two

from longpoll.options.broker_conf import read_broker_conf
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io import transport
from longpoll_broker.io.connection_limits import BytesByPeer, ConnectionLimit, Connections, address_of
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.sizes import KIB, MIB

BYTES_MAX = 4 * MIB
ASKED = {"topic": "TBW102", "queueId": "0"}


def unfinished(size: int) -> bytes:
    """So many bytes of a frame that would have more."""
    return struct.pack(">iI", 16 * MIB, 100) + bytes(size - 8)


def is_served(client: RawClient) -> bool:
    """Whether a request of this connection is answered."""
    return client.call(RequestCode.GET_MAX_OFFSET, ASKED).code == 0


def reached(broker: Broker, limit: ConnectionLimit) -> float:
    """How often the metric says that a limit has cost a connection."""
    return values(broker)["longpoll_limits_reached_total", limit.value]


def test_unfinished_frames_limit(start_broker: StartBroker, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    broker, bystander = served(start_broker, connect, config=BrokerConfig(unfinished_bytes_max=BYTES_MAX))
    modest, *greedy = (connect(broker.address) for _ in range(21))
    modest.send_bytes(unfinished(100))
    for client in greedy:
        client.send_bytes(unfinished(MIB))
    wait_until(lambda: reached(broker, ConnectionLimit.UNFINISHED_BYTES) >= 16)
    assert values(broker)["longpoll_unfinished_bytes",] <= BYTES_MAX
    assert is_served(bystander)
    assert not modest.reply(1, 0.0)
    assert not modest.closed
    assert "unfinishedBytesMax" in caplog.text
    wait_until(lambda: broker.connection_count <= 6)


def test_what_was_counted_is_gone_with_its_frame_or_its_connection(start_broker: StartBroker, connect: Connect) -> None:
    broker, first, second = served_two(start_broker, connect)
    _opaque, content = first._request(RequestCode.GET_MAX_OFFSET, ASKED)
    first.send_bytes(content[:30])
    second.send_bytes(unfinished(50 * KIB))
    wait_until(lambda: values(broker)["longpoll_unfinished_bytes",] == 30 + 50 * KIB)
    first.send_bytes(content[30:])
    second.close()
    wait_until(lambda: values(broker)["longpoll_unfinished_bytes",] == 0)
    assert first.reply(1) is not None
    assert broker.totals.unfinished.by_peer == {}
    wait_until(lambda: broker.totals.connections.count == 1)


def test_a_slow_frame_is_ended(start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_CHECK_S", 0.02)
    broker, slow, busy = served_two(
        start_broker, connect, config=BrokerConfig(frame_ms_max=200, channel_idle_ms_max=60_000)
    )
    slow.send_bytes(unfinished(100))
    while not slow.closed:
        try:
            slow.send_bytes(b"\0")
        except ConnectionError:
            break
        assert is_served(busy)
        slow.reply(1, 0.01)
    assert reached(broker, ConnectionLimit.FRAME_TIME) == 1
    # The second frame of `busy` begins long after its first one.
    busy.send_bytes(b"\0")
    wait_until(lambda: values(broker)["longpoll_unfinished_bytes",] == 1)
    assert broker.connection_count == 1


def test_unsent_answers_limit(start_broker: StartBroker, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    broker, bystander = served(start_broker, connect, config=BrokerConfig(unsent_bytes_max=BYTES_MAX))
    asking = [connect(broker.address) for _ in range(4)]
    for client in asking:
        client.send_bytes(client._request(RequestCode.GET_ALL_TOPIC_CONFIG)[1] * 6_000)
    wait_until(lambda: reached(broker, ConnectionLimit.UNSENT_BYTES) >= len(asking) - 2)
    assert is_served(bystander)
    assert values(broker)["longpoll_unsent_bytes",] <= BYTES_MAX
    assert "unsentBytesMax" in caplog.text
    for client in asking:
        client.close()
    wait_until(lambda: broker.connection_count == 1)
    assert values(broker)["longpoll_unsent_bytes",] == 0


def test_an_answer_that_is_read_late_is_read_whole(start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect)
    opaques = client.send_burst(RequestCode.GET_ALL_TOPIC_CONFIG, [({}, b"")] * 3_000)
    wait_until(lambda: values(broker)["longpoll_unsent_bytes",] > 0)
    bodies = {bytes(answer.body) for opaque in opaques if (answer := client.reply(opaque)) is not None}
    assert len(bodies) == 1
    wait_until(lambda: values(broker)["longpoll_unsent_bytes",] == 0)


def test_connections_per_address(start_broker: StartBroker, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    broker = start_broker(config=BrokerConfig(address_connection_count_max=3))
    clients = [connect(broker.address) for _ in range(3)]
    assert all(map(is_served, clients))
    assert connect(broker.address).wait_closed()
    assert reached(broker, ConnectionLimit.ADDRESS_CONNECTIONS) == 1
    assert "over 3 connections of one address (addressConnectionCountMax)" in caplog.text
    clients[0].close()
    wait_until(lambda: broker.connection_count == 2)
    assert is_served(connect(broker.address))


def test_several_loops_share_one_limit(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(config=BrokerConfig(connection_count_max=3, io_thread_count=2))
    clients = [connect(broker.address) for _ in range(3)]
    assert all(map(is_served, clients))
    assert connect(broker.address).wait_closed()
    assert reached(broker, ConnectionLimit.CONNECTIONS) == 1


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_address_of_ipv6_is_its_network(host: str, address: str) -> None:
    assert address_of(host) == address


def test_addresses_without_connections_are_forgotten() -> None:
    """Strangers do not make a table without end."""
    connections = Connections(10, 2, threading.Lock())
    assert [connections.add("h") for _ in range(3)] == [None, None, ConnectionLimit.ADDRESS_CONNECTIONS]
    connections.remove("h")
    connections.remove("h")
    assert (connections.count, dict(connections.by_address)) == (0, {})


@pytest.mark.parametrize("seed", range(10))
def test_the_total_is_the_sum_and_the_largest_goes(seed: int) -> None:
    draw, amount, expected = random.Random(seed), BytesByPeer[int](100, threading.Lock()), dict[int, int]()
    for _ in range(300):
        peer, size = draw.randrange(6), draw.choice((0, 1, 30, 99, 150))
        expected[peer] = size
        for gone, had in amount.note(peer, size):
            assert had == expected[gone] == max(expected.values())
            expected[gone] = 0
        assert amount.total == sum(expected.values()) <= 100
        assert amount.by_peer == {each: size for each, size in expected.items() if size}


def test_each_limit_is_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("".join(f"{limit.value} = 7\n" for limit in ConnectionLimit))
    config, _store, _place, unknown = read_broker_conf(file)
    assert unknown == []
    assert config == BrokerConfig(
        connection_count_max=7,
        address_connection_count_max=7,
        output_bytes_max=7,
        unsent_bytes_max=7,
        unfinished_bytes_max=7,
        frame_ms_max=7,
        channel_idle_ms_max=7_000,
    )
