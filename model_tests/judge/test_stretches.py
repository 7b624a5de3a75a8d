"""A history judged stretch by stretch is judged as the whole, whatever the events are and however they are cut."""

from __future__ import annotations

import contextlib
import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.judge.drawn_fields import drawn_fields

from longpoll_judge.columns import keys
from longpoll_judge.columns.keys import LONG_BYTES, Keys, open_keys, repeated, text_hashes
from longpoll_judge.evidence.holes import holes_of
from longpoll_judge.evidence.survey import Context, SourceFacts
from longpoll_judge.read.schema import EVENT_SCHEMA, PLAIN_SCHEMA, fill
from longpoll_judge.rules.steps import REQUEST_EVENTS
from longpoll_judge.run import home
from longpoll_judge.run.local import judge_stretches
from longpoll_judge.run.overview import overview_of_table
from longpoll_judge.run.plan import Plan
from longpoll_judge.run.rest import judge_rest
from longpoll_judge.run.sweep import Stretches, sweep
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.verdict import LOG_EVENTS, judge_table
from longpoll_judge.testing.generate import Load, simulate, simulated_meta
from longpoll_judge.testing.plant import FAULTS
from longpoll_judge.testing.recording import NoVictimError, Recording
from longpoll_judge.testing.tiles import table_of as table_of_events

MS = 1_000_000
CONTEXT = Context(
    wake_ns=1,
    late_ns=0,
    answers_on_stop=True,
    sources={
        "one": SourceFacts(last_ns=99, stopped_ns=99, holes=holes_of([(20, 22), (40, 40)])),
        "other": SourceFacts(last_ns=98, stopped_ns=None, holes=holes_of([(50, 1 << 61)]), is_steady=False),
    },
    closes={("one", ""): (70, 80)},
    broker_holes={"": holes_of([(20, 22), (40, 40)])},
    life_holes={"": holes_of([(20, 24), (40, 42)])},
    blocked={("one", ""): holes_of([(30, 35)])},
    deleted={("", ""): holes_of([(28, 30)])},
    begun_anew={("", "", 0): holes_of([(10, 11)])},
)
MOMENTS = st.integers(0, 60)
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from([*REQUEST_EVENTS, *LOG_EVENTS, "request_received", "answer_sent", "expire"]),
        "after_ns": MOMENTS,
        "width": st.integers(0, 3),
        "source": st.sampled_from(["one", "one", "one", "other"]),
        "queue": st.sampled_from([0, 0, 0, 3, -1]),
        "request": st.sampled_from(["", "a", "b", "c", "d", "e" * 20]),
        "code": st.sampled_from([0, 11, 11, 19, 20, 21]),
        "expression_type": st.sampled_from(["TAG", "TAG", "SQL92"]),
        **drawn_fields(6),
    }
)
Rows = list[dict[str, Any]]


def table_of(rows: Rows) -> pa.Table:
    """Events as columns, numbered from 0."""
    events = [
        {name: value for name, value in row.items() if name != "width"}
        | {"before_ns": row["after_ns"] + row["width"], "sequence": number}
        for number, row in enumerate(rows)
    ]
    return fill(pa.Table.from_pylist(events, schema=PLAIN_SCHEMA)) if events else EVENT_SCHEMA.empty_table()


def stretches_of(slices: list[pa.Table], stretch_events: int = 1) -> Stretches:
    """The slices as stretches."""
    overviews = [overview_of_table(table, []) for table in slices]
    return Stretches(Plan(overviews, stretch_events), slices.__getitem__, unplaced=False)


def told(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Result rows added up, queues only named."""
    tally = Tally()
    tally.add(rows)
    found = [tuple(row.values()) for row in tally.rows().to_pylist()]
    return sorted((kind, bucket, 1 if kind == "queue" else count, text) for kind, bucket, count, text in found if count)


def cut(table: pa.Table, borders: list[int]) -> list[pa.Table]:
    """The table in slices."""
    places = [0, *sorted(border % (len(table) + 1) for border in borders), len(table)]
    return [table.slice(begin, end - begin) for begin, end in pairwise(places)]


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(EVENTS, min_size=1, max_size=40),
    borders=st.lists(st.integers(0, 40), max_size=6),
    in_order=st.booleans(),
)
def test_odd_events_are_judged_as_the_whole(rows: Rows, borders: list[int], in_order: bool) -> None:
    """Events that no broker would make, in order of time or not, cut anywhere: the same rows to the last byte."""
    table = table_of(sorted(rows, key=lambda row: row["after_ns"]) if in_order else rows)

    assert told(judge_stretches(stretches_of(cut(table, borders)), CONTEXT)) == told(judge_table(table, CONTEXT))


@pytest.mark.parametrize("fault", ["visible_too_soon", "visible_past_the_log"])
@pytest.mark.parametrize("count", [2, 5])
def test_an_end_before_its_message_is_seen_in_stretches(fault: str, count: int) -> None:
    """Appends in order and ends that rise do not show by themselves that each end came after its message."""
    recording = Recording(list(simulate(Load(events=1_200, timeout_ms=60))), simulated_meta())
    FAULTS[fault].apply(recording)
    table = table_of_events(sorted(recording.events, key=lambda event: event.sequence))
    steady = {recording.events[0].source: SourceFacts(last_ns=1 << 60, stopped_ns=1 << 60)}
    context = Context(wake_ns=100 * MS, late_ns=50 * MS, answers_on_stop=True, sources=steady, closes={})
    whole = told(judge_table(table, context))
    stretches = stretches_of(cut(table, [place * len(table) // count for place in range(1, count)]))

    assert len(stretches.plan.stretches) == count
    assert any("log.visible.appended" in text for _kind, _bucket, _count, text in whole)
    assert told(judge_stretches(stretches, context)) == whole


def test_a_hold_from_before_its_request_is_judged_alike_in_stretches() -> None:
    """It is told as that; what the end of its queue was long before is not at hand where its request is judged."""
    queue = {"queue": 0, "source": "one", "broker": "b", "topic": "T", "width": 0}
    pull = queue | {"request": "a", "connection": "c"}
    asked = {"event": "request_received", "code": 11, "offset": 3, "may_hold": True, "timeout_ms": 1, "count_max": 1}
    answer = {"event": "answer_sent", "code": 19, "offset_next": 3, "offset_min": 0, "offset_max": 3}
    rows = [
        *(queue | {"event": "append", "queue_offset": offset, "after_ns": 4 * offset} for offset in range(3)),
        *(queue | {"event": "make_visible", "visible_end": end, "after_ns": 4 * end - 3} for end in (1, 2, 3)),
        pull | {"event": "hold", "after_ns": 2},
        pull | asked | {"after_ns": 30, "expression_type": "TAG", "expression": "*"},
        pull | answer | {"after_ns": 31},
    ]
    table = table_of(sorted(rows, key=lambda row: int(str(row["after_ns"]))))
    context = evolve(CONTEXT, inside=frozenset({"one"}), broker_holes={}, life_holes={}, deleted={}, begun_anew={})
    whole = told(judge_table(table, context))

    assert any("pull.hold.after_request" in text for _kind, _bucket, _count, text in whole)
    assert told(judge_stretches(stretches_of(cut(table, list(range(len(table))))), context)) == whole


QUEUE = {"queue": 0, "source": "one", "broker": "b", "topic": "T", "width": 0}
PULL = QUEUE | {"request": "a", "connection": "c"}
ASKED = {"event": "request_received", "code": 11, "may_hold": True, "timeout_ms": 1, "count_max": 1}
TOLD = {"event": "answer_sent", "code": 19, "offset_min": 0}
TWO_LIVES = evolve(
    CONTEXT,
    inside=frozenset({"one"}),
    broker_holes={},
    life_holes={},
    deleted={("b", "T"): holes_of([(50, 55)])},
    begun_anew={},
)


def every_event_apart(rows: Rows) -> Stretches:
    """A stretch an event."""
    table = table_of(rows)
    return stretches_of(cut(table, list(range(len(table)))))


@pytest.mark.parametrize(("since", "first"), [(0, 0), (20, 5)])
def test_what_no_first_life_showed_is_not_taken_for_visible_in_stretches(since: int, first: int) -> None:
    """That messages were appended long before, or only long after, bounds what an answer can have seen."""
    log = [
        *(QUEUE | {"event": "append", "queue_offset": first + more, "after_ns": since + more} for more in range(3)),
        QUEUE | {"event": "make_visible", "visible_end": first + 1, "after_ns": since + 3},
    ]
    pull = [
        PULL | ASKED | {"offset": 3, "after_ns": 12, "expression_type": "TAG", "expression": "*"},
        PULL | TOLD | {"offset_next": 3, "offset_max": first + 3, "after_ns": 13},
    ]
    between = [QUEUE | {"event": "expire", "after_ns": moment} for moment in (*range(5, 11), *range(14, 20))]
    rows = sorted([*log, *pull, *between], key=lambda row: int(str(row["after_ns"])))
    whole = told(judge_table(table_of(rows), TWO_LIVES))

    assert any("pull.max.most" in text and '"verdict":"violated"' in text for _kind, _bucket, _count, text in whole)
    assert told(judge_stretches(every_event_apart(rows), TWO_LIVES)) == whole


@pytest.mark.parametrize("other", [{"event": "make_visible", "visible_end": 1}, {"event": "recheck"}])
def test_what_else_bears_a_request_does_not_say_in_which_life_it_lies(other: dict[str, Any]) -> None:
    """Neither when the request came nor when it was answered, be the event seen together with it."""
    rows = [
        QUEUE | {"event": "append", "queue_offset": 0, "after_ns": 1},
        PULL | ASKED | {"offset": 0, "after_ns": 2, "expression_type": "TAG", "expression": "*"},
        PULL | {"event": "hold", "after_ns": 2},
        QUEUE | {"event": "make_visible", "visible_end": 1, "after_ns": 3},
        PULL | TOLD | {"offset_next": 0, "offset_max": 0, "after_ns": 9},
        PULL | other | {"after_ns": 60},
    ]
    whole = told(judge_table(table_of(rows), TWO_LIVES))

    assert any("pull.wake.prompt" in text for _kind, _bucket, _count, text in whole)
    assert told(judge_stretches(every_event_apart(rows), TWO_LIVES)) == whole


@pytest.mark.parametrize(("name", "kind"), [("stop", ""), ("take", "pull.step.unanswered")])
def test_what_is_done_with_a_pull_is_seen_in_stretches(name: str, kind: str) -> None:
    """A stop that no cause tells of excuses an early 19, and a step after the answer is found, however it is cut."""
    pull = {"request": "a", "queue": 0, "source": "one", "broker": "b", "topic": "T", "connection": "c"}
    asked = {"event": "request_received", "code": 11, "offset": 1, "may_hold": True, "timeout_ms": 1, "count_max": 1}
    answer = {"event": "answer_sent", "code": 19, "offset_next": 1, "offset_min": 0, "offset_max": 1}
    rows = [
        pull | asked | {"after_ns": 1, "width": 0, "expression_type": "TAG", "expression": "*"},
        pull | {"event": name, "after_ns": 2 if name == "stop" else 9, "width": 0},
        pull | answer | {"after_ns": 5, "width": 0},
    ]
    table = table_of(rows)
    whole = told(judge_table(table, evolve(CONTEXT, inside=frozenset({"one"}))))
    cut_up = told(judge_stretches(stretches_of(cut(table, [1, 2])), evolve(CONTEXT, inside=frozenset({"one"}))))
    found = [text for what, _bucket, _count, text in cut_up if what == "finding"]

    assert cut_up == whole
    assert any(kind in text for text in found) if kind else found == []


@pytest.mark.long
@settings(deadline=None, max_examples=4)
@given(
    seed=st.integers(0, 1_000),
    faults=st.lists(
        st.sampled_from(["next_wrong", "answer_deleted", "answer_duplicated", "wake_delayed", "wrong_tag"])
    ),
    stretch=st.sampled_from([20, 60]),
)
def test_simulated_histories_are_judged_as_the_whole(seed: int, faults: list[str], stretch: int) -> None:
    """A broker's history with or without faults, and most of it judged at home."""
    recording = Recording(list(simulate(Load(events=300, queues=2, timeout_ms=60, seed=seed))), simulated_meta())
    for name in faults:
        with contextlib.suppress(NoVictimError):
            FAULTS[name].apply(recording)
    table = table_of_events(recording.events)
    source = {"broker-a#1": SourceFacts(last_ns=1 << 60, stopped_ns=None)}
    context = Context(wake_ns=MS, late_ns=0, answers_on_stop=True, sources=source, closes={})
    stretches = stretches_of(cut(table, list(range(0, len(table), stretch))))
    swept = sweep(stretches, (0, len(stretches.plan.stretches)), context, keys.NO_KEYS, lambda _keys: None)

    assert told(judge_stretches(stretches, context)) == told(judge_table(table, context))
    assert len(swept.rest) < len(table) / 2


# -- what makes it so: each is seen to be needed ----------------------------------------------------------------------


def faulty_history(*names: str) -> pa.Table:
    """A simulated history with faults."""
    recording = Recording(list(simulate(Load(events=700, queues=2, timeout_ms=60))), simulated_meta())
    for name in names:
        FAULTS[name].apply(recording)
    return table_of_events(recording.events)


def both(table: pa.Table, stretch_events: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What is said of a history in stretches, and of the whole."""
    source = {"broker-a#1": SourceFacts(last_ns=1 << 60, stopped_ns=None)}
    context = Context(wake_ns=100 * MS, late_ns=50 * MS, answers_on_stop=True, sources=source, closes={})
    stretches = stretches_of(cut(table, list(range(0, len(table), stretch_events))))
    return told(judge_stretches(stretches, context)), told(judge_table(table, context))


def found_alike(table: pa.Table) -> list[tuple[Any, ...]]:
    """What is found in the whole, which is what is found in stretches."""
    in_stretches, whole = both(table, 100)
    assert in_stretches == whole
    return whole


def differ(table: pa.Table) -> bool:
    """Whether something else is found in stretches, with what a test has planted."""
    in_stretches, whole = both(table, 100)
    return in_stretches != whole


def lagging(table: pa.Table) -> pa.Table:
    """The history whose last found messages for one tag were asked for from the first on, and passed over."""
    rows = table.to_pylist()
    answers = [row for row in rows if row["connection"] == "c0-1" and row["event"] == "answer_sent"]
    answer = [row for row in answers if row["code"] == 0][-1]
    (asked,) = (row for row in rows if row["request"] == answer["request"] and row["event"] == "request_received")
    asked["offset"] = 0
    answer |= {"code": 20, "offsets": [], "offset_next": 10}
    return fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA))


def test_looking_far_back_is_not_judged_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that lags is judged by the log that it reads; at home nobody knows what it passed over."""
    table = lagging(faulty_history())
    whole = found_alike(table)
    assert any("matching messages before offset_next 10" in row[3] for row in whole)
    monkeypatch.setattr(home, "is_away", lambda case, _outlook: np.zeros(len(case.pulls), dtype=np.bool_))

    assert differ(table)


def repeated_later(table: pa.Table) -> pa.Table:
    """The history with a late second answer to the first request that has one."""
    rows = table.to_pylist()
    first = next(row for row in rows if row["event"] == "answer_sent")
    last_ns, last = max(row["before_ns"] for row in rows), max(row["sequence"] for row in rows)
    again = first | {"after_ns": last_ns + 1, "before_ns": last_ns + 2, "sequence": last + 1}
    return fill(pa.Table.from_pylist([*rows, again], schema=PLAIN_SCHEMA))


def test_a_second_answer_far_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys bring it together with the first; without them it would be an answer to nothing."""
    table = repeated_later(faulty_history())
    whole = found_alike(table)
    assert any("answered_once" in row[3] for row in whole)
    monkeypatch.setattr(keys.KeyFile, "repeated", lambda _self, _others: keys.NO_KEYS)

    assert differ(table)


def given_again_later(table: pa.Table) -> pa.Table:
    """The history whose last append gets the first offset once more."""
    rows = table.to_pylist()
    appends = [row for row in rows if row["event"] == "append" and row["queue"] == 0]
    appends[-1]["queue_offset"] = appends[0]["queue_offset"]
    return fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA))


def test_logs_that_contradict_themselves_from_afar_are_looked_at_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two neighbours show an offset that was given twice a thousand events apart; the numbers of the slices do."""
    table = given_again_later(faulty_history())
    whole = found_alike(table)
    assert any("offsets_in_order" in row[3] for row in whole)
    monkeypatch.setattr("longpoll_judge.run.plan._is_even", lambda *_numbers: True)

    assert differ(table)


def test_what_is_near_is_judged_by_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that falls from one stretch to the next is looked at whole; were neighbours blind, it is not."""
    table = faulty_history("offset_given_twice")
    whole = found_alike(table)
    assert any("offsets_in_order" in row[3] for row in whole)
    monkeypatch.setattr(home.Home, "faulty_logs", lambda _self, _names: set())
    monkeypatch.setattr("longpoll_judge.run.plan._is_even", lambda _spans, _count, apart: apart > 1)

    assert differ(table)


def test_everything_of_a_sound_history_is_judged_at_home() -> None:
    """No log is doubted, and no more than what is open at the end is left."""
    table = faulty_history()
    stretches = stretches_of(cut(table, list(range(0, len(table), 100))))
    swept = sweep(stretches, (0, len(stretches.plan.stretches)), CONTEXT, keys.NO_KEYS, lambda _keys: None)

    assert stretches.plan.doubtful == stretches.plan.uneven == swept.faulty == frozenset()
    assert len(stretches.plan.stretches) > 5
    assert len(swept.rest) < 40


def test_a_pull_that_is_never_answered_needs_no_whole_log() -> None:
    """It is judged beside the message that it waited for, and what was held for long beside what came meanwhile."""
    table = faulty_history("answer_deleted")
    in_stretches, whole = both(table, 50)
    assert in_stretches == whole
    assert any("was not answered" in row[3] for row in whole)
    stretches = stretches_of(cut(table, list(range(0, len(table), 50))), 50)
    source = {"broker-a#1": SourceFacts(last_ns=1 << 60, stopped_ns=None)}
    context = Context(wake_ns=100 * MS, late_ns=50 * MS, answers_on_stop=True, sources=source, closes={})
    rest = sweep(stretches, (0, len(stretches.plan.stretches)), context, keys.NO_KEYS, lambda _keys: None).rest
    read: list[int] = []

    def noted(number: int) -> pa.Table:
        read.append(number)
        return stretches.read(number)

    judge_rest(evolve(stretches, read=noted), rest, (), context)

    assert 0 < len(read) <= len(stretches.plan.stretches) / 2


def of_another_broker(table: pa.Table) -> pa.Table:
    """The same history as another observer of another broker would write it."""
    rows = [row | {"source": "broker-b#1", "broker": "broker-b"} for row in table.to_pylist()]
    return fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA))


@pytest.mark.long
def test_observers_that_write_side_by_side_are_judged_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches are as much longer as there are slices of one time; were they not, what lies across would be left."""
    table = faulty_history()
    borders = list(range(0, len(table), 100))
    slices = [*cut(table, borders), *cut(of_another_broker(table), borders)]

    def left_by(stretches: Stretches) -> int:
        run = (0, len(stretches.plan.stretches))
        return len(sweep(stretches, run, CONTEXT, keys.NO_KEYS, lambda _keys: None).rest)

    longer = left_by(stretches_of(slices, 100))
    whole = pa.concat_tables(slices)
    assert told(judge_stretches(stretches_of(slices, 100), CONTEXT)) == told(judge_table(whole, CONTEXT))
    monkeypatch.setattr("longpoll_judge.run.plan._depth", lambda _overviews: 1)

    assert longer < 80 < left_by(stretches_of(slices, 100))


# -- keys --------------------------------------------------------------------------------------------------------------


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=20))
def test_a_text_has_one_key_wherever_it_is_read(texts: list[str]) -> None:
    """It hangs on the text alone, and these texts have different ones."""
    together = text_hashes(pa.array(texts, pa.string())).tolist()

    assert together == [int(text_hashes(pa.array([text], pa.string()))[0]) for text in texts]
    assert len(set(together)) == len(set(texts))


def test_a_long_name_costs_no_steps_for_its_length() -> None:
    """It has a number of its own like any other; a megabyte takes no more calls than some hundred bytes."""
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
