"""What a client asks for follows what it was given: a slip that moves its offset otherwise is found and not proved."""

from __future__ import annotations

import pytest

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.proof import PLAIN, prove_model
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import STRICT
from longpoll_spec.properties.answers import offset_goes_on
from longpoll_spec.state import State
from longpoll_spec.terms import Effect
from longpoll_spec.testing.slips import Change, slipped, with_effect
from longpoll_spec.testing.zoo import NAMED

MOVED = offset_goes_on.__name__


def _asks_for_the_next(state: State, action: Action) -> Effect:
    """A hold that waits for the message after the next one."""
    request = state.requests[int(action.actors[0])]
    return {str(request.offset.args[0]): request.offset + 1}


def _turns_to_the_beginning(state: State, action: Action) -> Effect:
    """A turn to another queue that begins where the first queue ends."""
    request = state.requests[int(action.actors[0])]
    return {str(request.offset.args[0]): state.queues[0].visible_end}


SLIPS: dict[str, tuple[str, Change, str]] = {
    "begins anew": (*NAMED["next_pull begins_anew"], "tiny"),
    "begins anew among tags": (*NAMED["next_pull begins_anew"], "tags"),
    "asks for the next": ("hold", with_effect(_asks_for_the_next), "tiny"),
    "turns to another end": ("next_pull", with_effect(_turns_to_the_beginning), "queues"),
}


def _planted(slip: str, bounds: Bounds | None = None) -> Model:
    name, change, size = SLIPS[slip]
    return slipped(STRICT, bounds or named(size, STRICT), name, change)


@pytest.mark.parametrize("slip", SLIPS)
def test_an_offset_that_moves_by_itself_is_found(slip: str) -> None:
    """By a run, which no other property need tell."""
    model = _planted(slip)
    verdict = explore(model, [offset_goes_on(model)], limit_states=300_000).verdict(MOVED)

    assert verdict.verdict == "violated"


def test_it_is_not_proved() -> None:
    """Nor does a proof stand, for it is not inductive there."""
    proof = prove_model(_planted("begins anew", PLAIN), names=[MOVED], depth_max=0)

    assert proof.verdict(MOVED) != "proved"
