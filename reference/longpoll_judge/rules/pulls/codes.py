"""Response codes to pulls: only known codes, and no failure without an explanation.

A refusal shows that the broker read nothing; a history mostly cannot show whether it was right (`contract.pulls`).
Answers to a read: `rightness`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.contract.clause import PULL_REFUSALS, PULL_RESULTS
from longpoll_judge.contract.result import ANSWER_IS_RIGHT
from longpoll_judge.evidence.generations import NEITHER
from longpoll_judge.rules.queue_case import Case, Explanation, Suspects, suspects

SYSTEM_ERROR: Final = 1
TAG: Final = "TAG"


def judge_codes(case: Case) -> list[Suspects]:
    """Judge the codes of the answers to one queue's pulls; members are indices of pulls."""
    pulls = case.pulls
    code = case.answer_code
    # Without damaged ones, whose code is not in the record, or which may be another request's.
    is_refused = case.is_answered & ~is_one_of(code, PULL_RESULTS)
    if not is_refused.any():
        return []
    strange = is_refused & ~is_one_of(code, PULL_REFUSALS)
    # A queue of which a message is known, a subscription of tags and a count that makes sense: nothing explains a
    # failure.
    has_messages = case.log.base < NEVER or (case.life is not None and case.life.number == NEITHER)
    failed = is_refused & (code == SYSTEM_ERROR) & has_messages
    kinds, names = case.events.codes("expression_type", pulls.row)
    failed &= np.array([name == TAG for name in names], dtype=np.bool_)[kinds] & (pulls.count_max >= 0)

    def explain(pull: int) -> Explanation:
        rows = [int(pulls.row[pull]), int(pulls.answer_row[pull])]
        asked = f"a pull at offset {pulls.offset[pull]} was answered with code {code[pull]}"
        if strange[pull]:
            return Explanation("pull.code.known", f"{asked}, which no broker gives to a pull", rows)
        why = f"{asked}, a failure, although its queue has messages and its subscription is one of tags"
        return Explanation("pull.error.explained", why, rows)

    return suspects(ANSWER_IS_RIGHT, strange, failed, pulls.row, explain, is_timeless=True)
