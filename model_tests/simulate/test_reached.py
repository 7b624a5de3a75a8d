"""The schedules of the real code reach every state of the law, but for those with a reason."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

import pytest

from longpoll.simulated.beside_law import reached as module
from longpoll.simulated.beside_law.explore import explore
from longpoll.simulated.beside_law.reached import REASONS, reached
from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, STRICT_CLONE, Policy
from longpoll_spec.testing.cases import quick_if

BY_NAME: Final = attrgetter("name")
ONE: Final = Bounds("one", requests=1, messages=1, hold_ticks=2, scan_ticks=2)
TWO: Final = Bounds("two", requests=2, messages=1, hold_ticks=2, scan_ticks=2)
COUNTS: Final = {"strict": (147, 266), "strict-clone": (450, 665), "rocketmq-4.9": (310, 435), "rocketmq-5": (310, 435)}


@pytest.mark.parametrize(
    "policy", quick_if((STRICT, STRICT_CLONE, ROCKETMQ_4_9, ROCKETMQ_5), lambda policy: policy is STRICT), ids=BY_NAME
)
def test_every_state_is_reached_or_has_a_reason(policy: Policy) -> None:
    """One pull and one message, with an executor that fills, a stop, and looks that throw."""
    found = reached(policy, ONE)

    assert (found.states, found.of) == COUNTS[policy.name]
    assert found.unreached[""] == 0
    assert found.states + found.unreached.total() == found.of
    assert set(found.unreached) <= {*REASONS, ""}


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_every_state_of_two_pulls_is_reached_or_has_a_reason(policy: Policy) -> None:
    """Two pulls and one message, all of it."""
    found = reached(policy, TWO)

    assert found.unreached[""] == 0
    assert found.states > 1000


def test_planted_a_schedule_that_is_not_tried_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without faults no schedule stops the broker: states have no reason then."""
    monkeypatch.setattr(module, "explore", lambda policy, bounds, **_kinds: explore(policy, bounds))

    assert reached(STRICT, ONE).unreached[""] > 5
