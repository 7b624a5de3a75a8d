"""A history that still grows or changes is judged as far as it is complete, and at the end as a whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.judge.convert import convert
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.histories import lines_of, on_spark, read_until
from model_tests.support.judge.recording import write
from msgspec.structs import replace

from longpoll_judge.contract.result import ANSWER_IS_RIGHT, Result
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.read import growing_history as growth_module
from longpoll_judge.read.growing_history import GrowingHistory, whole_end
from longpoll_judge.read.ndjson import read_range
from longpoll_judge.read.schema import parquet
from longpoll_judge.read.source import SPLIT_BYTES, read_split
from longpoll_judge.run.follow import TRIES, follow
from longpoll_judge.run.local import LocalReading
from longpoll_judge.run.pipeline import EngineName, judge
from longpoll_spec.history import META_FILE, Event

if TYPE_CHECKING:
    from longpoll_judge.run.spark.engine import SparkEngine

Grow = Callable[[bytes], None]


def faulty_events() -> list[Event]:
    events = list(simulate(Load(events=700, timeout_ms=60)))
    at = next(n for n, event in enumerate(events) if n > 200 and event.event == "answer_sent")
    events[at] = replace(events[at], offset_next=events[at].offset_next + 9)
    return events


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[Path, Grow]]:
    directory = tmp_path / "history"
    directory.mkdir()
    (directory / META_FILE).write_bytes(msgspec.json.encode(simulated_meta()))
    with (directory / "part-0.ndjson").open("ab", buffering=0) as file:

        def grow(content: bytes) -> None:
            file.write(content)

        yield directory, grow


def followed(directory: Path, actions: list[Callable[[], None]]) -> tuple[Result, list[Result]]:
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


def test_a_finding_is_reported_before_the_history_is_complete(growing: tuple[Path, Grow]) -> None:
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
    directory, grow = growing
    grow(lines_of(faulty_events()[:50]))
    last, told = followed(directory, [lambda: None, lambda: None])

    assert len(told) == 1
    assert last is told[0]


def test_a_growing_part_is_read_up_to_its_last_newline(growing: tuple[Path, Grow]) -> None:
    directory, grow = growing
    part = directory / "part-0.ndjson"
    lines = lines_of(faulty_events()[:3]).splitlines(keepends=True)
    grow(lines[0])
    for byte in lines[1][:-1]:
        grow(bytes([byte]))
        assert whole_end(part) == len(lines[0])
    grow(lines[1][-1:] + b"x" * (3 * growth_module.BLOCK_BYTES))
    (only,) = GrowingHistory([directory]).look().splits

    assert whole_end(part) == only.end == len(lines[0] + lines[1])
    assert len(read_split(only)[0]) == 2


def test_a_part_counts_once_it_is_complete(growing: tuple[Path, Grow]) -> None:
    """A Parquet file is complete when its index at the end is written, and a compressed file when it stops growing."""
    directory, _grow = growing
    content = lines_of(faulty_events()[:100])
    (directory / "lines").write_bytes(content)
    parquet.write_table(read_range(str(directory / "lines"), 0, len(content))[0], directory / "whole")
    columns = (directory / "whole").read_bytes()
    part, packed = directory / "part-1.parquet", directory / "part-2.ndjson.zst"
    growth = GrowingHistory([directory])
    part.write_bytes(columns[:500])
    packed.write_bytes(pa.compress(content, "zstd", asbytes=True))
    torn = growth.look()
    part.write_bytes(columns)
    packed.write_bytes(pa.compress(content + content, "zstd", asbytes=True))
    whole = growth.look()

    assert (torn.splits, torn.damages) == ([], [])
    assert ([each.path for each in whole.splits], whole.damages) == ([str(part)], [])
    assert [each.path for each in growth.look().splits] == [str(part), str(packed)]


@pytest.mark.long
def test_ctrl_c_ends_with_the_verdict_so_far(growing: tuple[Path, Grow]) -> None:
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


@pytest.mark.long
@on_spark
def test_a_stream_of_spark_has_each_event_once(
    growing: tuple[Path, Grow], tmp_path: Path, spark_engine: SparkEngine
) -> None:
    from longpoll_judge.read.data_sources import register  # noqa: PLC0415 - a run without Spark does not pay for it

    directory, grow = growing
    lines = lines_of(faulty_events()[:40]).splitlines(keepends=True)
    session = spark_engine.session
    register(session)
    grow(b"".join(lines[:10]) + lines[10][:20])
    rows = session.readStream.format("longpoll").load(str(directory))
    query = rows.writeStream.format("memory").queryName("seen").trigger(processingTime="200 milliseconds")
    running = query.option("checkpointLocation", str(tmp_path / "kept")).start()
    running.processAllAvailable()
    assert session.table("seen").count() == 10
    grow(lines[10][20:] + b"".join(lines[11:]))
    running.processAllAvailable()
    seen = [row.sequence for row in session.table("seen").select("sequence").collect()]
    running.stop()

    assert sorted(seen) == list(range(40))


def test_splits_of_a_long_part_are_cut_too(growing: tuple[Path, Grow], monkeypatch: pytest.MonkeyPatch) -> None:
    directory, grow = growing
    monkeypatch.setattr("longpoll_judge.read.source.SPLIT_BYTES", 1_000)
    content = lines_of(faulty_events()[:30])
    grow(content[:-5])
    splits = GrowingHistory([directory]).look().splits
    events = [row for each in splits for row in read_split(each)[0].to_pylist()]

    assert len(content) < SPLIT_BYTES
    assert len(splits) > 3
    assert [event["sequence"] for event in events] == list(range(29))


# -- parts that change while they are judged ---------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write(tmp_path / "lines", simulate(Load(events=240, timeout_ms=60)), simulated_meta(), events_per_part=80)
    for number, part in enumerate(sorted((tmp_path / "lines").glob("part-*"))):
        one, more = tmp_path / f"one-{number}", tmp_path / ("history" if not number else f"more-{number}")
        one.mkdir()
        (one / META_FILE).write_bytes((tmp_path / "lines" / META_FILE).read_bytes())
        part.rename(one / part.name)
        convert(one, more, into="parquet")
        if number:
            next(more.glob("part-*")).rename(tmp_path / "history" / f"part-{number:06}.parquet")
    return sorted((tmp_path / "history").glob("part-*"))


def change_once_looked_over(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change the history after the judge has read all splits once to survey them, and before it judges them."""
    surveys = LocalReading.surveys

    def looked_over(self: LocalReading) -> Iterator[object]:
        yield from surveys(self)
        # A history of more than one window keeps no events from its survey.
        self._kept.clear()
        change()

    monkeypatch.setattr(LocalReading, "surveys", looked_over)


def of_the_same_moments(part: Path) -> None:
    """Replace a file by one that has equally many events at the same times but other log offsets."""
    table = parquet.read_table(part)
    at = table.schema.get_field_index("queue_offset")
    offsets = table["queue_offset"].to_numpy().copy()
    offsets[offsets >= 0] += 7
    field = table.schema.field(at)
    parquet.write_table(table.set_column(at, field, pa.array(offsets, pa.int64())), part)


CHANGES: dict[str, Callable[[list[Path]], object]] = {
    "gone": lambda parts: parts[1].unlink(),
    "other": lambda parts: parts[1].write_bytes(parts[2].read_bytes()),
    "alike": lambda parts: of_the_same_moments(parts[1]),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_part_that_changes_during_the_judgement_is_an_error(
    how: str, parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vanished file is an error, because the pulls whose answers were in the file would seem unanswered."""
    assert judge([parts[0].parent], engine="local").verdict == "valid"
    change_once_looked_over(monkeypatch, lambda: CHANGES[how](parts))
    with pytest.raises(HistoryChangedError, match=r"part-000001\.parquet changed during the judgement; judge again"):
        judge([parts[0].parent], engine="local")


@pytest.mark.long
@on_spark
def test_a_follower_on_spark_judges_a_changed_part_again(
    parts: list[Path], spark_engine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark worker finds a file that changed after the survey. The follower reports it and judges again."""
    from longpoll_judge.run.spark.engine import SparkReading  # noqa: PLC0415 - a run without Spark does not pay for it

    changes = iter([lambda: of_the_same_moments(parts[1])])
    surveys = SparkReading.surveys

    def looked_over(self: SparkReading) -> Iterator[object]:
        yield from surveys(self)
        next(changes, lambda: None)()

    monkeypatch.setattr(SparkReading, "surveys", looked_over)
    told: list[Result] = []
    how: dict[str, Any] = {"engine": "spark", "master": None, "wake_ms": 100, "late_ms": 50}
    last = follow([parts[0].parent], tell=told.append, stops=lambda _seconds: True, **how)
    whole = judge([parts[0].parent], engine="local")

    assert [one.verdict for one in told] == ["invalid"]
    assert (last.findings, last.gaps) == (whole.findings, whole.gaps)
    changes = iter([lambda: of_the_same_moments(parts[1])])
    with pytest.raises(HistoryChangedError, match=r"part-000001\.parquet changed during the judgement; judge again"):
        judge([parts[0].parent], engine="spark")


def overwritten(part: Path, content: bytes) -> None:
    """Overwrite a part and move its timestamp forward, because the file system's clock may not advance for some ms."""
    seen = part.stat()
    part.write_bytes(content)
    os.utime(part, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1_000_000))


def moved_there(part: Path, content: bytes) -> None:
    """Replace the part by another file that has the same timestamp."""
    other, seen = part.with_name("other"), part.stat()
    other.write_bytes(content)
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    other.replace(part)


REPLACED = pytest.mark.parametrize("replaced", [overwritten, moved_there])


@REPLACED
def test_a_replaced_part_of_equal_size_is_noticed(replaced: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    """The modification time or the inode shows the change; unchanged parts are not read again."""
    write(tmp_path, simulate(Load(events=300, timeout_ms=60)), simulated_meta(), events_per_part=100)
    part = sorted(tmp_path.glob("part-*"))[1]
    content = part.read_bytes()
    growth = GrowingHistory([tmp_path])
    growth.look()
    assert not growth.has_grown()
    replaced(part, content.replace(b"\n", b" ")[:-1] + b"\n")

    assert growth.has_grown()
    assert [each.end for each in growth.look().splits if each.path == str(part)] == [len(content)]
    assert not growth.has_grown()
    replaced(part, content.replace(b"\n", b" "))
    assert str(part) not in {each.path for each in growth.look().splits}


@REPLACED
@pytest.mark.parametrize("kind", ["lines", "history"])
def test_a_part_that_is_rewritten_is_counted(
    replaced: Callable[[Path, bytes], None], kind: str, parts: list[Path], tmp_path: Path
) -> None:
    if kind == "lines":
        write(tmp_path / "lines", simulate(Load(events=240, timeout_ms=60)), simulated_meta())
    part = next(iter(sorted((tmp_path / kind).glob("part-*"))))
    content = part.read_bytes()
    growth = GrowingHistory([part.parent])
    growth.look()
    found = []
    for place in (0, (len(content) - 4_096) // 3, len(content) - 2):
        replaced(part, content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        growth.look()
        found.append(growth.rewritten)
        replaced(part, content)
        growth.look()
        before = growth.rewritten
        replaced(part, content)
        growth.look()
        assert growth.rewritten == before

    assert found == [1, 3, 5]


def test_a_follower_starts_again_after_a_rewrite(growing: tuple[Path, Grow]) -> None:
    """After a part was rewritten the follower starts again, so each event is read once."""
    _begins_again("local", *growing)


@pytest.mark.long
@on_spark
def test_a_follower_on_spark_starts_again_after_a_rewrite(growing: tuple[Path, Grow], spark_engine: object) -> None:
    assert spark_engine is not None
    _begins_again("spark", *growing)


def _begins_again(engine: EngineName, directory: Path, grow: Grow) -> None:
    part, content = directory / "part-0.ndjson", lines_of(list(simulate(Load(events=700, timeout_ms=60))))
    half, told, last_s = content.index(b"\n", len(content) // 2) + 1, list[Result](), [time.monotonic()]
    grow(content[:half])
    changed = content[:half].replace(b"{", b" {")

    def tell(result: Result) -> None:
        told.append(result)
        last_s[0] = time.monotonic()

    def stops(seconds: float) -> bool:
        assert time.monotonic() < last_s[0] + PATIENCE_S, "the follower returned nothing"
        is_told = len(told) > 1 and told[-1].events == part.read_bytes().count(b"\n")
        if is_told and part.stat().st_size == half:
            overwritten(part, changed + content[half : content.index(b"\n", half) + 1])
        elif not is_told:
            threading.Event().wait(seconds)
        return is_told and part.stat().st_size > len(changed) and told[-1].events > content[:half].count(b"\n")

    how: dict[str, Any] = {"master": None, "wake_ms": 100, "late_ms": 50, "whole_events": 0}
    last = follow([directory], engine=engine, tell=tell, stops=stops, **how)

    assert [result.findings for result in told if result.findings] == []
    assert (told[-1].events, told[-1].queues) == (last.events, last.queues)
    assert {gap["kind"] for gap in told[-1].gaps} == {gap["kind"] for gap in last.gaps}


@pytest.mark.parametrize("times", [TRIES - 1, TRIES])
def test_a_follower_judges_a_changed_part_again(times: int, parts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [part.read_bytes() for part in parts[1:]]
    left = iter(range(times))

    def change() -> None:
        if (number := next(left, None)) is not None:
            parts[1].write_bytes(contents[1 - number % 2])

    change_once_looked_over(monkeypatch, change)
    if times == TRIES:
        with pytest.raises(HistoryChangedError):
            followed(parts[0].parent, [])
        return
    last, told = followed(parts[0].parent, [])
    assert len(told) == 1
    monkeypatch.undo()
    assert last.findings == judge([parts[0].parent], engine="local").findings


def test_a_part_that_is_replaced_is_read_again(growing: tuple[Path, Grow], monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced file is read again, even if its splits have the same positions as the splits of the old file."""
    directory, grow = growing
    before, other = lines_of(faulty_events()), lines_of(list(simulate(Load(events=800, timeout_ms=60, seed=5))))
    monkeypatch.setattr("longpoll_judge.read.source.SPLIT_BYTES", len(before) // 20)
    part = directory / "part-0.ndjson"

    def replace() -> None:
        part.write_bytes(other)

    last, told = followed(directory, [lambda: grow(before), replace])
    whole = judge([directory], engine="local")

    assert [result.verdict for result in told[1:]] == ["invalid", "valid"]
    assert (last.events, last.findings, last.gaps) == (whole.events, whole.findings, whole.gaps)


def test_a_part_deleted_after_the_listing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, simulate(Load(events=300, timeout_ms=60)), simulated_meta(), events_per_part=100)
    gone = sorted(tmp_path.glob("part-*"))[1]
    content = gone.read_bytes()

    def vanishing(part: Path | str) -> int:
        if Path(part) == gone:
            gone.unlink(missing_ok=True)
        return whole_end(part)

    growth = GrowingHistory([tmp_path])
    with monkeypatch.context() as patched:
        patched.setattr(growth_module, "whole_end", vanishing)
        assert gone.name not in {Path(each.path).name for each in growth.look().splits}
    assert not growth.has_grown()
    gone.write_bytes(content)

    assert growth.has_grown()
    assert (str(gone), len(content)) in {(each.path, each.end) for each in growth.look().splits}


def test_a_part_that_cannot_be_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, simulate(Load(events=300, timeout_ms=60)), simulated_meta(), events_per_part=100)
    closed = sorted(tmp_path.glob("part-*"))[1]

    def refusing(part: Path | str) -> int:
        if Path(part) == closed:
            raise PermissionError(13, "Permission denied")
        return whole_end(part)

    monkeypatch.setattr(growth_module, "whole_end", refusing)
    assert str(closed) in {each.path for each in GrowingHistory([tmp_path]).look().splits}
