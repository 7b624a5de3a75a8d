"""Starts brokers on small stores for a test, and connects raw clients to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from model_tests.support.broker.raw_client import PATIENCE_S, RawClient

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime

SMALL_STORE: Final = StoreConfig(
    commit_log_file_size=8 * 1024 * 1024,
    consume_queue_file_size=20_000,
    # On a disk that is busy with other work, the broker must not refuse a send to a new topic.
    sync_flush_timeout_ms=int(PATIENCE_S * 1000),
)


class Brokers:
    """Starts brokers and connects clients. `close` closes the clients and stops the brokers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """A broker without its own directory has its store in `directory / "store"`."""
        self._stack = ExitStack()

    def start(self, **options: Any) -> Broker:
        runtime = options.pop("runtime", None) or RealRuntime()
        directory = str(options.pop("directory", self.directory / "store"))
        options.setdefault("store_config", SMALL_STORE)
        return self._stack.enter_context(Broker.start(runtime, directory, **options))

    def connect(self, to: Broker | Address) -> RawClient:
        return self._stack.enter_context(RawClient(to.address if isinstance(to, Broker) else to))

    def names(self, broker: Broker) -> RawClient:
        return self.connect(broker.name_server_address)

    def client(self, **options: Any) -> RawClient:
        return self.connect(self.start(**options))

    def served(self, **options: Any) -> tuple[Broker, RawClient]:
        broker = self.start(**options)
        return broker, self.connect(broker)

    def served_two(self, **options: Any) -> tuple[Broker, RawClient, RawClient]:
        broker = self.start(**options)
        return broker, self.connect(broker), self.connect(broker)

    def close(self) -> None:
        self._stack.close()


def one_by_one(broker: Broker) -> Broker:
    """Make a broker serve each request alone, as a reference for brokers with bursts and reused answers."""
    handler, runner = broker.handler, broker.pulling.runner
    handler.send_bursts, handler.reads_fields = None, False
    runner.reuses_answers = runner.answers.has_offsets_only = False
    return broker


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until another thread makes the condition true; raises AssertionError after the time limit of a test."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not become true"
        # The loop polls, because a broker on another thread has no event for its state.
        time.sleep(0.001)


def wait_held(broker: Broker, count: int = 1) -> None:
    wait_until(lambda: len(broker.hold_service) == count)


def wait_visible(broker: Broker, topic: str, end: int, queue_id: int = 0) -> None:
    wait_until(lambda: broker.store.visible_end(topic, queue_id) == end)
