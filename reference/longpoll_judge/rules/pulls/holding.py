"""held_as_asked: a pull is held if it may be, once, at the end of its queue, and no shorter than it asked for.

Seen from outside, only the time of the answer shows how long a pull was held; inside, a `hold` does. Pulls held too
long: `promptness`. How many are held at once: `holds`.

Source: `PullMessageProcessor.processRequest`, `PullRequestHoldService` 4.9 and 5.x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.columns.queue_log import NEVER, Integers
from longpoll_judge.contract.clause import PULL_RESULTS, SHORT_POLLING_MS, STOPPED_MS, STOPPING_MS, UNHELD_MS
from longpoll_judge.contract.result import HELD_AS_ASKED
from longpoll_judge.evidence.generations import NEITHER
from longpoll_judge.rules.answers import NO_NEW_MSG, OFFSET_ILLEGAL
from longpoll_judge.rules.pulls.connections import next_closes_of
from longpoll_judge.rules.queue_case import Booleans, Case, Explanation, Suspects, ms, suspects
from longpoll_judge.rules.queue_columns import MS

STOPPED: Final = "stopped"
"""The cause of an answer that a stopping broker gave without looking at the store again."""


def judge_holding(case: Case) -> list[Suspects]:
    """Judge how the pulls of one queue were held; members are indices of pulls."""
    if not len(case.pulls):
        return []
    return [*_early(case), *_unheld(case), *_holds(case)]


def is_stopping(case: Case, pull: Integers) -> tuple[Booleans, Booleans]:
    """Which of these pulls were likely, and which possibly, answered because their broker stopped.

    Inside, the answer shows it and its source ends. Outside, its connection closes soon after, and probably every other
    connection too; a proxy continues.
    """
    pulls = case.pulls
    told, _perhaps = is_told_to_stop(case, pull)
    soon_ns = pulls.answered_before_ns[pull] + STOPPING_MS * MS
    # A stop closes what it has answered: a connection that stays open for long was not stopped.
    closes = next_closes_of(case, pulls.row[pull], pulls.answered_after_ns[pull])[0] <= soon_ns
    if case.context.stops_silently:
        closes &= False
    last_ns = np.array([facts.last_ns for facts in pulls.source_facts], dtype=np.int64)[pulls.source[pull]]
    ends = last_ns <= soon_ns
    sources, names = case.events.codes("source", pulls.row[pull])
    for number, name in enumerate(names):
        mine = (sources == number) & case.is_outside[pull]
        ends |= mine & (case.context.all_closed_ns(name, pulls.answered_after_ns[pull]) <= soon_ns)
    return told | (closes & ends), closes


def is_told_to_stop(case: Case, pull: Integers) -> tuple[Booleans, Booleans]:
    """Which pulls were answered because their broker stopped, as the broker itself reports: certainly, and possibly.

    Only a source inside the broker shows it, by its end: a source that continues for long did not stop. A role change
    gets the same answer text, and no event records it.
    """
    pulls = case.pulls
    causes, names = case.events.codes("cause", pulls.answer_row[pull])
    if STOPPED not in names and not len(case.events.rows("stop")):
        return np.zeros(len(pull), dtype=np.bool_), np.zeros(len(pull), dtype=np.bool_)
    # From outside nobody tells a cause.
    says = np.array([name == STOPPED for name in names], dtype=np.bool_)[causes] & ~case.is_outside[pull]
    told = says | (case.events.answer_to(case.events.request_key[pulls.row[pull]], "stop") >= 0)
    last_ns = np.array([facts.last_ns for facts in pulls.source_facts], dtype=np.int64)[pulls.source[pull]]
    went_on_ns = last_ns - pulls.answered_before_ns[pull]
    # A source that goes on did not stop, whatever it says; in between, or where roles change, it may have been so.
    ends = went_on_ns <= STOPPING_MS * MS
    may_end = (went_on_ns <= STOPPED_MS * MS) | (says & (not case.context.keeps_role))
    return told & ends, told & ~ends & may_end


def may_have_stopped(case: Case, pull: Integers) -> Booleans:
    """Of which of these answered pulls it is not known whether their broker stopped: what would show it may be hidden.

    It may lie in a hole, behind the end of the record, or, from outside, look late by a clock that was set forward.
    """
    pulls = case.pulls
    if case.context.stops_silently:
        return np.zeros(len(pull), dtype=np.bool_)
    until_ns = pulls.answered_before_ns + STOPPING_MS * MS
    hidden = ~case.is_watched(pulls.received_after_ns, until_ns)
    last_ns = np.array([facts.last_ns for facts in pulls.source_facts], dtype=np.int64)[pulls.source]
    sources, names = case.events.codes("source", pulls.row)
    settable = np.array([name in case.context.settable for name in names], dtype=np.bool_)[sources]
    closed_ns = np.full(len(pulls), NEVER, dtype=np.int64)
    closed_ns[pull], _before_ns = next_closes_of(case, pulls.row[pull], pulls.answered_after_ns[pull])
    outside = case.is_outside
    # No close in the record, but the record ends before one would have to be there.
    unseen = outside & (closed_ns == NEVER) & (last_ns < until_ns)
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
        if topic in {"", case.name[1]}:
            mine = np.array([case.events.text("source", row) == source for row in pulls.row[pull].tolist()])
            excused |= (
                mine & (before_ns >= pulls.received_after_ns[pull]) & (after_ns <= pulls.answered_before_ns[pull])
            )
    held_ns = pulls.answered_before_ns - pulls.received_after_ns
    weak |= may_have_stopped(case, pull)
    # A broker whose long polling is off answers after `shortPollingTimeMills`; from outside both look alike.
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
    # Late whatever the true moments were, or late by some of them; a slow read is told from the limit of a wake on.
    late, may_be_late = is_judged & (least > allowed_ns), is_judged & (most > allowed_ns)
    if not case.log.is_white_box:
        may_be_late |= slow & (least > case.context.wake_ns)

    def explain(pull: int) -> Explanation:
        took = f"{ms(max(least[pull], 0))} to {ms(most[pull])} after its receipt (allowed {ms(allowed_ns)})"
        kind = "that may not be held" if unheld[pull] else f"whose answer {case.answer_code[pull]} is never held"
        slowly = "" if unheld[pull] else "slowly, "
        why = f"a pull at offset {pulls.offset[pull]} {kind} was answered {slowly}{took}"
        return Explanation("pull.unheld.prompt", why, [int(pulls.row[pull]), int(pulls.answer_row[pull])])

    unread = case.is_unread(late, pulls.received_after_ns, pulls.answered_before_ns)
    violated = late & ~unread
    return suspects(HELD_AS_ASKED, violated, may_be_late & ~violated, pulls.row, explain)


def _cannot_be_held(case: Case) -> Booleans:
    """Which pulls could be held by their own word, and found something at their first read, which is then answered."""
    pulls, log = case.pulls, case.log
    found: Booleans = pulls.may_hold & case.is_sound & is_one_of(case.answer_code, PULL_RESULTS)
    is_there = log.end_at_least(pulls.received_after_ns) > pulls.offset
    if case.life is None or case.life.number != NEITHER:
        # Past the end: it never falls, so the offset was past it when the pull came. A deletion empties the queue.
        is_there |= (case.answer_code == OFFSET_ILLEGAL) & (pulls.offset > case.told("offset_max"))
    found &= is_there
    if log.is_white_box:
        # What was held all the same is a matter of its wake.
        found &= ~pulls.was_held
    return found


def _holds(case: Case) -> list[Suspects]:
    """The `hold` events; none for a source outside the broker."""
    pulls, events = case.pulls, case.events
    holds = events.rows("hold")
    holds = holds[events.request_key[holds] >= 0]
    if not len(holds):
        return []
    row = np.arange(len(pulls))
    pull = events.batch.look_up(events.request_key[holds], events.request_key[pulls.row], row)
    # A hold whose request is not in the record is nobody's.
    holds, pull = holds[pull >= 0], pull[pull >= 0]
    first = events.firsts(holds, "hold")
    # A damaged answer may be another's: the pull counts as open.
    answered_ns = np.where(case.is_answered, pulls.answered_before_ns, NEVER)[pull]
    # One from before its request is told as that, and the log of so long ago may not be at hand (`run.window_sweep`).
    moment_ns = np.minimum(events.integers("before_ns", holds), answered_ns)
    moment_ns = np.maximum(moment_ns, pulls.received_after_ns[pull])
    end_most = case.log.end_at_most(moment_ns)
    whole = case.is_log_whole(moment_ns)
    nothing = np.zeros(len(holds), dtype=np.bool_)
    after_ns = events.integers("after_ns", holds)
    # Only an offset at the end is held; one past it is answered at once (21).
    past = pulls.offset[pull] > end_most

    def told(clause: str, say: Callable[[int, int], str]) -> Callable[[int], Explanation]:
        def explain(member: int) -> Explanation:
            one, hold = int(pull[member]), int(holds[member])
            rows = [int(pulls.row[one]), int(first[member]), hold]
            rows += [int(pulls.answer_row[one])] if pulls.answer_row[one] >= 0 else []
            return Explanation(clause, f"a pull at offset {pulls.offset[one]} {say(one, member)}", rows)

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
    )
    found: list[Suspects] = []
    for clause, violated, unknown, say in rules:
        is_timeless = case.is_timeless(clause)
        found += suspects(HELD_AS_ASKED, violated, unknown, holds, told(clause, say), is_timeless=is_timeless)
    return found
