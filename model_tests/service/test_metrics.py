"""What a broker tells Prometheus is what has happened, and what strangers send makes no new series."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.broker.raw_client import RawClient
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from longpoll_broker import metrics
from longpoll_broker.broker import Broker
from longpoll_broker.metrics import BrokerCollector
from longpoll_client import OutgoingMessage, Producer, PullConsumer
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
PATIENCE_S = 20.0
Values = dict[tuple[str, ...], float]


def told(text: str) -> Values:
    """Every sample by its name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def values(broker: Broker) -> Values:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    return told(generate_latest(registry).decode())


def test_the_values_are_those_of_what_happened(tmp_path: Path) -> None:
    """Requests, connections, held pulls, the log, and how far a group lags before and after it consumes."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        assert values(broker)["longpoll_connections",] == 0
        with new_topic(name_server, 1) as topic, Producer(name_server) as producer:
            producer.send_batch(topic, [OutgoingMessage(b"x")] * 10)
            producer.send(topic, b"y")
            with PullConsumer(name_server, group="G", topics=topic) as consumer:
                assert len(consumer.poll(PATIENCE_S)) == 11
                consumer.commit()
                # Of the topic, and of the retry topic of its group.
                wait_until(lambda: values(broker)["longpoll_held_pulls",] == 2)
                assert values(broker)["longpoll_connections",] >= 4
            producer.send_batch(topic, [OutgoingMessage(b"x")] * 5)
            found = values(broker)
            assert found["longpoll_requests_total", "SEND_BATCH_MESSAGE"] == 2
            assert found["longpoll_requests_total", "SEND_MESSAGE_V2"] == 1
            assert found["longpoll_group_lag_messages", "G", topic] == 5
            assert found["longpoll_log_end_bytes", "appended"] == broker.store.log_end > 0
            assert found["longpoll_log_end_bytes", "visible"] == broker.store.log_end
        wait_until(lambda: values(broker)["longpoll_connections",] == 0)


def test_strangers_make_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown codes are one, and pairs of groups and topics are not without end."""
    monkeypatch.setattr(metrics, "LAG_COUNT_MAX", 3)
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        with RawClient(broker.address) as client:
            for code in range(5_000, 5_010):
                assert client.call(code).code == 3
        for number in range(10):
            broker.offsets.commit("T", f"G{number}", 0, 1)
        found = values(broker)
    assert found["longpoll_requests_total", "unknown"] == 10
    assert sum(name == "longpoll_requests_total" for name, *_labels in found) == 1
    assert sum(name == "longpoll_group_lag_messages" for name, *_labels in found) == 3


def test_half_requests_hold_a_few_connections_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is closed at once; those that are too slow are ended, and then others are served."""
    monkeypatch.setattr(metrics, "HTTP_COUNT_MAX", 2)
    now_ns = [0]
    server, thread = start_http_server(0, "127.0.0.1", CollectorRegistry())
    try:
        metrics.limit(server, lambda: now_ns[0])
        address = ("127.0.0.1", server.server_port)
        half = [socket.create_connection(address, PATIENCE_S) for _ in range(3)]
        half[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert half[2].recv(1) == b""
        now_ns[0] = metrics.HTTP_NS_MAX + 1
        assert [each.recv(1) for each in half[:2]] == [b"", b""]
        for each in half:
            each.close()

        def is_served() -> bool:
            with socket.create_connection(address, PATIENCE_S) as whole:
                whole.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                return whole.recv(12) == b"HTTP/1.0 200"

        wait_until(is_served)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
