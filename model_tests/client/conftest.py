"""Brokers and topics for the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.client import RUNTIME, Clients, serving

from longpoll_broker.broker import Broker


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("embedded")) as address:
        yield address


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as started:
        yield started


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    with new_topic(name_server, 1) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["threads", "loop"])
def clients(request: pytest.FixtureRequest, name_server: str) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(name_server, stack, is_loop=request.param)
