"""An answer without a queue is about its request's; where several requests share its identifier, about none."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from model_tests.judge.one_queue import Row, asked, context, event, told
from model_tests.support.judge.histories import added_up, cut, in_windows, table_of, windows_of

from longpoll_judge.columns.batch import place_answers
from longpoll_judge.run.queue_verdict import NOTE_ELSEWHERE, NOTE_REPEATED, Found, judge_table

NOWHERE: Final[Row] = {"broker": "", "topic": "", "queue": -1}
HELD: Final = [asked(0), asked(300, queue=1)]
"""Two pulls of one identifier, in two queues; each is to be answered within 100 ms."""
NOBODYS: Final[dict[str, list[Row]]] = {
    "late for one of them": [*HELD, told(350, **NOWHERE)],
    "late for both": [*HELD, told(900, **NOWHERE)],
    "early for both": [asked(50), asked(60, queue=1), told(40, **NOWHERE)],
    "one for each": [*HELD, told(90, **NOWHERE), told(390, **NOWHERE)],
    "of another broker": [asked(0), asked(300, broker="c"), told(900, **NOWHERE)],
    "of a code that no broker gives": [asked(0, queue=-1), asked(300), told(350, 77, queue=-1)],
    "of a code that another request may get": [asked(0, queue=-1), asked(10, code=14), told(50, 22, queue=-1)],
    "of a request that names no queue itself": [
        asked(0),
        asked(990, queue=-1),
        told(900, queue=-1),
        told(50, queue=-1),
    ],
}


def ordered(rows: list[Row]) -> pa.Table:
    """The events as a table, in order of time."""
    return table_of(sorted(rows, key=lambda row: int(row["after_ns"])))


def said(rows: pa.Table) -> tuple[list[str], dict[str, int]]:
    """The clauses that are certainly broken, and the notes."""
    found = [
        msgspec.json.decode(row["text"], type=Found).finding for row in rows.to_pylist() if row["kind"] == "finding"
    ]
    notes = {row["text"]: row["count"] for row in rows.to_pylist() if row["kind"] == "note"}
    return [finding.clause for finding in found if finding.verdict == "violated"], notes


def in_splits(splits: list[pa.Table]) -> list[tuple[Any, ...]]:
    """The findings about the splits, each a window."""
    return in_windows(windows_of(splits, unplaced=True), context())


@pytest.mark.parametrize("rows", NOBODYS.values(), ids=NOBODYS)
def test_an_answer_that_is_nobodys_shows_nothing(rows: list[Row]) -> None:
    """Nothing is held against either request, and the identifier is noted."""
    assert said(judge_table(place_answers(ordered(rows)), context())) == ([], {NOTE_REPEATED: 1})


TWICE: Final = {"of one queue, received twice": [asked(0), asked(300), told(900, **NOWHERE)]}


@pytest.mark.parametrize("rows", [*NOBODYS.values(), *TWICE.values()], ids=[*NOBODYS, *TWICE])
def test_it_is_nobodys_in_windows_too(rows: list[Row]) -> None:
    """However the history is cut, and whichever of the requests is at hand with the answer."""
    table = ordered(rows)
    whole = added_up(judge_table(place_answers(table), context()))

    assert [in_splits(cut(table, [border])) for border in range(len(rows))] == [whole] * len(rows)
    assert in_splits([table.slice(place, 1) for place in range(len(rows))]) == whole


def test_an_answer_is_placed_where_it_was_asked_for() -> None:
    """By one request, or by several of one queue; a request of another source, or without a name, is none of them."""
    rows = [
        asked(0),
        asked(1, source="t", queue=1),
        asked(2, "", queue=2),
        told(900, **NOWHERE),
        told(9, 19, "", queue=-1),
    ]
    table = place_answers(ordered(rows))
    again = place_answers(ordered([*rows, asked(3)]))

    assert table.select(["broker", "topic", "queue"]).to_pylist()[-1] == {"broker": "b", "topic": "T", "queue": 0}
    assert again["queue"].to_pylist() == [0, 1, 2, 0, -1, 0]
    assert said(judge_table(table, context()))[0] == ["pull.deadline.met", "pull.answered"]


HOLD: Final = event("hold", 301, request="r")
OF_ONE_QUEUE: Final[dict[str, list[Row]]] = {
    "answered in the other order": [
        *(asked(0), asked(10, offset=5)),
        *(told(20, offset_next=5, offset_max=5), told(90)),
    ],
    "both held": [asked(0), event("hold", 1, request="r"), told(90), asked(300), HOLD, told(390)],
    "the first answered at once": [
        *(asked(0), told(50, 0, offsets=[3], offset_next=4, offset_max=4)),
        *(asked(300), HOLD, event("expire", 389, request="r"), told(390)),
    ],
    "the first may not be held": [asked(0, may_hold=False), told(1), asked(300), HOLD, told(390)],
    "the other is no pull": [asked(0, code=14), told(0.5, 22), asked(300), told(390)],
}
"""Two requests of one identifier, each treated as it should be."""


@pytest.mark.parametrize("rows", OF_ONE_QUEUE.values(), ids=OF_ONE_QUEUE)
def test_of_two_requests_of_one_queue_neither_is_judged(rows: list[Row]) -> None:
    """It is unknown which of them was held and answered, so no violation is reported."""
    table = ordered(rows)
    whole = judge_table(table, context())

    assert said(whole) == ([], {NOTE_REPEATED: 1})
    assert in_splits([table.slice(place, 1) for place in range(len(rows))]) == added_up(whole)


ELSEWHERE: Final[dict[str, Row]] = {
    "another topic": NOWHERE | {"topic": "other"},
    "another broker": NOWHERE | {"broker": "c"},
    "the topic, and another broker": NOWHERE | {"broker": "c", "topic": "T"},
}


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE)
def test_one_that_names_another_topic_or_broker_is_as_one_of_another_queue(place: Row) -> None:
    """The pull is answered, whichever of both names is wrong, and not judged: what it was asked is not known."""
    table = ordered([asked(0), told(900, **place)])
    whole = added_up(judge_table(place_answers(table), context()))

    assert said(judge_table(place_answers(table), context())) == ([], {NOTE_ELSEWHERE: 1})
    assert [in_splits(cut(table, [0])), in_splits([table.slice(0, 1), table.slice(1, 1)])] == [whole, whole]


@pytest.mark.parametrize("place", [{"topic": "T"}, {"broker": "b"}, {"topic": "T", "broker": "b"}], ids=str)
def test_one_that_names_no_other_is_placed(place: Row) -> None:
    table = place_answers(ordered([asked(0), told(900, **(NOWHERE | place))]))
    unnamed = place_answers(ordered([asked(0, broker=""), told(900, **(NOWHERE | place))]))

    assert (table["queue"].to_pylist(), unnamed["queue"].to_pylist()) == ([0, 0], [0, 0])
