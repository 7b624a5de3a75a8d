"""The verdict on one queue: a pure function from its events to a small table that can be added up over queues.

Both engines call `judge_queue`, on Spark once a group and without Spark once a part of the table; nothing in here knows
which. Leaves out the survey of the evidence and the overall verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import evolve, frozen

from longpoll_judge.columns.batch import Batch, Events, QueueName, make_batch
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.contract.causes import keys_of
from longpoll_judge.contract.clause import BUSY_CODES, PULL_RESULTS
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, HELD_AS_ASKED, NO_LOST_WAKEUP, Finding
from longpoll_judge.evidence.generations import NEITHER
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import order_of
from longpoll_judge.rules.connections import judge_connections
from longpoll_judge.rules.holding import judge_handling, judge_holding
from longpoll_judge.rules.logs import judge_log
from longpoll_judge.rules.promptness import bucket_counts, judge_promptness
from longpoll_judge.rules.pull_answers import judge_codes, judge_once, judge_order, judge_rightness
from longpoll_judge.rules.queue_case import (
    FOUND,
    NO_MATCHED_MSG,
    Case,
    Explanation,
    Log,
    Suspects,
    judged_counts,
    make_cases,
    make_log,
)
from longpoll_judge.rules.queue_columns import MS, PULL_CODES, REQUEST_EVENTS, STEPS
from longpoll_spec.tables import with_table

FINDINGS_MAX: Final = 50
"""Most findings that are listed of one queue, property and verdict; what else breaks it is counted."""
LOOKED_AT_MAX: Final = 250
"""Most of what breaks one property that is looked at for its cause; the rest is counted."""
FINDING: Final = "finding"
"""The kind of a result row whose text is a finding."""
LEFT_OUT: Final = "left_out"
"""The kind of one that counts findings of a group, its text, that are no rows themselves."""

LOG_EVENTS: Final = ("message_acknowledged", "append", "make_visible", "message_seen")
"""Besides `REQUEST_EVENTS` those that a queue's verdict reads; the others serve the survey."""

RESULT_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("bucket", pa.int64()), ("count", pa.int64()), ("text", pa.string())]
)
"""kind is `finding` (text: JSON of a Finding), `left_out`, `wake` or `late` (a latency bucket), `wake_max` or
`late_max` (count: nanoseconds), `missed` (text: a property of time), `refused`, `busy` or `served` (text: a queue and a
group), `queue`, `pulls`, `judged` (text: a property, or `pulls`), `missing` (text: which field of which event), or
`note` (text: what evidence is missing, count: how often)."""

Row = tuple[str, int, int, str]

NOTE_UNDECIDED: Final = "pulls whose subscription tags cannot decide (none known, or a type of no broker)"
NOTE_PROPERTIES: Final = "pulls with SQL92 subscriptions: which messages they take, no record tells"
"""A limit of the contract: the one note that leaves a verdict `valid`."""
SQL92: Final = "SQL92"
NOTE_OPEN: Final = "pulls still open where the history breaks off without source_stopped"
NOTE_ORPHAN: Final = "answers whose requests are not in the history"
NOTE_ELSEWHERE: Final = "answers that name another queue than their requests"
NOTE_HELD: Final = "holds and other steps whose pulls are not in the history, or of another queue"
NOTE_REPEATED: Final = "request identifiers that were received twice"
NOTE_BEFORE: Final = "answers over messages with unrecorded tags"


def judge_table(table: pa.Table, context: Context) -> pa.Table:
    """Judge all events of some queues, in any order, in one piece; returns rows of `RESULT_SCHEMA`."""
    if not len(table):
        return RESULT_SCHEMA.empty_table()
    batch = make_batch(table)
    logs = {name: make_log(events, context) for name, events in batch.queues()}
    judged = (judge_queue(name, log.events, log, context) for name, log in logs.items())
    return pa.concat_tables([judge_logs(logs, context), *judged, repeated_rows(batch)])


def repeated_rows(batch: Batch) -> pa.Table:
    """How often a request's identifier was received again, be it in another queue; of all events of these requests."""
    codes, names = batch.codes("event")
    is_receipt = codes[batch.order] == (names.index("request_received") if "request_received" in names else -1)
    keys = batch.request_key[is_receipt & (batch.request_key >= 0)]
    count = len(keys) - len(np.unique(keys))
    return as_table([("note", 0, count, NOTE_REPEATED)] if count else [])


def judge_logs(logs: Mapping[QueueName, Log], context: Context) -> pa.Table:
    """Judge what hangs on the logs alone."""
    rows: list[Row] = []
    for name, log in logs.items():
        if any(map(len, map(log.events.rows, LOG_EVENTS))):
            rows.append(_queue_row(name))
            for group in steady(judge_log(log.events, context), name, log.events, context):
                rows += _findings(name, log.events, log.events, group, context)
    return as_table(rows)


def judge_queue(name: QueueName, events: Events, log: Log, context: Context) -> pa.Table:
    """Judge requests of one queue; returns rows of `RESULT_SCHEMA`."""
    if not any(map(len, map(events.rows, REQUEST_EVENTS))):
        return RESULT_SCHEMA.empty_table()
    return rows_of(judge_case(case) for case in make_cases(name, events, log, context))


@frozen(eq=False)
class Judged:
    """The results of some requests."""

    rows: list[Row]
    wake_ns: Integers
    late_ns: Integers
    """The latencies that were measured."""


def rows_of(judged: Iterable[Judged]) -> pa.Table:
    """All of it as rows of `RESULT_SCHEMA`; latencies are counted together, since each count costs as much as many."""
    every = list(judged)
    if not every:
        return RESULT_SCHEMA.empty_table()
    latencies = {
        "wake": np.concatenate([one.wake_ns for one in every]),
        "late": np.concatenate([one.late_ns for one in every]),
    }
    return pa.concat_tables([as_table([row for one in every for row in one.rows]), _latencies(latencies)])


def judge_case(case: Case) -> Judged:
    """Judge requests that are joined already."""
    name, events, log_events = case.name, case.events, case.log_events
    promptness = judge_promptness(case)
    rows: list[Row] = [_queue_row(name), ("pulls", 0, len(case.pulls), "")]
    refused = case.pulls.is_answered & ~is_one_of(case.answer_code, PULL_RESULTS)
    rows.append(("refused", 0, int(np.count_nonzero(refused)), ""))
    rows += _refusals(case, refused)
    rows += [("judged", 0, count, what) for what, count in judged_counts(case)]
    rows += [("missing", 0, int(np.count_nonzero(flags)), text) for text, flags in case.missing.items()]
    for group in steady(_groups(case, promptness.suspects), name, events, case.context):
        rows += _findings(name, events, log_events, group, case.context)
    rows += [("missed", 0, count, text) for text, count in promptness.missed.items() if count]
    rows += ((("note", 0, count, text)) for text, count in _notes(case, promptness.open_at_cut) if count)
    return Judged(rows, promptness.wake_ns, promptness.late_ns)


def _refusals(case: Case, refused: Booleans) -> Iterator[Row]:
    """For each group of the queue, how many pulls found the broker busy, and how many were served."""
    groups, names = case.events.codes("group", case.pulls.row)
    is_busy = refused & is_one_of(case.answer_code, BUSY_CODES)
    for kind, flags in (("busy", is_busy), ("served", case.pulls.is_answered & ~refused)):
        counts = np.bincount(groups[flags], minlength=len(names))
        for group in np.flatnonzero(counts).tolist():
            yield kind, 0, int(counts[group]), f"{_text(case.name)}\0{names[group]}"


MEASURED: Final = (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE, HELD_AS_ASKED)
"""Properties that rest on how long something took."""


def steady(groups: Iterable[Suspects], name: QueueName, events: Events, context: Context) -> Iterator[Suspects]:
    """The suspects, but what rests on the moments of a clock that was set back, or is not known, is unknown.

    So is what was measured with a clock that may be set: set forward, it looks like a broker that stands still.
    """
    for group in groups:
        if not len(group.rows):
            continue
        sources, names = events.codes("source", group.rows)
        doubted = np.array([not context.orders(source, name[0]) for source in names], dtype=np.bool_)[sources]
        if group.property in MEASURED and context.settable:
            doubted |= np.array([source in context.settable for source in names], dtype=np.bool_)[sources]
        if group.verdict == "unknown" or group.is_timeless or not doubted.any():
            yield group
            continue

        def explain(member: int, told: Callable[[int], Explanation] = group.explain) -> Explanation:
            explanation = told(member)
            why = f"{explanation.why}; a clock that was set back, may be set or is not known told the moments"
            return evolve(explanation, why=why)

        yield evolve(group, members=group.members[~doubted], rows=group.rows[~doubted])
        yield Suspects(group.property, "unknown", group.members[doubted], group.rows[doubted], explain)


def _groups(case: Case, prompt: Iterable[Suspects]) -> Iterator[Suspects]:
    yield from prompt
    yield from judge_rightness(case)
    yield from judge_order(case)
    yield from judge_codes(case)
    yield from judge_once(case)
    yield from judge_connections(case)
    yield from judge_holding(case)
    yield from judge_handling(case)


def queue_rows(names: Iterable[QueueName]) -> pa.Table:
    """Rows that say that there are these queues."""
    return as_table([_queue_row(name) for name in names])


def _queue_row(name: QueueName) -> Row:
    return "queue", 0, int(name[2] >= 0), _text(name)


def _text(name: QueueName) -> str:
    return "\0".join(map(str, name))


def as_table(rows: list[Row]) -> pa.Table:
    """Rows of `RESULT_SCHEMA` as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(RESULT_SCHEMA)
    return pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, RESULT_SCHEMA, strict=True)], RESULT_SCHEMA
    )


@with_table
class Found(msgspec.Struct, frozen=True):
    """A finding and its place in time among those of its group: one queue, property and verdict."""

    group: str
    order: tuple[int, int, str, int]
    """after_ns, before_ns, source and sequence of the event that gives it its place."""
    keys: tuple[str, ...]
    """Its possible causes (`causes`)."""
    finding: Finding


def is_violated(group: str) -> bool:
    """Whether the findings of a group are certain."""
    return group.split(" ", 2)[1] == "violated"


def _findings(name: QueueName, events: Events, log_events: Events, group: Suspects, context: Context) -> Iterator[Row]:
    title = f"{group.property} {group.verdict} {_text(name)}"
    for member, row in zip(group.members[:LOOKED_AT_MAX].tolist(), group.rows.tolist(), strict=False):
        explanation = group.explain(member)
        if not context.asks(explanation.clause):
            continue
        own, logged = events.evidence(explanation.rows), log_events.evidence(explanation.log_rows)
        roots = logged if explanation.roots is None else log_events.evidence(explanation.roots)
        blamed = [] if explanation.roots == [] else explanation.messages
        shown = sorted(own + logged, key=order_of)
        finding = Finding(
            property=group.property,
            clause=explanation.clause,
            verdict=group.verdict,
            topic=name[1],
            queue=name[2],
            request=_request(events, explanation.rows),
            window_start_ms=min(event["after_ns"] for event in shown) / MS,
            window_end_ms=max(event["before_ns"] for event in shown) / MS,
            why=explanation.why,
            evidence=shown,
            messages=explanation.messages,
        )
        (first,) = events.evidence([row])
        keys = keys_of(explanation.clause, blamed, name, roots, own)
        found = Found(title, order_of(first), keys, finding)
        yield FINDING, 0, 1, msgspec.json.encode(found).decode()
    left_out = len(group.members) - LOOKED_AT_MAX
    if left_out > 0:
        yield LEFT_OUT, 0, left_out, title


def _request(events: Events, rows: list[int]) -> str:
    """The request at fault: that of the first receipt or answer; empty where there is none."""
    for row in sorted(rows):
        if events.text("event", row) in ("request_received", "answer_sent"):
            return events.text("request", row)
    return ""


def _latencies(measured: Mapping[str, Integers]) -> pa.Table:
    """Rows that count latencies by kind, made by column: there are hundreds for each queue and window."""
    columns = []
    for kind, latency_ns in measured.items():
        if len(latency_ns):
            buckets, counts = bucket_counts(latency_ns)
            columns.append((pa.repeat(kind, len(buckets)), buckets, counts))
            columns.append((pa.array([f"{kind}_max"]), np.zeros(1, dtype=np.int64), latency_ns.max(keepdims=True)))
    if not columns:
        return RESULT_SCHEMA.empty_table()
    kinds, *numbers = zip(*columns, strict=True)
    numbers = [pa.array(np.concatenate(arrays)) for arrays in numbers]
    return pa.table([pa.concat_arrays(kinds), *numbers, pa.repeat("", len(numbers[0]))], RESULT_SCHEMA)


def _notes(case: Case, open_at_cut: int) -> Iterable[tuple[str, int]]:
    """Evidence that is missing or cannot be used."""
    events, pulls = case.events, case.pulls
    receipts = events.rows("request_received")
    receipts = receipts[events.request_key[receipts] >= 0]
    received = events.request_key[receipts]
    answers = events.rows("answer_sent")
    is_refused = pulls.is_answered & ~is_one_of(case.answer_code, PULL_RESULTS)
    kinds, names = events.codes("expression_type", pulls.row)
    is_sql = np.array([name == SQL92 for name in names], dtype=np.bool_)[kinds]
    is_open = ~case.is_decidable & ~is_refused
    yield NOTE_UNDECIDED, int(np.count_nonzero(is_open & ~is_sql))
    yield NOTE_PROPERTIES, int(np.count_nonzero(is_open & is_sql))
    yield NOTE_OPEN, open_at_cut
    # Where there are as many answers as pulls that have one, each answer is theirs.
    orphans = answers[:0]
    if len(answers) > np.count_nonzero(pulls.is_answered):
        orphans = answers[events.batch.look_up(events.request_key[answers], received, received) < 0]
    elsewhere = _told_elsewhere(case, orphans)
    yield NOTE_ELSEWHERE, elsewhere
    yield NOTE_ORPHAN, len(orphans) - elsewhere if case.name[2] >= 0 else 0
    holds = np.concatenate([events.rows(name) for name in ("hold", *STEPS)])
    sources, names = events.codes("source", holds)
    asked = np.array([name in case.context.asked for name in names], dtype=np.bool_)[sources]
    holds = holds[(events.request_key[holds] >= 0) & asked]
    asked_for = received[is_one_of(events.integers("code", receipts), PULL_CODES)]
    yield NOTE_HELD, int(np.count_nonzero(events.batch.look_up(events.request_key[holds], asked_for, asked_for) < 0))
    yield NOTE_BEFORE, _unseen_tags(case)


def _told_elsewhere(case: Case, orphans: Integers) -> int:
    """How many answers name another queue than their request, when no request names their queue.

    An answer without a queue would be with its request if both named one topic and broker, unless there are several.
    """
    events, names_none = case.events, case.name[2] < 0
    found = events.is_told_anywhere(orphans, "request_received", queue_min=0 if names_none else -1)
    if names_none and found.any():
        found &= ~events.is_asked_in_several(orphans)
    return int(np.count_nonzero(found))


def _unseen_tags(case: Case) -> int:
    """How many answers passed over messages whose tags would decide, but were not recorded.

    Only FOUND and NO_MATCHED_MSG pass over messages: the next offset of an illegal one is where to begin instead.
    """
    selective: Any = np.array(
        [known is not None and not known.takes_everything for known in case.pulls.expressions], bool
    )
    if not selective.any() or (case.life is not None and case.life.number == NEITHER):
        return 0
    passed = is_one_of(case.answer_code, (FOUND, NO_MATCHED_MSG))
    pull = np.flatnonzero(passed & selective[case.pulls.expression])
    first, end = case.pulls.offset[pull], case.events.integers("offset_next", case.pulls.answer_row[pull])
    width = np.maximum(end - first, 0)
    unseen = width - case.log.known_count(first, first + width)
    return int(np.count_nonzero(unseen > 0))
