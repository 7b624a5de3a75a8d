"""A running broker on a temporary store, and clients that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker
from model_tests.support.broker.raw_client import RawClient

from longpoll_broker.broker import Broker
from longpoll_runtime.real import RealRuntime


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers that are stopped at the end."""
    with ExitStack() as stack:

        def start(**options: Any) -> Broker:
            runtime = options.pop("runtime", None) or RealRuntime()
            directory = options.pop("directory", None) or str(tmp_path / "store")
            options.setdefault("store_config", SMALL_STORE)
            return stack.enter_context(Broker.start(runtime, directory, **options))

        yield start


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect raw clients that are closed at the end."""
    with ExitStack() as stack:
        yield lambda address: stack.enter_context(RawClient(address))


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    """A running broker with the default settings."""
    return start_broker()


@pytest.fixture
def client(broker: Broker, connect: Connect) -> RawClient:
    return connect(broker.address)
