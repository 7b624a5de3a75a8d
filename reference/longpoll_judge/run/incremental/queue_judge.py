"""Judges the new events of a growing history once, and adds up the results.

Events come in batches. A request is judged once its events lie before the settled time and its messages are in the part
of the log in memory (`window`), the last seconds. The settled time lies as far before the end of the record as events
have ever come out of order. `window_sweep` asks the same about past and future. For the log before the window a few
numbers are kept for each queue (`Before`). Other requests wait.

Later events may change such a result: an event from before the settled time, a lower offset, a gap. `doubts` names each
one that came. So the sum serves while a record goes on, and the final verdict is a judgement of the whole.

Sends and other events without a single queue: `recent_events`. Reading: `read.growing_history`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.batch import QueueName, joined, make_batch, taken
from longpoll_judge.columns.keys import request_keys
from longpoll_judge.columns.lookup import Booleans, is_one_of
from longpoll_judge.columns.queue_log import BEGINNING, NEVER
from longpoll_judge.contract.clause import SEND_CODES, STOPPED_MS
from longpoll_judge.contract.result import ANSWERED_ON_STOP, Finding, Gap
from longpoll_judge.evidence.source_survey import DISORDER_NS, MS, Run, SourceSurvey, Span
from longpoll_judge.evidence.survey import Context, Survey, context_and_gaps, merge
from longpoll_judge.read.schema import compute, fill
from longpoll_judge.read.source import History
from longpoll_judge.rules.cross_queue import have_request, rows_where
from longpoll_judge.rules.queue_case import NO_NEW_MSG, Case
from longpoll_judge.run.excerpt import with_rare
from longpoll_judge.run.incremental.recent_events import Beside
from longpoll_judge.run.queue_verdict import (
    FINDING,
    Found,
    as_table,
    judge_logs,
    judge_queue,
    queue_rows,
    repeated_rows,
)
from longpoll_judge.run.tally import Latest, Tally
from longpoll_judge.run.window_sweep import WindowJudge, asked_range, log_of, request_rows
from longpoll_judge.run.windows import (
    Log,
    LogSpan,
    Outlooks,
    are_shown_early,
    by_queue,
    follows,
    log_spans,
    together,
)


def may_stop(case: Case, settled_ns: int) -> Booleans:
    """Which pulls got an early empty answer that the end of their source may explain (`holding`)."""
    pulls = case.pulls
    code = np.where(pulls.is_answered, case.events.integers("code", pulls.answer_row), -1)
    is_early = pulls.answered_before_ns < pulls.received_before_ns + pulls.timeout_ns
    may_end = pulls.answered_before_ns >= settled_ns - STOPPED_MS * MS
    found: Booleans = (code == NO_NEW_MSG) & is_early & may_end
    return found


def reached_by(case: Case) -> int:
    """How far up the log the pulls of a case looked: not at a message that was not there when they were answered."""
    _lowest, highest, has_body, _last = asked_range(case)
    told = case.events.integers("offset_next", case.pulls.answer_row)
    saw = (told > case.pulls.offset) | (highest > case.pulls.offset + 1)
    saw[has_body] = True
    return int(np.where(saw, highest, case.pulls.offset).max())


LOGGED_MAX: Final = 1_000
"""Most faults of logs that are kept, those that were found last."""


Fault = tuple[str, str, tuple[int, int, str, int]]
"""The clause of a fault of a log, its sentence and its place (`Found.order`)."""


@define(eq=False)
class Logged:
    """The faults, each as the text of a result row, by what it says and its place."""

    latest: Latest[Fault, str] = field(factory=Latest[Fault, str])

    def add(self, rows: pa.Table) -> int:
        """Take what is certain of some result rows; how much that is."""
        count = 0
        for text in rows.filter(compute.equal(rows["kind"], FINDING))["text"].to_pylist():
            found = msgspec.json.decode(text, type=Found)
            if found.finding.verdict == "violated":
                self.latest.put(_named(found), text, LOGGED_MAX)
                count += 1
        return count

    def look(self) -> pa.Table:
        """All that is kept, as result rows; who asks tells it."""
        return as_table([(FINDING, 0, 1, text) for text in self.latest.look()])


def _named(found: Found) -> Fault:
    return found.finding.clause, found.finding.why, found.order


PIECES_MIN: Final = 3
"""Pieces of the log that are at hand at least."""
LOG_EVENTS_MAX: Final = 1_000_000
"""Most events of the log that are at hand, as long as it can be cut; some 100 bytes each."""
WAIT_NS: Final = 10_000 * MS
"""How long after its last event a request is kept that hangs on what has not come; then it is left."""
OPEN_NS: Final = 600_000 * MS
"""How long a request without an answer is kept, which must be longer than any hold."""
SILENT_NS: Final = 10_000 * MS
"""A source that is so far behind the others does not go on."""
CLOSES_MAX: Final = 20_000
"""Closes of connections that are remembered, the latest."""


@define(eq=False)
class Piece:
    """The new events of one batch, with their logs."""

    spans: dict[Log, LogSpan]
    log: pa.Table
    last_ns: int
    """The highest `after_ns` of all that came with it."""


Part = Literal["all", "pulls", "sends"]
"""What is judged of the events: `pulls` and logs of some queues, or what belongs to no single queue (`Beside`)."""


@define(eq=False)
class Growing:
    """A history, or a part of it, as far as it has come.

    Invariant: an event is in the sum or in `pending`, or a doubt says that it was left; a log event is in the window or
    in the numbers of `before`.
    """

    wake_ms: float
    late_ms: float
    part: Part = "all"
    beside: Beside = field(factory=Beside)
    window: list[Piece] = field(factory=list)
    rare: pa.Table = field(factory=lambda: joined([]))
    """All events that findings depend on without naming them (`excerpt`)."""
    before: dict[Log, LogSpan] = field(factory=dict)
    all_spans: dict[Log, LogSpan] = field(factory=dict)
    """Of the whole log, in the window or before."""
    pending: pa.Table = field(factory=lambda: joined([]))
    tally: Tally = field(factory=lambda: Tally(keeps_latest=True))
    survey: Survey = field(factory=Survey)
    doubts: dict[str, int] = field(factory=dict)
    """Why the sum is not what judging the whole record would come to, and how often."""
    unstopped: Counter[str] = field(factory=Counter)
    """By source, the pulls that were judged before it ended: if it ends in order, they were asked about that end."""
    logged: Logged = field(factory=Logged)
    """Certain faults of logs; there may be more."""
    disordered: dict[QueueName, int] = field(factory=dict)
    """Queues whose log is not shown to be in order by the numbers of the pieces, and when that was seen last."""
    reached: dict[QueueName, int] = field(factory=dict)
    """How far up the log what was judged looked, of the queues of which anything was."""
    settled_ns: int = BEGINNING
    """All judged events are before this time."""

    def add(self, table: pa.Table, survey: Survey, history: History) -> None:
        """Take what is new, and judge what is settled by it; the `survey` is of all that is new, in other parts too."""
        table = fill(table)
        spans = {(span.broker, span.topic, span.queue, span.source): span for span in log_spans(table)}
        self._expect(spans, survey)
        self.survey = _folded(merge([self.survey, survey]))
        self.rare = with_rare(self.rare, table, self._first_shown(spans), self._inside())
        sole = self._sole(table)
        if self.part != "sends" and len(table):
            last_ns = int(table["after_ns"].to_numpy().max())
            self.window.append(Piece(spans, log_of(table), last_ns))
            self.disordered |= dict.fromkeys(are_shown_early(spans, self.all_spans), last_ns)
            self._note(spans, last_ns)
            self.pending = joined([self.pending, self._requests(sole)])
        self._settle(history)
        context, _gaps = self._context(history)
        self._look_at_logs(context)
        if self.part != "pulls" and len(table):
            left = self.beside.add(table, history.hold_limits, context, self.survey, self.settled_ns)
            for why, count in left.items():
                self.doubt(why, count)
        self._forget()

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """The events that findings rest on, as far as they are at hand (`across.Tables`)."""
        at_hand = (self.rare, *(piece.log for piece in self.window), self.pending)
        return ((number, fill(table)) for number, table in enumerate(at_hand) if len(table))

    def _sole(self, table: pa.Table) -> pa.Table:
        """The new events without requests whose identifier came again; such requests are also dropped from memory."""
        doubts = self.beside.ask(table)
        for why, count in doubts.items():
            self.doubt(why, count)
        if doubts:
            self.pending = self.beside.asked.without(self.pending)
        return self.beside.asked.without(table)

    def _first_shown(self, spans: Mapping[Log, LogSpan]) -> dict[Log, int]:
        """The offsets of messages that are the first of their log."""
        return {
            log: span.known_min
            for log, span in spans.items()
            if span.known_min < NEVER and (log not in self.all_spans or span.known_min < self.all_spans[log].known_min)
        }

    def _inside(self) -> set[str]:
        """Sources that are known to stand inside their broker."""
        return {name for name, seen in self.survey.observers.sources.items() if seen.inside}

    def doubt(self, why: str, count: int = 1) -> None:
        """Note why the sum is not what judging the whole comes to, and how often; nothing where it is 0."""
        if count:
            self.doubts[why] = self.doubts.get(why, 0) + count

    def _expect(self, spans: dict[Log, LogSpan], survey: Survey) -> None:
        """Look whether what comes could have changed what was judged."""
        whole = by_queue(self.all_spans)
        for log, span in spans.items():
            queue, reached = log[:3], self.reached.get(log[:3])
            before = self.before.get(log)
            if before is not None and not follows(before, span):
                self.doubt("an event of a log that contradicts what came long before")
            if reached is None:
                continue
            first_known = min((known.known_min for known in whole.get(queue, [])), default=NEVER)
            # What was judged in a queue of which nothing was known rests on that.
            if span.known_min < max(reached, min(first_known, NEVER)) or span.after_min_ns <= self.settled_ns:
                self.doubt("an event of a log that came late")
            if span.visible_max > BEGINNING and all(known.visible_max <= BEGINNING for known in whole.get(queue, [])):
                self.doubt("a queue that is seen from inside after all")
        for source, seen in survey.observers.sources.items():
            known = self.survey.observers.sources.get(source)
            if (
                known is not None
                and self.reached
                and (bool(known.inside) < bool(seen.inside) or bool(known.requests) < bool(seen.requests))
            ):
                self.doubt("a source that tells more than it did")
        known_closes = {each[:2] for each in self.survey.closes}
        late = [each for each in survey.closes if each[2] <= self.settled_ns or each[:2] in known_closes]
        if late:
            self.doubt("a connection that closed twice, or was told late to have", len(late))
        fresh = [
            name
            for name, seen in survey.sources.items()
            if seen.first_ns <= self.settled_ns and name not in self.survey.sources
        ]
        if fresh:
            self.doubt("a source that came late")

    def _note(self, spans: dict[Log, LogSpan], last_ns: int) -> None:
        """Add the numbers of a piece to those of the whole, and see whether the logs are in order."""
        for log, span in spans.items():
            known = self.all_spans.get(log)
            if not span.rises or (known is not None and not follows(known, span)):
                self.disordered[log[:3]] = last_ns
            self.all_spans[log] = span if known is None else together(known, span)
            whole = self.all_spans[log]
            if whole.append_count and whole.append_count != whole.append_max - whole.append_min + 1:
                self.disordered[log[:3]] = last_ns
            if whole.append_count and whole.visible_max > whole.append_max + 1:
                # What is shown may be appended by the next piece; the window tells, as long as it has both.
                self.disordered[log[:3]] = last_ns

    def _requests(self, table: pa.Table) -> pa.Table:
        """The events that are judged with requests, without sends that were acknowledged with them."""
        rows = request_rows(table)
        is_send = rows_where(table, "request_received") & is_one_of(table["code"].to_numpy(), SEND_CODES)
        if is_send.any():
            told = np.flatnonzero(rows_where(table, "message_acknowledged") & have_request(table))
            sends = rows[is_send[rows]]
            done = np.isin(request_keys(table, sends), request_keys(table, told))
            rows = np.setdiff1d(rows, sends[done])
        return taken(table, rows)

    def _settle(self, history: History) -> None:
        """Judge what nothing that may come yet can change."""
        context = self._lasting(history)
        self._check_record(context)
        settled_ns = self._settled_until(context, history)
        if settled_ns <= self.settled_ns:
            return
        settled = WindowJudge(
            self._log(), self._outlook(settled_ns), context, partial(may_stop, settled_ns=settled_ns), self._judged
        ).settle(self.pending)
        self.tally.add(settled.rows)
        self.settled_ns = settled_ns
        self.pending = self._kept(joined([settled.open, settled.far]))

    def _judged(self, case: Case) -> None:
        """Note what was judged."""
        if not len(case.pulls):
            return
        self.reached[case.name] = max(self.reached.get(case.name, 0), reached_by(case))
        sources, names = case.events.codes("source", case.pulls.row)
        counts = dict(zip(names, np.bincount(sources, minlength=len(names)).tolist(), strict=True))
        self.unstopped.update({name: counts[name] for name in self._going_on() & counts.keys()})

    def _kept(self, pending: pa.Table) -> pa.Table:
        """Requests that are still to be judged, without those that have waited too long."""
        if not len(pending):
            return pending
        keys = np.unique(request_keys(pending, np.arange(len(pending))), return_inverse=True)[1]
        last_ns = np.full(int(keys.max()) + 1, BEGINNING, dtype=np.int64)
        np.maximum.at(last_ns, keys, pending["before_ns"].to_numpy())
        has_answer, has_request = (
            np.bincount(keys[rows_where(pending, event)], minlength=len(last_ns)) > 0
            for event in ("answer_sent", "request_received")
        )
        wait_ns = np.where(has_request & ~has_answer, OPEN_NS, WAIT_NS)
        is_left = last_ns + wait_ns < self.settled_ns
        if not is_left.any():
            return pending
        self.doubt("a request that hangs on what is not at hand", int(np.count_nonzero(is_left)))
        return taken(pending, np.flatnonzero(~is_left[keys]))

    def _forget(self) -> None:
        """Let go of the log that no request needs that is still open."""
        needed_ns = self.settled_ns
        if len(self.pending):
            received = self.pending["after_ns"].to_numpy()[rows_where(self.pending, "request_received")]
            needed_ns = min(needed_ns, int(received.min(initial=NEVER)))
        needed_ns -= round(self.wake_ms * MS) + DISORDER_NS
        count = sum(len(piece.log) for piece in self.window)
        while len(self.window) > PIECES_MIN:
            oldest = self.window[0]
            is_needed = oldest.last_ns >= needed_ns and count <= LOG_EVENTS_MAX
            if is_needed or not self._is_clean_cut(must=count > 2 * LOG_EVENTS_MAX):
                return
            for log, span in oldest.spans.items():
                known = self.before.get(log)
                self.before[log] = span if known is None else together(known, span)
            count -= len(oldest.log)
            del self.window[0]
        last_ns = self.window[0].last_ns if self.window else BEGINNING
        for name in [name for name, seen_ns in self.disordered.items() if seen_ns < last_ns]:
            if not self._is_gapless(name) or self._is_past_end(name):
                self.doubt("a log with a gap")
            del self.disordered[name]

    def _is_past_end(self, name: QueueName) -> bool:
        spans = [span for log, span in self.all_spans.items() if log[:3] == name and span.append_count]
        return any(span.visible_max > span.append_max + 1 for span in spans)

    def _is_gapless(self, name: QueueName) -> bool:
        spans = [span for log, span in self.before.items() if log[:3] == name and span.append_count]
        return all(span.append_count == span.append_max - span.append_min + 1 for span in spans)

    def _is_clean_cut(self, *, must: bool) -> bool:
        """Whether the oldest piece contradicts none after it; where it `must` go although it may, that is a doubt."""
        oldest, *others = self.window
        rest: dict[Log, LogSpan] = {}
        for piece in others:
            for log, span in piece.spans.items():
                rest[log] = together(rest[log], span) if log in rest else span
        is_clean = all(log not in rest or follows(span, rest[log]) for log, span in oldest.spans.items())
        if must and not is_clean:
            self.doubt("a log whose order is not seen for long")
        return is_clean or must

    def _log(self) -> pa.Table:
        return joined([piece.log for piece in self.window])

    def _outlook(self, settled_ns: int) -> Outlooks:
        return Outlooks(by_queue(self.before), by_queue(self.all_spans), settled_ns)

    def _lasting(self, history: History) -> Context:
        """The context of a record whose sources go on."""
        going_on = self._going_on()
        sources = {
            name: msgspec.structs.replace(seen, stopped_ns=seen.last_ns) if name in going_on else seen
            for name, seen in self.survey.sources.items()
        }
        survey = msgspec.structs.replace(self.survey, sources=sources)
        context, _gaps = context_and_gaps(history, survey, wake_ms=self.wake_ms, late_ms=self.late_ms)
        facts = {
            name: evolve(fact, stopped_ns=None, last_ns=NEVER) if name in going_on else fact
            for name, fact in context.sources.items()
        }
        return evolve(context, sources=facts)

    def _going_on(self) -> frozenset[str]:
        """Sources that have no end yet, and tell as much as the others do."""
        latest_ns = max((seen.last_ns for seen in self.survey.sources.values()), default=0)
        return frozenset(
            name
            for name, seen in self.survey.sources.items()
            if seen.stopped_ns is None and seen.last_ns >= latest_ns - SILENT_NS
        )

    def _settled_until(self, context: Context, history: History) -> int:
        """The moment before which no event can be missing, as far as the sources go on in their order."""
        latest_ns = max((seen.last_ns for seen in self.survey.sources.values()), default=0)
        first_ns = min((seen.first_ns for seen in self.survey.sources.values()), default=0)
        if not history.declared_sources <= self.survey.sources.keys() and latest_ns < first_ns + SILENT_NS:
            return BEGINNING
        moments = [
            _last_before_ns(self.survey.sources[name]) - self.survey.sources[name].disorder_ns - DISORDER_NS
            for name in self._going_on()
        ]
        stopped = [seen.last_ns for seen in self.survey.sources.values() if seen.stopped_ns is not None]
        return min(moments, default=max(stopped, default=BEGINNING)) - context.wake_ns

    def _check_record(self, context: Context) -> None:
        """Note what makes verdicts rest on what may come later: a record that is not whole, or not in order."""
        holes = any(len(facts.holes) for facts in context.sources.values())
        if (
            holes
            or any(map(len, context.life_holes.values()))
            or context.deleted
            or context.begun_anew
            or context.restarts
        ):
            self.doubt("a hole of the record, or a queue that began anew")
        if context.blocked or context.unsteady_brokers or context.asked_alone or self.survey.damages:
            self.doubt("damage, a clock that was set, or a connection that was not read")
        if not all(facts.is_steady for facts in context.sources.values()):
            self.doubt("a clock that was set")

    def _look_at_logs(self, context: Context) -> None:
        """Note what is certainly wrong with the logs at hand, of the queues whose numbers do not show that none is."""
        if not self.disordered:
            return
        judge = WindowJudge(self._log(), self._outlook(NEVER + 1), context)
        rows = judge_logs({name: judge.log_of(name) for name in sorted(self.disordered)}, context)
        count = self.logged.add(rows)
        if count:
            self.doubt("a log that is at fault", count)

    def _context(self, history: History) -> tuple[Context, list[Gap]]:
        """The context and the gaps of everything that has come, as if nothing came after it."""
        return context_and_gaps(history, self.survey, wake_ms=self.wake_ms, late_ms=self.late_ms)

    @property
    def untold(self) -> int:
        """How many violations were dropped before a judgement was requested."""
        return self.tally.untold + self.logged.latest.left_out + self.beside.untold

    def so_far(self, history: History) -> SoFar:
        """A judgement of all events so far, as if none came later; the caller reports the new findings."""
        context, _gaps = self._context(history)
        judge = WindowJudge(self._log(), self._outlook(NEVER + 1), context)
        settled = judge.settle(self.pending, unanswered=True)
        batch = make_batch(settled.open)
        rows = [self.tally.look(), settled.rows, queue_rows({log[:3] for log in self.all_spans}), repeated_rows(batch)]
        rows += [judge_queue(name, events, judge.log_of(name), context) for name, events in batch.queues()]
        if context.answers_on_stop:
            ended = {name for name, facts in context.sources.items() if facts.stopped_ns is not None}
            rows.append(as_table([("judged", 0, self.unstopped[name], ANSWERED_ON_STOP) for name in ended]))
        rows.append(self.logged.look())
        beside = list(self.beside.findings())
        return SoFar(pa.concat_tables(rows), self.survey, self.doubts, len(settled.far), beside, self.untold)


@frozen(eq=False)
class SoFar:
    """The results so far."""

    rows: pa.Table
    """Of `RESULT_SCHEMA`."""
    survey: Survey
    doubts: Mapping[str, int]
    far_count: int
    """Events of requests that ask for messages from before what is at hand."""
    beside: Sequence[Finding]
    """Findings that belong to no single queue."""
    untold: int
    """Violations that were dropped before a judgement was requested."""


def _last_before_ns(seen: SourceSurvey) -> int:
    """When the last event of a source by number happened at the latest."""
    return max(seen.runs, key=lambda run: run.last).last_before_ns


def _folded(survey: Survey) -> Survey:
    """The same survey in constant size: events in order are merged into one run and one span.

    A later batch is compared with the extremes of all earlier ones, as long as its numbers follow theirs.
    """
    sources = {
        name: msgspec.structs.replace(seen, runs=_joined(seen.runs), spans=[_span_of(seen.spans)])
        for name, seen in survey.sources.items()
    }
    closes = sorted(survey.closes, key=lambda close: close[2])[-CLOSES_MAX:]
    return msgspec.structs.replace(survey, sources=sources, closes=closes)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """The runs, those that follow upon each other as one; where numbers stand twice they stay apart."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and run.first == found[-1].last + 1:
            found[-1] = Run(found[-1].first, run.last, found[-1].first_after_ns, run.last_before_ns)
        else:
            found.append(run)
    return found


def _span_of(spans: Sequence[Span]) -> Span:
    first, last, *_moments = zip(*spans, strict=True)
    moments = [
        join(getattr(span, name) for span in spans)
        for join, name in ((min, "after_min_ns"), (max, "after_max_ns"), (min, "before_min_ns"), (max, "before_max_ns"))
    ]
    return Span(min(first), max(last), *moments)
