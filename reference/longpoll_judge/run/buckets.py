"""Groups whole queues into buckets, for a history that is too large for one window and for Spark.

The hash of (broker, topic, queue) gives an event's bucket. If a request has events in several buckets, each of these
buckets gets copies of all its events and judges it. Each bucket also gets copies of the few events that concern every
queue, and of the first and last answers of connections, which show how long a broker ran. Pops of a topic are judged in
the bucket of the topic's queue -1.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longpoll_judge.columns.keys import (
    KEY_BITS,
    NO_KEYS,
    PLACE_BITS,
    Keys,
    request_keys,
)
from longpoll_judge.columns.lookup import Booleans, Integers, are_among, distinct, first_of, is_one_of, order_by
from longpoll_judge.columns.tables import (
    FEW_NAMES,
    QueueName,
    compacted,
    joined,
    queue_names,
    queue_numbers,
    rearranged,
    taken,
)
from longpoll_judge.contract.pops import POP_CODES
from longpoll_judge.evidence.survey import Context
from longpoll_judge.kernel.commits import OFFSET_CODES, RESETS
from longpoll_judge.kernel.gathered import have_request, rows_where
from longpoll_judge.kernel.messages import are_reads
from longpoll_judge.kernel.pulls import PULL_CODES
from longpoll_judge.kernel.verdict import Native, judge_window
from longpoll_judge.read.schema import are_named, coded_texts, integers_of, lists_of

WINDOW_EVENTS: Final = 300_000
"""The usual maximum number of events of a window. A window with a single queue may have more."""
ID_WEIGHT: Final = np.uint64(0x2545F4914F6CDD1D)
"""The multiplier of the hash, which is odd and differs from the multiplier that hashes requests."""
CONNECTIONS_MAX: Final = 2_000
"""If there are more connections than this, only the first and last answers of those that lasted longest are copied."""
Place = Callable[[QueueName, int], int]
"""A function that gets a queue and the number of buckets, and returns the index of the queue's bucket."""


def slot_of(name: QueueName) -> int:
    """Returns a number that is the same for a queue in every process, and fits in a key (`columns.keys`)."""
    return zlib.crc32("".join(map(str, name)).encode()) & int(PLACE_BITS)


def bucket_of(name: QueueName, buckets: int) -> int:
    """Return the bucket of a queue."""
    return slot_of(name) % buckets


def buckets_of(table: pa.Table, buckets: int, place: Place = bucket_of) -> Integers:
    """Return the bucket of each event."""
    numbers, rows = queue_numbers(table)
    found: Integers = np.array([place(name, buckets) for name in queue_names(table, rows)], dtype=np.int64)[numbers]
    return found


def are_in(table: pa.Table, bucket: int, buckets: int, place: Place = bucket_of) -> Booleans:
    """Return a mask of the events whose queues belong to a bucket."""
    found: Booleans = buckets_of(table, buckets, place) == bucket
    return found


def are_common(table: pa.Table) -> Booleans:
    """Return a mask of the events that concern every queue.

    The mask has opened connections, requests about the offsets of many queues or of no queue, and the first
    acknowledgement of each source that names no send, because sends of this source are not judged as unanswered.
    """
    code, asked = integers_of(table, "code"), rows_where(table, "request_received")
    found = asked & is_one_of(code, RESETS)
    lacks = integers_of(table, "queue") < 0
    lacks |= integers_of(table, "commit_offset") < 0 if OFFSET_CODES[1] in code else False
    for name in ("topic", "group"):
        codes, texts = coded_texts(table, name)
        lacks |= ~are_named(texts)[codes]
    found |= asked & is_one_of(code, OFFSET_CODES) & lacks
    nameless = np.flatnonzero(rows_where(table, "message_acknowledged") & ~have_request(table))
    sources = coded_texts(table, "source")[0][nameless]
    found[nameless[np.unique(sources, return_index=True)[1]]] = True
    return found | rows_where(table, "connection_opened")


def in_buckets(table: pa.Table, buckets: int, place: Place = bucket_of) -> Iterator[tuple[int, pa.Table, bool]]:
    """Yield the events of each bucket, and whether it owns them; events that concern all queues go to each bucket."""
    numbers, rows = queue_numbers(table)
    of_queue: Integers = np.array([place(name, buckets) for name in queue_names(table, rows)], dtype=np.int64)
    of = of_queue[numbers]
    common = np.flatnonzero(are_common(table))
    guests = taken(table, common)
    ends = np.append(0, np.cumsum(np.bincount(of, minlength=buckets)))
    # Sort rows by queue and then by time, so that a window can merge batches without comparing all rows again.
    rank = np.argsort(np.argsort(of_queue, kind="stable"))
    table = rearranged(table, order_by(rank[numbers], integers_of(table, "after_ns")))
    for bucket in range(buckets):
        yield bucket, compacted(table.slice(ends[bucket], ends[bucket + 1] - ends[bucket]), FEW_NAMES), True
        visit = np.flatnonzero(of[common] != bucket)
        if len(visit):
            yield bucket, guests.take(pa.array(visit)), False


def connection_ends(table: pa.Table, *, is_whole: bool = False) -> pa.Table:
    """Returns the first and the last answer on each connection, with their requests, to show how long a broker ran.

    An answer may be in another split than its request. Therefore the result for one split also has answers without a
    request, and requests without an answer. The result for all splits together (`is_whole`) has only answers with a
    request.
    """
    connections, names = coded_texts(table, "connection")
    connection, request, (queue, _rows) = (
        pairs_of(table, "connection"),
        pairs_of(table, "request"),
        queue_numbers(table),
    )
    received = np.flatnonzero(rows_where(table, "request_received") & have_request(table))
    pulls = received[is_one_of(integers_of(table, "code")[received], PULL_CODES)]
    answers = np.flatnonzero(are_reads(table) & are_named(names)[connections])
    at = first_of(request[answers], request[pulls])
    # The request of an answer is unknown if its identifier occurs twice, or if the answer names another queue.
    is_sure = (at >= 0) & (np.bincount(request[received], minlength=int(request.max(initial=0)) + 1) < 2)[
        request[answers]
    ]
    is_sure &= (integers_of(table, "queue")[answers] < 0) | (queue[answers] == queue[np.append(pulls, 0)[at]])
    shown = _extremes(table, answers[is_sure], connection)
    rows = np.concatenate((shown, pulls[are_among(request[pulls], request[shown])]))
    if not is_whole:
        answered = request[rows_where(table, "answer_sent")]
        strays = _extremes(table, answers[at < 0], connection)
        rows = np.concatenate((rows, strays, pulls[~are_among(request[pulls], answered)]))
    return taken(table, np.unique(rows))


def _extremes(table: pa.Table, rows: Integers, connection: Integers) -> Integers:
    """Return each connection's first and last answer; of too many connections, only those of the longest ones."""
    before_ns, after_ns = integers_of(table, "before_ns"), integers_of(table, "after_ns")
    first, last = (
        rows[order[np.unique(connection[rows][order], return_index=True)[1]]]
        for order in (np.argsort(before_ns[rows], kind="stable"), np.argsort(-after_ns[rows], kind="stable"))
    )
    longest = np.argsort(before_ns[first] - after_ns[last], kind="stable")[:CONNECTIONS_MAX]
    return np.union1d(first[longest], last[longest])


def pairs_of(table: pa.Table, name: str) -> Integers:
    """Return a small number for each event, equal for events with equal (source, name)."""
    sources, source_names = coded_texts(table, "source")
    codes, _texts = coded_texts(table, name)
    return codes.astype(np.int64) * len(source_names) + sources


def judge_bucket(tables: Iterable[pa.Table], ends: pa.Table, context: Context, are_own: Native) -> pa.Table:
    """Judge a bucket's own events, with copied events of other buckets and the ends of connections. Return its rows."""
    guests = ends.filter(pa.array(~are_own(ends)))
    # Keep no reference to the events in this function, so that their memory is freed once the window has sorted them.
    return judge_window(each_once(joined(chain(tables, [guests])), are_own), context, are_own)


def each_once(table: pa.Table, are_own: Native) -> pa.Table:
    """Return the events without duplicates, because an event may be copied to a bucket for two reasons."""
    guests = np.flatnonzero(~are_own(table))
    told: list[NDArray[Any]]
    told = [coded_texts(table, name)[0][guests] for name in ("source", "event", "request")]
    told += [integers_of(table, name)[guests] for name in ("sequence", "after_ns", "before_ns", "queue")]
    order = np.lexsort(told)
    is_same = np.logical_and.reduce([each[order[1:]] == each[order[:-1]] for each in told])
    stays = np.ones(len(table), dtype=np.bool_)
    stays[guests[order[1:][is_same]]] = False
    return table if stays.all() else table.filter(pa.array(stays))


def placed_keys(table: pa.Table, place: Callable[[QueueName], int]) -> Keys:
    """Returns the sorted keys of the events' requests and of messages by id, each with the number of its place."""
    if not len(table):
        return NO_KEYS
    queue, queue_rows = queue_numbers(table)
    places = np.array([place(name) for name in queue_names(table, queue_rows)], dtype=np.uint64)
    # Use one event of each request and queue. Few requests have events in several queues.
    pairs, rows = pairs_of(table, "request"), np.flatnonzero(have_request(table))
    some = np.full(int(pairs.max()) + 1, -1, dtype=np.int64)
    some[pairs[rows]] = rows
    elsewhere = rows[queue[rows] != queue[some[pairs[rows]]]]
    rows = np.concatenate((some[some >= 0], elsewhere))
    messages, ids = _ids(table)
    keys = np.concatenate((request_keys(table, rows), ids))
    placed = keys & KEY_BITS | places[queue[np.concatenate((rows, messages))]]
    return distinct(np.concatenate((placed, _keys_of_pops(table, place, messages, ids))))


def _keys_of_pops(table: pa.Table, place: Callable[[QueueName], int], messages: Integers, ids: Keys) -> Keys:
    """Returns the keys of requests about pops and of popped messages, with the place that judges their topic."""
    is_popped = rows_where(table, "message_popped")
    is_asked = rows_where(table, "request_received") & is_one_of(integers_of(table, "code"), POP_CODES)
    asked = np.flatnonzero(is_asked & have_request(table))
    rows = np.concatenate((asked, messages[is_popped[messages]]))
    if not len(rows):
        return NO_KEYS
    queue, queue_rows = queue_numbers(table)
    homes = [place((*name[:2], -1)) for name in queue_names(table, queue_rows)]
    keys = np.concatenate((request_keys(table, asked), ids[is_popped[messages]]))
    found: Keys = keys & KEY_BITS | np.array(homes, dtype=np.uint64)[queue[rows]]
    return found


def _ids(table: pa.Table) -> tuple[Integers, Keys]:
    """Returns, for each message with an id, the row of its event and the key of the id."""
    bounds, ids = lists_of(table, "ids")
    rows = np.repeat(np.arange(len(table)), np.diff(bounds))
    return rows[ids != 0], ids[ids != 0].astype(np.uint64) * ID_WEIGHT


def visitors_of(table: pa.Table, bucket: int, shared: Keys) -> Iterator[tuple[int, pa.Table]]:
    """Yields the events of this bucket that other buckets need to judge a request or a message, for each such bucket.

    The places in the keys of `shared` are buckets.
    """
    keys, where = shared & KEY_BITS, shared & PLACE_BITS
    if bucket not in where:
        return
    requests, (messages, ids) = request_keys(table, np.arange(len(table))) & KEY_BITS, _ids(table)
    ids &= KEY_BITS
    has_request, is_common = have_request(table), are_common(table)
    queue, _rows = queue_numbers(table)
    is_append = rows_where(table, "append")
    own = keys[where == bucket]
    for other in np.unique(where[where != bucket]).tolist():
        wanted = np.intersect1d(keys[where == other], own)
        mine = np.zeros(len(table), dtype=np.bool_)
        mine[messages[np.isin(ids, wanted)]] = True
        # Copy a message together with its append, and with all events of its requests.
        mine = has_request & (np.isin(requests, wanted) | np.isin(requests, requests[mine & has_request]))
        offsets = integers_of(table, "queue_offset")
        places = queue.astype(np.int64) * ID_WEIGHT.astype(np.int64) + offsets
        mine |= is_append & np.isin(places, _places(table, np.flatnonzero(mine), queue))
        mine[messages[np.isin(ids, wanted)]] = True
        mine &= ~is_common
        if mine.any():
            yield other, taken(table, np.flatnonzero(mine))


def _places(table: pa.Table, rows: Integers, queue: NDArray[Any]) -> Integers:
    """Return the queue numbers and the offsets of the messages that these events name."""
    bounds, values = lists_of(table, "offsets")
    counts = np.diff(bounds)[rows]
    spread = np.repeat(rows, counts)
    nth = np.arange(len(spread)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = np.concatenate((integers_of(table, "queue_offset")[rows], values[bounds[spread] + nth]))
    found: Integers = queue[np.concatenate((rows, spread))].astype(np.int64) * ID_WEIGHT.astype(np.int64) + offsets
    return found
