"""One queue's events as sorted columns: its pulls, their answers and its log.

Pure functions over Arrow and numpy; neither engine's machinery is known here. Events are put into one canonical order
first, so that nothing depends on the order in which they arrive. Leaves out verdicts.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.arrow import compute
from longpoll_judge.expression import Expression, java_hash, parse
from longpoll_judge.queue_log import BEGINNING, NEVER, Growth, Integers, QueueLog
from longpoll_judge.schema import event_dict
from longpoll_judge.survey import Context, SourceFacts

PULL_CODES: Final = (11, 361)
"""PULL_MESSAGE and LITE_PULL_MESSAGE."""
TIMEOUT_MS_MAX: Final = 10**9
"""Longer timeouts are cut to this, eleven days, so that deadlines stay within an int64."""
MS: Final = 1_000_000


@define(frozen=True, eq=False)
class Events:
    """One queue's events in canonical order."""

    table: pa.Table = field()
    request_key: Integers = field()
    """Equal for equal (source, request), -1 where there is no request."""
    event_rows: dict[str, Integers] = field()

    def rows(self, event: str) -> Integers:
        """The rows of this event, ascending in time."""
        return self.event_rows.get(event, np.empty(0, dtype=np.int64))

    def integers(self, name: str) -> Integers:
        """A column of integers."""
        values: Integers = self.table[name].to_numpy()
        return values

    def evidence(self, rows: list[int]) -> list[dict[str, Any]]:
        """The events of these rows, in order, as the history tells them (times on the common clock)."""
        picked = self.table.take(pa.array(sorted(set(rows)), pa.int64()))
        return [event_dict(row) for row in picked.to_pylist()]


def canonical(table: pa.Table) -> Events:
    """Sort by time, then by source and sequence, and find each event's rows."""
    source_rank, _names = _ranks(table["source"])
    keys = (table["sequence"].to_numpy(), source_rank, table["before_ns"].to_numpy(), table["after_ns"].to_numpy())
    table = table.take(pa.array(np.lexsort(keys)))
    source_rank, names = _ranks(table["source"])
    request = table["request"].combine_chunks().dictionary_encode()
    has_request = np.asarray(compute.not_equal(table["request"], ""))
    key = request.indices.to_numpy().astype(np.int64) * max(len(names), 1) + source_rank
    event = table["event"].combine_chunks().dictionary_encode()
    event_codes = event.indices.to_numpy()
    rows = {name: np.flatnonzero(event_codes == code) for code, name in enumerate(event.dictionary.to_pylist())}
    return Events(table=table, request_key=np.where(has_request, key, -1), event_rows=rows)


def _ranks(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    """Each value's rank among the distinct values in alphabetical order, and these values."""
    encoded = column.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return rank[encoded.indices.to_numpy()], [names[place] for place in order]


def queue_log(events: Events, slack_ns: int) -> QueueLog:
    """The queue's log; `slack_ns` is used only when the broker's inside was not seen."""
    seen = np.concatenate((events.rows("append"), events.rows("message_acknowledged")))
    offsets, first = np.unique(events.integers("queue_offset")[seen], return_index=True)
    tags = events.table["tag"].take(pa.array(seen[first])).combine_chunks().dictionary_encode()
    codes = np.array([java_hash(tag) for tag in tags.dictionary.to_pylist()], dtype=np.int64)
    tag_codes = codes[tags.indices.to_numpy()] if len(codes) else np.empty(0, dtype=np.int64)
    known = offsets >= 0
    moved = events.rows("make_visible")
    is_white_box = len(moved) > 0
    source = moved if is_white_box else events.rows("message_acknowledged")
    end = events.integers("visible_end")[source] if is_white_box else events.integers("queue_offset")[source] + 1
    return QueueLog(
        offsets=offsets[known],
        tag_codes=tag_codes[known],
        growth=Growth(end, events.integers("after_ns")[source], events.integers("before_ns")[source]),
        is_white_box=is_white_box,
        slack_ns=0 if is_white_box else slack_ns,
    )


@define(frozen=True, eq=False)
class Pulls:
    """One row a pull, with the first answer to it. Where there is none, the answer's row is -1."""

    row: Integers = field()
    received_after_ns: Integers = field()
    received_before_ns: Integers = field()
    offset: Integers = field()
    count_max: Integers = field()
    may_hold: NDArray[np.bool_] = field()
    was_held: NDArray[np.bool_] = field()
    """A `hold` event says so; when the broker's inside was not seen, whether it was allowed to."""
    timeout_ns: Integers = field()
    expression: Integers = field()
    """Index into `expressions`."""
    expressions: list[Expression | None] = field()
    answer_row: Integers = field()
    answered_after_ns: Integers = field()
    """When the answer was certainly not sent before; without answer the last moment that it was certainly missing."""
    answered_before_ns: Integers = field()
    """Without answer `NEVER`."""
    is_closed: NDArray[np.bool_] = field()
    """Without answer: the connection was closed."""
    source_facts: list[SourceFacts] = field()
    source: Integers = field()
    """Index into `source_facts`."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def is_answered(self) -> NDArray[np.bool_]:
        """Whether each pull has an answer."""
        return self.answer_row >= 0

    def facts(self, flag: str) -> NDArray[np.bool_]:
        """A flag of each pull's source."""
        return np.array([getattr(facts, flag) for facts in self.source_facts], dtype=np.bool_)[self.source]


def pulls(events: Events, context: Context, log: QueueLog) -> Pulls:
    """Join every pull with its first answer and with what is known of its connection and source."""
    received = events.rows("request_received")
    received = received[np.isin(events.integers("code")[received], PULL_CODES) & (events.request_key[received] >= 0)]
    _keys, first = np.unique(events.request_key[received], return_index=True)
    row = received[np.sort(first)]
    answer_row = join_first(events.request_key[row], events.request_key, events.rows("answer_sent"))
    is_answered = answer_row >= 0
    source, names = _ranks(events.table["source"].take(pa.array(row)))
    facts = [context.sources[name] for name in names]
    last_ns = np.array([fact.last_ns for fact in facts], dtype=np.int64)[source] if len(row) else row
    answered_after_ns = np.where(is_answered, events.integers("after_ns")[answer_row], last_ns)
    closed_after_ns = _closed_after(events, context, row[~is_answered])
    answered_after_ns[~is_answered] = np.minimum(answered_after_ns[~is_answered], closed_after_ns)
    is_closed = np.zeros(len(row), dtype=np.bool_)
    is_closed[~is_answered] = closed_after_ns < NEVER
    may_hold = np.asarray(events.table["may_hold"])[row].astype(np.bool_)
    held = np.isin(events.request_key[row], events.request_key[events.rows("hold")])
    expression, expressions = _expressions(events.table, row)
    timeout_ms = np.clip(events.integers("timeout_ms")[row], 0, TIMEOUT_MS_MAX)
    return Pulls(
        row=row,
        received_after_ns=events.integers("after_ns")[row],
        received_before_ns=events.integers("before_ns")[row],
        offset=events.integers("offset")[row],
        count_max=events.integers("count_max")[row],
        may_hold=may_hold,
        was_held=held if log.is_white_box else may_hold,
        timeout_ns=timeout_ms * MS,
        expression=expression,
        expressions=expressions,
        answer_row=answer_row,
        answered_after_ns=answered_after_ns,
        answered_before_ns=np.where(is_answered, events.integers("before_ns")[answer_row], NEVER),
        is_closed=is_closed,
        source_facts=facts,
        source=source,
    )


def join_first(keys: Integers, all_keys: Integers, rows: Integers) -> Integers:
    """For each key the first of `rows` that has it in `all_keys`, -1 where none has."""
    found, first = np.unique(all_keys[rows], return_index=True)
    place = np.searchsorted(found, keys)
    padded_keys, padded_rows = np.append(found, BEGINNING), np.append(rows[first], -1)
    return np.where(padded_keys[place] == keys, padded_rows[place], -1)


def _closed_after(events: Events, context: Context, rows: Integers) -> Integers:
    """When the connection of each request was closed at the earliest; `NEVER` when it was not."""
    if not len(rows) or not context.closes:
        return np.full(len(rows), NEVER, dtype=np.int64)
    picked = events.table.select(["source", "connection"]).take(pa.array(rows)).to_pylist()
    closes = [context.closes.get((row["source"], row["connection"]), (NEVER, NEVER))[0] for row in picked]
    return np.array(closes, dtype=np.int64)


def _expressions(table: pa.Table, row: Integers) -> tuple[Integers, list[Expression | None]]:
    """Each pull's index into the distinct expressions, and these."""
    picked = table.select(["expression_type", "expression"]).take(pa.array(row))
    kinds, kind_names = _ranks(picked["expression_type"])
    texts, text_names = _ranks(picked["expression"])
    found, index = np.unique(kinds * max(len(text_names), 1) + texts, return_inverse=True)
    pairs = [divmod(int(code), max(len(text_names), 1)) for code in found]
    return index.astype(np.int64), [parse(kind_names[kind], text_names[text]) for kind, text in pairs]
