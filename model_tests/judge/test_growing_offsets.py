"""What a group is told of its offset is judged while a history grows, and never more harshly than at its end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from model_tests.judge.test_commits import REGRESSIONS, RIGHT, Kind, events_of
from model_tests.judge.test_growing import are_found, certain, grown, written

from longpoll_judge.contract.result import Finding
from longpoll_judge.run.growing import offsets, recent
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import simulated_meta
from longpoll_judge.testing.recording import Recording

QUICK = (*range(6),)
LONG = (*range(6, 300),)
KINDS = ("pull", "pull", "pull", "ask", "ask", "explicit", "explicit", "one_way", "reset")


@pytest.fixture(autouse=True)
def judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is judged, and few events are at hand."""
    monkeypatch.setattr(recent, "FRESH_NS", 0)


def drawn(seed: int) -> list[Kind]:
    """Exchanges at random moments, most of them right; what a group is told is now and then anything."""
    dice = random.Random(seed)
    now_ms, committed, kinds = 0, 0, list[Kind]()
    for _number in range(70):
        now_ms += dice.choice((5, 20, 700, 4_000))
        kind = dice.choice(KINDS)
        if kind == "reset" and dice.random() < 0.7:
            kind = "pull"
        if kind == "pull" and dice.random() < 0.8:
            committed += dice.randint(0, 3)
        offset = committed if kind == "pull" or dice.random() < 0.8 else dice.randint(0, committed + 1)
        committed = offset if kind in {"explicit", "one_way"} else committed
        took_ms = dice.choice((1, 1, 1, 30, 6_000 if kind == "pull" else 1))
        kinds.append((kind, offset, now_ms, now_ms + took_ms))
    return kinds


def check(
    kinds: list[Kind], directory: Path, seed: int, pieces: int, renamed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Counter[str], set[str], bool]:
    """Nothing is told that the whole does not find; how often what was, by clause; what of the whole; is it over.

    `renamed` gives requests, which are `r` and their number, the identifiers of others.
    """
    replace = msgspec.structs.replace
    events = sorted(events_of(kinds), key=lambda event: event.after_ns)
    numbered = [
        replace(event, sequence=number, request=renamed.get(event.request, event.request))
        for number, event in enumerate(events)
    ]
    directory.mkdir(exist_ok=True)
    history = written(Recording(numbered, simulated_meta()), directory / "history")
    whole = judge([history], engine="local")
    _result, _is_whole, told, growing = grown(history, pieces, seed)

    known, said = ({name: one for name, one in found.items() if about_offsets(one)} for found in (certain(whole), told))
    assert are_found(said, whole)
    return Counter(one.clause for one in said.values()), known.keys() - said.keys(), growing.beside.offsets.is_over


def about_offsets(finding: Finding) -> bool:
    """Whether it is of what is compared here: pulls are waited for longer than they may be."""
    return finding.clause.startswith("commit.")


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_regression_is_told_before_the_end(name: str, tmp_path: Path) -> None:
    """Each kind of which both exchanges are at hand; the history goes on after them."""
    told, missed, _is_over = check([*REGRESSIONS[name], ("pull", 9, 5_000, 5_001)], tmp_path, 1, 3)

    assert (sum(told.values()), missed) == (1, set())


@pytest.mark.parametrize("name", RIGHT)
def test_what_something_explains_is_not_told(name: str, tmp_path: Path) -> None:
    """The same excuses count."""
    assert check([*RIGHT[name], ("pull", 9, 5_000, 5_001)], tmp_path, 1, 3)[0] == {}


@pytest.mark.parametrize("seed", QUICK)
def test_random_exchanges_are_told_of_rightly(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dozen events at hand: excuses of long ago count all the same."""
    monkeypatch.setattr(offsets, "EVENTS_MAX", 12)
    check(drawn(seed), tmp_path, seed, 15)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_more_random_exchanges_are_told_of_rightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every clause that is told while a history grows something is told, and most of what there is."""
    monkeypatch.setattr(offsets, "EVENTS_MAX", 12)
    told, missed = Counter[str](), 0
    for seed in LONG:
        found, left, _is_over = check(drawn(seed), tmp_path / str(seed), seed, 15)
        told, missed = told + found, missed + len(left)

    assert told.keys() >= {"commit.told.least", "commit.told.written"}
    assert missed < 2 * told.total()


def test_planted_what_has_no_answer_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A one-way commit of long ago may take effect at any time; without it a right answer would be told as wrong."""
    kinds: list[Kind] = [("one_way", 5, 1, 1), *(("pull", 9, 5_000 * n, 5_000 * n + 1) for n in range(1, 9))]
    kinds += [("ask", 5, 50_000, 50_001), ("pull", 9, 60_000, 60_001)]
    monkeypatch.setattr(offsets, "EVENTS_MAX", 6)
    assert check(kinds, tmp_path / "kept", 1, 12)[0] == {}

    monkeypatch.setattr(offsets.Offsets, "_outlive", lambda _self, _gone, _again: None)
    with pytest.raises(AssertionError):
        check(kinds, tmp_path / "forgotten", 1, 12)


@pytest.mark.parametrize("late_ms", [7, 30, 20_000])
def test_what_a_request_commits_may_excuse_though_its_identifier_comes_again(
    late_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which answer is its own, so when it was committed; it convicts nobody, at hand or long gone."""
    monkeypatch.setattr(offsets, "EVENTS_MAX", 3)
    kinds: list[Kind] = [("ask", 0, 1, 2), ("explicit", 1, 3, 4), ("pull", 9, 15, 16), ("ask", 1, 40, 41)]
    kinds += [("ask", 1, late_ms, late_ms + 1), ("pull", 9, 60_000, 60_001)]

    for pieces in (1, 2, 4, 7, 13):
        assert check(kinds, tmp_path / f"{pieces}", pieces, pieces, {"r4": "r1"})[0] == {}


def test_too_much_that_may_excuse_is_left_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: where too many requests have no answer nothing more is told of offsets."""
    monkeypatch.setattr(offsets, "EVENTS_MAX", 6)
    monkeypatch.setattr(offsets, "LASTING_MAX", 3)
    kinds: list[Kind] = [("one_way", n, 5_000 * n, 5_000 * n) for n in range(1, 12)]
    kinds += [(kind, offset, 90_000 + first, 90_000 + last) for kind, offset, first, last in REGRESSIONS["forgotten"]]
    told, _missed, is_over = check([*kinds, ("pull", 9, 99_000, 99_001)], tmp_path, 1, 8)

    assert is_over
    assert told == {}
