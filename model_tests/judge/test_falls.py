"""The ends that answers tell, by themselves: which falls are found, between which answers, and which are nobody's.

Moments are nanoseconds. Leaves out what one answer says, and the lives of a queue (`test_lives`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest
from attrs import evolve, frozen

from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.holes import holes_of
from longpoll_judge.evidence.survey import Context, SourceFacts
from longpoll_judge.read.schema import PLAIN_SCHEMA, fill
from longpoll_judge.rules.falls import FINDINGS_MAX, judge_falls

PULL: Final = 11
SEND: Final = 10
FOUND: Final = 0
MISSED: Final = 19
MIN, MAX = "pull.min.never_falls", "pull.max.never_falls"
PLAIN: Final = Context(
    0, 0, answers_on_stop=False, sources={name: SourceFacts(1_000_000, None) for name in ("s", "t")}, closes={}
)


@frozen
class Exchange:
    """A pull and its answer; by default received in [at, at + 1] and answered in [at + 2, at + 3]."""

    at: int
    offset_min: int = 0
    offset_max: int = 10
    code: int | None = MISSED
    """Of the answer; None of a pull without one."""
    offsets: tuple[int, ...] = ()
    asked: tuple[int, int] | None = None
    told: tuple[int, int] | None = None
    request_code: int = PULL
    request: str | None = None
    """By default one of its own."""
    connection: str = "c"
    source: str = "s"
    broker: str = "b"
    topic: str = "T"
    queue: int = 0
    answer_queue: int | None = None
    """Which the answer names; by default the same."""


def events_of(one: Exchange) -> list[dict[str, Any]]:
    """The two events, or one."""
    request = f"r{one.at}" if one.request is None else one.request
    common = {"source": one.source, "connection": one.connection, "request": request, "broker": one.broker}
    asked, told = one.asked or (one.at, one.at + 1), one.told or (one.at + 2, one.at + 3)
    place = {"topic": one.topic, "queue": one.queue}
    answered = place if one.answer_queue is None else {"topic": one.topic, "queue": one.answer_queue}
    ends = {"offset_min": one.offset_min, "offset_max": one.offset_max, "offset_next": one.offset_max}
    receipt = {"event": "request_received", "code": one.request_code, "after_ns": asked[0], "before_ns": asked[1]}
    answer = {"event": "answer_sent", "code": one.code, "after_ns": told[0], "before_ns": told[1]}
    rows = [common | place | receipt | {"sequence": 2 * one.at}]
    if one.code is not None:
        rows.append(common | answered | answer | ends | {"offsets": list(one.offsets), "sequence": 2 * one.at + 1})
    return rows


def judged(*slices: list[Exchange], known: Context = PLAIN) -> tuple[list[Finding], int]:
    """What is found of some slices of a history, and how much is left out."""
    made = [
        fill(pa.Table.from_pylist([event for one in each for event in events_of(one)], schema=PLAIN_SCHEMA))
        for each in slices
    ]

    def tables() -> Iterator[tuple[int, pa.Table]]:
        yield from enumerate(made)

    return judge_falls(tables, known)


def falls(*exchanges: Exchange, known: Context = PLAIN) -> list[tuple[str, str, str]]:
    """Each finding: its clause, with a `?` when it is not certain, the earlier answer's request and its own."""
    found, left_out = judged([*exchanges], known=known)
    assert left_out == 0
    told = []
    for each in found:
        assert each.property == "answer_is_right"
        earlier = next(event["request"] for event in each.evidence if event["request"] != each.request)
        told.append((each.clause + "?" * (each.verdict == "unknown"), earlier, each.request))
    return told


# -- what falls ------------------------------------------------------------------------------------------------------


def test_ends_that_stay_or_rise_are_in_order() -> None:
    """Nor is anything said of a history without answers."""
    assert falls(Exchange(0, 3, 7), Exchange(10, 3, 7), Exchange(20, 4, 7), Exchange(30, 5, 9)) == []
    assert judged([]) == ([], 0)
    assert judged([Exchange(0, code=None)]) == ([], 0)


def test_an_end_that_falls_is_found_with_both_exchanges() -> None:
    """Its words say both numbers, and its evidence is in the order of time."""
    found, _left_out = judged([Exchange(0, 3, 9), Exchange(10, 2, 9)])
    (one,) = found
    assert (one.clause, one.verdict, one.topic, one.queue, one.request) == (MIN, "violated", "T", 0, "r10")
    words = "an answer tells offset_min 2, and one sent on its connection before it was asked for shows 3"
    assert one.why == words
    told = [(event["event"], event["request"]) for event in one.evidence]
    both = ("request_received", "answer_sent")
    assert told == [(event, request) for request in ("r0", "r10") for event in both]
    found, _left_out = judged([Exchange(0, 3, 9), Exchange(10, 3, 8)])
    assert [(each.clause, each.why) for each in found] == [
        (MAX, "an answer tells offset_max 8, and one sent on its connection before it was asked for shows 9")
    ]


def test_evidence_is_in_the_order_of_time() -> None:
    """An answer may be told with a moment before its request's, when one of two clocks is behind."""
    found, _left_out = judged([Exchange(0, 3), Exchange(50, 2, told=(40, 45))])
    told = [(event["request"], event["after_ns"]) for event in found[0].evidence]
    assert told == [("r0", 0), ("r0", 2), ("r50", 40), ("r50", 50)]


def test_both_ends_may_fall() -> None:
    """Each is a finding: those of the minimum come first."""
    assert falls(Exchange(0, 3, 9), Exchange(10, 2, 8)) == [(MIN, "r0", "r10"), (MAX, "r0", "r10")]


def test_slices_are_one_history() -> None:
    """An answer's request may stand in another slice, and so may the answer before it."""
    found, _left_out = judged([Exchange(0, 3, 9)], [], [Exchange(10, 2, 9)])
    assert [[event["request"] for event in each.evidence] for each in found] == [["r0", "r0", "r10", "r10"]]
    reply = events_of(Exchange(10, 2, 9))
    tables = [fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA)) for rows in (reply[1:], reply[:1])]
    first = fill(pa.Table.from_pylist(events_of(Exchange(0, 3, 9)), schema=PLAIN_SCHEMA))
    apart, _left_out = judge_falls(lambda: iter(enumerate([tables[0], first, tables[1]])), PLAIN)
    assert apart == found


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_every_answer_that_tells_of_a_read_counts(code: int) -> None:
    """As the earlier one and as the later."""
    assert falls(Exchange(0, 3, code=code), Exchange(10, 2)) == [(MIN, "r0", "r10")]
    assert falls(Exchange(0, 3), Exchange(10, 2, code=code)) == [(MIN, "r0", "r10")]


def test_other_answers_tell_nothing() -> None:
    """Refusals, answers to other requests, and those whose ends contradict each other or are not there."""
    damaged = (Exchange(0, 3, 2), Exchange(0, 12, 11), Exchange(0, -1, 20), Exchange(0, 3, 9, code=None))
    for other in (Exchange(0, 3, code=1), Exchange(0, 3, request_code=SEND), *damaged):
        assert falls(other, Exchange(10, 0, 0)) == []
    for other in (Exchange(10, 0, code=1), Exchange(10, 0, request_code=SEND), Exchange(10, 2, 1), Exchange(10, -1, 5)):
        assert falls(Exchange(0, 3, 9), other) == []
    assert falls(Exchange(0, 5, 5), Exchange(10, 0, 5)) == [(MIN, "r0", "r10")]
    assert falls(Exchange(0, 1, 10), Exchange(10, 0, 0)) == [(MIN, "r0", "r10"), (MAX, "r0", "r10")]


def test_the_other_pull_codes_count() -> None:
    """A lite pull reads as the plain one does."""
    assert falls(Exchange(0, 3, request_code=361), Exchange(10, 2)) == [(MIN, "r0", "r10")]


# -- what is delivered -----------------------------------------------------------------------------------------------


def test_a_message_that_was_delivered_was_visible() -> None:
    """Whatever that answer tells of the end; the last of its messages counts."""
    found, _left_out = judged([Exchange(0, 0, 5, FOUND, (3, 8, 7)), Exchange(10, 0, 8)])
    assert [(each.clause, each.why.rpartition(" ")[2]) for each in found] == [(MAX, "9")]
    assert falls(Exchange(0, 0, 5, FOUND, (3, 7)), Exchange(10, 0, 8)) == []
    assert falls(Exchange(0, 0, 9, FOUND, (3,)), Exchange(10, 0, 8)) == [(MAX, "r0", "r10")]


def test_only_found_delivers() -> None:
    """A list beside another code is damage of its own."""
    assert falls(Exchange(0, 0, 5, MISSED, (8,)), Exchange(10, 0, 6)) == []


def test_what_a_later_answer_delivers_does_not_help_it() -> None:
    """Asked is the end that it tells."""
    assert falls(Exchange(0, 0, 9), Exchange(10, 0, 8, FOUND, (8,))) == [(MAX, "r0", "r10")]


def test_each_list_belongs_to_its_answer() -> None:
    """Of several in one slice, some empty, some beside other codes."""
    answers = (
        Exchange(0, 0, 1, FOUND, (2, 3), queue=1),
        Exchange(20, 0, 1, MISSED, (90, 91), queue=2),
        Exchange(40, 0, 1, FOUND, (), queue=3),
        Exchange(60, 0, 1, FOUND, (20, 21, 22), queue=4),
        Exchange(80, 0, 1, FOUND, (9,), queue=5),
    )
    for queue, end in ((1, 4), (2, 1), (3, 1), (4, 23), (5, 10)):
        assert falls(*answers, Exchange(100, 0, end, queue=queue)) == []
        expected = f"r{20 * (queue - 1)}"
        assert falls(*answers, Exchange(100, 0, end - 1, queue=queue)) == [(MAX, expected, "r100")]


# -- which are compared ----------------------------------------------------------------------------------------------


def test_an_earlier_answer_was_sent_before_the_pull_came() -> None:
    """For certain: neither order is that of the other's time."""
    later = Exchange(100, 2)
    assert falls(Exchange(0, 3, told=(90, 99)), later) == [(MIN, "r0", "r100")]
    assert falls(Exchange(0, 3, told=(90, 100)), later) == []
    assert falls(Exchange(0, 3, told=(90, 98)), evolve(later, asked=(99, 101))) == [(MIN, "r0", "r100")]


def test_the_highest_end_before_it_is_compared() -> None:
    """Not the last one."""
    assert falls(Exchange(0, 4, 9), Exchange(10, 6, 9), Exchange(20, 7, 9, code=1), Exchange(30, 5, 9)) == [
        (MIN, "r10", "r30")
    ]


def test_one_answer_that_tells_too_much_is_told_once() -> None:
    """The first of those that fall by it stands for them, by their moments; another fall is told besides."""
    high, low = Exchange(0, 5), Exchange(20, 2)
    assert falls(high, low, Exchange(10, 3), Exchange(30, 4)) == [(MIN, "r0", "r10")]
    assert falls(high, Exchange(10, 3), Exchange(20, 9), Exchange(30, 8)) == [(MIN, "r0", "r10"), (MIN, "r20", "r30")]
    assert falls(Exchange(20, 9), Exchange(30, 8), high, Exchange(10, 3)) == [(MIN, "r0", "r10"), (MIN, "r20", "r30")]


@pytest.mark.parametrize("field", ["connection", "source", "broker", "topic", "queue"])
def test_what_lies_elsewhere_is_not_compared(field: str) -> None:
    """Another connection, source, broker, topic or queue."""
    other: dict[str, Any] = {field: 1 if field == "queue" else "t"}
    assert falls(Exchange(0, 3), evolve(Exchange(10, 2), **other)) == []
    assert falls(evolve(Exchange(0, 3), **other), evolve(Exchange(10, 2), **other)) == [(MIN, "r0", "r10")]


def test_without_a_connection_nothing_is_compared() -> None:
    """Then nobody knows that the earlier answer was sent first."""
    assert falls(Exchange(0, 3, connection=""), Exchange(10, 2, connection="")) == []


def test_requests_without_a_name_are_left_out() -> None:
    """And answers of which no pull is in the record."""
    assert falls(Exchange(0, 3, request=""), Exchange(10, 2)) == []
    assert falls(Exchange(0, 3), Exchange(10, 2, request="")) == []


def test_an_answer_is_about_its_request_s_queue() -> None:
    """It need not name it; one that names another is not judged."""
    assert falls(Exchange(0, 3, answer_queue=-1), Exchange(10, 2, answer_queue=-1)) == [(MIN, "r0", "r10")]
    assert falls(Exchange(0, 3, queue=4, answer_queue=-1), Exchange(10, 2, queue=4)) == [(MIN, "r0", "r10")]
    assert falls(Exchange(0, 3), Exchange(10, 2, answer_queue=1)) == []
    assert falls(Exchange(0, 3, answer_queue=1), Exchange(10, 2)) == []
    assert falls(Exchange(0, 3, queue=1, answer_queue=0), Exchange(10, 2, queue=1, answer_queue=0)) == []


def test_a_deleted_topic_begins_anew() -> None:
    """An end of the life before is not compared."""
    known = evolve(PLAIN, deleted={("b", "T"): holes_of([(6, 8)])})
    assert falls(Exchange(0, 3), Exchange(10, 2), known=known) == []
    assert falls(Exchange(10, 3), Exchange(20, 2), known=known) == [(MIN, "r10", "r20")]


def test_a_visible_end_that_a_source_shows_is_judged_by_that() -> None:
    """The minimum is judged all the same, and so are other queues."""
    known = evolve(PLAIN, shown=frozenset({("b", "T", 0)}))
    assert falls(Exchange(0, 3, 9), Exchange(10, 2, 8), known=known) == [(MIN, "r0", "r10")]
    assert falls(Exchange(0, 3, 9, queue=1), Exchange(10, 3, 8, queue=1), known=known) == [(MAX, "r0", "r10")]


# -- how certain, how many -------------------------------------------------------------------------------------------


def test_moments_that_order_nothing_make_it_uncertain() -> None:
    """Those of the later answer's source; one that the record does not tell of is taken for steady."""
    unsteady = {"s": SourceFacts(1_000_000, None, is_steady=False)}
    assert falls(Exchange(0, 3), Exchange(10, 2), known=evolve(PLAIN, sources=unsteady)) == [(MIN + "?", "r0", "r10")]
    assert falls(Exchange(0, 3), Exchange(10, 2), known=evolve(PLAIN, sources={})) == [(MIN, "r0", "r10")]


@pytest.mark.parametrize("more", [0, 2])
def test_the_first_findings_of_each_clause_are_listed(more: int) -> None:
    """By their moments; the others are counted."""
    count = FINDINGS_MAX + more
    exchanges = []
    for queue in range(count):
        exchanges += [Exchange(10 * queue, 3, 9, queue=queue), Exchange(1_000 + 10 * queue, 2, 8, queue=queue)]
    found, left_out = judged(exchanges)
    listed = min(count, FINDINGS_MAX)
    expected = [(clause, queue) for clause in (MIN, MAX) for queue in range(listed)]
    assert [(each.clause, each.queue) for each in found] == expected
    assert left_out == 2 * max(more, 0)
