"""Judges the requests that no window can judge: their events lie far apart, they look far back, or they never end.

A request is first judged with the log of the windows of its events. The others are judged some queues at a time, with
all of the log that can matter, as are logs that may be wrong. Only these logs take memory, so it grows where consumers
lag, pulls wait for long or logs are uneven.

Some rules compare events of different queues. They need all events of a broker and of its observers (ends that fall,
committed offsets), or of all brokers (sends and messages). Each rule is a task for each such part of the history. A
task reads its splits itself, in this process or on an executor (`pipeline.Reading.outcomes`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import field, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.batch import Batch, Events, QueueName, joined, make_batch
from longpoll_judge.columns.keys import open_keys
from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.contract.result import Finding, Gap, Share
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import coded, coded_texts
from longpoll_judge.rules.commits import exchanges, judge_exchanges
from longpoll_judge.rules.cross_queue import Tables
from longpoll_judge.rules.logs import judge_offset_regression
from longpoll_judge.rules.queue_case import make_log
from longpoll_judge.rules.queue_columns import PULL_CODES
from longpoll_judge.rules.sends import judge_sends
from longpoll_judge.run import window_commits, window_sends
from longpoll_judge.run.queue_verdict import RESULT_SCHEMA, judge_logs, judge_queue, repeated_rows
from longpoll_judge.run.window_commits import CommitWatch, GroupName
from longpoll_judge.run.window_sends import SendWatch
from longpoll_judge.run.window_sweep import WindowReader, are_single
from longpoll_judge.run.windows import REACH, WindowPlan

SPAN_MAX: Final = 16
"""A request whose events lie in more windows is judged with the others."""
LOG_EVENTS_MAX: Final = 2_000_000
"""Queues are judged together as long as their logs have no more events."""


def judge_rest(windows: WindowReader, rest: pa.Table, faulty: Iterable[QueueName], context: Context) -> pa.Table:
    """Judge all remaining events, and the logs of the faulty queues; returns rows of `RESULT_SCHEMA`."""
    # All events of these requests are here, so the places of their answers are final.
    rest = windows.placed(rest)
    judged = [RESULT_SCHEMA.empty_table()]
    left = [rest.slice(0, 0)]
    single, others = _by_window(windows.plan, rest)
    for first, last, table in single:
        logs = [windows.log(window) for window in range(first - REACH, last + REACH + 1)]
        settled = windows.judge(first, last, logs, context).settle(table, unanswered=True)
        judged.append(settled.rows)
        left += [settled.open, settled.far]
    batch = make_batch(joined([others, *left]))
    judged.append(repeated_rows(batch))
    requests = dict(batch.queues())
    for group in _groups(windows.plan, requests, frozenset(faulty), context):
        judged += _judge_group(windows, group, batch, requests, context)
    return pa.concat_tables(judged)


def _by_window(plan: WindowPlan, rest: pa.Table) -> tuple[Iterator[tuple[int, int, pa.Table]], pa.Table]:
    """The unrepeated requests that span at most `SPAN_MAX` windows, grouped by the last one; and all others.

    Each group comes with the first and the last window of its events.
    """
    sources, source_names = coded(rest, "source")
    requests, _names = coded_texts(rest, "request")
    key = np.unique(requests.astype(np.int64) * max(len(source_names), 1) + sources, return_inverse=True)[1]
    place = np.maximum(np.searchsorted(plan.firsts_ns, rest["after_ns"].to_numpy(), side="right") - 1, 0)
    first, last = (np.full(int(key.max(initial=-1)) + 1, none, dtype=np.int64) for none in (len(plan.windows), -1))
    np.minimum.at(first, key, place)
    np.maximum.at(last, key, place)
    is_near = are_single(rest) & ((last - first)[key] < SPAN_MAX)

    def of_window(window: int) -> tuple[int, int, pa.Table]:
        mine = is_near & (last[key] == window)
        return int(first[key[mine]].min()), window, rest.filter(pa.array(mine))

    return map(of_window, np.unique(last[key[is_near]]).tolist()), rest.filter(pa.array(~is_near))


@frozen(eq=False)
class _Group:
    """Queues that are judged together, with the logs of some windows."""

    names: list[QueueName]
    faulty: frozenset[QueueName]
    windows: NDArray[np.bool_]


def _groups(
    plan: WindowPlan, requests: dict[QueueName, Events], faulty: frozenset[QueueName], context: Context
) -> Iterator[_Group]:
    names: list[QueueName] = []
    together, count = np.zeros(len(plan.windows), dtype=np.bool_), 0
    for name in sorted({*requests, *faulty}):
        needed = _needed(plan, name, requests.get(name), context)
        if name in faulty:
            needed = np.ones_like(needed)
        events = plan.log_count(name, needed)
        if names and count + events > LOG_EVENTS_MAX:
            yield _Group(names, faulty, together)
            names, together, count = [], np.zeros_like(together), 0
        names.append(name)
        together, count = together | needed, count + events
    if names:
        yield _Group(names, faulty, together)


def _needed(plan: WindowPlan, name: QueueName, events: Events | None, context: Context) -> NDArray[np.bool_]:
    """The windows whose log can matter to the requests of a queue."""
    received = np.empty(0, dtype=np.int64) if events is None else events.rows("request_received")
    if events is None or not len(received):
        return np.zeros(len(plan.windows), dtype=np.bool_)
    pulls = received[is_one_of(events.integers("code", received), PULL_CODES)]
    first, count, body = events.bodies(events.rows("answer_sent"))
    bodies = [body[start : start + length].min() for start, length in zip(first, count, strict=True) if length]
    told = events.integers("offset_max", events.rows("answer_sent"))
    lowest = min([*events.integers("offset", pulls).tolist(), *bodies, *told[told >= 0].tolist()], default=0)
    lives = context.lives(name)
    if lives is not None and len(lives.deletions):
        return np.ones(len(plan.windows), dtype=np.bool_)
    since_ns = int(events.integers("after_ns", np.arange(len(events))).min()) - context.wake_ns
    return plan.needed(name, int(lowest), since_ns)


def _judge_group(
    windows: WindowReader, group: _Group, batch: Batch, requests: dict[QueueName, Events], context: Context
) -> Iterator[pa.Table]:
    tables = [_of_queues(windows.log(int(number)), group.names) for number in np.flatnonzero(group.windows)]
    seen = dict(make_batch(joined(tables)).queues())
    outlook = partial(windows.plan.beside, group.windows)
    logs = {name: make_log(seen.get(name, batch.nothing()), context, outlook(name)) for name in group.names}
    yield judge_logs({name: logs[name] for name in group.names if name in group.faulty}, context)
    for name in group.names:
        if name in requests:
            yield judge_queue(name, requests[name], logs[name], context)


def _of_queues(table: pa.Table, names: Iterable[QueueName]) -> pa.Table:
    """The events of these queues."""
    batch = make_batch(table)
    wanted = set(names)
    rows = [events.table_rows(np.arange(len(events))) for name, events in batch.queues() if name in wanted]
    return table.take(pa.array(np.concatenate(rows))) if rows else table.slice(0, 0)


SENDS: Final = "sends"
FALLS: Final = "falls"
COMMITS: Final = "commits"
NO_SHARE: Final = Share(0, 0)


@frozen
class Outcome:
    """The outcome of a rule for a history."""

    findings: list[Finding]
    left_out: int = 0
    """Findings that are not listed."""
    share: Share = NO_SHARE
    gaps: list[Gap] = field(factory=list)


Rule = Callable[..., Outcome]
"""Returns the outcome for `Tables`, a `Context` and, if known, the suspects."""
RuleTask = tuple[str, Rule, list[int]]
"""The name of a rule, the rule, and the numbers of the splits that it judges together."""


def tasks_of(survey: Survey, brokers: Sequence[dict[str, set[str]]]) -> list[RuleTask]:
    """The rules that have events to judge, once for a history or once for every independent part of it.

    Args:
        survey: The survey of the history.
        brokers: For each split, by source, the brokers that its events name.
    """
    seen, whole, tasks = survey.observers, list(range(len(brokers))), list[RuleTask]()
    if seen.acknowledged or seen.sends or seen.identified:
        # A producer may send a message again to another broker, so this rule needs all of them.
        tasks.append((SENDS, judge_suspected, whole))
    parts = independent_splits(brokers)
    if seen.min_least < seen.min_most or not survey.answered <= survey.shown:
        tasks += [(FALLS, _of_falls, part) for part in parts]
    if survey.offset_queries or survey.offset_updates:
        tasks += [(COMMITS, judge_suspected_commits, part) for part in parts]
    return tasks


def independent_splits(brokers: Sequence[dict[str, set[str]]]) -> list[list[int]]:
    """The numbers of splits that belong together: no two parts share a source or a broker.

    A source that names no broker may be of any, so its history is one part.
    """
    if not all(named for split in brokers for named in split.values()):
        return [list(range(len(brokers)))]
    parts: list[tuple[set[tuple[str, str]], list[int]]] = []
    for number, split in enumerate(brokers):
        names = {("source", name) for name in split} | {("broker", name) for named in split.values() for name in named}
        joined_numbers, others = [number], []
        for known, numbers in parts:
            if known & names:
                names, joined_numbers = names | known, numbers + joined_numbers
            else:
                others.append((known, numbers))
        parts = [*others, (names, sorted(joined_numbers))]
    return sorted(numbers for _names, numbers in parts)


def joined_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a rule, from those of all parts of a history."""
    every = list(outcomes)
    return Outcome(
        [finding for one in every for finding in one.findings],
        sum(one.left_out for one in every),
        Share(sum(one.share.judged for one in every), sum(one.share.of for one in every)),
        [gap for one in every for gap in one.gaps],
    )


@contextmanager
def watching(context: Context, names: Container[str]) -> Iterator[dict[str, SendWatch | CommitWatch]]:
    """The watches of these rules, by name; their files are removed at the end of the block."""
    with ExitStack() as stack:
        sends, commits, places, values, ids = (stack.enter_context(open_keys()) for _ in range(5))
        watches: dict[str, SendWatch | CommitWatch] = {
            SENDS: SendWatch(context, sends, (places, values, ids)),
            COMMITS: CommitWatch(context, commits),
        }
        yield {name: watch for name, watch in watches.items() if name in names}


def suspects_of(name: str, tables: Tables, context: Context) -> Any:
    """The result of `SendWatch.finish` or `CommitWatch.finish` for some splits, seen in the order of the rules."""
    with watching(context, {name}) as watches:
        for _number, table in tables():
            watches[name].see(table)
            if watches[name].is_over:
                break
        return watches[name].finish()


def judge_suspected(tables: Tables, context: Context, *known: tuple[set[QueueName], int] | None) -> Outcome:
    """Judge the sends of the suspected queues, which may be `known` already (`window_sends`)."""
    (found,) = known or (suspects_of(SENDS, tables, context),)
    if found is None:
        return Outcome(*judge_sends(tables, context))
    suspected, clear = found
    if not suspected:
        return Outcome([], share=Share(clear, clear))
    return Outcome(*judge_sends(partial(window_sends.without, tables, suspected), context, clear=clear))


def _of_falls(tables: Tables, context: Context) -> Outcome:
    findings, left_out = judge_offset_regression(tables, context)
    return Outcome(findings, left_out)


def judge_suspected_commits(
    tables: Tables, context: Context, *known: tuple[set[GroupName], int, int] | None
) -> Outcome:
    """Judge the committed offsets of the suspected groups, which may be `known` already (`window_commits`)."""
    (found,) = known or (suspects_of(COMMITS, tables, context),)
    suspected, *clear = found or (None, 0, 0)
    events: Iterator[pa.Table] = (table for _number, table in tables())
    if suspected is not None:
        events = window_commits.without(tables, suspected) if suspected else iter(())
    findings, share, gaps = judge_exchanges(exchanges(events), context, (clear[0], clear[1]))
    return Outcome(findings, share=share, gaps=gaps)
