"""A history whose parts are replaced or vanish while it is judged: nobody is convicted by what is not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from model_tests.judge.test_follow import faulty_events, followed, growing, lines_of  # noqa: F401 - a fixture

from longpoll_judge.contract.result import Result
from longpoll_judge.errors import HistoryChangedError
from longpoll_judge.read import growth as growth_module
from longpoll_judge.read.arrow import parquet
from longpoll_judge.read.convert import convert
from longpoll_judge.read.growth import Growth, whole_end
from longpoll_judge.run.follow import TRIES, Parts, follow
from longpoll_judge.run.job import judge
from longpoll_judge.run.local import LocalReading
from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Those of a valid history of Parquet, in order."""
    write(tmp_path / "lines", simulate(Load(events=240, timeout_ms=60)), simulated_meta(), events_per_part=80)
    for number, part in enumerate(sorted((tmp_path / "lines").glob("part-*"))):
        one = tmp_path / f"one-{number}"
        one.mkdir()
        (one / "meta.json").write_bytes((tmp_path / "lines" / "meta.json").read_bytes())
        part.rename(one / part.name)
        convert(one, tmp_path / "history" if not number else tmp_path / f"more-{number}", into="parquet", say=_silent)
    for number, more in enumerate(sorted(tmp_path.glob("more-*"))):
        next(more.glob("part-*")).rename(tmp_path / "history" / f"part-{number + 1:06}.parquet")
    return sorted((tmp_path / "history").glob("part-*"))


def _silent(_done: int, _whole: int) -> None:
    """Say nothing."""


def change_once_looked_over(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have something change between the look at all slices and the judgement of what is in them."""
    surveys = LocalReading.surveys

    def looked_over(self: LocalReading) -> Iterator[object]:
        yield from surveys(self)
        change()

    monkeypatch.setattr(LocalReading, "surveys", looked_over)


def of_the_same_moments(part: Path) -> None:
    """Put as many events of the same moments in the place of a part's own: its log lies elsewhere."""
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
def test_what_changes_while_it_is_judged_convicts_nobody(
    how: str, parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a part the pulls whose answers it has would look as if they were never answered."""
    assert judge([parts[0].parent], engine="local").verdict == "valid"
    change_once_looked_over(monkeypatch, lambda: CHANGES[how](parts))
    with pytest.raises(HistoryChangedError, match=r"part-000001\.parquet changed during the judgement; judge again"):
        judge([parts[0].parent], engine="local")


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_who_follows_on_spark_judges_again(
    parts: list[Path],
    spark_engine: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker finds another part than was looked over: it is told as without Spark, and judged again."""
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
    """Write over a part; a file system's clock may stand still for some milliseconds."""
    seen = part.stat()
    part.write_bytes(content)
    os.utime(part, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1_000_000))


def moved_there(part: Path, content: bytes) -> None:
    """Move another file, as old as the part is, into its place."""
    other, seen = part.with_name("other"), part.stat()
    other.write_bytes(content)
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    other.replace(part)


REPLACED = pytest.mark.parametrize("replaced", [overwritten, moved_there])


@REPLACED
def test_a_part_of_the_same_size_is_another_one(replaced: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    """Its time tells, or which file it is; what is as it was is not read again."""
    write(tmp_path, simulate(Load(events=300, timeout_ms=60)), simulated_meta(), events_per_part=100)
    part = sorted(tmp_path.glob("part-*"))[1]
    content = part.read_bytes()
    growth = Growth([tmp_path])
    growth.look()
    assert not growth.has_grown()
    replaced(part, content.replace(b"\n", b" ")[:-1] + b"\n")

    assert growth.has_grown()
    assert [each.end for each in growth.look().slices if each.path == str(part)] == [len(content)]
    assert not growth.has_grown()
    replaced(part, content.replace(b"\n", b" "))
    assert str(part) not in {each.path for each in growth.look().slices}


@REPLACED
@pytest.mark.parametrize("kind", ["lines", "history"])
def test_who_has_read_a_part_says_that_another_of_its_size_is_there(
    replaced: Callable[[Path, bytes], None], kind: str, parts: list[Path], tmp_path: Path
) -> None:
    """Wherever in it the difference lies that its places show; one that was only touched is still the same."""
    if kind == "lines":
        write(tmp_path / "lines", simulate(Load(events=240, timeout_ms=60)), simulated_meta())
    part = next(iter(sorted((tmp_path / kind).glob("part-*"))))
    content = part.read_bytes()
    growth, known, ends = Growth([part.parent]), Parts(), {str(part): len(content) if kind == "lines" else 1}
    growth.look()
    assert known.are_anew(growth.stamps, ends) == 0
    found = []
    for place in (0, (len(content) - 4_096) // 3, len(content) - 1):
        replaced(part, content)
        growth.look()
        found.append(known.are_anew(growth.stamps, ends))
        replaced(part, content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        growth.look()
        found.append(known.are_anew(growth.stamps, ends))

    assert found == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.long), TRIES - 1, TRIES])
def test_who_follows_judges_again(times: int, parts: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there then; unless parts change all the time."""
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


def test_a_part_that_is_replaced_is_read_again(
    growing: tuple[Path, Callable[[bytes], None]],  # noqa: F811 - a fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its slices lie where those lay that were read before and kept."""
    directory, grow = growing
    before, other = lines_of(faulty_events()), lines_of(list(simulate(Load(events=1_300, timeout_ms=60, seed=5))))
    monkeypatch.setattr("longpoll_judge.read.source.SLICE_BYTES", len(before) // 20)
    part = directory / "part-0.ndjson"

    def replace() -> None:
        part.write_bytes(other)

    last, told = followed(directory, [lambda: grow(before), replace])
    whole = judge([directory], engine="local")

    assert [result.verdict for result in told[1:]] == ["invalid", "valid"]
    assert (last.events, last.findings, last.gaps) == (whole.events, whole.findings, whole.gaps)


def test_a_part_that_vanishes_when_it_was_listed_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And if it comes back with the same size that is noticed, and it is read."""
    write(tmp_path, simulate(Load(events=300, timeout_ms=60)), simulated_meta(), events_per_part=100)
    gone = sorted(tmp_path.glob("part-*"))[1]
    content = gone.read_bytes()

    def vanishing(part: Path | str) -> int:
        if Path(part) == gone:
            gone.unlink(missing_ok=True)
        return whole_end(part)

    growth = Growth([tmp_path])
    with monkeypatch.context() as patched:
        patched.setattr(growth_module, "whole_end", vanishing)
        assert gone.name not in {Path(each.path).name for each in growth.look().slices}
    assert not growth.has_grown()
    gone.write_bytes(content)

    assert growth.has_grown()
    assert (str(gone), len(content)) in {(each.path, each.end) for each in growth.look().slices}


def test_a_part_that_cannot_be_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, and nobody may take the rest for all."""
    write(tmp_path, simulate(Load(events=300, timeout_ms=60)), simulated_meta(), events_per_part=100)
    closed = sorted(tmp_path.glob("part-*"))[1]

    def refusing(part: Path | str) -> int:
        if Path(part) == closed:
            raise PermissionError(13, "Permission denied")
        return whole_end(part)

    monkeypatch.setattr(growth_module, "whole_end", refusing)
    assert str(closed) in {each.path for each in Growth([tmp_path]).look().slices}
