"""The directory of a search on Spark: whole levels, and what is known when the last of them is.

| in the directory | holds                                                                                        |
|------------------|----------------------------------------------------------------------------------------------|
| `search.json`    | which law, the levels that are whole, transitions and witnesses so far; replaced all at once   |
| `level-D`        | Parquet: the states that are first reached by D actions                                       |
| `work`           | Parquet of the step that is under way, which begins anew after a kill                         |

The driver and every worker must see the same directory. Leaves out Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from attrs import define, field

from longpoll_spec.engines.exploration import Ledger, Witness
from longpoll_spec.engines.packed.words import Words
from longpoll_spec.engines.spark.expand import TOLD, Told, table_of
from longpoll_spec.errors import CheckpointError
from longpoll_spec.tables import with_table

FORMAT: Final = 1
STATE_FILE: Final = "search.json"
WORK: Final = "work"


@with_table
class _State(msgspec.Struct, kw_only=True):
    """What `search.json` holds."""

    format_version: int = FORMAT
    law: str
    """Names the law, its bounds and the properties that are judged."""
    levels: list[int]
    """States of each whole level."""
    expanded: int = 0
    """Levels whose successors are known."""
    fired: list[int]
    """Transitions by action instance."""
    witnesses: list[tuple[int, int, int | None, str]] = []
    """(property index, depth, index of the closing action or None, key as a hexadecimal number)."""


@define
class Checkpoint:
    """A directory. Invariant: every level in `levels` of the state is whole, and nothing else is believed."""

    path: Path
    state: _State = field(init=False)

    def open(self, law: str, first: Words, actions: int) -> None:
        """Go on with what is there, or begin; raises `CheckpointError` if something else is there."""
        file = self.path / STATE_FILE
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if file.exists():
                self.state = self._read(file, law)
                return
            if any(self.path.iterdir()):
                raise CheckpointError(
                    f"{self.path} has files and no search in it; give --checkpoint an empty directory"
                )
            self.level(0).mkdir()
            pq.write_table(pa.Table.from_batches([table_of(first)]), self.level(0) / "part-0.parquet")
        except OSError as error:
            raise CheckpointError(f"cannot use {self.path}: {error.strerror}; give another --checkpoint") from error
        self.state = _State(law=law, levels=[first.shape[1]], fired=[0] * actions)
        self.save()

    def _read(self, file: Path, law: str) -> _State:
        try:
            state = msgspec.json.decode(file.read_bytes(), type=_State)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(f"{file} is damaged: {error}; give --checkpoint an empty directory") from error
        if (state.format_version, state.law) != (FORMAT, law):
            raise CheckpointError(
                f"{self.path} has a search of another law, other bounds or other properties; give another --checkpoint"
            )
        missing = [depth for depth in range(len(state.levels)) if count_of(self.level(depth)) != state.levels[depth]]
        if missing:
            raise CheckpointError(
                f"{self.level(missing[0])} is not whole any more; give --checkpoint an empty directory"
            )
        return state

    def save(self) -> None:
        """Write what is known; a reader sees the old file or the new one."""
        fresh = self.path / f"{STATE_FILE}.new"
        fresh.write_bytes(msgspec.json.encode(self.state))
        fresh.replace(self.path / STATE_FILE)

    def level(self, depth: int) -> Path:
        """The directory of a level."""
        return self.path / f"level-{depth}"

    def work(self, name: str) -> Path:
        """A directory for a step, which is not there any more."""
        path = self.path / WORK / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    @property
    def is_complete(self) -> bool:
        """Whether the last level has no new successors."""
        return self.state.expanded == len(self.state.levels)

    def ledger_into(self, ledger: Ledger) -> None:
        """Note the witnesses that are known."""
        for item, depth, closing, key in self.state.witnesses:
            ledger.note(item, Witness(int(key, 16), depth, closing))

    def expanded(self, told: Sequence[Told], ledger: Ledger) -> None:
        """Take in what expanding the last level told, with the level that it made."""
        depth = self.state.expanded
        for each in told:
            self.state.fired = [before + more for before, more in zip(self.state.fired, each.fired, strict=True)]
            for item, closing, key in each.found:
                ledger.note(item, Witness(int(key, 16), depth, closing))
        self.state.witnesses = [
            (item, each.depth, each.closing, f"{each.state:x}") for item, each in ledger.witnesses.items()
        ]
        coming = count_of(self.level(depth + 1))
        if coming:
            self.state.levels.append(coming)
        self.state.expanded += 1
        self.save()


def count_of(directory: Path) -> int:
    """The rows of a directory of Parquet files."""
    return sum(pq.read_metadata(file).num_rows for file in directory.glob("*.parquet"))


def told_in(directory: Path) -> list[Told]:
    """What the rows that tell something tell."""
    table = ds.dataset(sorted(map(str, directory.glob("*.parquet")))).to_table([TOLD], filter=ds.field(TOLD).is_valid())
    return [msgspec.json.decode(text, type=Told) for text in table.column(TOLD).to_pylist()]
