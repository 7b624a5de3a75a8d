"""Connections: partial commands, slow readers, refusals by the operating system, and limits over all connections."""

from __future__ import annotations

import errno
import random
import struct
import threading
from pathlib import Path

import pytest
from model_tests.service.test_logs import values
from model_tests.support.broker.brokers import Brokers, wait_until
from model_tests.support.broker.raw_client import (
    RawClient,
    send_fields,
)

from longpoll.options.broker_conf import read_broker_conf
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io import transport
from longpoll_broker.io.channel import BytesByPeer, Channel, ConnectionLimit, Connections, address_of
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, encode
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address, Socket
from longpoll_runtime.real import RealListener

NEW_QUEUES = 64


def sends(body: bytes) -> bytes:
    """A send to each queue, in one piece."""
    commands = [
        Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=send_fields("T", number), body=body)
        for number in range(NEW_QUEUES)
    ]
    return b"".join(b"".join(encode(each)) for each in commands)


def test_a_refused_connection_is_accepted_when_there_is_room_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ACCEPT_PAUSE_S", 0.01)
    refusals = [OSError(errno.EMFILE, "Too many open files")]
    accept = RealListener.accept

    def refused_once(listener: RealListener) -> tuple[Socket, Address]:
        if refusals:
            raise refusals.pop()
        return accept(listener)

    broker = brokers.start()
    monkeypatch.setattr(RealListener, "accept", refused_once)
    assert brokers.connect(broker).is_served()
    assert not refusals


BYTES_MAX = 4 * MIB
ASKED = {"topic": "TBW102", "queueId": "0"}


def unfinished(size: int) -> bytes:
    return struct.pack(">iI", 16 * MIB, 100) + bytes(size - 8)


def is_served(client: RawClient) -> bool:
    return client.call(RequestCode.GET_MAX_OFFSET, ASKED).code == 0


def reached(broker: Broker, limit: ConnectionLimit) -> float:
    return values(broker)["longpoll_limits_reached_total", limit.value]


def test_a_slow_frame_is_ended(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_CHECK_S", 0.02)
    broker, slow, busy = brokers.served_two(config=BrokerConfig(frame_ms_max=200, channel_idle_ms_max=60_000))
    close, counted = Channel.close, []

    def noted(channel: Channel) -> None:
        counted.append(reached(broker, ConnectionLimit.FRAME_TIME))
        close(channel)

    monkeypatch.setattr(Channel, "close", noted)
    slow.send_bytes(unfinished(100))
    while not slow.closed:
        try:
            slow.send_bytes(b"\0")
        except ConnectionError:
            break
        assert is_served(busy)
        slow.reply(1, 0.01)
    assert counted == [1]
    # The second frame of `busy` begins long after its first one.
    busy.send_bytes(b"\0")
    wait_until(lambda: values(broker)["longpoll_unfinished_bytes",] == 1)
    assert broker.connection_count == 1


def test_unsent_answers_limit(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker, bystander = brokers.served(config=BrokerConfig(unsent_bytes_max=BYTES_MAX))
    asking = [brokers.connect(broker) for _ in range(4)]
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


def test_connections_per_address(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    broker = brokers.start(config=BrokerConfig(address_connection_count_max=3))
    clients = [brokers.connect(broker) for _ in range(3)]
    assert all(map(is_served, clients))
    assert brokers.connect(broker).wait_closed()
    assert reached(broker, ConnectionLimit.ADDRESS_CONNECTIONS) == 1
    assert "over 3 connections of one address (addressConnectionCountMax)" in caplog.text
    clients[0].close()
    wait_until(lambda: broker.connection_count == 2)
    assert is_served(brokers.connect(broker))


def test_several_loops_share_one_limit(brokers: Brokers) -> None:
    broker = brokers.start(config=BrokerConfig(connection_count_max=3, io_thread_count=2))
    clients = [brokers.connect(broker) for _ in range(3)]
    assert all(map(is_served, clients))
    assert brokers.connect(broker).wait_closed()
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
