"""Limits of lateness for messages, deadlines and stops, on either side of each limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve, frozen
from model_tests.judge.case_of_parts import CaseOfParts

from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.evidence.survey import SourceFacts
from longpoll_judge.rules.promptness import RACE_NS, UNHELD_GRACE_NS, Promptness, judge_promptness
from longpoll_judge.rules.queue_columns import MS, Pulls

WAKE_MS: Final = 10
LATE_MS: Final = 10
TIMEOUT_MS: Final = 100
ROW_STEP: Final = 3
"""Rows of the events by pull: its receipt, its hold and its answer."""
WAKE, LATE, STOP = "no_lost_wakeup", "answered_by_deadline", "answered_on_stop"
OPEN: Final = -1


@frozen
class One:
    """A pull; by default one that a message woke in time."""

    received: tuple[float, float] = (0, 0)
    visible: tuple[float, float] | None = (2, 2)
    """When its message was visible; None where there is none."""
    answered: tuple[float, float] = (5, 5)
    """Of one without answer the first is until when it was looked for."""
    code: int = 19
    """`OPEN` of one without answer."""
    whole_until: float | None = None
    """Without answer: until then the record has no hole; None is all of the time."""
    may_hold: bool = True
    was_held: bool = True
    is_closed: bool = False
    is_sound: bool = True
    is_decidable: bool = True
    is_unread: bool = False
    stopped: float | None = None
    """When its source stopped in order."""


def unanswered(until: float, **fields: Any) -> One:
    """A pull that was looked for until then."""
    return One(answered=(until, until), code=OPEN, **fields)


def ns(moments: Any) -> Any:
    """Milliseconds as nanoseconds."""
    return np.array([round(each * MS) for each in moments], dtype=np.int64)


def pulls_of(ones: tuple[One, ...]) -> Pulls:
    """The columns of some pulls, each of a separate source; a pull's offset is its number plus three."""
    count = len(ones)
    is_open = np.array([one.code == OPEN for one in ones], dtype=np.bool_)
    rows = ROW_STEP * np.arange(count)
    whole = (one.answered[0] if one.whole_until is None else one.whole_until for one in ones)
    facts = [SourceFacts(0, None if one.stopped is None else round(one.stopped * MS)) for one in ones]
    return Pulls(
        row=rows,
        received_after_ns=ns(one.received[0] for one in ones),
        received_before_ns=ns(one.received[1] for one in ones),
        offset=np.arange(count) + 3,
        count_max=np.full(count, 32),
        may_hold=np.array([one.may_hold for one in ones], dtype=np.bool_),
        was_held=np.array([one.was_held for one in ones], dtype=np.bool_),
        timeout_ns=np.full(count, TIMEOUT_MS * MS),
        expression=np.zeros(count, dtype=np.int64),
        expressions=[None],
        answer_row=np.where(is_open, -1, rows + 2),
        answered_after_ns=ns(one.answered[0] for one in ones),
        answered_before_ns=np.where(is_open, NEVER, ns(one.answered[1] for one in ones)),
        missing_until_ns=ns(whole),
        is_closed=np.array([one.is_closed for one in ones], dtype=np.bool_),
        source_facts=facts,
        source=np.arange(count, dtype=np.int32),
        hold_is_told=np.ones(count, dtype=np.bool_),
    )


def case_of(ones: tuple[One, ...], *, answers_on_stop: bool, is_white_box: bool) -> Any:
    """A queue's history with these pulls; the message that a pull could take is the tenth after its offset."""
    pulls = pulls_of(ones)
    visible = [ns([0 if one.visible is None else one.visible[side] for one in ones]) for side in (0, 1)]
    is_there = np.array([one.visible is not None for one in ones], dtype=np.bool_)
    matching = SimpleNamespace(first=lambda offsets: offsets + 10)
    codes = np.repeat([one.code for one in ones], ROW_STEP)
    flags = {name: np.array([getattr(one, name) for one in ones], np.bool_) for name in ("is_sound", "is_decidable")}
    unread = np.array([one.is_unread for one in ones], dtype=np.bool_)
    return CaseOfParts(
        pulls=pulls,
        context=SimpleNamespace(wake_ns=WAKE_MS * MS, late_ns=LATE_MS * MS, answers_on_stop=answers_on_stop),
        events=SimpleNamespace(
            integers=lambda _name, rows: codes[rows],
            rows=lambda _name: ROW_STEP * np.arange(len(ones)) + 1,
            request_key=np.repeat(np.arange(len(ones)), ROW_STEP),
        ),
        log=SimpleNamespace(is_white_box=is_white_box, slack_ns=WAKE_MS * MS),
        matchings=[matching],
        first_visible=tuple(np.where(is_there, each, NEVER) for each in visible),
        is_unread=lambda wanted, _first_ns, _last_ns: wanted & unread,
        message_rows=lambda message: [1000 + message],
        **flags,
    )


def judged(*ones: One, answers_on_stop: bool = False, is_white_box: bool = True) -> Promptness:
    """The findings about these pulls."""
    return judge_promptness(case_of(ones, answers_on_stop=answers_on_stop, is_white_box=is_white_box))


def verdicts(name: str, *ones: One, **options: Any) -> list[str]:
    """Of each pull what one property says: `violated`, `unknown` or nothing."""
    found = [""] * len(ones)
    for suspects in judged(*ones, **options).suspects:
        for member in suspects.members.tolist():
            if suspects.property == name:
                found[member] += suspects.verdict
    return found


def explained(name: str, *ones: One, **options: Any) -> Any:
    """The explanation of the last of these pulls, which must be a suspect."""
    (found,) = [
        each
        for each in judged(*ones, **options).suspects
        if each.property == name and len(ones) - 1 in each.members.tolist()
    ]
    assert found.rows.tolist()[-1] == ROW_STEP * (len(ones) - 1)
    return found.explain(len(ones) - 1)


# -- woken -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (One(answered=(12, 12)), ""),
        (One(answered=(13, 13)), "violated"),
        (One(answered=(12, 13)), "unknown"),
        (One(visible=(2, 3), answered=(13, 13)), "unknown"),
        (One(visible=(3, 3), answered=(13, 13)), ""),
        (One(received=(4, 4), answered=(14, 14)), ""),
        (One(received=(4, 4), answered=(15, 15)), "violated"),
        (One(received=(3, 4), answered=(14, 14)), "unknown"),
        (One(visible=None, answered=(90, 90)), ""),
        (unanswered(12), ""),
        (unanswered(13), "violated"),
        (unanswered(90, visible=None), ""),
    ],
)
def test_a_pull_is_late_for_a_message_from_when_both_are_there(one: One, verdict: str) -> None:
    """Longer than it may be by every moment of the intervals, or by some."""
    assert verdicts(WAKE, one) == [verdict]


def test_who_is_not_woken_is_not_late_for_a_message() -> None:
    """Answered without a hold, or with an illegal offset, or of which the record or the tags tell too little."""
    late = One(answered=(50, 50))
    for changes in ({"was_held": False}, {"code": 21}, {"is_sound": False}, {"is_decidable": False}):
        assert verdicts(WAKE, late, evolve(late, **changes)) == ["violated", ""]
    assert verdicts(WAKE, unanswered(50, was_held=False)) == ["violated"]


@pytest.mark.parametrize(
    ("one", "verdict", "doubt"),
    [
        (unanswered(50, whole_until=12), "unknown", "a hole"),
        (unanswered(50, whole_until=13), "violated", ""),
        (unanswered(50, received=(4, 4), whole_until=14), "unknown", "a hole"),
        (unanswered(50, received=(4, 4), whole_until=15), "violated", ""),
        (unanswered(50, is_unread=True), "unknown", "not read"),
        (unanswered(50, whole_until=12, is_unread=True), "unknown", "a hole not read"),
        (One(answered=(50, 50), whole_until=0), "violated", ""),
        (One(answered=(50, 50), is_unread=True), "unknown", "not read"),
    ],
)
def test_a_late_wake_is_doubted_where_the_answer_may_not_have_been_seen(one: One, verdict: str, doubt: str) -> None:
    """The answer lies in a gap that begins before the wake was due, or on an unread connection."""
    assert verdicts(WAKE, one) == [verdict]
    why = explained(WAKE, one).why
    assert ("may be in it" in why, "not read" in why) == ("a hole" in doubt, "not read" in doubt)


def test_a_late_wake_is_told_with_its_numbers_and_its_events() -> None:
    """Which message it could take, since when, and how long it took at least and at most."""
    found = explained(WAKE, One(answered=(50, 50)), One(visible=(2, 3), answered=(33, 34)))
    assert found.why == (
        "a pull at offset 4 could take message 14 while it was held and was answered 30.000 ms to 32.000 ms later "
        "(allowed 10.000 ms); it fits a message that came between the pull's read and its hold (RocketMQ #7358)"
    )
    assert (found.clause, found.rows, found.log_rows, found.messages) == ("pull.wake.prompt", [3, 4, 5], [1014], [14])
    found = explained(WAKE, One(), unanswered(50, received=(4, 4)))
    assert found.why == (
        "a pull at offset 4 could take message 14 from its receipt on and was not answered for 46.000 ms or more later "
        "(allowed 10.000 ms)"
    )
    assert found.rows == [3, 4]


def test_the_answer_may_be_any_row_but_none() -> None:
    """The first event of all as well."""
    case = case_of((One(answered=(50, 50)),), answers_on_stop=False, is_white_box=True)
    case.pulls.answer_row[:] = 0
    (found,) = [each for each in judge_promptness(case).suspects if len(each.members)]
    assert found.explain(0).rows == [0, 1, 0]


def test_a_late_wake_fits_one_of_two_races() -> None:
    """A message soon after the receipt, by 50 ms, may have come before the pull was held; later it did not."""
    soon = RACE_NS / MS + 7
    for visible, fits in ((soon - 1, "between the pull's read and its hold"), (soon, "while another walk")):
        found = explained(WAKE, One(received=(6, 7), visible=(visible, visible), answered=(90, 90)))
        assert fits in found.why


def test_how_long_wakes_took_is_measured() -> None:
    """At most, of answers that may have come after the message; from outside only of pulls that came before it."""
    ones = (
        One(answered=(5, 6)),
        One(answered=(2, 2)),
        One(answered=(1, 1)),
        One(received=(2, 2), answered=(7, 7)),
        One(received=(1, 3), answered=(7, 7)),
        One(is_sound=False),
        unanswered(9),
    )
    assert judged(*ones).wake_ns.tolist() == [4 * MS, 0, 5 * MS, 5 * MS]
    assert judged(*ones, is_white_box=False).wake_ns.tolist() == [4 * MS, 0, 5 * MS]
    assert judged(One(received=(8, 9), answered=(7, 7))).wake_ns.tolist() == [0]


# -- deadlines -------------------------------------------------------------------------------------------------------

UNHELD_MS: Final = UNHELD_GRACE_NS / MS
QUIET: Final = One(visible=None)
"""No message comes for it."""


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"answered": (110, 110)}, ""),
        ({"answered": (111, 111)}, "violated"),
        ({"answered": (110, 111)}, "unknown"),
        ({"received": (3, 3), "answered": (113, 113)}, ""),
        ({"received": (3, 3), "answered": (114, 114)}, "violated"),
        ({"received": (3, 4), "answered": (114, 114)}, "unknown"),
        ({"answered": (111, 111), "is_sound": False}, ""),
        ({"answered": (9999, 9999), "may_hold": False}, ""),
        ({"answered": (UNHELD_MS + 10, 0), "may_hold": False, "code": OPEN}, ""),
        ({"answered": (UNHELD_MS + 11, 0), "may_hold": False, "code": OPEN}, "violated"),
        ({"answered": (110, 0), "code": OPEN}, ""),
        ({"answered": (111, 0), "code": OPEN}, "violated"),
        ({"answered": (300, 0), "code": OPEN, "whole_until": 110}, "unknown"),
        ({"answered": (300, 0), "code": OPEN, "whole_until": 111}, "violated"),
        ({"answered": (300, 0), "code": OPEN, "whole_until": 112, "received": (3, 3)}, "unknown"),
        ({"answered": (300, 300), "whole_until": 0}, "violated"),
        ({"answered": (300, 300), "is_unread": True}, "unknown"),
    ],
)
def test_a_pull_is_late_for_its_deadline(changes: dict[str, Any], verdict: str) -> None:
    """By every moment of the intervals, or by some; one that may not be held has none, but cannot stay open."""
    assert verdicts(LATE, evolve(QUIET, **changes)) == [verdict]


def test_lateness_is_told_with_its_numbers_and_its_events() -> None:
    """How late an answer was, or how long none came."""
    found = explained(LATE, One(), evolve(QUIET, received=(1, 2), answered=(109, 120)))
    assert (found.clause, found.rows) == ("pull.deadline.met", [3, 4, 5])
    assert found.why == (
        "a pull at offset 4 with a timeout of 100.000 ms was answered 7.000 ms to 19.000 ms after its deadline "
        "(allowed 10.000 ms)"
    )
    found = explained(LATE, One(), evolve(QUIET, answered=(150, 0), code=OPEN, whole_until=30))
    assert (found.clause, found.rows) == ("pull.answered", [3, 4])
    assert found.why == (
        "a pull at offset 4 with a timeout of 100.000 ms was never answered, although the history goes on for "
        "50.000 ms after its deadline (allowed 10.000 ms); the record has a hole in that time, and the answer may be "
        "in it"
    )
    found = explained(LATE, evolve(QUIET, received=(1, 2), answered=(111.5, 0), code=OPEN))
    assert "goes on for 9.500 ms to 10.500 ms after its deadline" in found.why
    found = explained(LATE, evolve(QUIET, answered=(UNHELD_MS + 20, 0), code=OPEN, may_hold=False))
    assert "with a no leave to be held was never answered" in found.why


def test_how_late_answers_were_is_measured() -> None:
    """At most, of those that may have come at their deadline or after it."""
    ones = (
        evolve(QUIET, answered=(99, 99)),
        evolve(QUIET, answered=(99, 100)),
        evolve(QUIET, received=(1, 2), answered=(104, 105)),
        evolve(QUIET, answered=(9000, 9000), may_hold=False),
        unanswered(500, visible=None),
    )
    assert judged(*ones).late_ns.tolist() == [0, 4 * MS]


# -- stops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "violated"),
        ({"stopped": None}, ""),
        ({"is_closed": True}, ""),
        ({"code": 19}, ""),
        ({"received": (3, 40)}, ""),
        ({"received": (3, 39)}, "violated"),
        ({"whole_until": 49}, "unknown"),
        ({"is_unread": True}, "unknown"),
    ],
)
def test_a_pull_that_is_open_when_its_broker_stops_is_answered(changes: dict[str, Any], verdict: str) -> None:
    one = evolve(unanswered(50, visible=None, stopped=50), **changes)
    assert verdicts(STOP, one, answers_on_stop=True) == [verdict]
    assert verdicts(STOP, one) == [""]
    assert verdicts(LATE, one, answers_on_stop=True) == [""]


def test_a_pull_that_is_late_already_is_not_found_again_at_the_stop() -> None:
    one = unanswered(500, visible=None, stopped=500)
    assert (verdicts(LATE, one, answers_on_stop=True), verdicts(STOP, one, answers_on_stop=True)) == (
        ["violated"],
        [""],
    )


def test_what_a_stop_left_is_told() -> None:
    """With the doubt about it."""
    found = explained(STOP, One(), unanswered(50, visible=None, stopped=50, whole_until=49), answers_on_stop=True)
    assert (found.clause, found.rows) == ("pull.stop.answered", [3, 4])
    assert found.why == (
        "a pull at offset 4 was never answered, although its connection stayed open and the policy answers held pulls "
        "when the broker stops; the record has a hole in that time, and the answer may be in it"
    )


def test_what_is_open_where_a_record_breaks_off_is_counted() -> None:
    """Neither answered nor closed, nor found late already, nor of a source that stopped."""
    cut = unanswered(50, visible=None)
    ones = (
        cut,
        cut,
        evolve(cut, is_closed=True),
        evolve(cut, stopped=50),
        unanswered(500, visible=None),
        unanswered(500, visible=None, whole_until=50),
        One(),
    )
    assert judged(*ones).open_at_cut == 2


@pytest.mark.parametrize("answers_on_stop", [True, False])
def test_of_no_pulls_nothing_is_said(answers_on_stop: bool) -> None:
    """A queue may have sends alone."""
    found = judged(answers_on_stop=answers_on_stop)
    assert (found.open_at_cut, found.wake_ns.tolist(), found.late_ns.tolist()) == (0, [], [])
    assert not any(len(each.members) for each in found.suspects)
