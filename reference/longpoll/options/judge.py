"""The options of `longpoll judge`: the engine for `--engine auto`, and where the findings of a followed history go.

`auto` takes this process for a short history, and Spark for a long or remote history. The number of events is
estimated: Parquet parts contain their number of rows, and the first lines of NDJSON parts give the length of a line.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
from attrs import frozen

from longpoll import extras
from longpoll.options.values import FilledPath
from longpoll.views.follow import Places
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
"""The assumed bytes per line if no part shows the real length."""
SPARK_VARIABLES: Final = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")
"""Environment variables that name a Spark server: the server of Spark Connect, or the gateway of spark-submit."""


@frozen
class Choice:
    """The chosen engine, and the reason for the choice in words."""

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
    """Estimate the number of events of a history. An unreadable part counts as empty, because the judge reports it."""
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
    """Return the mean length of the first lines in bytes; 0 if there is no whole line."""
    try:
        with files.open_file(path) as file:
            sample = file.read(SAMPLE_BYTES)
    except OSError:
        return 0.0
    count = sample.count(b"\n")
    return (sample.rfind(b"\n") + 1) / count if count else 0.0


PORT_MAX: Final = 65_535


def following_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `--follow` to a command, which gets them as one `places`."""

    @click.option(
        "--findings",
        type=FilledPath(dir_okay=False),
        metavar="FILE",
        help="--follow: append each finding to this file as a line of JSON, once, when it is final.",
    )
    @click.option(
        "--checkpoint",
        type=FilledPath(file_okay=False),
        metavar="DIR",
        help="--follow on Spark: the directory of the query's checkpoint, from which a restart continues.",
    )
    @click.option(
        "--metrics-port",
        type=click.IntRange(0, PORT_MAX),
        metavar="PORT",
        help="--follow: serve Prometheus metrics on this port of 127.0.0.1; 0 picks a free port.",
    )
    @wraps(command)
    def wrapped(
        *args: Any,
        findings: Path | None,
        metrics_port: int | None,
        **options: Any,
    ) -> None:
        command(*args, places=Places(findings, metrics_port), **options)

    return wrapped
