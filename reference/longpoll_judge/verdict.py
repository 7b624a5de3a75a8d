"""The verdict on one queue: a pure function from its events to a small table that can be added up over queues.

Both engines call `judge_queue`, on Spark once a group and without Spark once a part of the table; nothing in here knows
which. Leaves out the survey of the evidence and the overall verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from longpoll_judge.answers import FOUND, NO_MATCHED_MSG, PULL_RESULTS
from longpoll_judge.case import Case, Suspects, make_case
from longpoll_judge.latency import bucket_counts
from longpoll_judge.promptness import judge_promptness
from longpoll_judge.queue_log import Integers
from longpoll_judge.result import Finding
from longpoll_judge.rightness import judge_once, judge_rightness
from longpoll_judge.steps import MS
from longpoll_judge.survey import Context

FINDINGS_MAX: Final = 50
"""Most findings that one queue lists for one property and verdict; the others are counted."""

GROUP_KEY: Final = ("broker", "topic", "queue")

RESULT_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("bucket", pa.int64()), ("count", pa.int64()), ("text", pa.string())]
)
"""kind is `finding` (text: JSON of a Finding), `left_out`, `wake` or `late` (a latency bucket), `wake_max` or
`late_max` (count: nanoseconds), `queue`, `pulls`, or `note` (text: what evidence is missing, count: how often)."""

Row = tuple[str, int, int, str]

NOTE_UNDECIDED: Final = "pulls whose subscription tags cannot decide (SQL92, or none known)"
NOTE_OPEN: Final = "pulls still open where the history breaks off without source_stopped"
NOTE_ORPHAN: Final = "answers whose requests are not in the history"
NOTE_REPEATED: Final = "request identifiers that were received twice"
NOTE_BEFORE: Final = "answers over messages with unrecorded tags"


def judge_queue(table: pa.Table, context: Context) -> pa.Table:
    """Judge the events of one (broker, topic, queue), in any order; returns rows of `RESULT_SCHEMA`."""
    topic, queue = table["topic"][0].as_py(), table["queue"][0].as_py()
    case = make_case(table, topic, queue, context)
    promptness = judge_promptness(case)
    rows: list[Row] = [("queue", 0, int(queue >= 0), ""), ("pulls", 0, len(case.pulls), "")]
    for group in (*promptness.suspects, *judge_rightness(case), *judge_once(case)):
        rows += _findings(case, group)
    rows += _latency("wake", promptness.wake_ns)
    rows += _latency("late", promptness.late_ns)
    rows += ((("note", 0, count, text)) for text, count in _notes(case, promptness.open_at_cut) if count)
    columns = list(zip(*rows, strict=True))
    return pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, RESULT_SCHEMA, strict=True)], RESULT_SCHEMA
    )


def _findings(case: Case, group: Suspects) -> Iterator[Row]:
    for member in group.members[:FINDINGS_MAX].tolist():
        explanation = group.explain(member)
        rows = sorted(set(explanation.rows))
        request = case.events.table["request"][_request_row(case, rows)].as_py()
        finding = Finding(
            property=group.property,
            verdict=group.verdict,
            topic=case.topic,
            queue=case.queue,
            request=request,
            window_start_ms=int(case.events.integers("after_ns")[rows].min()) / MS,
            window_end_ms=int(case.events.integers("before_ns")[rows].max()) / MS,
            why=explanation.why,
            evidence=case.events.evidence(rows),
        )
        yield "finding", 0, 1, msgspec.json.encode(finding).decode()
    left_out = len(group.members) - FINDINGS_MAX
    if left_out > 0:
        yield "left_out", 0, left_out, f"{group.property} {group.verdict}"


def _request_row(case: Case, rows: list[int]) -> int:
    """The first of the rows that belongs to the request found at fault."""
    receipts_and_answers = np.concatenate((case.events.rows("request_received"), case.events.rows("answer_sent")))
    return next(row for row in rows if row in receipts_and_answers)


def _latency(kind: str, latency_ns: Integers) -> Iterator[Row]:
    if len(latency_ns):
        for bucket, count in zip(*(column.tolist() for column in bucket_counts(latency_ns)), strict=True):
            yield kind, bucket, count, ""
        yield f"{kind}_max", 0, int(latency_ns.max()), ""


def _notes(case: Case, open_at_cut: int) -> Iterable[tuple[str, int]]:
    """Evidence that is missing or cannot be used."""
    events, pulls = case.events, case.pulls
    received = events.request_key[events.rows("request_received")]
    received = received[received >= 0]
    answered = events.request_key[events.rows("answer_sent")]
    code = np.where(pulls.is_answered, events.integers("code")[pulls.answer_row], -1)
    is_refused = pulls.is_answered & ~np.isin(code, PULL_RESULTS)
    yield NOTE_UNDECIDED, int(np.count_nonzero(~case.is_decidable & ~is_refused))
    yield NOTE_OPEN, open_at_cut
    yield NOTE_ORPHAN, int(np.count_nonzero(~np.isin(answered, received))) if case.queue >= 0 else 0
    yield NOTE_REPEATED, len(received) - len(np.unique(received))
    yield NOTE_BEFORE, _unseen_tags(case, pulls.answer_row[pulls.is_answered], np.flatnonzero(pulls.is_answered))


def _unseen_tags(case: Case, answer_row: Integers, pull: Integers) -> int:
    """How many answers passed over messages whose tags would decide, but were not recorded.

    Only FOUND and NO_MATCHED_MSG pass over messages: the next offset of an illegal one is where to begin instead.
    """
    passed = np.isin(case.events.integers("code")[answer_row], (FOUND, NO_MATCHED_MSG))
    answer_row, pull = answer_row[passed], pull[passed]
    first, end = case.pulls.offset[pull], case.events.integers("offset_next")[answer_row]
    selective: Any = np.array(
        [known is not None and not known.takes_everything for known in case.pulls.expressions], bool
    )
    if not selective.any():
        return 0
    width = np.maximum(end - first, 0)
    unseen = width - case.log.known_count(first, first + width)
    return int(np.count_nonzero(selective[case.pulls.expression[pull]] & (unseen > 0)))
