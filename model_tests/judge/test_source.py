"""Reading a history: damage is reported and never fatal, and splits do not change the result."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.judge.faults import plant
from model_tests.support.judge.generate import SOURCE, simulated_meta
from model_tests.support.judge.recording import write

from longpoll_judge.errors import HistoryNotFoundError
from longpoll_judge.read import ndjson, source
from longpoll_judge.read.schema import EVENT_SCHEMA, INTEGER_LIMIT, Damage, event_dict
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import FIELD_TYPES, META_FILE, Event

BAD_LINES = {
    b'{"event":"append","after_ns":1': "truncated",
    b"garbage": "malformed",
    b'{"event":"append"}': "required",
    b'{"event":"append","after_ns":"x","before_ns":1,"source":"s","sequence":0}': "Expected `int`",
    b'{"event":"append","after_ns":9,"before_ns":1,"source":"s","sequence":0}': "later than",
    b'{"event":"append","after_ns":1,"before_ns":1,"source":"s","sequence":99999999999999999999}': "out of range",
    b'{"event":"append","after_ns":1,"before_ns":1,"source":"\xff","sequence":0}': "utf-8",
    b'{"event":"lost","after_ns":1,"before_ns":1,"source":"s","sequence":0,"offsets":[1,null]}': "Expected `int`",
    b"[1,2]": "Expected `object`",
    b" null ": "Expected `object`",
    b"null null": "Expected `object`",
    b"\x00\x00\x00": "malformed",
    b'{"event":"append","after_ns":1,"before_ns":1,"source":"s","sequence":0,"code":1,"code":1}': "code occurs twice",
    b'{"event":"append","after_ns":1,"before_ns":1,"source":"s","sequence":0,"tag":null,"t\\u0061g":"b"}': "tag occurs",
    b'{"event":"append","after_ns":1,"before_ns":1,"source":"s","sequence":0} {"event":"append"}': "trailing",
}


def event(sequence: int) -> Event:
    return Event(event="append", after_ns=5, before_ns=7, source="broker-a#1", sequence=sequence, tag="a b\u00e9")


def read(directory: Path) -> tuple[list[dict[str, object]], list[Damage]]:
    events: list[dict[str, object]] = []
    damages: list[Damage] = []
    for part in source.find([directory]).splits:
        table, found = source.read_split(part)
        events += [event_dict(row) for row in table.to_pylist()]
        damages += found
    return events, damages


def test_the_schema_has_the_fields_of_the_specification() -> None:
    assert EVENT_SCHEMA.names == list(FIELD_TYPES)
    assert [field.name for field in msgspec.structs.fields(Event)] == list(FIELD_TYPES)


@pytest.mark.parametrize("line", BAD_LINES)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_bad_line_is_reported_and_the_others_are_read(tmp_path: Path, line: bytes, place: int) -> None:
    lines = [msgspec.json.encode(event(sequence)) for sequence in range(3)]
    lines.insert(place, line)
    write(tmp_path, [], simulated_meta())
    (tmp_path / "part-000000.ndjson").write_bytes(b"\n".join(lines))
    events, damages = read(tmp_path)

    assert [row["sequence"] for row in events] == [0, 1, 2]
    assert [(damage.file, damage.position) for damage in damages] == [
        (str(tmp_path / "part-000000.ndjson"), sum(len(before) + 1 for before in lines[:place]))
    ]
    assert BAD_LINES[line] in damages[0].reason


@pytest.mark.parametrize(
    ("content", "places"),
    [(b"A A\n\n", [0]), (b"\nA A\n", [1]), (b"A\nA A\n\nA", [1]), (b"A A\nA1\nA2\nA\n", [0, 1, 2])],
)
def test_each_line_must_have_exactly_one_object(tmp_path: Path, content: bytes, places: list[int]) -> None:
    """Two objects on one line (`A1`, `A2` are halves of an event `A`) or one object on two lines are damage."""
    encoded = msgspec.json.encode(event(0))
    head, comma, tail = encoded.partition(b",")
    content = content.replace(b"A1", head + comma).replace(b"A2", tail).replace(b"A", encoded)
    write(tmp_path, [], simulated_meta())
    (tmp_path / "part-000000.ndjson").write_bytes(content)
    lines = content.split(b"\n")
    events, damages = read(tmp_path)

    assert [damage.position for damage in damages] == [sum(len(one) + 1 for one in lines[:place]) for place in places]
    assert len(events) == lines.count(encoded)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_of_any_system_are_read_at_once(end: bytes) -> None:
    line = msgspec.json.encode(event(0))
    table = ndjson._parse_fast(end.join([line, line[:-1] + b',"more":{"tag":1,"tag":2},"more":3}', b""]))

    assert table is not None
    assert [event_dict(row) for row in table.to_pylist()] == [event_dict(msgspec.to_builtins(event(0)))] * 2


def test_a_repeated_unknown_field_is_ignored_next_to_a_bad_line(tmp_path: Path) -> None:
    line = msgspec.json.encode(event(0))[:-1] + b',"more":1,"more":2}'
    write(tmp_path, [], simulated_meta())
    (tmp_path / "part-000000.ndjson").write_bytes(line + b"\ngarbage\n")
    events, damages = read(tmp_path)

    assert [row["sequence"] for row in events] == [0]
    assert [damage.position for damage in damages] == [len(line) + 1]


@settings(max_examples=12)
@given(size=st.integers(1, 700), count=st.integers(0, 12), torn=st.integers(0, 60))
def test_splits_do_not_change_the_result(
    tmp_path_factory: pytest.TempPathFactory, size: int, count: int, torn: int
) -> None:
    directory = tmp_path_factory.mktemp("splits")
    write(directory, (event(sequence) for sequence in range(count)), simulated_meta())
    with (directory / "part-000000.ndjson").open("ab") as file:
        file.write(msgspec.json.encode(event(count))[:torn])
    whole = read(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "SPLIT_BYTES", size)
        cut = read(directory)

    assert cut == whole
    assert [row["sequence"] for row in whole[0]] == list(range(count))
    assert len(whole[1]) == (torn > 0)


def test_a_huge_line_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SPLIT_BYTES", 500)
    monkeypatch.setattr(ndjson, "LINE_BYTES_MAX", 2_000)
    lines = [msgspec.json.encode(event(0)), b"x" * 100_000, msgspec.json.encode(event(1))]
    write(tmp_path, [], simulated_meta())
    (tmp_path / "part-000000.ndjson").write_bytes(b"\n".join(lines) + b"\n")
    events, damages = read(tmp_path)

    assert [row["sequence"] for row in events] == [0, 1]
    assert [damage.reason for damage in damages] == ["a line longer than 2000 bytes"]


def test_clocks_are_aligned_and_intervals_widened(tmp_path: Path) -> None:
    """`offset_ns` is added to the times, and `uncertainty_ns` widens the interval on both sides."""
    meta = simulated_meta()
    clock = msgspec.structs.replace(meta.sources[0], offset_ns=1_000, uncertainty_ns=10)
    write(tmp_path, [event(0)], msgspec.structs.replace(meta, sources=[clock]))
    (row,) = read(tmp_path)[0]

    assert (row["after_ns"], row["before_ns"]) == (995, 1_017)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_time_out_of_range_is_set_to_the_limit(tmp_path: Path, sign: int) -> None:
    """A time that the clock's offset moves out of range becomes the end of the range."""
    meta = simulated_meta()
    clock = msgspec.structs.replace(meta.sources[0], offset_ns=sign * (INTEGER_LIMIT - 10), uncertainty_ns=5)
    far = msgspec.structs.replace(event(0), after_ns=sign * 100, before_ns=sign * 100)
    near = msgspec.structs.replace(event(1), after_ns=-sign * 100, before_ns=-sign * 100)
    write(tmp_path, [far, near], msgspec.structs.replace(meta, sources=[clock]))
    rows = read(tmp_path)[0]

    end, moved = sign * (INTEGER_LIMIT - 1), sign * (INTEGER_LIMIT - 110)
    assert [(row["after_ns"], row["before_ns"]) for row in rows] == [(end, end), (moved - 5, moved + 5)]


def test_an_unknown_format_version_is_reported(tmp_path: Path, clean: Path) -> None:
    write(tmp_path, [event(0)], msgspec.structs.replace(simulated_meta(), format_version=99))
    result = judge([tmp_path, clean], engine="local")

    assert result.verdict == "unknown"
    assert ["format 99 is not the one read here" in gap["why"] for gap in result.gaps] == [True]


NAMED_TWICE = b'{"format_version":1,"sources":[{"name":"broker-a#1","clock":"monotonic","clock":"run"}]}'
DAMAGED_METAS = [b"", b"{", b"[]", b'{"format_version":"x"}', b"\xff", NAMED_TWICE]


@pytest.mark.parametrize("content", DAMAGED_METAS)
def test_a_damaged_meta_file_is_a_gap(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, [event(0)], None)
    (tmp_path / META_FILE).write_bytes(content)
    result = judge([tmp_path], engine="local")

    assert (result.verdict, result.events) == ("unknown", 1)
    assert META_FILE in result.gaps[0]["where"]
    assert "cannot be read" in result.gaps[0]["why"]


def test_a_fifo_as_meta_file_is_a_gap(tmp_path: Path) -> None:
    write(tmp_path, [event(0)], None)
    os.mkfifo(tmp_path / META_FILE)
    result = judge([tmp_path], engine="local")

    assert (result.verdict, result.events) == ("unknown", 1)
    assert "it is no file" in result.gaps[0]["why"]


UNREADABLE: dict[str, list[object]] = {
    "uncertainty_ns": [-1, "x", None, 1 << 61],
    "offset_ns": [1 << 61],
    "clock": [5],
    "hold_limit": [-2],
    "name": [None],
}


@pytest.mark.parametrize(
    "declares", [None, *({name: value} for name, values in UNREADABLE.items() for value in values)]
)
def test_lateness_by_an_unknown_clock_is_no_violation(
    tmp_path: Path, clean: Path, declares: dict[str, object] | None
) -> None:
    plant(clean, "answer_delayed", tmp_path)
    assert judge([tmp_path], engine="local").verdict == "invalid"

    if declares is None:
        (tmp_path / META_FILE).unlink()
    else:
        meta = msgspec.json.decode((tmp_path / META_FILE).read_bytes())
        meta["sources"][0] |= declares
        (tmp_path / META_FILE).write_bytes(msgspec.json.encode(meta))
    assert judge([tmp_path], engine="local").verdict == "unknown"


def test_contradicting_declarations_make_the_clock_unknown(tmp_path: Path) -> None:
    meta = simulated_meta()
    other = msgspec.structs.replace(meta.sources[0], uncertainty_ns=10**15)
    write(tmp_path, [event(0)], msgspec.structs.replace(meta, sources=[*meta.sources, other]))

    assert any("declared more than once" in gap["why"] for gap in judge([tmp_path], engine="local").gaps)


def test_a_declaration_applies_to_its_own_directory_only(tmp_path: Path, clean: Path) -> None:
    write(tmp_path, [event(0)], None)

    found = source.find([clean, tmp_path])
    told = {row["source"] for part in found.splits for row in source.read_split(part)[0].to_pylist()}

    assert found.declared_sources == {SOURCE}
    assert [name.split("#")[:2] for name in told - {SOURCE}] == [SOURCE.split("#")]


def test_a_path_without_a_history_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(HistoryNotFoundError):
            source.find([path])
