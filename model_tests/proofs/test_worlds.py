"""The worlds of a proof for any number of requests: nothing in them is proved in vain, and named slips are refuted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import attrs
import pytest

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.smt import situations
from longpoll_spec.engines.smt.any_number import READ, worlds_within
from longpoll_spec.engines.smt.proof import PLAIN, prove_model
from longpoll_spec.engines.smt.runs import explored
from longpoll_spec.engines.smt.situations import situations_of
from longpoll_spec.engines.smt.worlds import WORLDS, chosen, prove_worlds, unstated, verdicts, worst
from longpoll_spec.engines.tokens import parse
from longpoll_spec.errors import UnknownPropertyError, UnknownWorldError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import PRESETS, STRICT, preset
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import FALSE, Term, const, nodes, rebuild
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.slips import slipped
from longpoll_spec.testing.traces import breaks_its_property
from longpoll_spec.testing.zoo import NAMED

OURS = ("strict", "strict-clone")
RESTRICTED_IN_VAIN = {
    "hold recheck_if_bucket_looked_empty": {"no_lost_wakeup", "lost_by_hold"},
    "executor_rejects drops_when_alone": {"nothing_dropped", "dropped_by_reject"},
}
"""Slips that pass where a hold beside another, or a lone refusal, is ruled out; and what must tell of them."""


def _planted(policy: str, slip: str, bounds: Bounds) -> Model:
    name, change = NAMED[slip]
    return slipped(preset(policy), bounds, name, change)


@pytest.mark.parametrize(
    "case",
    quick_if(
        [(slip, world) for slip in RESTRICTED_IN_VAIN for world in WORLDS],
        lambda case: case == ("hold recheck_if_bucket_looked_empty", "plain"),
    ),
)
def test_what_only_restricts_hides_no_slip(case: tuple[str, str]) -> None:
    """In no world is a law proved whose recheck trusts an empty look, or whose lone refusal drops."""
    slip, world = case
    told = RESTRICTED_IN_VAIN[slip]
    model = _planted("strict", slip, attrs.evolve(WORLDS[world], requests=2))
    proof = prove_model(model, names=told, depth_max=0)

    assert {name for name in told if proof.verdict(name) != "proved"} == told


@pytest.mark.long
@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("slip", RESTRICTED_IN_VAIN)
def test_they_are_refuted_for_any_number_in_every_world(slip: str, policy: str) -> None:
    """The same for any number of requests, by a run, in each world and for both policies of ours."""
    told = RESTRICTED_IN_VAIN[slip]
    proofs = prove_worlds(preset(policy), names=told, model_of=partial(_planted, policy, slip))

    assert {each.name: each.whole for each in proofs} == dict.fromkeys(WORLDS, "refuted")
    assert {each.found.proof.verdict(name) for each in proofs for name in told} == {"refuted"}


def _broken_by_runs(policy: str, slip: str, world: str) -> dict[str, str]:
    """What exploring breaks in the world, or the first smaller one of it, and the runs."""
    make = partial(_planted, policy, slip)
    for smaller in worlds_within(WORLDS[world]):
        names = [item.name for item in properties_of(make(attrs.evolve(smaller, requests=2))) if item.kind == "always"]
        found = explored(make, smaller, 2, names)
        if found:
            return {name: run.token for name, run in found.items() if run.token is not None}
    return {}


@cache
def _of_one_request(policy: str, world: str) -> Model:
    return law_of(preset(policy), attrs.evolve(WORLDS[world], requests=1))


def _has(policy: str, slip: str, world: str) -> bool:
    return bool(_of_one_request(policy, world).named(NAMED[slip][0]))


NO_MISTAKE = {("notify_each renews_what_it_keeps", "plain")}
"""Whoever a dispatcher keeps in the plain world has come in the same tick, and has its deadline anyway."""
IN_WORLDS = [
    (policy, slip, world)
    for policy in OURS
    for slip in NAMED
    for world in WORLDS
    if (slip, world) not in NO_MISTAKE and _has(policy, slip, world)
]


@pytest.mark.parametrize("case", quick_if(IN_WORLDS, lambda case: case == ("strict", "tick stops_at_one", "plain")))
def test_every_named_slip_is_broken_by_a_run_in_every_world(case: tuple[str, str, str]) -> None:
    """Exploring the worlds of a proof finds a run, which replays on the slipped law and breaks what it says."""
    policy, slip, _world = case
    found = _broken_by_runs(*case)

    assert found
    for name, token in found.items():
        named = parse(token)
        model = _planted(policy, slip, named.bounds)
        trace = trace_of(model, [model.actions[index] for index in named.actions], name)
        assert breaks_its_property(trace)


def test_the_law_itself_is_broken_by_no_run() -> None:
    """Without a slip the same search finds nothing: it can tell."""
    names = [item.name for item in properties_of(law_of(STRICT, attrs.evolve(PLAIN, requests=2)))]

    assert explored(partial(law_of, STRICT), PLAIN, 2, names) == {}


def _switched_off(term: Term) -> Term:
    """The term with every switch off, simplified as terms are."""
    off = {id(each) for each in SWITCHES.values()}
    made: dict[int, Term] = {}
    for node in nodes(term):
        parts = any(id(arg) in made for arg in node.args)
        again = rebuild(node.op, [made.get(id(arg), arg) for arg in node.args]) if parts else node
        made[id(node)] = const(0) if id(node) in off else again
    return made[id(term)]


def _as_without(policy: str) -> tuple[Model, Model]:
    world = attrs.evolve(WORLDS["whole"], requests=3)
    free = attrs.evolve(world, aspects=world.aspects - set(SWITCHES))
    return law_of(preset(policy), world), law_of(preset(policy), free)


@pytest.mark.parametrize("policy", OURS)
def test_a_switch_that_is_off_is_no_aspect(policy: str) -> None:
    """With the switches off the law is, word for word, the law without what they restrict."""
    switched, free = _as_without(policy)

    assert [each.label for each in switched.actions] == [each.label for each in free.actions]
    for one, other in zip(switched.actions, free.actions, strict=True):
        assert _switched_off(one.guard) is other.guard, one.label
        assert {name: id(_switched_off(term)) for name, term in one.effect.items()} == {
            name: id(term) for name, term in other.effect.items()
        }


def test_the_switches_do_restrict() -> None:
    """On, they change the law: else leaving them open would say nothing."""
    switched, free = _as_without("strict")
    differ = {
        one.name
        for one, other in zip(switched.actions, free.actions, strict=True)
        if one.guard is not other.guard or any(term is not other.effect[name] for name, term in one.effect.items())
    }

    assert {"hold", "executor_rejects"} <= differ


@pytest.mark.parametrize(
    "case",
    quick_if(
        [(policy, world) for policy in PRESETS for world in WORLDS],
        lambda case: case == ("strict", "plain"),
    ),
)
def test_everything_comes_about_in_every_world(case: tuple[str, str]) -> None:
    """Every situation that the law knows is shown by a run, and so is all that the plain world has."""
    policy, world = case
    found = situations_of(partial(law_of, preset(policy)), WORLDS[world], (), timeout_s=10.0)
    plain = law_of(preset(policy), attrs.evolve(PLAIN, requests=2, messages=1))
    wanted = {item.name for item in properties_of(plain) if item.kind == "sometimes"}

    assert [each.name for each in found if each.found != "reached"] == []
    assert wanted <= {each.name for each in found}
    assert {"inserted_beside_another", "refused_alone"} <= wanted


def _never_refuses(bounds: Bounds) -> Model:
    model = law_of(STRICT, bounds)
    actions = [attrs.evolve(each, guard=FALSE) if each.name == "executor_rejects" else each for each in model.actions]
    return attrs.evolve(model, actions=tuple(actions))


def test_a_situation_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an action can never happen that is ruled out, and no run is made up for it."""
    monkeypatch.setattr(situations, "TRIES", ((False, 4_096, 40),))

    found = {each.name: each for each in situations_of(_never_refuses, PLAIN, (), timeout_s=10.0)}

    assert found["executor_rejects_fires"].found == "excluded"
    assert found["refused_alone"].found == "excluded"
    assert found["refused_alone"].token is None
    assert found["hold_fires"].found == "reached"


@pytest.mark.long
def test_what_is_proved_in_vain_is_unknown() -> None:
    """A law whose executor never refuses keeps every promise, and is not proved: its refusals are proved in vain."""
    (found,) = prove_worlds(
        STRICT, worlds={"plain": PLAIN}, names=["dropped_by_reject", "answered_once"], model_of=_never_refuses
    )

    assert found.found.proof.whole == "proved"
    assert worst([found]) == "unknown"
    assert set(verdicts([found]).values()) == {"unknown"}


@pytest.mark.long
@pytest.mark.parametrize("policy", OURS)
def test_ours_are_proved_in_every_world(policy: str) -> None:
    """All worlds of both policies: proved, not in vain, and what one world does not state another does."""
    proofs = prove_worlds(preset(policy))
    missing = unstated(proofs)

    assert [each.name for each in proofs] == list(WORLDS)
    assert {each.whole for each in proofs} == {"proved"}
    assert {each.found.why_not for each in proofs} == {None}
    assert all(each.found.cutoff is not None and 2 < each.found.cutoff < READ for each in proofs)
    assert "not_answered_early" in proofs[1].found.proof.needed
    assert missing["uncut"] == ["moved_is_told"]
    assert missing["whole"] == []


def _stated(world: Bounds) -> Mapping[str, Property]:
    model = law_of(STRICT, attrs.evolve(world, requests=2))
    return {item.name: item for item in properties_of(model) if item.kind == "always"}


def test_every_property_is_stated_in_some_world() -> None:
    """What is promised of the plain world is promised in each, that nobody is answered early for nothing as well."""
    assert "not_answered_early" in _stated(PLAIN)
    assert "moved_is_told" in _stated(WORLDS["whole"])
    for world in WORLDS.values():
        assert set(_stated(PLAIN)) <= set(_stated(world))


def test_worlds_are_chosen_by_name() -> None:
    """All by default; one by its name; a world of one's own begins as the one that is named; else a clear refusal."""
    assert list(chosen((), any_number=True, changes={})) == list(WORLDS)
    assert list(chosen((), any_number=False, changes={})) == ["plain"]
    assert chosen(("uncut",), any_number=True, changes={}) == {"uncut": WORLDS["uncut"]}
    assert chosen(("uncut",), any_number=True, changes={"tags": 1}) == {"own": attrs.evolve(WORLDS["uncut"], tags=1)}
    with pytest.raises(UnknownWorldError, match="known: plain, uncut, whole"):
        chosen(("nowhere",), any_number=True, changes={})
    with pytest.raises(UnknownWorldError, match="name one world"):
        chosen(("plain", "whole"), any_number=False, changes={})
    with pytest.raises(UnknownPropertyError):
        prove_worlds(STRICT, names=["made_up"])
