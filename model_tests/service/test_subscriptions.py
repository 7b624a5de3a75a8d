"""What a group's heartbeats make of its pulls: tags, filters and their versions, as the Java brokers were seen to."""

from __future__ import annotations

from typing import Any

import pytest
from model_tests.service.subscription_script import play, play_strict

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.filter.data import FilterTable
from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

CONFIG = BrokerConfig(property_filter=True)


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_heartbeats_count_as_in_rocketmq(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    """Every step, in both versions."""
    assert play(connect(start_broker(policy=policy, config=CONFIG).address)) == []


def test_heartbeats_count_as_strict_says(start_broker: StartBroker, connect: Connect) -> None:
    """It parses the tags itself, and a group that comes again begins anew."""
    assert play_strict(connect(start_broker(policy=STRICT, config=CONFIG).address)) == []


def test_planted_a_filter_that_is_always_replaced_is_seen(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the versions several steps differ."""
    register = FilterTable.register

    def forgetful(table: FilterTable, topic: str, group: str, *wanted: Any) -> None:
        table._by_place.pop((topic, group), None)
        register(table, topic, group, *wanted)

    monkeypatch.setattr(FilterTable, "register", forgetful)
    differing = play(connect(start_broker(policy=ROCKETMQ_4_9, config=CONFIG).address))
    assert any("28" in line for line in differing)
