"""Adds lagging groups to a large history: each group reads from offset 0, slower than messages arrive.

The offsets that a group reads during a tile follow from the tile's place and the group's pace, so a history of any size
is created tile by tile. Every pull is answered at once with all the messages that it requested, because the groups
subscribe to everything. Tiles: see `tiles`. Groups at the end of the log: see `generate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import evolve
from model_tests.support.judge.generate import BROKER, PULL_MESSAGE, SOURCE, TOPIC, US, Load, simulated_meta
from model_tests.support.judge.parquet_parts import write_part
from model_tests.support.judge.tiles import Placed, Tile, moved, plan, simulated_tile

from longpoll_judge.read.schema import PLAIN_SCHEMA, coded, fill
from longpoll_spec.history import META_FILE, PARQUET_SUFFIX

LAGGING_TILE_EVENTS: Final = 180_000
"""The number of events of a tile. With 16 lagging groups, such a tile fills about one row group."""
COUNT_MAX: Final = 8
TIMEOUT_MS: Final = 30_000
ROOM_NS: Final = 1_000 * US
"""Pulls arrive only when their queue's visible end stays constant for this time, so that the reported end is certain.
"""
_ANSWERED_NS: Final = 40 * US
"""The time in ns from the receipt of a pull to its answer."""


def write_lagging(
    directory: Path, load: Load, groups: int, *, tile_events: int = LAGGING_TILE_EVENTS, lives: int = 1
) -> int:
    """Write a history of about `load.events` events with lagging groups; returns the number of events.

    Args:
        directory: Directory of the history's parts.
        load: The broker, its producers and the groups at the end of the log.
        groups: Number of lagging groups; group g reads g / (groups + 1) of the messages, from offset 0.
        tile_events: Events of one part without the lagging groups.
        lives: Number of broker starts. Each run of the broker but the last is killed without loss.
    """
    tile = simulated_tile(evolve(load, events=min(tile_events, load.events)))
    read = sum(tile.messages.values()) * groups / COUNT_MAX
    places = plan(tile, max(1, round(load.events / (len(tile.table) + read))))
    _write_meta(directory, lives)
    written = sequence = 0
    last = ""
    for place in places:
        source = _source(place.number * lives // len(places))
        sequence = sequence if source == last else 0
        begun = evolve(place, is_first=source != last)
        table = _numbered(pa.concat_tables([moved(tile, begun), *_pulls(tile, place, groups)]), sequence)
        names = pa.array([source] * len(table)).dictionary_encode()
        table = table.set_column(table.schema.get_field_index("source"), "source", names)
        write_part(directory / f"part-{place.number:06}{PARQUET_SUFFIX}", [table])
        written, sequence, last = written + len(table), sequence + len(table), source
    return written


def _source(life: int) -> str:
    return f"{BROKER}#{life + 1}"


def _write_meta(directory: Path, lives: int) -> None:
    meta = simulated_meta()
    sources = [msgspec.structs.replace(meta.sources[0], name=_source(life)) for life in range(lives)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / META_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(meta, sources=sources)) + b"\n")


def _numbered(table: pa.Table, first: int) -> pa.Table:
    """Returns the events in order of time, numbered from `first` on."""
    rows = np.lexsort((table["sequence"].to_numpy(), table["after_ns"].to_numpy()))
    ordered = table.take(pa.array(rows))
    numbers = pa.array(np.arange(first, first + len(ordered)), pa.int64())
    return ordered.set_column(ordered.schema.get_field_index("sequence"), "sequence", numbers)


def _pulls(tile: Tile, place: Placed, groups: int) -> list[pa.Table]:
    """Returns the pulls of all lagging groups during a tile, with their answers."""
    events = moved(tile, place)
    return [
        _pulls_of(events, queue, group, _span(place.messages, tile.messages, queue, group / (groups + 1)), place.number)
        for queue in sorted(tile.messages)
        for group in range(1, groups + 1)
    ]


def _span(before: Mapping[int, int], during: Mapping[int, int], queue: int, pace: float) -> tuple[int, int]:
    """Returns the first offset that a group reads during a tile, and the offset after the last one.

    The group reads only messages of earlier tiles.
    """
    sent = before.get(queue, 0)
    return int(max(sent - during[queue], 0) * pace), int(sent * pace)


def _pulls_of(events: pa.Table, queue: int, group: int, span: tuple[int, int], tile: int) -> pa.Table:
    """Returns the pulls of one group on one queue, spread evenly over the times at which pulls may arrive."""
    asked = np.arange(span[0], span[1], COUNT_MAX, dtype=np.int64)
    following = np.minimum(asked + COUNT_MAX, span[1])
    codes, names = coded(events, "event")
    ends = np.flatnonzero((codes == names.index("make_visible")) & (events["queue"].to_numpy() == queue))
    seen_ns = events["before_ns"].to_numpy()[ends]
    has_room = np.flatnonzero(np.diff(seen_ns) > ROOM_NS)
    place = has_room[np.linspace(0, len(has_room) - 1, len(asked)).astype(np.int64)]
    received_ns = seen_ns[place] + group * US
    end = events["visible_end"].to_numpy()[ends][place]
    request = [f"{tile}.g{group}.{queue}.{offset}" for offset in asked.tolist()]
    common = {"broker": BROKER, "topic": TOPIC, "source": SOURCE, "connection": f"lags{group}"}
    told: list[dict[str, object]] = []
    for row, name in enumerate(request):
        pull = common | {"queue": queue, "request": name}
        told.append(pull | _asked(int(asked[row]), group, int(received_ns[row])))
        told.append(pull | _answered(int(asked[row]), int(following[row]), int(end[row]), int(received_ns[row])))
    return fill(pa.Table.from_pylist(told, schema=PLAIN_SCHEMA))


def _asked(offset: int, group: int, moment_ns: int) -> dict[str, object]:
    return {
        "event": "request_received",
        **_at(moment_ns),
        "code": PULL_MESSAGE,
        "group": f"lagging group {group}",
        "offset": offset,
        "count_max": COUNT_MAX,
        "may_hold": True,
        "timeout_ms": TIMEOUT_MS,
        "expression_type": "TAG",
        "expression": "*",
    }


def _answered(offset: int, following: int, end: int, received_ns: int) -> dict[str, object]:
    return {
        "event": "answer_sent",
        **_at(received_ns + _ANSWERED_NS),
        "code": 0,
        "offset_next": following,
        "offset_min": 0,
        "offset_max": end,
        "offsets": list(range(offset, following)),
        "cause": "immediate",
    }


def _at(moment_ns: int) -> dict[str, object]:
    return {"after_ns": moment_ns, "before_ns": moment_ns + 5 * US, "sequence": 1 << 60}
