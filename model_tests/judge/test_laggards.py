"""Lagging groups are judged with two parts of the log as with the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.judge.histories import Row, Rows, added_up, by_size, in_windows, table_of, without_time
from model_tests.support.judge.laggards import write_lagging
from model_tests.support.spec.cases import quick_if

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.keys import NO_KEYS
from longpoll_judge.columns.lookup import Integers
from longpoll_judge.contract.result import Result
from longpoll_judge.evidence.source_survey import gaps_of
from longpoll_judge.evidence.survey import Context, SourceFacts
from longpoll_judge.generate import Load
from longpoll_judge.read.parquet import write_part
from longpoll_judge.read.schema import PLAIN_SCHEMA, fill
from longpoll_judge.read.source import find
from longpoll_judge.run import window_sweep
from longpoll_judge.run.local import LocalEngine, judge_windows
from longpoll_judge.run.pipeline import judge_on
from longpoll_judge.run.queue_verdict import judge_table
from longpoll_judge.run.window_sweep import sweep
from longpoll_judge.run.windows import WindowPlan

HOLES = gaps_of([(20, 22), (70, 71)])
CONTEXT = Context(
    wake_ns=1,
    late_ns=0,
    answers_on_stop=True,
    sources={"one": SourceFacts(last_ns=999, stopped_ns=999, holes=HOLES)},
    closes={},
    broker_holes={"b": HOLES},
)
"""One life of the queue."""
KILLED = evolve(CONTEXT, life_holes={"b": gaps_of([(25, 27), (60, 64)])})
DELETED = evolve(CONTEXT, deleted={("b", "T"): gaps_of([(40, 44)])})
LOG_LENGTH = 30
PLACE = {"source": "one", "broker": "b", "topic": "T", "queue": 0}


# -- histories that no broker would write, but nearly ----------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> Rows:
    """The log of a queue, seen from inside or outside, mostly in order."""
    inside = draw(st.booleans())
    rows: Rows = []
    moment = 0
    for number in range(LOG_LENGTH):
        moment += draw(st.integers(0, 4))
        offset = number if draw(st.integers(0, 30)) else draw(st.integers(0, LOG_LENGTH))
        common = PLACE | {"width": draw(st.integers(0, 1))}
        tag = draw(st.sampled_from(["a", "a", "b", ""]))
        name = "append" if inside else "message_acknowledged"
        rows.append(common | {"event": name, "after_ns": moment, "queue_offset": offset, "tag": tag})
        if inside and draw(st.integers(0, 20)):
            moved = {"event": "make_visible", "visible_end": offset + 1, "after_ns": moment + draw(st.integers(0, 3))}
            rows.append(common | moved)
    return rows


@st.composite
def pulls(draw: st.DrawFn, number: int) -> Rows:
    """A pull at any offset and moment, with an answer that is right of a log in order, or nearly so."""
    offset, moment = draw(st.integers(0, LOG_LENGTH)), draw(st.integers(0, 4 * LOG_LENGTH))
    count = draw(st.integers(0, 4))
    expression = draw(st.sampled_from(["*", "*", "a", "b", "none"]))
    taken = [] if expression != "*" and draw(st.booleans()) else list(range(offset, offset + count))
    common = PLACE | {"request": str(number), "connection": "c", "width": draw(st.integers(0, 1))}
    asked = {
        "code": 11,
        "offset": offset,
        "count_max": draw(st.sampled_from([1, 4, 32])),
        "may_hold": draw(st.booleans()),
        "timeout_ms": 1,
        "expression_type": "TAG",
        "expression": expression,
    }
    answer = {
        "code": 0 if taken else draw(st.sampled_from([19, 20, 20, 21])),
        "offsets": taken,
        "offset_next": offset + draw(st.sampled_from([count, count, count, 0, 7])),
        "offset_min": 0,
        "offset_max": draw(st.sampled_from([LOG_LENGTH, min(moment // 2 + draw(st.integers(0, 4)), LOG_LENGTH)])),
    }
    found = [common | asked | {"event": "request_received", "after_ns": moment}]
    if draw(st.integers(0, 5)) == 0:
        held = {"event": "hold", "after_ns": moment + 1, "visible_end": draw(st.integers(0, LOG_LENGTH))}
        found.append(common | held)
    if draw(st.integers(0, 9)):
        found.append(common | answer | {"event": "answer_sent", "after_ns": moment + draw(st.integers(0, 4))})
    return found


@st.composite
def histories(draw: st.DrawFn) -> pa.Table:
    """A log and pulls anywhere in it, in order of time."""
    rows = draw(logs())
    for number in range(draw(st.integers(1, 10))):
        rows += draw(pulls(number))
    return table_of(sorted(rows, key=lambda row: row["after_ns"]))


@pytest.mark.parametrize("count", [3, pytest.param(600, marks=(pytest.mark.long, pytest.mark.timeout(1_200)))])
def test_pulls_at_any_offset_are_judged_as_beside_the_whole_log(count: int) -> None:
    """Right or wrong, held or not, by tags or without, from inside or outside: the same rows to the last byte."""

    @settings(deadline=None, max_examples=count)
    @given(table=histories(), size=st.integers(2, 12), context=st.sampled_from([CONTEXT, KILLED, DELETED]))
    def check(table: pa.Table, size: int, context: Context) -> None:
        assert in_windows(by_size(table, size), context) == added_up(judge_table(table, context))

    check()


# -- what is known of the gap ------------------------------------------------------------------------------------------


def message(offset: int, tag: str, *, visible_ns: int | None = None) -> Rows:
    """A message that is appended at ten times its offset, and visible at once or at a moment."""
    moment = 10 * offset
    appended = {"event": "append", "queue_offset": offset, "tag": tag, "after_ns": moment}
    moved = {"event": "make_visible", "visible_end": offset + 1, "after_ns": visible_ns or moment + 1}
    return [PLACE | {"width": 0} | appended, PLACE | {"width": 0} | moved]


def pull(offset: int, expression: str, *, held: bool = False, request: str = "r", **answer: Any) -> Rows:
    """A pull at 283 ns; it asks for messages of long ago."""
    common = PLACE | {"request": request, "connection": "c", "width": 0}
    asked: dict[str, Any] = {"code": 11, "offset": offset, "count_max": 32, "may_hold": True, "timeout_ms": 1}
    asked |= {"expression_type": "TAG", "expression": expression}
    told: dict[str, Any] = {"code": 20, "offset_next": offset + 1, "offset_min": 0, "offset_max": 29} | answer
    rows = [
        common | asked | {"event": "request_received", "after_ns": 283},
        common | told | {"event": "answer_sent", "after_ns": 287},
    ]
    return [*rows, common | {"event": "hold", "after_ns": 284, "visible_end": 29}] if held else rows


SPARSE: Final = [row for number in range(30) for row in message(number, "b" if number == 15 else "a")]
ALIKE: Final = [row for number in range(30) for row in message(number, "a", visible_ns=153 if number == 3 else None)]
LATE: Final = [row for row in ALIKE if row.get("visible_end", 30) not in range(5, 16)]
UNTOLD: Final = [row for number in range(30) for row in message(number, "a")]
RIGHT: Final[Row] = {"code": 0, "offsets": [3], "offset_next": 4}
GAPS: Final[dict[str, tuple[Rows, Rows, str, int, Context]]] = {
    "a message in the gap that would have woken it": (SPARSE, pull(3, "b", held=True), "pull.wake.prompt", 3, CONTEXT),
    "what it passes over lies in the gap": (SPARSE, pull(3, "b", offset_next=20), "pull.passed.none_match", 2, CONTEXT),
    "an end that the gap has passed": (SPARSE, pull(3, "b", offset_max=14), "pull.max.least", 2, CONTEXT),
    "a message that the gap makes visible": (LATE, pull(3, "*", **RIGHT), "", 2, CONTEXT),
    "a message that is made visible later than it was told": (
        [row for row in UNTOLD if not 5 < row.get("visible_end", 0) < 30],
        [row | {"after_ns": row["after_ns"] - 230} for row in pull(5, "*", code=0, offsets=[5], offset_next=6)],
        "pull.found.visible", -1, CONTEXT,
    ),
    "visible long before, rightly told": (SPARSE, pull(3, "*", code=0, offsets=[3, 4], offset_next=5), "", 0, CONTEXT),
    "visible long before, one left out": (
        SPARSE, pull(3, "a", code=0, offsets=[4], offset_next=5), "pull.found.complete", 0, CONTEXT,
    ),
    "told before a kill, asked for after it": (SPARSE, pull(3, "*", **RIGHT), "", 0, KILLED),
}  # fmt: skip
"""The log, the pull, the clause that it breaks, how many events are left to the rest (-1 of any), what is known."""


@pytest.mark.parametrize("name", GAPS)
def test_what_depends_on_the_gap_is_left_to_the_rest(name: str) -> None:
    log, pulled, clause, count, context = GAPS[name]
    table = table_of(sorted([*log, *pulled], key=lambda row: int(row["after_ns"])))
    windows = by_size(table, 4)
    whole = added_up(judge_table(table, context))
    left = sweep(windows, (0, len(windows.plan.windows)), context, NO_KEYS, lambda _keys: None).rest

    assert len(left) == count or count < 0
    assert not clause or any(f'"{clause}"' in row[3] for row in whole if row[0] == "finding")
    assert in_windows(windows, context) == whole


@pytest.mark.parametrize("name", list(GAPS)[:2])
def test_a_judge_that_overlooks_the_gap_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without these numbers the same history is judged otherwise in windows than as a whole."""
    log, pulled, _clause, _count, context = GAPS[name]
    table = table_of(sorted([*log, *pulled], key=lambda row: int(row["after_ns"])))
    monkeypatch.setattr(
        window_sweep, "_hangs_on_gap", lambda case, *_numbers: np.zeros(len(case.pulls), dtype=np.bool_)
    )

    assert in_windows(by_size(table, 4), context) != added_up(judge_table(table, context))


# -- as they are generated --------------------------------------------------------------------------------------------


def judged(directory: Path, window_events: int) -> Result:
    """Judge in windows of about this many events."""
    engine = LocalEngine(threads=1, window_events=window_events)
    return judge_on(engine, find([directory]), wake_ms=100, late_ms=50, say=lambda _text: None)


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with four groups that lag, in a dozen parts."""
    directory = tmp_path_factory.mktemp("lagging")
    write_lagging(directory, Load(events=9_000, queues=2, consumers=("*",)), 4, tile_events=1_000)
    return directory


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call of `judge_rest` is given."""
    counts: list[int] = []
    original = judge_windows.__globals__["judge_rest"]

    def noted(windows: Any, rest: pa.Table, *others: Any) -> pa.Table:
        counts.append(len(rest))
        return original(windows, rest, *others)

    monkeypatch.setattr("longpoll_judge.run.local.judge_rest", noted)
    return counts


def same(one: Result, other: Result) -> bool:
    """Whether two results are the same except for their times."""
    return without_time(one) == without_time(other)


def test_generated_laggards_are_right_and_leave_nothing(lagging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is that of the history in one piece, and no event of a laggard waits until the end."""
    rest = counted(monkeypatch)
    in_windows, whole = judged(lagging, 700), judged(lagging, 1 << 40)

    assert whole.verdict == "valid"
    assert same(in_windows, whole)
    assert rest == [0]


@pytest.mark.long
def test_generated_laggards_of_a_broker_that_is_killed_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts three times; what is open when it is killed waits for the end, and no laggard does."""
    write_lagging(tmp_path, Load(events=8_000, queues=2, consumers=("*",)), 4, tile_events=1_000, lives=3)
    rest = counted(monkeypatch)
    in_windows, whole = judged(tmp_path, 700), judged(tmp_path, 1 << 40)

    assert [finding for finding in whole.findings if finding.verdict == "violated"] == []
    assert same(in_windows, whole)
    assert rest[0] < 50


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
    """A wrong answer about old messages has the same evidence in windows and in one piece."""
    changed(lagging, tmp_path / "wrong", FAULTS[clause])
    in_windows, whole = judged(tmp_path / "wrong", 700), judged(tmp_path / "wrong", 1 << 40)

    assert [finding.clause for finding in whole.findings] == [clause]
    assert same(in_windows, whole)


def test_reading_the_wrong_messages_changes_no_verdict(lagging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which piece of the log is fetched is a guess that is checked: a wrong one leaves more to the rest."""
    rest = counted(monkeypatch)

    def first(_plan: WindowPlan, _name: QueueName, offsets: Integers) -> Integers:
        return np.zeros_like(offsets)

    monkeypatch.setattr(WindowPlan, "window_of", first)

    assert same(judged(lagging, 700), judged(lagging, 1 << 40))
    assert rest[0] > 100
