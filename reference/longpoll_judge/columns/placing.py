"""Gives answers that name no queue the broker, topic and queue of their requests.

Rule 4 of a history says that answers carry them; other recorders may leave them out, at the price of this join. Leaves
out how requests and their answers come together (`local`, `spark`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from longpoll_judge.columns.batch import GROUP_KEY
from longpoll_judge.read.arrow import compute
from longpoll_judge.read.schema import EVENT_SCHEMA, PLAIN_SCHEMA


def place_answers(table: pa.Table) -> pa.Table:
    """Give answers that name no queue the broker, topic and queue of their request."""
    names = ["source", "request", *GROUP_KEY]
    kinds = pa.schema([PLAIN_SCHEMA.field(name) for name in names])
    received = compute.equal(table["event"], "request_received")
    requests = table.select(names).cast(kinds).filter(compute.and_(received, compute.greater_equal(table["queue"], 0)))
    requests = requests.group_by(names[:2]).aggregate([(name, "min") for name in GROUP_KEY])
    is_unplaced = compute.and_(compute.equal(table["event"], "answer_sent"), compute.less(table["queue"], 0))
    answers = table.filter(is_unplaced)
    keys = (
        answers.select(names[:2])
        .cast(pa.schema([kinds.field(name) for name in names[:2]]))
        .append_column("place", pa.array(np.arange(len(answers))))
    )
    found = keys.join(requests, names[:2], join_type="left outer").sort_by("place")
    for name in GROUP_KEY:
        column = compute.coalesce(found[f"{name}_min"], answers[name].cast(kinds.field(name).type))
        answers = answers.set_column(
            answers.schema.get_field_index(name), EVENT_SCHEMA.field(name), column.cast(EVENT_SCHEMA.field(name).type)
        )
    return pa.concat_tables([table.filter(compute.invert(is_unplaced)), answers])
