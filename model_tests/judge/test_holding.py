"""How pulls were held: each clause on either side of its limits, from inside and from outside, in milliseconds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from model_tests.judge.one_queue import LATE_MS, Row, asked, case_of, context, event, facts, holes, ns, said, told

from longpoll_judge.contract.clause import SHORT_POLLING_MS, STOPPED_MS, STOPPING_MS, UNHELD_MS
from longpoll_judge.contract.result import HELD_AS_ASKED
from longpoll_judge.rules.holding import judge_holding

EARLY, UNHELD = "pull.hold.not_early", "pull.unheld.prompt"
OUTSIDE: Final[dict[str, Any]] = {"inside": frozenset()}
EXCHANGE: Final = ["request_received", "answer_sent"]
LONG_MS: Final = 30_000
"""What a pull asks for that is answered far too early."""


def found(*rows: Row, **known: Any) -> list[tuple[str, str, list[str]]]:
    """The findings about one queue's events."""
    case = case_of(rows, context(**known))
    suspects = judge_holding(case)
    for each in suspects:
        assert each.property == HELD_AS_ASKED
    return said(suspects, case)


def clauses(*rows: Row, **known: Any) -> list[str]:
    """The clauses alone."""
    return [clause for clause, _why, _rows in found(*rows, **known)]


# -- answered too early ----------------------------------------------------------------------------------------------


def test_a_pull_that_is_told_too_early_that_there_is_nothing_is_found() -> None:
    """By more than what is allowed, even if it came at the first moment it can have, and the answer at the last."""
    pull = "a pull at offset 3 that may be held for 100.000 ms"
    why = f"{pull} was told that there is nothing new 11.000 ms before its deadline, without a cause"
    assert found(asked(), told(89)) == [(EARLY, why, EXCHANGE)]
    assert clauses(asked(), told(100 - LATE_MS)) == []
    assert clauses(asked((0, 5)), told((80, 90))) == []
    assert clauses(asked((0, 5)), told((80, 89))) == [EARLY]


@pytest.mark.parametrize(
    "rows",
    [
        (asked(may_hold=False), told(5)),
        (asked(), told(5, 0, offsets=[3], offset_next=4, offset_max=4)),
        (asked(), told(5, 20, offset_next=4)),
        (asked(),),
        (asked(), told(5, offset_next=None)),
        (event("append", 0, queue_offset=0),),
    ],
    ids=["may not be held", "messages", "passed over", "no answer", "damaged", "no pull"],
)
def test_other_answers_are_not_early(rows: tuple[Row, ...]) -> None:
    """An answer with messages is never too early, and of a damaged one nothing is known."""
    assert clauses(*rows) == []


def test_several_pulls_are_told_apart() -> None:
    """Each with its own request and answer."""
    rows = (asked(0, "a"), asked(1, "b"), told(5, request="b"), told(95, request="a"), asked(200, "d", offset=7))
    assert [why[:18] for _clause, why, _rows in found(*rows, told(210, request="d", offset_next=7))] == [
        "a pull at offset 3",
        "a pull at offset 7",
    ]


@pytest.mark.parametrize(
    ("after", "before", "topic", "source", "clause"),
    [
        (20, 30, "T", "s", []),
        (20, 30, "", "s", []),
        (20, 30, "U", "s", [EARLY]),
        (20, 30, "T", "t", [EARLY]),
        (50, 60, "T", "s", []),
        (51, 60, "T", "s", [EARLY]),
        (0, 10, "T", "s", []),
        (0, 9, "T", "s", [EARLY]),
    ],
)
def test_a_deletion_meanwhile_is_a_cause(after: int, before: int, topic: str, source: str, clause: list[str]) -> None:
    """Of its topic, or of all, by its own broker, at any moment between the receipt and the answer."""
    deletion = source, topic, ns(after), ns(before)
    assert clauses(asked(10), told(50), deletions=(deletion,)) == clause


def test_a_broker_without_long_polling_may_look_like_that_from_outside() -> None:
    """It answers after `shortPollingTimeMills`; from inside the history names the policy."""
    rows = asked((70, 75), timeout_ms=LONG_MS), told((900, 70 + SHORT_POLLING_MS))
    assert clauses(*rows, **OUTSIDE) == [EARLY + "?"]
    assert clauses(*rows) == [EARLY]
    assert clauses(rows[0], told((900, 69 + SHORT_POLLING_MS)), **OUTSIDE) == [EARLY]


# -- answered by a stop, seen from outside ---------------------------------------------------------------------------

ANSWERED: Final = 100
"""When a pull from outside is answered, by default."""
SOON: Final = ANSWERED + 1 + STOPPING_MS
"""Until when the connection of one that was stopped is closed."""


def outside(close: tuple[float, float] | None, last: float, **known: Any) -> list[str]:
    """The clauses of one pull whose connection, and whose source, end at these moments."""
    closes = {} if close is None else {("s", "c"): (ns(close[0]), ns(close[1]))}
    fields = OUTSIDE | {"closes": closes, "sources": {"s": facts(last)}} | known
    return clauses(asked(timeout_ms=LONG_MS), told((ANSWERED, ANSWERED + 1)), **fields)


@pytest.mark.parametrize(
    ("close", "last", "clause"),
    [
        (SOON, SOON, []),
        (SOON, SOON + 1, [EARLY + "?"]),
        (SOON, 10**6, [EARLY + "?"]),
        (SOON + 1, 10**6, [EARLY]),
        (ANSWERED, SOON, []),
        (None, SOON, [EARLY]),
        (None, SOON - 1, [EARLY + "?"]),
        (SOON + 1, SOON - 1, [EARLY]),
    ],
)
def test_a_close_soon_after_looks_like_a_stop(close: float | None, last: float, clause: list[str]) -> None:
    """Likely where everything ends with it, possibly where the source goes on; the end of the record may hide it."""
    assert outside(None if close is None else (close, close + 5), last) == clause


@pytest.mark.parametrize(
    ("opened", "closed", "clause"),
    [
        ([-9], [SOON], []),
        ([-9], [SOON + 1], [EARLY + "?"]),
        ([-9, ANSWERED + 1], [SOON, 10**6], []),
        ([-9, ANSWERED], [SOON, 10**6], [EARLY + "?"]),
        ([ANSWERED + 1], [SOON], [EARLY + "?"]),
    ],
)
def test_a_proxy_outlives_a_broker_that_stops(opened: list[float], closed: list[float], clause: list[str]) -> None:
    """Every connection that was open when it answered is closed soon; those that come later belong to its next life."""
    spans = {"s": (np.array(list(map(ns, opened))), np.array(list(map(ns, closed))))}
    assert outside((SOON, SOON), 10**6, spans=spans) == clause


def test_a_stop_that_answers_nobody_is_no_cause() -> None:
    """Where every policy of the history leaves what is held unanswered."""
    assert outside((SOON, SOON), SOON, stops_silently=True) == [EARLY]
    assert outside(None, SOON - 1, stops_silently=True) == [EARLY]


def test_a_close_by_a_clock_that_may_be_set_may_have_been_sooner() -> None:
    """So may one that looks late; where there is none there is nothing to doubt."""
    known = {"settable": frozenset({"s"})}
    assert outside((SOON + 1, SOON + 1), 10**6, **known) == [EARLY + "?"]
    assert outside(None, 10**6, **known) == [EARLY]
    assert outside((SOON + 1, SOON + 1), 10**6, settable=frozenset({"t"})) == [EARLY]


@pytest.mark.parametrize(
    ("hole", "clause"),
    [((-9, -1), [EARLY]), ((-9, 0), [EARLY + "?"]), ((SOON, SOON + 1), [EARLY + "?"]), ((SOON + 1, SOON + 2), [EARLY])],
)
def test_a_hole_may_hide_a_stop(hole: tuple[float, float], clause: list[str]) -> None:
    """From the receipt until when the close would be there, from outside and from inside."""
    assert outside(None, 10**6, sources={"s": facts(holes=holes(hole))}) == clause
    known = {"sources": {"s": facts(holes=holes(hole))}, "inside": frozenset({"s"})}
    assert outside(None, 10**6, **known) == clause


# -- answered by a stop, told from inside ----------------------------------------------------------------------------


def inside(last: float, *, cause: str = "stopped", stop: bool = False, **known: Any) -> list[str]:
    """The clauses of one pull that is answered at 0 to 1, as its broker says because it stops."""
    rows = [asked(0, timeout_ms=LONG_MS), told((0, 1), cause=cause)]
    rows += [event("stop", (-1, 0), request="r")] if stop else []
    return clauses(*rows, **{"sources": {"s": facts(last)}, **known})


@pytest.mark.parametrize(
    ("went_on", "keeps_role", "clause"),
    [
        (STOPPING_MS, True, []),
        (STOPPING_MS + 1, True, [EARLY + "?"]),
        (STOPPED_MS, True, [EARLY + "?"]),
        (STOPPED_MS + 1, True, [EARLY]),
        (STOPPED_MS + 1, False, [EARLY + "?"]),
    ],
)
def test_a_broker_that_says_so_and_ends_has_stopped(went_on: int, keeps_role: bool, clause: list[str]) -> None:
    assert inside(1 + went_on, keeps_role=keeps_role) == clause


@pytest.mark.parametrize(
    ("went_on", "clause"), [(STOPPING_MS, []), (STOPPED_MS, [EARLY + "?"]), (STOPPED_MS + 1, [EARLY])]
)
def test_an_event_of_the_stop_says_so_too(went_on: int, clause: list[str]) -> None:
    """And cannot be one of a change of role."""
    assert inside(1 + went_on, cause="", stop=True) == clause


def test_another_cause_is_none() -> None:
    """Neither are the words of an observer outside, who cannot know."""
    assert inside(1 + STOPPING_MS, cause="deadline") == [EARLY]
    known = {"inside": frozenset(), "sources": {"s": facts(1 + STOPPING_MS)}}
    assert clauses(asked(timeout_ms=LONG_MS), told((0, 1), cause="stopped"), **known) == [EARLY]


# -- not to be held --------------------------------------------------------------------------------------------------

ALLOWED: Final = UNHELD_MS + LATE_MS


@pytest.mark.parametrize(
    ("received", "answered", "clause"),
    [
        ((3, 5), (5 + ALLOWED, 5 + ALLOWED), [UNHELD + "?"]),
        ((3, 5), (6 + ALLOWED, 6 + ALLOWED), [UNHELD]),
        ((3, 5), (10, 3 + ALLOWED), []),
        ((3, 5), (10, 4 + ALLOWED), [UNHELD + "?"]),
    ],
)
def test_a_pull_that_may_not_be_held_is_answered_at_once(
    received: tuple[float, float], answered: tuple[float, float], clause: list[str]
) -> None:
    """Certain only if it was late whatever the true moments were."""
    assert clauses(asked(received, may_hold=False), told(answered)) == clause


def test_what_took_too_long_is_told() -> None:
    """Its least and its most; one that may be held, or has no whole answer, is judged elsewhere."""
    late = told((ALLOWED + 7, ALLOWED + 9))
    why = (
        f"a pull at offset 3 that may not be held was answered {ALLOWED + 2}.000 ms to {ALLOWED + 9}.000 ms after its "
        f"receipt (allowed {ALLOWED}.000 ms)"
    )
    assert found(asked((0, 5), may_hold=False), late) == [(UNHELD, why, EXCHANGE)]
    assert clauses(asked((0, 5), timeout_ms=LONG_MS), told((29_990, 29_999))) == []
    assert clauses(asked((0, 5), may_hold=False), late | {"offset_next": None}) == []
    assert clauses(asked((0, 5), may_hold=False)) == []
    early = found(asked((0, 9), may_hold=False), told((4, ALLOWED + 1)))
    assert early[0][1].startswith(f"a pull at offset 3 that may not be held was answered 0.000 ms to {ALLOWED + 1}.000")


def test_an_answer_that_was_not_read_may_have_been_in_time() -> None:
    rows = asked((0, 5), may_hold=False), told((ALLOWED + 7, ALLOWED + 9))
    blocked = {("s", "c"): holes((ALLOWED + 9, ALLOWED + 20))}
    assert clauses(*rows, **OUTSIDE, blocked=blocked) == [UNHELD + "?"]
    assert clauses(*rows, **OUTSIDE, blocked={("s", "c"): holes((ALLOWED + 10, ALLOWED + 20))}) == [UNHELD]
    assert clauses(*rows, **OUTSIDE, blocked={("s", "c"): holes((-9, 0))}) == [UNHELD + "?"]
    assert clauses(*rows, **OUTSIDE, blocked={("s", "c"): holes((-9, -1))}) == [UNHELD]


# -- what the broker says of a hold ----------------------------------------------------------------------------------

HELD: Final = ["request_received", "hold", "hold", "answer_sent"]


def hold(at: float | tuple[float, float], request: str = "r", **fields: Any) -> Row:
    """A pull is put into the table."""
    return event("hold", at, request=request, **fields)


def visible(end: int, at: float | tuple[float, float] = 0) -> Row:
    """An inside source reports a queue's visible end."""
    return event("make_visible", at, visible_end=end, request="")


BEGUN: Final = (event("append", 0, queue_offset=0), event("append", 0, queue_offset=1))
"""The queue's first messages: the record has it from its beginning."""


def test_a_hold_as_asked_is_in_order() -> None:
    """Once, after the receipt, before the answer, at the end of the queue."""
    assert clauses(*BEGUN, visible(3), asked(), hold(1), told(100)) == []
    assert clauses(*BEGUN, visible(3), asked(), hold(1)) == []
    assert clauses(asked(), hold(100), told(100)) == []
    assert clauses(asked((0, 5)), hold((0, 0)), told(100)) == []


def test_a_hold_that_was_not_asked_for_is_found() -> None:
    """With the hold."""
    assert found(asked(may_hold=False), hold(1), told(5)) == [
        ("pull.hold.allowed", "a pull at offset 3 was held, and did not ask for it", HELD)
    ]


def test_a_hold_before_the_receipt_is_found() -> None:
    """Certain only where its last moment lies before the receipt's first."""
    assert found(asked((5, 6)), hold((1, 4)), told(105)) == [
        ("pull.hold.after_request", "a pull at offset 3 was held before it came", HELD)
    ]
    assert clauses(asked((5, 6)), hold((1, 5)), told(105)) == []


def test_a_second_hold_is_found() -> None:
    """With the first; of two pulls each may be held."""
    assert found(asked(), hold(1), hold(2), told(100)) == [
        ("pull.hold.once", "a pull at offset 3 was held twice", HELD)
    ]
    assert clauses(asked(0, "a"), asked(0, "b"), hold(1, "a"), hold(2, "b")) == []


def test_a_hold_after_the_answer_is_found() -> None:
    """Certain only where the answer's last moment lies before its first; a damaged answer may be another's."""
    assert found(asked(), told((98, 100)), hold((103, 104))) == [
        ("pull.hold.unanswered", "a pull at offset 3 was held 3.000 ms after its answer", HELD)
    ]
    assert clauses(asked(), told((98, 103)), hold((103, 104))) == []
    sooner = found(told((-2, -1)), asked(timeout_ms=0), hold(1))
    assert sooner == [("pull.hold.unanswered", "a pull at offset 3 was held 2.000 ms after its answer", HELD)]
    assert clauses(asked(), told((98, 100)) | {"offset_next": None}, hold((103, 104))) == []


def test_a_hold_past_the_end_is_found() -> None:
    """Of what can have been visible when it was held, or answered; unknown where the record lacks something."""
    why = "a pull at offset 3 was held, though no more than 2 can have been visible"
    past = "pull.hold.at_end"
    rows = *BEGUN, visible(2), asked(), hold(1), told(100)
    assert found(*rows) == [(past, why, HELD)]
    assert found(*rows[:-1]) == [(past, why, HELD[:3])]
    assert clauses(*BEGUN, visible(2), visible(3, (5, 6)), asked(), hold((1, 4)), told(100)) == [past]
    assert clauses(*BEGUN, visible(2), visible(3, (4, 6)), asked(), hold((1, 4)), told(100)) == []
    assert clauses(*BEGUN, visible(2), visible(3, (4, 6)), asked(), hold((1, 8)), told((90, 100))) == []
    # Answered before the hold was told of: the end counts as it was then.
    assert clauses(*BEGUN, visible(2), visible(3, (104, 106)), asked(), hold((99, 109)), told((98, 100))) == [past]
    gap = {"broker_holes": {"b": holes((-9, -5))}}
    assert clauses(*BEGUN, visible(2), asked(), hold(1), told(100), **gap) == [past + "?"]
    assert clauses(*BEGUN, visible(2), asked(), hold(1), told(100), broker_holes={"b": holes((2, 5))}) == [past]


def test_a_hold_of_nobody_says_nothing() -> None:
    assert clauses(asked(), hold(1, ""), told(100)) == []
    assert clauses(asked(0, "a"), hold(1, "lost"), told(100, request="a")) == []
    rows = (asked(0, "a", may_hold=False), hold(1, "lost"), hold(1, "a"), told(5, request="a"))
    assert clauses(*rows) == ["pull.hold.allowed"]
    assert clauses(event("append", 0, queue_offset=1), hold(1)) == []


def test_what_rests_on_no_moment_says_so() -> None:
    """That it was held at all, or twice, is so whatever the clocks say."""
    case = case_of([asked(may_hold=False), hold(1), hold(2), told(5)], context())
    timeless = {
        each.explain(each.members[0]).clause: each.is_timeless for each in judge_holding(case) if len(each.members)
    }
    assert timeless == {"pull.hold.allowed": True, "pull.hold.once": True}
