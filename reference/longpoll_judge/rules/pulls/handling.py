"""held_as_asked: what a broker does with a held pull, as its inside tells it: not before it came, nor after its answer.

A pull is taken out of the table and put back, expires, is run again, or is answered by a stop; only while it waits.
It expires at its deadline.
Leaves out the hold itself (`holding`), and the look at the log after it (`recheck`), which may come after the answer.

Source: `PullRequestHoldService` 4.9 and 5.x, and the phases of the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from longpoll_judge.columns.queue_log import BEGINNING, NEVER, Integers
from longpoll_judge.contract.result import HELD_AS_ASKED
from longpoll_judge.rules.answers import NO_NEW_MSG
from longpoll_judge.rules.queue_case import Booleans, Case, Explanation, Suspects, suspects
from longpoll_judge.rules.queue_columns import STEPS

AT_TABLE: Final = ("take", "keep", "expire", "run")
"""Steps that put a pull into the table of held pulls, take it out, or follow from that."""


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
    # What is out of its time is told as that, and so is an early answer 19 (`holding`).
    early = np.isin(rows, events.rows("expire")) & (case.is_sound & pulls.may_hold)[pull]
    early &= (case.answer_code != NO_NEW_MSG)[pull] & ~rules[1][1] & ~rules[2][1]
    early &= before_ns + case.context.late_ns < (pulls.received_after_ns + pulls.timeout_ns)[pull]
    rules += (("pull.hold.not_early", early, "had time left until its deadline"),)
    found = [*_table(case, rows, pull)]
    for clause, broken, words in rules:
        if broken.any():
            nothing, is_timeless = np.zeros_like(broken), case.is_timeless(clause)
            found += suspects(HELD_AS_ASKED, broken, nothing, rows, told(clause, words), is_timeless=is_timeless)
    return found


def _table(case: Case, rows: Integers, pull: Integers) -> Iterator[Suspects]:
    """Contradictions in the table of held pulls: a step of a pull outside it, and a pull that is taken out twice."""
    pulls, events = case.pulls, case.events
    holds = events.rows("hold")
    holds = holds[events.request_key[holds] >= 0]
    held = events.batch.look_up(events.request_key[holds], events.request_key[pulls.row], np.arange(len(pulls)))
    holds, held = holds[held >= 0], held[held >= 0]
    first_ns = np.full(len(pulls), NEVER, dtype=np.int64)
    np.minimum.at(first_ns, held, events.integers("after_ns", holds))
    before_ns = events.integers("before_ns", rows)
    steps = {name: events.rows(name) for name in ("hold", *AT_TABLE, "recheck")}
    owners = {name: _owner(case, rows) for name, rows in steps.items()}
    counts = {name: np.bincount(owner[owner >= 0], minlength=len(pulls)) for name, owner in owners.items()}
    again = _overdrawn(case, steps, owners, ("hold", "keep"), ("take",))
    again |= _overdrawn(case, steps, owners, ("take",), ("keep",)) | (
        counts["expire"] > counts["hold"] + counts["keep"]
    )
    # What a scan has taken may expire in its hands; what has expired is not in the table, unless it is kept again.
    expired_ns = _first(case, steps, owners, "expire")
    again |= (expired_ns < _last(case, steps, owners, "take")) & (_last(case, steps, owners, "keep") < expired_ns)
    # A recheck may have queued the pull a second time, as RocketMQ's does: then it may run twice.
    kept_on = _first(case, steps, owners, "run") < _last(case, steps, owners, "keep")
    again |= (counts["recheck"] == 0) & ((counts["run"] > counts["hold"]) | kept_on)
    again &= counts["hold"] > 0
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
        steps = [row for row in rows[pull == one].tolist() if events.text("event", row) in AT_TABLE]
        told = [name for name in ("hold", *AT_TABLE) if counts[name][one]]
        times = ", ".join(f"{counts[name][one]} times by a {name}" for name in told)
        why = f"a pull at offset {pulls.offset[one]} is told of in the table of held pulls: {times}"
        return Explanation("pull.take.once", why, [int(pulls.row[one]), *holds[held == one].tolist(), *steps])

    # The first such step of a pull is told.
    is_first = np.zeros(len(rows), dtype=np.bool_)
    is_first[np.unique(np.where(early, pull, -1), return_index=True)[1]] = True
    early &= is_first
    again &= ~lawful
    yield from suspects(HELD_AS_ASKED, early & whole_of, early & ~whole_of, rows, explain_early)
    yield from suspects(HELD_AS_ASKED, again & whole, again & ~whole, pulls.row, explain_again)


def _owner(case: Case, rows: Integers) -> Integers:
    """The pull of each step; -1 if it is not of this queue, or if another clause covers the step.

    Another clause covers a step before its pull's receipt or after its answer. A step that is written twice counts
    once.
    """
    events, pulls = case.events, case.pulls
    owner = events.batch.look_up(events.request_key[rows], events.request_key[pulls.row], np.arange(len(pulls)))
    if not len(rows) or not len(pulls):
        return owner
    early = events.integers("before_ns", rows) < pulls.received_after_ns[owner]
    late = case.is_answered[owner] & (pulls.answered_before_ns[owner] < events.integers("after_ns", rows))
    same = np.stack([events.codes("source", rows)[0].astype(np.int64), events.integers("sequence", rows)])
    again = np.ones(len(rows), dtype=np.bool_)
    again[np.unique(same, axis=1, return_index=True)[1]] = False
    return np.where(early | late | again, -1, owner)


def _first(case: Case, steps: Mapping[str, Integers], owners: Mapping[str, Integers], name: str) -> Integers:
    """Of each pull when the first such step was done at the latest; `NEVER` where there is none."""
    found = np.full(len(case.pulls), NEVER, dtype=np.int64)
    mine = owners[name] >= 0
    np.minimum.at(found, owners[name][mine], case.events.integers("before_ns", steps[name])[mine])
    return found


def _last(case: Case, steps: Mapping[str, Integers], owners: Mapping[str, Integers], name: str) -> Integers:
    """Of each pull when the last such step was begun at the earliest; `BEGINNING` where there is none."""
    found = np.full(len(case.pulls), BEGINNING, dtype=np.int64)
    mine = owners[name] >= 0
    np.maximum.at(found, owners[name][mine], case.events.integers("after_ns", steps[name])[mine])
    return found


def _overdrawn(
    case: Case,
    steps: Mapping[str, Integers],
    owners: Mapping[str, Integers],
    ins: tuple[str, ...],
    outs: tuple[str, ...],
) -> Booleans:
    """Of which pulls more steps of `outs` were done by some moment than steps of `ins` may have been begun."""
    owner = np.concatenate([owners[name] for name in (*ins, *outs)])
    change = np.concatenate([np.full(len(owners[name]), 1 if name in ins else -1) for name in (*ins, *outs)])
    moment_ns = np.concatenate(
        [case.events.integers("after_ns" if name in ins else "before_ns", steps[name]) for name in (*ins, *outs)]
    )
    # A step before the hold is told as that.
    moment_ns[: len(steps[ins[0]]) if ins[0] == "hold" else 0] = BEGINNING
    order = np.lexsort((-change, moment_ns, owner))
    order = order[owner[order] >= 0]
    owner, balance = owner[order], np.cumsum(change[order])
    found = np.zeros(len(case.pulls), dtype=np.bool_)
    if len(owner):
        starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
        before = np.append(0, balance)[starts]
        found[owner[balance < before[np.searchsorted(starts, np.arange(len(owner)), side="right") - 1]]] = True
    return found
