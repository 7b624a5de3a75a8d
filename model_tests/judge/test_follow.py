"""A history that is still written is judged as far as it is whole, and at the end as if it had been complete."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longpoll_judge.contract.result import ANSWER_IS_RIGHT, Result
from longpoll_judge.read import growth as growth_module
from longpoll_judge.read.damage import Damage
from longpoll_judge.read.growth import Growth, whole_end
from longpoll_judge.read.ndjson import read_range
from longpoll_judge.read.source import SLICE_BYTES, Slice, read_slice
from longpoll_judge.run import local, spill
from longpoll_judge.run.follow import follow
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import Load, simulate, simulated_meta
from longpoll_spec.history import META_FILE, Event

if TYPE_CHECKING:
    from longpoll_judge.run.spark.engine import SparkEngine

PATIENCE_S = 240.0
ENCODE = msgspec.json.Encoder().encode
Grow = Callable[[bytes], None]


def faulty_events() -> list[Event]:
    """A simulated history in whose first half one answer says a wrong next offset."""
    events = list(simulate(Load(events=1_200, timeout_ms=60)))
    at = next(n for n, event in enumerate(events) if n > 300 and event.event == "answer_sent")
    return [
        *events[:at],
        msgspec.structs.replace(events[at], offset_next=events[at].offset_next + 9),
        *events[at + 1 :],
    ]


def lines_of(events: list[Event]) -> bytes:
    """As a recorder writes them."""
    return b"".join(ENCODE(event) + b"\n" for event in events)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[Path, Grow]]:
    """A history with nothing in it yet, and what adds bytes to its only part."""
    directory = tmp_path / "history"
    directory.mkdir()
    (directory / META_FILE).write_bytes(ENCODE(simulated_meta()))
    with (directory / "part-0.ndjson").open("ab", buffering=0) as file:

        def grow(content: bytes) -> None:
            file.write(content)

        yield directory, grow


def followed(directory: Path, actions: list[Callable[[], None]]) -> tuple[Result, list[Result]]:
    """Follow without Spark, while each wait does one of the actions; the last result, and all that were told."""
    told: list[Result] = []
    rest = iter(actions)

    def stops(_seconds: float) -> bool:
        act = next(rest, None)
        if act is not None:
            act()
        return act is None

    paths = [directory]
    last = follow(paths, engine="local", master=None, wake_ms=100, late_ms=50, tell=told.append, stops=stops)
    return last, told


def test_a_finding_is_told_before_the_history_is_complete(growing: tuple[Path, Grow]) -> None:
    """Whatever is torn while it grows is no damage; the last verdict is that of the complete history."""
    directory, grow = growing
    content = lines_of(faulty_events())
    half = len(content) // 2
    cuts = [content[:100], content[100:half], content[half : half + 31], content[half + 31 :]]
    last, told = followed(directory, [lambda piece=piece: grow(piece) for piece in cuts])  # type: ignore[misc]
    whole = judge([directory], engine="local")

    assert (last.events, last.verdict, last.findings) == (whole.events, "invalid", whole.findings)
    found = [[finding.property for finding in result.findings if finding.verdict == "violated"] for result in told]
    assert found[0] == []
    assert found[2] == [ANSWER_IS_RIGHT]
    assert told[2].events < whole.events
    assert not any(gap["kind"] == "damage" for result in told for gap in result.gaps)


def test_nothing_new_is_not_judged_again(growing: tuple[Path, Grow]) -> None:
    """While nothing is written nothing is told, and the end does not judge a second time."""
    directory, grow = growing
    grow(lines_of(faulty_events()[:50]))
    last, told = followed(directory, [lambda: None, lambda: None])

    assert len(told) == 1
    assert last is told[0]


def test_every_cut_ends_with_a_whole_line(growing: tuple[Path, Grow]) -> None:
    """However far a line has been written, the events before it are read, and nothing of it."""
    directory, grow = growing
    part = directory / "part-0.ndjson"
    lines = lines_of(faulty_events()[:3]).splitlines(keepends=True)
    grow(lines[0])
    for byte in lines[1][:-1]:
        grow(bytes([byte]))
        assert whole_end(part) == len(lines[0])
    grow(lines[1][-1:] + b"x" * (3 * growth_module.BLOCK_BYTES))
    (only,) = Growth([directory]).look().slices

    assert whole_end(part) == only.end == len(lines[0] + lines[1])
    assert len(read_slice(only)[0]) == 2


def test_planted_a_cut_at_the_end_of_the_file_is_noticed(
    growing: tuple[Path, Grow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the line that is being written were taken too, it would be named as damage."""
    directory, grow = growing
    monkeypatch.setattr(growth_module, "whole_end", lambda part: Path(part).stat().st_size)
    content = lines_of(faulty_events())
    last, _told = followed(directory, [lambda: grow(content[:1_000]), lambda: grow(content[1_000:1_050])])

    assert "damage" in {gap["kind"] for gap in last.gaps}


def test_a_part_counts_once_it_is_whole(growing: tuple[Path, Grow]) -> None:
    """Parquet has its table of contents at its end: until that is there it is neither read nor damage, then it is read.

    What tells of no end counts once it has stopped growing.
    """
    directory, _grow = growing
    content = lines_of(faulty_events()[:100])
    table, _damages = read_range(str(_written(directory, content)), 0, len(content))
    pq.write_table(table, directory / "whole")
    parquet = (directory / "whole").read_bytes()
    part, packed = directory / "part-1.parquet", directory / "part-2.ndjson.zst"
    growth = Growth([directory])
    part.write_bytes(parquet[:500])
    packed.write_bytes(pa.compress(content, "zstd", asbytes=True))
    torn = growth.look()
    part.write_bytes(parquet)
    packed.write_bytes(pa.compress(content + content, "zstd", asbytes=True))
    whole = growth.look()

    assert (torn.slices, torn.damages) == ([], [])
    assert ([each.path for each in whole.slices], whole.damages) == ([str(part)], [])
    assert [each.path for each in growth.look().slices] == [str(part), str(packed)]


def _written(directory: Path, content: bytes) -> Path:
    file = directory / "lines"
    file.write_bytes(content)
    return file


@pytest.mark.long
def test_ctrl_c_ends_with_the_verdict_so_far(growing: tuple[Path, Grow]) -> None:
    """The command tells of a finding while it follows; interrupted it prints the verdict, and exits with its code."""
    directory, grow = growing
    command = [sys.executable, "-m", "longpoll", "judge", str(directory), "--engine", "local", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr is not None
        content = lines_of(faulty_events())
        grow(content[: len(content) // 2])
        said = read_until(running.stderr.fileno(), b"pull.next.visible")
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=PATIENCE_S)

    assert running.returncode == 1
    assert json.loads(stdout)["verdict"] == "invalid"
    assert b"Traceback" not in said + stderr


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What comes from a descriptor, up to and with what is wanted; fails if that does not come."""
    deadline_s, said = time.monotonic() + PATIENCE_S, b""
    while wanted not in said:
        ready, _, _ = select.select([descriptor], [], [], max(deadline_s - time.monotonic(), 0))
        assert ready, f"it never said {wanted!r}: {said!r}"
        said += os.read(descriptor, 4096)
    return said


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_stream_of_spark_has_each_event_once(
    growing: tuple[Path, Grow], tmp_path: Path, spark_engine: SparkEngine
) -> None:
    """After its line is whole."""
    from longpoll_judge.read.data_sources import register  # noqa: PLC0415 - a run without Spark does not pay for it
    from longpoll_judge.run.spark.session import unclosed_sockets_ignored  # noqa: PLC0415 - the same

    directory, grow = growing
    lines = lines_of(faulty_events()[:40]).splitlines(keepends=True)
    session = spark_engine.session
    register(session)
    with unclosed_sockets_ignored():
        grow(b"".join(lines[:10]) + lines[10][:20])
        rows = session.readStream.format("longpoll-history").load(str(directory))
        query = rows.writeStream.format("memory").queryName("seen").trigger(processingTime="200 milliseconds")
        running = query.option("checkpointLocation", str(tmp_path / "kept")).start()
        running.processAllAvailable()
        assert session.table("seen").count() == 10
        grow(lines[10][20:] + b"".join(lines[11:]))
        running.processAllAvailable()
        seen = [row.sequence for row in session.table("seen").select("sequence").collect()]
        running.stop()

    assert sorted(seen) == list(range(40))


def test_slices_of_a_long_part_are_cut_too(growing: tuple[Path, Grow], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part with many slices the one that is being written ends early, and those before it are as ever."""
    directory, grow = growing
    monkeypatch.setattr("longpoll_judge.read.source.SLICE_BYTES", 1_000)
    content = lines_of(faulty_events()[:30])
    grow(content[:-5])
    slices = Growth([directory]).look().slices
    events = [row for each in slices for row in read_slice(each)[0].to_pylist()]

    assert len(content) < SLICE_BYTES
    assert len(slices) > 3
    assert [event["sequence"] for event in events] == list(range(29))


def reads_of(directory: Path, grow: Grow, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, Counter[tuple[int, int]]]:
    """Follow a history that grows eight times; the last result, and how often each slice was read."""
    content = lines_of(faulty_events())
    monkeypatch.setattr("longpoll_judge.read.source.SLICE_BYTES", len(content) // 20)
    reads: Counter[tuple[int, int]] = Counter()

    def counted(part: Slice, columns: Sequence[str] | None = None) -> tuple[pa.Table, list[Damage]]:
        reads[part.start, part.end] += 1
        return read_slice(part, columns)

    monkeypatch.setattr(local, "read_slice", counted)
    size = len(content) // 8 + 1
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    last, told = followed(directory, [lambda piece=piece: grow(piece) for piece in pieces])  # type: ignore[misc]
    assert len(told) == 1 + len(pieces)
    return last, reads


def test_what_is_whole_is_read_once(growing: tuple[Path, Grow], monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a growing history is judged, only its end is read again; the verdict is that of all of it."""
    directory, grow = growing
    last, reads = reads_of(directory, grow, monkeypatch)
    whole = judge([directory], engine="local")

    assert (last.events, last.findings, last.gaps) == (whole.events, whole.findings, whole.gaps)
    assert len(reads) > 20
    assert max(reads.values()) == 1 + 1  # the second time by the whole judgement that it is compared with
