"""The first levels of a search on Spark, expanded by the driver: what they cost is less than a job's start.

The same function expands them as on a worker, and what comes of it is written where a worker would write it, so that
the search goes on by jobs, or after a kill, from any level. Leaves out when that is (`search`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from attrs import define, field

from longpoll_spec.engines.packed.word_table import WordTable
from longpoll_spec.engines.packed.words import distinct, mixed, unmixed
from longpoll_spec.engines.spark.checkpoint import Checkpoint
from longpoll_spec.engines.spark.expand import CHUNK_STATES, TOLD, Expander, Told, table_of, words_in, words_schema


@define
class Here:
    """A search in this process. Invariant: `seen` has every state of every whole level."""

    checkpoint: Checkpoint
    expander: Expander
    seen: WordTable = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with nothing."""
        self.seen = WordTable(self.expander.words)

    @classmethod
    def knowing(cls, checkpoint: Checkpoint, expander: Expander, last: int) -> Here:
        """One that knows the levels up to the last."""
        made = cls(checkpoint, expander)
        for depth in range(last + 1):
            for batch in level_batches(checkpoint.level(depth)):
                made.seen.add(distinct(mixed(words_in(batch))))
        return made

    def expand(self, depth: int, still_open: Sequence[bool]) -> list[Told]:
        """Expand a level, write the next and give what was noticed; where nothing is new no level is written."""
        level = self.checkpoint.level(depth + 1)
        shutil.rmtree(level, ignore_errors=True)  # what was half written before a kill
        told: list[Told] = []
        new = self._new(depth, still_open, told)
        first = next(new, None)
        if first is not None:
            level.mkdir()
            with pq.ParquetWriter(level / "part-0.parquet", words_schema(self.expander.words)) as writer:
                writer.write_batch(first)
                for batch in new:
                    writer.write_batch(batch)
        return told

    def _new(self, depth: int, still_open: Sequence[bool], told: list[Told]) -> Iterator[pa.RecordBatch]:
        """The successors that were never seen, each once; what was noticed goes into `told`."""
        for batch in self.expander.expand(level_batches(self.checkpoint.level(depth)), still_open):
            texts = batch.column(TOLD)
            if texts.null_count < len(texts):
                told += [msgspec.json.decode(text, type=Told) for text in texts.to_pylist()]
                continue
            made = distinct(mixed(words_in(batch.drop_columns([TOLD])).copy()))
            fresh = self.seen.add(made)
            if fresh.shape[1]:
                yield table_of(unmixed(fresh))


def level_batches(level: Path) -> Iterator[pa.RecordBatch]:
    """The states of a level."""
    files = sorted(map(str, level.glob("*.parquet")))
    yield from ds.dataset(files).to_batches(batch_size=CHUNK_STATES)
