"""Small hostile histories with all that can happen to their evidence, told by events alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from longpoll_judge.evidence.observers import DELETE_TOPIC
from longpoll_judge.evidence.survey import Context, context_and_gaps, merge
from longpoll_judge.read.schema import DEFAULTS, PLAIN_SCHEMA, fill
from longpoll_judge.read.source import History
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.queue_verdict import LOG_EVENTS
from longpoll_judge.run.windows import Overview, overview_of_table

TICK_NS: Final = 10**9
"""A deletion takes five of them, and some moments of a broker's promises one."""
Row = dict[str, Any]
NUMBERS: Final = (
    *("queue", "code", "offset", "count_max", "timeout_ms", "offset_next", "offset_min", "offset_max"),
    *("queue_offset", "visible_end"),
)
OTHERS: Final = ("connection_closed", "lost", "blocked", "unblocked", "omitted", "source_stopped", "unheard_of")


@frozen(eq=False)
class Hostile:
    """A history in splits."""

    splits: list[pa.Table]
    window_events: int
    overviews: list[Overview]
    context: Context
    is_unplaced: bool
    """There are answers that name no queue."""


def hostile(seed: int) -> Hostile:
    """The history of a number."""
    dice = random.Random(seed)
    sources = dice.choice([["one"], ["one"], ["one", "other"]])
    is_inside, rows = dice.random() < 0.7, list[Row]()
    for _queue in range(dice.choice([1, 1, 2, 3])):
        rows += _queue_of(dice, sources, dice.choice([4, 12, 40]), is_inside=is_inside)
    rows += [row for source in sources for row in _of_source(dice, source)]
    rows.sort(key=lambda row: row["at"])
    _number(dice, rows)
    for _time in range(dice.choice([0, 0, 1, 2, 6])):
        if rows:
            _harm(dice, rows)
    if dice.random() < 0.15:
        dice.shuffle(rows)
    table = _table_of(rows)
    splits = _cut(dice, table)
    overviews = [overview_of_table(part, []) for part in splits]
    survey = merge(overview.survey for overview in overviews)
    context, _gaps = context_and_gaps(_told_beside(dice, sources), survey, wake_ms=dice.choice([0, 1_000]), late_ms=0)
    return Hostile(splits, dice.choice([1, 1, 8, 30]), overviews, context, survey.unplaced_answers > 0)


def _queue_of(dice: random.Random, sources: list[str], count: int, *, is_inside: bool) -> list[Row]:
    """One queue's life, or several."""
    place = {
        "broker": dice.choice(["b", "b", "b", "", "c"]),
        "topic": "T",
        "queue": dice.choice([0, 0, 1]),
        "source": dice.choice(sources),
    }
    found: list[Row] = []
    end, at, number = 0, dice.choice([0, 0, 10]), 0
    while len(found) < count:
        at += dice.choice([0, 1, 1, 2, 6])
        width = dice.choice([0, 0, 1])
        here = place | {"at": at, "width": width}
        chance = dice.random()
        if chance < 0.05:
            # A topic is deleted and begins anew, or begins anew and nobody tells why.
            topic = dice.choice(["T", "T", "T", ""])
            asked = {"event": "request_received", "code": DELETE_TOPIC, "request": f"d{dice.random()}", "queue": -1}
            if dice.random() < (0.8 if is_inside else 0.4):
                found.append(here | asked | {"topic": topic, "broker": dice.choice([place["broker"], ""])})
            end, at = 0, at + dice.choice([0, 3, 9])
        elif chance < 0.5:
            found += _message(dice, here, end, is_inside=is_inside)
            end += 1
        else:
            name = f"{place['broker']}{place['queue']}-{number}"
            number += 1
            found += _pull(dice, here | {"request": name, "connection": dice.choice("kl")}, end, is_inside=is_inside)
    return found


def _message(dice: random.Random, here: Row, end: int, *, is_inside: bool) -> list[Row]:
    at, tag = here["at"], dice.choice("ab")
    acknowledged = here | {"event": "message_acknowledged", "queue_offset": end, "tag": tag, "at": at + 1}
    if not is_inside:
        return [acknowledged]
    shown = here | {"event": "make_visible", "visible_end": end + 1, "at": at + dice.choice([0, 1, 1, 3])}
    found = [here | {"event": "append", "queue_offset": end, "tag": tag}]
    return [*found, *[shown] * (dice.random() < 0.9), *[acknowledged] * (dice.random() < 0.2)]


def _pull(dice: random.Random, here: Row, end: int, *, is_inside: bool) -> list[Row]:
    offset = dice.choice([end, end, max(end - 1, 0), 0, max(end - 3, 0), end + 1])
    most = dice.choice([1, 2, 32])
    asked: Row = {
        "event": "request_received",
        "code": 11,
        "offset": offset,
        "count_max": most,
        "may_hold": offset >= end,
    }
    asked |= {"timeout_ms": 1_000, "expression_type": "TAG", "expression": dice.choice(["*", "*", "a", "a || b"])}
    told: Row = {"offset_min": 0, "offset_max": end, "offset_next": offset, "code": 19}
    at, found = here["at"], [here | asked]
    if offset < end:
        body = list(range(offset, min(end, offset + most)))
        told |= {"code": 0, "offsets": body, "offset_next": body[-1] + 1}
    elif is_inside and dice.random() < 0.9:
        found.append(here | {"event": "hold", "at": at, "visible_end": end})
    if is_inside and dice.random() < 0.1:
        found.append(here | {"event": dice.choice(["recheck", "take", "expire", "keep", "run", "stop"]), "at": at + 1})
    where = {"queue": -1, "topic": ""} if dice.random() < 0.03 else {}
    answer = here | told | where | {"event": "answer_sent", "at": at + dice.choice([0, 1, 1, 2, 9])}
    return [*found, *[answer] * (dice.random() < 0.93)]


def _of_source(dice: random.Random, source: str) -> list[Row]:
    """The events that begin and end a source, and those about its connections and itself."""
    found = [{"event": "source_started", "source": source, "at": -1, "width": 0}]
    for _time in range(dice.choice([0, 0, 1, 3])):
        at, event = dice.randrange(60), dice.choice(OTHERS[:4])
        found.append({"event": event, "source": source, "at": at, "width": 0, "connection": dice.choice("kl")})
    if dice.random() < 0.8:
        found.append({"event": "source_stopped", "source": source, "at": dice.choice([99, 99, 40]), "width": 0})
    return found


def _number(dice: random.Random, rows: list[Row]) -> None:
    """Give each source's events their numbers in order of time, seldom with a hole or a number that stands twice."""
    counts: dict[str, int] = {}
    for row in rows:
        row["sequence"] = counts.get(row["source"], 0)
        step = 1 if dice.random() > 0.004 else dice.choice([0, 2])
        counts[row["source"]] = row["sequence"] + step


def _harm(dice: random.Random, rows: list[Row]) -> None:
    """Do something to an event that no broker does, or that a recorder loses."""
    place = dice.randrange(len(rows))
    row = rows[place]
    kind = dice.randrange(12)
    if kind <= 2:
        row[dice.choice(NUMBERS)] = dice.choice([-1, -2, 0, 1, 2, 5, 1 << 50])
    elif kind == 3:
        again = row | {"at": row["at"] + dice.choice([0, 1, 3, 20, -3, -20])}
        rows.append(again | dice.choice([{}, {"queue": 1}, {"queue": -1}, {"source": "other"}, {"broker": "c"}]))
    elif kind == 4:
        rows.pop(place)
    elif kind <= 6:
        row["at"] += dice.choice([1, -1, 5, -5, 25, -25])
    elif kind == 7:
        row["request"] = dice.choice(["", "b0-1", "b1-1", "0-1"])
    elif kind == 8:
        row["event"] = dice.choice([*REQUEST_EVENTS, *LOG_EVENTS, *OTHERS])
    elif kind == 9:
        row["offsets"] = dice.choice([[], [0], [3, 1], [-2], [0, 1, 2], [1 << 40]])
    elif kind == 10:
        row["code"] = dice.choice([0, 19, 20, 21, 1, 2, 14, 11, 361, 215, -1, 77])
    else:
        row[dice.choice(["cause", "topic", "connection", "broker"])] = dice.choice(["stopped", "", "T", "k"])


def _table_of(rows: Iterable[Row]) -> pa.Table:
    events = []
    for row in rows:
        event = {name: value for name, value in row.items() if name not in {"at", "width"}}
        event["after_ns"] = row["at"] * TICK_NS
        event["before_ns"] = (row["at"] + row["width"]) * TICK_NS
        events.append({name: value for name, value in event.items() if value != DEFAULTS.get(name)})
    return fill(pa.Table.from_pylist(events, schema=PLAIN_SCHEMA))


def _cut(dice: random.Random, table: pa.Table) -> list[pa.Table]:
    """In splits, which several observers may write side by side."""
    parts = [table]
    if dice.random() < 0.2:
        names = sorted(set(table["source"].to_pylist()))
        parts = [table.filter(pa.array([one == name for one in table["source"].to_pylist()])) for name in names]
    found = []
    for part in parts:
        borders = sorted(dice.randrange(len(part) + 1) for _border in range(dice.choice([0, 1, 2, 4, 9])))
        found += [part.slice(begin, end - begin) for begin, end in pairwise([0, *borders, len(part)])]
    return found


def _told_beside(dice: random.Random, sources: list[str]) -> History:
    """The meta files of such a history."""
    settable = dice.choice([[], [], [], sources[:1], sources])
    policies = dice.choice([[], ["strict"], ["rocketmq-4.9"], ["strict", "rocketmq-5"]])
    return History(
        splits=[],
        damages=[],
        declared_sources=frozenset(sources[: dice.choice([1, 2, 2, 2])]),
        settable_clocks=frozenset(settable),
        policies=frozenset(policies),
        laws={},
        hold_limits={},
        sources={},
        policy_of={},
    )
