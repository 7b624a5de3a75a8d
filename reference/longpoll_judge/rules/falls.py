"""Of the ends of a queue that answers tell: on one connection neither falls from a read to a later one.

Connections do not outlive their broker, so a restart is no fall; a topic that was deleted begins anew. The visible end
is asked of queues that are seen from outside only, since the inside shows it itself (`rightness`). Leaves out what one
answer says.

Source: `DefaultMessageStore.getMinOffsetInQueue` and `getMaxOffsetInQueue`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.keys import Received
from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.columns.queue_log import Integers
from longpoll_judge.contract.clause import PULL_RESULTS
from longpoll_judge.contract.clauses import finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import order_of
from longpoll_judge.rules.across import (
    WEIGHT,
    Gathered,
    Gathering,
    Tables,
    events_at,
    first_of,
    have_request,
    highest_before,
    keys_of_queues,
    lives,
    queue_keys,
    rows_where,
)
from longpoll_judge.rules.answers import FOUND
from longpoll_judge.rules.steps import PULL_CODES

FINDINGS_MAX: Final = 50
"""Most findings of one clause that are listed; the others are counted."""
SHOWN: Final = {"offset_min": "offset_min", "offset_max": "shown_end"}
"""What an earlier answer shows of each end: a message that it delivers was visible."""


@define
class Ends:
    """Pulls, and the ends that answers to them tell."""

    pulls: Gathering = field(factory=lambda: Gathering(()))
    answers: Gathering = field(factory=lambda: Gathering(("offset_min", "offset_max", "offset_next", "shown_end")))
    received: Received = field(factory=Received)

    def see(self, number: int, table: pa.Table) -> None:
        """The events of one slice."""
        named, code = have_request(table), table["code"].to_numpy()
        is_receipt = rows_where(table, "request_received") & named
        self.received.add(table, np.flatnonzero(is_receipt))
        self.pulls.add(table, number, np.flatnonzero(is_receipt & is_one_of(code, PULL_CODES)))
        lowest, highest = table["offset_min"].to_numpy(), table["offset_max"].to_numpy()
        # Bounds that contradict each other are another clause's matter, and say nothing of a fall.
        told = (lowest >= 0) & (lowest <= highest)
        is_answer = rows_where(table, "answer_sent") & named & is_one_of(code, PULL_RESULTS) & told
        rows = np.flatnonzero(is_answer)
        self.answers.add(table, number, rows, {"shown_end": np.maximum(highest, _delivered_end(table))[rows]})


def _delivered_end(table: pa.Table) -> Integers:
    """Of each event the end of the messages that it delivers: these were visible, whatever it tells of the end."""
    lists = table["offsets"].combine_chunks()
    bounds, values = lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()
    found = np.zeros(len(table), dtype=np.int64)
    # Only FOUND delivers; a list beside another code is damage of its own.
    filled = np.flatnonzero(table["code"].to_numpy() == FOUND)
    owner = np.repeat(filled, np.diff(bounds)[filled])
    at = np.arange(len(owner)) + np.repeat(bounds[filled] - _starts(np.diff(bounds)[filled]), np.diff(bounds)[filled])
    np.maximum.at(found, owner, values[at] + 1)
    return found


def _starts(counts: Integers) -> Integers:
    starts: Integers = np.cumsum(counts) - counts
    return starts


def judge_falls(tables: Tables, context: Context, *, most: int = FINDINGS_MAX) -> tuple[list[Finding], int]:
    """Judge all answers; `most` findings of each clause, and how many more there are."""
    ends = Ends()
    for number, table in tables():
        ends.see(number, table)
    pulls, answers = ends.pulls.all(), ends.answers.all()
    request = first_of(answers.request, pulls.request)
    # Of an identifier that came twice, with whatever requests, it is not known which of them an answer is to, and since
    # when. On one connection alone is it certain that an answer was sent before the next request came.
    is_sure = (request >= 0) & ~np.isin(answers.request, ends.received.again)
    mine = np.flatnonzero(is_sure & (answers.connection != 0))
    answers, asked = answers.take(mine), pulls.take(request[mine])
    # One that names no queue is about its request's; one that names another is not judged.
    mine = np.flatnonzero((answers.queue < 0) | (answers.place == asked.place))
    answers, asked = answers.take(mine), asked.take(mine)
    life = (asked.place * WEIGHT + answers.connection) * WEIGHT + lives(asked, answers, context)
    # Where a source shows the visible end, `visible_is_monotone` says more of it.
    outside = ~np.isin(queue_keys(asked), keys_of_queues(context.shown))
    shown: list[tuple[str, str, int, int]] = []
    left_out = 0
    for clause, name, is_asked in (
        ("pull.min.never_falls", "offset_min", np.ones(len(answers), dtype=np.bool_)),
        ("pull.max.never_falls", "offset_max", outside),
    ):
        value = answers.values[name]
        shown_value = answers.values[SHOWN[name]]
        before = highest_before(life, answers.before_ns, shown_value, life, asked.after_ns)
        # -1, for none, is cut to 0 only to pick something: `before >= 0` leaves it out.
        fell = np.flatnonzero(is_asked & (before >= 0) & (shown_value[np.maximum(before, 0)] > value))
        fell = fell[np.argsort(answers.after_ns[fell], kind="stable")]
        # One answer that tells too much makes all later ones fall: it is told once.
        fell = fell[np.sort(np.unique(before[fell], return_index=True)[1])]
        shown += [(clause, name, one, int(before[one])) for one in fell[:most].tolist()]
        left_out += max(len(fell) - most, 0)
    return list(_findings(tables, answers, asked, shown, context)), left_out


def _findings(
    tables: Tables, answers: Gathered, asked: Gathered, shown: list[tuple[str, str, int, int]], context: Context
) -> Iterator[Finding]:
    def place(kind: Gathered, row: int) -> tuple[int, int]:
        return int(kind.slice[row]), int(kind.row[row])

    events = events_at(
        tables, (place(kind, row) for _c, _n, *rows in shown for row in rows for kind in (answers, asked))
    )
    for clause, name, one, earlier in shown:
        evidence = [events[place(kind, row)] for row in (earlier, one) for kind in (asked, answers)]
        subject = evidence[-1]
        verdict: FindingVerdict = "violated" if context.sources.get(subject["source"], UNSEEN).is_steady else "unknown"
        evidence.sort(key=order_of)
        high, low = answers.values[SHOWN[name]][earlier], answers.values[name][one]
        why = f"an answer tells {name} {low}, and one sent on its connection before it was asked for shows {high}"
        yield finding_of(evidence, subject, clause=clause, verdict=verdict, why=why)
