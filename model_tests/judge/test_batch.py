"""Numbers instead of texts: order, joins and pieces against plain Python, on events that no broker would make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_judge import exchange
from longpoll_judge.batch import make_batch
from longpoll_judge.exchange import LOG, SHARDS, decode, encode, joined, requests_of, split, unit_count
from longpoll_judge.schema import EVENT_SCHEMA, fill
from longpoll_judge.survey import Context, SourceFacts
from longpoll_judge.verdict import LOG_EVENTS, REQUEST_EVENTS, RESULT_SCHEMA, judge_shared, judge_table

NAMES = st.sampled_from(["", "a", "b", "r\u00e9", "x" * 80])
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
        "offset": st.integers(-1, 3),
        "may_hold": st.booleans(),
        "timeout_ms": st.sampled_from([-1, 0, 1]),
        "expression_type": st.sampled_from(["TAG", "SQL92", ""]),
        "expression": st.sampled_from(["*", "a"]),
        "offset_next": st.integers(-1, 4),
        "offset_max": st.integers(-1, 4),
        "offsets": st.lists(st.integers(0, 3), max_size=3),
        "queue_offset": st.integers(-1, 3),
        "tag": st.sampled_from(["", "a"]),
        "visible_end": st.integers(-1, 4),
    }
)
HISTORIES = st.lists(EVENTS, max_size=30)
CONTEXT = Context(
    wake_ns=1,
    late_ns=0,
    answers_on_stop=True,
    sources={
        "one": SourceFacts(last_ns=9, stopped_ns=9, lossy=False, gapped=False),
        "other": SourceFacts(last_ns=8, stopped_ns=None, lossy=True, gapped=True),
    },
    closes={("one", ""): (7, 8)},
)
Events = list[dict[str, Any]]


def table_of(events: Events) -> pa.Table:
    """The events as columns."""
    return fill(pa.Table.from_pylist(events)) if events else EVENT_SCHEMA.empty_table()


def place(event: dict[str, Any]) -> tuple[Any, ...]:
    """Where an event stands in its queue."""
    return event["after_ns"], event["before_ns"], event["source"], event["sequence"]


def told(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Result rows in any order; a queue may be counted in several places."""
    values = [tuple(row.values()) for row in rows.to_pylist()]
    assert rows.schema == RESULT_SCHEMA
    summed = {row for row in values if row[0] == "queue"}
    return sorted([*summed, *(row for row in values if row[0] not in {"queue", "pulls", "note", "wake", "late"})])


@given(events=HISTORIES)
def test_queues_are_apart_and_in_order(events: Events) -> None:
    """Each queue's events are those of plain Python's grouping, sorted by time, source and number."""
    found = {}
    for name, queue in make_batch(table_of(events)).queues() if events else ():
        found[name] = [place(queue.evidence([row])[0]) for row in range(len(queue))]
    wanted: dict[tuple[Any, ...], list[Any]] = {}
    for event in events:
        wanted.setdefault((event["broker"], event["topic"], event["queue"]), []).append(place(event))

    assert found == {name: sorted(places) for name, places in wanted.items()}


@given(events=st.lists(EVENTS, min_size=1, max_size=30))
def test_answers_are_joined_with_the_first_of_their_request(events: Events) -> None:
    """The join of numbers is the join of (source, request), within each queue, and leaves no trace for the next."""
    for _name, queue in make_batch(table_of(events)).queues():
        shown = [queue.evidence([row])[0] for row in range(len(queue))]
        keys = [(event["source"], event.get("request", "")) for event in shown]
        answers = [row for row, event in enumerate(shown) if event["event"] == "answer_sent" and keys[row][1]]
        wanted = [next((row for row in answers if keys[row] == key), -1) if key[1] else -1 for key in keys]

        assert queue.answer_to(queue.request_key, "answer_sent").tolist() == wanted


@given(events=HISTORIES)
def test_pieces_hold_the_judged_events(events: Events) -> None:
    """Split, encoded, decoded and joined, every judged event is there once, whole queues in one bucket."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "SPLIT_EVENTS", 3)
        pieces = list(split(table_of(events)))
    back = fill(joined(decode(encode(piece.table)) for piece in pieces)).to_pylist()
    wanted = [event for event in table_of(events).to_pylist() if event["event"] in {*REQUEST_EVENTS, *LOG_EVENTS}]
    buckets: dict[tuple[Any, ...], set[int]] = {}
    for piece in pieces:
        for row in fill(joined([piece.table])).to_pylist():
            buckets.setdefault((row["broker"], row["topic"], row["queue"]), set()).add(piece.bucket)

    assert sorted(map(repr, back)) == sorted(map(repr, wanted))
    assert all(len(places) == 1 for places in buckets.values())


@given(events=HISTORIES, units=st.sampled_from([1, 2, 16]))
def test_shares_are_judged_as_the_whole(events: Events, units: int) -> None:
    """However odd the events are: requests in shares beside the log get the findings that all of them together get."""
    table = table_of(events)
    pieces = list(split(table))
    log = joined(piece.table for piece in pieces if piece.shard == LOG)
    requests = [piece for piece in pieces if piece.shard != LOG]
    shares = (joined(requests_of(piece, unit, units) for piece in requests) for unit in range(units))
    shared = judge_shared(log, shares, CONTEXT)

    assert told(shared) == told(judge_table(table, CONTEXT))


@given(texts=st.lists(st.text(max_size=90), min_size=1, max_size=20))
def test_a_request_has_one_share_wherever_it_is_read(texts: list[str]) -> None:
    """The share hangs on the text alone, not on what stands beside it."""
    events = [
        {"event": "hold", "after_ns": 0, "before_ns": 0, "source": "s", "sequence": 0, "request": text}
        for text in texts
    ]
    together = exchange.request_shards(table_of(events)).tolist()
    alone = [exchange.request_shards(table_of([event])).tolist()[0] for event in events]

    assert together == alone
    assert set(together) <= set(range(SHARDS))


def test_shares_are_about_even() -> None:
    """Identifiers that count up fall into all shares alike."""
    events = [
        {"event": "hold", "after_ns": 0, "before_ns": 0, "source": "s", "sequence": 0, "request": f"r{number}"}
        for number in range(8_000)
    ]
    counts = np.bincount(exchange.request_shards(table_of(events)), minlength=SHARDS)

    assert counts.min() > 350
    assert counts.max() < 700


@pytest.mark.parametrize(("events", "units"), [(0, 1), (100, 1), (101, 2), (201, 4), (10**9, SHARDS)])
def test_units_are_as_many_as_needed(events: int, units: int) -> None:
    """A power of two, at most the number of shares."""
    assert unit_count(events, 100) == units
