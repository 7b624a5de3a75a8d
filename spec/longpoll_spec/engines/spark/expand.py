"""What a Spark worker does with the states it is given: it expands them, or looks for those that lead to others.

Everything travels as plain data: the expanding function as text, states as signed 64-bit columns, what was noticed on
the way as JSON in a row of its own. Leaves out Spark: these are functions over Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import frozen

from longpoll_spec.engines.packed.compile import Found
from longpoll_spec.engines.packed.part import Part, Successors
from longpoll_spec.engines.packed.source import Source
from longpoll_spec.engines.packed.words import Words, distinct, key_of
from longpoll_spec.tables import with_table

TOLD: Final = "told"
"""The column that is null in every row but those that tell what expanding noticed."""
CHUNK_STATES: Final = 1 << 16
"""States unpacked at once, whatever comes in a batch."""
_parts: dict[tuple[str, ...], Part] = {}
"""Text of an expanding function -> the part that has it: a worker process compiles it once."""


@with_table
class Told(msgspec.Struct, frozen=True):
    """What expanding some states noticed. Keys are hexadecimal: JSON's numbers are not exact."""

    fired: list[int]
    """Transitions by action instance."""
    found: list[tuple[int, int | None, str]]
    """(property index, index of the closing action or None, key)."""


def names_of(words: int) -> list[str]:
    """The columns of a state."""
    return [f"word_{row}" for row in range(words)]


def words_schema(words: int) -> pa.Schema:
    """Rows that are states."""
    return pa.schema([(name, pa.int64()) for name in names_of(words)])


def made_schema(words: int) -> pa.Schema:
    """Rows that are states, or tell something."""
    return words_schema(words).append(pa.field(TOLD, pa.string()))


def sources_schema() -> pa.Schema:
    """Rows that name a state, one that leads to it, and the action's index."""
    return pa.schema([("key", pa.string()), ("source", pa.string()), ("action", pa.int64())])


def table_of(words: Words) -> pa.RecordBatch:
    """States as rows."""
    return pa.RecordBatch.from_arrays(
        [pa.array(word.view(np.int64)) for word in words], schema=words_schema(len(words))
    )


def words_in(batch: pa.RecordBatch) -> Words:
    """Rows as states."""
    columns = [column.to_numpy().view(np.uint64) for column in batch.columns]
    return np.stack(columns) if columns else np.empty((0, batch.num_rows), dtype=np.uint64)


@frozen
class Expander:
    """The law, as a worker gets it."""

    source: Source
    words: int
    actions: int
    properties: int

    def part(self) -> Part:
        """The part of this process that expands by this law."""
        made = _parts.get(self.source.lines)
        if made is None:
            expand = self.source.function("expand")
            made = _parts[self.source.lines] = Part(expand, self.words, self.actions, self.properties, None)
        return made

    def expand(self, batches: Iterable[pa.RecordBatch], still_open: Sequence[bool]) -> Iterator[pa.RecordBatch]:
        """The successors of all states, each batch's once, and at the end one row that tells what was noticed."""
        part = self.part()
        fired = [0] * self.actions
        told: list[tuple[int, int | None, str]] = []
        for chunk in _chunks(batches):
            made = Successors(np.empty((self.words, chunk.shape[1] * self.actions), dtype=np.uint64))
            hits: list[Found] = []
            part.expand(chunk, still_open, len, made.make, fired, hits)
            told += [(item, closing, f"{key_of(chunk, column):x}") for item, closing, column, _ in hits]
            states = table_of(distinct(made.words[:, : made.used]))
            yield states.append_column(TOLD, pa.nulls(states.num_rows, pa.string()))
        row: dict[str, object] = dict.fromkeys(names_of(self.words), 0)
        row[TOLD] = msgspec.json.encode(Told(fired, told)).decode()
        yield pa.RecordBatch.from_pylist([row], schema=made_schema(self.words))

    def before(self, batches: Iterable[pa.RecordBatch], keys: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """For each key the least of all states here that leads to it, if one does."""
        part = self.part()
        for chunk in _chunks(batches):
            sources = part.sources(keys, [chunk])
            rows = [
                {"key": f"{key:x}", "source": f"{source:x}", "action": index}
                for key, (source, index) in sources.items()
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=sources_schema())


def sources_in(batches: Iterable[pa.RecordBatch]) -> dict[int, tuple[int, int]]:
    """For each key that is named the least state that leads to it, with the index of the action."""
    sources: dict[int, tuple[int, int]] = {}
    for row in (row for batch in batches for row in batch.to_pylist()):
        key, source = int(row["key"], 16), (int(row["source"], 16), int(row["action"]))
        sources[key] = min(source, sources.get(key, source))
    return sources


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[Words]:
    for batch in batches:
        words = words_in(batch)
        for start in range(0, words.shape[1], CHUNK_STATES):
            yield words[:, start : start + CHUNK_STATES].copy()
