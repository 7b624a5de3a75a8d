"""Spark's streams for a follower: a failed query starts again, and busy machines get time."""

from __future__ import annotations

import gc
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.generate import Load, simulate, simulated_meta, write
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.run.spark.session import unclosed_sockets_ignored
from longpoll_judge.run.spark.stream import BEGUN_MAX, Arrivals, Batch

WHY = "Python worker failed to connect back."
PART = "part-0.ndjson"


@define
class Query:
    """Of a streaming query what a follower asks of it; it has ended."""

    isActive: bool = False  # noqa: N815 - Spark's name

    def exception(self) -> str:
        """Why it ended."""
        return WHY

    def stop(self) -> None:
        """Nothing runs."""


class Failing(Arrivals):
    """Queries that end as soon as they are begun."""

    def begin(self) -> None:
        """As the real one, without Spark."""
        self.begun += 1
        query: Any = Query()
        self._query = query


@pytest.fixture
def arrivals(tmp_path: Path) -> Failing:
    """Those of a history, whose first query has failed."""
    write(tmp_path / "history", simulate(Load(events=40, timeout_ms=60)), simulated_meta())
    engine: Any = None
    found = Failing(engine, GrowingHistory([tmp_path / "history"]), {}, tmp_path)
    found.begin()
    return found


def brought(arrivals: Failing) -> list[Batch]:
    """What a look finds."""
    _history, batches = arrivals.look()
    return list(batches)


def test_a_query_that_fails_is_begun_anew_some_times(arrivals: Failing) -> None:
    """As often as `BEGUN_MAX`; then its own words say why nothing comes."""
    for number in range(1, BEGUN_MAX):
        assert arrivals.begun == number
        assert brought(arrivals) == []
    with pytest.raises(SparkUnavailableError, match=f"the stream of new events ended: {WHY}"):
        arrivals.look()


def test_what_a_query_brought_before_it_failed_counts(arrivals: Failing) -> None:
    """It is read, the next query goes on behind it, and the failures of before are forgotten."""
    brought(arrivals)
    batch = Batch([], [], {PART: 7})
    arrivals._waiting.put(batch)

    assert brought(arrivals) == [batch]
    assert list(arrivals.read([batch])) == [([], [])]
    assert arrivals.ends == {PART: 7}
    assert arrivals.begun == 0
    assert brought(arrivals) == []
    assert arrivals.begun == 1


def lose_a_socket() -> list[str]:
    """Let go of an open socket; what is said to that."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warnings, "showwarning", lambda message, *_rest: said.append(str(message)))
        lost = socket.socket()
        del lost
        gc.collect()
    return said


def test_who_leaves_first_takes_no_filter_from_another() -> None:
    """A stream's batches come on a separate thread while the follower judges on Spark."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        first, second = unclosed_sockets_ignored(), unclosed_sockets_ignored()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        within = lose_a_socket()
        second.__exit__(None, None, None)
        after = lose_a_socket()

    assert within == []
    assert len(after) == 1
