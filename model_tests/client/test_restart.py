"""A group of listeners over restarts of broker and name server, and the long story of a hundred thousand messages."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing import client_scenarios as stories
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_client import (
    ConsumerConfig,
    ConsumeStatus,
    OutgoingMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.consume import puller, sharing
from longpoll_client.link import routes
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
LONG_COUNT = 100_000


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again after 20 ms instead of 3 s, and for routes each time."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    monkeypatch.setattr(sharing, "RETRY_S", 0.02)
    monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.05)


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("is_orderly", [False, True])
def test_listeners_survive_a_restart_of_broker_and_name_server(tmp_path: Path, is_orderly: bool) -> None:
    """Twice both are gone for a while: nothing is lost, and the last messages come as the first did."""
    store = str(tmp_path / "store")
    seen: set[bytes] = set()
    lock = threading.Lock()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        with lock:
            seen.update(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    def send(part: int, name_server: str) -> None:
        with Producer(RUNTIME, name_server) as producer:
            for number in range(20):
                producer.send_batch("T", [OutgoingMessage(b"%d-%d-%d" % (part, number, at)) for at in range(5)])

    broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE)
    addresses: dict[str, Any] = {"listen": broker.address, "name_server": broker.name_server_address}
    name_server = "{}:{}".format(*broker.name_server_address)
    send(0, name_server)
    config = ConsumerConfig("G", start_at=StartAt.FIRST, rebalance_s=0.2, heartbeat_s=0.2, persist_s=0.1)
    with PushConsumer(RUNTIME, name_server, config, listen, is_orderly=is_orderly) as listening:
        listening.subscribe("T")
        listening.start()
        for part in (1, 2):
            wait_until(lambda part=part: len(seen) == part * 100)  # type: ignore[misc] # bound at once
            broker.stop()
            broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE, **addresses)
            send(part, name_server)
        wait_until(lambda: len(seen) == 300)
    broker.stop()
    assert len(seen) == 300


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_thousand_messages_over_members_that_come_and_go(tmp_path: Path) -> None:
    """None lost, duplicates counted and each explained by a rebalance."""
    with Broker.start(RUNTIME, str(tmp_path / "store")) as broker:
        report = stories.rebalance("{}:{}".format(*broker.name_server_address), LONG_COUNT)
    print(f"rebalance: {report}")  # noqa: T201 - the figure that the test is run for
    assert report.lost == ()
    assert report.distinct == report.sent == LONG_COUNT
    assert report.unexplained == ()
