"""The kit and a service that is neither ours nor Python: `BLPOP` of a real Redis server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from model_tests.kit.redis_service import SERVER, Connection, RedisServer, RedisSubject
from model_tests.kit.test_kit import PATIENT, machine

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(SERVER is None, reason="redis-server is not here; install the Debian package redis-server"),
]
SOME: Final = settings(max_examples=12, stateful_step_count=15, database=None, phases=(Phase.generate,))


class PollsBehindTheKitsBack(RedisSubject):
    """A client that pops a message besides, and tells nobody."""

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Connection, bytes]:
        """Take one first, of three and more."""
        if self.call(b"LLEN", queue.encode()) >= 3:
            self.call(b"LPOP", queue.encode())
        return super().start_poll(queue, position, timeout_ms)


class NewestFirst(RedisSubject):
    """Messages are pushed at the wrong end."""

    def publish(self, queue: str, body: bytes) -> None:
        """LPUSH."""
        self.call(b"LPUSH", queue.encode(), body)


class NeverCancels(RedisSubject):
    """A client that forgets to tell Redis that it has lost interest."""

    def cancel(self, handle: tuple[Connection, bytes]) -> None:
        """Tell nobody."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


def test_redis_is_valid(server: RedisServer) -> None:
    """Polls held, woken, cancelled, left to their deadlines and restarted."""
    report = machine(lambda: RedisSubject(server), **PATIENT).exercise(SOME, 14)

    assert report.verdict == "valid", report
    assert report.left_out == ("answered_again",)


@pytest.mark.parametrize(
    ("subject", "properties"),
    [
        (PollsBehindTheKitsBack, {"nothing_lost"}),
        (NewestFirst, {"in_order"}),
        (NeverCancels, {"cancelled_is_over"}),
    ],
)
def test_a_wrong_use_of_redis_is_found(server: RedisServer, subject: type[RedisSubject], properties: set[str]) -> None:
    """A message taken by somebody else, the wrong end, a cancel that is none."""
    report = machine(lambda: subject(server), wake_ms=300, long_ms=1_000).exercise(SOME, 14)

    assert report.verdict == "invalid", report
    assert report.property in properties, report
