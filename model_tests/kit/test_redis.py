"""The kit and the judge with a real Redis server: restarts, wrong uses, and the history of stream reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from model_tests.kit.test_kit import PATIENT, machine
from model_tests.kit.virtual import SOME
from model_tests.support.real_servers import KINDS, Server, running

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_kit.run import KitReport
from longpoll_kit.subjects.on_redis import RedisSubject

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not KINDS["redis"].is_here, reason=f"redis is not here; install {KINDS['redis'].where}"),
]
HASTY: Final[dict[str, Any]] = {**PATIENT, "wake_ms": 300, "long_ms": 1_000}


class Restarting(RedisSubject):
    """Redis with orderly restarts, at which the server keeps its keys."""

    durable = True

    def __init__(self, server: Server, mode: str = "blpop") -> None:
        super().__init__(server.url, mode)
        self.server = server

    def restart(self) -> None:
        self.server.stop()
        self.server.start()
        self.process_id = self.server.process.pid


class PollsBehindTheKitsBack(Restarting):
    """A subject that secretly pops a second message."""

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Any, int]:
        """Take one message first if there are three or more."""
        if self._client.llen(queue) >= 3:
            self._client.lpop(queue)
        return super().start_poll(queue, position, timeout_ms)


class NewestFirst(Restarting):
    """A subject that pushes messages at the wrong end."""

    def publish(self, queue: str, body: bytes) -> None:
        self._use(queue)
        self._client.lpush(queue, body)


class NeverCancels(Restarting):
    """A subject that does not tell Redis about a cancel."""

    def cancel(self, handle: tuple[Any, int]) -> None:
        """Send no cancel to Redis."""


class ReadsWhatIsNew(Restarting):
    """A subject whose reads of a stream all begin at new messages, by the id `$`."""

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Any, int]:
        return super().start_poll(queue, "$", timeout_ms)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running("redis", tmp_path) as server:
        yield server


def test_redis_is_valid(server: Server) -> None:
    report = machine(lambda: Restarting(server), **PATIENT).exercise(SOME, 14)

    assert report.verdict == "valid", report
    assert not {"cancel", "restart"} & set(report.left_out)


@pytest.mark.parametrize(
    ("subject", "properties"),
    [
        (PollsBehindTheKitsBack, {"nothing_lost"}),
        (NewestFirst, {"in_order"}),
        (NeverCancels, {"cancelled_is_over"}),
    ],
)
def test_a_wrong_use_of_redis_is_found(server: Server, subject: type[Restarting], properties: set[str]) -> None:
    report = machine(lambda: subject(server), **HASTY).exercise(SOME, 14)

    assert report.verdict == "invalid", report
    assert report.property in properties, report


def recorded(subject: type[Restarting], server: Server, directory: Path, limit_ms: float) -> tuple[KitReport, Result]:
    with longpoll.HistoryWriter(longpoll.RealRuntime(), directory, service="redis") as history:
        few = settings(SOME, max_examples=4)
        report = machine(lambda: subject(server, "xread"), **PATIENT).exercise(few, 14, history=history)
    return report, longpoll.judge(directory, wake_ms=limit_ms, late_ms=limit_ms)


def test_reads_of_streams_are_valid(server: Server, tmp_path: Path) -> None:
    report, result = recorded(Restarting, server, tmp_path / "history", 60_000)

    assert report.property == "", report
    assert result.verdict != "invalid"
    assert result.requests > 20


def test_kit_and_judge_find_a_read_that_skips_a_message(server: Server, tmp_path: Path) -> None:
    report, result = recorded(ReadsWhatIsNew, server, tmp_path / "history", 250)

    assert (report.verdict, result.verdict) == ("invalid", "invalid")
