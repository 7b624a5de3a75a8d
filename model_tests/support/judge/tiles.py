"""Creates large histories by repeating a small simulated history (a tile) with shifted times, numbers and offsets.

At the end of a tile every request is answered, so the next tile can follow, whose times, queue offsets and request
names are shifted. The shift is arithmetic on columns, so writing is as fast as the disk. Each tile is one Parquet part,
and tiles can be written in any order and by any process. Simulation: see `generate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import evolve, frozen
from model_tests.support.judge.generate import MS, Load, simulate, simulated_meta
from model_tests.support.judge.parquet_parts import write_part

from longpoll_judge.read.schema import EVENT_SCHEMA, PLAIN_SCHEMA, coded, compute, fill
from longpoll_spec.history import META_FILE, PARQUET_SUFFIX, Event

TILE_EVENTS: Final = 250_000
"""The number of events of a tile in a large history. Each tile is one row group."""
GAP_NS: Final = 10 * MS
"""The time between two tiles, in ns."""
_TILE_BITS: Final = 32
"""In a message id, these lower bits are the message's number in its tile, and the upper bits the tile's number."""
_OFFSET_COLUMNS: Final = ("offset", "offset_next", "offset_max", "queue_offset", "visible_end", "commit_offset")


@frozen
class Tile:
    """A self-contained part of a history, without the source's start and stop."""

    table: pa.Table
    messages: dict[int, int]
    """Maps each queue to its number of messages."""
    span_ns: int
    """The time from the first event to the last, in ns."""


@frozen
class Placed:
    """Where a copy of the simulated history begins: the sums over all earlier copies."""

    number: int
    sequence: int
    time_ns: int
    messages: dict[int, int]
    is_first: bool
    is_last: bool


def make_tile(events: Iterable[Event]) -> Tile:
    """Create a tile from simulated events, without the source's start and stop."""
    inner = [event for event in events if event.event not in {"source_started", "source_stopped"}]
    table = table_of(inner)
    messages: Counter[int] = Counter()
    for event in inner:
        if event.event in {"append", "message_acknowledged"}:
            messages[event.queue] = max(messages[event.queue], event.queue_offset + 1)
    after_ns = table["after_ns"].to_numpy()
    return Tile(table, dict(messages), int(table["before_ns"].to_numpy().max() - after_ns.min()))


def table_of(events: Sequence[Event]) -> pa.Table:
    rows = [msgspec.structs.asdict(event) for event in events]
    return fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA)) if rows else EVENT_SCHEMA.empty_table()


def simulated_tile(load: Load) -> Tile:
    """Create a tile by simulating a correct broker."""
    return make_tile(simulate(load))


def plan(tile: Tile, count: int) -> list[Placed]:
    """Returns where each copy begins if a simulated history (tile) is repeated `count` times."""
    placed: list[Placed] = []
    sequence, time_ns, messages = 1, 0, Counter[int]()
    for number in range(count):
        placed.append(
            Placed(number, sequence, time_ns, dict(messages), is_first=number == 0, is_last=number == count - 1)
        )
        sequence += len(tile.table)
        time_ns += tile.span_ns + GAP_NS
        messages.update(tile.messages)
    return placed


def moved(tile: Tile, place: Placed) -> pa.Table:
    """Returns the events of one copy of the simulated history, with shifted times, numbers and offsets."""
    table = tile.table
    queue = table["queue"].to_numpy()
    # A negative queue number means no queue, and indexes the array's last entry, which stays 0.
    first_offsets = np.zeros(max([*place.messages, int(queue.max(initial=0))], default=0) + 2, dtype=np.int64)
    for number, count in place.messages.items():
        first_offsets[number] = count
    shift = first_offsets[queue]
    first_sequence = int(table["sequence"].to_numpy().min(initial=1 << 61))
    columns = {
        "after_ns": table["after_ns"].to_numpy() + place.time_ns,
        "before_ns": table["before_ns"].to_numpy() + place.time_ns,
        "sequence": table["sequence"].to_numpy() - first_sequence + place.sequence,
    }
    for name in _OFFSET_COLUMNS:
        values = table[name].to_numpy()
        columns[name] = np.where(values >= 0, values + shift, values)
    bodies = table["offsets"].combine_chunks()
    owners = np.repeat(np.arange(len(table)), np.diff(bodies.offsets.to_numpy()))
    offsets = pa.ListArray.from_arrays(bodies.offsets, pa.array(bodies.values.to_numpy() + shift[owners]))
    codes, requests = coded(table, "request")
    names = pa.array([f"{place.number}.{name}" if name else "" for name in requests], pa.string())
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.int64()))
    table = table.set_column(table.schema.get_field_index("offsets"), "offsets", offsets)
    ids = table["ids"].combine_chunks()
    ids = pa.ListArray.from_arrays(ids.offsets, pa.array(ids.values.to_numpy() + (place.number << _TILE_BITS)))
    table = table.set_column(table.schema.get_field_index("ids"), "ids", ids)
    table = table.set_column(
        table.schema.get_field_index("request"), "request", pa.DictionaryArray.from_arrays(codes, names)
    )
    return _with_ends(table, place)


def _with_ends(table: pa.Table, place: Placed) -> pa.Table:
    """Add the source's start before the first tile, and its stop after the last tile."""
    source = table["source"][0].as_py() if len(table) else ""
    ends = []
    if place.is_first:
        moment = compute.min(table["after_ns"]).as_py() - 1
        ends.append(Event(event="source_started", after_ns=moment, before_ns=moment, source=source, sequence=0))
    if place.is_last:
        moment = compute.max(table["before_ns"]).as_py() + GAP_NS
        sequence = compute.max(table["sequence"]).as_py() + 1
        ends.append(Event(event="source_stopped", after_ns=moment, before_ns=moment, source=source, sequence=sequence))
    return pa.concat_tables([table, table_of(ends)])


def write_place(directory: Path, tile: Tile, place: Placed) -> int:
    table = moved(tile, place)
    write_part(directory / f"part-{place.number:06}{PARQUET_SUFFIX}", [table])
    return len(table)


def write_meta(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / META_FILE).write_bytes(msgspec.json.encode(simulated_meta()) + b"\n")


def write_large(directory: Path, load: Load, *, tile_events: int = TILE_EVENTS) -> int:
    """Write a history of about `load.events` events; returns the number of events."""
    tile = simulated_tile(evolve(load, events=min(tile_events, load.events)))
    write_meta(directory)
    places = plan(tile, max(1, round(load.events / len(tile.table))))
    return sum(write_place(directory, tile, place) for place in places)
