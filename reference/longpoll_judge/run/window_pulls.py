"""Judges the requests of a window with the log of the window and its two neighbours, where these are enough.

A request is judged here only if the window has all its events and nothing outside could change its verdict:

- It asks at or above all offsets of earlier windows, and was received after all log events of these.
- Its answer uses only offsets that no later window shows, and came before all log events of these.
- Its answer tells an end that no earlier window shows to be passed.
- Its generation of the queue did not begin empty, with lower offsets than earlier windows show.
- No message that might have woken it has an offset that only later windows show.
- What made its messages visible happened before all log events of later windows.

For a request without any answer, the same must hold until a message was there for it.

An `Outlook` answers each question. Requests that are not judged are returned: `open` ones lack their request or their
answer, which the next window may have; `far` ones need more of the log (`wide_pulls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.batch import Batch, Events, QueueName, make_batch, queue_numbers, taken
from longpoll_judge.columns.keys import NO_KEYS, Keys, request_keys
from longpoll_judge.columns.lookup import Booleans, Integers, are_of, is_one_of
from longpoll_judge.columns.queue_log import NEVER, Gap, Matching, Outlook
from longpoll_judge.contract.clause import SEND_CODES
from longpoll_judge.evidence.generations import NEITHER
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import are_named, coded, coded_texts
from longpoll_judge.rules.logs import judge_log
from longpoll_judge.rules.queue_case import NO_NEW_MSG, Case, Log, make_cases, make_log
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.queue_verdict import Judged, judge_case, rows_of

_SPARSE: Final = 8


@frozen(eq=False)
class Settled:
    """The results for some events."""

    rows: pa.Table
    """Of `RESULT_SCHEMA`."""
    open: pa.Table
    far: pa.Table
    keys: Keys
    """Of the requests that were judged."""


@define(eq=False, slots=False)
class WindowJudge:
    """The log of a window and its neighbours."""

    log: pa.Table
    outlook: Callable[[QueueName], Outlook]
    context: Context
    waits: Callable[[Case], Booleans] | None = None
    """Which pulls of a case hang on what has not come, for another reason than their log; None where all has."""
    note: Callable[[Case], None] | None = None
    """Hears of what is judged."""
    place: Callable[[pa.Table], pa.Table] | None = None
    """Gives answers that name no queue a place, row by row, for this look alone: a request that is not here may bear
    the same identifier."""

    @cached_property
    def _batch(self) -> Batch:
        return make_batch(self.log)

    @cached_property
    def _events(self) -> dict[QueueName, Events]:
        return dict(self._batch.queues())

    @cached_property
    def _logs(self) -> dict[QueueName, Log]:
        return {}

    def log_of(self, name: QueueName) -> Log:
        """The log of a queue, as far as it is here."""
        if name not in self._logs:
            events = self._events.get(name, self._batch.nothing())
            self._logs[name] = make_log(events, self.context, self.outlook(name))
        return self._logs[name]

    def faulty_logs(self, names: Iterable[QueueName]) -> set[QueueName]:
        """Those of the queues whose log may be at fault by what is here; the whole log must say."""
        return {name for name in names if name in self._events and self._may_be_faulty(name)}

    def _may_be_faulty(self, name: QueueName) -> bool:
        found = judge_log(self._events[name], self.context, self.outlook(name).first_known)
        return any(len(group.members) for group in found)

    def settle(self, table: pa.Table, held: Keys = NO_KEYS, *, unanswered: bool = False) -> Settled:
        """Judge those requests of the table that can be judged here; those with a key in `held` cannot.

        `unanswered`: requests without an answer have none anywhere.
        """
        handed, table = table, table if self.place is None else self.place(table)
        requests = request_rows(table)
        queue, _rows = queue_numbers(table)
        is_whole = _are_whole(table, requests, queue, held, unanswered=unanswered)
        rows = requests[is_whole]
        far: list[Integers] = [rows[:0]]
        judged: list[Judged] = []
        settled: list[Integers] = [rows[:0]]
        for case in self._cases(table, rows, queue):
            mine, places = case, np.arange(len(case.events))
            away = is_away(case, self.outlook(case.name))
            if self.waits is not None:
                away |= self.waits(case)
            if away.any():
                keys = case.events.request_key
                is_far = np.isin(keys, keys[case.pulls.row[away]])
                far.append(case.events.table_rows(places[is_far]))
                left = case.events.table_rows(places[~is_far])
                if not len(left):
                    continue
                (mine,) = self._cases(table, left, queue)
            judged.append(judge_case(mine))
            if self.note is not None:
                self.note(mine)
            settled.append(mine.events.table_rows(mine.events.rows("request_received")))
        return Settled(
            rows=rows_of(judged),
            open=taken(handed, requests[~is_whole]),
            far=taken(handed, np.concatenate(far)),
            keys=request_keys(table, np.concatenate(settled)),
        )

    def _cases(self, table: pa.Table, rows: Integers, queue: NDArray[Any]) -> Iterator[Case]:
        if len(rows):
            for name, events in make_batch(table, rows, queue).queues():
                yield from make_cases(name, events, self.log_of(name), self.context)


def request_rows(table: pa.Table) -> Integers:
    """The rows of the events that are judged with requests."""
    codes, names = coded(table, "event")
    return np.flatnonzero(are_of(codes, names, REQUEST_EVENTS))


def are_single(table: pa.Table) -> Booleans:
    """Which rows belong to a request that is here once, and all in one queue."""
    found = np.zeros(len(table), dtype=np.bool_)
    rows = request_rows(table)
    found[rows] = _are_whole(table, rows, queue_numbers(table)[0], NO_KEYS, unanswered=True)
    return found


def _are_whole(table: pa.Table, rows: Integers, queue: NDArray[Any], held: Keys, *, unanswered: bool) -> Booleans:
    """Which rows belong to a request that is here once, in one queue, with an answer or `unanswered`.

    Acknowledgements answer sends; they come with the log and are not among the rows.
    """
    codes, names = coded(table, "event")
    kinds = codes[rows]
    sources, source_names = coded(table, "source")
    requests, request_names = coded_texts(table, "request")
    named = are_named(request_names)[requests[rows]]
    acknowledged = np.flatnonzero(are_of(codes, names, ("message_acknowledged",)))
    both = np.concatenate((rows, acknowledged))
    key = requests[both].astype(np.int64) * max(len(source_names), 1) + sources[both]
    count = len(request_names) * max(len(source_names), 1)
    if count > _SPARSE * len(key):
        key = np.unique(key, return_inverse=True)[1]
        count = len(key)
    key, done = key[: len(rows)], key[len(rows) :]
    is_received, is_answer = (
        kinds == (names.index(name) if name in names else -1) for name in ("request_received", "answer_sent")
    )
    queue = queue[rows]
    some_queue = np.zeros(count, dtype=queue.dtype)
    some_queue[key] = queue
    is_whole = np.bincount(key[is_received], minlength=count) == 1
    if not unanswered:
        is_done = np.bincount(key[is_answer], minlength=count) > 0
        if len(done) and "code" in table.column_names:
            is_stored = np.zeros(count, dtype=np.bool_)
            is_stored[done] = True
            sent = key[is_received & is_one_of(table["code"].to_numpy()[rows], SEND_CODES)]
            is_done[sent] |= is_stored[sent]
        is_whole &= is_done
    is_whole[key[some_queue[key] != queue]] = False
    found: Booleans = is_whole[key] & named
    if len(held):
        found &= ~np.isin(request_keys(table, rows), held)
    return found


def is_away(case: Case, outlook: Outlook) -> Booleans:
    """Which pulls hang, or might hang, on what lies outside."""
    pulls, log = case.pulls, case.log
    if not len(pulls) or (case.life is not None and case.life.number == NEITHER):
        return np.zeros(len(pulls), dtype=np.bool_)
    if case.life is not None and (case.life.emptied_ns is not None or _is_without_base(case, outlook)):
        return np.ones(len(pulls), dtype=np.bool_)
    settled_ns = pulls.answered_before_ns
    if not pulls.is_answered.all():
        _after, visible_ns = case.first_visible
        settled_ns = np.where(pulls.is_answered, settled_ns, visible_ns)
    first = np.minimum(pulls.received_after_ns, settled_ns) - log.slack_ns
    last = np.maximum(pulls.received_after_ns, settled_ns)
    if _lie_within(case, outlook, int(first.min()), int(last.max())):
        return np.zeros(len(pulls), dtype=np.bool_)
    lowest, highest, has_body, last_told = asked_range(case)
    early = np.zeros(len(pulls), dtype=np.bool_)
    if len(has_body):
        # One that was told before it was visible: what made it visible, later, is evidence.
        early[has_body] = log.growth.visible_between(last_told)[1] >= outlook.begins_after_ns
    away: Booleans = (lowest < outlook.floor) | (first <= outlook.ended_before_ns)
    away |= (last >= outlook.begins_after_ns) | (highest > outlook.reach)
    told = case.told("offset_max")
    away |= (told >= 0) & (told < outlook.end_before)
    if outlook.begins_after_ns < NEVER:
        away |= early
        away |= log.growth.end_at_most(last) > outlook.reach
    if outlook.gap is not None:
        away |= _hangs_on_gap(case, highest, told, outlook.gap)
    return away


def _is_without_base(case: Case, outlook: Outlook) -> bool:
    """Whether later windows alone show where the log of the first of several lives begins, if they do."""
    is_first_life = case.life is not None and case.life.number == 0
    return is_first_life and case.log.base == NEVER and outlook.reach < NEVER


def _lie_within(case: Case, outlook: Outlook, first_ns: int, last_ns: int) -> bool:
    """Whether, by their extremes, none of the pulls depends on anything outside; this is the usual case (`is_away`).

    Visibility times rise with the offset and the visible end rises with time, so the highest values suffice.
    """
    pulls, log = case.pulls, case.log
    if outlook.gap is not None or first_ns <= outlook.ended_before_ns or last_ns >= outlook.begins_after_ns:
        return False
    _count, body, _owner = case.bodies
    told = case.told("offset_max")
    last_told = body.max(keepdims=True) if len(body) else body
    highest = max(int(pulls.offset.max()) + 1, int(case.told("offset_next").max()), *(last_told + 1).tolist())
    if min(int(pulls.offset.min()), *body.min(initial=NEVER, keepdims=True).tolist()) < outlook.floor:
        return False
    if highest > outlook.reach or ((told >= 0) & (told < outlook.end_before)).any():
        return False
    if outlook.begins_after_ns == NEVER:
        return True
    is_early = (log.growth.visible_between(last_told)[1] >= outlook.begins_after_ns).any()
    return not is_early and int(log.growth.end_at_most(np.array([last_ns]))[0]) <= outlook.reach


def asked_range(case: Case) -> tuple[Integers, Integers, Integers, Integers]:
    """The offsets of the log that each pull and its answer look at, [lowest, highest).

    Also which pulls were given messages, and the last of these.
    """
    pulls = case.pulls
    lowest, highest = pulls.offset, np.maximum(pulls.offset + 1, case.told("offset_next"))
    body_count, values, _owner = case.bodies
    has_body = np.flatnonzero(body_count)
    if not len(has_body):
        return lowest, highest, has_body, has_body
    starts = np.cumsum(body_count[has_body]) - body_count[has_body]
    lowest, highest = lowest.copy(), highest.copy()
    lowest[has_body] = np.minimum(lowest[has_body], np.minimum.reduceat(values, starts))
    last_told = np.maximum.reduceat(values, starts)
    highest[has_body] = np.maximum(highest[has_body], last_told + 1)
    return lowest, highest, has_body, last_told


def _hangs_on_gap(case: Case, highest: Integers, told: Integers, gap: Gap) -> Booleans:
    """Which pulls depend, or might depend, on the gap between the messages that they ask for and their own time.

    A pull does not if all its messages were visible before the gap and have lower offsets than the gap shows. Also no
    end that it reports, or that can contradict it, may lie in the gap. A pull that a message might have woken, or that
    got an empty answer, depends on the first message that it takes as well.
    """
    pulls, log = case.pulls, case.log

    def first_taken(matching: Matching, mine: Integers) -> tuple[Integers, Integers]:
        found = matching.first(pulls.offset[mine])
        return found, found

    is_first_life = case.life is not None and case.life.number == 0
    if is_first_life and (not len(log.offsets) or log.offsets[0] > gap.reach):
        # Where the record of this life begins is not known here.
        return np.ones(len(pulls), dtype=np.bool_)
    waits = pulls.was_held | ~pulls.is_answered | (case.answer_code == NO_NEW_MSG)
    first, _same = case.by_expression(first_taken)
    highest = np.where(waits, np.maximum(highest, np.minimum(first, NEVER - 1) + 1), highest)
    after_ns, before_ns = log.growth.visible_between(highest - 1)
    # What an earlier life showed may be there, and is never there for certain; only who waits hangs on that.
    visible_ns = before_ns if case.life is None else np.where(waits, before_ns, after_ns)
    away: Booleans = (highest > gap.reach) | (visible_ns >= gap.begins_ns) | ((told >= 0) & (told < gap.floor))
    return away
