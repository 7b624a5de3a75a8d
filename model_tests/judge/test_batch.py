"""Batches of events as numbers: sorting, joining and splitting, compared with plain Python on arbitrary events."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_judge.columns import tables
from longpoll_judge.columns.tables import GROUP_KEY, compacted, decode, encode, joined, queue_numbers, taken
from longpoll_judge.kernel.lives import REQUEST_EVENTS
from longpoll_judge.kernel.verdict import LOG_EVENTS
from longpoll_judge.kernel.window import make_window
from longpoll_judge.read.schema import EVENT_SCHEMA, fill

NAMES = st.sampled_from(["", "a", "b", "r\u00e9", "x" * 80])
OFFSETS, ENDS = st.integers(-1, 3), st.integers(-1, 4)
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from([*REQUEST_EVENTS, *LOG_EVENTS, "expire"]),
        "after_ns": st.integers(0, 5),
        "before_ns": st.integers(5, 9),
        "source": st.sampled_from(["one", "other"]),
        "sequence": st.integers(0, 9),
        "broker": st.sampled_from(["", "b"]),
        "topic": NAMES,
        "queue": st.sampled_from([-1, 0, 3, 1 << 40]),
        "request": NAMES,
        "code": st.sampled_from([-1, 0, 11, 19, 20, 21]),
        "expression_type": st.sampled_from(["TAG", "SQL92", ""]),
        "offset": OFFSETS,
        "may_hold": st.booleans(),
        "timeout_ms": st.sampled_from([-1, 0, 1]),
        "expression": st.sampled_from(["*", "a"]),
        "offset_next": ENDS,
        "offset_max": ENDS,
        "offsets": st.lists(st.integers(0, 3), max_size=3),
        "queue_offset": OFFSETS,
        "tag": st.sampled_from(["", "a"]),
        "visible_end": ENDS,
    }
)
HISTORIES = st.lists(EVENTS, max_size=30)
Events = list[dict[str, Any]]
TWICE: dict[str, Any] = {
    "event": "answer_sent",
    "after_ns": 0,
    "before_ns": 5,
    "source": "one",
    "sequence": 0,
    "request": "a",
    "broker": "",
    "topic": "",
    "queue": 0,
    "code": 0,
}
"""An event whose request occurs in two events."""


def table_of(events: Events) -> pa.Table:
    return fill(pa.Table.from_pylist(events)) if events else EVENT_SCHEMA.empty_table()


def place(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["after_ns"], event["before_ns"], event["source"], event["sequence"]


@given(events=HISTORIES)
def test_events_are_grouped_by_queue_and_sorted(events: Events) -> None:
    found = {name: [place(event) for event in told] for name, told in in_order(events).items()}
    wanted: dict[tuple[Any, ...], list[Any]] = {}
    for event in events:
        wanted.setdefault((event["broker"], event["topic"], event["queue"]), []).append(place(event))

    assert found == {name: sorted(places) for name, places in wanted.items()}


def in_order(events: Events) -> dict[Any, Any]:
    window = make_window(table_of(events))
    found: dict[Any, Any] = {}
    for row in range(len(window)):
        found.setdefault(window.names[window.queue[row]], []).extend(window.evidence([row]))
    return found


@given(events=HISTORIES, dice=st.randoms())
def test_the_order_does_not_depend_on_arrival(events: Events, dice: random.Random) -> None:
    alike = [event | {"before_ns": 5, "after_ns": 0, "source": "one", "sequence": 0} for event in events]

    assert in_order(dice.sample(alike, len(alike))) == in_order(alike)


NAMED = list(product(["", "b"], ["a", "b"], [-1, 0, 3, 1 << 40]))


@pytest.mark.parametrize(
    "rows", [sorted(NAMED * 20), NAMED * 20, NAMED], ids=["sorted rows", "repeated rows", "single rows"]
)
def test_queue_numbers_do_not_depend_on_the_order_of_rows(rows: list[tuple[str, str, int]]) -> None:
    columns = dict(zip(GROUP_KEY, map(list, zip(*rows, strict=True)), strict=True))
    numbers, examples = queue_numbers(fill(pa.table(columns), GROUP_KEY))
    number_of = {rows[row]: number for number, row in enumerate(examples.tolist())}

    assert len(number_of) == len(examples) == len(NAMED)
    assert numbers.tolist() == [number_of[name] for name in rows]


@given(events=st.lists(EVENTS, min_size=1, max_size=30))
def test_a_request_is_joined_with_its_first_answer(events: Events) -> None:
    window = make_window(table_of(events))
    shown = [window.evidence([row])[0] for row in range(len(window))]
    keys = [
        (queue, event["source"], event.get("request", ""))
        for queue, event in zip(window.queue.tolist(), shown, strict=True)
    ]
    answers = [row for row, event in enumerate(shown) if event["event"] == "answer_sent" and keys[row][2]]
    wanted = [next((row for row in answers if keys[row] == key), -1) if key[2] else -1 for key in keys]

    for _time in range(2):
        assert window.answer_to(window.request_key, "answer_sent").tolist() == wanted


@given(events=HISTORIES, borders=st.lists(st.integers(0, 30), max_size=4))
def test_a_cut_table_is_equal_after_joining(events: Events, borders: list[int]) -> None:
    table = table_of(events)
    places = [0, *sorted(border % (len(table) + 1) for border in borders), len(table)]
    parts = [taken(table, np.arange(begin, end)) for begin, end in pairwise(places)]

    assert fill(joined(decode(encode(compacted(part, 1))) for part in parts)).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("are_hashes_alike", [False, True])
def test_a_name_has_one_number_over_all_parts(are_hashes_alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if are_hashes_alike:
        monkeypatch.setattr(tables, "text_hashes", lambda texts: np.zeros(len(texts), dtype=np.uint64))
    told = {"event": "hold", "after_ns": 0, "before_ns": 0, "source": "s"}
    parts = [
        table_of([told | {"sequence": number, "request": f"r{number % 900}"} for number in range(start, start + 700)])
        for start in (0, 500, 1_000)
    ]
    whole = joined(parts)

    assert whole["request"].to_pylist() == [text for part in parts for text in part["request"].to_pylist()]
    assert len(set(whole["request"].chunk(0).indices.to_pylist())) == len(set(whole["request"].to_pylist()))


def test_a_part_has_only_the_columns_and_names_it_uses() -> None:
    events = [
        {"event": "hold", "after_ns": 0, "before_ns": 0, "source": "s", "sequence": number, "request": f"r{number}"}
        for number in range(100)
    ]
    part = taken(table_of(events), np.array([7, 9]))

    assert part.column_names == ["event", "after_ns", "before_ns", "source", "sequence", "request"]
    assert part["request"].chunk(0).dictionary.to_pylist() == ["r7", "r9"]


@given(events=HISTORIES.filter(len))
@example(events=[TWICE, TWICE | {"source": "other"}])
@example(events=[TWICE, TWICE])
def test_missing_and_repeated_numbers_are_found(events: Events) -> None:
    window = make_window(table_of(events))
    for event in ("request_received", "answer_sent", "hold"):
        mine = [each for each in events if each["event"] == event]
        places = ("source", "request", "broker", "topic", "queue")
        requests = [tuple(each[name] for name in places) for each in mine if each["request"]]
        assert window.has_repeated(event) == (len(set(requests)) < len(requests))
        assert window.has_negative(event, "code") == any(each["code"] < 0 for each in mine)


@pytest.mark.parametrize("every", [1, 20])
def test_a_value_in_one_of_many_rows_is_kept(every: int) -> None:
    count = 1_100 * every
    table = table_of([TWICE] * count)
    values = {"lost_count": 7, "tag": "x", "may_hold": True, "offsets": [5]}
    last = table_of([TWICE | values])
    rows = np.append(np.arange(0, count, every), count)
    found = taken(joined([table, last]), rows)
    assert {name: found[name].to_pylist()[-1] for name in values} == values
    assert values.keys().isdisjoint(taken(joined([table, last]), rows[:-1]).column_names)
