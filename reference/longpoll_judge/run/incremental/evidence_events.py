"""Keeps the few events that findings rest on without naming them, of a history that is not kept.

Leaves out how they become evidence (`excerpt`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from longpoll_judge.columns.batch import joined, taken
from longpoll_judge.evidence.observers import DELETE_TOPIC
from longpoll_judge.read.schema import coded
from longpoll_judge.rules.cross_queue import rows_where
from longpoll_judge.run.excerpt import OF_CONNECTION, OF_SOURCE, first_by_source
from longpoll_judge.run.incremental.log_spans import Log
from longpoll_spec.history import WHITE_BOX

RARE_MAX: Final = 50_000
"""Most events that are kept: the first and the latest of them."""


def with_rare(rare: pa.Table, table: pa.Table, firsts: Mapping[Log, int], inside: Collection[str]) -> pa.Table:
    """The rare events so far, with those of some new events.

    Args:
        rare: Those so far.
        table: The new events.
        firsts: By log the offset of its first message, where that is among them.
        inside: Sources that are known to stand inside their broker.
    """
    codes, names = coded(table, "event")
    wanted = np.array([name in (*OF_SOURCE, *OF_CONNECTION) for name in names], dtype=np.bool_)[codes]
    wanted |= rows_where(table, "request_received") & (table["code"].to_numpy() == DELETE_TOPIC)
    sources, source_names = coded(table, "source")
    for name in WHITE_BOX:
        rows = first_by_source(table, np.flatnonzero(rows_where(table, name)))
        wanted[[row for row in rows.tolist() if source_names[sources[row]] not in inside]] = True
    is_message = rows_where(table, "append") | rows_where(table, "message_acknowledged")
    for (_broker, _topic, queue, _source), offset in firsts.items():
        is_first = is_message & (table["queue_offset"].to_numpy() == offset) & (table["queue"].to_numpy() == queue)
        wanted[np.flatnonzero(is_first)] = True
    found = joined([rare, taken(table, np.flatnonzero(wanted))])
    if len(found) <= RARE_MAX:
        return found
    return joined([found.slice(0, RARE_MAX // 4), found.slice(len(found) - RARE_MAX // 2)])
