"""Groups that lag far behind the end of a queue are judged as those at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from model_tests.support.judge.generate import Load
from model_tests.support.judge.histories import without_time
from model_tests.support.judge.laggards import write_lagging
from model_tests.support.judge.parquet_parts import write_part
from model_tests.support.spec.cases import quick_if

from longpoll_judge.contract.result import Result
from longpoll_judge.read.schema import PLAIN_SCHEMA, fill
from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge_on


def judged(directory: Path, window_events: int) -> Result:
    """Judge in buckets of about this many events."""
    engine = LocalEngine(threads=1, window_events=window_events)
    return judge_on(engine, find([directory]), wake_ms=100, late_ms=50, say=lambda _text: None)


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with four groups that lag, in a dozen parts."""
    directory = tmp_path_factory.mktemp("lagging")
    write_lagging(directory, Load(events=9_000, queues=2, consumers=("*",)), 4, tile_events=1_000)
    return directory


def same(one: Result, other: Result) -> bool:
    """Whether two results are the same except for their times."""
    return without_time(one) == without_time(other)


def test_generated_laggards_are_right(lagging: Path) -> None:
    """The verdict is that of the history in one piece."""
    in_buckets, whole = judged(lagging, 700), judged(lagging, 1 << 40)

    assert whole.verdict == "valid"
    assert same(in_buckets, whole)


@pytest.mark.long
def test_generated_laggards_of_a_broker_that_is_killed_are_right(tmp_path: Path) -> None:
    """It starts three times."""
    write_lagging(tmp_path, Load(events=8_000, queues=2, consumers=("*",)), 4, tile_events=1_000, lives=3)
    in_buckets, whole = judged(tmp_path, 700), judged(tmp_path, 1 << 40)

    assert [finding for finding in whole.findings if finding.verdict == "violated"] == []
    assert same(in_buckets, whole)


def changed(directory: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Copy a history with the last part's middle answer to a laggard changed."""
    target.mkdir()
    parts = sorted(path for path in directory.iterdir() if path.suffix == ".parquet")
    for path in directory.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    rows = pq.read_table(parts[-2]).to_pylist()
    answers = [row for row in rows if row["connection"] == "lags1" and row["event"] == "answer_sent"]
    change(answers[len(answers) // 2])
    (target / parts[-2].name).unlink()
    write_part(target / parts[-2].name, [fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA))])


FAULTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "pull.found.complete": lambda row: row["offsets"].pop(2),
    "pull.found.next": lambda row: row.update(offset_next=row["offset_next"] + 1),
    "pull.found.from_asked": lambda row: row["offsets"].insert(0, row["offsets"][0] - 1),
    "pull.max.least": lambda row: row.update(offset_max=row["offset_next"]),
}


@pytest.mark.parametrize("clause", quick_if(FAULTS, lambda clause: clause == "pull.found.next"))
def test_a_laggard_that_is_told_something_wrong_is_found(lagging: Path, tmp_path: Path, clause: str) -> None:
    """A wrong answer about old messages has the same evidence in buckets and in one piece."""
    changed(lagging, tmp_path / "wrong", FAULTS[clause])
    in_buckets, whole = judged(tmp_path / "wrong", 700), judged(tmp_path / "wrong", 1 << 40)

    assert [finding.clause for finding in whole.findings] == [clause]
    assert same(in_buckets, whole)
