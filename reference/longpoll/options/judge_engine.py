"""Choose the engine for `--engine auto`: this process for a short history, Spark for a long or remote one.

The number of events is estimated: Parquet parts contain their number of rows, and the first lines of NDJSON parts give
the length of a line.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from attrs import frozen

from longpoll import extras
from longpoll_judge.read import files
from longpoll_judge.read.schema import parquet
from longpoll_judge.read.source import kind_of
from longpoll_judge.run.pipeline import EngineName
from longpoll_spec.history import NDJSON_SUFFIX, PARQUET_SUFFIX, PART_FILES

LOCAL_EVENTS_MAX: Final = 10_000_000
"""Up to about this number of events this process is the faster engine on two cores (docs/judge.md)."""
SAMPLE_BYTES: Final = 1 << 16
"""The bytes read from an NDJSON part to estimate the length of a line."""
COMPRESSION: Final = 20
"""The estimated compression ratio of `.ndjson.zst`."""
LINE_BYTES: Final = 400
"""The assumed bytes per line if no part shows it."""
SPARK_VARIABLES: Final = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")
"""Environment variables that name a Spark: a Spark Connect server, or that of spark-submit."""


@frozen
class Choice:
    """An engine, and the reason in words."""

    engine: EngineName
    why: str


def choose(places: Iterable[Path | str], *, master: str | None, conf: Mapping[str, str]) -> Choice:
    """The engine for histories at these places. Raises `HistoryNotFoundError` for a place that cannot be listed."""
    if master is not None or conf:
        return Choice("spark", f"{'--conf' if master is None else '--master'} is set")
    if variable := next(filter(os.environ.get, SPARK_VARIABLES), ""):
        return _spark(f"{variable} is set")
    found = sorted({files.absolute(place) for place in places})
    if any(files.is_uri(place) and not place.startswith("file:") for place in found):
        return _spark("the history is at a URI, which the workers read in place")
    events = sum(map(estimated_events, found))
    if events > LOCAL_EVENTS_MAX:
        return _spark(f"the history has about {events:,} events, more than {LOCAL_EVENTS_MAX:,}")
    return Choice("local", f"the history has about {events:,} events; Spark is used above {LOCAL_EVENTS_MAX:,}")


def _spark(why: str) -> Choice:
    if importlib.util.find_spec("pyspark") is None:
        return Choice("local", f"{why}, but pyspark is not installed: {extras.install('spark')}")
    return Choice("spark", why)


def estimated_events(directory: str) -> int:
    """The estimated number of events of a history; an unreadable part counts as none, because the judge reports it."""
    if not files.is_directory(directory):
        return 0
    line_bytes, rows, size = 0.0, 0, 0
    for part in files.entries(directory, PART_FILES):
        kind = kind_of(part.path)
        if not part.is_file or not kind:
            continue
        if kind == PARQUET_SUFFIX:
            rows += _row_count(part.path)
        elif kind == NDJSON_SUFFIX:
            line_bytes = line_bytes or _line_bytes(part.path)
            size += part.size
        else:
            size += part.size * COMPRESSION
    return rows + round(size / (line_bytes or LINE_BYTES))


def _row_count(path: str) -> int:
    try:
        return int(parquet.read_metadata(files.to_arrow(path)).num_rows)
    except (pa.ArrowInvalid, OSError):
        return 0


def _line_bytes(path: str) -> float:
    """The mean length of the first lines; 0 if there is no whole line."""
    try:
        with files.open_file(path) as file:
            sample = file.read(SAMPLE_BYTES)
    except OSError:
        return 0.0
    count = sample.count(b"\n")
    return (sample.rfind(b"\n") + 1) / count if count else 0.0
