"""Fixture types of tests with a running broker, and their small store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from model_tests.support.broker.raw_client import PATIENCE_S, RawClient

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig

SMALL_STORE: Final = StoreConfig(
    commit_log_file_size=8 * 1024 * 1024,
    consume_queue_file_size=20_000,
    # A disk that others keep busy must not make the broker refuse a send to a new topic.
    sync_flush_timeout_ms=int(PATIENCE_S * 1000),
)

Connect = Callable[[tuple[str, int]], RawClient]
"""Connects a raw client that is closed at the end of the test."""


class StartBroker(Protocol):
    """Starts a broker that is stopped at the end of the test."""

    def __call__(self, **options: Any) -> Broker:
        """Start with any of `Broker.start`'s options; `runtime` and `directory` have defaults."""
        ...


def one_by_one(broker: Broker) -> Broker:
    """Let a broker serve each request alone, which its later connections compare with bursts and reused answers."""
    handler, runner = broker.handler, broker.pulling.runner
    handler.send_bursts, handler.reads_fields = None, False
    runner.reuses_answers = runner.answers.has_offsets_only = False
    return broker


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until another thread makes the condition true; AssertionError after the time of a whole test."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not become true"
        # Polls, because the state of another thread's broker has no event.
        time.sleep(0.001)
