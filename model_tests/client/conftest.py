"""A broker and a topic for those tests of the client that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_runtime.real import RealRuntime


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That of an embedded broker."""
    directory = str(tmp_path_factory.mktemp("embedded") / "store")
    with Broker.start(RealRuntime(), directory, store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """With one queue."""
    with new_topic(name_server, 1) as made:
        yield made
