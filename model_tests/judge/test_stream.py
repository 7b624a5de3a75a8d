"""A growing history as a Spark stream, judged in buckets of queues; a failed query starts again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from attrs import define, field
from model_tests.judge.test_evidence import not_convicting
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import LIMITS, are_found, certain, follow_pieces, simulated, written
from model_tests.support.judge.recording import Recording, change
from model_tests.support.spec.cases import quick_if
from pyspark.errors import PySparkException

from longpoll_judge.contract.result import Result
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.source import find
from longpoll_judge.run.follow import Listing
from longpoll_judge.run.pipeline import judge
from longpoll_judge.run.sliding import SoFar
from longpoll_judge.run.spark.stream import BEGUN_MAX, Batch, NewEvents, StreamJudge, judge_group, together

WHY = "Python worker failed to connect back."
PART = "part-0.ndjson"
PIECES = 3


@define
class Streamed:
    """A history in one growing file, judged like a Spark stream but without Spark."""

    directory: Path
    listing: Listing = field(factory=lambda: Listing(LIMITS))
    batches: list[Batch] = field(factory=list)
    results: list[Result] = field(factory=list)
    _states: dict[int, bytes] = field(factory=dict)
    _known: dict[int, SoFar] = field(factory=dict)
    _offset: dict[str, Any] = field(factory=dict)

    def look(self) -> Batch:
        """Judge the new rows, which a batch of Spark may have in any order."""
        source = NewEvents([str(self.directory)])
        start = self._offset or source.initialOffset()
        self._offset = source.latestOffset()
        rows: dict[int, list[dict[str, Any]]] = {}
        for split in reversed(source.partitions(start, self._offset)):
            for row in pa.Table.from_batches(source.read(split)).to_pylist():
                rows.setdefault(row["queue_group"], []).append(row)
        for group, mine in rows.items():
            self._states[group], self._known[group] = judge_group(group, self._states.get(group), mine, LIMITS)
        batch = Batch(together(self._known), {})
        self.batches.append(batch)
        self.results.append(self.listing.result(batch.so_far, find([self.directory])))
        return batch


def streamed(recording: Recording, directory: Path, pieces: int = PIECES) -> Streamed:
    part = written(recording, directory) / PART
    lines = part.read_bytes().splitlines(keepends=True)
    found = Streamed(directory)
    size = -(-len(lines) // pieces)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("longpoll_judge.read.source.SPLIT_BYTES", sum(map(len, lines)) // (2 * pieces))
        for end in range(size, len(lines) + size, size):
            part.write_bytes(b"".join(lines[:end]))
            found.look()
    return found


FAULTY = (
    "visible_too_soon min_rises_and_falls",
    *("next_wrong", "end_too_high", "visible_moves_back", "append_missing", "answer_deleted", "held_twice"),
)


@pytest.mark.parametrize("faults", quick_if(FAULTY, lambda names: names == FAULTY[0]))
def test_groups_of_queues_give_the_findings_of_one_process(faults: str, tmp_path: Path) -> None:
    recording = simulated(3, 1_000)
    for fault in faults.split():
        FAULTS[fault].apply(recording)
    directory = tmp_path / "history"
    found, here = streamed(recording, directory), follow_pieces(directory, PIECES)
    results, whole = found.results, here.whole
    told = {name: finding for result in results for name, finding in certain(result).items()}

    assert are_found(told, whole)
    assert told.keys() == here.told.keys()
    assert not_convicting(msgspec.structs.replace(whole, findings=list(told.values())), tmp_path / "alone") == []
    assert (results[-1].events, results[-1].judged) == (here.last.events, here.last.judged)


NOWHERE: dict[str, dict[str, Any]] = {
    "answer without a queue": {"event": "answer_sent", "queue": -1},
    "answer of another queue": {"event": "answer_sent", "queue": 77},
    "request without a queue": {"event": "request_received", "queue": -1},
}


@pytest.mark.parametrize("what", NOWHERE)
def test_an_answer_in_another_group_is_not_missing(what: str, tmp_path: Path) -> None:
    """An answer that names a different queue from its request's queue makes the verdict unknown, also in a stream.

    An answer without a queue belongs to its request's queue.
    """
    recording = simulated(3, 120)
    recording.events = [
        change(event, queue=NOWHERE[what]["queue"]) if event.event == NOWHERE[what]["event"] else event
        for event in recording.events
    ]
    found = streamed(recording, tmp_path / "history")

    assert found.results[-1].findings == []
    assert found.results[-1].verdict == judge([found.directory], engine="local").verdict
    assert found.results[-1].verdict == ("valid" if what == "answer without a queue" else "unknown")


def test_a_restarted_reader_continues_at_its_offset(tmp_path: Path) -> None:
    part = written(simulated(1, 300), tmp_path / "history") / PART
    content = part.read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    part.write_bytes(content[: half + 9])
    first = NewEvents([str(part.parent)])
    end = first.latestOffset()
    (split,) = first.partitions(first.initialOffset(), end)
    part.write_bytes(content)
    again = NewEvents([str(part.parent)])
    assert again.partitions(end, end) == []
    last = again.latestOffset()
    (rest,) = again.partitions(end, last)

    assert [(one.value[0].start, one.value[0].end) for one in (split, rest)] == [(0, half), (half, len(content))]
    assert last == {str(part): len(content)}


@define
class Query:
    why: str = WHY
    isActive: bool = False  # noqa: N815 - Spark's name

    def exception(self) -> str:
        return self.why


class Failing(StreamJudge):
    def begin(self) -> None:
        self.begun += 1
        query: Any = Query()
        self._query = query


@pytest.fixture
def failing(tmp_path: Path) -> Failing:
    engine: Any = None
    found = Failing(engine, GrowingHistory([tmp_path]), LIMITS, tmp_path)
    found.begin()
    return found


def test_a_failed_query_is_restarted_a_few_times(failing: Failing) -> None:
    for number in range(1, BEGUN_MAX):
        assert failing.begun == number
        assert failing.look() is None
    with pytest.raises(SparkUnavailableError, match=rf"new events ended: {WHY}; .* remove {failing.checkpoint}"):
        failing.look()


def test_a_query_is_not_restarted_after_other_errors(failing: Failing) -> None:
    query: Any = Query("ValueError: the part is gone")
    failing._query = query
    with pytest.raises(SparkUnavailableError, match="new events ended: ValueError: the part is gone; "):
        failing.look()


class Refused(StreamJudge):
    def outcomes(self) -> Any:
        raise PySparkException(f"An error occurred while calling o96.start.\n: {WHY}\n\tat org.apache.spark")


def test_a_query_that_cannot_start_names_its_checkpoint(tmp_path: Path) -> None:
    engine: Any = None
    found = Refused(engine, GrowingHistory([tmp_path]), LIMITS, tmp_path / "stream")
    with pytest.raises(SparkUnavailableError) as told:
        found.begin()
    assert str(told.value).startswith(f"the stream of new events ended: {WHY}; if it ends again, remove {tmp_path}")


def test_a_successful_batch_resets_the_failure_count(failing: Failing) -> None:
    failing.look()
    so_far: Any = None
    batch = Batch(so_far, {PART: 7})
    failing._waiting.put(batch)

    assert failing.look() is batch
    assert (failing.ends, failing.begun) == ({PART: 7}, 0)
    assert failing.look() is None
    assert failing.begun == 1
