"""Each mutant of the specification breaks a property or changes the pinned counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import attrs
import pytest
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.caught import NOBODY, Catch, catches

from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.mutants.generated import mutants_of, reached
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.specification import specification_of

SAMPLE = 8
AT_LEAST = 12


def _counts(result: Exploration) -> tuple[int, int, int]:
    return result.distinct_states, result.transitions, result.depth


@cache
def _right(policy: str, bounds: Bounds) -> Exploration:
    return explore(specification_of(preset(policy), bounds), engine="python")


def _missed(found: Sequence[Catch]) -> list[str]:
    return [f"{each.slip.action} {each.slip.what}" for each in found if each.by == NOBODY]


def test_mutants_of_any_action_are_detected() -> None:
    """A property or a pinned count detects each sampled mutant of every action of our policy."""
    found = list(catches(preset("strict"), named("tiny", preset("strict")), every=SAMPLE))

    assert _missed(found) == []
    assert len(found) >= AT_LEAST
    assert len({each.by for each in found}) >= 5, "one property alone would catch by luck"


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "bounds"), [*((policy, "tiny") for policy in PRESETS), *(("strict", aspect) for aspect in EXPLORATIONS)]
)
def test_every_mutant_of_every_action_is_detected(policy: str, bounds: str) -> None:
    """The mutants of every preset are detected, and those of our own policy also with each feature and one request."""
    requests = None if bounds in {"tiny", "queues", "limit", "capacity"} else 1
    found = list(catches(preset(policy), named(bounds, preset(policy), requests=requests)))

    assert _missed(found) == []
    assert len(found) >= AT_LEAST


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
def test_the_comparison_begins_at_the_pinned_numbers(policy: str) -> None:
    entry = pinned_entry(policy, "tiny")

    assert _counts(_right(policy, named("tiny", preset(policy)))) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )


def test_a_mutant_without_an_effect_is_left_out() -> None:
    """A mutant that changes no state is left out. Removing a part of a guard changes some state."""
    policy, size = preset("strict"), named("tiny", preset("strict"))
    model = specification_of(policy, size)
    states = reached(model)
    forgets = next(slip for slip in mutants_of(policy, size) if (slip.action, slip.what[:6]) == ("hold", "forget"))

    assert forgets.shows(model, states)
    assert not attrs.evolve(forgets, change=lambda _, action: action).shows(model, states)
