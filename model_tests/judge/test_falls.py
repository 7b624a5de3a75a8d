"""The least and the greatest offset that answers tell: which falls are found, between which answers; moments in ms."""

from __future__ import annotations

from typing import Any, Final

import pytest
from model_tests.judge.one_queue import Row, asked, context, event, facts, holes, ns
from model_tests.support.judge.histories import table_of

from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.survey import Context, queue_text
from longpoll_judge.rules.logs import FINDINGS_MAX, judge_offset_regression

SEND, FOUND, MISSED = 10, 0, 19
MIN, MAX = "pull.min.never_falls", "pull.max.never_falls"
PLAIN: Final = context()


def exchange(
    at: int,
    offset_min: int = 0,
    offset_max: int = 10,
    code: int | None = MISSED,
    offsets: tuple[int, ...] = (),
    *,
    came: tuple[int, int] | None = None,
    told: tuple[int, int] | None = None,
    answer: Row | None = None,
    asks: int = 11,
    **fields: Any,
) -> list[Row]:
    """A pull and its answer; by default received in [at, at + 1] and answered in [at + 2, at + 3].

    `answer` gives fields of the answer alone; with `code` None there is none.
    """
    request = asked(came or (at, at + 1), code=asks, **({"request": f"r{at}"} | fields))
    same = {name: request[name] for name in ("source", "connection", "broker", "topic", "queue", "request")}
    ends = {"offset_min": offset_min, "offset_max": offset_max, "offset_next": offset_max, "offsets": list(offsets)}
    moment = told or (at + 2, at + 3)
    reply = event("answer_sent", moment, code=code, **(same | ends | (answer or {})))
    return [request, *([] if code is None else [reply])]


def judged(*splits: list[Row], known: Context = PLAIN) -> tuple[list[Finding], int]:
    """The findings about some splits of a history, and how many are left out."""
    made = [table_of(each) for each in splits]
    found, left_out = judge_offset_regression(lambda: iter(enumerate(made)), known)
    return [one for one in found if one.verdict != "observed"], left_out


def falls(*exchanges: list[Row], known: Context = PLAIN) -> list[tuple[str, str, str]]:
    """Each finding: its clause, with a `?` when it is not certain, the earlier answer's request and its own."""
    found, left_out = judged([row for each in exchanges for row in each], known=known)
    assert (left_out, {each.property for each in found} <= {"answer_is_right"}) == (0, True)
    return [
        (
            each.clause + "?" * (each.verdict == "unknown"),
            next(shown["request"] for shown in each.evidence if shown["request"] != each.request),
            each.request,
        )
        for each in found
    ]


# -- what falls ------------------------------------------------------------------------------------------------------


def test_ends_that_stay_or_rise_are_in_order() -> None:
    """Nor is anything said of a history without answers."""
    assert falls(exchange(0, 3, 7), exchange(10, 3, 7), exchange(20, 4, 7), exchange(30, 5, 9)) == []
    assert judged([]) == ([], 0)
    assert judged(exchange(0, code=None)) == ([], 0)


def test_an_end_that_falls_is_found_with_both_exchanges() -> None:
    """Its words say both numbers, and its evidence is in the order of time."""
    found, _left_out = judged([*exchange(0, 3, 9), *exchange(10, 2, 9)])
    (one,) = found
    assert (one.clause, one.verdict, one.topic, one.queue, one.request) == (MIN, "violated", "T", 0, "r10")
    words = "an answer tells offset_min 2, and one sent on its connection before it was asked for shows 3"
    assert one.why == words
    told = [(event["event"], event["request"]) for event in one.evidence]
    both = ("request_received", "answer_sent")
    assert told == [(event, request) for request in ("r0", "r10") for event in both]
    found, _left_out = judged([*exchange(0, 3, 9), *exchange(10, 3, 8)])
    assert [(each.clause, each.why) for each in found] == [
        (MAX, "an answer tells offset_max 8, and one sent on its connection before it was asked for shows 9")
    ]


def test_evidence_is_in_the_order_of_time() -> None:
    """An answer's timestamp may be before its request's if one of two clocks is behind."""
    found, _left_out = judged([*exchange(0, 3), *exchange(50, 2, told=(40, 45))])
    told = [(event["request"], event["after_ns"]) for event in found[0].evidence]
    assert told == [("r0", ns(0)), ("r0", ns(2)), ("r50", ns(40)), ("r50", ns(50))]


def test_both_ends_may_fall() -> None:
    """Each is a finding: those of the minimum come first."""
    assert falls(exchange(0, 3, 9), exchange(10, 2, 8)) == [(MIN, "r0", "r10"), (MAX, "r0", "r10")]


def test_splits_are_one_history() -> None:
    found, _left_out = judged(exchange(0, 3, 9), [], exchange(10, 2, 9))
    assert [[event["request"] for event in each.evidence] for each in found] == [["r0", "r0", "r10", "r10"]]
    pull, answer = exchange(10, 2, 9)
    apart, _left_out = judged([answer], exchange(0, 3, 9), [pull])
    requests = [[shown["request"] for shown in each.evidence] for each in apart]
    assert requests == [["r0", "r0", "r10", "r10"]]


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_every_answer_that_tells_of_a_read_counts(code: int) -> None:
    """As the earlier one and as the later."""
    assert falls(exchange(0, 3, code=code), exchange(10, 2)) == [(MIN, "r0", "r10")]
    assert falls(exchange(0, 3), exchange(10, 2, code=code)) == [(MIN, "r0", "r10")]


def test_other_answers_tell_nothing() -> None:
    """Refusals, answers to other requests, and those whose ends contradict each other or are not there."""
    damaged = (exchange(0, 3, 2), exchange(0, 12, 11), exchange(0, -1, 20), exchange(0, 3, 9, code=None))
    for other in (exchange(0, 3, code=1), exchange(0, 3, asks=SEND), *damaged):
        assert falls(other, exchange(10, 0, 0)) == []
    for other in (exchange(10, 0, code=1), exchange(10, 0, asks=SEND), exchange(10, 2, 1), exchange(10, -1, 5)):
        assert falls(exchange(0, 3, 9), other) == []
    assert falls(exchange(0, 5, 5), exchange(10, 0, 5)) == [(MIN, "r0", "r10")]
    assert falls(exchange(0, 1, 10), exchange(10, 0, 0)) == [(MIN, "r0", "r10"), (MAX, "r0", "r10")]


def test_the_other_pull_codes_count() -> None:
    """A lite pull reads as the plain one does."""
    assert falls(exchange(0, 3, asks=361), exchange(10, 2)) == [(MIN, "r0", "r10")]


# -- what is delivered -----------------------------------------------------------------------------------------------


def test_a_message_that_was_delivered_was_visible() -> None:
    found, _left_out = judged([*exchange(0, 0, 5, FOUND, (3, 8, 7)), *exchange(10, 0, 8)])
    assert [(each.clause, each.why.rpartition(" ")[2]) for each in found] == [(MAX, "9")]
    assert falls(exchange(0, 0, 5, FOUND, (3, 7)), exchange(10, 0, 8)) == []
    assert falls(exchange(0, 0, 9, FOUND, (3,)), exchange(10, 0, 8)) == [(MAX, "r0", "r10")]


def test_only_found_delivers() -> None:
    assert falls(exchange(0, 0, 5, MISSED, (8,)), exchange(10, 0, 6)) == []


def test_what_a_later_answer_delivers_does_not_help_it() -> None:
    """Asked is the end that it tells."""
    assert falls(exchange(0, 0, 9), exchange(10, 0, 8, FOUND, (8,))) == [(MAX, "r0", "r10")]


def test_each_list_belongs_to_its_answer() -> None:
    answers = (
        exchange(0, 0, 1, FOUND, (2, 3), queue=1),
        exchange(20, 0, 1, MISSED, (90, 91), queue=2),
        exchange(40, 0, 1, FOUND, (), queue=3),
        exchange(60, 0, 1, FOUND, (20, 21, 22), queue=4),
        exchange(80, 0, 1, FOUND, (9,), queue=5),
    )
    for queue, end in ((1, 4), (2, 1), (3, 1), (4, 23), (5, 10)):
        assert falls(*answers, exchange(100, 0, end, queue=queue)) == []
        expected = f"r{20 * (queue - 1)}"
        assert falls(*answers, exchange(100, 0, end - 1, queue=queue)) == [(MAX, expected, "r100")]


# -- which are compared ----------------------------------------------------------------------------------------------


def test_an_earlier_answer_was_sent_before_the_pull_came() -> None:
    """For certain: neither order is that of the other's time."""
    later = exchange(100, 2)
    assert falls(exchange(0, 3, told=(90, 99)), later) == [(MIN, "r0", "r100")]
    assert falls(exchange(0, 3, told=(90, 100)), later) == []
    assert falls(exchange(0, 3, told=(90, 98)), exchange(100, 2, came=(99, 101))) == [(MIN, "r0", "r100")]


def test_the_highest_end_before_it_is_compared() -> None:
    """Not the last one."""
    assert falls(exchange(0, 4, 9), exchange(10, 6, 9), exchange(20, 7, 9, code=1), exchange(30, 5, 9)) == [
        (MIN, "r10", "r30")
    ]


def test_one_answer_that_tells_too_much_is_told_once() -> None:
    """The earliest of the falls stands for them; a different fall is reported too."""
    high, low = exchange(0, 5), exchange(20, 2)
    assert falls(high, low, exchange(10, 3), exchange(30, 4)) == [(MIN, "r0", "r10")]
    assert falls(high, exchange(10, 3), exchange(20, 9), exchange(30, 8)) == [(MIN, "r0", "r10"), (MIN, "r20", "r30")]
    assert falls(exchange(20, 9), exchange(30, 8), high, exchange(10, 3)) == [(MIN, "r0", "r10"), (MIN, "r20", "r30")]


@pytest.mark.parametrize("field", ["connection", "source", "broker", "topic", "queue"])
def test_what_lies_elsewhere_is_not_compared(field: str) -> None:
    """Another connection, source, broker, topic or queue."""
    other: dict[str, Any] = {field: 1 if field == "queue" else "t"}
    assert falls(exchange(0, 3), exchange(10, 2, **other)) == []
    assert falls(exchange(0, 3, **other), exchange(10, 2, **other)) == [(MIN, "r0", "r10")]


def test_without_a_connection_nothing_is_compared() -> None:
    assert falls(exchange(0, 3, connection=""), exchange(10, 2, connection="")) == []


def test_requests_without_a_name_are_left_out() -> None:
    """And answers of which no pull is in the record."""
    assert falls(exchange(0, 3, request=""), exchange(10, 2)) == []
    assert falls(exchange(0, 3), exchange(10, 2, request="")) == []
    assert falls(exchange(0, 3), exchange(10, 2), [asked(5, "r10", code=SEND)]) == []


def test_an_answer_is_about_its_request_s_queue() -> None:
    """It need not name it; one that names another is not judged."""
    assert falls(exchange(0, 3, answer={"queue": -1}), exchange(10, 2, answer={"queue": -1})) == [(MIN, "r0", "r10")]
    assert falls(exchange(0, 3, queue=4, answer={"queue": -1}), exchange(10, 2, queue=4)) == [(MIN, "r0", "r10")]
    assert falls(exchange(0, 3), exchange(10, 2, answer={"queue": 1})) == []
    assert falls(exchange(0, 3, answer={"queue": 1}), exchange(10, 2)) == []
    assert falls(exchange(0, 3, queue=1, answer={"queue": 0}), exchange(10, 2, queue=1, answer={"queue": 0})) == []


def test_a_deleted_topic_begins_anew() -> None:
    """An end of the life before is not compared."""
    known = context(deleted={("b", "T"): holes((6, 8))})
    assert falls(exchange(0, 3), exchange(10, 2), known=known) == []
    assert falls(exchange(10, 3), exchange(20, 2), known=known) == [(MIN, "r10", "r20")]


def test_a_visible_end_that_a_source_shows_is_judged_by_that() -> None:
    """The minimum is judged, and so are other queues."""
    known = context(shown=frozenset({("b", "T", 0)}))
    assert falls(exchange(0, 3, 9), exchange(10, 2, 8), known=known) == [(MIN, "r0", "r10")]
    assert falls(exchange(0, 3, 9, queue=1), exchange(10, 3, 8, queue=1), known=known) == [(MAX, "r0", "r10")]


# -- how certain, how many -------------------------------------------------------------------------------------------


def test_moments_that_order_nothing_make_it_uncertain() -> None:
    unsteady = {"s": facts(is_steady=False)}
    assert falls(exchange(0, 3), exchange(10, 2), known=context(sources=unsteady)) == [(MIN + "?", "r0", "r10")]
    assert falls(exchange(0, 3), exchange(10, 2), known=context(sources={})) == [(MIN, "r0", "r10")]


@pytest.mark.parametrize("more", [0, 2])
def test_the_first_findings_of_each_clause_are_listed(more: int) -> None:
    """By their moments; the others are counted."""
    count = FINDINGS_MAX + more
    exchanges = []
    for queue in range(count):
        exchanges += [*exchange(10 * queue, 3, 9, queue=queue), *exchange(1_000 + 10 * queue, 2, 8, queue=queue)]
    found, left_out = judged(exchanges)
    listed = min(count, FINDINGS_MAX)
    expected = [(clause, queue) for clause in (MIN, MAX) for queue in range(listed)]
    assert [(each.clause, each.queue) for each in found] == expected
    assert left_out == 2 * max(more, 0)


# -- one life of the broker ------------------------------------------------------------------------------------------

FIRST: Final = [exchange(0, 1), exchange(20, 3)]
"""On connection c, which certainly lasts from 3 to 22."""


def other(at: int = 10, **fields: Any) -> list[list[Row]]:
    """Two answers on connection d, of which the last tells a lower minimum than those on c."""
    return [exchange(at, 1, connection="d", **fields), exchange(40, 2, connection="d", **fields)]


@pytest.mark.parametrize(
    ("rows", "known", "is_one"),
    [
        ([*FIRST, *other()], {}, True),
        ([*FIRST, *other(source="t")], {}, True),
        ([*FIRST, [event("connection_opened", 10, connection="d")], other()[1]], {}, True),
        ([*FIRST, other()[1]], {}, False),
        ([*FIRST, *other(25)], {}, False),
        ([FIRST[0], exchange(20, 3, told=(22, 30)), *other(25)], {}, False),
        ([*FIRST, *other(source="t")], {"sources": {"s": facts(), "t": facts(is_steady=False)}}, False),
        ([*FIRST, *other(source="t")], {"unsteady_brokers": frozenset({"b"})}, False),
        ([exchange(0, 1, broker=""), exchange(20, 3, broker=""), *other(source="t", broker="")], {}, False),
        ([*FIRST, *other()], {"closes": {("s", "c"): (ns(21), ns(21))}}, False),
        ([*FIRST, *other()], {"closed_often": {("s", "c"): ((ns(21), ns(21)), (ns(50), ns(50)))}}, False),
        ([*FIRST, *other()], {"closes": {("s", "c"): (ns(50), ns(50))}}, True),
        ([*FIRST, exchange(12, 1, connection="e"), exchange(14, 1, connection="e"), *other(18)], {}, True),
    ],
    ids=[
        *("overlap", "two sources", "opened", "one answer", "gap", "perhaps", "unsteady source", "unsteady broker"),
        *("no name", "closed", "closed twice", "closed later", "one within another"),
    ],
)  # fmt: skip
def test_connections_that_overlap_are_of_one_life(rows: list[list[Row]], known: Row, *, is_one: bool) -> None:
    """The minimum never falls in it; two that may not overlap, or whose moments order nothing, say nothing."""
    found, _left_out = judged([row for each in rows for row in each], known=context(**known))
    assert [(each.clause, each.verdict, each.request) for each in found] == [(MIN, "violated", "r40")] * is_one


HOUR_MS: Final = 3_600_000
REMOVED: Final = queue_text(("b", "T", 0))


@pytest.mark.parametrize(
    ("message", "answer", "known", "clause"),
    [
        (12, exchange(20), {}, MAX),
        (12, exchange(8), {}, ""),
        (2, exchange(20, 3), {}, "pull.min.kept"),
        (2, exchange(20, 3), {"is_own": True}, ""),
        (3, exchange(20, 3), {}, ""),
        (2, exchange(HOUR_MS - 4, 3), {}, "pull.min.kept"),
        (2, exchange(HOUR_MS, 3), {}, ""),
        (2, exchange(-20, 3), {}, ""),
    ],
)
def test_an_acknowledged_message_that_is_gone_is_unknown(
    message: int, answer: list[Row], known: Row, clause: str
) -> None:
    """It is behind the end once it had time to be visible, or below the minimum within an hour."""
    rows = [event("message_acknowledged", 0, queue_offset=message, request="m"), *answer]
    found = falls(rows, known=context(**known))
    assert [each[0] for each in found] == ([clause + "?"] if clause else [])
    if clause == MAX:  # Without a name, two observers may watch two brokers.
        assert falls([row | {"broker": ""} for row in rows]) == []


# -- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "passed", "end", "passes_at", "known", "verdict"),
    [
        ("A", "A", 10, 20, {}, "violated"),
        ("A", "*", 10, 20, {}, "violated"),
        ("A", "A || B", 10, 20, {}, "violated"),
        ("A || B", "A", 10, 20, {}, ""),
        ("*", "A", 10, 20, {}, ""),
        ("A", "A", 5, 20, {}, "unknown"),
        ("A", "A", 5, 20, {"is_own": True}, "violated"),
        ("A", "A", 5, -20, {"removed": {REMOVED: 4}}, "violated"),
        ("A", "A", 5, 20, {"removed": {REMOVED: 4}}, ""),
        ("A", "A", 5, 20, {"removed": {REMOVED: 3}}, "unknown"),
        ("A", "A", 10, 20, {"sources": {"s": facts(is_steady=False)}}, "unknown"),
        ("A", "A", 10, 20, {"shown": frozenset({("b", "T", 0)})}, ""),
    ],
)
def test_what_one_pull_is_given_is_not_passed_over_for_another(
    *, given: str, passed: str, end: int, passes_at: int, known: Row, verdict: str
) -> None:
    """Unless that takes less, or retention may have removed the message in between."""
    rows = [
        exchange(0, code=FOUND, offsets=(3,), answer={"offset_next": 4}, expression=given),
        exchange(passes_at, code=20, answer={"offset_next": end}, expression=passed, connection="d"),
    ]
    found, _left_out = judged([row for each in rows for row in each], known=context(**known))
    assert [(each.clause, each.verdict) for each in found] == ([("pull.filter.agrees", verdict)] if verdict else [])
