"""Converts a history to another format; its verdict stays the same.

A damaged history is not converted: an unreadable line would become a missing event, which the judge weighs differently.
The formats: `ndjson`, `parquet`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import pyarrow as pa

from longpoll_judge.errors import JudgeUserError
from longpoll_judge.read import files
from longpoll_judge.read.parquet import ROW_GROUP_EVENTS, write_part
from longpoll_judge.read.schema import event_dicts
from longpoll_judge.read.source import InputSplit, find, read_split
from longpoll_spec.history import META_FILE, NDJSON_SUFFIX, PARQUET_SUFFIX

FormatName = Literal["parquet", "ndjson"]
SPLITS_PER_PART: Final = 64
"""Splits of the source in one part that is written."""


class DamagedHistoryError(JudgeUserError):
    """A history that cannot be converted because parts of it cannot be read."""


class TargetExistsError(JudgeUserError):
    """The directory to write to holds something already."""


def convert(history: Path | str, target: Path, *, into: FormatName, say: Callable[[int, int], None]) -> int:
    """Write the history into the directory `target`; returns the number of events.

    `say` hears of splits done and splits in all. Raises `HistoryNotFoundError`, `DamagedHistoryError` and
    `TargetExistsError`; what was written of a damaged history is removed.
    """
    found = find([history])
    _raise_damage([damage.reason for damage in found.damages])
    if target.exists() and any(target.iterdir()):
        raise TargetExistsError(f"{target} is not empty; choose a new directory")
    target.mkdir(parents=True, exist_ok=True)
    (target / META_FILE).write_bytes(files.read(files.beside(files.absolute(history), META_FILE)))
    splits = [msgspec.structs.replace(part, rename={}, clocks={}) for part in found.splits]
    count = 0
    try:
        for number, start in enumerate(range(0, len(splits), SPLITS_PER_PART)):
            some = splits[start : start + SPLITS_PER_PART]
            count += _write(target, number, some, into)
            say(start + len(some), len(splits))
    except DamagedHistoryError:
        shutil.rmtree(target)
        raise
    return count


def _write(target: Path, number: int, splits: Sequence[InputSplit], into: FormatName) -> int:
    counts: list[int] = []

    def tables() -> Iterator[pa.Table]:
        for table in _in_groups(splits):
            counts.append(len(table))
            yield table

    if into == "parquet":
        write_part(target / f"part-{number:06}{PARQUET_SUFFIX}", tables())
    else:
        encoder = msgspec.json.Encoder()
        with (target / f"part-{number:06}{NDJSON_SUFFIX}").open("wb") as file:
            for table in tables():
                file.write(encoder.encode_lines(list(event_dicts(table))))
    return sum(counts)


def _in_groups(splits: Sequence[InputSplit]) -> Iterator[pa.Table]:
    """The events of the splits in tables of about `ROW_GROUP_EVENTS`."""
    waiting: list[pa.Table] = []
    for part in splits:
        table, damages = read_split(part)
        _raise_damage([f"{damage.file}: {damage.reason}" for damage in damages])
        for start in range(0, len(table), ROW_GROUP_EVENTS):
            waiting.append(table.slice(start, ROW_GROUP_EVENTS))
            if sum(map(len, waiting)) >= ROW_GROUP_EVENTS:
                yield pa.concat_tables(waiting)
                waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _raise_damage(reasons: Sequence[str]) -> None:
    if reasons:
        raise DamagedHistoryError(f"the history is damaged ({reasons[0]}); judge it without converting it")
