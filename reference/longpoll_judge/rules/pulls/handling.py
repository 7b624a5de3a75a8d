"""held_as_asked: what a broker does with a held pull, as its inside tells it: not before it came, nor after its answer.

A pull is taken out of the table and put back, expires, is run again, or is answered by a stop; only while it waits.
Leaves out the hold itself (`holding`), and the look at the log after it (`recheck`), which may come after the answer.

Source: `PullRequestHoldService` 4.9 and 5.x, and the phases of the law.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from longpoll_judge.contract.result import HELD_AS_ASKED
from longpoll_judge.rules.case import Booleans, Case, Explanation, Suspects, suspects
from longpoll_judge.rules.steps import STEPS


def judge_handling(case: Case) -> list[Suspects]:
    """Judge what was done with the pulls of one queue; members are places among the steps."""
    pulls, events = case.pulls, case.events
    rows = np.sort(np.concatenate([events.rows(name) for name in STEPS]))
    rows = rows[events.request_key[rows] >= 0]
    if not len(rows) or not len(pulls):
        return []
    pull = events.batch.look_up(events.request_key[rows], events.request_key[pulls.row], np.arange(len(pulls)))
    # Steps of requests that are not in the record, or are no pulls of this queue, are left out.
    rows, pull = rows[pull >= 0], pull[pull >= 0]
    answered = case.is_answered[pull]

    def told(clause: str, words: str) -> Callable[[int], Explanation]:
        def explain(member: int) -> Explanation:
            one, row = int(pull[member]), int(rows[member])
            shown = [int(pulls.row[one]), row, *([int(pulls.answer_row[one])] if answered[member] else [])]
            why = f"a pull at offset {pulls.offset[one]} has the step {events.text('event', row)!r}, and {words}"
            return Explanation(clause, why, shown)

        return explain

    after_ns, before_ns = events.integers("after_ns", rows), events.integers("before_ns", rows)
    rules: tuple[tuple[str, Booleans, str], ...] = (
        ("pull.step.allowed", ~pulls.may_hold[pull], "may not be held"),
        ("pull.step.after_request", before_ns < pulls.received_after_ns[pull], "came later"),
        ("pull.step.unanswered", answered & (pulls.answered_before_ns[pull] < after_ns), "was answered before"),
    )
    found: list[Suspects] = []
    for clause, broken, words in rules:
        if broken.any():
            nothing, is_timeless = np.zeros_like(broken), case.is_timeless(clause)
            found += suspects(HELD_AS_ASKED, broken, nothing, rows, told(clause, words), is_timeless=is_timeless)
    return found
