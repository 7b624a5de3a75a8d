"""Properties of a queue's log, and of its visible end: what hangs on no request.

offsets_in_order: inside a broker every append takes the next queue offset, each once; from outside no two messages are
acknowledged with the same one. visible_is_monotone: the visible end never moves back, and never past the log. Both
within one life of one observer: a crash or a truncation begins a new one. Of two events it is only certain which came
first where their intervals do not overlap. Leaves out what answers say of the log (`rightness`).

Source: `ConsumeQueue.putMessagePositionInfo`, and the properties of the law of the same names.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from longpoll_judge.batch import Events, Integers
from longpoll_judge.case import Explanation, Suspects, suspects
from longpoll_judge.contract import CLAUSE
from longpoll_judge.lives import NEITHER
from longpoll_judge.result import OFFSETS_IN_ORDER
from longpoll_judge.survey import Context

CLAUSES: Final = {"append": "log.append.once", "message_acknowledged": "log.acknowledged.once"}
WORDS: Final = {"append": "appended", "message_acknowledged": "acknowledged"}


def judge_log(events: Events, context: Context) -> list[Suspects]:
    """Judge the log of one queue; members are rows of `events`, as are those of the explanations."""
    found = []
    for kind in WORDS:
        for rows in _by_source(events, kind, context):
            found += _given_twice(events, kind, rows)
    for rows in _by_source(events, "append", context):
        found += _fallen(events, rows, "queue_offset", "log.append.ordered", "was appended after offset")
        found += _left_out(events, rows, context)
    for rows in _by_source(events, "make_visible", context):
        found += _fallen(events, rows, "visible_end", "log.visible.monotone", "is the visible end, after it was")
    return found


def _by_source(events: Events, kind: str, context: Context) -> list[Integers]:
    """The rows of an event, apart for each source that declares no law: a law may take a queue's end back.

    Without those that lack their place, of which nothing is concluded.
    """
    rows = events.rows(kind)
    column = "visible_end" if kind == "make_visible" else "queue_offset"
    is_placed = (events.integers(column, rows) >= 0) & (events.integers("queue", rows) >= 0)
    rows = rows[is_placed]
    if not len(rows) or not events.text("topic", int(rows[0])):
        return []
    sources, names = events.codes("source", rows)
    found = [rows[sources == source] for source in np.unique(sources) if names[source] not in context.lawful]
    return [of_life for of_source in found for of_life in _by_life(events, of_source, context)]


def _by_life(events: Events, rows: Integers, context: Context) -> list[Integers]:
    """The rows apart for each life of the queue, without those of which it is not known which they belong to."""
    name = events.text("broker", int(rows[0])), events.text("topic", int(rows[0]))
    lives = context.lives((*name, int(events.integers("queue", rows[:1])[0])))
    if lives is None:
        return [rows]
    numbers = lives.number(events.integers("after_ns", rows), events.integers("before_ns", rows))
    return [rows[numbers == number] for number in np.unique(numbers) if number != NEITHER]


def _given_twice(events: Events, kind: str, rows: Integers) -> list[Suspects]:
    offsets = events.integers("queue_offset", rows)
    order = np.argsort(offsets, kind="stable")
    before = np.full(len(rows), -1, dtype=np.int64)
    before[order[1:]] = order[:-1]
    again = (before >= 0) & (offsets == offsets[before]) & (offsets >= 0)

    def explain(member: int) -> Explanation:
        why = f"two messages were {WORDS[kind]} with queue offset {offsets[member]}"
        return Explanation(CLAUSES[kind], why, [int(rows[before[member]]), int(rows[member])])

    return suspects(OFFSETS_IN_ORDER, again, np.zeros_like(again), rows, explain)


def _fallen(events: Events, rows: Integers, column: str, clause: str, words: str) -> list[Suspects]:
    """Rows whose value lies below one that was certainly there before."""
    values = events.integers(column, rows)
    after_ns, before_ns = events.integers("after_ns", rows), events.integers("before_ns", rows)
    ended = np.argsort(before_ns, kind="stable")
    highest = np.maximum.accumulate(values[ended])
    known = np.searchsorted(before_ns[ended], after_ns, side="left")
    fell = (known > 0) & (values < np.append(highest, -1)[known - 1])

    def explain(member: int) -> Explanation:
        earlier = ended[: known[member]]
        higher = int(earlier[np.argmax(values[earlier])])
        why = f"{values[member]} {words} {values[higher]}"
        return Explanation(clause, why, [int(rows[higher]), int(rows[member])])

    return suspects(CLAUSE[clause].property, fell, np.zeros_like(fell), rows, explain)


def _left_out(events: Events, rows: Integers, context: Context) -> list[Suspects]:
    """Appends that do not follow upon the offset before; what is missing may have been lost by the recorder."""
    values, first = np.unique(events.integers("queue_offset", rows), return_index=True)
    skips = np.append(False, np.diff(values) > 1)
    holes = context.log_holes(events.text("broker", int(rows[0])))
    after_ns = events.integers("after_ns", rows[first])
    before_ns = events.integers("before_ns", rows[first])
    since_ns = np.minimum(np.append(after_ns[:1], after_ns[:-1]), after_ns)
    is_whole = ~holes.touch(since_ns, np.maximum(np.append(before_ns[:1], before_ns[:-1]), before_ns))

    def explain(member: int) -> Explanation:
        why = f"no message was appended between the queue offsets {values[member - 1]} and {values[member]}"
        return Explanation("log.append.gapless", why, [int(rows[first[member - 1]]), int(rows[first[member]])])

    return suspects(OFFSETS_IN_ORDER, skips & is_whole, skips & ~is_whole, rows[first], explain)
