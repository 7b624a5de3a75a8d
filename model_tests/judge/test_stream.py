"""A growing history as a stream of Spark's: judged in groups of queues, and its query starts again if it fails."""

from __future__ import annotations

import gc
import pickle
import socket
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from attrs import define, evolve
from model_tests.judge.test_evidence import not_convicting
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import LIMITS, are_found, certain, follow_pieces, simulated, written
from model_tests.support.spec.cases import quick_if
from pyspark.errors import PySparkException

from longpoll_judge.columns.batch import encode
from longpoll_judge.contract.result import Result
from longpoll_judge.errors import SparkUnavailableError
from longpoll_judge.evidence.survey import survey_split
from longpoll_judge.read.growing_history import GrowingHistory
from longpoll_judge.read.source import find, read_split
from longpoll_judge.run.follow import Listing
from longpoll_judge.run.incremental.state_file import Parts
from longpoll_judge.run.pipeline import judge
from longpoll_judge.run.spark.session import unclosed_sockets_ignored
from longpoll_judge.run.spark.stream import BEGUN_MAX, Batch, NewEvents, StreamJudge, batch_of, in_groups, judge_group

WHY = "Python worker failed to connect back."
PART = "part-0.ndjson"
PIECES = 4


def streamed(directory: Path) -> list[Result]:
    """The results after each of some pieces of a history of one part, as Spark judges them, without Spark."""
    history = find([directory])
    table, damages = read_split(history.splits[0])
    known = pickle.dumps(evolve(history, splits=[]))
    states: dict[int, bytes] = {}
    listing, results = Listing(LIMITS), list[Result]()
    for piece in range(PIECES):
        start, end = (len(table) * at // PIECES for at in (piece, piece + 1))
        new = table.slice(start, end - start)
        survey = msgspec.msgpack.encode(survey_split(new, damages if end == len(table) else []))
        outcomes = []
        for group, events in in_groups(new):
            row = {"number": 0, "part": PART, "until": end, "rewritten": 0, "history": known, "survey": survey}
            states[group], rows = judge_group(group, states.get(group), [row | {"events": encode(events)}], LIMITS)
            outcomes.append(rows)
        batch = batch_of(pa.concat_tables(outcomes))
        assert batch.ends == {PART: end}
        results.append(listing.result(batch.so_far, history, batch.complete))
    return results


QUICK = ("visible_too_soon", "min_rises_and_falls")
FAULTY = (*QUICK, "next_wrong", "end_too_high", "visible_moves_back", "append_missing", "answer_deleted", "held_twice")


@pytest.mark.parametrize("fault", quick_if(FAULTY, lambda name: name in QUICK))
def test_groups_tell_what_one_process_tells(fault: str, tmp_path: Path) -> None:
    """Of every injected fault, with evidence that shows it alone; nothing else than the judgement of the whole."""
    recording = simulated(3, 1_000)
    FAULTS[fault].apply(recording)
    directory = written(recording, tmp_path / "history")
    results, here = streamed(directory), follow_pieces(directory, PIECES)
    whole = judge([directory], engine="local")
    told = {name: finding for result in results for name, finding in certain(result).items()}

    assert are_found(told, whole)
    assert told.keys() == here.told.keys()
    assert not_convicting(msgspec.structs.replace(whole, findings=list(told.values())), tmp_path / "alone") == []
    assert (results[-1].events, results[-1].judged) == (here.last.events, here.last.judged)


def test_offsets_say_what_is_new_and_what_was_rewritten(tmp_path: Path) -> None:
    """A restarted reader continues from an offset; a rewritten part shows although nothing is new."""
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
    part.write_bytes(content.replace(b"\n", b" ")[:-1] + b"\n")
    (doubt,) = again.partitions(last, again.latestOffset())

    assert [(one.value[1].start, one.value[1].end) for one in (split, rest)] == [(0, half), (half, len(content))]
    assert [one.value[3] for one in (split, rest, doubt)] == [0, 0, 1]
    assert {row.column("rewritten")[0].as_py() for row in again.read(doubt)} == {1}


def test_a_part_that_is_rewritten_while_its_end_is_noted_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was compared with what was read, and before its new end has a checksum."""
    part = written(simulated(1, 300), tmp_path / "history") / PART
    content = part.read_bytes()
    half = content.index(b"\n", len(content) // 2) + 1
    part.write_bytes(content[:half])
    source = NewEvents([str(part.parent)])
    before = source.latestOffset()
    part.write_bytes(content)
    are_anew = Parts.are_anew

    def rewritten_after(parts: Parts, stamps: Any, ends: Any) -> int:
        count = are_anew(parts, stamps, ends)
        part.write_bytes(content.replace(b":", b" ", 1))
        return count

    monkeypatch.setattr(Parts, "are_anew", rewritten_after)
    after = source.latestOffset()
    assert (before["rewritten"], after["rewritten"]) == (0, 1)
    assert source.latestOffset() == after


@define
class Query:
    """Of a streaming query what a follower asks of it; it has ended."""

    isActive: bool = False  # noqa: N815 - Spark's name

    def exception(self) -> str:
        """Why it ended."""
        return WHY


class Failing(StreamJudge):
    """Queries that end as soon as they are begun."""

    def begin(self) -> None:
        """As the real one, without Spark."""
        self.begun += 1
        query: Any = Query()
        self._query = query


@pytest.fixture
def failing(tmp_path: Path) -> Failing:
    """One whose first query has failed."""
    engine: Any = None
    found = Failing(engine, GrowingHistory([tmp_path]), LIMITS, tmp_path)
    found.begin()
    return found


def test_a_query_that_fails_is_begun_again_some_times(failing: Failing) -> None:
    """As often as `BEGUN_MAX`; then its own words say why nothing comes, and what may help."""
    for number in range(1, BEGUN_MAX):
        assert failing.begun == number
        assert failing.look() is None
    with pytest.raises(SparkUnavailableError, match=rf"new events ended: {WHY}; .* remove {failing.checkpoint}"):
        failing.look()


class Refused(StreamJudge):
    """Spark begins no query, as for a damaged checkpoint."""

    def outcomes(self) -> Any:
        """No rows."""
        raise PySparkException(f"An error occurred while calling o96.start.\n: {WHY}\n\tat org.apache.spark")


def test_a_query_that_does_not_begin_names_its_checkpoint(tmp_path: Path) -> None:
    """With the line that says why, and not with Java's frames."""
    engine: Any = None
    found = Refused(engine, GrowingHistory([tmp_path]), LIMITS, tmp_path / "stream")
    with pytest.raises(SparkUnavailableError) as told:
        found.begin()
    assert str(told.value).startswith(f"the stream of new events ended: {WHY}; if it ends again, remove {tmp_path}")


def test_what_a_query_brought_before_it_failed_counts(failing: Failing) -> None:
    """The failures of before are forgotten."""
    failing.look()
    so_far: Any = None
    batch = Batch(so_far, {}, {PART: 7})
    failing._waiting.put(batch)

    assert failing.look() is batch
    assert (failing.ends, failing.begun) == ({PART: 7}, 0)
    assert failing.look() is None
    assert failing.begun == 1


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
