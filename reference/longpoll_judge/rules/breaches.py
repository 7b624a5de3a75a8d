"""Breaches of a clause, as rows of events from anywhere in a history, and their findings.

The rules: `sends`, `messages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import frozen

from longpoll_judge.columns.keys import Keys, text_hashes
from longpoll_judge.columns.queue_log import NEVER, Integers
from longpoll_judge.contract.clause import LOGGED, TIMELESS
from longpoll_judge.contract.clauses import CLAUSE, finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import order_of
from longpoll_judge.rules.cross_queue import WEIGHT, Booleans, Gathered, Tables, events_at, first_of, hash_of


@frozen(eq=False)
class Breach:
    """Some messages that break one clause."""

    clause: str
    members: Integers
    weak: Booleans
    """By member: something that was not recorded could explain it."""
    events: tuple[tuple[Gathered, Integers], ...]
    """The evidence: by member a row of each; -1 for none. The first gives the location."""
    why: str


def once(events: Gathered, members: Integers, cause: Integers) -> Integers:
    """Of the members with one cause the first: a message with a wrong offset is at odds with many others."""
    ordered = in_order(events, members)
    return ordered[np.sort(np.unique(cause[ordered], return_index=True)[1])]


def _order(events: Gathered, rows: Integers) -> Integers:
    """The indices of rows sorted by their contents, those that ended first before the others.

    So a report does not depend on the order in which the rows were read.
    """
    offset = events.values.get("queue_offset", events.after_ns)
    keys = (events.tag, events.connection, events.request, events.place, offset, events.after_ns, events.before_ns)
    order: Integers = np.lexsort([key[rows] for key in keys])
    return order


def in_order(events: Gathered, rows: Integers) -> Integers:
    """The rows, put in order by what they tell."""
    return rows[_order(events, rows)]


def earliest(events: Gathered, rows: Integers, keys: Keys, wanted: Keys) -> Integers:
    """For each wanted key the first in order of the rows that have it; -1 where none has."""
    rows = in_order(events, rows[np.isin(keys[rows], wanted)])
    found: Integers = np.append(rows, -1)[first_of(wanted, keys[rows])]
    return found


def placed_at(count: int, members: Integers, rows: Integers) -> Integers:
    """The position of each row among the members; -1 for other rows."""
    found = np.full(count, -1, dtype=np.int64)
    found[members] = rows
    return found


def breach_of(
    clause: str,
    members: Integers,
    events: tuple[tuple[Gathered, Integers], ...],
    why: str,
    weak: Booleans | None = None,
) -> Breach:
    """A breach that is certain, except for its `weak` members."""
    return Breach(clause, members, np.zeros(0, np.bool_) if weak is None else weak, events, why)


def _is_steady(subject: dict[str, Any], context: Context) -> bool:
    return context.sources.get(subject["source"], UNSEEN).is_steady


def _is_timeless(clause: str, subject: dict[str, Any], context: Context) -> bool:
    """Whether a clause stands whatever the moments are: of a log only if it has one life."""
    queue = subject.get("broker", ""), subject.get("topic", ""), subject.get("queue", -1)
    return clause in TIMELESS and (clause not in LOGGED or context.lives(queue) is None)


def findings_of(tables: Tables, breaches: Iterable[Breach], context: Context, most: int) -> Iterator[Finding]:
    """The first `most` of each breach as findings, none stronger than its clause can be."""
    shown = []
    for breach in breaches:
        first, rows = breach.events[0]
        members = breach.members[_order(first, rows[breach.members])]
        members = members[np.argsort(first.after_ns[rows[members]], kind="stable")[:most]]
        for member in members.tolist():
            at = [(kind, int(which[member])) for kind, which in breach.events if which[member] >= 0]
            places = [(int(kind.split[row]), int(kind.row[row])) for kind, row in at]
            is_weak = bool(len(breach.weak)) and bool(breach.weak[member])
            shown.append((breach, places, is_weak))
    events = events_at(tables, (place for breach_of, places, _weak in shown for place in places))
    for breach, places, is_weak in shown:
        evidence = [events[place] for place in dict.fromkeys(places)]
        subject = evidence[0]
        is_doubted = is_weak or not (_is_timeless(breach.clause, subject, context) or _is_steady(subject, context))
        most_certain = CLAUSE[breach.clause].verdict
        verdict: FindingVerdict = "unknown" if is_doubted and most_certain == "violated" else most_certain
        evidence.sort(key=order_of)
        logged = [event for event in evidence if "queue_offset" in event]
        offset = f" {subject['queue_offset']}" if "queue_offset" in subject else ""
        told = offset or f"s {str(subject.get('offsets', []))[:80]}"
        where = f" (queue offset{told})" if offset or "offsets" in subject else ""
        yield finding_of(
            evidence,
            subject,
            clause=breach.clause,
            verdict=verdict,
            why=f"{breach.why}{where}",
            messages=list(dict.fromkeys(event["queue_offset"] for event in logged)),
        )


def are_closed(events: Gathered, since_ns: Integers, until_ns: Integers, context: Context) -> Booleans:
    """Whether the connection of each event was certainly closed by a moment, other than before an earlier one."""
    _after_ns, closed_ns = closes_of(events, context)
    found: Booleans = (closed_ns >= since_ns) & (closed_ns < until_ns)
    for (source, connection), closes in context.closed_often.items():
        mine = (events.source == hash_of(source)) & (events.connection == hash_of(connection))
        for _earliest_ns, latest_ns in closes:
            found |= mine & (latest_ns >= since_ns) & (latest_ns < until_ns)
    return found


def closes_of(events: Gathered, context: Context) -> tuple[Integers, Integers]:
    """Between which moments the connection of each event was closed; `NEVER` where it was not."""
    sources, connections = ([pair[place] for pair in context.closes] for place in range(2))
    keys = text_hashes(pa.array(sources, pa.string())) * WEIGHT + text_hashes(pa.array(connections, pa.string()))
    moments = np.array([*context.closes.values(), (NEVER, NEVER)], dtype=np.int64)
    at = first_of(events.source * WEIGHT + events.connection, keys)
    return moments[at, 0], moments[at, 1]
