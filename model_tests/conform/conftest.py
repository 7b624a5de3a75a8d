"""The broker that most tests of `longpoll conform` use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from model_tests.conform.relay import running

from longpoll_broker.broker import Broker
from longpoll_spec.policy import ROCKETMQ_4_9


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[Broker]:
    """A broker of ours that behaves like RocketMQ 4.9.7."""
    with running(ROCKETMQ_4_9) as broker:
        yield broker
