"""Answers and their connections: sent where the request came from, and not after the close.

Said of every request of a queue, pull or not. Leaves out second answers (`rightness`).

Source: `NettyRemotingAbstract.writeResponse`.
"""

from __future__ import annotations

import numpy as np

from longpoll_judge.columns.batch import Integers
from longpoll_judge.columns.queue_log import BEGINNING, NEVER
from longpoll_judge.contract.result import ANSWERED_ONCE
from longpoll_judge.rules.queue_case import Booleans, Case, Explanation, Suspects, ms


def judge_connections(case: Case) -> list[Suspects]:
    """Judge where the answers of one queue were sent; a member is an answer's row."""
    events = case.events
    rows = events.rows("answer_sent")
    rows = rows[(events.request_key[rows] >= 0) & ~case.is_damaged[rows]]
    if not len(rows):
        return []
    asked = events.answer_to(events.request_key[rows], "request_received")
    connections, names = events.codes("connection", rows)
    named = _are_named(names)
    came, _names = events.codes("connection", np.maximum(asked, 0))
    # Codes are of names, and an empty name is none; -1 is cut to 0 only to pick something, and `asked >= 0` leaves it
    # out.
    elsewhere = (asked >= 0) & (came != connections) & named[came] & named[connections]
    after_ns = events.integers("after_ns", rows)
    # The name of a connection that was closed before the request came is that of another one.
    since_ns = np.where(asked >= 0, events.integers("after_ns", np.maximum(asked, 0)), BEGINNING)
    # Of an answer without its request nobody knows on which of them that came: it counts by the last close.
    closed_ns = np.where(asked >= 0, next_closes_of(case, rows, since_ns)[1], closes_of(case, rows)[1])
    # Certainly closed before it was sent; one sent elsewhere says nothing of its own connection.
    late = ~elsewhere & (closed_ns < after_ns)
    wrong = np.flatnonzero(elsewhere | late)
    if len(wrong):
        # Of an identifier that came again neither connection is that of what was answered, nor either close.
        again = wrong[events.is_asked_again(rows[wrong])]
        elsewhere[again] = late[again] = False

    def explain_elsewhere(row: int) -> Explanation:
        (place,) = np.flatnonzero(rows == row).tolist()
        request = int(asked[place])
        why = (
            f"an answer was sent on connection {events.text('connection', row)[:80]!r}, and its request came on "
            f"{events.text('connection', request)[:80]!r}"
        )
        return Explanation("answer.same_connection", why, [request, row])

    def explain_late(row: int) -> Explanation:
        (place,) = np.flatnonzero(rows == row).tolist()
        request = [int(asked[place])] if asked[place] >= 0 else []
        why = (
            f"an answer was sent on connection {events.text('connection', row)[:80]!r} "
            f"{ms(after_ns[place] - closed_ns[place])} after that was closed"
        )
        return Explanation("answer.open_connection", why, [*request, row])

    found = []
    for flags, explain in ((elsewhere, explain_elsewhere), (late, explain_late)):
        if flags.any():
            is_timeless = explain is explain_elsewhere
            found.append(Suspects(ANSWERED_ONCE, "violated", rows[flags], rows[flags], explain, is_timeless))
    return found


def _are_named(names: list[str]) -> Booleans:
    named: Booleans = np.array([bool(name) for name in names], dtype=np.bool_)
    return named


def next_closes_of(case: Case, rows: Integers, since_ns: Integers) -> tuple[Integers, Integers]:
    """Between which moments the connection of each event was closed, by the first of its closes not before a moment."""
    after_ns, before_ns = closes_of(case, rows)
    is_gone = before_ns < since_ns
    after_ns[is_gone], before_ns[is_gone] = NEVER, NEVER
    often = case.context.closed_often
    if often:
        again = {connection for _source, connection in often}
        connections, names = case.events.codes("connection", rows)
        may_be = np.array([name in again for name in names], dtype=np.bool_)[connections]
        for place in np.flatnonzero(may_be).tolist():
            name = case.events.text("source", int(rows[place])), case.events.text("connection", int(rows[place]))
            after_ns[place], before_ns[place] = case.context.closed_between(name, int(since_ns[place]))
    return after_ns, before_ns


def closes_of(case: Case, rows: Integers) -> tuple[Integers, Integers]:
    """Between which moments the connection of each event was closed; `NEVER` when it was not."""
    closes, events = case.context.closes, case.events
    if not closes or not len(rows):
        return np.full(len(rows), NEVER, dtype=np.int64), np.full(len(rows), NEVER, dtype=np.int64)
    connections, names = events.codes("connection", rows)
    sources, source_names = events.codes("source", rows)
    pair = connections.astype(np.int64) * len(source_names) + sources
    moments = np.full((2, int(pair.max()) + 1), NEVER, dtype=np.int64)
    for code in np.flatnonzero(np.bincount(pair)).tolist():
        connection, source = divmod(code, len(source_names))
        moments[:, code] = closes.get((source_names[source], names[connection]), (NEVER, NEVER))
    return moments[0, pair], moments[1, pair]
