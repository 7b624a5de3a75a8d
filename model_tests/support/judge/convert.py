"""Writes a history in another format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
from model_tests.support.judge.parquet_parts import write_part

from longpoll_judge.read.schema import event_dict
from longpoll_judge.read.source import find, read_split
from longpoll_spec.history import META_FILE, NDJSON_SUFFIX, PARQUET_SUFFIX


def convert(history: Path, target: Path, *, into: Literal["parquet", "ndjson"]) -> int:
    """Write an undamaged history into the directory `target` as one Parquet or NDJSON file; returns the event count."""
    found = find([history])
    assert found.damages == []
    target.mkdir(parents=True, exist_ok=True)
    (target / META_FILE).write_bytes((history / META_FILE).read_bytes())
    count = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal count
        for part in found.splits:
            table, damages = read_split(msgspec.structs.replace(part, rename={}, clocks={}))
            assert damages == []
            count += len(table)
            yield table

    if into == "parquet":
        write_part(target / f"part-000000{PARQUET_SUFFIX}", tables())
    else:
        encoder = msgspec.json.Encoder()
        with (target / f"part-000000{NDJSON_SUFFIX}").open("wb") as file:
            for table in tables():
                file.write(encoder.encode_lines(map(event_dict, table.to_pylist())))
    return count
