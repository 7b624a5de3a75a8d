"""Judges what no stretch could: requests whose events lie far apart, which look far back, or which never end.

First those that are whole now, each beside the log of the stretch that its answer lies in; then the others, some queues
at a time beside as much of their logs as can matter, and the logs that may be at fault. What a log that is held here
takes is all that grows with a history, and only where consumers lag, requests are never answered or logs are uneven.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.batch import Batch, Events, QueueName, make_batch
from longpoll_judge.case import make_log
from longpoll_judge.exchange import joined
from longpoll_judge.home import are_whole
from longpoll_judge.plan import Plan
from longpoll_judge.schema import coded
from longpoll_judge.steps import PULL_CODES
from longpoll_judge.survey import Context
from longpoll_judge.sweep import Stretches
from longpoll_judge.verdict import RESULT_SCHEMA, judge_logs, judge_queue

LOG_EVENTS_MAX: Final = 2_000_000
"""Queues are judged together as long as what is needed of their logs has no more events."""


def judge_rest(stretches: Stretches, rest: pa.Table, faulty: Iterable[QueueName], context: Context) -> pa.Table:
    """Judge all events that are left, and the logs of the faulty queues; returns rows of `RESULT_SCHEMA`."""
    judged = [RESULT_SCHEMA.empty_table()]
    left = [rest.slice(0, 0)]
    whole, others = _by_stretch(stretches.plan, rest)
    for stretch, table in whole:
        logs = [stretches.log(stretch + step) for step in (-1, 0, 1)]
        settled = stretches.home(stretch, logs, context).settle(table)
        judged.append(settled.rows)
        left += [settled.open, settled.far]
    batch = make_batch(joined([others, *left]))
    requests = dict(batch.queues())
    for group in _groups(stretches.plan, requests, frozenset(faulty), context):
        judged += _judge_group(stretches, group, batch, requests, context)
    return pa.concat_tables(judged)


def _by_stretch(plan: Plan, rest: pa.Table) -> tuple[Iterator[tuple[int, pa.Table]], pa.Table]:
    """The requests that are whole, by the stretch in which each one's last event lies; and all other events."""
    is_whole = are_whole(rest)
    whole, others = rest.filter(pa.array(is_whole)), rest.filter(pa.array(~is_whole))
    sources, source_names = coded(whole, "source")
    requests, _names = coded(whole, "request")
    key = np.unique(requests.astype(np.int64) * max(len(source_names), 1) + sources, return_inverse=True)[1]
    last_ns = np.full(int(key.max(initial=-1)) + 1, -(1 << 62), dtype=np.int64)
    np.maximum.at(last_ns, key, whole["after_ns"].to_numpy())
    place = np.maximum(np.searchsorted(plan.firsts_ns, last_ns, side="right") - 1, 0)[key]
    return ((int(one), whole.filter(pa.array(place == one))) for one in np.unique(place)), others


@frozen(eq=False)
class _Group:
    """Queues that are judged together, beside the logs of some stretches."""

    names: list[QueueName]
    faulty: frozenset[QueueName]
    stretches: NDArray[np.bool_]


def _groups(
    plan: Plan, requests: dict[QueueName, Events], faulty: frozenset[QueueName], context: Context
) -> Iterator[_Group]:
    names: list[QueueName] = []
    together, count = np.zeros(len(plan.stretches), dtype=np.bool_), 0
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


def _needed(plan: Plan, name: QueueName, events: Events | None, context: Context) -> NDArray[np.bool_]:
    """The stretches whose log can matter to the requests of a queue."""
    received = np.empty(0, dtype=np.int64) if events is None else events.rows("request_received")
    if events is None or not len(received):
        return np.zeros(len(plan.stretches), dtype=np.bool_)
    pulls = received[np.isin(events.integers("code", received), PULL_CODES)]
    first, count, body = events.bodies(events.rows("answer_sent"))
    bodies = [body[start : start + length].min() for start, length in zip(first, count, strict=True) if length]
    lowest = min([*events.integers("offset", pulls).tolist(), *bodies], default=0)
    since_ns = int(events.integers("after_ns", np.arange(len(events))).min()) - context.wake_ns
    return plan.needed(name, int(lowest), since_ns)


def _judge_group(
    stretches: Stretches, group: _Group, batch: Batch, requests: dict[QueueName, Events], context: Context
) -> Iterator[pa.Table]:
    tables = [_of_queues(stretches.log(int(number)), group.names) for number in np.flatnonzero(group.stretches)]
    seen = dict(make_batch(joined(tables)).queues())
    outlook = partial(stretches.plan.beside, group.stretches)
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
