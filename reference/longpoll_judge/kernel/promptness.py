"""The properties no_lost_wakeup, answered_by_deadline and answered_on_stop, and the latencies that they measure.

Every timestamp is an interval, so every delay has a lower and an upper bound. If the lower bound exceeds the limit, the
pull is a violation whatever the true times were. If only the upper bound exceeds the limit, the verdict is unknown. A
pull without an answer was delayed at least until the last time when its source was certainly active and its connection
open. Latencies are counted in buckets of one per cent width, so that the counts of different queues can be added in any
order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import NEVER, Booleans, Integers
from longpoll_judge.contract.clause import UNHELD_MS
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, ANSWERED_ON_STOP, NO_LOST_WAKEUP, Percentiles
from longpoll_judge.kernel.case import FOLLOWS, OFFSET_ILLEGAL, Case, Explanation, Suspects, ms, suspects
from longpoll_judge.kernel.pulls import MS

_WIDTH: Final = float(np.log(1.01))
"""Bucket n > 0 holds (1.01**(n-1), 1.01**n] nanoseconds; bucket 0 holds 0 and 1."""


def bucket_counts(latency_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the buckets with latencies, ascending, and the number of latencies in each."""
    buckets = np.ceil(np.log(np.maximum(latency_ns, 1)) / _WIDTH).astype(np.int64)
    counts = np.bincount(buckets)
    found = np.flatnonzero(counts)
    return found, counts[found]


def percentiles(counts: Mapping[int, int], max_ns: int) -> Percentiles:
    """Returns percentiles in ms.

    P50 and p99 are the upper ends of their buckets, at most 1 % too high; max is exact.
    """
    total = sum(counts.values())
    if not total:
        return Percentiles(count=0, p50=None, p99=None, max=None)
    return Percentiles(
        count=total,
        p50=_rank(counts, (total + 1) // 2, max_ns),
        p99=_rank(counts, -(-99 * total // 100), max_ns),
        max=max_ns / 1e6,
    )


def _rank(counts: Mapping[int, int], rank: int, max_ns: int) -> float:
    """Returns the latency in ms at this rank; the lowest latency has rank 1."""
    buckets = sorted(counts)
    ranks = list(accumulate(counts[bucket] for bucket in buckets))
    bucket = buckets[bisect_left(ranks, rank)]
    return round(min(float(np.exp(bucket * _WIDTH)), max_ns) / 1e6, 6)


UNHELD_GRACE_NS: Final = UNHELD_MS * MS
"""How long (ns) a pull that may not be held can stay unanswered before it counts as never answered. A pull that may not
be held has no deadline, but a busy broker may need some time."""

RACE_NS: Final = 50 * MS
"""If a message becomes visible less than this (ns) after a pull's receipt, it may have arrived before the hold."""


@frozen(eq=False)
class Promptness:
    """The suspects of no_lost_wakeup, answered_by_deadline and answered_on_stop, and upper bounds of the latencies."""

    suspects: list[Suspects]
    wake_ns: Integers
    late_ns: Integers
    missed: dict[str, int]
    """For each property, the number of certain violations whose latency is unknown. The share of violations that the
    judge reports for a property includes these violations."""
    open_at_cut: int
    """The number of pulls without an answer at the end of the record, whose connection and source had not ended either.
    """


def judge_promptness(case: Case, counted: Booleans) -> Promptness:
    """Judge when the pulls were answered, and measure the latencies of the pulls marked in `counted`."""
    wake_suspects, wake_ns, unwoken = _wakeups(case, counted)
    late_suspects, late_ns, open_at_cut, unanswered = _deadlines(case, counted)
    missed = {NO_LOST_WAKEUP: unwoken, ANSWERED_BY_DEADLINE: unanswered}
    return Promptness(wake_suspects + late_suspects, wake_ns, late_ns, missed, open_at_cut)


def _wakeups(case: Case, counted: Booleans) -> tuple[list[Suspects], Integers, int]:
    pulls, wake_ns = case.pulls, case.context.wake_ns
    visible_after, visible_before = case.first_visible
    # A pull that was answered without a hold was not woken. An illegal offset is answered at once, without waiting for
    # a message.
    is_judged = case.is_sound & case.is_decidable & (pulls.was_held | ~pulls.is_answered)
    is_judged &= case.answer_code != OFFSET_ILLEGAL
    white = case.logs.is_white_box[pulls.log]
    # If a message was visible before the pull, in a record from outside, a late answer is a slow read, not a late wake.
    certain_ns = visible_before + case.logs.slack_ns(pulls.log)
    is_judged &= white | ~pulls.is_answered | (certain_ns >= pulls.received_after_ns)
    # An answer to a different pull also shows that a message is visible, if the answer came after this pull and before
    # any acknowledgement.
    delivered_after, delivered_before = case.first_delivered
    is_delivered = (delivered_before < visible_after) & (
        ~pulls.is_answered | (delivered_before >= pulls.received_after_ns)
    )
    # The delay begins as soon as the message is visible and the pull is received.
    shown_after = np.where(is_delivered, delivered_after, visible_after)
    since_after = np.maximum(shown_after, pulls.received_after_ns)
    since_before = np.maximum(np.where(is_delivered, delivered_before, visible_before), pulls.received_before_ns)
    delay_least = pulls.answered_after_ns - since_before
    delay_most = _latest(case) - since_after
    over = is_judged & (delay_least > wake_ns)
    # If no message matches the pull, `since_after` is `NEVER`, so no delay is too long.
    may_be_over = is_judged & (delay_most > wake_ns)
    # The answer may lie in a gap of the record that begins before the wake was overdue.
    missing = ~pulls.is_answered & (pulls.missing_until_ns - since_before <= wake_ns)
    unread = case.is_unread(over, pulls.received_after_ns, _latest(case), since_after - UNHELD_GRACE_NS)

    def explain(pull: int) -> Explanation:
        matching = case.matchings[int(pulls.expression[pull])]
        assert matching is not None, "only decidable pulls are judged"
        message, log = int(matching.first(pulls.log[[pull]], pulls.offset[[pull]])[0]), int(pulls.log[pull])
        if is_delivered[pull] and matching.expression.takes_everything:
            message = int(pulls.offset[pull])
        asked = f"a pull at offset {pulls.offset[pull]} could take message {message}"
        since = "from its receipt on" if since_after[pull] == pulls.received_after_ns[pull] else "while it was held"
        outcome = "was answered" if pulls.is_answered[pull] else "was not answered for"
        most = f" to {ms(delay_most[pull])}" if pulls.is_answered[pull] else " or more"
        limit = f"(allowed {ms(wake_ns)})"
        fits = _fits(shown_after[pull], pulls.received_before_ns[pull]) if pulls.is_answered[pull] else ""
        why = f"{asked} {since} and {outcome} {ms(max(delay_least[pull], 0))}{most} later {limit}{fits}"
        why += _doubt(missing[pull], unread[pull]) + (FOLLOWS if case.may_follow[pull] else "")
        why += "; another pull was given it" if is_delivered[pull] else ""
        log_rows = case.delivered_rows(log, message) if is_delivered[pull] else case.message_rows(log, message)
        return Explanation("pull.wake.prompt", why, _rows(case, pull), log_rows, [message])

    doubted = missing | unread | case.may_follow
    # An answer that was certainly sent before the message was visible is not a wake. In a record from outside the
    # broker, an answer is not a wake either if the pull certainly came after the message.
    measured = is_judged & pulls.is_answered & (visible_after <= pulls.answered_before_ns)
    measured &= white | (visible_before > pulls.received_after_ns)
    found = suspects(NO_LOST_WAKEUP, over & ~doubted, (over & doubted) | (may_be_over & ~over), pulls.row, explain)
    return (
        [*found, *_rechecked(case, is_judged & ~over & ~may_be_over)],
        np.maximum(delay_most[measured & counted], 0),
        int(np.count_nonzero(over & ~doubted & ~measured & counted)),
    )


def _rechecked(case: Case, is_judged: Booleans) -> list[Suspects]:
    """Returns pulls of all messages that were not answered soon after a recheck saw a message for them.

    No event shows when the message became visible, so either the log or the recheck is wrong.
    """
    pulls, events = case.pulls, case.events
    recheck = events.answer_to(events.request_key[pulls.row], "recheck")
    everything = np.array([known is not None and known.takes_everything for known in pulls.expressions], dtype=np.bool_)
    over = is_judged & (recheck >= 0) & everything[pulls.expression]
    over &= ~events.are("source", pulls.row, case.context.lawful)
    over &= (pulls.offset >= 0) & (events.integers("visible_end", recheck) > pulls.offset)
    delay_ns = pulls.answered_after_ns - events.integers("before_ns", recheck)
    over &= delay_ns > case.context.wake_ns

    def explain(pull: int) -> Explanation:
        end = int(events.integers("visible_end", recheck[[pull]])[0])
        why = (
            f"a recheck for a pull at offset {pulls.offset[pull]} saw the visible end {end}, and no answer came for "
            f"{ms(delay_ns[pull])} (allowed {ms(case.context.wake_ns)}); no event shows the message"
        )
        return Explanation("pull.wake.prompt", why, [*_rows(case, pull), int(recheck[pull])])

    return suspects(NO_LOST_WAKEUP, np.zeros_like(over), over, pulls.row, explain)


def _latest(case: Case) -> Integers:
    """Returns the latest time of each pull's answer, or the time until which the record certainly has no answer."""
    return np.where(case.pulls.is_answered, case.pulls.answered_before_ns, case.pulls.answered_after_ns)


def _doubt(missing: bool, unread: bool) -> str:
    """Returns the end of a finding's sentence, which says why the violation is not certain."""
    hole = "; the record has a hole in that time, and the answer may be in it" if missing else ""
    return hole + ("; its connection was not read for a part of that time" if unread else "")


def _fits(visible_after_ns: int, received_before_ns: int) -> str:
    """Returns the known race that a late wake resembles, only as a hint: a history has timestamps, not steps."""
    if visible_after_ns < received_before_ns + RACE_NS:
        return "; it fits a message that came between the pull's read and its hold (RocketMQ #7358)"
    return "; it fits a notification that came while another walk had the held pulls out"


def _deadlines(case: Case, counted: Booleans) -> tuple[list[Suspects], Integers, int, int]:
    pulls, late_ns = case.pulls, case.context.late_ns
    grace_ns = np.where(pulls.may_hold, pulls.timeout_ns, UNHELD_GRACE_NS)
    # If the record does not show whether a pull may be held, use the higher limit.
    grace_ns = np.where(pulls.hold_is_told, grace_ns, np.maximum(pulls.timeout_ns, UNHELD_GRACE_NS))
    due_before = pulls.received_before_ns + grace_ns
    late_least = pulls.answered_after_ns - due_before
    late_most = _latest(case) - pulls.received_after_ns - grace_ns
    # A pull that may not be held has no deadline, so only check that it is answered at all.
    is_judged = case.is_sound & (pulls.may_hold | ~pulls.is_answered)
    over = is_judged & (late_least > late_ns)
    may_be_over = is_judged & (late_most > late_ns)
    forgotten = _forgotten_on_stop(case) & ~over
    missing = ~pulls.is_answered & (pulls.missing_until_ns - due_before <= late_ns)
    unread = case.is_unread(over | forgotten, pulls.received_after_ns, _latest(case))

    def explain(pull: int) -> Explanation:
        doubt = _doubt(missing[pull], unread[pull])
        timeout = f"timeout of {ms(pulls.timeout_ns[pull])}" if pulls.may_hold[pull] else "no leave to be held"
        asked = f"a pull at offset {pulls.offset[pull]} with a {timeout}"
        if pulls.is_answered[pull]:
            how_late = f"{ms(max(late_least[pull], 0))} to {ms(late_most[pull])} after its deadline"
            why = f"{asked} was answered {how_late} (allowed {ms(late_ns)}){doubt}"
            return Explanation("pull.deadline.met", why, _rows(case, pull))
        goes_on = ms(late_least[pull]) if over[pull] else f"{ms(max(late_least[pull], 0))} to {ms(late_most[pull])}"
        how_long = f"although the history goes on for {goes_on} after its deadline"
        why = f"{asked} was never answered, {how_long} (allowed {ms(late_ns)}){doubt}"
        return Explanation("pull.answered", why, _rows(case, pull))

    def explain_forgotten(pull: int) -> Explanation:
        reason = "although its connection stayed open and the policy answers held pulls when the broker stops"
        why = f"a pull at offset {pulls.offset[pull]} was never answered, {reason}{_doubt(cut_off[pull], unread[pull])}"
        return Explanation("pull.stop.answered", why, _rows(case, pull))

    doubted = missing | unread
    violated, unknown = over & ~doubted, (over & doubted) | (may_be_over & ~over)
    # Select pulls that were open when their record ended, and that have no finding.
    is_open = ~pulls.is_answered & ~pulls.is_closed & ~violated & ~unknown & ~forgotten
    was_cut = np.array([facts.stopped_ns is None for facts in pulls.source_facts], dtype=np.bool_)
    open_at_cut = int(np.count_nonzero(was_cut[pulls.source[is_open & case.own[pulls.row]]]))
    measured = pulls.may_hold & pulls.is_answered & (late_most >= 0)
    found = suspects(ANSWERED_BY_DEADLINE, violated, unknown, pulls.row, explain)
    cut_off = pulls.missing_until_ns < pulls.answered_after_ns
    open_ones = forgotten & ~cut_off & ~unread, forgotten & (cut_off | unread)
    found += suspects(ANSWERED_ON_STOP, *open_ones, pulls.row, explain_forgotten)
    return found, late_most[measured & counted], open_at_cut, int(np.count_nonzero(violated & ~measured & counted))


def _forgotten_on_stop(case: Case) -> Booleans:
    """Returns pulls that got no answer at an orderly stop of their broker, although its policy promises one."""
    pulls = case.pulls
    if not case.context.answers_on_stop or not len(pulls):
        return np.zeros(len(pulls), dtype=np.bool_)
    stops = [-NEVER if facts.stopped_ns is None else facts.stopped_ns for facts in pulls.source_facts]
    stopped_ns = np.array(stops, dtype=np.int64)[pulls.source]
    # The broker may not have read a pull that arrived shortly before the stop.
    was_there = stopped_ns - pulls.received_before_ns > case.context.late_ns
    return ~pulls.is_answered & ~pulls.is_closed & was_there


def _rows(case: Case, pull: int) -> list[int]:
    key = case.events.request_key[case.pulls.row[pull]]
    holds = case.events.rows("hold")
    held = holds[case.events.request_key[holds] == key].tolist()
    answer = int(case.pulls.answer_row[pull])
    return [int(case.pulls.row[pull]), *held, *([answer] if answer >= 0 else [])]
