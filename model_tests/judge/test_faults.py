"""Planted faults: each must be found and rightly named, in a simulated history and in changed judges."""

from __future__ import annotations

import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from longpoll_judge.columns import queue_log
from longpoll_judge.contract.result import (
    ANSWERED_BY_DEADLINE,
    NO_LOST_WAKEUP,
    OFFSETS_IN_ORDER,
    VISIBLE_IS_MONOTONE,
    Result,
)
from longpoll_judge.rules import case, logs, steps
from longpoll_judge.rules.pulls import promptness, rightness
from longpoll_judge.run import verdict
from longpoll_judge.run.job import judge
from longpoll_judge.testing.fault import Fault
from longpoll_judge.testing.generate import write
from longpoll_judge.testing.plant import FAULTS, plant
from longpoll_judge.testing.plant_contract import CONTRACT_FAULTS
from longpoll_judge.testing.plant_exchanges import EXCHANGE_FAULTS
from longpoll_judge.testing.recording import NoVictimError, change, load
from longpoll_spec.history import PART_GLOB, Event

PlantOnce = Callable[[str], tuple[Path, Fault]]


@pytest.fixture(scope="module")
def planted(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> PlantOnce:
    """Plants a fault in the clean history, each once a run."""
    directory = tmp_path_factory.mktemp("planted")

    def plant_once(name: str) -> tuple[Path, Fault]:
        if not (directory / name).exists():
            plant(clean, name, directory / name)
        return directory / name, FAULTS[name]

    return plant_once


SAYS = {
    "answer_deleted": "was never answered",
    "answer_delayed": "after its deadline",
    "wake_delayed": "while it was held",
    "answer_duplicated": "2 answers",
    "next_wrong": "it must be",
    "message_missing": "although 2 messages",
    "message_from_the_future": "not yet visible",
    "too_many_messages": "asked were at most",
    "messages_out_of_order": "out of order",
    "next_stays": "passed over nothing",
    "wrong_tag": "tag does not match",
    "answer_before_visible": "not yet visible",
    "denies_message": "a matching message was visible",
    "end_too_high": "can have been visible",
    "end_too_low": "was visible before its request came",
    "legal_called_illegal": "calls the offset illegal",
    "half_line": "damaged line",
    "meta_missing": "missing",
    "sequence_gap": "misses 1 events",
    "events_lost": "was never answered",
    "found_empty": "carries 0 messages",
    "message_before_asked": "carries messages before that offset",
    "message_twice": "out of order",
    "last_message_missing": "it must be",
    "next_back": "it must be",
    "next_too_far": "match",
    "bounds_crossed": "above offset_max",
    "nothing_with_messages": "carries 1 messages",
    "nothing_moves_on": "with nothing new it must be",
    "passes_over_a_match": "passes over",
    "illegal_to_nowhere": "not the end of the queue",
    "answer_before_request": "before its request was received",
    "tag_changed": "tag does not match",
    "answered_much_later": "2 answers",
    "wake_late": "while it was held",
    "deadline_missed": "after its deadline",
    "timeout_cut": "after its deadline",
    "forgotten_at_the_stop": "when the broker stops",
    "offset_given_twice": "two messages were appended",
    "append_missing": "no message was appended between",
    "appends_swapped": "was appended after offset",
    "visible_moves_back": "is the visible end, after it was",
    "interval_reversed": "damaged",
    "sequence_repeated": "sequence numbers more than once",
    "event_unknown": "teleport",
    "source_undeclared": "not in meta.json",
    "subscription_unknown": "tags cannot decide",
    "request_missing": "requests are not in the history",
    "request_twice": "received twice",
    "format_newer": "format 99",
    "clock_set_back": "was set back, by up to 120.0 s",
    "lost_declared": "says that it lost 3 events",
    **dict.fromkeys((*CONTRACT_FAULTS, *EXCHANGE_FAULTS), ""),
}
"""What some finding or gap says of each fault, planted in the simulated history."""


OF_THE_LOG = {OFFSETS_IN_ORDER, VISIBLE_IS_MONOTONE}
"""Properties that no single request breaks."""


def as_expected(result: Result, name: str) -> bool:
    """Whether the verdict, the named properties and the reason given are those of the fault."""
    fault = FAULTS[name]
    named = {finding.property for finding in result.findings}
    certain = "violated" if fault.verdict == "invalid" else "unknown"
    reasons = [one.why for finding in result.findings for one in finding.told() if one.verdict == certain]
    reasons += [gap["why"] for gap in result.gaps]
    is_named = named <= fault.properties and bool(named) == bool(fault.properties)
    return result.verdict == fault.verdict and is_named and any(SAYS[name] in reason for reason in reasons)


def test_a_simulated_history_is_valid(clean: Path) -> None:
    """A history of a broker that does everything right is valid, and its latencies were measured."""
    result = judge([clean], engine="local")

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.latency["wake_ms"].count > 100
    assert result.latency["late_ms"].count > 10


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found_and_named(planted: PlantOnce, name: str) -> None:
    """The verdict is the fault's, and no other property is named."""
    directory, fault = planted(name)
    result = judge([directory], engine="local")

    assert as_expected(result, name), (fault, result.verdict, result.findings, result.gaps)
    if fault.clause:
        named = {finding.clause for finding in result.findings} | {gap["clause"] for gap in result.gaps}
        assert named == {fault.clause}, (result.findings, result.gaps)
    for finding in result.findings:
        assert finding.evidence
        assert finding.window_start_ms <= finding.window_end_ms
        assert bool(finding.request) == (finding.property not in OF_THE_LOG)


def test_a_deleted_answer_whose_number_stays_missing_convicts_nobody(clean: Path, tmp_path: Path) -> None:
    """Taking a line out by hand leaves a hole, in which the answer may have been: nobody is convicted by it."""
    request = next(
        answer.request for pull, answer in load(clean).exchanges() if answer.cause == "expired" and pull.offset > 0
    )
    shutil.copytree(clean, tmp_path / "cut")
    for part in (tmp_path / "cut").glob(PART_GLOB):
        lines = part.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if f'"{request}"'.encode() not in line or b"answer_sent" not in line]
        part.write_bytes(b"".join(kept))
    result = judge([tmp_path / "cut"], engine="local")

    assert result.verdict == "unknown"
    assert (ANSWERED_BY_DEADLINE, "unknown") in {(finding.property, finding.verdict) for finding in result.findings}
    assert all("the record has a hole in that time" in finding.why for finding in result.findings)
    assert [gap["kind"] for gap in result.gaps] == ["sequence gap"]


def test_thresholds_decide(planted: PlantOnce) -> None:
    """A wake that is 2 s late is no lost wakeup to someone who allows 10 s."""
    directory, _fault = planted("wake_delayed")

    assert judge([directory], engine="local").verdict == "invalid"
    assert judge([directory], engine="local", wake_ms=10_000, late_ms=10_000).verdict == "valid"


@pytest.fixture(scope="module")
def vague(planted: PlantOnce, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history with a wake 2 s late, seen with a clock that may be 5 s off."""
    directory = tmp_path_factory.mktemp("vague") / "history"
    shutil.copytree(planted("wake_delayed")[0], directory)
    meta = msgspec.json.decode((directory / "meta.json").read_bytes())
    meta["sources"][0]["uncertainty_ns"] = 5 * 10**9
    (directory / "meta.json").write_bytes(msgspec.json.encode(meta))
    return directory


@pytest.mark.long
def test_uncertain_clocks_make_a_late_wake_unknown(vague: Path) -> None:
    """With an uncertainty of 5 s nobody can say whether an answer was 2 s late."""
    result = judge([vague], engine="local")

    assert result.verdict == "unknown"
    assert {finding.verdict for finding in result.findings} == {"unknown"}
    assert NO_LOST_WAKEUP in {finding.property for finding in result.findings}


@pytest.mark.parametrize(("code", "verdict"), [(0, "unknown"), (24, "valid")])
def test_a_subscription_that_tags_cannot_decide_is_not_passed_over(
    clean: Path, tmp_path: Path, code: int, verdict: str
) -> None:
    """An answer to an SQL92 subscription leaves the verdict open; a refusal has nothing to decide."""
    recording = load(clean)
    request, answer = next(pair for pair in recording.exchanges() if pair[1].code == 0)
    recording.replace(request, change(request, expression_type="SQL92", expression="a > 1"))
    if code:
        recording.replace(answer, change(answer, code=code, offsets=[], offset_next=-1, offset_min=-1, offset_max=-1))
    write(tmp_path / "history", recording.events, recording.meta)
    result = judge([tmp_path / "history"], engine="local")

    assert result.verdict == verdict
    assert [gap["kind"] for gap in result.gaps] == ([] if code else ["not judged"])


def test_an_illegal_offset_passes_over_no_message(clean: Path, tmp_path: Path) -> None:
    """A pull for one tag at offset -1 is sent to offset 0: no message stood between, so no tag is missing."""
    recording = load(clean)
    request, answer = next(
        pair for pair in recording.exchanges() if pair[1].code == 0 and pair[0].expression not in {"", "*"}
    )
    recording.replace(request, change(request, offset=-1))
    recording.replace(answer, change(answer, code=21, offsets=[], offset_next=0))
    write(tmp_path / "history", recording.events, recording.meta)

    assert judge([tmp_path / "history"], engine="local").gaps == []


def test_a_fault_that_finds_no_victim_says_so(tmp_path: Path, clean: Path) -> None:
    """Planting in a history without pulls is the user's mistake, and nothing is written."""
    few: list[Event] = load(clean).events[:1]
    (tmp_path / "few").mkdir()
    shutil.copy(clean / "meta.json", tmp_path / "few")
    (tmp_path / "few" / "part-000000.ndjson").write_bytes(msgspec.json.encode(few[0]) + b"\n")

    with pytest.raises(NoVictimError, match="longer run"):
        plant(tmp_path / "few", "answer_deleted", tmp_path / "out")
    assert not (tmp_path / "out").exists()
