"""The moves that are read off the effects are those that runs make."""

from __future__ import annotations

import pytest

from longpoll_spec.engines.python.compile import successors
from longpoll_spec.model import Model
from longpoll_spec.moves import Move, moves_of, places_of
from longpoll_spec.policy import PRESETS
from longpoll_spec.testing.models import model_named

NEVER_MADE = {
    "strict": {
        Move("notify_end", "kept", "idle"),
        Move("scan_end", "kept", "idle"),
    }
}
"""The text allows these, and no run makes them: a stop waits for the lock that a walk in place has."""


def _made(model: Model) -> set[Move]:
    """Every move of request 0 in any run."""
    step, labels = successors(model), model.state.phases.labels
    place = [variable.name for variable in model.variables].index("phase_0")
    known, waiting, made = {model.initial}, [model.initial], set[Move]()
    while waiting:
        state = waiting.pop()
        for index, after in step(state):
            if state[place] != after[place]:
                made.add(Move(model.actions[index].name, labels[state[place]], labels[after[place]]))
            if after not in known:
                known.add(after)
                waiting.append(after)
    return made


@pytest.mark.parametrize("name", PRESETS)
def test_moves_are_those_that_runs_make(name: str) -> None:
    """Every move of a run is read off the text, and every one of the text is made, but for those with a reason."""
    model = model_named(name)
    read = set(moves_of(model))

    assert _made(model) == read - NEVER_MADE.get(name, set())
    assert NEVER_MADE.get(name, set()) <= read


def test_a_place_is_one_that_is_given() -> None:
    """Only a policy that rechecks after its put-back has a notifier that rechecks, or a scanner that is due."""
    places = {name: set(places_of(model_named(name))) for name in ("strict", "strict-clone")}

    assert {("phase_0", "held"), ("dispatcher", "due"), ("scanner", "walking")} <= places["strict"]
    assert {("scanner", "rechecking"), ("scanner", "due")} <= places["strict-clone"] - places["strict"]
