"""held_as_asked: which pulls may be held, for how long, and by which steps. `hold_limit` counts the held pulls.

A pull is held only if it permits holding, only once, only at the end of its queue, and not longer than it requested. An
observer outside the broker knows only from the time of the answer how long a pull was held; an observer inside records
the event `hold`. A held pull is taken out of the table and put back, expires at its deadline, is run again, or is
answered because the broker stops. The recheck of the log after a hold may come after the answer. `promptness` judges
pulls that were held too long.

Source: `PullMessageProcessor.processRequest`, `PullRequestHoldService` 4.9 and 5.x, and the specification's phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from longpoll_judge.columns.lookup import BEGINNING, NEVER, Booleans, Integers, is_one_of
from longpoll_judge.contract.clause import COLD_MS, PULL_RESULTS, SHORT_POLLING_MS, STOPPED_MS, STOPPING_MS, UNHELD_MS
from longpoll_judge.contract.result import HELD_AS_ASKED
from longpoll_judge.kernel.case import (
    FOUND,
    NO_MATCHED_MSG,
    NO_NEW_MSG,
    OFFSET_ILLEGAL,
    Case,
    Explanation,
    Suspects,
    ms,
    suspects,
)
from longpoll_judge.kernel.gathered import closes_from, gather
from longpoll_judge.kernel.pulls import MS, STEPS

STOPPED: Final = "stopped"
"""The cause of an answer that a stopping broker sent without reading the store again."""


def judge_holding(case: Case) -> list[Suspects]:
    """Judge how the pulls were held; the members of the returned suspects are indices of pulls."""
    if not len(case.pulls):
        return []
    return [*_early(case), *_unheld(case), *_holds(case)]


def is_stopping(case: Case, pull: Integers) -> tuple[Booleans, Booleans]:
    """Returns which of these pulls were likely, and which were possibly, answered because their broker stopped.

    In a record from inside the broker, the answer names the stop as its cause, and the source ends. In a record from
    outside, the connection closes soon after the answer. Other connections probably close too, but the connections of a
    proxy may stay open.
    """
    pulls = case.pulls
    told, _perhaps = is_told_to_stop(case, pull)
    soon_ns = pulls.answered_before_ns[pull] + STOPPING_MS * MS
    # A stopping broker closes the connections on which it has answered, so an answer on a connection that stays open is
    # no sign of a stop.
    closes = _closes_after(case, pull) <= soon_ns
    if case.context.stops_silently:
        closes &= False
    ends = pulls.last_ns[pull] <= soon_ns
    for name in case.context.sources:
        mine = case.events.are("source", pulls.row[pull], {name}) & case.is_outside[pull]
        ends |= mine & (case.context.all_closed_ns(name, pulls.answered_after_ns[pull]) <= soon_ns)
    return told | (closes & ends), closes


def _closes_after(case: Case, pull: Integers) -> Integers:
    """Returns when each pull's connection may have been closed after its answer; `NEVER` if it was not closed."""
    asked = gather(case.events.table, case.pulls.row[pull])
    return closes_from(asked, case.pulls.answered_after_ns[pull], case.context)[0]


def is_told_to_stop(case: Case, pull: Integers) -> tuple[Booleans, Booleans]:
    """Which pulls a stop certainly answered, and which it possibly answered, by the record of an inside observer.

    Such an answer counts only if the source ends soon after it, because a source that continues for long did not stop.
    An answer after a role change names the same cause, and no event records the role change.
    """
    pulls = case.pulls
    if STOPPED not in case.events.names_of("cause")[1] and not len(case.events.rows("stop")):
        return np.zeros(len(pull), dtype=np.bool_), np.zeros(len(pull), dtype=np.bool_)
    # A record from outside the broker has no causes.
    says = case.events.are("cause", pulls.answer_row[pull], {STOPPED}) & ~case.is_outside[pull]
    told = says | (case.events.answer_to(case.events.request_key[pulls.row[pull]], "stop") >= 0)
    went_on_ns = pulls.last_ns[pull] - pulls.answered_before_ns[pull]
    # A source that continues did not stop, whatever its answer says. If the source ends soon, or if its role may
    # change, the source may have stopped.
    ends = went_on_ns <= STOPPING_MS * MS
    may_end = (went_on_ns <= STOPPED_MS * MS) | (says & (not case.context.keeps_role))
    return told & ends, told & ~ends & may_end


def may_have_stopped(case: Case, pull: Integers) -> Booleans:
    """Returns for which of these answered pulls it is unknown whether their broker stopped.

    The evidence of a stop may lie in a gap or after the end of the record. If the observer is outside the broker, a
    clock that was set forward may also make the evidence look late.
    """
    pulls = case.pulls
    if case.context.stops_silently:
        return np.zeros(len(pull), dtype=np.bool_)
    until_ns = pulls.answered_before_ns + STOPPING_MS * MS
    hidden = ~case.is_watched(pulls.received_after_ns, until_ns)
    settable = case.events.are("source", pulls.row, case.context.settable)
    closed_ns = np.full(len(pulls), NEVER, dtype=np.int64)
    closed_ns[pull] = _closes_after(case, pull)
    outside = case.is_outside
    # The record has no close of the connection, but it ends before the time limit for a close.
    unseen = outside & (closed_ns == NEVER) & (pulls.last_ns < until_ns)
    late = outside & settable & (closed_ns < NEVER)
    _told, perhaps = is_told_to_stop(case, pull)
    found: Booleans = (hidden | unseen | late)[pull] | perhaps
    return found


def _early(case: Case) -> list[Suspects]:
    pulls, late_ns = case.pulls, case.context.late_ns
    early_ns = pulls.received_after_ns + pulls.timeout_ns - pulls.answered_before_ns
    pull = np.flatnonzero(
        case.is_sound & pulls.may_hold & pulls.is_answered & (case.answer_code == NO_NEW_MSG) & (early_ns > late_ns)
    )
    if not len(pull):
        return []
    excused, weak = is_stopping(case, pull)
    for source, topic, after_ns, before_ns in case.context.deletions:
        mine = case.events.are("source", pulls.row[pull], {source})
        mine &= case.events.are("topic", pulls.row[pull], {topic}) if topic else True
        excused |= mine & (before_ns >= pulls.received_after_ns[pull]) & (after_ns <= pulls.answered_before_ns[pull])
    held_ns = pulls.answered_before_ns - pulls.received_after_ns
    weak |= may_have_stopped(case, pull) | case.has_rolled[pull]
    # A broker without long polling answers after `shortPollingTimeMills`, which looks the same from outside.
    weak |= case.is_outside[pull] & (held_ns[pull] >= SHORT_POLLING_MS * MS)

    def explain(member: int) -> Explanation:
        one = int(pull[member])
        asked = f"a pull at offset {pulls.offset[one]} that may be held for {ms(pulls.timeout_ns[one])}"
        why = f"{asked} was told that there is nothing new {ms(early_ns[one])} before its deadline, without a cause"
        return Explanation("pull.hold.not_early", why, [int(pulls.row[one]), int(pulls.answer_row[one])])

    return suspects(HELD_AS_ASKED, ~excused & ~weak, ~excused & weak, pulls.row[pull], explain)


def _unheld(case: Case) -> list[Suspects]:
    pulls = case.pulls
    allowed_ns = UNHELD_MS * MS + case.context.late_ns
    least = pulls.answered_after_ns - pulls.received_before_ns
    most = pulls.answered_before_ns - pulls.received_after_ns
    unheld, slow = ~pulls.may_hold & pulls.hold_is_told & case.is_answered, _cannot_be_held(case)
    is_judged = unheld | slow
    # The answer is certainly late, or late for only some of its possible times. A slow read gets the time limit of a
    # wake.
    late, may_be_late = is_judged & (least > allowed_ns), is_judged & (most > allowed_ns)
    may_be_late |= slow & (least > case.context.wake_ns) & ~case.logs.is_white_box[pulls.log]

    def explain(pull: int) -> Explanation:
        limit = f"allowed {ms(allowed_ns)}"
        if not (unheld[pull] or late[pull]):
            limit = f"slow over {ms(case.context.wake_ns)}, a violation over {ms(allowed_ns)}"
        took = f"{ms(max(least[pull], 0))} to {ms(most[pull])} after its receipt ({limit})"
        kind = "that may not be held" if unheld[pull] else f"whose answer {case.answer_code[pull]} is never held"
        slowly = "" if unheld[pull] else "slowly, "
        why = f"a pull at offset {pulls.offset[pull]} {kind} was answered {slowly}{took}"
        place = int(pulls.log[pull]), int(pulls.offset[pull])
        shown = (case.message_rows(*place) or case.delivered_rows(*place)) if slow[pull] else []
        return Explanation(
            "pull.unheld.prompt", why, [int(pulls.row[pull]), int(pulls.answer_row[pull])], shown, roots=[]
        )

    unread = case.is_unread(late, pulls.received_after_ns, pulls.answered_before_ns)
    violated = late & ~unread & ~(slow & case.has_rolled) & ~_may_be_cold(case)
    return suspects(HELD_AS_ASKED, violated, may_be_late & ~violated, pulls.row, explain)


def _may_be_cold(case: Case) -> Booleans:
    """Returns which pulls RocketMQ 5 may have delayed because they read old messages (`coldDataFlowControlEnable`)."""
    pulls = case.pulls
    after_ns, _before_ns = case.logs.growth.visible_between(pulls.log, pulls.offset)
    is_young = (after_ns > pulls.received_after_ns - COLD_MS * MS) & (after_ns < NEVER)
    is_short = pulls.answered_after_ns - pulls.received_before_ns <= COLD_MS * MS
    found: Booleans = ~is_young & is_short & is_one_of(case.answer_code, (FOUND, NO_MATCHED_MSG))
    return found & case.is_outside & (not case.context.is_own)


def _cannot_be_held(case: Case) -> Booleans:
    """Returns the pulls that permit holding but found a message at their first read, so they must be answered."""
    pulls, logs = case.pulls, case.logs
    found: Booleans = pulls.may_hold & case.is_sound & is_one_of(case.answer_code, PULL_RESULTS)
    # The end of a queue never falls, so an offset beyond the end at the answer was also beyond it at the receipt,
    # unless a deletion emptied the queue.
    past = (case.answer_code == OFFSET_ILLEGAL) & (pulls.offset > case.told("offset_max"))
    end = logs.end_at_least(pulls.log, pulls.received_after_ns)
    end = np.maximum(end, case.deliveries[0].end_at_least(pulls.log, pulls.received_after_ns))
    found &= (end > pulls.offset) | (past & ~case.lives.is_neither[pulls.log])
    # If a record from inside shows a hold, the clause about wakes judges the pull.
    return found & ~(logs.is_white_box[pulls.log] & pulls.was_held)


def _holds(case: Case) -> list[Suspects]:
    """Judge the `hold` events, which only a source inside the broker records."""
    pulls, events = case.pulls, case.events
    holds = events.rows("hold")
    holds = holds[events.request_key[holds] >= 0]
    if not len(holds):
        return []
    row = np.arange(len(pulls))
    pull = events.look_up(events.request_key[holds], events.request_key[pulls.row], row)
    # Skip holds whose requests were not recorded.
    holds, pull = holds[pull >= 0], pull[pull >= 0]
    first = events.firsts(holds, "hold")
    # A damaged answer may belong to another pull, so this pull counts as unanswered.
    answered_ns = np.where(case.is_answered, pulls.answered_before_ns, NEVER)[pull]
    # A different clause reports a hold that comes before its request.
    moment_ns = np.minimum(events.integers("before_ns", holds), answered_ns)
    moment_ns = np.maximum(moment_ns, pulls.received_after_ns[pull])
    end_most = case.logs.end_at_most(pulls.log[pull], moment_ns)
    whole = case.is_log_whole(holds, moment_ns)
    nothing = np.zeros(len(holds), dtype=np.bool_)
    after_ns = events.integers("after_ns", holds)
    # A pull is held only at the end of its queue. A pull with an offset beyond the end is answered at once (21).
    past = pulls.offset[pull] > end_most
    end_least = case.logs.end_at_least(pulls.log[pull], pulls.received_after_ns[pull])
    saw = events.integers("visible_end", holds)
    stale = (saw >= 0) & (saw < end_least) & case.logs.is_white_box[pulls.log[pull]]
    stale &= ~events.are("source", holds, case.context.lawful)

    def told(clause: str, say: Callable[[int, int], str]) -> Callable[[int], Explanation]:
        def explain(member: int) -> Explanation:
            one, hold = int(pull[member]), int(holds[member])
            rows = [int(pulls.row[one]), int(first[member]), hold]
            rows += [int(pulls.answer_row[one])] if pulls.answer_row[one] >= 0 else []
            last = [int(end_least[member]) - 1] if clause == "pull.hold.read" else []
            logged = [row for offset in last for row in case.message_rows(int(pulls.log[one]), offset)]
            return Explanation(clause, f"a pull at offset {pulls.offset[one]} {say(one, member)}", rows, logged, last)

        return explain

    rules: tuple[tuple[str, Booleans, Booleans, Callable[[int, int], str]], ...] = (
        (
            "pull.hold.allowed",
            (~pulls.may_hold & pulls.hold_is_told)[pull],
            nothing,
            lambda _one, _hold: "was held, and did not ask for it",
        ),
        (
            "pull.hold.after_request",
            events.integers("before_ns", holds) < pulls.received_after_ns[pull],
            nothing,
            lambda _one, _hold: "was held before it came",
        ),
        ("pull.hold.once", first < holds, nothing, lambda _one, _hold: "was held twice"),
        (
            "pull.hold.unanswered",
            answered_ns < after_ns,
            nothing,
            lambda one, hold: f"was held {ms(after_ns[hold] - pulls.answered_before_ns[one])} after its answer",
        ),
        (
            "pull.hold.at_end",
            past & whole,
            past & ~whole,
            lambda _one, hold: f"was held, though no more than {end_most[hold]} can have been visible",
        ),
        (
            "pull.hold.read",
            stale,
            nothing,
            lambda _one, hold: f"was held with the end {saw[hold]}, but {end_least[hold]} was visible before it came",
        ),
    )
    found: list[Suspects] = []
    for clause, violated, unknown, say in rules:
        timeless = case.are_timeless(clause, holds)
        found += suspects(HELD_AS_ASKED, violated, unknown, holds, told(clause, say), timeless=timeless)
    return found


AT_TABLE: Final = ("take", "keep", "expire", "run")
"""Steps that remove a pull from the table of held pulls or put it back, and `run`, which follows a removal."""


def judge_handling(case: Case) -> list[Suspects]:
    """Judge the steps of the pulls; the members of the returned suspects are positions among the steps."""
    pulls, events = case.pulls, case.events
    rows = np.sort(np.concatenate([events.rows(name) for name in STEPS]))
    rows = rows[events.request_key[rows] >= 0]
    if not len(rows) or not len(pulls):
        return []
    pull = events.look_up(events.request_key[rows], events.request_key[pulls.row], np.arange(len(pulls)))
    # Skip steps whose requests were not recorded or are not pulls of this queue.
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
    # A different clause covers a step at the wrong time, and `holding` covers an early answer 19.
    early = np.isin(rows, events.rows("expire")) & (case.is_sound & pulls.may_hold)[pull]
    early &= (case.answer_code != NO_NEW_MSG)[pull] & ~rules[1][1] & ~rules[2][1]
    early &= before_ns + case.context.late_ns < (pulls.received_after_ns + pulls.timeout_ns)[pull]
    rules += (("pull.hold.not_early", early, "had time left until its deadline"),)
    found = [*_table(case, rows, pull)]
    for clause, broken, words in rules:
        if broken.any():
            nothing, timeless = np.zeros_like(broken), case.are_timeless(clause, rows)
            found += suspects(HELD_AS_ASKED, broken, nothing, rows, told(clause, words), timeless=timeless)
    return found


def _table(case: Case, rows: Integers, pull: Integers) -> Iterator[Suspects]:
    """Yields contradictions about the table of held pulls: steps of pulls outside it, and pulls removed twice."""
    pulls, events = case.pulls, case.events
    holds = events.rows("hold")
    holds = holds[events.request_key[holds] >= 0]
    held = events.look_up(events.request_key[holds], events.request_key[pulls.row], np.arange(len(pulls)))
    holds, held = holds[held >= 0], held[held >= 0]
    first_ns = _extreme(np.minimum, len(pulls), held, events.integers("after_ns", holds))
    before_ns = events.integers("before_ns", rows)
    steps = {name: events.rows(name) for name in ("hold", *AT_TABLE, "recheck")}
    owners = {name: _owner(case, rows) for name, rows in steps.items()}
    counts = {name: np.bincount(owner[owner >= 0], minlength=len(pulls)) for name, owner in owners.items()}
    again = _overdrawn(case, steps, owners, ("hold", "keep"), ("take",))
    again |= _overdrawn(case, steps, owners, ("take",), ("keep",)) | (
        counts["expire"] > counts["hold"] + counts["keep"]
    )
    # For each kind of step, find the latest possible time of the first step, and the earliest possible time of the last
    # step.
    first = {
        name: _extreme(np.minimum, len(pulls), owners[name], events.integers("before_ns", steps[name]))
        for name in AT_TABLE
    }
    last = {
        name: _extreme(np.maximum, len(pulls), owners[name], events.integers("after_ns", steps[name]))
        for name in AT_TABLE
    }
    # A pull may expire after a scan took it. The pull then leaves the table, unless the scan puts it back.
    again |= (first["expire"] < last["take"]) & (last["keep"] < first["expire"])
    # RocketMQ's recheck may queue the pull a second time, so the pull may run twice.
    kept_on = first["run"] < last["keep"]
    again |= (counts["recheck"] == 0) & ((counts["run"] > counts["hold"]) | kept_on)
    again &= counts["hold"] > 0
    last_ns = np.zeros(len(pulls), dtype=np.int64)
    np.maximum.at(last_ns, pull, before_ns)
    # A missing field is never a violation, so skip pulls with a damaged answer too.
    whole = case.is_watched(pulls.received_after_ns, last_ns) & case.is_sound
    # A source with a specification is judged by that specification.
    lawful = events.are("source", pulls.row, case.context.lawful)
    whole_of, lawful_of = whole[pull], lawful[pull]
    # Other clauses cover steps of a pull that may not be held, that is not in the table yet, or that is answered.
    early = (before_ns < first_ns[pull]) & ~lawful_of & pulls.may_hold[pull]
    answered_ns = np.where(case.is_answered, pulls.answered_before_ns, NEVER)[pull]
    # Another clause covers a hold after the answer. A stop also answers pulls that are on their way to the table.
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

    # Report only the first such step of a pull.
    is_first = np.zeros(len(rows), dtype=np.bool_)
    is_first[np.unique(np.where(early, pull, -1), return_index=True)[1]] = True
    early &= is_first
    again &= ~lawful
    yield from suspects(HELD_AS_ASKED, early & whole_of, early & ~whole_of, rows, explain_early)
    yield from suspects(HELD_AS_ASKED, again & whole, again & ~whole, pulls.row, explain_again)


def _owner(case: Case, rows: Integers) -> Integers:
    """Returns the pull of each step; -1 if the pull belongs to another queue, or if another clause covers the step.

    Steps before the receipt or after the answer are covered by other clauses. A step that is recorded twice counts
    once.
    """
    events, pulls = case.events, case.pulls
    owner = events.look_up(events.request_key[rows], events.request_key[pulls.row], np.arange(len(pulls)))
    if not len(rows) or not len(pulls):
        return owner
    early = events.integers("before_ns", rows) < pulls.received_after_ns[owner]
    late = case.is_answered[owner] & (pulls.answered_before_ns[owner] < events.integers("after_ns", rows))
    told = events.integers("sequence", rows), events.codes("source", rows)[0], events.queue[rows]
    order = np.lexsort(told)
    again = np.zeros(len(rows), dtype=np.bool_)
    again[order[1:]] = np.logical_and.reduce([each[order[1:]] == each[order[:-1]] for each in told])
    return np.where(early | late | again, -1, owner)


def _extreme(pick: np.ufunc, count: int, owner: Integers, moments_ns: Integers) -> Integers:
    """Returns the earliest or latest time of each pull's steps; `NEVER` or `BEGINNING` for a pull without steps."""
    found = np.full(count, NEVER if pick is np.minimum else BEGINNING, dtype=np.int64)
    pick.at(found, owner[owner >= 0], moments_ns[owner >= 0])
    return found


def _overdrawn(
    case: Case,
    steps: Mapping[str, Integers],
    owners: Mapping[str, Integers],
    ins: tuple[str, ...],
    outs: tuple[str, ...],
) -> Booleans:
    """Returns pulls of which, at some time, more `outs` steps had ended than `ins` steps can have begun."""
    owner = np.concatenate([owners[name] for name in (*ins, *outs)])
    change = np.concatenate([np.full(len(owners[name]), 1 if name in ins else -1) for name in (*ins, *outs)])
    moment_ns = np.concatenate(
        [case.events.integers("after_ns" if name in ins else "before_ns", steps[name]) for name in (*ins, *outs)]
    )
    # Another clause covers a step before the hold, so the hold counts from the beginning.
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
