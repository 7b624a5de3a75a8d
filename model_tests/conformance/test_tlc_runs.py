"""TLC says of generated histories of steps what the judge says: the same verdict, and how many steps fit.

Each start of TLC judges many runs of one law. These tests run where `TLA2TOOLS` names TLC's jar or class path, since no
package registry has it, and are skipped loudly elsewhere. The long one prints how much faster the judge is.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import attrs
import msgspec
import pytest

from longpoll_judge.read.schema import DEFAULTS
from longpoll_judge.rules.law_steps import model_of, reader_of
from longpoll_judge.testing.generate_steps import FAULTS, Fault, StepLoad, run_of
from longpoll_spec.engines.conform import Checker, Conformance
from longpoll_spec.history import Law
from longpoll_spec.model import SeenStep, order_of
from longpoll_spec.policy import PRESETS
from longpoll_spec.testing.tlc import placed_by_tlc, why_no_tlc

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}"),
]
WORLDS: Final = (
    Law(requests=3),
    Law(requests=2, queues=2, tags=2),
    Law(requests=2, aspects=["commits", "channels", "capacity"]),
)
LOADS: Final = [StepLoad(law, policy=policy, steps=110) for policy in PRESETS for law in WORLDS]
"""Eighteen laws; with the two of hidden time there are twenty starts of TLC."""
HIDING: Final = [
    StepLoad(Law(requests=2, hidden=["tick", "next_pull"]), policy=policy, steps=140)
    for policy in ("strict-clone", "rocketmq-4.9")
]
RUNS: Final = 50
"""Runs of one start: 1,000 in all."""
KINDS: Final[tuple[Fault, ...]] = ("", FAULTS[0], "", FAULTS[1])


def runs_of(load: StepLoad, count: int) -> list[list[SeenStep]]:
    """Runs of one law, every other one with a fault, in half of all no moment in doubt; without what is hidden.

    In every tenth it is told of every other step only what it was, and not who took part.
    """
    reader = reader_of(model_of(load.policy, load.law))
    found = []
    for seed in range(count):
        overlapping = 0.3 if seed // len(KINDS) % 2 else 0.0
        run = run_of(attrs.evolve(load, seed=seed, fault=KINDS[seed % len(KINDS)], overlapping=overlapping))
        events = [event for event in run.events if event.event not in load.law.hidden]
        if seed % 10 == 9:
            events = [msgspec.structs.replace(event, actors=event.actors * (event.sequence % 2)) for event in events]
        found.append([reader.step({**DEFAULTS, **msgspec.structs.asdict(event)}) for event in events])
    return found


def compare(load: StepLoad, count: int, directory: Path) -> tuple[list[Conformance], float, float]:
    """The judge's verdicts on runs of which TLC says the same, and the seconds that the judge and TLC took."""
    model = model_of(load.policy, load.law)
    runs = runs_of(load, count)
    began = time.perf_counter()
    checker = Checker(model, frozenset(load.law.hidden))
    ours = [checker.check(run) for run in runs]
    judged = time.perf_counter()
    directory.mkdir()
    theirs = placed_by_tlc(model, [order_of(run) for run in runs], load.law.hidden, directory)
    seconds = judged - began, time.perf_counter() - judged
    lengths = [len(run) for run in runs]
    assert min(lengths) >= 100
    assert [found.placed == length for found, length in zip(ours, lengths, strict=True)] == [
        found.conforms for found in ours
    ]
    assert theirs == [found.placed for found in ours]
    return ours, *seconds


@pytest.mark.parametrize("load", [LOADS[4], HIDING[0]], ids=["strict-clone", "hidden"])
def test_tlc_places_as_many_steps_as_the_judge(load: StepLoad, tmp_path: Path) -> None:
    """On a few runs of two laws TLC gets exactly as far as the judge, with and without a fault."""
    ours, _judge_s, _tlc_s = compare(load, 12, tmp_path / "runs")

    assert {found.conforms for found in ours} == {True, False}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_thousand_histories_have_the_same_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand histories of a hundred steps and more, half with a fault, in twenty starts: the same every time."""
    judge_s = tlc_s = 0.0
    found: list[Conformance] = []
    for number, load in enumerate((*LOADS, *HIDING)):
        ours, judge_one_s, tlc_one_s = compare(load, RUNS, tmp_path / str(number))
        found += ours
        judge_s, tlc_s = judge_s + judge_one_s, tlc_s + tlc_one_s
    with capsys.disabled():
        steps = sum(len(one.order.steps) for one in found)
        told = f"{len(found)} runs, {steps} steps, {sum(one.conforms for one in found)} of them runs of the law"
        print(f"\n{told}: judge {judge_s:.1f} s, TLC {tlc_s:.1f} s, ratio {tlc_s / judge_s:.0f}")  # noqa: T201 - the figure is what is wanted

    assert len(found) == 1000
    assert 450 <= sum(one.conforms for one in found) <= 550
