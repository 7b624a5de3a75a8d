"""Codes of answers to pulls: those that no broker gives, and failures that nothing explains; columns by hand.

Leaves out answers that tell of a read.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from attrs import frozen
from model_tests.judge.case_of_parts import CaseOfParts

from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.contract.clause import PULL_REFUSALS, PULL_RESULTS
from longpoll_judge.rules.pulls.codes import SYSTEM_ERROR, judge_codes

STRANGE: Final = 9
"""A code that no broker gives to a pull."""
ROW_STEP: Final = 2
"""Rows of the events by pull: its receipt and its answer."""
KNOWN, EXPLAINED = "pull.code.known", "pull.error.explained"


@frozen
class One:
    """A pull and the code of its answer; None of one without answer, -1 of a code that is not in the record."""

    code: int | None
    expression_type: str = "TAG"
    count_max: int = 32


def found(*ones: One, base: int = 0) -> list[tuple[str, str, list[int]]]:
    """Each finding: the clause, with a `?` after one that is not certain, the words and the rows."""
    names = sorted({one.expression_type for one in ones})
    kinds = np.array([names.index(one.expression_type) for one in ones], dtype=np.int64)
    rows = ROW_STEP * np.arange(len(ones))
    codes = np.array([-7 if code is None else code for one in ones for code in (-7, one.code)], dtype=np.int64)
    case: Any = CaseOfParts(
        is_answered=np.array([one.code not in {None, -1} for one in ones], dtype=np.bool_),
        pulls=SimpleNamespace(
            row=rows,
            answer_row=rows + 1,
            is_answered=np.array([one.code is not None for one in ones], dtype=np.bool_),
            count_max=np.array([one.count_max for one in ones], dtype=np.int64),
            offset=np.arange(len(ones)) + 5,
        ),
        events=SimpleNamespace(
            integers=lambda name, at: {"code": codes}[name][at],
            codes=lambda name, at: ({"expression_type": kinds}[name][at // ROW_STEP], names),
        ),
        log=SimpleNamespace(base=base),
    )
    told = []
    for each in judge_codes(case):
        assert each.property == "answer_is_right"
        assert each.is_timeless
        assert each.rows.tolist() == (ROW_STEP * each.members).tolist()
        for member in each.members.tolist():
            one = each.explain(member)
            told.append((one.clause + "?" * (each.verdict == "unknown"), one.why, one.rows))
    return told


def clauses(*ones: One, base: int = 0) -> list[str]:
    """The clauses alone."""
    return [clause for clause, _why, _rows in found(*ones, base=base)]


@pytest.mark.parametrize("code", [*PULL_RESULTS, *PULL_REFUSALS, -1, None])
def test_what_brokers_answer_is_in_order(code: int | None) -> None:
    """Reads and refusals; a code that is not in the record is damage, and no answer is another property's."""
    assert clauses(One(code, expression_type="SQL92")) == []


def test_of_no_pulls_nothing_is_said() -> None:
    """A queue may have none."""
    assert found() == []


def test_a_code_that_no_broker_gives_is_found() -> None:
    """With the pull and its answer, and nothing of the pulls beside it; it is certain."""
    assert found(One(0), One(STRANGE), One(2), One(-1), One(None)) == [
        (KNOWN, f"a pull at offset 6 was answered with code {STRANGE}, which no broker gives to a pull", [2, 3])
    ]


def test_a_failure_that_nothing_explains_is_found() -> None:
    """Its queue has messages and it wants tags, so there is something to read; that is not certain."""
    asked = "a pull at offset 6 was answered with code 1"
    why = f"{asked}, a failure, although its queue has messages and its subscription is one of tags"
    assert found(One(2), One(SYSTEM_ERROR)) == [(EXPLAINED + "?", why, [2, 3])]
    assert clauses(One(SYSTEM_ERROR, count_max=0)) == [EXPLAINED + "?"]


def test_a_failure_may_be_explained() -> None:
    """By another kind of subscription, by a count below 0, and by a queue of which no message is known."""
    assert clauses(One(SYSTEM_ERROR, expression_type="SQL92"), One(SYSTEM_ERROR, count_max=-1)) == []
    assert clauses(One(SYSTEM_ERROR), base=NEVER) == []
    assert clauses(One(SYSTEM_ERROR), base=NEVER - 1) == [EXPLAINED + "?"]
    mixed = clauses(One(SYSTEM_ERROR, expression_type="SQL92"), One(SYSTEM_ERROR), One(0, expression_type="a"))
    assert mixed == [EXPLAINED + "?"]


def test_other_refusals_need_no_explanation() -> None:
    """A broker that may not be read says so with a code of its own."""
    assert clauses(One(16), One(26)) == []
    assert clauses(One(STRANGE), One(SYSTEM_ERROR), One(16)) == [KNOWN, EXPLAINED + "?"]
