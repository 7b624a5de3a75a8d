"""Codes of answers to pulls and what a broker does with a pull that waits: one queue at a time, moments in ms."""

from __future__ import annotations

from typing import Any, Final

import pytest
from model_tests.judge.one_queue import Row, asked, case_of, context, event, facts, holes, said, told

from longpoll_judge.contract.clause import PULL_REFUSALS, PULL_RESULTS
from longpoll_judge.contract.result import ANSWER_IS_RIGHT, HELD_AS_ASKED
from longpoll_judge.rules.holding import judge_handling
from longpoll_judge.rules.pull_answers import SYSTEM_ERROR, judge_codes
from longpoll_judge.rules.queue_columns import STEPS

Found = list[tuple[str, str, list[str]]]

# -- codes -------------------------------------------------------------------------------------------------------------

STRANGE: Final = 9
"""A code that no broker gives to a pull."""
KNOWN, EXPLAINED = "pull.code.known", "pull.error.explained?"
EXCHANGE: Final = ["request_received", "answer_sent"]
LOG: Final = event("append", 0, queue_offset=0)


def codes(*answers: tuple[int | None, Row], log: tuple[Row, ...] = (LOG,)) -> Found:
    """The findings about pulls at offsets from 5 on, each with its answer's code and extra fields."""
    rows = [*log]
    for number, (code, fields) in enumerate(answers):
        rows.append(asked(1, f"r{number}", offset=5 + number, **fields))
        ends = {} if code in PULL_RESULTS else dict.fromkeys(("offset_next", "offset_min", "offset_max"), -1)
        rows += [told(2, code, f"r{number}", **ends)] if code is not None else []
    case = case_of(rows, context())
    suspects = judge_codes(case)
    assert {(each.property, each.is_timeless) for each in suspects} <= {(ANSWER_IS_RIGHT, True)}
    assert all((each.rows == case.pulls.row[each.members]).all() for each in suspects)
    return said(suspects, case)


SQL: Final[Row] = {"expression_type": "SQL92"}


@pytest.mark.parametrize(
    ("answers", "clauses"),
    [
        *(([(code, SQL)], []) for code in (*PULL_RESULTS, *PULL_REFUSALS, -1, None)),
        ([], []),
        ([(SYSTEM_ERROR, {"count_max": 0})], [EXPLAINED]),
        ([(SYSTEM_ERROR, {"count_max": -1}), (SYSTEM_ERROR, SQL)], []),
        ([(SYSTEM_ERROR, SQL), (SYSTEM_ERROR, {}), (0, {"expression_type": "a"})], [EXPLAINED]),
        ([(STRANGE, {}), (SYSTEM_ERROR, {}), (16, {})], [KNOWN, EXPLAINED]),
    ],
    ids=str,
)
def test_a_code_may_be_wrong_or_unexplained(answers: list[tuple[int | None, Row]], clauses: list[str]) -> None:
    """A failure is explained by another kind of subscription, or by a count below 0."""
    assert [clause for clause, _why, _rows in codes(*answers)] == clauses


def test_a_wrong_code_is_told_with_its_exchange() -> None:
    pull = "a pull at offset 6 was answered with code"
    others: list[tuple[int | None, Row]] = [(0, {}), (2, {}), (-1, {}), (None, {})]
    found = codes(others[0], (STRANGE, {}), *others[1:])
    assert found == [(KNOWN, f"{pull} {STRANGE}, which no broker gives to a pull", EXCHANGE)]
    why = f"{pull} 1, a failure, although its queue has messages and its subscription is one of tags"
    assert codes((2, {}), (SYSTEM_ERROR, {})) == [(EXPLAINED, why, EXCHANGE)]
    assert codes((SYSTEM_ERROR, {}), log=()) == []


# -- steps -------------------------------------------------------------------------------------------------------------

TABLE = {"pull.step.held", "pull.take.once"}
ALLOWED, LATER, UNANSWERED = "pull.step.allowed", "pull.step.after_request", "pull.step.unanswered"


def step(name: str, at: float | tuple[float, float], request: str = "r") -> Row:
    """Something was done with a pull."""
    return event(name, at, request=request)


def pulled(request: str = "r", *, code: int | None = 19, **fields: Any) -> list[Row]:
    """A pull that was received between 10 and 20 and answered between 100 and 110."""
    answer = [] if code is None else [told((100, 110), code, request)]
    return [asked((10, 20), request, **fields), *answer]


def steps(*rows: Row, **known: Any) -> Found:
    """The findings about the steps of a queue."""
    case = case_of(rows, context(**known))
    suspects = judge_handling(case)
    assert {(each.property, each.verdict) for each in suspects if len(each.members)} <= {(HELD_AS_ASKED, "violated")}
    return said(suspects, case)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("moments", "may_hold", "clause", "words"),
    [
        ([10, 50, 110], True, "", ""),
        ([(5, 10), (110, 200)], True, "", ""),
        ([(5, 9)], True, LATER, "came later"),
        ([111], True, UNANSWERED, "was answered before"),
        ([50], False, ALLOWED, "may not be held"),
    ],
)
def test_a_step_is_taken_while_its_pull_waits(
    name: str, moments: list[Any], may_hold: bool, clause: str, words: str
) -> None:
    """From the moment when it may have come until the moment when its answer may have been sent."""
    why = f"a pull at offset 3 has the step {name!r}, and {words}"
    shown = ["request_received", name, "answer_sent"]
    # As often taken as kept, and never before it is held.
    held = [step("hold", 15), *(step("keep" if name == "take" else "take", 60) for _ in moments)] if may_hold else []
    found = steps(*pulled(may_hold=may_hold), *(step(name, at) for at in moments), *held)
    assert [one for one in found if one[0] not in TABLE] == ([(clause, why, shown)] if clause else [])


@pytest.mark.parametrize("code", [None, -1])
def test_a_pull_without_an_answer_may_be_handled_for_ever(code: int | None) -> None:
    """So may one whose answer is damaged; what else is found of them shows no answer."""
    assert steps(*pulled(code=code), step("hold", 30), step("take", 10_000)) == []
    assert [rows for _clause, _why, rows in steps(*pulled(code=code), step("take", 5))] == [
        ["request_received", "take"]
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [*pulled(may_hold=False), step("hold", 5), step("recheck", 500)],
        [*pulled(may_hold=False), step("take", 50, "other"), step("keep", 50, "")],
        [*pulled("", may_hold=False), step("take", 50, "")],
        [step("take", 50)],
        pulled(may_hold=False),
    ],
    ids=["no steps", "of other requests", "without a name", "no pull", "nothing done"],
)
def test_other_events_are_left_out(rows: list[Row]) -> None:
    """A hold and the look at the log after it are judged elsewhere."""
    assert steps(*rows) == []


def test_each_step_belongs_to_its_pull() -> None:
    """Suspects are in the order of the record; one step may break several clauses."""
    pulls = [*pulled("a"), *pulled("b", may_hold=False, offset=6), *pulled("c", may_hold=False, offset=8)]
    rows = [
        *pulls,
        step("hold", 40, "a"),
        step("run", 50, "a"),
        step("keep", 51, "c"),
        step("take", 52, "b"),
        step("take", 60, "x"),
    ]
    assert [why for _clause, why, _rows in steps(*rows)] == [
        "a pull at offset 8 has the step 'keep', and may not be held",
        "a pull at offset 6 has the step 'take', and may not be held",
    ]
    many = steps(*pulled(may_hold=False), step("stop", 1), step("take", 2), step("run", 500), step("hold", 1))
    assert [(clause, rows[1]) for clause, _why, rows in many] == [
        *((ALLOWED, name) for name in ("stop", "take", "run")),
        *((LATER, name) for name in ("stop", "take")),
        (UNANSWERED, "run"),
    ]


def test_a_clause_may_hold_whatever_the_moments_are() -> None:
    known = context(sources={"s": facts(is_steady=False)})
    suspects = judge_handling(case_of([*pulled(may_hold=False), step("stop", 1)], known))
    assert {each.explain(0).clause: each.is_timeless for each in suspects if len(each.members)} == {
        ALLOWED: True,
        LATER: False,
    }


HELD, ONCE, DUE = "pull.step.held", "pull.take.once", "pull.hold.not_early"


@pytest.mark.parametrize(
    ("done", "known", "clauses"),
    [
        ([("hold", 20), ("take", 30), ("keep", 40), ("take", 50), ("run", 60)], {}, []),
        ([("take", 30)], {}, [HELD]),
        ([("take", 30), ("run", 40)], {}, [HELD]),
        ([("stop", 30)], {}, []),
        ([("take", 30), ("hold", 105)], {}, [HELD]),
        ([("take", 30), ("hold", 111)], {}, []),
        ([("take", 30)], {"lawful": frozenset({"s"})}, []),
        ([("take", 30), ("take", 40), ("hold", 20)], {}, [ONCE]),
        ([("take", 30), ("take", 40), ("hold", 20)], {"lawful": frozenset({"s"})}, []),
        ([("take", 30), ("take", 40), ("hold", 20)], {"sources": {"s": facts(holes=holes((32, 33)))}}, [ONCE + "?"]),
        ([("take", 30), ("take", 31), ("keep", 31), ("hold", 20)], {}, []),
        ([("run", 30), ("run", 40), ("hold", 20)], {}, [ONCE]),
        ([("run", 30), ("run", 40), ("hold", 20), ("recheck", 25)], {}, []),
        ([("hold", 20), ("take", 25), ("expire", 105), ("take", 106), ("keep", 103)], {}, [ONCE]),
        ([("hold", 20), ("take", 25), ("expire", 104), ("keep", 105), ("take", 106)], {}, []),
    ],
)  # fmt: skip
def test_the_table_has_what_was_put_into_it(done: list[tuple[str, float]], known: Row, clauses: list[str]) -> None:
    """A pull is taken as often as it was put there, of those that a law does not judge and a stop does not empty."""
    case = case_of([*pulled(), *(step(name, at) for name, at in done)], context(**known))
    assert [clause for clause, _why, _rows in said(judge_handling(case), case)] == clauses


def test_a_step_that_is_written_twice_counts_once() -> None:
    """Its number in the record is the same."""
    rows = [*pulled(), step("hold", 20), *(step("take", 30) | {"sequence": 9} for _ in range(2))]
    assert steps(*rows) == []


@pytest.mark.parametrize(
    ("at", "fields", "is_early"),
    [(99, {}, True), (100, {}, False), (99, {"code": None}, True), (99, {"code": 19}, False), (9, {}, False)],
)
def test_a_held_pull_expires_at_its_deadline(at: float, fields: Row, *, is_early: bool) -> None:
    """Within what is allowed; an early answer 19, and what is out of its time, break other clauses."""
    made: Row = {"code": 0, "timeout_ms": 100} | fields
    rows = [*pulled(**made), step("hold", 20), step("expire", at)]
    assert [clause for clause, _why, _rows in steps(*rows) if clause == DUE] == [DUE] * is_early
