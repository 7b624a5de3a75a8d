"""Gives answers that name no queue the broker, topic and queue of their requests.

Rule 4 of a history says that answers carry these names. Other recorders may omit them; the judge then joins them here.
An answer stays unplaced if requests of several queues share its identifier. An answer that names another broker or
topic than its request keeps its own. The caller places answers only while it reads them and passes the events on
unchanged. Requests and answers are joined in `window_sweep` and `wide_pulls`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from longpoll_judge.columns.batch import GROUP_KEY
from longpoll_judge.read.arrow import compute
from longpoll_judge.read.schema import EVENT_SCHEMA, PLAIN_SCHEMA, fill


def place_answers(table: pa.Table) -> pa.Table:
    """The same rows; answers that name no queue have the broker, topic and queue of the one place that asked."""
    table = fill(table)
    is_unplaced = compute.and_(compute.equal(table["event"], "answer_sent"), compute.less(table["queue"], 0))
    names = ["source", "request", *GROUP_KEY]
    plain = table.select(names).cast(pa.schema([PLAIN_SCHEMA.field(name) for name in names]))
    answers = plain.filter(is_unplaced)
    if not len(answers):
        return table
    is_asked = compute.and_(compute.equal(table["event"], "request_received"), compute.not_equal(plain["request"], ""))
    ends = [(name, end) for name in GROUP_KEY for end in ("min", "max")]
    asked = plain.filter(is_asked).group_by(names[:2]).aggregate(ends)
    asked = asked.filter(compute.greater_equal(asked["queue_min"], 0))
    for name in GROUP_KEY:
        asked = asked.filter(compute.equal(asked[f"{name}_min"], asked[f"{name}_max"]))
    keys = answers.select(names[:2]).append_column("place", pa.array(np.arange(len(answers))))
    found = keys.join(asked, names[:2], join_type="left outer").sort_by("place")
    # One that names another broker or topic than was asked is as wrong as one that names another queue, and stays so.
    is_other = compute.or_(*(_names_another(answers[name], found[f"{name}_min"]) for name in ("broker", "topic")))
    for name in GROUP_KEY:
        of_request = compute.coalesce(found[f"{name}_min"], answers[name])
        of_answers = compute.if_else(is_other, answers[name], of_request).combine_chunks()
        column = compute.replace_with_mask(plain[name].combine_chunks(), is_unplaced.combine_chunks(), of_answers)
        kind = EVENT_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, column.cast(kind.type))
    return table.unify_dictionaries().combine_chunks()


def _names_another(told: pa.ChunkedArray, asked: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which answers name another value than their request. An empty name on either side never differs."""
    are_named = compute.and_(compute.not_equal(told, ""), compute.not_equal(asked, ""))
    return compute.fill_null(compute.and_(are_named, compute.not_equal(told, asked)), False)
