"""Properties of a queue's log and of its visible end that need no request.

offsets_in_order: inside a broker every append takes the next queue offset, each once. Seen from outside, no two
messages are acknowledged with the same one. visible_is_monotone: the visible end never moves back and never passes the
log's end. Both hold within one generation and one observer; a crash or truncation begins a new one. The order of two
events is certain only if their intervals do not overlap. What answers report about the log: `rightness`.

Source: `ConsumeQueue.putMessagePositionInfo`, and the spec's properties of the same names.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np

from longpoll_judge.columns.batch import Events, Integers, QueueName
from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import OFFSETS_IN_ORDER, VISIBLE_IS_MONOTONE
from longpoll_judge.evidence.generations import NEITHER
from longpoll_judge.evidence.survey import Context
from longpoll_judge.rules.cross_queue import first_of
from longpoll_judge.rules.queue_case import Explanation, Suspects, suspects

CLAUSES: Final = {"append": "log.append.once", "message_acknowledged": "log.acknowledged.once"}
_NO_OFFSETS: Final = np.empty(0, dtype=np.int64)
MISSING_MAX: Final = 10
"""Most of the messages between two appends that a finding names."""
WORDS: Final = {"append": "appended", "message_acknowledged": "acknowledged"}


def judge_log(events: Events, context: Context, first_known: int | None = None) -> list[Suspects]:
    """Judge the log of one queue; members are rows of `events`, as are those of the explanations.

    Where the events are not all of the log, `first_known` is the first offset of all of it: then what is found may be
    no fault, but nothing is passed over.
    """
    found = []
    for kind in WORDS:
        for _of, rows in _known(_by_source(events, kind, context)):
            found += _given_twice(events, kind, rows, context)
    appended, moved = (_by_source(events, kind, context) for kind in ("append", "make_visible"))
    for (source, _life), rows in _known(appended):
        found += _fallen(events, rows, "queue_offset", "log.append.ordered", "was appended after offset")
        found += _left_out(events, rows, _perhaps(events, appended, source), context)
    for of, rows in _known(moved):
        found += _fallen(events, rows, "visible_end", "log.visible.monotone", "is the visible end, after it was")
        seen = appended.get(of, rows[:0]), appended.get((of[0], NEITHER), rows[:0])
        found += _not_appended(events, rows, seen, first_known, context)
    return found


Of = tuple[int, int]
"""Number of the source, and of the life of the queue; `NEITHER` for events of which that is not known."""


def _known(by_source: dict[Of, Integers]) -> list[tuple[Of, Integers]]:
    """Those of which it is known what life they belong to."""
    return [(of, rows) for of, rows in by_source.items() if of[1] != NEITHER]


def _perhaps(events: Events, appended: dict[Of, Integers], source: int) -> Integers:
    """The offsets that were appended around a deletion: each life may have them, and they show nothing for certain."""
    rows = appended.get((source, NEITHER))
    return _NO_OFFSETS if rows is None else np.unique(events.integers("queue_offset", rows))


def _by_source(events: Events, kind: str, context: Context) -> dict[Of, Integers]:
    """The rows of an event, apart for each source that declares no law: a law may take a queue's end back.

    Without those that lack their place, of which nothing is concluded.
    """
    rows = events.rows(kind)
    column = "visible_end" if kind == "make_visible" else "queue_offset"
    is_placed = (events.integers(column, rows) >= 0) & (events.integers("queue", rows) >= 0)
    rows = rows[is_placed]
    if not len(rows) or not events.text("topic", int(rows[0])):
        return {}
    sources, names = events.codes("source", rows)
    found: dict[Of, Integers] = {}
    for source in np.unique(sources).tolist():
        if names[source] not in context.lawful:
            lives = _by_life(events, rows[sources == source], context)
            found |= {(source, life): of_life for life, of_life in lives}
    return found


def _by_life(events: Events, rows: Integers, context: Context) -> list[tuple[int, Integers]]:
    """The rows apart for each life of the queue, and those of which it is not known which they belong to."""
    lives = context.lives(_name_of(events, rows))
    if lives is None:
        return [(0, rows)]
    numbers = lives.number(events.integers("after_ns", rows), events.integers("before_ns", rows))
    return [(number, rows[numbers == number]) for number in np.unique(numbers).tolist()]


def _name_of(events: Events, rows: Integers) -> QueueName:
    """The queue that all of the rows are of."""
    broker, topic = (events.text(name, int(rows[0])) for name in ("broker", "topic"))
    return broker, topic, int(events.integers("queue", rows[:1])[0])


def _not_appended(
    events: Events, rows: Integers, seen: tuple[Integers, Integers], first_known: int | None, context: Context
) -> list[Suspects]:
    """Visible ends whose last message was not appended before, of those past the first one that was.

    Seen are the rows of what was appended, and of what may have been in this life of the queue.
    """
    appended, perhaps = seen
    offsets = events.integers("queue_offset", appended)
    first = first_known if first_known is not None else int(offsets.min(initial=NEVER))
    last = events.integers("visible_end", rows) - 1
    before_ns = events.integers("before_ns", rows)
    place = _places_of(last, offsets)
    begun_ns = np.append(events.integers("after_ns", appended), NEVER)[place]
    perhaps_ns = _begun_first(events, perhaps, last)
    # Below the first known append the record begins later; `NEVER`, of none, lies behind every moment.
    wrong = (last >= first) & (begun_ns > before_ns) & (perhaps_ns > before_ns)
    since_ns = np.minimum(events.integers("after_ns", appended).min(initial=NEVER), before_ns)
    # A hole since the first append may hide the one that is missing.
    is_whole = ~context.log_holes(events.text("broker", int(rows[0]))).touch(since_ns, before_ns)

    def explain(member: int) -> Explanation:
        told = f"{last[member] + 1} was made the visible end"
        lowest = int(appended[np.argmin(offsets)]) if len(appended) else int(rows[member])
        shown = dict.fromkeys((lowest, int(rows[member])))
        why = f"{told}, and message {last[member]} was never appended"
        if perhaps_ns[member] < NEVER:
            why = f"{told} before message {last[member]} was appended, in this life of the queue or another"
        if place[member] >= 0:
            shown[int(appended[place[member]])] = None
            why = f"{told} before message {last[member]} was appended"
        return Explanation("log.visible.appended", why, [], list(shown), [int(last[member])], [int(rows[member])])

    return suspects(VISIBLE_IS_MONOTONE, wrong & is_whole, wrong & ~is_whole, rows, explain)


def _begun_first(events: Events, rows: Integers, wanted: Integers) -> Integers:
    """For each wanted offset when the first of the rows that have it may have happened; `NEVER` where none has it."""
    offsets, after_ns = events.integers("queue_offset", rows), events.integers("after_ns", rows)
    order = np.lexsort((after_ns, offsets))
    known, first = np.unique(offsets[order], return_index=True)
    return np.append(after_ns[order][first], NEVER)[first_of(wanted, known)]


def _places_of(wanted: Integers, offsets: Integers) -> Integers:
    """For each wanted offset the first place where it stands, -1 for none; a log that has every one needs no search."""
    if len(offsets) and (np.diff(offsets) == 1).all():
        place = wanted - offsets[0]
        return np.where((place >= 0) & (place < len(offsets)), place, -1)
    return first_of(wanted, offsets)


def _given_twice(events: Events, kind: str, rows: Integers, context: Context) -> list[Suspects]:
    offsets = events.integers("queue_offset", rows)
    order = np.argsort(offsets, kind="stable")
    before = np.full(len(rows), -1, dtype=np.int64)
    before[order[1:]] = order[:-1]
    # Sorted by offset, so equal ones stand side by side.
    again = (before >= 0) & (offsets == offsets[before])

    def explain(member: int) -> Explanation:
        why = f"two messages were {WORDS[kind]} with queue offset {offsets[member]}"
        shown = [int(rows[before[member]]), int(rows[member])]
        return Explanation(CLAUSES[kind], why, [], shown, [int(offsets[member])])

    has_one_life = context.lives(_name_of(events, rows)) is None
    return suspects(OFFSETS_IN_ORDER, again, np.zeros_like(again), rows, explain, is_timeless=has_one_life)


def _fallen(events: Events, rows: Integers, column: str, clause: str, words: str) -> list[Suspects]:
    """Rows whose value lies below one that was certainly there before."""
    values = events.integers(column, rows)
    after_ns, before_ns = events.integers("after_ns", rows), events.integers("before_ns", rows)
    ended = np.argsort(before_ns, kind="stable")
    highest = np.append(0, np.maximum.accumulate(values[ended]))
    known = np.searchsorted(before_ns[ended], after_ns, side="left")
    # `known` rows had certainly ended before this one began: the highest of these is what it must not lie below.
    fell = values < highest[known]

    def explain(member: int) -> Explanation:
        earlier = ended[: known[member]]
        higher = int(earlier[np.argmax(values[earlier])])
        why = f"{values[member]} {words} {values[higher]}"
        messages = [int(values[member]), int(values[higher])] if column == "queue_offset" else []
        return Explanation(clause, why, [], [int(rows[higher]), int(rows[member])], messages)

    return suspects(CLAUSE[clause].property, fell, np.zeros_like(fell), rows, explain)


def _left_out(events: Events, rows: Integers, perhaps: Integers, context: Context) -> list[Suspects]:
    """Appends that do not follow upon the offset before; what is missing may have been lost by the recorder."""
    values, first = np.unique(events.integers("queue_offset", rows), return_index=True)
    unknown = np.setdiff1d(perhaps, values)
    # The first offset of the record follows upon nothing.
    skips = np.append(False, np.diff(values) - 1 > np.diff(np.searchsorted(unknown, values)))
    holes = context.log_holes(events.text("broker", int(rows[0])))
    after_ns = events.integers("after_ns", rows[first])
    before_ns = events.integers("before_ns", rows[first])
    since_ns = np.minimum(np.append(after_ns[:1], after_ns[:-1]), after_ns)
    is_whole = ~holes.touch(since_ns, np.maximum(np.append(before_ns[:1], before_ns[:-1]), before_ns))

    def explain(member: int) -> Explanation:
        why = f"no message was appended between the queue offsets {values[member - 1]} and {values[member]}"
        between = range(int(values[member - 1]) + 1, int(values[member]))
        missing = islice((offset for offset in between if offset not in unknown), MISSING_MAX)
        shown = [int(rows[first[member - 1]]), int(rows[first[member]])]
        return Explanation("log.append.gapless", why, [], shown, list(missing))

    return suspects(OFFSETS_IN_ORDER, skips & is_whole, skips & ~is_whole, rows[first], explain)
