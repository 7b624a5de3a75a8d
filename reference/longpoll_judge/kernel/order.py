"""Properties of a queue's log as its events report them: offsets_in_order and visible_is_monotone.

In a record from inside a broker, every append takes the next queue offset, and no offset is used twice. From outside,
no two messages are acknowledged with the same offset. The visible end never falls and never passes the log's end. These
rules apply within one generation and one observer; a crash or truncation begins a new generation. The order of two
events is certain only if their intervals do not overlap. Ends in answers: `ends`. Source:
`ConsumeQueue.putMessagePositionInfo`, `ReputMessageService`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np
from attrs import astuple, frozen

from longpoll_judge.columns.lookup import (
    NEVER,
    Booleans,
    Grouped,
    Integers,
    grouped,
    highest_before,
    suffix_min,
)
from longpoll_judge.contract.clause import restart_text
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import OFFSETS_IN_ORDER, VISIBLE_IS_MONOTONE
from longpoll_judge.evidence.generations import KEPT_NS
from longpoll_judge.kernel.case import Case, Explanation, Suspects, suspects
from longpoll_judge.kernel.lives import Lives, make_lives

CLAUSES: Final = {"append": "log.append.once", "message_acknowledged": "log.acknowledged.once"}
MISSING_MAX: Final = 10
"""The maximum number of missing messages between two appends that a finding names."""
WORDS: Final = {"append": "appended", "message_acknowledged": "acknowledged"}


@frozen(eq=False)
class Told:
    """The events of one kind, each with an offset or end of a queue.

    The events of sources with a specification are excluded, because a specification may let a queue's end fall.
    """

    rows: Integers
    values: Integers
    stream: Integers
    """A number that is equal for events of one source about one generation of a queue."""
    is_known: Booleans
    """Whether the queue generation of each event is known."""
    after_ns: Integers
    before_ns: Integers

    def take(self, which: Integers | Booleans) -> Told:
        """Returns the selected events."""
        return Told(*(column[which] for column in astuple(self, recurse=False)))


def judge_logs(case: Case) -> list[Suspects]:
    """Judge all logs; the members of the returned suspects are positions among the events that a rule compares."""
    found: list[Suspects] = []
    # In these lives a restart begins no new generation, because a log keeps its messages after a restart
    # (`_may_be_lost`).
    lives = make_lives(case.events, case.context, restarts=False) if case.context.restarts else case.lives
    told = {kind: _told(case, lives, kind) for kind in (*WORDS, "make_visible")}
    for kind in WORDS:
        found += _given_twice(case, kind, told[kind].take(told[kind].is_known))
    appended, moved = told["append"], told["make_visible"].take(told["make_visible"].is_known)
    known = appended.take(appended.is_known)
    found += _fallen(known, "log.append.ordered", "was appended after offset")
    found += _left_out(case, appended)
    found += _fallen(moved, "log.visible.monotone", "is the visible end, after it was")
    found += _not_appended(case, moved, appended)
    return found


def _told(case: Case, lives: Lives, kind: str) -> Told:
    events = case.events
    rows = events.rows(kind)
    column = "visible_end" if kind == "make_visible" else "queue_offset"
    mine = (events.integers(column, rows) >= 0) & case.is_placed[events.queue[rows]]
    rows = rows[mine & ~events.are("source", rows, case.context.lawful)]
    sources, names = events.codes("source", rows)
    log = lives.of(rows)
    return Told(
        rows=rows,
        values=events.integers(column, rows),
        stream=log * len(names) + sources,
        is_known=~lives.is_neither[log],
        after_ns=events.integers("after_ns", rows),
        before_ns=events.integers("before_ns", rows),
    )


def _grouped(told: Told) -> tuple[Grouped, Integers]:
    return grouped(told.stream, told.values, int(told.stream.max(initial=-1)) + 1)


def _given_twice(case: Case, kind: str, told: Told) -> list[Suspects]:
    offsets, order = _grouped(told)
    before = np.full(len(order), -1, dtype=np.int64)
    same = (offsets.group[1:] == offsets.group[:-1]) & (offsets.numbers[1:] == offsets.numbers[:-1])
    before[order[1:][same]] = order[:-1][same]
    again = before >= 0

    def explain(member: int) -> Explanation:
        why = f"two messages were {WORDS[kind]} with queue offset {told.values[member]}"
        why += restart_text(int(killed_ns[member])) if lost[member] else ""
        shown = [int(told.rows[before[member]]), int(told.rows[member])]
        return Explanation(CLAUSES[kind], why, [], shown, [int(told.values[member])])

    one_life = case.lives.is_single[case.events.queue[told.rows]]
    killed_ns, may_be_lost = _may_be_lost(case, told.take(before), told)
    lost = again & may_be_lost
    return suspects(OFFSETS_IN_ORDER, again & ~lost, lost, told.rows, explain, timeless=one_life)


def _may_be_lost(case: Case, told: Told, later: Told) -> tuple[Integers, Booleans]:
    """Returns when a restart may have begun between two events, and whether it may have lost the earlier message."""
    killed_ns, found = np.full(len(told.rows), NEVER), np.zeros(len(told.rows), dtype=np.bool_)
    first_ns, last_ns = np.minimum(told.before_ns, later.before_ns), np.maximum(told.after_ns, later.after_ns)
    for broker, restarts in case.context.restarts.items():
        mine = np.flatnonzero(case.are_of_broker(told.rows, broker))
        killed_ns[mine] = restarts.begin_from(first_ns[mine])
        found[mine] = restarts.touch(first_ns[mine], last_ns[mine]) & (first_ns[mine] >= killed_ns[mine] - KEPT_NS)
    return killed_ns, found


def _fallen(told: Told, clause: str, words: str) -> list[Suspects]:
    """Returns the events whose value is below a value that the same stream had certainly reached before."""
    if not _may_fall(told):
        return []
    higher = highest_before(told.stream, told.before_ns, told.values, told.stream, told.after_ns)
    fell = (higher >= 0) & (told.values < np.append(told.values, 0)[higher])

    def explain(member: int) -> Explanation:
        other = int(higher[member])
        why = f"{told.values[member]} {words} {told.values[other]}"
        messages = [int(told.values[member]), int(told.values[other])] if clause == "log.append.ordered" else []
        return Explanation(clause, why, [], [int(told.rows[other]), int(told.rows[member])], messages)

    return suspects(CLAUSE[clause].property, fell, np.zeros_like(fell), told.rows, explain)


def _may_fall(told: Told) -> bool:
    order = np.argsort(told.stream, kind="stable")
    stream, values = told.stream[order], told.values[order]
    return bool(((stream[1:] == stream[:-1]) & (values[1:] < values[:-1])).any())


def _left_out(case: Case, appended: Told) -> list[Suspects]:
    """Returns appends that skip offsets. The recorder may have lost the appends of the skipped offsets."""
    offsets, order = _grouped(appended)
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (offsets.group[1:] != offsets.group[:-1]) | (offsets.numbers[1:] != offsets.numbers[:-1])
    told = appended.take(order[is_first])
    told, doubtful = told.take(told.is_known), told.take(~told.is_known)
    steps = np.zeros(len(told.rows), dtype=np.int64)
    follows = told.stream[1:] == told.stream[:-1]
    steps[1:] = np.where(follows, np.diff(told.values) - 1, 0)
    # A message appended around a deletion may belong to either generation.
    unknown: dict[int, set[int]] = {}
    for member in np.flatnonzero(steps > 0).tolist() if len(doubtful.rows) else ():
        between = _between(case, told, doubtful, member)
        unknown[member] = between
        steps[member] -= len(between)
    skips = steps > 0
    last_ns = np.append(told.before_ns[:1], told.before_ns[:-1])
    since_ns = np.minimum(np.append(told.after_ns[:1], told.after_ns[:-1]), told.after_ns)
    is_whole = case.is_log_whole(told.rows, np.maximum(last_ns, told.before_ns), since_ns)

    def explain(member: int) -> Explanation:
        first, last = int(told.values[member - 1]), int(told.values[member])
        why = f"no message was appended between the queue offsets {first} and {last}"
        missing = (offset for offset in range(first + 1, last) if offset not in unknown.get(member, ()))
        shown = [int(told.rows[member - 1]), int(told.rows[member])]
        return Explanation("log.append.gapless", why, [], shown, list(islice(missing, MISSING_MAX)))

    return suspects(OFFSETS_IN_ORDER, skips & is_whole, skips & ~is_whole, told.rows, explain)


def _between(case: Case, told: Told, doubtful: Told, member: int) -> set[int]:
    """Returns the offsets between two appends of a generation that the same source also appended, in any generation."""
    events, row = case.events, int(told.rows[member])
    of_queue = events.queue[doubtful.rows] == events.queue[row]
    sources, _names = events.codes("source", doubtful.rows)
    mine = of_queue & (sources == events.codes("source", told.rows[[member]])[0][0])
    mine &= (doubtful.values > told.values[member - 1]) & (doubtful.values < told.values[member])
    return set(doubtful.values[mine].tolist())


def _not_appended(case: Case, moved: Told, appended: Told) -> list[Suspects]:
    """Returns the visible ends whose last message was not appended before, except ends below the first append."""
    known = appended.take(appended.is_known)
    count = max(int(each.stream.max(initial=-1)) for each in (moved, appended)) + 1
    offsets, order = grouped(known.stream, known.values, count)
    last = moved.values - 1
    place = offsets.at(moved.stream, last)
    append = np.where(place >= 0, np.append(order, -1)[place], -1)
    begun_ns = np.append(known.after_ns, NEVER)[append]
    first = offsets.pick(moved.stream, offsets.bounds[moved.stream], offsets.numbers, NEVER)
    lowest = offsets.pick(moved.stream, offsets.bounds[moved.stream], order, -1)
    perhaps_ns = _perhaps_begun(case, moved, appended.take(~appended.is_known))
    # Skip ends below the first known append, which are older than the record. If no append is known, the time is
    # `NEVER`, which is later than every time.
    wrong = (last >= first) & (begun_ns > moved.before_ns) & (perhaps_ns > moved.before_ns)
    earliest_ns = suffix_min(offsets.group, known.after_ns[order])
    since_ns = offsets.pick(moved.stream, offsets.bounds[moved.stream], earliest_ns, NEVER)
    # A gap since the first append may hide the missing append.
    is_whole = case.is_log_whole(moved.rows, moved.before_ns, np.minimum(since_ns, moved.before_ns))

    def explain(member: int) -> Explanation:
        told = f"{last[member] + 1} was made the visible end"
        row = int(moved.rows[member])
        shown = dict.fromkeys((int(known.rows[lowest[member]]) if lowest[member] >= 0 else row, row))
        why = f"{told}, and message {last[member]} was never appended"
        if perhaps_ns[member] < NEVER:
            why = f"{told} before message {last[member]} was appended, in this life of the queue or another"
        if append[member] >= 0:
            shown[int(known.rows[append[member]])] = None
            why = f"{told} before message {last[member]} was appended"
        return Explanation("log.visible.appended", why, [], list(shown), [int(last[member])], [row])

    return suspects(VISIBLE_IS_MONOTONE, wrong & is_whole, wrong & ~is_whole, moved.rows, explain)


def _perhaps_begun(case: Case, moved: Told, doubtful: Told) -> Integers:
    """Returns when the last message below each end may first have been appended; `NEVER` if unrecorded."""
    found = np.full(len(moved.rows), NEVER, dtype=np.int64)
    if not len(doubtful.rows):
        return found
    events = case.events
    own, other = (
        events.queue[told.rows] * (len(events.names_of("source")[1]) + 1) + events.codes("source", told.rows)[0]
        for told in (moved, doubtful)
    )
    order = np.lexsort((doubtful.after_ns, doubtful.values, other))
    offsets = Grouped(other[order], doubtful.values[order], int(max(own.max(initial=-1), other.max())) + 1)
    place = offsets.at(own, moved.values - 1)
    return np.where(place >= 0, doubtful.after_ns[order][place], NEVER)
