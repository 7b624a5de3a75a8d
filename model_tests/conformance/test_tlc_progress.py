"""TLC on progress: under the exported fairness every pull is answered, and under less than that it need not be.

These tests run where `TLA2TOOLS` names TLC's jar or class path, since no package registry has it, and are skipped
loudly elsewhere. Our own search says the same (`model_tests/spec/test_progress.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import pytest

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines.python.fair import unanswered
from longpoll_spec.law import fairness_of, law_of
from longpoll_spec.model import Model
from longpoll_spec.policy import preset
from longpoll_spec.render.export.tla import ANSWERED, FAIRNESS, TIME_PASSES, tla_of
from longpoll_spec.render.notation import name_of, parameters_of
from longpoll_spec.testing.tlc import keeps, why_no_tlc

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}"),
]
CUT: Final = frozenset({"truncate"})
ONE_QUEUE: Final = named("truncate", preset("strict"))
TWO_TAGS: Final = Bounds("two-tags", requests=1, messages=1, tags=2, aspects=CUT)


def _is_answered(model: Model, assumed: str, directory: Path) -> bool:
    """Whether TLC finds every pull answered under what is assumed of a run."""
    module = tla_of(model, ()).replace("====\n", f"Tried == Spec /\\ {assumed}\n====\n")
    assert module.count("Tried ==") == 1
    return keeps(name_of(model), module, parameters_of(model), ANSWERED, directory)


@pytest.mark.parametrize(
    ("bounds", "assumed", "answered"),
    [
        (ONE_QUEUE, "WF_vars(Next)", False),
        (ONE_QUEUE, FAIRNESS, True),
        (TWO_TAGS, FAIRNESS, False),
        (TWO_TAGS, f"{FAIRNESS} /\\ {TIME_PASSES}", True),
    ],
    ids=["next", "each", "each-with-tags", "time-passes-with-tags"],
)
def test_tlc_finds_pulls_answered_under_the_exported_fairness(
    bounds: Bounds, assumed: str, answered: bool, tmp_path: Path
) -> None:
    """Of `Next` as a whole it is not enough; of each urgent action and of tick it is, where nothing is filtered."""
    assert _is_answered(law_of(preset("strict"), bounds), assumed, tmp_path) == answered


@pytest.mark.parametrize("name", ["strict", "strict-clone", "rocketmq-4.9"])
@pytest.mark.parametrize("time_passes", [False, True])
def test_tlc_agrees_with_our_own_search(name: str, time_passes: bool, tmp_path: Path) -> None:
    """For a policy of each kind, with and without the passing of time."""
    model = law_of(preset(name), ONE_QUEUE)
    ours = unanswered(model, attrs.evolve(fairness_of(model), time_passes=time_passes))
    assumed = f"{FAIRNESS} /\\ {TIME_PASSES}" if time_passes else FAIRNESS

    assert _is_answered(model, assumed, tmp_path) == (ours is None)
