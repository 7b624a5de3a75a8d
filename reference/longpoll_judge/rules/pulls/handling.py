"""held_as_asked: what a broker does with a held pull, as its inside tells it: not before it came, nor after its answer.

A pull is taken out of the table and put back, expires, is run again, or is answered by a stop; only while it waits.
Leaves out the hold itself (`holding`), and the look at the log after it (`recheck`), which may come after the answer.

Source: `PullRequestHoldService` 4.9 and 5.x, and the phases of the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from longpoll_judge.columns.queue_log import NEVER, Integers
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
        ("pull.step.allowed", (~pulls.may_hold & pulls.hold_is_told)[pull], "may not be held"),
        ("pull.step.after_request", before_ns < pulls.received_after_ns[pull], "came later"),
        ("pull.step.unanswered", answered & (pulls.answered_before_ns[pull] < after_ns), "was answered before"),
    )
    found = [*_table(case, rows, pull)]
    for clause, broken, words in rules:
        if broken.any():
            nothing, is_timeless = np.zeros_like(broken), case.is_timeless(clause)
            found += suspects(HELD_AS_ASKED, broken, nothing, rows, told(clause, words), is_timeless=is_timeless)
    return found


def _table(case: Case, rows: Integers, pull: Integers) -> Iterator[Suspects]:
    """What contradicts the table of held pulls: a step of one that is not in it, and one that is taken out twice."""
    pulls, events = case.pulls, case.events
    holds = events.rows("hold")
    holds = holds[events.request_key[holds] >= 0]
    held = events.batch.look_up(events.request_key[holds], events.request_key[pulls.row], np.arange(len(pulls)))
    holds, held = holds[held >= 0], held[held >= 0]
    first_ns = np.full(len(pulls), NEVER, dtype=np.int64)
    np.minimum.at(first_ns, held, events.integers("after_ns", holds))
    before_ns = events.integers("before_ns", rows)
    counts = {"hold": np.bincount(held, minlength=len(pulls))}
    for name in ("take", "keep"):
        counts[name] = np.bincount(pull[np.isin(rows, events.rows(name))], minlength=len(pulls))
    again = (counts["take"] > counts["hold"] + counts["keep"]) & (counts["hold"] > 0)
    again |= (counts["keep"] > counts["take"]) & (counts["hold"] > 0)
    last_ns = np.zeros(len(pulls), dtype=np.int64)
    np.maximum.at(last_ns, pull, before_ns)
    # A field that is missing never accuses: neither does the answer of such a pull.
    whole = case.is_watched(pulls.received_after_ns, last_ns) & case.is_sound
    sources, names = events.codes("source", pulls.row)
    # A law judges its own steps.
    lawful = np.array([name in case.context.lawful for name in names], dtype=np.bool_)[sources]
    whole_of, lawful_of = whole[pull], lawful[pull]
    # What is not allowed to be held, not there yet, or answered, is told as that.
    early = (before_ns < first_ns[pull]) & ~lawful_of & pulls.may_hold[pull]
    answered_ns = np.where(case.is_answered, pulls.answered_before_ns, NEVER)[pull]
    # So is a hold after the answer. A stop answers what it finds on its way to the table, too.
    early &= ~np.isin(rows, events.rows("stop"))
    early &= (first_ns[pull] == NEVER) | (first_ns[pull] <= answered_ns)
    early &= (before_ns >= pulls.received_after_ns[pull]) & (events.integers("after_ns", rows) <= answered_ns)

    def explain_early(member: int) -> Explanation:
        one, row = int(pull[member]), int(rows[member])
        first = holds[held == one][:1].tolist()
        how = "is held only later" if first else "was never held"
        why = f"a pull at offset {pulls.offset[one]} has the step {events.text('event', row)!r}, and {how}"
        return Explanation("pull.step.held", why, [int(pulls.row[one]), *first, row])

    def explain_again(one: int) -> Explanation:
        steps = [row for row in rows[pull == one].tolist() if events.text("event", row) in {"take", "keep"}]
        times = ", ".join(f"{counts[name][one]} times by a {name}" for name in ("hold", "take", "keep"))
        why = f"a pull at offset {pulls.offset[one]} is told of in the table of held pulls: {times}"
        return Explanation("pull.take.once", why, [int(pulls.row[one]), *holds[held == one].tolist(), *steps])

    # The first such step of a pull is told.
    is_first = np.zeros(len(rows), dtype=np.bool_)
    is_first[np.unique(np.where(early, pull, -1), return_index=True)[1]] = True
    early &= is_first
    again &= ~lawful
    yield from suspects(HELD_AS_ASKED, early & whole_of, early & ~whole_of, rows, explain_early)
    yield from suspects(HELD_AS_ASKED, again & whole, again & ~whole, pulls.row, explain_again)
