"""Carries events from where slices are read to where queues are judged, as few large pieces instead of many rows.

A piece holds those events of one slice whose queues fall into one bucket, their logs apart from their requests, as an
Arrow stream without the columns that they do not use. The requests of a queue that is large within its slice come as
`SHARDS` pieces, spread by the hash of their identifiers: what is judged of a request needs the log and the request's
own events, so the requests of one hot queue can be judged in several places that share the log. Hashes only spread,
nothing is ever compared by them. Leaves out where pieces wait (`spill`, `spark`) and what is judged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.arrow import compute
from longpoll_judge.batch import Integers, queue_numbers
from longpoll_judge.schema import DEFAULTS, EVENT_SCHEMA, NAMES, REQUIRED, coded, fill_present
from longpoll_judge.verdict import LOG_EVENTS, REQUEST_EVENTS

BUCKETS: Final = 256
"""Queues fall into this many buckets by their names."""
SHARDS: Final = 16
"""A power of two, so that any smaller one can share them out evenly."""
SPLIT_EVENTS: Final = 32_768
"""A bucket's events of one slice are split into shards when they are more."""
WHOLE: Final = -2
LOG: Final = -1
"""Shard numbers of a piece with all requests of its bucket, and of one with the log."""
_WEIGHTS: Final = np.random.default_rng(7358).integers(1, 1 << 63, 64, dtype=np.uint64) | np.uint64(1)
"""Odd factors by place in the text; the seed must be the same in every process."""


_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_NO_EVENTS: Final = EVENT_SCHEMA.empty_table().select(REQUIRED)


@frozen
class Piece:
    """Some events of one bucket."""

    bucket: int
    shard: int
    events: int
    table: pa.Table


def split(table: pa.Table) -> Iterator[Piece]:
    """The judged events of a slice as pieces; answers that name no queue fall into the bucket of no queue."""
    if not len(table):
        return
    numbers, firsts = queue_numbers(table)
    bucket_of = np.array([_bucket(table, row) for row in firsts.tolist()], dtype=np.int64)
    codes, names = coded(table, "event")
    is_log = np.array([name in LOG_EVENTS for name in names], dtype=np.bool_)[codes]
    is_request = np.array([name in REQUEST_EVENTS for name in names], dtype=np.bool_)[codes]
    bucket = bucket_of[numbers]
    counts = np.bincount(bucket[is_log | is_request], minlength=BUCKETS)
    is_split = counts[bucket] > SPLIT_EVENTS
    shard = np.where(is_split, request_shards(table), WHOLE) if is_split.any() else WHOLE
    number = np.where(is_log, LOG, shard) - WHOLE
    key = np.where(is_log | is_request, bucket * (SHARDS - WHOLE) + number, -1)
    log, requests = _narrowed(table, is_log), _narrowed(table, is_request)
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for start, end in pairwise([*starts.tolist(), len(order)]):
        in_bucket, in_shard = divmod(int(key[order[start]]), SHARDS - WHOLE)
        mine = log if in_shard + WHOLE == LOG else requests
        yield Piece(in_bucket, in_shard + WHOLE, end - start, mine.take(pa.array(order[start:end])))


def _narrowed(table: pa.Table, rows: NDArray[np.bool_]) -> pa.Table:
    """The table without columns that are at their default in all of these rows."""
    return table.select([name for name in table.column_names if name in REQUIRED or _is_used(table, name, rows)])


def _is_used(table: pa.Table, name: str, rows: NDArray[np.bool_]) -> bool:
    if name in NAMES:
        codes, names = coded(table, name)
        return names != [""] and bool(
            (np.bincount(codes[rows], minlength=len(names)) * [bool(text) for text in names]).any()
        )
    if name == "offsets":
        return len(compute.list_flatten(table[name])) > 0
    return bool((table[name].to_numpy()[rows] != DEFAULTS[name]).any())


def _bucket(table: pa.Table, row: int) -> int:
    names = [str(table[name][row].as_py()) for name in ("broker", "topic", "queue")]
    return zlib.crc32("\0".join(names).encode(errors="surrogatepass")) % BUCKETS


def request_shards(table: pa.Table) -> Integers:
    """Each event's shard by its request's identifier."""
    if not len(table):
        return np.empty(0, dtype=np.int64)
    codes, names = coded(table, "request")
    texts = table["request"].unify_dictionaries().chunk(0).dictionary if "request" in table.column_names else None
    hashes = _text_hashes(pa.array(names, pa.string()) if texts is None else texts)
    return (hashes % np.uint64(SHARDS)).astype(np.int64)[codes]


def _text_hashes(texts: pa.StringArray) -> NDArray[np.uint64]:
    """A number for each text, the same wherever it is made."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    sizes = np.diff(offsets)
    content = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
    place = np.arange(len(content)) - np.repeat(offsets[:-1] - offsets[0], sizes)
    sums = np.append(
        np.uint64(0), np.cumsum((content + np.uint64(1)) * _WEIGHTS[place % len(_WEIGHTS)], dtype=np.uint64)
    )
    hashes = sums[offsets[1:] - offsets[0]] - sums[offsets[:-1] - offsets[0]]
    spread: NDArray[np.uint64] = (hashes ^ (hashes >> np.uint64(32))) * _WEIGHTS[0] >> np.uint64(17)
    return spread


def encode(table: pa.Table) -> bytes:
    """A piece's events as bytes, each dictionary cut to what the piece uses."""
    names = table.column_names
    columns = [_compact(table[name]) if name in NAMES else table[name] for name in names]
    compacted = pa.table(columns, schema=pa.schema([EVENT_SCHEMA.field(name) for name in names])).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, compacted.schema, options=_COMPRESSED) as writer:
        writer.write_table(compacted)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    chunk = column.unify_dictionaries().combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.chunk(0)
    if len(chunk.dictionary) <= 1:
        return chunk
    codes = chunk.indices.to_numpy()
    used = np.flatnonzero(np.bincount(codes, minlength=len(chunk.dictionary)))
    number = np.zeros(len(chunk.dictionary), dtype=np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(number[codes], chunk.dictionary.take(pa.array(used)))


def decode(content: pa.Buffer | bytes) -> pa.Table:
    """The events of a piece, without the columns that it does not use."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


def requests_of(piece: Piece, unit: int, units: int) -> pa.Table:
    """Those events of a piece that are requests of one of several places, which share them out."""
    if piece.shard == WHOLE and units > 1:
        return piece.table.filter(pa.array(request_shards(piece.table) % units == unit))
    return piece.table


def may_share(shard: int, unit: int, units: int) -> bool:
    """Whether a piece with this shard number can have requests for one of several places."""
    return shard == WHOLE or (shard != LOG and shard % units == unit)


def unit_count(events: int, unit_events: int) -> int:
    """In how many places a bucket with so many events is judged, each with about `unit_events` of them."""
    units = 1
    while units < SHARDS and events > units * unit_events:
        units *= 2
    return units


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """All the events in one table, with the columns that any of them uses."""
    return fill_present(pa.concat_tables([_NO_EVENTS, *tables], promote_options="default"))
