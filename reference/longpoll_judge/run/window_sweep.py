"""Judges the requests of each window, in order of time, with the log of the window and its two neighbours.

A request is judged here only if the window has all its events and nothing outside could change its verdict:

- It asks at or above all offsets of earlier windows, and was received after all log events of these.
- Its answer uses only offsets that no later window shows, and came before all log events of these.
- Its answer tells an end that no earlier window shows to be passed.
- Its generation of the queue did not begin empty, with lower offsets than earlier windows show.
- No message that might have woken it has an offset that only later windows show.
- What made its messages visible happened before all log events of later windows.

For a request without any answer, the same must hold until a message was there for it. An `Outlook` answers each
question. Requests that are not judged are returned: `open` ones lack their request or their answer, which the next
window may have; `far` ones need more of the log.

A sweep holds two windows at a time and the open requests. A pull that asks for messages of an earlier window is judged
with two pieces of the log: its own window's, and that of the window in which these messages came. Runs of windows can
be swept separately, and so can groups of queues (`spark.queue_groups`). `wide_pulls` judges what they leave. Temporary
files keep events that are dear to read again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.batch import (
    Batch,
    Events,
    QueueName,
    compacted,
    decode,
    encode,
    joined,
    make_batch,
    place_answers,
    queue_numbers,
    taken,
)
from longpoll_judge.columns.keys import NO_KEYS, Keys, request_keys
from longpoll_judge.columns.lookup import Booleans, Integers, are_of, is_one_of
from longpoll_judge.columns.memory import give_back_memory
from longpoll_judge.columns.queue_log import NEVER, Gap, Matching, Outlook
from longpoll_judge.contract.clause import SEND_CODES
from longpoll_judge.evidence.generations import NEITHER
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import are_named, coded, coded_texts, fill, has_column
from longpoll_judge.read.source import InputSplit
from longpoll_judge.rules.logs import judge_log
from longpoll_judge.rules.queue_case import NO_NEW_MSG, Case, Log, make_cases, make_log
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS
from longpoll_judge.run.queue_verdict import LOG_EVENTS, RESULT_SCHEMA, Judged, judge_case, rows_of
from longpoll_judge.run.tally import Tally
from longpoll_judge.run.windows import REACH, Overview, WindowPlan

IN_MEMORY_EVENTS: Final = 10_000
"""So many events wait in memory, since to write and read a few costs as much as to judge them."""


@define
class EventFile:
    """Events on disk, such as the logs of windows, by a key."""

    _file: BinaryIO
    _kept: dict[Hashable, tuple[int, int]] = field(factory=dict)
    """By key where each begins, and its length."""
    _end: int = 0

    def put(self, key: Hashable, table: pa.Table) -> None:
        """Keep some events."""
        content = encode(table)
        self._file.seek(self._end)
        self._file.write(content)
        self._kept[key] = self._end, len(content)
        self._end += len(content)

    def get(self, key: Hashable) -> pa.Table | None:
        """The events, with the columns that they use; None if they are not kept."""
        if key not in self._kept:
            return None
        start, length = self._kept[key]
        self._file.seek(start)
        return decode(self._file.read(length))


@contextmanager
def open_events() -> Iterator[EventFile]:
    """A file of events that goes with the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file:
        yield EventFile(file)


@define
class Spill:
    """Splits on disk, or the first of them in memory, and what was seen when they were looked over."""

    _file: EventFile
    _overviews: dict[Hashable, Overview] = field(factory=dict)
    _tables: dict[Hashable, pa.Table] = field(factory=dict)
    """Those that are in memory."""

    def put(self, part: InputSplit, table: pa.Table, overview: Overview, mark: int = 0) -> None:
        """Keep the events of a split; its `mark` distinguishes it from a later split of the same place."""
        key = key_of(part), mark
        self._overviews[key] = overview
        if len(table) + sum(map(len, self._tables.values())) <= IN_MEMORY_EVENTS:
            self._tables[key] = fill(compacted(table, 1))
        else:
            self._file.put(key, table)

    def overview(self, part: InputSplit, mark: int = 0) -> Overview | None:
        """The overview of a split; None if it is not kept."""
        return self._overviews.get((key_of(part), mark))

    def get(self, part: InputSplit, mark: int = 0) -> pa.Table | None:
        """The events of a split, with all columns; None of one that is not kept."""
        key = key_of(part), mark
        if key in self._tables:
            return self._tables[key]
        table = self._file.get(key)
        return None if table is None else fill(table)


@contextmanager
def open_spill() -> Iterator[Spill]:
    """A spill whose file goes with the block."""
    with open_events() as file:
        yield Spill(file)


def key_of(part: InputSplit) -> bytes:
    """Equal for equal splits."""
    return msgspec.msgpack.encode(part, order="deterministic")


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
        if len(done) and has_column(table, "code"):
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


READ: Final = 2
"""Most windows whose messages are asked for that are at hand together, with their neighbours."""

assert REACH == 1, "a sweep holds the window that comes next, and no more"


@frozen(eq=False)
class Swept:
    """The results of a run of windows."""

    rows: pa.Table
    """Of `RESULT_SCHEMA`."""
    rest: pa.Table
    """Events of requests that could not be judged."""
    faulty: frozenset[QueueName]
    """Queues whose log may be at fault."""


@define
class WindowReader:
    """Reads the windows of a plan."""

    plan: WindowPlan
    read: Callable[[int], pa.Table]
    """The events of a split, by its number."""
    unplaced: bool
    """There are answers that name no queue."""
    earliest: int = 0
    """The first window whose log can be read."""

    def events(self, window: int) -> pa.Table:
        """All events of a window, in one chunk."""
        return joined(self.read(number) for number in self.plan.windows[window])

    def placed(self, table: pa.Table) -> pa.Table:
        """The same rows with their answers at the place of their requests, as far as these are in the table."""
        return place_answers(table) if self.unplaced and len(table) else table

    def log(self, window: int) -> pa.Table:
        """The log events of a window."""
        return log_of(self.events(window)) if 0 <= window < len(self.plan.windows) else joined([])

    def keep(self, window: int, log: pa.Table, kept: EventFile) -> None:
        """Keep a log that cannot be read again."""

    def judge(self, first: int, last: int, logs: Iterable[pa.Table], context: Context) -> WindowJudge:
        """Where windows from first to last are judged, given the logs of them and their neighbours."""
        return WindowJudge(joined(logs), partial(self.plan.around, first, last), context, place=self.placed)


@frozen(eq=False)
class Neighbourhood:
    """A window and its neighbours, and the logs of earlier windows as they are asked for."""

    windows: WindowReader
    window: int
    logs: Sequence[pa.Table]
    """Of the window and its neighbours."""
    kept: EventFile
    """Takes the logs of earlier windows, which are read once."""
    context: Context

    def apart(self, first: int, last: int) -> WindowJudge:
        """Where requests of the window are judged that ask for messages of earlier ones, from first to last."""
        earlier = range(max(first - REACH, 0), min(last + REACH + 1, self.window - REACH))
        own = self.window, self.window
        outlook = partial(self.windows.plan.apart, (first, last), own)
        logs = joined([*map(self._log, earlier), *self.logs])
        return WindowJudge(logs, outlook, self.context, place=self.windows.placed)

    def _log(self, window: int) -> pa.Table:
        if self.kept.get(window) is None:
            self.kept.put(window, self.windows.log(window))
        log = self.kept.get(window)
        assert log is not None, "it was put there"
        return log


def log_of(table: pa.Table) -> pa.Table:
    """The log events among some events."""
    codes, names = coded(table, "event")
    return taken(table, np.flatnonzero(are_of(codes, names, LOG_EVENTS)))


def sweep(
    windows: WindowReader, run: tuple[int, int], context: Context, held: Keys, tell: Callable[[Keys], None]
) -> Swept:
    """Judge a run of windows [first, end) without the requests that are `held`; `tell` hears of the others."""
    first, end = run
    tally, rest = Tally(), []
    faulty: set[QueueName] = set()
    with ThreadPoolExecutor(1) as ahead, open_events() as kept:
        logs = [windows.log(first - 1)]
        table = windows.events(first)
        logs.append(log_of(table))
        for window, log in zip((first - 1, first), logs, strict=True):
            windows.keep(window, log, kept)
        for window in range(first, end):
            coming = ahead.submit(windows.events, window + 1) if window + 1 < end else None
            logs.append(log_of(coming.result()) if coming else windows.log(window + 1))
            windows.keep(window + 1, logs[-1], kept)
            judge = windows.judge(window, window, logs, context)
            faulty |= judge.faulty_logs(windows.plan.doubtful)
            settled = judge.settle(table, held)
            # What comes next is all that is held while that is judged which looks far back.
            del judge, table
            tally.add(settled.rows)
            tell(settled.keys)
            # What is kept for columns to come would lie beside those of other windows, which are others.
            if len(settled.far):
                give_back_memory()
            for again in judge_far(Neighbourhood(windows, window, logs, kept, context), settled.far):
                tally.add(again.rows)
                tell(again.keys)
                # An empty piece of a table would keep all of it.
                rest += [left for left in (again.open, again.far) if len(left)]
                del again
            if len(settled.far):
                give_back_memory()
            table = joined([settled.open, *([coming.result()] if coming else [])])
            del logs[0]
    return Swept(tally.rows(), joined([*rest, table]), frozenset(faulty))


def judge_far(here: Neighbourhood, far: pa.Table) -> Iterator[Settled]:
    """Judge requests that ask for messages of earlier windows, together as long as these lie side by side."""
    if not len(far):
        return
    asked = _asked_windows(here.windows.plan, here.windows.placed(far))
    # What is not judged although its messages are at hand hangs on something else.
    is_near = asked >= here.window - REACH
    if here.windows.earliest:
        is_near |= asked < here.windows.earliest + REACH
    near = taken(far, np.flatnonzero(is_near))
    yield Settled(RESULT_SCHEMA.empty_table(), near.slice(0, 0), near, NO_KEYS)
    left = np.unique(asked[~is_near])
    while len(left):
        together = left[left < left[0] + READ]
        first, last = int(together[0]), int(together[-1])
        mine = taken(far, np.flatnonzero((asked >= first) & (asked <= last)))
        yield here.apart(first, last).settle(mine)
        left = left[len(together) :]


def _asked_windows(plan: WindowPlan, far: pa.Table) -> Integers:
    """Of each row the window in which the message came that its request asks for."""
    found = np.zeros(len(far), dtype=np.int64)
    for name, events in make_batch(far).queues():
        rows = np.arange(len(events))
        asked = events.answer_to(events.request_key, "request_received")
        found[events.table_rows(rows)] = plan.window_of(name, events.integers("offset", asked))
    return found
