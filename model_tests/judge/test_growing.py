"""Findings reported while a history grows are also findings of the whole history, and the last verdict is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import (
    RECORDINGS,
    are_found,
    certain,
    follow_pieces,
    shown,
    simulated,
    written,
)
from model_tests.support.judge.recording import NoVictimError, Recording, load
from model_tests.support.spec.cases import quick_if

from longpoll_judge.run.pipeline import judge

QUICK = frozenset({
    "answer_deleted", "visible_too_soon", "next_wrong", "visible_moves_back", "append_missing", "events_lost",
})  # fmt: skip


def missed(recording: Recording, directory: Path, seed: int, pieces: int = 8) -> set[str]:
    """Follow a history in random pieces, check the reports, and return the findings that came only at the end."""
    whole = judge([written(recording, directory / "whole")], engine="local")
    found = follow_pieces(written(recording, directory / "growing"), pieces, seed)

    assert shown(found.whole) == shown(whole)
    assert are_found(found.told, whole)
    return certain(whole).keys() - found.told.keys()


@pytest.mark.parametrize("name", quick_if(sorted(FAULTS), QUICK.__contains__))
def test_an_injected_fault_is_reported_early_or_at_the_end(name: str, tmp_path: Path) -> None:
    recording = simulated(3, 1_000)
    try:
        FAULTS[name].apply(recording)
    except NoVictimError:
        return
    late = missed(recording, tmp_path, 3)
    assert name not in QUICK or late == set()


@pytest.mark.parametrize("seed", quick_if(range(4), lambda seed: seed == 0))
def test_a_history_without_a_fault_has_no_finding(seed: int, tmp_path: Path) -> None:
    assert missed(simulated(seed, 700), tmp_path, seed) == set()


@pytest.mark.parametrize("name", ["java-4.9.7-lost-wakeup", "java-5.5.0-lost-wakeup", "java-4.9.7-late", "strict"])
def test_the_findings_of_a_real_recording_are_reported_early(name: str, tmp_path: Path) -> None:
    recording = load(RECORDINGS / name)
    assert missed(recording, tmp_path, 1, min(6, len(recording.events) - 1)) == set()


def test_an_event_written_late_causes_no_finding(tmp_path: Path) -> None:
    """An append that is written after its readers' answers is no violation."""
    recording = simulated(5, 700)
    late = next(event for event in recording.events[200:] if event.event == "append")
    recording.events.remove(late)
    recording.events.insert(len(recording.events) - 20, late)
    assert missed(recording, tmp_path, 5, 12) == set()
