"""Histories of any size: tiles follow each other without a seam, and a fault in any of them is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.recording import Recording
from model_tests.support.judge.tiles import Tile, make_tile, plan, write_large, write_meta, write_place
from model_tests.support.spec.cases import quick_if

from longpoll_judge.contract.result import Result
from longpoll_judge.read.schema import event_dict
from longpoll_judge.read.source import find, read_split
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import Event

TILE = Load(events=3_000, queues=3, timeout_ms=60)
PLACES = ("first", "middle", "last")
KINDS = ["answer_deleted", "next_wrong", "offset_given_twice", "appends_swapped"]


@pytest.fixture(scope="module")
def base() -> list[Event]:
    """The events of one tile."""
    return list(simulate(TILE))


def faulty(base: list[Event], name: str) -> Tile:
    """A tile with a fault."""
    recording = Recording(list(base), simulated_meta())
    FAULTS[name].apply(recording)
    return make_tile(recording.events)


def written(directory: Path, tiles: list[Tile], count: int, changed: dict[int, int]) -> Path:
    """A history of so many tiles."""
    write_meta(directory)
    for place in plan(tiles, count, changed=changed):
        write_place(directory, tiles[place.tile], place)
    return directory


def is_named(result: Result, name: str) -> bool:
    """Whether verdict and properties are those of the fault, told once or a few times."""
    fault = FAULTS[name]
    named = {finding.property for finding in result.findings}
    return result.verdict == fault.verdict and named <= fault.properties and bool(named) == bool(fault.properties)


@pytest.mark.long
def test_a_large_history_is_valid_and_as_large_as_wanted(tmp_path: Path) -> None:
    """Ten tiles are one history: numbers without a gap, offsets without a repeat, every request its own."""
    count = write_large(tmp_path, Load(events=20_000, queues=3), tile_events=2_000)
    result = judge([tmp_path], engine="local")
    events = [event_dict(row) for part in find([tmp_path]).splits for row in read_split(part)[0].to_pylist()]
    requests = [event["request"] for event in events if event["event"] == "request_received"]

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.events == count == len(events)
    assert abs(count - 20_000) < 2_000
    assert len(set(requests)) == len(requests) == result.requests
    assert sorted(event["sequence"] for event in events) == list(range(count))


@pytest.mark.parametrize("kind", quick_if(KINDS, lambda kind: kind == "appends_swapped"))
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_any_tile_is_found_and_named(base: list[Event], tmp_path: Path, kind: str, place: str) -> None:
    """Wherever its tile lies, the finding's window lies there too."""
    number = PLACES.index(place) * 2
    result = judge([written(tmp_path, [make_tile(base), faulty(base, kind)], 5, {number: 1})], engine="local")

    assert is_named(result, kind), (result.findings, result.gaps)
    whole = [event_dict(row) for row in read_split(find([tmp_path]).splits[number])[0].to_pylist()]
    begin, end = min(row["after_ns"] for row in whole) / 1e6, max(row["before_ns"] for row in whole) / 1e6
    assert all(finding.window_start_ms >= begin - 1 for finding in result.findings)
    assert any(finding.window_end_ms <= end + 1 for finding in result.findings)


@pytest.mark.long
def test_a_seam_that_is_wrong_is_noticed(base: list[Event], tmp_path: Path) -> None:
    """Tiles with wrong numbers are not a valid history."""
    tile = make_tile(base)
    write_meta(tmp_path)
    first, second = plan([tile], 2)
    write_place(tmp_path, tile, first)
    write_place(tmp_path, tile, evolve(second, messages={}))

    assert judge([tmp_path], engine="local").verdict == "invalid"
