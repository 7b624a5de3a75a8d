"""Our own policies are proved; every removal, weakening and slip is seen, with a run that shows it where one exists."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.proof import DEPTH_MAX, prove, prove_model
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import BoundsError, UnknownPropertyError
from longpoll_spec.invariant import strengthening_of
from longpoll_spec.law import assemble, law_of, properties_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.policy import knob_values, preset, with_knob
from longpoll_spec.state import State
from longpoll_spec.terms import FALSE, Effect
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.slips import Change, dropping_conjunct, forgetting, slipped, with_effect
from longpoll_spec.testing.traces import breaks_its_property

OURS = ("strict", "strict-clone")
UNBOUNDED = Bounds("proof", requests=2, messages=None)


@pytest.mark.parametrize("requests", quick_if([2, 3, 8], lambda requests: requests == 8))
@pytest.mark.parametrize("name", quick_if(OURS, lambda name: name == "strict-clone"))
def test_our_policies_are_proved(name: str, requests: int) -> None:
    """Every property of our policies is proved, every single obligation with it, and nothing is given up."""
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
        ("strict", "expiry=scan", {"queued_by_deadline": 6, "answered_by_deadline": 6}),
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
def test_a_removed_remedy_is_refuted_by_a_run_that_replays(base: str, setting: str, broken: dict[str, int]) -> None:
    """Without one of its remedies a policy breaks exactly these properties, shown by runs that replay plainly."""
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
def test_every_knob_is_decided(name: str, setting: str) -> None:
    """With any one knob of ours set otherwise, each property is proved or refuted, as exploring says it should be."""
    policy = with_knob(preset(name), setting)
    explored = explore(law_of(policy, named("tiny", policy)))
    proof = prove(policy, requests=3)

    assert "unknown" not in {proof.verdict(each) for each in proof.needed}
    assert {each for each in proof.needed if proof.verdict(each) == "refuted"} == {
        each.name for each in explored.verdicts if each.verdict == "violated"
    }


@pytest.mark.long
def test_z3_and_exploring_find_runs_of_one_length() -> None:
    """For every property of rocketmq-4.9 both ways give the same verdict, and shortest runs of the same length."""
    policy = preset("rocketmq-4.9")
    explored = explore(law_of(policy, named("tiny", policy)))
    proof = prove(policy, requests=2, depth_max=DEPTH_MAX - 1)  # with the usual depth the proof itself explores
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
    model = law_of(policy, UNBOUNDED)

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


@pytest.mark.parametrize("slip", quick_if(SLIPS, lambda slip: slip.startswith(("hold", "pulls"))))
def test_a_slip_in_an_action_is_not_proved(slip: str) -> None:
    """A planted slip in one action's text is refuted by a run of the law with that slip."""
    name, change = SLIPS[slip]
    policy = preset("strict")
    proof = prove_model(
        slipped(policy, UNBOUNDED, name, change),
        depth_max=8,
        smaller=lambda bounds: slipped(policy, bounds, name, change),
    )

    assert proof.whole == "refuted", proof.given_up


@pytest.mark.long
def test_a_slip_in_one_instance_is_seen() -> None:
    """A slip that spares request 0 is found: nothing is left out where requests are not interchangeable."""
    model = law_of(preset("strict"), UNBOUNDED)
    actions = [
        attrs.evolve(each, effect={**each.effect, "recheck_due_1": FALSE}) if each.label == "hold(1)" else each
        for each in model.actions
    ]
    proof = prove_model(attrs.evolve(model, actions=tuple(actions)), depth_max=0)

    assert proof.verdict("no_lost_wakeup") == "unknown"
    failed = next(each for each in proof.obligations if each.counterexample is not None)
    assert failed.counterexample is not None
    assert failed.counterexample.action is not None
    assert failed.counterexample.action.label == "hold(1)"


def test_time_locked_for_ever_is_seen() -> None:
    """An urgent step that leads nowhere breaks time_can_pass, though every deadline is then kept."""
    model = law_of(preset("strict"), UNBOUNDED)
    idle = [attrs.evolve(each, effect={}) if each.name == "expire" else each for each in model.actions]
    proof = prove_model(attrs.evolve(assemble(model.state, idle), bounds=UNBOUNDED), depth_max=0)

    assert proof.verdict("time_can_pass") == "unknown"
    assert proof.verdict("queued_by_deadline") == "proved"


@pytest.mark.long
def test_too_short_runs_leave_it_unknown() -> None:
    """Where runs are cut short nothing is claimed: the property is unknown, not refuted and not proved."""
    proof = prove(with_knob(preset("strict"), "recheck_after_hold=none"), requests=2, depth_max=5)

    assert proof.whole == "unknown"
    assert proof.verdict("no_lost_wakeup") == "unknown"
    assert [each.depth for each in proof.obligations if each.step == "bounded"] == [5, 5, 5]


def test_a_solver_that_gives_up_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """When z3 answers unknown to everything, nothing is proved and nothing refuted."""
    monkeypatch.setattr("z3.Solver.check", lambda *_args: "unknown")
    proof = prove(preset("strict"), requests=2)

    assert proof.whole == "unknown"
    assert {proof.verdict(name) for name in proof.needed} == {"unknown"}


def test_only_what_is_asked_for_is_shown() -> None:
    """A named property is proved alone, with the strengthening it needs; an unknown name is the user's mistake."""
    proof = prove(preset("strict"), requests=2, names=["answered_once"])

    assert proof.needed == ("answered_once",)
    assert "no_lost_wakeup" not in {each.property_name for each in proof.obligations}
    with pytest.raises(UnknownPropertyError, match="append_fires"):
        prove(preset("strict"), names=["append_fires"])
    with pytest.raises(BoundsError, match="requests"):
        prove(preset("strict"), requests=0)
