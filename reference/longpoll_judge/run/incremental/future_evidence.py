"""Finds what later events may still change about judged pulls. `queue_judge` uses it."""

from __future__ import annotations

import numpy as np

from longpoll_judge.columns.lookup import Booleans
from longpoll_judge.contract.clause import STOPPED_MS
from longpoll_judge.rules.queue_case import NO_NEW_MSG, Case
from longpoll_judge.rules.queue_columns import MS
from longpoll_judge.run.window_pulls import asked_range


def may_stop(case: Case, settled_ns: int) -> Booleans:
    """Which pulls got an early empty answer that the end of their source may explain (`holding`)."""
    pulls = case.pulls
    code = np.where(pulls.is_answered, case.events.integers("code", pulls.answer_row), -1)
    is_early = pulls.answered_before_ns < pulls.received_before_ns + pulls.timeout_ns
    may_end = pulls.answered_before_ns >= settled_ns - STOPPED_MS * MS
    found: Booleans = (code == NO_NEW_MSG) & is_early & may_end
    return found


def reached_by(case: Case) -> int:
    """How far up the log the pulls of a case looked: not at a message that was not there when they were answered."""
    _lowest, highest, has_body, _last = asked_range(case)
    told = case.events.integers("offset_next", case.pulls.answer_row)
    saw = (told > case.pulls.offset) | (highest > case.pulls.offset + 1)
    saw[has_body] = True
    return int(np.where(saw, highest, case.pulls.offset).max())
