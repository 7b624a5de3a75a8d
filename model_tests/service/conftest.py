"""A running broker on a temporary store, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import Brokers
from model_tests.support.broker.raw_client import RawClient

from longpoll_broker.broker import Broker


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with closing(Brokers(tmp_path)) as made:
        yield made


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    return brokers.start()


@pytest.fixture
def client(broker: Broker, brokers: Brokers) -> RawClient:
    return brokers.connect(broker)
