"""Proofs for a fixed number of requests: verdicts, injected faults, deadlines, symmetry and z3 terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import attrs
import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.spec.cases import breaks_its_property, quick_if
from model_tests.support.spec.strategies import BOOL_NAMES, bools, ints, runs, values

from longpoll_spec.bounds import TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.smt.inductive import induction, prover_of
from longpoll_spec.engines.smt.proof import DEPTH_MAX, prove, prove_model
from longpoll_spec.engines.smt.terms import Frame
from longpoll_spec.engines.symmetry import Renaming, is_representative, is_symmetric, slots_of
from longpoll_spec.engines.tokens import parse, replay
from longpoll_spec.errors import BoundsError, UnknownPropertyError
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.mutants.generated import Change, dropping_conjunct, forgetting, mutated, with_effect
from longpoll_spec.policy import PRESETS, Policy, knob_values, preset, with_knob
from longpoll_spec.specification import assemble, properties_of, specification_of
from longpoll_spec.state import Notifier, Request, State
from longpoll_spec.terms import FALSE, TRUE, Bool, Effect, Int, all_of, const, int_variable, ite

OURS = ("strict", "strict-clone")
UNBOUNDED = Bounds("proof", requests=2, messages=None)


@pytest.mark.parametrize("requests", quick_if([2, 3, 8], lambda requests: requests == 2))
@pytest.mark.parametrize("name", quick_if(OURS, lambda name: name == "strict-clone"))
def test_our_policies_are_proved(name: str, requests: int) -> None:
    policy = preset(name)
    proof = prove(policy, requests=requests)
    wanted = [item.name for item in properties_of(proof.model) if item.kind == "always"]

    assert proof.whole == "proved"
    assert list(proof.needed) == wanted
    assert {each.verdict for each in proof.obligations} == {"proved"}
    assert proof.given_up == {}
    assert proof.model.bounds.messages is None


@pytest.mark.parametrize(
    ("base", "setting", "broken"),
    [
        ("strict", "recheck_after_hold=none", {"no_lost_wakeup": 6, "lost_by_hold": 6, "woken_within": 7}),
        pytest.param(
            "strict",
            "recheck_after_hold=before_lock",
            {"no_lost_wakeup": 7, "lost_by_hold": 7, "woken_within": 8},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "strict", "expiry=scan", {"queued_by_deadline": 6, "answered_by_deadline": 6}, marks=pytest.mark.long
        ),
        ("strict", "on_reject=drop", {"nothing_dropped": 7, "dropped_by_reject": 7}),
        pytest.param(
            "strict", "on_throw=drop_rest", {"nothing_dropped": 7, "dropped_by_throw": 7}, marks=pytest.mark.long
        ),
        pytest.param(
            "strict-clone",
            "on_throw=keep_rest",
            {"no_lost_wakeup": 8, "lost_by_keep": 8, "woken_within": 9},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "strict-clone",
            "recheck_after_keep=false",
            {"no_lost_wakeup": 12, "lost_by_keep": 12, "woken_within": 13},
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_removed_fix_is_refuted_by_a_run_that_replays(base: str, setting: str, broken: dict[str, int]) -> None:
    """A policy without one of its fixes breaks exactly the listed properties, in runs that replay."""
    proof = prove(with_knob(preset(base), setting), requests=3)

    assert {name for name in proof.needed if proof.verdict(name) == "refuted"} == set(broken)
    assert {name for name in proof.needed if proof.verdict(name) == "unknown"} == set()
    for obligation in proof.obligations:
        if obligation.token is not None:
            trace = replay(obligation.token)
            assert trace.property_name == obligation.property_name
            assert trace.depth == obligation.depth == broken[obligation.property_name]
            assert breaks_its_property(trace)


def _variants() -> list[tuple[str, str]]:
    return [
        (name, f"{knob}={str(value).lower()}")
        for name in OURS
        for knob, values in knob_values().items()
        for value in values
        if getattr(preset(name), knob) != value
    ]


@pytest.mark.long
@pytest.mark.parametrize(("name", "setting"), _variants())
def test_a_proof_decides_every_property_for_every_knob(name: str, setting: str) -> None:
    policy = with_knob(preset(name), setting)
    explored = explore(specification_of(policy, named("tiny", policy)))
    proof = prove(policy, requests=3)

    assert "unknown" not in {proof.verdict(each) for each in proof.needed}
    assert {each for each in proof.needed if proof.verdict(each) == "refuted"} == {
        each.name for each in explored.verdicts if each.verdict == "violated"
    }


@pytest.mark.long
def test_z3_and_exploration_find_runs_of_equal_length() -> None:
    policy = preset("rocketmq-4.9")
    explored = explore(specification_of(policy, named("tiny", policy)))
    # With the default depth the proof would explore, not only unroll.
    proof = prove(policy, requests=2, depth_max=DEPTH_MAX - 1)
    depths = {each.property_name: each.depth for each in proof.obligations if each.token is not None}

    assert depths == {each.name: each.depth for each in explored.verdicts if each.verdict == "violated"}
    assert {name for name in proof.needed if proof.verdict(name) == "proved"} == {
        each.name for each in explored.verdicts if each.kind == "always" and each.verdict == "holds"
    }


@pytest.mark.parametrize(
    ("name", "setting", "left_out"),
    [
        pytest.param("strict", None, "in_range", marks=pytest.mark.long),
        pytest.param("strict", None, "ends_in_order", marks=pytest.mark.long),
        pytest.param("strict", None, "queued_is_in_executor", marks=pytest.mark.long),
        pytest.param("strict", None, "standing_is_open", marks=pytest.mark.long),
        ("strict", None, "kept_is_watched"),
        pytest.param("strict-clone", "on_throw=drop_rest", "held_is_watched", marks=pytest.mark.long),
        pytest.param("rocketmq-4.9", "recheck_after_hold=in_lock", "rechecked_is_watched", marks=pytest.mark.long),
        pytest.param("strict", "heap_entry=one_shot", "spent_is_taken", marks=pytest.mark.long),
        pytest.param("strict-clone", "heap_entry=one_shot", "kept_has_time", marks=pytest.mark.long),
    ],
)
def test_every_part_of_the_strengthening_is_needed(name: str, setting: str | None, left_out: str) -> None:
    """Without one statement of the strengthening a proof fails, and shows a state and a step instead of a run."""
    policy = preset(name) if setting is None else with_knob(preset(name), setting)
    model = specification_of(policy, UNBOUNDED)

    def weakened(each: Model) -> Sequence[Property]:
        return [item for item in strengthening_of(each) if item.name != left_out]

    strong = prove_model(model, depth_max=0)
    proof = prove_model(model, strengthening=weakened, depth_max=0)
    lost = {name for name in proof.needed if strong.verdict(name) == "proved" != proof.verdict(name)}
    failed = [each for each in proof.obligations if each.property_name in lost and each.step != "bounded"]

    assert lost
    assert {proof.verdict(name) for name in lost} == {"unknown"}
    for obligation in [each for each in failed if each.verdict != "proved"]:
        shown = obligation.counterexample
        assert shown is not None
        assert len(shown.state) == len(model.variables)
        assert shown.parameters["hold_ticks"] >= 1


def _early(state: State, _action: Action) -> Effect:
    return {"visible_end": state.log_end + 1}


SLIPS: dict[str, tuple[str, Change]] = {
    "hold forgets its recheck": ("hold", forgetting("recheck_due")),
    "a woken pull forgets that it has answered": ("run", forgetting("open")),
    "stop forgets the table": ("stop", forgetting("phase")),
    "the dispatcher outruns the log": ("make_visible", with_effect(_early)),
    "pulls are read at any time": ("pull_read", dropping_conjunct(0)),
    "a walk ends at any time": ("notify_end", dropping_conjunct(0)),
    "the dispatcher walks for nothing": ("notify_start", dropping_conjunct(0)),
}


@pytest.mark.parametrize("slip", quick_if(SLIPS, lambda slip: slip.startswith("hold")))
def test_a_mutant_of_an_action_is_not_proved(slip: str) -> None:
    name, change = SLIPS[slip]
    policy = preset("strict")
    proof = prove_model(
        mutated(policy, UNBOUNDED, name, change),
        depth_max=8,
        smaller=lambda bounds: mutated(policy, bounds, name, change),
    )

    assert proof.whole == "refuted", proof.given_up


def test_a_specification_in_which_time_can_stop_is_not_proved() -> None:
    model = specification_of(preset("strict"), UNBOUNDED)
    idle = [attrs.evolve(each, effect={}) if each.name == "expire" else each for each in model.actions]
    proof = prove_model(attrs.evolve(assemble(model.state, idle), bounds=UNBOUNDED), depth_max=0)

    assert proof.verdict("time_can_pass") == "unknown"
    assert proof.verdict("queued_by_deadline") == "proved"


def test_time_can_pass_while_buckets_are_traversed_for_a_master() -> None:
    """The proof needs the statement that the traversal is at an unvisited queue; else the rank need not decrease."""
    bounds = attrs.evolve(UNBOUNDED, requests=1, aspects=frozenset({"role"}))
    proof = prove_model(specification_of(preset("rocketmq-5"), bounds), names=["time_can_pass"], depth_max=0)

    assert proof.verdict("time_can_pass") == "proved"


def test_a_solver_that_gives_up_leaves_the_property_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("z3.Solver.check", lambda *_args: "unknown")
    proof = prove(preset("strict"), requests=2, names=["answered_once"])

    assert proof.whole == "unknown"
    assert {proof.verdict(name) for name in proof.needed} == {"unknown"}


def test_only_the_named_property_is_proved() -> None:
    proof = prove(preset("strict"), requests=2, names=["answered_once"])

    assert proof.needed == ("answered_once",)
    assert "no_lost_wakeup" not in {each.property_name for each in proof.obligations}
    with pytest.raises(UnknownPropertyError, match="append_fires"):
        prove(preset("strict"), names=["append_fires"])
    with pytest.raises(BoundsError, match="requests"):
        prove(preset("strict"), requests=0)


NAME = "deadline_is_its_pulls"


def _renews_what_it_keeps(state: State, action: Action) -> Effect:
    request = _request(state, action)
    walker: Notifier = state.dispatcher if action.name == "notify_each" else state.scanner
    phase = action.effect[f"phase_{request.index}"]
    assert isinstance(phase, Int)
    return {f"deadline_{request.index}": ite(phase.is_(walker.kept), state.hold_ticks, request.deadline)}


def _stops_at_one(state: State, _action: Action) -> Effect:
    return {
        f"deadline_{each.index}": ite(each.deadline > 1, each.deadline - 1, each.deadline) for each in state.requests
    }


def _two_at_once(state: State, _action: Action) -> Effect:
    return {f"deadline_{each.index}": ite(each.deadline > 1, each.deadline - 2, 0) for each in state.requests}


def _request(state: State, action: Action) -> Request:
    return state.requests[int(action.actors[0])]


DEADLINE_SLIPS: dict[str, tuple[str, Change]] = {
    "the scanner renews what it keeps": ("scan_each", with_effect(_renews_what_it_keeps)),
    "a tick stops at one": ("tick", with_effect(_stops_at_one)),
    "a tick counts double": ("tick", with_effect(_two_at_once)),
    "a tick forgets deadlines": ("tick", forgetting("deadline")),
    "a pull has no deadline": ("next_pull", forgetting("deadline")),
}
WITH_TAGS: dict[str, tuple[str, Change]] = {
    "the dispatcher renews what it keeps": ("notify_each", with_effect(_renews_what_it_keeps))
}
"""A dispatcher that keeps requests for another tag; without tags all its kept requests arrived in the same tick."""


def _broken(model: Model) -> set[str]:
    found = explore(model, [item for item in properties_of(model) if item.kind == "always"], limit_states=100_000)
    return {each.name for each in found.verdicts if each.verdict == "violated"}


@pytest.mark.parametrize("policy", quick_if(OURS, lambda name: name == "strict-clone"))
@pytest.mark.parametrize("slip", [*DEADLINE_SLIPS, *WITH_TAGS])
def test_a_mutant_that_changes_deadlines_violates_their_property(policy: str, slip: str) -> None:
    name, change = {**DEADLINE_SLIPS, **WITH_TAGS}[slip]

    assert NAME in _broken(mutated(preset(policy), TIMEOUTS["timeout"], name, change))


@pytest.mark.parametrize("policy", OURS)
def test_one_tick_hides_a_renewed_deadline(policy: str) -> None:
    """With timeouts of one tick a renewed deadline changes nothing, so longer timeouts are explored too."""
    name, change = DEADLINE_SLIPS["the scanner renews what it keeps"]
    model = mutated(preset(policy), named("tiny", preset(policy)), name, change)

    assert _broken(model) == set()


@pytest.mark.parametrize("policy", quick_if(OURS, lambda policy: policy == "strict"))
@pytest.mark.parametrize("slip", quick_if(DEADLINE_SLIPS, lambda slip: slip == "the scanner renews what it keeps"))
def test_a_mutant_that_changes_deadlines_is_refuted(policy: str, slip: str) -> None:
    name, change = DEADLINE_SLIPS[slip]
    make = partial(_slipped, policy, name, change)
    proof = prove_model(make(Bounds("proof", requests=2, messages=None)), names=[NAME], smaller=make)

    assert proof.verdict(NAME) == "refuted"
    token = proof.obligations[-1].token
    assert token is not None
    assert parse(token).bounds.hold_ticks >= 1


def test_a_dispatcher_that_renews_deadlines_is_refuted_with_tags() -> None:
    """With two tags a dispatcher can keep a request that is older than the tick."""
    name, change = WITH_TAGS["the dispatcher renews what it keeps"]
    make = partial(_slipped, "strict", name, change)
    proof = prove_model(make(Bounds("proof", requests=1, messages=None, tags=2)), names=[NAME], smaller=make)

    assert proof.verdict(NAME) == "refuted"


def _slipped(policy: str, name: str, change: Change, bounds: Bounds) -> Model:
    return mutated(preset(policy), bounds, name, change)


POLICIES = (
    *PRESETS.values(),
    with_knob(preset("rocketmq-4.9"), "recheck_after_hold=in_lock"),
    with_knob(preset("strict-clone"), "on_throw=keep_rest"),
    with_knob(preset("strict-clone"), "heap_entry=one_shot"),
)


@cache
def _inductive(policy: Policy) -> frozenset[str]:
    obligations = prove(policy, requests=2, depth_max=0).obligations
    return frozenset(each.property_name for each in obligations if (each.step, each.verdict) == ("inductive", "proved"))


@pytest.mark.parametrize(
    "policy", quick_if(POLICIES, lambda policy: policy.name == "strict"), ids=lambda policy: policy.name
)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_an_inductive_statement_holds_in_every_run(policy: Policy, data: st.DataObject) -> None:
    model = specification_of(policy, named("tiny", policy, messages=2))
    _actions, state = data.draw(runs(model))
    kept = [item for item in (*properties_of(model), *strengthening_of(model)) if item.name in _inductive(policy)]

    assert kept
    for item in kept:
        assert evaluate(item.here, values_of(model, state)), f"{policy.name}: {item.name}"


def _model(name: str = "strict") -> Model:
    return specification_of(preset(name), Bounds("proof", requests=3, messages=None))


@pytest.mark.parametrize("name", PRESETS)
def test_the_specification_is_symmetric(name: str) -> None:
    model = _model(name)

    assert is_symmetric(model, [item.term for item in properties_of(model)])


@pytest.mark.parametrize(
    "slip",
    [lambda each: attrs.evolve(each, guard=FALSE), lambda each: attrs.evolve(each, effect={})],
    ids=["guard", "effect"],
)
def test_a_mutant_of_one_instance_breaks_symmetry(slip: Callable[[Action], Action]) -> None:
    model = _model()
    changed = [slip(each) if each.label == "hold(2)" else each for each in model.actions]

    assert not is_symmetric(attrs.evolve(model, actions=tuple(changed)), [])


def test_a_statement_about_one_request_is_not_symmetric() -> None:
    model = _model()

    assert not is_symmetric(model, [model.state.requests[1].open])
    assert is_symmetric(model, [TRUE, model.state.running])


def test_the_first_choice_of_each_kind_represents_the_others() -> None:
    """Of several choices of requests that are equal by symmetry, only the first is checked."""
    model = _model()
    by_label = {action.label: action for action in model.actions}
    open_of = [request.open for request in model.state.requests]

    assert is_representative(by_label["hold(0)"], open_of[0])
    assert is_representative(by_label["hold(0)"], open_of[1])
    assert not is_representative(by_label["hold(0)"], open_of[2])
    assert not is_representative(by_label["hold(1)"], open_of[0])
    assert is_representative(by_label["tick"], open_of[0])
    assert not is_representative(by_label["tick"], open_of[1])
    assert is_representative(by_label["notifier_throws(scanner,0)"])
    assert slots_of(open_of[0] & open_of[2]) == [0, 2]
    assert Renaming({1: 2}).name("offset_1") == "offset_2"
    assert Renaming({1: 2}).name("visible_end") == "visible_end"


def test_queues_are_interchangeable() -> None:
    policy = preset("strict")
    model = specification_of(policy, Bounds("three", requests=2, messages=1, queues=3))
    slip = [
        attrs.evolve(each, effect={**each.effect, "queue_0": const(1)}) if each.label == "next_pull(0,q0)" else each
        for each in model.actions
    ]
    ordered = all_of(int_variable(f"queue_{slot}") < 2 for slot in range(2))

    assert is_symmetric(model, [])
    assert is_symmetric(model, [all_of(int_variable(f"queue_{slot}") < 3 for slot in range(2))])
    assert not is_symmetric(attrs.evolve(model, actions=tuple(slip)), [])
    assert not is_symmetric(model, [ordered])
    assert not is_symmetric(model, [int_variable("visible_end_q1") > 0])
    assert Renaming(queues={0: 2}).name("visible_end_q0") == "visible_end_q2"
    assert Renaming(queues={0: 2}).actor("q0") == "q2"
    assert Renaming(queues={0: 2}).actor("scanner") == "scanner"


def _frame(given_values: dict[str, int]) -> Frame:
    return Frame(
        {
            name: z3.BoolVal(bool(value)) if name in BOOL_NAMES else z3.IntVal(value)
            for name, value in given_values.items()
        },
        {},
    )


@given(term=ints(), at=values)
def test_an_integer_term_has_the_same_value_in_z3(term: Int, at: dict[str, int]) -> None:
    meant = z3.simplify(_frame(at).meaning(term))

    assert isinstance(meant, z3.IntNumRef)
    assert meant.as_long() == evaluate(term, at)


@given(term=bools(), at=values)
def test_a_boolean_term_has_the_same_value_in_z3(term: Bool, at: dict[str, int]) -> None:
    assert z3.is_true(z3.simplify(_frame(at).meaning(term))) == bool(evaluate(term, at))


def test_parameters_and_messages_are_open() -> None:
    """A statement that holds only for one timeout, one scan period or one number of messages is not inductive."""
    model = specification_of(preset("strict"), Bounds("proof", requests=1, messages=None))
    state = model.state
    claims = {
        "one_tick": state.requests[0].deadline <= 1,
        "two_ticks": state.next_scan <= 2,
        "two_messages": state.log_end <= 2,
        "nothing_below_zero": state.log_end >= 0,
    }
    items = [Property(name, "inductive", name, term, here=term) for name, term in claims.items()]
    made = induction(prover_of(model, items, timeout_s=10), items)

    assert [item.name for item in made.kept] == ["nothing_below_zero"]
    assert made.initial["two_ticks"].verdict == "refuted"
    assert made.inductive["one_tick"].verdict == "refuted"
