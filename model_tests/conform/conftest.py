"""The broker that most tests of `longpoll conform` use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from model_tests.conform.relay import running

from longpoll_broker.broker import Broker
from longpoll_spec.policy import ROCKETMQ_4_9


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[Broker]:
    with running(ROCKETMQ_4_9) as broker:
        yield broker
