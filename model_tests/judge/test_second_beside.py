"""Compares the judge with the second judge, on correct brokers and on thousands of faulty histories.

`LONGPOLL_SEED` (default 0) chooses the histories; the tests must pass with any seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from model_tests.judge.second.compare import Agreement, Judge, Judged, judge_it
from model_tests.judge.second.corpus import calm, troubled
from model_tests.judge.second.faults import apply, changed_histories
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History, observe

SEED = int(os.environ.get("LONGPOLL_SEED", "0")) * 1_000_000
WORKERS = 4
"""The number of parts into which a long test is split, each in its own xdist group."""
FAULTS = 20
QUICK_CHANGED, LONG_CHANGED = 15, 10_000
QUICK_TROUBLED, LONG_TROUBLED = 6, 1_000

LONG = (pytest.mark.long, pytest.mark.timeout(3_600))

ONCE_APART = (
    (300_052, 35, "say-moved -250000000"),
    (300_052, 36, "set after_ns 0"),
    (400_050, 11, "set queue_offset other"),
    (7_200_124, 33, "set offsets default"),
)
"""(History, index of the changed event, fault): cases in which the two judges once disagreed."""
NEEDLESS_MOST = 0.01
"""The largest permitted share of needlessly `unknown` verdicts, among histories that were valid before the fault."""
UNKNOWN_MOST = 0.2
"""The largest share of `unknown` verdicts for faults that leave the evidence complete. Only histories that were valid
before the fault count.

Most of these verdicts have one of three reasons: the beginning or end is missing, an answer names a different queue
from its request's queue, or tags were not recorded. Histories with a missing field are not counted here."""
CONVICTED_LEAST = 0.97
"""The minimum share of the second judge's violations that the judge must report too."""


def pieces(quick: int, long: int) -> list[object]:
    whole = [
        pytest.param(number, long // WORKERS, marks=(*LONG, pytest.mark.xdist_group(f"beside-{number}")))
        for number in range(1, WORKERS + 1)
    ]
    return [pytest.param(0, quick), *whole]


def faulty(piece: int) -> Iterator[tuple[str, History, bool]]:
    """Yield endless histories with one fault each; four of five are of a broker without disturbances.

    The flag of each history is true if the history was not `valid` even without the fault.
    """
    used: Counter[tuple[str, str]] = Counter()
    seed = SEED + 100_000 * piece
    while True:
        history = observe(*(troubled if seed % 5 == 4 else calm)(seed, 60))
        was_open = weigh(history.meta, history.events).verdict != "valid"
        for changed in changed_histories(history, seed, FAULTS, used):
            yield f"{changed.operation} ({changed.event} {changed.place} of {seed})", changed.history, was_open
        seed += 1


@cache
def quick() -> list[tuple[str, History, bool]]:
    return list(islice(faulty(0), QUICK_CHANGED))


def compared(piece: int, count: int, directory: Path, judge: Judge | None = None) -> Agreement:
    found = Agreement() if judge is None else Agreement(judge)
    for operation, history, was_open in quick() if count == QUICK_CHANGED else islice(faulty(piece), count):
        found.compare(history, operation, directory, was_open=was_open)
    return found


def too_careful(found: Agreement) -> Iterator[str]:
    needless = found.share("unknown", "valid", sound=True), found.share("unknown", "invalid", sound=True)
    if found.share("invalid", "invalid") < CONVICTED_LEAST:
        yield f"convicts {found.share('invalid', 'invalid'):.1%} of what the second judge convicts"
    if max(needless) > NEEDLESS_MOST:
        yield f"leaves open {needless[0]:.1%} of the harmless and {needless[1]:.1%} of the convicted"
    if found.unknown_share(of_evidence=False) > UNKNOWN_MOST:
        yield f"leaves open {found.unknown_share(of_evidence=False):.1%} although every event is evidence"


@pytest.mark.parametrize(("piece", "count"), pieces(QUICK_CHANGED, LONG_CHANGED))
def test_both_judges_agree_on_changed_histories(piece: int, count: int, tmp_path: Path) -> None:
    found = compared(piece, count, tmp_path / "history")
    assert found.count == count
    assert not found.disagreements, found.told()
    if count > QUICK_CHANGED:
        assert list(too_careful(found)) == [], found.told()
        assert found.pairs["invalid", "invalid"] > 0.04 * count, found.told()
        assert found.pairs["valid", "valid"] > 0.25 * count, found.told()


@pytest.mark.parametrize(("seed", "place", "operation"), ONCE_APART)
def test_both_judges_agree_on_earlier_differences(seed: int, place: int, operation: str, tmp_path: Path) -> None:
    history = observe(*(troubled if seed % 5 == 4 else calm)(seed, 60))
    changed = apply([dict(event) for event in history.events], place, operation, random.Random(0))
    found = Agreement()
    found.compare(history.with_events(changed), operation, tmp_path / "history", was_open=False)
    assert list(history.events) != changed
    assert not found.disagreements, found.told()


def test_a_gap_before_a_delivery_may_hide_its_send(tmp_path: Path) -> None:
    """The only recorded send of a message was refused, and came after the delivery of this message."""
    history = observe(*troubled(200_124, 60))
    verdicts = judge_it(history, tmp_path / "history").verdict, weigh(history.meta, history.events).verdict
    assert verdicts == ("unknown", "unknown")


@pytest.mark.parametrize("verdict", ["unknown", "valid"])
def test_a_judge_with_a_constant_verdict_is_noticed(verdict: str, tmp_path: Path) -> None:
    """A judge that always answers `unknown` is too cautious, and a judge that always answers `valid` disagrees."""

    def judge(_history: History, _directory: Path) -> Judged:
        return Judged(verdict, frozenset(), ())

    found = compared(0, QUICK_CHANGED, tmp_path / "history", judge)
    assert bool(found.disagreements) == (verdict == "valid")
    assert len(list(too_careful(found))) >= (3 if verdict == "unknown" else 1)


@pytest.mark.parametrize(("piece", "count"), pieces(QUICK_TROUBLED, LONG_TROUBLED))
def test_disturbances_of_a_correct_broker_cause_no_violation(piece: int, count: int, tmp_path: Path) -> None:
    found = Agreement()
    for number in range(count):
        seed = SEED + 100_000 * piece + number
        found.compare(observe(*troubled(seed, 120)), f"troubled {seed}", tmp_path / "history")
    told = found.told()
    assert found.share("invalid") == 0, told
    assert not found.disagreements, told
    assert found.pairs["valid", "valid"] > 0, told
    # A share of few histories would depend on the seed.
    if count > QUICK_TROUBLED:
        assert found.pairs["unknown", "valid"] <= 0.01 * count, told
        assert found.share("valid") > 0.25, told


TROUBLES = (
    *("deleted", "killed", "started again", "cut", "hole", "not read", "seen by several"),
    *("set back", "set forward", "set by less than a second"),
)


@pytest.fixture(scope="module")
def befallen() -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(SEED, SEED + 150):
        found.update(trouble for trouble, count in observe(*troubled(seed, 120)).troubles.items() if count)
    return found


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_disturbance_occurs_in_some_history(trouble: str, befallen: Counter[str]) -> None:
    assert befallen[trouble] >= 5, befallen
