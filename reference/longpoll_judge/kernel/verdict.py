"""Judges a window: a pure function from its events to rows that can be added up. See `longpoll_judge.kernel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import evolve

from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.tables import place_answers
from longpoll_judge.contract.causes import keys_of
from longpoll_judge.contract.clause import BUSY_CODES, PULL_RESULTS
from longpoll_judge.contract.pops import POP_CODES
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE, HELD_AS_ASKED, NO_LOST_WAKEUP, Finding
from longpoll_judge.evidence.survey import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, Context, queue_text
from longpoll_judge.kernel.answers import judge_codes, judge_once, judge_order, judge_rightness
from longpoll_judge.kernel.case import FOUND, NO_MATCHED_MSG, PULLS, Case, Suspects, judged_counts, make_case
from longpoll_judge.kernel.commits import judge_exchanges
from longpoll_judge.kernel.connections import judge_connections
from longpoll_judge.kernel.ends import judge_ends
from longpoll_judge.kernel.gathered import rows_where, with_numbers
from longpoll_judge.kernel.holding import judge_handling, judge_holding
from longpoll_judge.kernel.lives import REQUEST_EVENTS
from longpoll_judge.kernel.order import judge_logs
from longpoll_judge.kernel.pops import judge_pops
from longpoll_judge.kernel.promptness import bucket_counts, judge_promptness
from longpoll_judge.kernel.pulls import MS, PULL_CODES, STEPS
from longpoll_judge.kernel.rows import BESIDE, FINDING, LEFT_OUT, LEFT_OUT_BESIDE, RESULT_SCHEMA, Found, Row, as_table
from longpoll_judge.kernel.sends import judge_sends
from longpoll_judge.kernel.user_properties import judge_own
from longpoll_judge.kernel.window import Window, make_window
from longpoll_judge.read.schema import integers_of, order_of

LOOKED_AT_MAX: Final = 250
"""The maximum number of violations of one property and queue whose cause is examined; further violations are counted.
"""
LOG_EVENTS: Final = ("message_acknowledged", "append", "make_visible", "message_seen")
"""The events that report a queue's log."""
NOTE_UNDECIDED: Final = "pulls whose subscription tags cannot decide (none known, or a type of no broker)"
NOTE_PROPERTIES: Final = "pulls with SQL92 subscriptions: which messages they take, no record tells"
"""The note about pulls with SQL92 subscriptions. It is the only note that permits the verdict `valid`."""
SQL92: Final = "SQL92"
NOTE_OPEN: Final = "pulls still open where the history breaks off without source_stopped"
NOTE_ORPHAN: Final = "answers whose requests are not in the history"
NOTE_ELSEWHERE: Final = "answers that name another queue than their requests"
NOTE_HELD: Final = "holds and other steps whose pulls are not in the history, or of another queue"
NOTE_REPEATED: Final = "request identifiers that were received twice"
NOTE_BEFORE: Final = "answers over messages with unrecorded tags"
NOTE_POPS: Final = "windows of a growing history have pops, which are judged only when it has ended"
Native = Callable[[pa.Table], Booleans]
"""A function that returns a mask of a table's rows: the rows of queues whose events are all in the table."""


def judge_window(
    table: pa.Table,
    context: Context,
    native: Native | None = None,
    counted_ns: tuple[int, int] | None = None,
    *,
    mine: Native | None = None,
) -> pa.Table:
    """Judge all events of some queues, in any order; returns rows of `RESULT_SCHEMA`.

    Args:
        table: The events, and the events of other queues that share a request with them.
        context: The facts about the whole history.
        native: Which events belong to the queues that are judged; all of them by default.
        counted_ns: Count only pulls that were answered between these two times.
        mine: Which of the native events are judged here, if the window is a part of its queues. The judged events
            depend on the other native events, which another window judges.
    """
    if not len(table):
        return RESULT_SCHEMA.empty_table()
    # All events of these requests are in the table, so a queue found for an answer is final.
    table = place_answers(table)
    window = make_window(table, None if native is None else native(table))
    table = with_numbers(window)
    whole = np.arange(len(table)) < len(window)
    own = whole if mine is None else whole & mine(table)
    case = make_case(window, context, own[: len(window)])
    answered_ns = case.pulls.answered_before_ns
    counted = case.own[case.pulls.row]
    if counted_ns is not None:
        counted &= case.pulls.is_answered & (answered_ns >= counted_ns[0]) & (answered_ns < counted_ns[1])
    rows: list[Row] = [*_counts(case, counted), *_repeated(window, own)]
    promptness = judge_promptness(case, counted)
    groups = (_part(group, case.own[group.rows]) for group in _groups(case, promptness.suspects))
    for group in _steady(case, groups):
        rows += _findings(case, group)
    rows += [("missed", 0, count, text) for text, count in promptness.missed.items()]
    rows += [("note", 0, count, text) for count, text in _notes(case, promptness.open_at_cut)]
    measured = {"wake": promptness.wake_ns, "late": promptness.late_ns}
    # Free the memory of the results for pulls and logs before the next step, which needs much memory.
    del case, promptness, window
    found: list[Finding] = []
    for judged, more in _beside(table, whole, own, context):
        found += judged
        rows += more
    if (is_one_of(integers_of(table, "code"), POP_CODES) & rows_where(table, "request_received")).any():
        # In a growing history, earlier deliveries of a message may be dropped, and the pops of a topic are in several
        # windows.
        judged, more = judge_pops(table, context, native) if counted_ns is None else ([], [("note", 0, 1, NOTE_POPS)])
        found += judged
        rows += more
    rows += [(BESIDE, 0, 1, msgspec.json.encode(one).decode()) for one in found if context.asks(one.clause)]
    rows += judge_own(table, own, context)
    rows = [row for row in rows if row[2] or row[0] == "queue"]
    return pa.concat_tables([as_table(rows), _latencies(measured)])


def _groups(case: Case, prompt: Iterable[Suspects]) -> Iterator[Suspects]:
    yield from judge_logs(case)
    yield from prompt
    yield from judge_rightness(case)
    yield from judge_order(case)
    yield from judge_codes(case)
    yield from judge_once(case)
    yield from judge_connections(case)
    yield from judge_holding(case)
    yield from judge_handling(case)


def _beside(
    table: pa.Table, native: Booleans, own: Booleans, context: Context
) -> Iterator[tuple[list[Finding], list[Row]]]:
    """Yields the results of rules about sends, messages, ends and commits, which need more than pulls and logs."""
    code, received = integers_of(table, "code"), rows_where(table, "request_received")
    if context.asks_sends:
        yield judge_sends(table, context, own)
    if context.asks_ends:
        found, left_out = judge_ends(table, context, native, own)
        yield found, [(LEFT_OUT_BESIDE, 0, left_out, "")]
    if (received & is_one_of(code, (QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET))).any():
        yield judge_exchanges(table, native, own, context)


def _counts(case: Case, counted: Booleans) -> Iterator[Row]:
    """Yields the number of queues, and the numbers of all pulls and of judged, refused and incomplete pulls."""
    events, pulls = case.events, case.pulls
    seen = events.queue[events.are_of((*LOG_EVENTS, *REQUEST_EVENTS))]
    for queue in np.flatnonzero(np.bincount(seen)).tolist() if len(seen) else ():
        name = events.names[queue]
        yield "queue", 0, int(name[2] >= 0), queue_text(name)
    refused = pulls.is_answered & ~is_one_of(case.answer_code, PULL_RESULTS) & counted
    yield PULLS, 0, int(np.count_nonzero(counted)), ""
    yield "asked", 0, int(np.count_nonzero(counted)), PULLS
    yield "refused", 0, int(np.count_nonzero(refused)), PULLS
    yield from _refusals(case, refused, counted)
    yield from (("judged", 0, count, what) for what, count in judged_counts(case, counted))
    own = case.own[pulls.row]
    yield from (("missing", 0, int(np.count_nonzero(flags & own)), text) for text, flags in case.missing.items())


def _refusals(case: Case, refused: Booleans, counted: Booleans) -> Iterator[Row]:
    """Yields, for each queue and group that a busy broker refused, the numbers of refused and of served pulls."""
    groups, names = case.events.codes("group", case.pulls.row)
    pair = case.events.queue[case.pulls.row] * len(names) + groups
    is_busy = refused & is_one_of(case.answer_code, BUSY_CODES)
    busy, counts = np.unique(pair[is_busy], return_counts=True)
    served = pair[case.pulls.is_answered & ~refused & counted]
    for each, count in zip(busy.tolist(), counts.tolist(), strict=True):
        text = f"{queue_text(case.events.names[each // len(names)])}\0{names[each % len(names)]}"
        yield "busy", 0, count, text
        yield "served", 0, int(np.count_nonzero(served == each)), text


def _repeated(window: Window, native: Booleans) -> Iterator[Row]:
    """Yields how often a request had the identifier of an earlier request of the same or another queue."""
    table, keys = window.table, window.any_key
    rows = np.flatnonzero(rows_where(table, "request_received") & np.isin(keys, window.again))
    moments = [integers_of(table, name)[rows] for name in ("queue", "sequence", "before_ns", "after_ns")]
    order = rows[np.lexsort((*moments, keys[rows]))]
    is_again = np.append(False, keys[order][1:] == keys[order][:-1])[: len(order)]
    yield "note", 0, int(np.count_nonzero(is_again & native[order])), NOTE_REPEATED


MEASURED: Final = (NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE, HELD_AS_ASKED)
"""Properties that depend on durations."""
UNSTEADY: Final = "; a clock that was set back, may be set or is not known told the moments"


def _steady(case: Case, groups: Iterable[Suspects]) -> Iterator[Suspects]:
    """Yields the suspects, as unknown if they depend on a clock that was set back or that is not declared.

    A duration by a clock that may be set is unknown too, because a clock that is set forward makes a broker seem to
    pause.
    """
    for group in groups:
        if not len(group.rows):
            continue
        doubted = case.are_unordered(group.rows)
        if group.property in MEASURED:
            doubted |= case.events.are("source", group.rows, case.context.settable)
        doubted &= ~group.timeless
        if group.verdict == "unknown" or not doubted.any():
            yield group
            continue
        yield _part(group, ~doubted)
        yield evolve(_part(group, doubted), verdict="unknown", explain=_doubting(group))


def _part(group: Suspects, which: Booleans) -> Suspects:
    return evolve(group, members=group.members[which], rows=group.rows[which], timeless=group.timeless[which])


def _doubting(group: Suspects) -> Callable[[int], Any]:
    def explain(member: int) -> Any:
        explanation = group.explain(member)
        return evolve(explanation, why=explanation.why + UNSTEADY)

    return explain


def _findings(case: Case, group: Suspects) -> Iterator[Row]:
    """Yields the first suspects of each queue as findings, and counts the others."""
    events = case.events
    queue = events.queue[group.rows]
    order = np.argsort(queue, kind="stable")
    starts = np.searchsorted(queue[order], queue[order])
    listed = np.arange(len(order)) - starts < LOOKED_AT_MAX
    for place in order[listed].tolist():
        yield from _finding(case, group, int(group.members[place]), int(group.rows[place]))
    for number, count in zip(*np.unique(queue[order[~listed]], return_counts=True), strict=True):
        yield LEFT_OUT, 0, int(count), _title(case, group, int(number))


def _title(case: Case, group: Suspects, queue: int) -> str:
    return f"{group.property} {group.verdict} {queue_text(case.events.names[queue])}"


def _finding(case: Case, group: Suspects, member: int, row: int) -> Iterator[Row]:
    explanation = group.explain(member)
    if not case.context.asks(explanation.clause):
        return
    events = case.events
    queue = int(events.queue[row])
    name = events.names[queue]
    own, logged = events.evidence(explanation.rows), events.evidence(explanation.log_rows)
    roots = logged if explanation.roots is None else events.evidence(explanation.roots)
    blamed = [] if explanation.roots == [] else explanation.messages
    shown = sorted(own + logged, key=order_of)
    finding = Finding(
        property=group.property,
        clause=explanation.clause,
        verdict=group.verdict,
        topic=name[1],
        queue=name[2],
        request=_request(case, explanation.rows),
        window_start_ms=min(event["after_ns"] for event in shown) / MS,
        window_end_ms=max(event["before_ns"] for event in shown) / MS,
        why=explanation.why,
        evidence=shown,
        messages=explanation.messages,
    )
    (first,) = events.evidence([row])
    keys = keys_of(explanation.clause, blamed, name, roots, own)
    found = Found(_title(case, group, queue), order_of(first), keys, finding)
    yield FINDING, 0, 1, msgspec.json.encode(found).decode()


def _request(case: Case, rows: list[int]) -> str:
    """Returns the request at fault, that of the first receipt or answer; empty if `rows` has neither."""
    for row in sorted(rows):
        if case.events.text("event", row) in ("request_received", "answer_sent"):
            return case.events.text("request", row)
    return ""


def _latencies(measured: Mapping[str, Integers]) -> pa.Table:
    rows: list[Row] = []
    for kind, latency_ns in measured.items():
        if len(latency_ns):
            buckets, counts = bucket_counts(latency_ns)
            rows += [(kind, bucket, count, "") for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True)]
            rows.append((f"{kind}_max", 0, int(latency_ns.max()), ""))
    return as_table(rows)


def _notes(case: Case, open_at_cut: int) -> Iterable[tuple[int, str]]:
    events, pulls = case.events, case.pulls
    receipts = events.rows("request_received")
    receipts = receipts[events.request_key[receipts] >= 0]
    received = events.request_key[receipts]
    answers = events.rows("answer_sent")
    is_refused = pulls.is_answered & ~is_one_of(case.answer_code, PULL_RESULTS)
    is_sql = events.are("expression_type", pulls.row, {SQL92})
    is_open = ~case.is_decidable & ~is_refused & case.own[pulls.row]
    yield int(np.count_nonzero(is_open & ~is_sql)), NOTE_UNDECIDED
    yield int(np.count_nonzero(is_open & is_sql)), NOTE_PROPERTIES
    yield open_at_cut, NOTE_OPEN
    # If there are as many answers as answered pulls, each answer belongs to one of these pulls.
    orphans = answers[:0]
    if len(answers) > np.count_nonzero(pulls.is_answered):
        orphans = answers[events.look_up(events.request_key[answers], received, received) < 0]
        orphans = orphans[case.own[orphans]]
    elsewhere, is_nowhere = _told_elsewhere(case, orphans)
    yield int(np.count_nonzero(elsewhere)), NOTE_ELSEWHERE
    yield int(np.count_nonzero(~elsewhere & ~is_nowhere)), NOTE_ORPHAN
    holds = np.concatenate([events.rows(name) for name in ("hold", *STEPS)])
    holds = holds[case.own[holds] & (events.request_key[holds] >= 0)]
    holds = holds[events.are("source", holds, case.context.asked)]
    asked_for = received[is_one_of(events.integers("code", receipts), PULL_CODES)]
    yield int(np.count_nonzero(events.look_up(events.request_key[holds], asked_for, asked_for) < 0)), NOTE_HELD
    yield _unseen_tags(case), NOTE_BEFORE


def _told_elsewhere(case: Case, orphans: Integers) -> tuple[Booleans, Booleans]:
    """Returns which answers name a different queue from their request's queue, and which name no queue.

    An answer that names no queue counts as different only if it names a different topic or broker from its request's,
    and if no other request has its identifier.
    """
    events = case.events
    names_none = np.array([name[2] < 0 for name in events.names], dtype=np.bool_)[events.queue[orphans]]
    found = events.is_told_anywhere(orphans, "request_received")
    if names_none.any():
        told = events.is_told_anywhere(orphans, "request_received", queue_min=0)
        found = np.where(names_none, told & ~events.is_asked_in_several(orphans), found)
    return found, names_none


def _unseen_tags(case: Case) -> int:
    """Returns how many answers passed over messages whose tags are needed but were not recorded.

    Only FOUND and NO_MATCHED_MSG pass over messages; the next offset of OFFSET_ILLEGAL says where the client must
    continue.
    """
    selective: Any = np.array(
        [known is not None and not known.takes_everything for known in case.pulls.expressions], bool
    )
    if not selective.any():
        return 0
    passed = is_one_of(case.answer_code, (FOUND, NO_MATCHED_MSG)) & ~case.lives.is_neither[case.pulls.log]
    pull = np.flatnonzero(passed & selective[case.pulls.expression] & case.own[case.pulls.row])
    first, end = case.pulls.offset[pull], case.events.integers("offset_next", case.pulls.answer_row[pull])
    width = np.maximum(end - first, 0)
    unseen = width - case.logs.known.between(case.pulls.log[pull], first, first + width)
    return int(np.count_nonzero(unseen > 0))
