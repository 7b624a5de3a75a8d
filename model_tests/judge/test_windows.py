"""A history judged window by window is judged as the whole, to the last byte, however it is cut."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.judge.hostile import Hostile, hostile
from model_tests.judge.one_queue import asked, context, event, holes, ns, told
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import Row, Rows, added_up, by_size, cut, in_windows, table_of, windows_of
from model_tests.support.judge.tiles import table_of as table_of_events

from longpoll_judge.columns import keys
from longpoll_judge.columns.batch import joined
from longpoll_judge.columns.keys import LONG_BYTES, NO_KEYS, Keys, open_keys, repeated, text_hashes
from longpoll_judge.evidence.survey import Context, SourceFacts
from longpoll_judge.generate import Load, simulate, simulated_meta
from longpoll_judge.read.schema import PLAIN_SCHEMA, fill
from longpoll_judge.recording import MS, Recording
from longpoll_judge.run import window_sweep
from longpoll_judge.run.queue_verdict import judge_table
from longpoll_judge.run.wide_pulls import judge_rest
from longpoll_judge.run.window_sweep import Swept, WindowReader, sweep
from longpoll_judge.run.windows import WindowPlan

STEADY: Final = Context(
    wake_ns=100 * MS,
    late_ns=50 * MS,
    answers_on_stop=True,
    sources={"broker-a#1": SourceFacts(last_ns=1 << 60, stopped_ns=None)},
    closes={},
)
"""What is known of a simulated history."""

# -- hostile histories -------------------------------------------------------------------------------------------------

SEEDS = st.integers(0, 10**9)
SOME = range(40)


def both(one: Hostile) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The findings about a history in windows and as a whole."""
    windows = WindowReader(WindowPlan(one.overviews, one.window_events), one.splits.__getitem__, one.is_unplaced)
    whole = judge_table(windows.placed(joined(one.splits)), one.context)
    return in_windows(windows, one.context), added_up(whole)


@pytest.mark.parametrize("count", [5, pytest.param(2_000, marks=(pytest.mark.long, pytest.mark.timeout(1_200)))])
def test_hostile_histories_are_judged_alike_in_windows(count: int) -> None:
    """Whatever is said of the whole is said of it in windows, and nothing else."""

    @settings(max_examples=count)
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        found, whole = both(hostile(seed))
        assert found == whole

    check()


def test_the_hostile_histories_are_of_every_kind() -> None:
    """Deleted topics, queues that begin again untold, holes, clocks that may be set, watchers inside and outside."""
    kinds: Counter[str] = Counter()
    for one in map(hostile, SOME):
        known = one.context
        kinds["deleted"] += bool(known.deleted)
        kinds["anew"] += bool(known.begun_anew)
        kinds["holed"] += any(map(len, known.broker_holes.values()))
        kinds["whole"] += not any(map(len, known.broker_holes.values()))
        kinds["settable"] += bool(known.settable)
        kinds["inside"] += bool(known.inside)
        kinds["outside"] += not known.inside
        kinds["cut"] += len(one.splits) > 1
        kinds["closed"] += bool(known.closes)
        if not kinds["found"]:
            kinds["found"] += 2 * any("violated" in text for _kind, _bucket, _count, text in both(one)[1])

    assert min(kinds.values()) >= 2, kinds


def test_a_judge_that_knows_less_than_matters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every pull were judged within its window, some of these histories would be judged otherwise."""
    monkeypatch.setattr(window_sweep, "is_away", lambda case, _outlook: np.zeros(len(case.pulls), dtype=np.bool_))

    assert any(len(set(map(str, both(hostile(seed))))) > 1 for seed in (65, 97))


# -- what was once judged otherwise, by hand ---------------------------------------------------------------------------


def message(at: float, offset: int) -> Row:
    """A message is appended."""
    return event("append", at, queue_offset=offset)


def visible(at: float, end: int) -> Row:
    """A visible end."""
    return event("make_visible", at, visible_end=end)


PULL: Final[Row] = {"timeout_ms": 1, "count_max": 1}
SHORT: Final = {"wake_ns": 1, "late_ns": 0, "answers_on_stop": True}
TWO_LIVES: Final = context(**SHORT, deleted={("b", "T"): holes((50, 55))})
IDLE: Final = [event("expire", at, request="x") for at in (*range(5, 11), *range(14, 20))]
ENDS: Final[Row] = {"offset_min": 0, "offset_max": 0, "offset_next": 0}
BY_HAND: Final[dict[str, tuple[Rows, Context, str]]] = {
    "a hold from before its request": (
        [
            *(message(4 * offset, offset) for offset in range(3)),
            *(visible(4 * end - 3, end) for end in (1, 2, 3)),
            *(event("hold", 2, request="r"), asked(30, **PULL), told(31)),
        ],
        context(**SHORT),
        "pull.hold.after_request",
    ),
    "what the first life showed, appended before": (
        [*(message(at, at) for at in range(3)), *(visible(3, 1), asked(12, **PULL), told(13), *IDLE)],
        TWO_LIVES,
        "pull.max.most",
    ),
    "what the first life showed, appended behind": (
        [
            *(message(20 + more, 5 + more) for more in range(3)),
            *(visible(23, 6), asked(12, **PULL), told(13, offset_max=8), *IDLE),
        ],
        TWO_LIVES,
        "pull.max.most",
    ),
    **{
        f"a {other['event']} of the next life": (
            [
                *(message(1, 0), asked(2, offset=0, **PULL), event("hold", 2, request="r"), visible(3, 1)),
                *(told(9, **ENDS), event(at=60, request="r", kind=other["event"], visible_end=1)),
            ],
            TWO_LIVES,
            "pull.wake.prompt",
        )
        for other in ({"event": "make_visible"}, {"event": "recheck"})
    },
    "a stop that no cause tells of": (
        [asked(1, timeout_ms=9_000), event("stop", 2, request="r"), told(5)],
        context(sources={"s": SourceFacts(ns(99), ns(99))}, answers_on_stop=True),
        "",
    ),
    "a step after the answer": (
        [asked(1, **PULL), event("take", 9, request="r"), told(5)],
        context(**SHORT),
        "pull.step.unanswered",
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_event_may_be_a_window(name: str) -> None:
    """A clause is found of the whole, or none; windows of one event find the same."""
    rows, known, clause = BY_HAND[name]
    table = table_of(sorted(rows, key=lambda row: int(row["after_ns"])))
    whole = added_up(judge_table(table, known))
    found = [text for kind, _bucket, _count, text in whole if kind == "finding"]

    assert any(f'"{clause}"' in text for text in found) if clause else found == []
    assert in_windows(by_size(table, 1), known) == whole


# -- what makes it so: each is seen to be needed -----------------------------------------------------------------------


def faulty_history(*names: str) -> pa.Table:
    """A simulated history with faults."""
    recording = Recording(list(simulate(Load(events=700, queues=2, timeout_ms=60))), simulated_meta())
    for name in names:
        FAULTS[name].apply(recording)
    return table_of_events(sorted(recording.events, key=lambda each: each.sequence))


def changed(change: Callable[[Rows], None]) -> pa.Table:
    """A simulated history whose events are changed."""
    rows = faulty_history().to_pylist()
    change(rows)
    return fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA))


def lags(rows: Rows) -> None:
    """The last found messages for one tag were asked for from the first on, and passed over."""
    answers = [row for row in rows if row["connection"] == "c0-1" and row["event"] == "answer_sent"]
    answer = [row for row in answers if row["code"] == 0][-1]
    (pull,) = (row for row in rows if row["request"] == answer["request"] and row["event"] == "request_received")
    pull["offset"] = 0
    answer |= {"code": 20, "offsets": [], "offset_next": 10}


def answers_again(rows: Rows) -> None:
    """A late second answer to the first request that has one."""
    first = next(row for row in rows if row["event"] == "answer_sent")
    last_ns, last = max(row["before_ns"] for row in rows), max(row["sequence"] for row in rows)
    rows.append(first | {"after_ns": last_ns + 1, "before_ns": last_ns + 2, "sequence": last + 1})


def gives_again(rows: Rows) -> None:
    """The last append gets the first offset once more."""
    appends = [row for row in rows if row["event"] == "append" and row["queue"] == 0]
    appends[-1]["queue_offset"] = appends[0]["queue_offset"]


NEEDED: Final[dict[str, tuple[Callable[[], pa.Table], str, list[tuple[Any, str, Any]]]]] = {
    "a look far back": (
        lambda: changed(lags),
        "matching messages before offset_next 10",
        [(window_sweep, "is_away", lambda case, _outlook: np.zeros(len(case.pulls), dtype=np.bool_))],
    ),
    "a second answer far away": (
        lambda: changed(answers_again),
        "answered_once",
        [(keys.KeyFile, "repeated", lambda _self, _others: NO_KEYS)],
    ),
    "an offset given again far away": (
        lambda: changed(gives_again),
        "offsets_in_order",
        [(sys.modules[WindowPlan.__module__], "_is_even", lambda *_numbers: True)],
    ),
    "a fall between neighbours": (
        lambda: faulty_history("offset_given_twice"),
        "offsets_in_order",
        [
            (window_sweep.WindowJudge, "faulty_logs", lambda _self, _names: set()),
            (sys.modules[WindowPlan.__module__], "_is_even", lambda _spans, _count, apart: apart > 1),
        ],
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_found_across_windows_needs_its_look(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding is that of the whole; without the look that finds it, windows differ."""
    make, said, without = NEEDED[name]
    table = make()
    whole = added_up(judge_table(table, STEADY))
    assert any(said in row[3] for row in whole)
    assert in_windows(by_size(table, 100), STEADY) == whole
    for place, attribute, value in without:
        monkeypatch.setattr(place, attribute, value)

    assert in_windows(by_size(table, 100), STEADY) != added_up(judge_table(table, STEADY))


@pytest.mark.parametrize("fault", ["visible_too_soon", "visible_past_the_log"])
def test_an_end_before_its_message_is_seen_in_windows(fault: str) -> None:
    """Appends in order and ends that rise do not show that each end came after its message."""
    table = faulty_history(fault)
    whole = added_up(judge_table(table, STEADY))

    assert any("log.visible.appended" in row[3] for row in whole)
    assert in_windows(by_size(table, len(table) // 3), STEADY) == whole


def swept(windows: WindowReader) -> Swept:
    """The requests judged within their window, and the rest."""
    return sweep(windows, (0, len(windows.plan.windows)), STEADY, NO_KEYS, lambda _keys: None)


def test_everything_of_a_sound_history_is_judged_at_home() -> None:
    """No log is doubted, and no more than what is open at the end is left."""
    windows = by_size(faulty_history(), 100)
    found = swept(windows)

    assert windows.plan.doubtful == windows.plan.uneven == found.faulty == frozenset()
    assert len(windows.plan.windows) > 5
    assert len(found.rest) < 40


def test_sends_and_committed_offsets_are_judged_at_home() -> None:
    """A send is over with its acknowledgement: nothing of it goes through all that comes after."""
    table = table_of_events(list(simulate(Load(events=1_500, queues=2, timeout_ms=60, is_whole=True))))
    windows = by_size(table, 100)

    assert Counter(table["event"].to_pylist())["message_acknowledged"] > 100
    assert len(swept(windows).rest) < 40
    assert in_windows(windows, STEADY) == added_up(judge_table(table, STEADY))


def test_a_pull_that_is_never_answered_needs_no_whole_log() -> None:
    table = faulty_history("answer_deleted")
    windows = windows_of(cut(table, range(0, len(table), 50)), 50)
    whole = added_up(judge_table(table, STEADY))
    assert in_windows(windows, STEADY) == whole
    assert any("was not answered" in row[3] for row in whole)
    read: list[int] = []

    def noted(number: int) -> pa.Table:
        read.append(number)
        return windows.read(number)

    judge_rest(evolve(windows, read=noted), swept(windows).rest, (), STEADY)

    assert 0 < len(read) <= len(windows.plan.windows) / 2


# -- keys --------------------------------------------------------------------------------------------------------------


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=20))
def test_a_text_has_one_key_wherever_it_is_read(texts: list[str]) -> None:
    """It depends on the text alone, and different texts have different keys."""
    together = text_hashes(pa.array(texts, pa.string())).tolist()

    assert together == [int(text_hashes(pa.array([text], pa.string()))[0]) for text in texts]
    assert len(set(together)) == len(set(texts))


def test_a_long_name_costs_no_steps_for_its_length() -> None:
    """A megabyte takes no more calls than some hundred bytes."""
    texts = [text + end for text in ("x" * LONG_BYTES, "x" * (LONG_BYTES - 1), "x" * 10 * LONG_BYTES) for end in "ab"]
    mixed = text_hashes(pa.array(["", *texts, "short"], pa.string())).tolist()
    alone = [int(text_hashes(pa.array([text], pa.string()))[0]) for text in texts]

    assert mixed[1:-1] == alone
    assert len(set(mixed)) == len(mixed)
    assert calls_to_hash("x" * (1 << 20)) == calls_to_hash("x" * 2 * LONG_BYTES)


def calls_to_hash(text: str) -> int:
    """How many functions are called to make a text's number."""
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    texts = pa.array([text], pa.string())
    sys.setprofile(called)
    try:
        text_hashes(texts)
    finally:
        sys.setprofile(None)
    return count


@given(
    groups=st.lists(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 9), max_size=20), max_size=5),
    others=st.sets(st.integers(0, 9)),
    range_keys=st.sampled_from([1, 3, 1 << 20]),
)
def test_keys_that_stand_twice_are_found_range_by_range(
    groups: list[list[int]], others: set[int], range_keys: int
) -> None:
    """As plain Python counts them."""

    def as_keys(numbers: Any) -> Keys:
        return np.array(sorted(numbers), dtype=np.uint64)

    every = [number for group in [*groups, others] for number in group]
    with open_keys() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "RANGE_KEYS", range_keys)
        for group in groups:
            file.put(as_keys(group))
        found = file.repeated(as_keys(others)).tolist()

    assert sorted(found) == sorted({number for number in every if every.count(number) > 1})
    assert repeated(map(as_keys, [*groups, others])).tolist() == sorted(found)
