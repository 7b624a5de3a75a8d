"""Mutants of the specification's text: a property that an exploration finds violated is never proved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

import attrs
import pytest
from click.testing import CliRunner
from model_tests.proofs.text_mutants import TextMutant, drawn
from model_tests.support.spec.cases import quick_if

from longpoll.cli import main
from longpoll_spec.actions import traversal
from longpoll_spec.actions.wake import Pairs, answered
from longpoll_spec.bounds import EXPLORATIONS, Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.configurations import CONFIGURATIONS, WORLDS, features_of
from longpoll_spec.engines.smt.proof import prove_model
from longpoll_spec.policy import STRICT
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import Notifier, Queue, Request, State
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import TRUE, Bool, any_of, ite

MUTANTS: Final[Mapping[str, TextMutant]] = {each.name: each for each in drawn()}
LIMIT_STATES: Final = 20_000
"""The limit of states when exploring a mutant; if no property breaks within it, the test checks no proofs."""
KNOWN: Final = {
    "State.fits: `(request.offset < self.visible_end)` for `self.has_more(request)`": "no_lost_wakeup",
    "next_pull: without parentheses `request.at(queue) & (request.wants.is_(wish.index) if state.filters else TRUE)`": (
        "answer_is_right"
    ),
    "State.end_to_show: `self.queues[0].log_end` for `queue.log_end`": "visible_is_monotone",
}
"""Mutants of `else` branches with several queues, which no configuration showed in earlier versions."""


@pytest.mark.parametrize("name", quick_if(KNOWN, lambda name: name.startswith("next_pull")))
def test_an_else_branch_with_several_queues_is_in_the_plain_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof for two requests fails, so the proof for any number, which includes two, fails too."""
    mutant = MUTANTS[name]
    monkeypatch.setattr(mutant.function, "__code__", mutant.code)
    model = specification_of(STRICT, attrs.evolve(WORLDS["bare"], requests=2))

    assert prove_model(model, names=[KNOWN[name]], depth_max=0).whole == "unknown"


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_no_violated_property_is_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property that an exploration breaks with a feature is not proved for two requests in all configurations."""
    mutant = MUTANTS[name]
    worlds = CONFIGURATIONS
    monkeypatch.setattr(mutant.function, "__code__", mutant.code)
    for bounds in EXPLORATIONS.values():
        broken = _broken(bounds)
        if broken:
            near = sorted(worlds.values(), key=lambda world: len(features_of(world) ^ features_of(bounds)))
            proofs = (
                prove_model(specification_of(STRICT, attrs.evolve(each, requests=2)), depth_max=0) for each in near
            )
            assert any(proof.whole != "proved" for proof in proofs), f"{broken} ({bounds.name})"
            return


def _broken(bounds: Bounds) -> list[str]:
    model = specification_of(STRICT, bounds)
    always = [item for item in properties_of(model) if item.kind == "always"]
    found = explore(model, always, limit_states=LIMIT_STATES)
    return [each.name for each in found.verdicts if each.verdict == "violated"]


# -- mutants that need several features ----------------------------------------------------------------------------


def _asks(end: str, holds_in: Callable[[Bounds], bool]) -> Callable[[State, Request], Bool]:
    """A mutant of `State.fits` that compares with an end other than the visible end, in some configurations."""

    def fits(self: State, request: Request) -> Bool:
        if holds_in(self.bounds):
            return self.at_queue_of(request, lambda queue: request.offset < getattr(queue, end))
        return request.passes if self.filters else self.has_more(request)

    return fits


def _hears_the_exact_tag(self: State, notifier: Notifier, request: Request) -> Bool:
    """A mutant of `State.announces_for` that compares tags instead of their hashes."""
    if notifier is not self.dispatcher:
        return TRUE
    told = (self.announced.is_(tag.index) & tag.is_wanted(request.wants) for tag in self.tags)
    return self.announced.is_(self.no_tag) | any_of(told)


def _forgets_the_third(self: State, request: Request, fact_of: Callable[[Queue], Bool]) -> Bool:
    """A mutant of `State.at_queue_of` that knows only two queues."""
    return any_of(request.at(queue) & fact_of(queue) for queue in self.queues[:2])


def _puts_back_what_is_closed(state: State, request: Request, here: Bool) -> Pairs:
    """A mutant of `put_back` that does not check for closed channels if closed channels are the only feature."""
    alone = state.bounds.aspects - set(SWITCHES) == {"channels"} and len(state.queues) == 1 and not state.filters
    refused = here & ~state.running
    if not alone:
        refused |= here & request.closed
    refused |= here & state.is_told_of_role(request)
    _phase, *others = answered(request, refused)
    held = ite(here, request.phases["held"], request.phase)
    return ((request.phase, ite(refused, request.phases["idle"], held)), *others)


def _is_crash(bounds: Bounds) -> bool:
    return not bounds.filters and bounds.has("crash") and not bounds.has("truncate")


def _is_role(bounds: Bounds) -> bool:
    return not bounds.filters and bounds.has("role") and bounds.queues == 2 and not bounds.has("truncate")


SLIPS: Final[Mapping[str, tuple[str, Callable[..., object], Callable[..., object], str, str]]] = {
    "E08": ("strict", State.announces_for, _hears_the_exact_tag, "no_lost_wakeup", "tags"),
    "K1": ("strict", State.fits, _asks("log_end", _is_role), "no_lost_wakeup", "queues+role"),
    "K2": ("strict", State.fits, _asks("flushed_end", _is_crash), "no_lost_wakeup", "crash"),
    "K3": ("strict-clone", traversal.put_back, _puts_back_what_is_closed, "closed_is_let_go", "channels"),
    "S05": ("strict", State.at_queue_of, _forgets_the_third, "answer_is_right", "bare"),
}
"""Mutants that one exploration refutes and that proofs once missed: policy, function, replacement, property, and the
configuration that shows the violation."""


@pytest.mark.parametrize("name", quick_if(SLIPS, lambda name: name == "S05"))
def test_a_mutant_that_one_exploration_refutes_is_not_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, function, slip, broken, configuration = SLIPS[name]

    def replaced(*given: object) -> object:
        return slip(*given)

    owner = State if function.__qualname__.startswith("State.") else import_module(function.__module__)
    monkeypatch.setattr(owner, function.__name__, replaced)
    words = ["prove", "--policy", policy, "--requests", "any", "--configuration", configuration, "--property", broken]
    done = CliRunner().invoke(main, [*words, "--json"])

    assert configuration in CONFIGURATIONS
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verdicts"] == {broken: "refuted"}


def test_each_exploration_is_a_configuration_of_the_proof() -> None:
    """The proof has a configuration with the exploration's features and at least as many queues and tags."""
    worlds = CONFIGURATIONS.values()
    for bounds in EXPLORATIONS.values():
        assert any(
            features_of(world) == features_of(bounds)
            and bounds.aspects <= world.aspects
            and (bounds.queues, bounds.tags) <= (world.queues, world.tags)
            for world in worlds
        ), bounds.name
