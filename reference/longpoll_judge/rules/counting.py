"""How much was judged: of all, and for each property; a property of which nothing was judged is not applicable.

Leaves out the verdict that needs something judged (`result.overall`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.contract.clause import PULL_RESULTS
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    HELD_AS_ASKED,
    NO_LOST_WAKEUP,
)
from longpoll_judge.rules.queue_case import Case

PULLS: Final = "pulls"


def judged_counts(case: Case) -> Iterator[tuple[str, int]]:
    """For each property of requests how many of one queue it was asked of; and how many pulls were judged."""
    pulls, events = case.pulls, case.events
    is_read = is_one_of(case.answer_code, PULL_RESULTS) & case.is_sound
    stopped = np.array([facts.stopped_ns is not None for facts in pulls.source_facts], dtype=np.bool_)
    yield PULLS, int(np.count_nonzero(is_read & case.is_decidable))
    yield NO_LOST_WAKEUP, int(np.count_nonzero(case.is_sound & case.is_decidable & pulls.was_held))
    yield ANSWERED_BY_DEADLINE, int(np.count_nonzero(case.is_sound & pulls.may_hold))
    if case.context.answers_on_stop and len(pulls):
        yield ANSWERED_ON_STOP, int(np.count_nonzero(stopped[pulls.source]))
    yield ANSWERED_ONCE, len(events.rows("answer_sent"))
    yield ANSWER_IS_RIGHT, int(np.count_nonzero(is_read))
    yield HELD_AS_ASKED, int(np.count_nonzero(pulls.is_answered))
