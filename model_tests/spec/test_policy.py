from __future__ import annotations

from functools import cache

import pytest

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.errors import UnknownKnobError, UnknownPolicyError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, STRICT, STRICT_CLONE, Policy, knob_values, preset, with_knob

SEEN_IN = {
    "notify_grain": "tags",
    "notify_only_if_tag_matches": "tags",
    "visible_after": "crash",
    "bucket_removal": "buckets",
    "hold_limit": "limit",
    "commit": "commits",
    "scan_throw": "role",
    "on_close": "channels",
    "on_role_change": "role",
    "on_master_return": "role",
    "on_truncate": "truncate",
}
"""Knob -> the aspect in whose world it matters; the others matter in any."""


def test_presets_are_found_by_name() -> None:
    """Every preset has the name it is listed under."""
    assert all(preset(name).name == name for name in PRESETS)


def test_unknown_names_are_refused() -> None:
    """An unknown preset or knob is answered with the list of known ones."""
    with pytest.raises(UnknownPolicyError, match=r"rocketmq-4\.9"):
        preset("kafka")
    with pytest.raises(UnknownKnobError, match="recheck_after_hold"):
        with_knob(STRICT, "colour=red")
    with pytest.raises(UnknownKnobError, match="own_deadline"):
        with_knob(STRICT, "expiry=never")


@pytest.mark.parametrize("knob", list(knob_values()))
def test_every_knob_has_an_effect_in_the_law(knob: str) -> None:
    """Turning a knob of some policy changes the reachable space or what is enabled in it."""
    bases = [STRICT, STRICT_CLONE, with_knob(STRICT_CLONE, "tick=free"), with_knob(STRICT, "expiry=scan")]

    bounds = SEEN_IN.get(knob, "tiny")

    assert any(_counts(base, bounds) != _counts(other, bounds) for base in bases for other in _turned(base, knob))


def _turned(base: Policy, knob: str) -> list[Policy]:
    values = [value for value in knob_values()[knob] if value != getattr(base, knob)]
    return [with_knob(base, f"{knob}={str(value).lower()}") for value in values]


@cache
def _counts(policy: Policy, bounds: str) -> tuple[int, ...]:
    model = law_of(policy, named(bounds, policy))
    # A knob may lead to the same states by another way only: then what breaks on the way tells.
    result = explore(model, [item for item in properties_of(model) if item.name == "told_of_role_change"])
    broken = sum(verdict.verdict == "violated" for verdict in result.verdicts)
    return result.distinct_states, result.transitions, result.depth, broken
