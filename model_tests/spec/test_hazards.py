"""What is known of the brokers, and what the law finds: the same, for every preset."""

from __future__ import annotations

import pytest

from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.hazards import FACTS, HAZARDS, hazards_of
from longpoll_spec.policy import PRESETS

FOUND_ON = {
    "a": {"rocketmq-4.9", "rocketmq-5", "rocketmq-lmq"},
    "b": {"rocketmq-4.9", "rocketmq-5", "rocketmq-pr7359", "rocketmq-lmq"},
    "i": {"rocketmq-4.9", "rocketmq-5", "rocketmq-pr7359"},
    "j": {"rocketmq-lmq"},
    "l": {"rocketmq-4.9"},
    "m": {"rocketmq-5", "rocketmq-pr7359", "rocketmq-lmq"},
}
"""Hazards that not every one of RocketMQ's policies has: who has them."""
WITNESS = {"a": "lost_by_hold", "b": "lost_by_keep", "c": "queued_by_deadline", "d": "nothing_dropped"}
"""Where a property is a sign of several hazards, the one that tells this from the others."""


def _broken(entries: list[Entry], policy: str) -> set[str]:
    return {name for entry in entries if entry.policy == policy for name in entry.violated}


@pytest.mark.parametrize("policy", PRESETS)
def test_a_preset_breaks_exactly_what_is_known_of_it(policy: str) -> None:
    """Neither a hazard that the facts name is missed, nor is one found that they do not name."""
    assert _broken(pinned(), policy) == set(FACTS[policy])


@pytest.mark.parametrize("hazard", [*FOUND_ON, "c", "d", "e", "g", "h", "o", "p"])
def test_a_hazard_is_found_on_the_presets_that_have_it(hazard: str) -> None:
    """Each hazard shows on the presets of RocketMQ that have it, and on no other."""
    rocketmq = {name for name in PRESETS if name.startswith("rocketmq")}
    witness = WITNESS.get(hazard)
    found = {
        policy
        for policy, facts in FACTS.items()
        for name, signs in facts.items()
        if hazard in signs and witness in {None, name}
    }

    assert found == FOUND_ON.get(hazard, rocketmq)


def test_every_hazard_has_a_sentence_and_a_sign() -> None:
    """No letter is without a sentence, and none is there that no preset shows."""
    shown = {hazard for facts in FACTS.values() for signs in facts.values() for hazard in signs}

    assert shown == set(HAZARDS)
    assert set(FACTS) == set(PRESETS)
    assert hazards_of("rocketmq-lmq", "no_orphan") == ("j",)
    assert hazards_of("strict+on_stop=silent", "answered_on_stop") == ()
