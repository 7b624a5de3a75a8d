"""Neither the file format nor the division of a large history changes a verdict."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from model_tests.support.judge.convert import convert
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.generate import simulated_meta
from model_tests.support.judge.histories import RECORDINGS, numbered, on_spark, without_time
from model_tests.support.judge.recording import load, write
from model_tests.support.spec.cases import quick_if

from longpoll_judge.errors import HistoryChangedError, HistoryNotFoundError
from longpoll_judge.evidence.survey import Survey, survey_split
from longpoll_judge.read.parquet import read_row_groups
from longpoll_judge.read.schema import (
    DEFAULTS,
    NAMES,
    PLAIN_SCHEMA,
    REQUIRED,
    TELLING,
    compute,
    event_dict,
    fill,
    parquet,
)
from longpoll_judge.read.source import InputSplit, find, read_split
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge, judge_on
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.run.splits import Extent, extent_of, read_again

Engine = LocalEngine | SparkEngine


def said(directory: Path, engine: Engine | None = None) -> bytes:
    chosen = engine or LocalEngine(threads=1)
    result = judge_on(chosen, find([directory]), wake_ms=1, late_ms=0, say=lambda _text: None)
    return msgspec.json.encode(without_time(result))


def nothing(_done: int, _whole: int) -> None:
    """Ignore progress messages."""


@pytest.fixture(scope="module")
def faulty(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = load(clean)
    for name in ("answer_deleted", "wake_delayed", "answer_duplicated", "next_wrong", "wrong_tag", "events_lost"):
        FAULTS[name].apply(recording)
    directory = tmp_path_factory.mktemp("faulty") / "history"
    write(directory, recording.events, recording.meta, events_per_part=900)
    return directory


@pytest.fixture(scope="module")
def in_parquet(faulty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("parquet") / "history"
    convert(faulty, directory, into="parquet")
    return directory


def plainly(table: pa.Table) -> pa.Table:
    filled = fill(table)
    return filled.cast(pa.schema([(name, PLAIN_SCHEMA.field(name).type) for name in filled.column_names]))


def compressed(history: Path, target: Path) -> Path:
    target.mkdir()
    (target / "meta.json").write_bytes((history / "meta.json").read_bytes())
    for part in history.glob("part-*.ndjson"):
        with pa.OSFile(str(target / f"{part.name}.zst"), "wb") as file, pa.CompressedOutputStream(file, "zstd") as out:
            out.write(part.read_bytes())
    return target


def rows(directory: Path) -> list[dict[str, object]]:
    tables = [read_split(part)[0] for part in find([directory]).splits]
    events = [event_dict(row) for table in tables for row in table.to_pylist()]
    return sorted(events, key=lambda event: (event["source"], event["sequence"], event["after_ns"]))


def test_parquet_holds_the_same_events(faulty: Path, in_parquet: Path, tmp_path: Path) -> None:
    convert(in_parquet, tmp_path / "back", into="ndjson")

    assert len(rows(faulty)) > 2_000
    assert rows(faulty) == rows(in_parquet) == rows(tmp_path / "back")


def test_every_file_format_gives_the_same_result(faulty: Path, in_parquet: Path, tmp_path: Path) -> None:
    assert len(msgspec.json.decode(said(faulty))["findings"]) > 100
    assert said(faulty) == said(in_parquet) == said(compressed(faulty, tmp_path / "zst"))


def test_neither_event_order_nor_parts_change_the_result(faulty: Path, tmp_path: Path) -> None:
    recording = load(faulty)
    random.Random(1).shuffle(recording.events)
    write(tmp_path / "shuffled", recording.events, recording.meta, events_per_part=137)

    assert said(tmp_path / "shuffled") == said(faulty)


def test_two_histories_are_judged_as_one(clean: Path, tmp_path: Path) -> None:
    """An inside and an outside record in two directories form one history; each record alone is incomplete."""
    recording = load(clean)
    both = ("source_started", "source_stopped")
    alone = ("append", "make_visible", "hold", "expire")
    inside = [event for event in recording.events if event.event in (*alone, *both)]
    outside = [event for event in recording.events if event.event not in alone]
    for name, events in (("inside", inside), ("outside", outside)):
        write(tmp_path / name, numbered(events), simulated_meta())
    together = judge([tmp_path / "inside", tmp_path / "outside"], engine="local")

    assert (together.verdict, together.requests) == ("valid", judge([clean], engine="local").requests)
    assert judge([tmp_path / "inside"], engine="local").requests == 0


@pytest.mark.parametrize("threads", quick_if([1, 2], lambda threads: threads == 2))
def test_a_large_history_gets_the_same_verdict(faulty: Path, in_parquet: Path, threads: int) -> None:
    engine = LocalEngine(threads=threads, window_events=400)

    assert said(in_parquet, engine) == said(faulty, engine) == said(in_parquet)


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - set(TELLING)))
def test_a_missing_column_accuses_no_broker(name: str, tmp_path: Path) -> None:
    """Without `offsets`, answers would deliver nothing, and without `tag`, messages would have a wrong one."""
    convert(RECORDINGS / "strict", tmp_path, into="parquet")
    (part,) = tmp_path.glob("*.parquet")
    parquet.write_table(parquet.read_table(part).drop([name]), part)
    assert judge([tmp_path], engine="local").verdict != "invalid"


def test_nulls_are_never_written_but_may_be_read(in_parquet: Path, tmp_path: Path) -> None:
    """Columns without nulls are faster to read, and columns with nulls give the same result."""
    (written,) = in_parquet.glob("part-*")
    assert [field.name for field in parquet.read_schema(written) if field.nullable] == ["may_hold"]
    shutil.copytree(in_parquet, tmp_path / "copy")
    table = parquet.read_table(written)
    emptied = [
        compute.if_else(compute.equal(column, ""), None, column) if column.type == pa.string() else column
        for column in table.columns
    ]
    parquet.write_table(pa.table(emptied, names=table.column_names), tmp_path / "copy" / written.name)
    assert parquet.read_table(tmp_path / "copy" / written.name)["request"].null_count
    assert said(tmp_path / "copy") == said(in_parquet)


@pytest.mark.parametrize(("encoding", "has_nulls"), [("DELTA_LENGTH_BYTE_ARRAY", True), ("DELTA_BYTE_ARRAY", False)])
def test_texts_without_a_dictionary_are_judged_alike(
    in_parquet: Path, tmp_path: Path, encoding: str, has_nulls: bool
) -> None:
    """DuckDB's version 2 writes most texts without a dictionary; each row group names its encoding."""
    shutil.copytree(in_parquet, tmp_path / "copy")
    (part,) = (tmp_path / "copy").glob("part-*")
    table = plainly(parquet.read_table(part))
    texts = [name for name in NAMES if name != "topic"]
    for name in (text for text in texts if has_nulls and text not in REQUIRED):
        emptied = compute.if_else(compute.equal(table[name], ""), None, table[name])
        table = table.set_column(table.schema.get_field_index(name), name, emptied)
    parquet.write_table(
        table,
        part,
        row_group_size=1_000,
        data_page_version="2.0",
        use_dictionary=["topic"],
        column_encoding=dict.fromkeys(texts, encoding),
    )
    group = parquet.read_metadata(part).row_group(0)
    written = {group.column(place).path_in_schema: group.column(place).encodings for place in range(group.num_columns)}

    assert encoding in written["request"]
    assert "RLE_DICTIONARY" in written["topic"]
    assert said(tmp_path / "copy", LocalEngine(threads=2, window_events=400)) == said(in_parquet)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_any_type_are_judged_alike(in_parquet: Path, tmp_path: Path, kind: pa.DataType) -> None:
    """Polars, pandas (categories) and other writers use different text types. The file states which type it uses."""
    shutil.copytree(in_parquet, tmp_path / "copy")
    (part,) = (tmp_path / "copy").glob("part-*")
    table = plainly(parquet.read_table(part))
    columns = [column.cast(kind) if pa.types.is_string(column.type) else column for column in table.columns]
    parquet.write_table(pa.table(columns, table.column_names), part, compression="zstd", row_group_size=1_000)

    assert parquet.read_schema(part).field("request").type == kind
    assert said(tmp_path / "copy") == said(in_parquet)


def looked_over(part: InputSplit) -> tuple[Survey, Extent]:
    table, damages = read_split(part, sparse=True)
    return survey_split(fill(table), damages), extent_of(table)


def test_columns_at_their_default_are_not_read(in_parquet: Path) -> None:
    for part in find([in_parquet]).splits:
        (whole, _damages), (sparse, _none) = read_split(part), read_split(part, sparse=True)
        left_out = set(whole.column_names) - set(sparse.column_names)
        events = [event_dict(row) for row in whole.to_pylist()]
        assert "actors" in left_out
        assert left_out == {name for name in left_out if not any(name in event for event in events)}
        assert [event_dict(row) for row in sparse.to_pylist()] == events


@pytest.mark.parametrize(("losses", "kept"), [([0, 0], False), ([0, 1], True), ([1, 1], True), ([False, False], True)])
def test_statistics_of_numbers_decide_which_columns_are_read(tmp_path: Path, losses: list[int], kept: bool) -> None:
    """A column is read if a row's value differs from the column's default, or equals the default in another type."""
    moments = {"after_ns": [1, 2], "before_ns": [1, 2], "sequence": [0, 1]}
    table = pa.table({"event": ["lost", "lost"], "source": ["s", "s"], **moments, "lost_count": losses})
    parquet.write_table(table, tmp_path / "part-0.parquet", row_group_size=1)
    whole, _damages = read_row_groups(str(tmp_path / "part-0.parquet"), 0, 2)
    sparse, _damages = read_row_groups(str(tmp_path / "part-0.parquet"), 0, 2, sparse=True)
    assert ("lost_count" in sparse.column_names) == kept
    assert fill(sparse).to_pylist() == whole.to_pylist()


@pytest.mark.parametrize(
    ("name", "column", "count"),
    [
        ("cause", pa.array([""] * 2, pa.string_view()), 2),
        ("tag", pa.array(["a", None], pa.string_view()), 2),
        ("request", pa.array(["a", ""], pa.large_string()), 2),
        ("offsets", pa.array([[1], None], pa.large_list(pa.int64())), 2),
        ("actors", pa.array([b"", b"\xff"], pa.binary()), 0),
        ("tag", pa.array([[1], [2]], pa.list_(pa.int64())), 0),
        ("may_hold", pa.array(["", "no"]), 0),
        ("offsets", pa.array([{"a": 1}] * 2), 0),
        ("offsets", pa.array([[[1]], [[2]]]), 0),
    ],
)
def test_a_wrong_column_type_is_found_even_if_unread(tmp_path: Path, name: str, column: pa.Array, count: int) -> None:
    moments = {"after_ns": [1, 2], "before_ns": [1, 2], "sequence": [0, 1]}
    plain = plainly(pa.table({"event": ["a"] * 2, "source": ["s"] * 2, **moments}))
    parquet.write_table(plain.set_column(plain.schema.get_field_index(name), name, column), tmp_path / "part-0.parquet")
    part = InputSplit(str(tmp_path / "part-0.parquet"), 0, 1, {}, {})
    survey, extent = looked_over(part)

    assert survey.event_count == count
    assert len(read_again(part, extent)) == count


def test_a_column_that_is_not_read_counts_with_its_default(tmp_path: Path) -> None:
    moments = {"after_ns": [1, 2], "before_ns": [1, 2], "sequence": [0, 1]}
    table = pa.table({"event": ["lost", "lost"], "source": ["s", "s"], **moments, "lost_count": [1, 1]})
    parquet.write_table(table, tmp_path / "part-0.parquet")
    part = InputSplit(str(tmp_path / "part-0.parquet"), 0, 1, rename={}, clocks={})
    _survey, extent = looked_over(part)
    assert "code" not in read_again(part, extent).column_names
    with pytest.raises(HistoryChangedError):
        read_again(part, (*extent[:3], extent[3] + 1))


def test_answers_without_a_queue_are_placed_in_buckets_too(clean: Path, tmp_path: Path) -> None:
    events = [
        msgspec.structs.replace(event, topic="", queue=-1, broker="") if event.event == "answer_sent" else event
        for event in load(clean).events
    ]
    write(tmp_path / "history", events, simulated_meta(), events_per_part=300)
    result = judge_on(
        LocalEngine(threads=1, window_events=300),
        find([tmp_path / "history"]),
        wake_ms=100,
        late_ms=50,
        say=lambda _text: None,
    )

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.requests == judge([clean], engine="local").requests


# -- bad input ---------------------------------------------------------------------------------------------------------


def damaged(directory: Path) -> list[str]:
    result = judge([directory], engine="local")
    assert result.verdict == "unknown"
    return [gap["why"] for gap in result.gaps if gap["kind"] == "damage"]


@pytest.mark.long
@on_spark
def test_files_written_by_spark_are_judged_alike(in_parquet: Path, spark_engine: SparkEngine, tmp_path: Path) -> None:
    events = spark_engine.session.read.parquet(str(in_parquet / "part-*"))
    events.repartition(3).write.option("compression", "zstd").parquet(str(tmp_path / "copy"))
    shutil.copy(in_parquet / "meta.json", tmp_path / "copy")

    assert len(list((tmp_path / "copy").glob("part-*.zstd.parquet"))) == 3
    assert said(tmp_path / "copy") == said(in_parquet)


def test_a_truncated_compressed_part_is_read_up_to_its_end(clean: Path, tmp_path: Path) -> None:
    """The events before the torn line count, and a gap says that more events may be missing."""
    directory = compressed(clean, tmp_path / "zst")
    part = max(directory.glob("part-*.zst"), key=lambda path: path.stat().st_size)
    part.write_bytes(part.read_bytes()[:-40])
    found = damaged(directory)

    assert any("cannot be decompressed to its end" in why for why in found)
    assert judge([directory], engine="local").events > 1_500


def test_bad_rows_of_parquet_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    """A row with a null, a reversed interval or a huge number is damaged. Unknown columns are ignored."""
    write(tmp_path, [], simulated_meta())
    good: dict[str, object] = {
        "event": "expire",
        "after_ns": 1,
        "before_ns": 2,
        "source": "broker-a#1",
        "sequence": 0,
        "more": 1,
    }
    bad: list[dict[str, object]] = [
        {"source": None},
        {"after_ns": 3},
        {"queue_offset": 1 << 62},
        {"offsets": [1, 1 << 62]},
    ]
    table = pa.Table.from_pylist([good | {"queue_offset": 0, "offsets": [1]} | changed for changed in ({}, *bad, {})])
    parquet.write_table(table, tmp_path / "part-0.parquet")
    result = judge([tmp_path], engine="local")

    assert result.events == 2
    assert [gap["count"] for gap in result.gaps if "damaged row" in gap["why"]] == [1, 1, 1, 1]
    assert "part-0.parquet at byte 2" in damaged(tmp_path)[1]


@pytest.mark.parametrize("statistics", [True, False])
def test_a_list_that_lacks_a_number_is_damage_whatever_columns_are_read(tmp_path: Path, statistics: bool) -> None:
    """If some messages of an answer are unknown, the judge draws no conclusion from the answer."""
    moments = {"after_ns": [1, 2, 3], "before_ns": [1, 2, 3], "sequence": [0, 1, 2]}
    table = pa.table({"event": ["answer_sent"] * 3, "source": ["s"] * 3, **moments, "offsets": [[1], [2, None], []]})
    part = InputSplit(str(tmp_path / "part-0.parquet"), 0, 1, {}, {})
    parquet.write_table(plainly(table), part.path, write_statistics=statistics)
    survey, extent = looked_over(part)

    assert survey.event_count == 2
    assert read_again(part, extent)["offsets"].to_pylist() == [[1], []]
    assert [(damage.position, damage.count) for damage in read_split(part)[1]] == [(1, 1)]


@pytest.mark.parametrize("name", ["source", "request", "tag"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_text_that_cannot_be_decoded_is_damage_whatever_columns_are_read(
    tmp_path: Path, name: str, kind: pa.DataType
) -> None:
    moments = {"after_ns": [1, 2, 3], "before_ns": [1, 2, 3], "sequence": [0, 1, 2]}
    table = plainly(pa.table({"event": ["append"] * 3, "source": ["s"] * 3, **moments}))
    texts = pa.array([b"s", None if name == "tag" else b"s", b"\xff"], pa.binary()).view(pa.string()).cast(kind)
    path = tmp_path / "part-0.parquet"
    parquet.write_table(table.set_column(table.schema.get_field_index(name), name, texts), path, row_group_size=2)
    for group, count in ((0, 2), (1, 0)):
        part = InputSplit(str(path), group, group + 1, {}, {})
        survey, extent = looked_over(part)

        assert survey.event_count == count
        assert len(read_again(part, extent)) == count
        assert [damage.reason for damage in read_split(part)[1]] == [f"a text of the column {name} is no UTF-8"] * group


def test_a_timestamp_column_is_read_as_numbers(tmp_path: Path) -> None:
    """A timestamp column is read as numbers, although its statistics are not numbers."""
    write(tmp_path, [], simulated_meta())
    columns: dict[str, object] = {
        name: pa.array([5, 6], pa.timestamp("ns")) for name in ("after_ns", "before_ns")
    }  # fmt: skip
    columns |= {"event": ["source_started", "source_stopped"], "source": ["broker-a#1"] * 2, "sequence": [0, 1]}
    parquet.write_table(pa.table(columns), tmp_path / "part-0.parquet")
    result = judge([tmp_path], engine="local")

    assert result.events == 2
    assert not damaged(tmp_path)


def in_arrow_s_dictionary(part: Path) -> None:
    """Write a column of Arrow's dictionary type in another encoding, which Arrow can write but cannot read."""
    table = plainly(pa.table({name: ["1"] for name in ("event", "source", "tag")} | {name: [1] for name in MOMENTS}))
    table = table.set_column(table.schema.get_field_index("tag"), "tag", table["tag"].dictionary_encode())
    parquet.write_table(table, part, use_dictionary=False, column_encoding={"tag": "DELTA_BYTE_ARRAY"})


def of_columns(**columns: list[str]) -> Callable[[Path], None]:
    return lambda part: parquet.write_table(pa.table(columns), part)


def with_a_column_twice(part: Path) -> None:
    names = ["event", "source", "sequence", "after_ns", "before_ns", "queue", "queue"]
    parquet.write_table(pa.Table.from_arrays([pa.array(["1"])] * len(names), names), part)


MOMENTS = ("after_ns", "before_ns", "sequence")
DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "torn": ("part-0.parquet", lambda part: part.write_bytes(b"PAR1" * 99), "cannot be read as Parquet"),
    "a column is missing": ("part-0.parquet", of_columns(event=["append"]), "the column after_ns is missing"),
    "of another type": (
        "part-0.parquet", of_columns(**{name: ["x"] for name in REQUIRED}), "cannot be read",
    ),
    "a dictionary in Arrow": ("part-0.parquet", in_arrow_s_dictionary, "the column tag is a dictionary in Arrow"),
    "a column twice": ("part-0.parquet", with_a_column_twice, "the column queue is there more than once"),
    "another kind": ("part-9.csv", lambda part: part.write_bytes(b"x"), "no kind of part"),
    **{
        name: (name, lambda part: part.write_bytes(b""), "write a table without partitions")
        for name in ("source=a/day=1/data_0.parquet", "a/part-0.ndjson", "b/c/part-1.ndjson.zst")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_an_unreadable_part_is_named_and_skipped(clean: Path, tmp_path: Path, name: str) -> None:
    file, damage, why = DAMAGES[name]
    write(tmp_path, load(clean).events, simulated_meta())
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    damage(tmp_path / file)
    result = judge([tmp_path], engine="local")

    assert (result.verdict, result.events) == ("unknown", len(load(clean).events))
    assert any(why in gap["why"] and Path(file).name in str(gap) for gap in result.gaps if gap["kind"] == "damage")


def test_a_directory_with_only_partitions_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "source=a").mkdir()
    (tmp_path / "source=a" / "0.parquet").write_bytes(b"")

    with pytest.raises(HistoryNotFoundError, match=r"has no history.*0\.parquet nothing is read"):
        find([tmp_path])


@pytest.mark.parametrize(
    "name", ["_delta/part-0.parquet", ".old/part-0.ndjson", "notes/read.txt", "other/part-0.ndjson"]
)
def test_other_files_in_a_history_are_ignored(clean: Path, tmp_path: Path, name: str) -> None:
    write(tmp_path, load(clean).events, simulated_meta())
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(b"")
    if name.startswith("other"):
        (tmp_path / "other" / "meta.json").write_bytes(b"{}")

    assert judge([tmp_path], engine="local").verdict == "valid"
