"""A deadline belongs to its pull: brokers that renew, stop or forget deadlines are refuted, by search and by proof."""

from __future__ import annotations

from functools import partial

import pytest

from longpoll_spec.bounds import TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.any_number import prove_any
from longpoll_spec.engines.smt.proof import PLAIN, prove_model
from longpoll_spec.engines.tokens import parse
from longpoll_spec.law import properties_of
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import preset
from longpoll_spec.state import Notifier, Request, State
from longpoll_spec.terms import Effect, Int, ite
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.slips import Change, forgetting, slipped, with_effect

NAME = "deadline_is_its_pulls"
OURS = ("strict", "strict-clone")


def _renews_what_it_keeps(state: State, action: Action) -> Effect:
    """A walker that puts those it keeps back with a new deadline, as Redis did (#12998)."""
    request = _request(state, action)
    walker: Notifier = state.dispatcher if action.name == "notify_each" else state.scanner
    phase = action.effect[f"phase_{request.index}"]
    assert isinstance(phase, Int)
    return {f"deadline_{request.index}": ite(phase.is_(walker.kept), state.hold_ticks, request.deadline)}


def _stops_at_one(state: State, _action: Action) -> Effect:
    """A tick that comes to nobody's end."""
    return {
        f"deadline_{each.index}": ite(each.deadline > 1, each.deadline - 1, each.deadline) for each in state.requests
    }


def _two_at_once(state: State, _action: Action) -> Effect:
    """A tick that counts double."""
    return {f"deadline_{each.index}": ite(each.deadline > 1, each.deadline - 2, 0) for each in state.requests}


def _request(state: State, action: Action) -> Request:
    return state.requests[int(action.actors[0])]


SLIPS: dict[str, tuple[str, Change]] = {
    "the scanner renews what it keeps": ("scan_each", with_effect(_renews_what_it_keeps)),
    "a tick stops at one": ("tick", with_effect(_stops_at_one)),
    "a tick counts double": ("tick", with_effect(_two_at_once)),
    "a tick forgets deadlines": ("tick", forgetting("deadline")),
    "a pull has no deadline": ("next_pull", forgetting("deadline")),
}
WITH_TAGS: dict[str, tuple[str, Change]] = {
    "the dispatcher renews what it keeps": ("notify_each", with_effect(_renews_what_it_keeps)),
}
"""A dispatcher keeps whoever wants another tag; without tags all that it keeps have come in the same tick."""


def _broken(model: Model) -> set[str]:
    found = explore(model, [item for item in properties_of(model) if item.kind == "always"], limit_states=100_000)
    return {each.name for each in found.verdicts if each.verdict == "violated"}


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("slip", [*SLIPS, *WITH_TAGS])
def test_a_slip_in_deadlines_breaks_the_property_that_speaks_of_them(policy: str, slip: str) -> None:
    """With a timeout of three ticks exploring sees what one tick hides."""
    name, change = {**SLIPS, **WITH_TAGS}[slip]

    assert NAME in _broken(slipped(preset(policy), TIMEOUTS["timeout"], name, change))


@pytest.mark.parametrize("policy", OURS)
def test_one_tick_hides_a_renewed_deadline(policy: str) -> None:
    """Why timeouts are explored at all: with one tick a renewal is no change, and everything holds."""
    name, change = SLIPS["the scanner renews what it keeps"]
    model = slipped(preset(policy), named("tiny", preset(policy)), name, change)

    assert _broken(model) == set()


@pytest.mark.parametrize("policy", quick_if(OURS, lambda policy: policy == "strict"))
@pytest.mark.parametrize("slip", quick_if(SLIPS, lambda slip: slip == "the scanner renews what it keeps"))
def test_a_slip_in_deadlines_is_refuted(policy: str, slip: str) -> None:
    """For eight requests: by a run, under a timeout that the run itself names."""
    name, change = SLIPS[slip]
    make = partial(_slipped, policy, name, change)
    proof = prove_model(make(Bounds("proof", requests=8, messages=None)), names=[NAME], smaller=make)

    assert proof.verdict(NAME) == "refuted"
    token = proof.obligations[-1].token
    assert token is not None
    assert parse(token).bounds.hold_ticks >= 1


@pytest.mark.long
@pytest.mark.parametrize("policy", quick_if(OURS, lambda policy: policy == "strict"))
@pytest.mark.parametrize("slip", quick_if(SLIPS, lambda slip: slip == "the scanner renews what it keeps"))
def test_a_slip_in_deadlines_is_refuted_for_any_number(policy: str, slip: str) -> None:
    """The proof for any number of requests refutes the same slips."""
    name, change = SLIPS[slip]
    proof = prove_any(preset(policy), world=PLAIN, names=[NAME], model_of=partial(_slipped, policy, name, change)).proof

    assert proof.verdict(NAME) == "refuted"


def test_a_dispatcher_that_renews_is_refuted_where_there_are_tags() -> None:
    """Two tags are enough for a dispatcher to keep a request that is older than the tick."""
    name, change = WITH_TAGS["the dispatcher renews what it keeps"]
    make = partial(_slipped, "strict", name, change)
    proof = prove_model(make(Bounds("proof", requests=1, messages=None, tags=2)), names=[NAME], smaller=make)

    assert proof.verdict(NAME) == "refuted"


def _slipped(policy: str, name: str, change: Change, bounds: Bounds) -> Model:
    return slipped(preset(policy), bounds, name, change)
