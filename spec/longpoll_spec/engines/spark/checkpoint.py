"""The directory of a search on Spark: it has the complete levels, and the state of the search after the last level.

| in the directory | holds                                                                                         |
|------------------|-----------------------------------------------------------------------------------------------|
| `search.json`    | the model, the whole levels, transitions and witnesses so far; replaced atomically            |
| `level-D`        | runs (`partition`) of the states first reached by D actions, cut into shards                |
| `seen`           | the same runs, merged (`Visited`)                                                             |
| `made`           | output of the current step; starts empty after a kill                                         |
| `answers`        | answers of the tasks of a step                                                                |
| `lock`           | nothing; locked by the driver that searches here                                              |

The driver and every worker must see the same directory.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field

from longpoll_spec.engines.exploration import Ledger, Witness
from longpoll_spec.engines.packed.words import Words
from longpoll_spec.engines.spark.partition import MADE, Told, count, level_in, runs_in, write_cut
from longpoll_spec.errors import CheckpointError
from longpoll_spec.tables import with_table

FORMAT: Final = 2
STATE_FILE: Final = "search.json"
ANSWERS: Final = "answers"
LOCK_FILE: Final = "lock"


@with_table
class _State(msgspec.Struct, kw_only=True):
    format_version: int = FORMAT
    law: str
    """A digest that identifies the model, its bounds and the checked properties."""
    shares: int
    """The number of shards into which heads are divided. Each step has one task per shard."""
    levels: list[int]
    """The number of states of each complete level."""
    expanded: int = 0
    """The number of levels that are expanded."""
    fired: list[int]
    """The number of transitions of each action instance, by index."""
    witnesses: list[tuple[int, int, int | None, str]] = []
    """(property index, depth, index of the closing action or None, key as a hexadecimal number)."""


@define
class Checkpoint:
    """The directory of a search.

    Invariant: every level in the state's `levels` is complete, and no other level is used.
    """

    path: Path
    state: _State = field(init=False)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory until the block ends; raises `CheckpointError` if another search uses it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK_FILE).open("w")
        except OSError as error:
            raise self.unusable(error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointError(
                    f"{self.path} is in use by another process; wait for it, or use another --checkpoint"
                ) from error
            yield

    def unusable(self, error: OSError) -> CheckpointError:
        """The error for a directory that cannot be read or written."""
        return CheckpointError(f"cannot use {self.path}: {error.strerror}; fix this, or use another --checkpoint")

    def open(self, law: str, first: Words, actions: int, shares: int) -> None:
        """Resume the search in the directory, or begin a new search.

        A new search has `shares` shards and the mixed states `first` as level 0; a resumed search keeps its number of
        shards. Raises `CheckpointError` if the directory belongs to another search.
        """
        file = self.path / STATE_FILE
        try:
            if file.exists():
                self.state = self._read(file, law)
                return
            if any(file.name != LOCK_FILE for file in self.path.iterdir()):
                raise CheckpointError(f"{self.path} has files but no search; use an empty directory for --checkpoint")
            write_cut(self.empty(self.level(0)), first, shares)
        except OSError as error:
            raise self.unusable(error) from error
        self.state = _State(law=law, shares=shares, levels=[first.shape[1]], fired=[0] * actions)
        self.save()

    def _read(self, file: Path, law: str) -> _State:
        try:
            state = msgspec.json.decode(file.read_bytes(), type=_State)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CheckpointError(f"{file} is damaged: {error}; use an empty directory for --checkpoint") from error
        if state.format_version != FORMAT:
            raise CheckpointError(
                f"{self.path} contains a search of another version of longpoll; use another --checkpoint"
            )
        if state.law != law:
            raise CheckpointError(
                f"{self.path} contains a search of another model, bounds or properties; use another --checkpoint"
            )
        missing = [depth for depth, states in enumerate(state.levels) if self._count(depth) != states]
        if missing:
            raise CheckpointError(f"{self.level(missing[0])} is incomplete; use an empty directory for --checkpoint")
        return state

    def save(self) -> None:
        """Write the state atomically: a reader sees the old file or the new one."""
        fresh = self.path / f"{STATE_FILE}.new"
        fresh.write_bytes(msgspec.json.encode(self.state))
        fresh.replace(self.path / STATE_FILE)

    def level(self, depth: int) -> Path:
        """The directory of the level at this depth."""
        return level_in(self.path, depth)

    @property
    def made(self) -> Path:
        """The directory for the successors that the current step computes."""
        return self.path / MADE

    @property
    def answers(self) -> Path:
        """The directory for the answers of the tasks of the current step."""
        return self.path / ANSWERS

    def empty(self, directory: Path) -> Path:
        """Delete the contents of a directory, or create it; returns the directory."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory

    def _count(self, depth: int) -> int:
        try:
            return count(runs_in(self.level(depth)))
        except ValueError:
            return -1

    @property
    def is_complete(self) -> bool:
        """Whether the last level has no new successors."""
        return self.state.expanded == len(self.state.levels)

    def ledger_into(self, ledger: Ledger) -> None:
        """Note the witnesses of the checkpoint in the ledger."""
        for item, depth, closing, key in self.state.witnesses:
            ledger.note(item, Witness(int(key, 16), depth, closing))

    def expanded(self, told: Sequence[Told], ledger: Ledger) -> None:
        """Record that the last level is expanded: the results of all shards, and the new level if it has states."""
        depth = self.state.expanded
        for each in told:
            self.state.fired = [before + more for before, more in zip(self.state.fired, each.fired, strict=True)]
            for item, closing, key in each.found:
                ledger.note(item, Witness(int(key, 16), depth, closing))
        self.state.witnesses = [
            (item, each.depth, each.closing, f"{each.state:x}") for item, each in ledger.witnesses.items()
        ]
        coming = self._count(depth + 1)
        if coming:
            self.state.levels.append(coming)
        self.state.expanded += 1
        self.save()
