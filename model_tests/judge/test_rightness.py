"""Contents of answers to pulls, one queue and one clause at a time, at each limit."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve
from model_tests.judge.one_queue import Row, asked, case_of, context, event, facts, holes, ns, told

from longpoll_judge.contract.clause import STOPPED_MS, STOPPING_MS
from longpoll_judge.contract.result import ANSWER_IS_RIGHT, ANSWERED_ONCE
from longpoll_judge.rules.pull_answers import TAG_SHOWN_MAX, judge_once, judge_order, judge_rightness
from longpoll_judge.rules.queue_case import Suspects

TAGS: Final = "abaca"
"""Of the messages at 3 to 7, which are visible from 1 on."""
LOG: Final = (
    *(event("append", 0, queue_offset=3 + number, tag=tag) for number, tag in enumerate(TAGS)),
    event("make_visible", (0, 1), visible_end=8),
)
AT: Final = 10
"""When a pull comes and is answered, by default: two milliseconds each."""


def found(*rows: Row, log: tuple[Row, ...] = LOG, **known: Any) -> list[tuple[str, str, list[int]]]:
    """The findings about a queue's answers: clause (with `?` if uncertain), words, and messages."""
    case = case_of([*log, *rows], context(**known))
    lines = []
    for suspects in judge_rightness(case):
        assert suspects.property == ANSWER_IS_RIGHT
        for member in suspects.members.tolist():
            why = suspects.explain(member)
            kinds = [case.events.text("event", row) for row in why.rows]
            assert kinds == ["request_received", "answer_sent"]
            lines.append((why.clause + "?" * (suspects.verdict == "unknown"), why.why, why.messages))
    return lines


def of(code: int, *offsets: int, offset: int = 3, pull: Row | None = None, **ends: Any) -> tuple[Row, Row]:
    """One pull and its answer; by default of the whole queue."""
    plain: dict[str, Any] = {"offset_min": 3, "offset_max": 8, "offset_next": offsets[-1] + 1 if offsets else offset}
    come = asked((AT, AT + 1), offset=offset, **(pull or {}))
    return come, told((AT + 1, AT + 2), code, offsets=list(offsets), **(plain | ends))


def clauses(rows: tuple[Row, ...], **known: Any) -> list[str]:
    """The clauses alone."""
    return [clause for clause, _why, _messages in found(*rows, **known)]


# -- what is right ---------------------------------------------------------------------------------------------------

ONLY_A: Final = {"expression": "a"}


@pytest.mark.parametrize(
    "rows",
    [
        of(0, 3, 4, 5, 6, 7),
        of(0, 3, 4, pull={"count_max": 2}),
        of(0, 3, pull={"count_max": 0}),
        of(0, 3, pull={"count_max": -5}),
        of(0, 3, 5, 7, pull=ONLY_A),
        of(0, 3, pull=ONLY_A, offset_next=4),
        of(0, 3, pull=ONLY_A, offset_next=5),
        of(0, 6, offset=4, pull={"expression": "c"}),
        of(0, 6, offset=4, pull={"expression": "c"}, offset_next=8),
        of(19, offset=8),
        of(19, offset=8, offset_min=8),
        of(20, offset=5, pull={"expression": "b"}, offset_next=6),
        of(20, offset=5, pull={"expression": "b"}, offset_next=8),
        of(21, offset=9, offset_next=8),
        of(21, offset=2, offset_next=3),
        of(0, 3, 4, pull={"expression_type": "SQL92", "expression": "x > 1"}, offset_next=8),
        of(1, offset=3),
    ],
)
def test_what_a_store_would_give_is_right(rows: tuple[Row, Row]) -> None:
    """Messages up to the count, what passes over others, the ends of the queue, and a refusal."""
    assert found(*rows) == []


def test_of_no_answers_nothing_is_said() -> None:
    """Nor of a queue that is only written to."""
    assert found(asked(AT)) == found() == []


# -- the answer by itself --------------------------------------------------------------------------------------------


def name(code: int, offset: int = 3) -> str:
    """How an answer is called."""
    return f"the answer {code} to a pull at offset {offset}"


OUTSIDE: Final = "calls the offset illegal, but it lies between offset_min 3 and offset_max 8"
NOT_AN_END: Final = "which is not the end of the queue to go to, offset_min 3 or offset_max 8"
ITSELF: Final[dict[str, list[tuple[tuple[Row, Row], str, list[int]]]]] = {
    "pull.found.some": [(of(0, offset_next=4), "carries 0 messages", [])],
    "pull.none.empty": [(of(19, 3, offset=8), "carries 1 messages", [])],
    "pull.found.ordered": [(of(0, *two), "carries offsets out of order", [3]) for two in ((4, 3), (3, 3))],
    "pull.found.from_asked": [(of(0, 4, 5, offset=5), "carries messages before that offset", [4])],
    "pull.found.at_most": [
        (of(0, 3, 4, 5, pull={"count_max": 2}), "carries 3 messages, asked were at most 2", []),
        (of(0, 3, 4, pull={"count_max": 0}), "carries 2 messages, asked were at most 1", []),
    ],
    "pull.found.next": [
        (of(0, 3, 4, offset_next=6), "says offset_next 6; the last message is 4, so it must be 5", [4]),
        (of(0, 3, 5, pull=ONLY_A, offset_next=5), "says offset_next 5; the last message is 5, so it must be 6", [5]),
        (of(0, 3, 5, pull={"count_max": 2, **ONLY_A}, offset_next=7),
         "says offset_next 7; the last message is 5, so it must be 6", [5]),
    ],
    "pull.none.next": [(of(19, offset=8, offset_next=9), "says offset_next 9; with nothing new it must be 8", [])],
    "pull.passed.next": [
        (of(20, offset=5, pull={"expression": "b"}, offset_next=5),
         "says offset_next 5, so it passed over nothing", []),
    ],
    "pull.illegal.outside": [(of(21, offset=at, offset_next=at), OUTSIDE, []) for at in (8, 3)],
    "pull.illegal.next": [(of(21, offset=9, offset_next=5), f"says offset_next 5, {NOT_AN_END}", [])],
    "pull.found.above_min": [
        (of(0, 3, 4, offset_min=4), "carries messages from before offset_min 4, which it says", [3]),
    ],
    "pull.min.below_max": [(of(19, offset=8, offset_min=9), "says offset_min 9 above offset_max 8", [])],
}  # fmt: skip


@pytest.mark.parametrize("clause", ITSELF)
def test_an_answer_may_be_wrong_by_itself(clause: str) -> None:
    for rows, why, messages in ITSELF[clause]:
        said = [(clause, f"{name(rows[1]['code'], rows[0]['offset'])} {why}", messages)]
        assert found(*rows) == found(*rows, log=()) == said


def test_an_answer_before_its_request_is_found() -> None:
    """Certain only where its last moment lies before the request's first."""
    why = f"{name(19, 8)} was sent before its request was received"
    pull = asked((AT + 5, AT + 6), offset=8, timeout_ms=0)
    ends: dict[str, Any] = {"offset_min": 3, "offset_max": 8, "offset_next": 8}
    assert found(pull, told((AT, AT + 4), **ends)) == [("answer.after_request", why, [])]
    assert found(pull, told((AT, AT + 5), **ends)) == []


@pytest.mark.parametrize(
    ("offset", "offset_min", "offset_next", "is_right"),
    [
        (9, 3, 3, False),
        (9, 1, 1, False),
        (9, 0, 0, True),
        (9, 0, 8, True),
        (2, 3, 8, False),
        (2, 3, 3, True),
        (9, 3, 8, True),
    ],
)
def test_an_illegal_offset_leads_to_an_end(offset: int, offset_min: int, offset_next: int, is_right: bool) -> None:
    """Too high to the last, or to the first where that is 0; too low to the first."""
    rows = of(21, offset=offset, offset_min=offset_min, offset_next=offset_next)
    assert clauses(rows) == ([] if is_right else ["pull.illegal.next"])


def test_a_body_without_a_count_may_be_of_any_size() -> None:
    """The request does not tell it, or a number below 0, which brokers take for one."""
    assert clauses(of(0, 3, pull={"count_max": 0, **ONLY_A}, offset_next=5)) == ["pull.found.next"]
    assert clauses(of(0, 3, 4, pull={"count_max": -5})) == []
    assert clauses(of(0, 3, 5, pull={"count_max": -5, **ONLY_A}, offset_next=7)) == []


def test_what_an_answer_passes_beyond_its_own_end_is_asked_of_our_own_policies() -> None:
    """RocketMQ reads its end before it reads its messages."""
    rows = of(0, 3, 4, 5, 6, 7, offset_max=7)
    assert clauses(rows) == ["pull.max.least"]
    late = (event("append", 0, queue_offset=3), event("make_visible", (AT, AT + 2), visible_end=8))
    rows = of(20, offset=3, pull={"expression": "z"}, offset_next=8, offset_max=7)
    assert clauses(rows, log=late) == []
    why = f"{name(20)} says offset_next 8, which is past offset_max 7"
    assert found(*rows, log=late, is_own=True) == [("pull.next.within", why, [])]
    assert clauses(of(20, offset=3, pull={"expression": "z"}, offset_next=7, offset_max=7), log=late, is_own=True) == []
    assert clauses(of(21, offset=9, offset_min=3, offset_next=9, offset_max=7), log=late, is_own=True) == [
        "pull.illegal.next"
    ]


# -- against the log -------------------------------------------------------------------------------------------------

GAP: Final = {"broker_holes": {"b": holes((-9, -5))}}


def test_a_message_that_was_not_visible_yet_is_found() -> None:
    """At no moment until the answer; where the record lacks something it is not certain."""
    log = (
        *LOG,
        event("append", 5, queue_offset=8, tag="t" * 100),
        event("make_visible", (AT + 3, AT + 4), visible_end=9),
    )
    rows = of(0, 7, 8, offset=7, offset_max=9)
    tag = repr("t" * TAG_SHOWN_MAX)
    why = f"{name(0, 7)} carries message 8 (tag {tag}), which was not yet visible"
    assert found(*rows, log=log) == [("pull.found.visible", why, [8])]
    assert clauses(rows, log=log, **GAP) == ["pull.found.visible?"]
    log = (*log[:-1], event("make_visible", (AT + 2, AT + 4), visible_end=9))
    assert clauses(rows, log=log) == []


def test_a_message_that_was_never_appended_is_found() -> None:
    """From inside, and not below what the record begins with."""
    log = (*LOG[:2], *LOG[3:])
    why = f"{name(0)} carries message 5, which was never appended"
    assert found(*of(0, 3, 4, 5), log=log) == [("pull.found.appended", why, [5])]
    assert clauses(of(0, 3, 4, 5), log=log, **GAP) == ["pull.found.appended?"]
    assert clauses(of(0, 3, 4, 5), log=LOG[1:]) == []
    outside = tuple(row | {"event": "message_acknowledged"} for row in log if row["event"] == "append")
    assert clauses(of(0, 3, 4, 5), log=outside, inside=frozenset()) == []


def test_a_message_that_may_be_of_this_life_of_the_queue_is_not_missed() -> None:
    """Its append was near the deletion of the queue, so it proves nothing."""
    case = case_of([*LOG[:2], *LOG[3:], *of(0, 3, 4, 5)], context())
    for perhaps, count in (([5], 0), ([4, 6], 1)):
        here = evolve(case, log=evolve(case.log, perhaps=np.array(perhaps)))
        assert sum(len(suspects.members) for suspects in judge_rightness(here)) == count


def test_a_message_with_another_tag_is_found() -> None:
    why = f"{name(0)} carries message 4 (tag 'b'), whose tag does not match"
    assert found(*of(0, 3, 4, 5, pull=ONLY_A)) == [("pull.found.tag", why, [4])]
    assert clauses(of(0, 3, 4, 5, pull=ONLY_A), **GAP) == ["pull.found.tag"]
    assert [messages for _clause, _why, messages in found(*of(0, 3, 4, 6, pull=ONLY_A))] == [[4]]
    untagged = (*LOG[:-1], event("append", 0, queue_offset=8), event("make_visible", (0, 1), visible_end=9))
    bare = found(*of(0, 8, offset=8, pull=ONLY_A, offset_max=9), log=untagged)
    assert [why for _clause, why, _messages in bare] == [f"{name(0, 8)} carries message 8, whose tag does not match"]
    assert clauses(of(0, 1, 2, offset=1, pull=ONLY_A, offset_min=1)) == []


def test_a_message_that_was_left_out_is_found() -> None:
    """More that match lie in what was passed over than the answer carries; those that it does not carry come first."""
    why = f"{name(0)} carries 1 messages although 2 messages in [3, 6) match"
    assert found(*of(0, 5, pull=ONLY_A), is_own=True) == [("pull.found.complete", why, [3, 5])]
    assert clauses(of(0, 3, pull=ONLY_A, offset_next=6), is_own=True) == ["pull.found.complete"]
    everything = found(*of(0, 3, 5), is_own=True)
    assert everything == [
        ("pull.found.complete", f"{name(0)} carries 2 messages although 3 messages in [3, 6) match", [4, 3, 5])
    ]
    assert clauses(of(0, 3, 5, pull={"expression_type": "SQL92", "expression": "x > 1"}), is_own=True) == []
    many = found(*of(0, 3, pull=ONLY_A, offset_next=8), is_own=True)
    assert many[0][1:] == (f"{name(0)} carries 1 messages although 3 messages in [3, 8) match", [5, 7])


def test_retention_may_have_removed_what_was_passed_over() -> None:
    assert clauses(of(0, 5, pull=ONLY_A)) == ["pull.found.complete?"]
    assert clauses(of(0, 3, 5)) == ["pull.found.complete"]
    assert clauses(of(20, offset=4, pull=ONLY_A, offset_next=8)) == ["pull.passed.none_match?"]
    removed = {"b\0T\x000": 5}
    assert clauses(of(0, 5, pull=ONLY_A), removed=removed) == []


def test_matching_messages_that_were_passed_over_are_found() -> None:
    """The first is named; what no tag decides is not asked for this."""
    why = f"{name(20, 4)} passes over 2 matching messages before offset_next 8"
    assert found(*of(20, offset=4, pull=ONLY_A, offset_next=8), is_own=True) == [("pull.passed.none_match", why, [5])]
    one = found(*of(20, offset=4, pull=ONLY_A, offset_next=6), is_own=True)
    assert one[0][1:] == (f"{name(20, 4)} passes over 1 matching messages before offset_next 6", [5])
    assert clauses(of(20, offset=4, pull=ONLY_A, offset_next=5), is_own=True) == []
    every = found(*of(20, offset=4, offset_next=6), is_own=True)
    assert every[0][1:] == (f"{name(20, 4)} passes over 2 matching messages before offset_next 6", [4])
    assert (
        clauses(of(20, offset=4, pull={"expression_type": "SQL92", "expression": "x > 1"}, offset_next=8), is_own=True)
        == []
    )


def test_nothing_new_although_there_was_a_message_is_found() -> None:
    """Visible certainly before the request came; the first that matches is named."""
    none = "says that there is nothing new, but a matching message was visible before the request came"
    rows = of(19, offset=4, pull=ONLY_A, offset_max=4)
    assert found(*rows) == [("pull.none.true", f"{name(19, 4)} {none}", [5])]
    late = (*LOG[:-1], event("make_visible", (0, AT), visible_end=8))
    assert clauses(rows, log=late) == []
    late = (*LOG[:-1], event("make_visible", (0, AT - 1), visible_end=8))
    assert clauses(rows, log=late) == ["pull.none.true"]
    assert clauses(of(19, offset=7, pull={"expression": "b"}, offset_max=7)) == ["pull.max.least"]


def outside(*rows: Row, settable: bool, before: int = 90) -> list[str]:
    """Of a queue that is seen by its acknowledgements alone, long before."""
    log = tuple(
        row | {"event": "message_acknowledged", "after_ns": -ns(before), "before_ns": -ns(before)} for row in LOG[:-1]
    )
    known = {"inside": frozenset(), "settable": frozenset({"s"} if settable else {"t"})}
    return clauses(rows, log=log, **known)


def test_a_clock_that_may_be_set_measures_no_while() -> None:
    """From outside a message is visible for certain only a while after it was acknowledged."""
    rows = of(19, offset=4, offset_max=4)
    assert outside(*rows, settable=False) == ["pull.none.true"]
    assert outside(*rows, settable=True) == ["pull.none.true?"]
    low = of(0, 3, offset_max=6)
    assert outside(*low, settable=False) == ["pull.max.least"]
    assert outside(*low, settable=True) == ["pull.max.least?"]
    assert clauses(rows, settable=frozenset({"s"})) == ["pull.none.true"]


# -- the ends --------------------------------------------------------------------------------------------------------


def test_an_end_below_what_was_visible_is_found() -> None:
    """Before the request came; the last message of it is named."""
    why = f"{name(0)} says offset_max 7, but 8 was visible before its request came"
    assert found(*of(0, 3, 4, offset_max=7)) == [("pull.max.least", why, [7])]
    late = (*LOG[:-1], event("make_visible", (0, AT), visible_end=8))
    assert clauses(of(0, 3, 4, offset_max=7), log=late) == []
    alone = {"asked_alone": frozenset({"pull.max.least"})}
    assert clauses(of(19, offset=0, offset_min=0, offset_max=0), **alone) == ["pull.max.least"]


def test_an_end_beyond_what_can_have_been_visible_is_found() -> None:
    """Until the answer; where the record lacks something it is not certain."""
    why = f"{name(0)} says offset_max 9, but no more than 8 can have been visible"
    assert found(*of(0, 3, 4, offset_max=9)) == [("pull.max.most", why, [])]
    assert clauses(of(0, 3, 4, offset_max=9), **GAP) == ["pull.max.most?"]
    later = (*LOG, event("make_visible", (AT + 2, AT + 9), visible_end=9))
    assert clauses(of(0, 3, 4, offset_max=9), log=later) == []
    later = (*LOG, event("make_visible", (AT + 3, AT + 9), visible_end=9))
    assert clauses(of(0, 3, 4, offset_max=9), log=later) == ["pull.max.most"]


def test_a_next_offset_beyond_what_can_have_been_visible_is_found() -> None:
    why = f"{name(20)} says offset_next 9, but no more than 8 can have been visible"
    rows = of(20, offset=3, pull={"expression": "z"}, offset_next=9)
    assert found(*rows) == [("pull.next.visible", why, [])]
    assert clauses(rows, **GAP) == ["pull.next.visible?"]
    assert clauses(of(21, offset=9, offset_next=9)) == ["pull.illegal.next"]


# -- nothing new, and not at the end ---------------------------------------------------------------------------------


def test_nothing_new_away_from_the_end_is_found() -> None:
    """The answer's own, whatever matches there; a stop may explain it."""
    why = f"{name(19, 7)} says that there is nothing new, and offset_max 8, which is not the offset that was asked for"
    rows = of(19, offset=7, pull={"expression": "b"})
    assert found(*rows) == [("pull.none.at_end", why, [])]
    assert clauses(of(19, offset=8)) == []
    stop = (rows[0], rows[1] | {"cause": "stopped"})
    until = AT + 2
    for went_on, clause in ((STOPPING_MS, []), (STOPPED_MS, ["pull.none.at_end?"]), (STOPPED_MS + 1, [""])):
        known = {"sources": {"s": facts(until + went_on)}, "keeps_role": True}
        assert clauses(stop, **known) == [each or "pull.none.at_end" for each in clause]
    hole = {"sources": {"s": facts(holes=holes((AT, AT + 1)))}}
    assert clauses(rows, **hole) == ["pull.none.at_end?"]


def test_a_stopping_broker_need_not_read_again() -> None:
    """It says that there is nothing new although there is."""
    rows = of(19, offset=4, offset_max=4)
    stop = (rows[0], rows[1] | {"cause": "stopped"})
    late = (*LOG[:-1], event("make_visible", (0, 1), visible_end=4), event("make_visible", (AT, AT + 3), visible_end=8))
    assert clauses(stop, log=late) == []
    for went_on, clause in ((STOPPING_MS, "pull.max.least"), (STOPPED_MS + 1, "pull.none.true")):
        known = {"sources": {"s": facts(AT + 2 + went_on)}, "keeps_role": True}
        assert clauses(stop, **known) == [clause]
    known = {"sources": {"s": facts(AT + 2 + STOPPED_MS)}, "keeps_role": True}
    assert clauses(stop, **known) == ["pull.none.true?"]


# -- several answers, and which clause is told -----------------------------------------------------------------------


def test_each_answer_is_told_for_the_first_clause_that_it_breaks() -> None:
    """Certain ones before others, in the order of the requests."""
    rows: list[Row] = []
    for number, (code, offsets, ends) in enumerate(
        [(0, [4, 3], {}), (0, [3, 4], {"offset_max": 9}), (0, [3], {}), (0, [3, 4], {"offset_next": 9})]
    ):
        pull = asked((AT + number, AT + number), f"r{number}")
        plain = {"offset_min": 3, "offset_max": 8, "offset_next": max(offsets) + 1}
        rows += [pull, told((AT + 9, AT + 9), code, f"r{number}", offsets=offsets, **(plain | ends))]
    assert clauses(tuple(rows), **GAP) == ["pull.found.ordered", "pull.found.next", "pull.max.most?"]


def in_turn(*answers: tuple[int, int, list[int], Row]) -> list[Row]:
    """Several pulls, each of which asks at an offset and is answered with a code and messages."""
    rows: list[Row] = []
    for number, (offset, code, offsets, fields) in enumerate(answers):
        ends = {"offset_min": 3, "offset_max": 8, "offset_next": max(offsets, default=offset - 1) + 1}
        rows.append(asked((AT + number, AT + number), f"r{number}", offset=offset, **fields))
        rows.append(event("answer_sent", AT + 9, code=code, request=f"r{number}", offsets=offsets, **ends))
    return rows


def test_messages_are_those_of_the_answer_that_is_told() -> None:
    """Not those of answers before it or behind it."""
    rows = in_turn((5, 0, [5], {}), (3, 0, [3], ONLY_A), (5, 0, [5], {}))
    rows[3] |= {"offset_next": 6}
    assert [(clause, messages) for clause, _why, messages in found(*rows)] == [("pull.found.complete", [5, 3])]
    rows = in_turn((6, 0, [6, 7], {}), (4, 19, [], ONLY_A), (7, 0, [7], {}))
    rows[3] |= {"offset_max": 4}
    assert [(clause, messages) for clause, _why, messages in found(*rows)] == [("pull.none.true", [5])]
    gap = (*LOG[:2], *LOG[3:])
    (all_of_them,) = found(*in_turn((3, 0, [3, 6], {})), log=gap)
    assert all_of_them[2] == [4, 5, 3]


def test_what_shows_it_is_what_the_clause_rests_on() -> None:
    """The messages as they were appended, with what made them visible where that counts; they may be the cause."""

    def shown(rows: tuple[Row, ...], log: tuple[Row, ...] = LOG) -> tuple[list[str], list[int] | None]:
        case = case_of([*log, *rows], context())
        (suspects,) = (each for each in judge_rightness(case) if len(each.members))
        why = suspects.explain(suspects.members[0])
        return [case.log_events.text("event", row) for row in why.log_rows], why.roots

    log = (*LOG, event("append", 5, queue_offset=8), event("make_visible", (AT + 3, AT + 4), visible_end=9))
    assert shown(of(0, 7, 8, offset=7, offset_max=9), log) == (["append", "make_visible"], None)
    assert shown(of(0, 3, 4, 5, pull=ONLY_A)) == (["append"], None)
    assert shown(of(0, 4, 3)) == (["append"], [])


def test_an_excerpt_is_asked_its_own_clause_alone() -> None:
    """Whatever else the answer breaks."""
    rows = of(0, 4, 3, offset_max=9)
    assert clauses(rows, asked_alone=frozenset({"pull.max.most"})) == ["pull.max.most"]
    assert clauses(rows, asked_alone=frozenset({"pull.found.ordered"})) == ["pull.found.ordered"]
    assert clauses(rows, asked_alone=frozenset({"send.shown"})) == []


def test_where_moments_order_nothing_what_needs_none_is_told_first() -> None:
    rows = of(0, 4, 3, offset_max=9)
    early = (asked((AT + 5, AT + 6)), told((AT, AT + 1), 0, offsets=[4, 3], offset_min=3, offset_max=8, offset_next=5))
    assert clauses(early) == ["answer.after_request"]
    unsteady = {"unsteady_brokers": frozenset({"b"})}
    assert clauses(early, **unsteady) == ["pull.found.ordered"]
    case = case_of([*LOG, *early], context(**unsteady))
    marks = [(each.is_timeless, each.verdict, len(each.members)) for each in judge_rightness(case)]
    assert [mark for mark in marks if mark[2]] == [(True, "violated", 1)]
    case = case_of([*LOG, *rows], context())
    assert [each.is_timeless for each in judge_rightness(case) if len(each.members)] == [False]


# -- every answer of a queue -----------------------------------------------------------------------------------------


def lines(found_: list[Suspects], rows: list[Row]) -> list[tuple[str, str, list[str]]]:
    """The clause, the words and the events of each suspect."""
    case = case_of(rows, context())
    told_ = []
    for each in found_:
        for member in each.members.tolist():
            why = each.explain(member)
            told_.append((why.clause, why.why, [case.events.text("event", row) for row in why.rows]))
    return told_


def test_any_answer_before_its_request_is_found() -> None:
    rows = [event("request_received", (5, 6), request="q", code=10), event("answer_sent", (1, 4), request="q", code=14)]
    why = "the answer 14 was sent before its request was received"
    assert lines(judge_order(case_of(rows, context())), rows) == [
        ("answer.after_request", why, ["request_received", "answer_sent"])
    ]
    in_time = [rows[0], rows[1] | {"before_ns": ns(5)}]
    read = [asked(5), told(1, request="r")]
    damaged = [rows[0], rows[1] | {"code": -1}]
    alone = [rows[0], rows[1] | {"request": "other"}]
    nameless = [rows[0] | {"request": ""}, rows[1] | {"request": ""}]
    early = [*in_time, asked((5, 6)), told((1, 4), request="r")]
    for others in (in_time, read, damaged, alone, nameless, early):
        assert lines(judge_order(case_of(others, context())), others) == []
    (suspects,) = judge_order(case_of(rows, context()))
    assert (suspects.property, suspects.verdict, suspects.rows.tolist()) == (ANSWER_IS_RIGHT, "violated", [0])


def test_a_refused_pull_before_its_request_is_found() -> None:
    rows = [asked((5, 6)), told((1, 4), 1, offset_next=None, offset_min=None, offset_max=None)]
    assert [clause for clause, *_ in lines(judge_order(case_of(rows, context())), rows)] == ["answer.after_request"]


def test_a_second_answer_is_found() -> None:
    """To a request of any kind; a damaged one may be none."""
    rows = [asked(0), told(1), told(2), told(3), asked(0, "q"), told(1, request="q")]
    case = case_of(rows, context())
    (suspects,) = judge_once(case)
    assert (suspects.property, suspects.verdict, suspects.is_timeless) == (ANSWERED_ONCE, "violated", True)
    assert lines([suspects], rows) == [
        ("answer.once", "one request has 3 answers", ["request_received", *["answer_sent"] * 3])
    ]
    why = suspects.explain(suspects.members[0])
    assert {case.events.text("request", row) for row in why.rows} == {"r"}
    for others in (
        [asked(0), told(1), told(2, -1)],
        [asked(0), told(1), told(2, request="q"), asked(0, "q")],
        [asked(0, ""), told(1, request=""), told(2, request="")],
        [asked(0), told(1), asked(2), told(3)],
    ):
        assert lines(judge_once(case_of(others, context())), others) == []
