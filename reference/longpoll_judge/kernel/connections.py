"""Answers and their connections: an answer is sent on the connection of its request, before the connection is closed.

The rules apply to every request about a queue, not only to pulls. Repeated answers: `answers`.

A connection does not outlive its broker. A connection certainly lasts from its opening, or else from its first answer,
until its last answer. If two connections of one broker certainly overlap, they belong to one run of the broker, and so
do connections that are linked by a chain of overlaps.

Source: `NettyRemotingAbstract.writeResponse`.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from longpoll_judge.columns.lookup import BEGINNING, NEVER, Integers, first_of, numbered
from longpoll_judge.contract.result import ANSWERED_ONCE
from longpoll_judge.evidence.survey import Context
from longpoll_judge.kernel.case import Case, Explanation, Suspects, ms, suspects
from longpoll_judge.kernel.gathered import (
    Gathered,
    closes_from,
    closes_of,
    count_of_names,
    gather,
    names_of,
    numbers_of,
)


def judge_connections(case: Case) -> list[Suspects]:
    """Judge whether answers were sent on their requests' connections before the connections were closed.

    The members of the returned suspects are positions among the answers.
    """
    events = case.events
    rows = events.rows("answer_sent")
    rows = rows[(events.request_key[rows] >= 0) & ~case.is_damaged[rows]]
    if not len(rows):
        return []
    asked = events.answer_to(events.request_key[rows], "request_received")
    connections = names_of(events.table, "connection", rows)
    came = names_of(events.table, "connection", np.maximum(asked, 0))
    # 0 means no name. A missing request has the index -1, which is replaced by 0 only for the lookup; `asked >= 0`
    # excludes it.
    elsewhere = (asked >= 0) & (came != connections) & (came != 0) & (connections != 0)
    after_ns = events.integers("after_ns", rows)
    # If a connection was closed before the request was received, its name now belongs to another connection.
    since_ns = np.where(asked >= 0, events.integers("after_ns", np.maximum(asked, 0)), BEGINNING)
    # If the request was not recorded, the answer may belong to any of these connections, so compare with the last
    # close.
    sent = gather(events.table, rows)
    closed_ns = np.where(asked >= 0, closes_from(sent, since_ns, case.context)[1], closes_of(sent, case.context)[1])
    # Late means that the connection was certainly closed before the answer. An answer on a different connection does
    # not show when this connection was closed.
    late = ~elsewhere & (closed_ns < after_ns)
    wrong = np.flatnonzero(elsewhere | late)
    if len(wrong):
        # If an identifier was received twice, it is unknown which request was answered, so do not compare connections.
        again = wrong[events.is_asked_again(rows[wrong])]
        elsewhere[again] = late[again] = False

    def explain(place: int) -> Explanation:
        row, asked_in = int(rows[place]), [int(asked[place])] if asked[place] >= 0 else []
        sent_on = f"an answer was sent on connection {events.text('connection', row)[:80]!r}"
        if elsewhere[place]:
            came_on = events.text("connection", asked_in[0])[:80]
            why = f"{sent_on}, and its request came on {came_on!r}"
            return Explanation("answer.same_connection", why, [*asked_in, row])
        why = f"{sent_on} {ms(after_ns[place] - closed_ns[place])} after that was closed"
        return Explanation("answer.open_connection", why, [*asked_in, row])

    nothing = np.zeros_like(late)
    found = suspects(ANSWERED_ONCE, elsewhere, nothing, rows, explain, timeless=True)
    return [*found, *suspects(ANSWERED_ONCE, late, nothing, rows, explain)]


@frozen(eq=False)
class Spans:
    """How long connections certainly lasted. Each connection is a row."""

    of: Integers
    """For each answer, the row of its connection."""
    start_ns: Integers
    end_ns: Integers
    places: Integers
    """The table row of each event that shows a connection."""
    first: Integers
    """For each connection, the position in `places` of the event that shows its beginning."""
    last: Integers
    component: Integers
    """A number that is equal for the connections of one run of the broker."""

    @property
    def life(self) -> Integers:
        """For each answer, the number of the broker's run."""
        return self.component[self.of]

    def path(self, earlier: int, later: int) -> list[int]:
        """Returns the events that link the connections of two answers; empty if both answers came on one connection."""
        start, goal = int(self.of[earlier]), int(self.of[later])
        if start == goal:
            return []
        mine = np.flatnonzero(self.component == self.component[start])
        came: dict[int, int] = {start: start}
        wave = [start]
        while goal not in came:
            reached: list[int] = []
            for one in wave:
                overlap = (self.start_ns[mine] < self.end_ns[one]) & (self.start_ns[one] < self.end_ns[mine])
                fresh = [row for row in mine[overlap].tolist() if row not in came]
                came |= dict.fromkeys(fresh, one)
                reached += fresh
            wave = reached
        found, at = [goal], goal
        while at != start:
            at = came[at]
            found.append(at)
        rows = [row for connection in found for row in (self.first[connection], self.last[connection])]
        found_rows: list[int] = self.places[rows].tolist()
        return found_rows


def generations_of(answers: Gathered, asked: Gathered, opened: Gathered, context: Context) -> Spans:
    """Returns the connections of these answers to these requests; `opened` has the times when connections were opened.

    Connections are linked only within their source if they do not name a broker, or if timestamps of their source do
    not order events. A closed connection is not linked with any other, because its name may be reused.
    """
    closes = context.closes | dict.fromkeys(context.closed_often, (0, -NEVER))
    closed = [
        numbers_of(asked.table, name, [pair[place] for pair in closes])
        for place, name in enumerate(("source", "connection"))
    ]
    shown, also_shown, closed_names = numbered(*((each.source, each.connection) for each in (answers, opened)), closed)
    names, of = np.unique(np.concatenate([shown, also_shown]), return_inverse=True)
    count = len(names)
    before_ns = np.concatenate([answers.before_ns, opened.before_ns])
    places = np.concatenate([answers.row, opened.row])
    by_start = np.argsort(before_ns, kind="stable")
    begins = by_start[np.unique(of[by_start], return_index=True)[1]]
    own = of[: len(answers)]
    # A connection without an answer does not show how long the broker lived.
    end_ns = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(end_ns, own, answers.after_ns)
    by_end = np.argsort(answers.after_ns, kind="stable")[::-1]
    ends = np.full(count, -1, dtype=np.int64)
    seen, at = np.unique(own[by_end], return_index=True)
    ends[seen] = by_end[at]
    start_ns = before_ns[begins]
    group = _groups(asked, own, count, context)
    component = np.arange(count) + count
    # A connection that was closed before its last answer is not linked with others, because its name was reused.
    closed_ns = np.full(count, NEVER, dtype=np.int64)
    at = first_of(names, closed_names)
    closed_ns[at >= 0] = np.array([close[1] for close in closes.values()], dtype=np.int64)[at[at >= 0]]
    is_single = closed_ns < end_ns
    usable = np.flatnonzero(~is_single & (start_ns < end_ns)) if count else np.arange(0)
    order = usable[np.lexsort((start_ns[usable], group[usable]))]
    number, reached, last = -1, 0, None
    for row in order.tolist():
        if group[row] != last or start_ns[row] >= reached:
            number, last, reached = number + 1, group[row], end_ns[row]
        component[row] = number
        reached = max(reached, end_ns[row])
    return Spans(
        of=own,
        start_ns=start_ns,
        end_ns=end_ns,
        places=places,
        first=begins,
        last=ends,
        component=component,
    )


def _groups(asked: Gathered, own: Integers, count: int, context: Context) -> Integers:
    """Returns, for each connection, the group within which it may be linked: its broker's, or only its source's."""
    is_shared = (asked.broker != 0) & ~asked.are("broker", context.unsteady_brokers)
    is_shared &= asked.are("source", [name for name, facts in context.sources.items() if facts.is_steady])
    brokers = count_of_names(asked.table, "broker") + 1
    found = np.zeros(count, dtype=np.int64)
    found[own] = np.where(is_shared, asked.broker, (asked.source + 1) * brokers + asked.broker)
    return found
