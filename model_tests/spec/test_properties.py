"""Properties: the faults that violate each one, with which feature, and which properties hold vacuously."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.strategies import runs

from longpoll.cli import main
from longpoll_spec.actions import faults
from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, holds, trace_of, values_of
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.engines.python import STILL, Graph, _fair_parts, unanswered
from longpoll_spec.engines.smt.proof import PLAIN, prove_model
from longpoll_spec.engines.survey import response_bounds
from longpoll_spec.engines.tokens import replay, token_of
from longpoll_spec.errors import BoundsError
from longpoll_spec.findings import FACTS
from longpoll_spec.model import Action, Model, select
from longpoll_spec.mutants.generated import Change, dropping_conjunct, forgetting, mutated, with_effect, without
from longpoll_spec.mutants.named import NAMED
from longpoll_spec.policy import PRESETS, STRICT, Policy, preset, with_knob, with_knobs
from longpoll_spec.properties.answers import offset_goes_on
from longpoll_spec.properties.order import stays_in_range, visible_is_monotone
from longpoll_spec.specification import Fairness, fairness_of, properties_of, specification_of
from longpoll_spec.state import Queue, Request, State, state_of
from longpoll_spec.terms import FALSE, TRUE, Bool, Effect, Int, any_of, const, int_variable, ite

SHORTEST = {
    "lost_by_hold": "append next_pull pull_read make_visible notify_start hold",
    "lost_by_keep": "append tick tick next_pull pull_read hold scan_start scan_each make_visible notify_start scan_end",
    "queued_by_deadline": "next_pull pull_read hold tick tick",
    "answered_on_stop": "next_pull pull_read hold stop",
}
BROKEN_BY = {
    "recheck_after_hold=none": {"no_lost_wakeup", "lost_by_hold", "woken_within"},
    "recheck_after_hold=before_lock": {"no_lost_wakeup", "lost_by_hold", "woken_within"},
    "recheck_after_hold=in_lock": {"no_lost_wakeup", "lost_by_hold", "woken_within"},
    "expiry=scan": {"queued_by_deadline", "answered_by_deadline"},
    "notify=dispatcher_poll": {"woken_within"},
    "on_reject=drop": {"nothing_dropped", "dropped_by_reject"},
    "on_throw=drop_rest": {"nothing_dropped", "dropped_by_throw"},
    "on_throw=keep_rest": {"no_lost_wakeup", "lost_by_keep", "woken_within"},
    "on_stop=silent": {"answered_on_stop", "queued_by_deadline", "answered_by_deadline"},
}


def _violated(policy: Policy) -> set[str]:
    result = explore(specification_of(policy, named("tiny", policy)))
    return {verdict.name for verdict in result.verdicts if verdict.verdict == "violated"}


@pytest.mark.parametrize(("name", "steps"), SHORTEST.items())
def test_the_shortest_counterexample_is_the_known_race(name: str, steps: str) -> None:
    policy = preset("rocketmq-4.9")
    token = explore(specification_of(policy, named("tiny", policy))).verdict(name).token
    assert token is not None

    taken = [step.action.name for step in replay(token).steps if step.action is not None]
    assert sorted(taken) == sorted(steps.split())
    assert len(taken) == len(steps.split())


@pytest.mark.parametrize("base", quick_if(["strict", "strict-clone"], lambda name: name == "strict-clone"))
@pytest.mark.parametrize(("setting", "broken"), BROKEN_BY.items())
def test_each_fix_is_needed(base: str, setting: str, broken: set[str]) -> None:
    assert _violated(with_knob(preset(base), setting)) == broken


def test_a_clone_needs_its_recheck() -> None:
    """Without the recheck after the put-back, clone-and-clear loses a wakeup; a traversal in place needs no recheck."""
    broken = {"no_lost_wakeup", "lost_by_keep", "woken_within"}

    assert _violated(with_knob(preset("strict-clone"), "recheck_after_keep=false")) == broken
    assert _violated(with_knob(preset("strict"), "take=clone_and_clear")) == broken
    assert _violated(preset("strict")) == set()


def test_a_used_heap_entry_loses_its_deadline_if_time_is_free() -> None:
    free = with_knob(preset("strict-clone"), "tick=free")

    assert _violated(free) == set()
    assert _violated(with_knob(free, "heap_entry=one_shot")) == {"no_lost_deadline"}


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "rocketmq-pr7359"))
@settings(max_examples=15)
@given(data=st.data())
def test_the_term_of_a_property_equals_its_state_and_step_parts(name: str, data: st.DataObject) -> None:
    model = specification_of(preset(name), named("tiny", preset(name)))
    guards = {action.label: action.guard for action in model.actions}
    _, state = data.draw(runs(model))
    values = values_of(model, state)

    for item in properties_of(model):
        breaks = any(evaluate(guards[label] & condition, values) for label, condition in item.closing)
        assert holds(model, item, state) == (bool(evaluate(item.here, values)) and not breaks), item.name


MOVED = offset_goes_on.__name__


def _asks_for_the_next(state: State, action: Action) -> Effect:
    """Inject a fault: a hold waits for the message after the next message."""
    request = state.requests[int(action.actors[0])]
    return {str(request.offset.args[0]): request.offset + 1}


def _turns_to_the_beginning(state: State, action: Action) -> Effect:
    request = state.requests[int(action.actors[0])]
    return {str(request.offset.args[0]): state.queues[0].visible_end}


SLIPS: dict[str, tuple[str, Change, str]] = {
    "begins anew": (*NAMED["next_pull begins_anew"], "tiny"),
    "begins anew among tags": (*NAMED["next_pull begins_anew"], "tags"),
    "asks for the next": ("hold", with_effect(_asks_for_the_next), "tiny"),
    "turns to another end": ("next_pull", with_effect(_turns_to_the_beginning), "queues"),
}


def _with_requests_in_it(state: State, action: Action) -> Effect:
    """Inject a fault: a sweep removes a bucket that holds requests."""
    return {queue.present.args[0]: FALSE for queue in state.queues if queue.present.args[0] in action.effect}


def _commits_the_end(state: State, action: Action) -> Effect:
    """Inject a fault: a commit commits the queue's end, even if the messages were not handled."""
    request = state.requests[int(action.actors[0])]
    return {str(request.committed.args[0]): state.queues[0].log_end}


FAULTS: dict[str, tuple[str, Change, str, str]] = {
    "removes a bucket in use": ("sweep", with_effect(_with_requests_in_it), "buckets", "no_orphan"),
    "commits the end": ("offset_commit", with_effect(_commits_the_end), "commits", "commit_never_regresses"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_feature_is_found(fault: str) -> None:
    action, change, bounds, name = FAULTS[fault]
    right = specification_of(STRICT, named(bounds, STRICT, requests=1))
    wrong = mutated(STRICT, right.bounds, action, change)

    assert explore(right, select(properties_of(right), [name])).verdict(name).verdict == "holds"
    assert explore(wrong, select(properties_of(wrong), [name])).verdict(name).verdict == "violated"


OUTLIVES: Final = ("truncate", "queue_deleted", "crash_and_recover")
COMMITS: Final = {**dict.fromkeys(("offset_commit", "pull_read", *OUTLIVES), "truncate"), "crash_and_recover": "crash"}
"""Maps an action that may leave a committed offset beyond its queue's end to the feature that has this action."""


def _keeps_the_commit(_state: State, action: Action) -> Effect:
    return {name: int_variable(name) for name in action.effect if name.startswith("committed")}


def _commits_what_comes(state: State, action: Action) -> Effect:
    request = state.requests[int(action.actors[0])]
    told = request.offset if action.name == "offset_commit" else request.carried
    return {str(request.committed.args[0]): told}


def _in_queue(model: Model) -> str:
    name = "commit_in_queue"
    return explore(model, select(properties_of(model), [name]), limit_states=20_000).verdict(name).verdict


@pytest.mark.parametrize("action", COMMITS)
def test_a_committed_offset_beyond_its_queue_is_found(action: str) -> None:
    chosen = with_knob(STRICT, "visible_after=append")
    bounds = named(COMMITS[action], chosen, requests=1, aspects=["commits"])
    change = with_effect(_keeps_the_commit if action in OUTLIVES else _commits_what_comes)

    assert _in_queue(specification_of(chosen, bounds)) == "holds"
    assert _in_queue(mutated(chosen, bounds, action, change)) == "violated"


@pytest.mark.parametrize(("policy", "keeps"), [("rocketmq-4.9", True), ("rocketmq-5", False), ("strict", False)])
def test_a_deleted_queue_keeps_its_committed_offsets_on_4_9_only(policy: str, keeps: bool) -> None:
    model = specification_of(
        preset(policy), named("truncate", preset(policy), requests=1, messages=1, aspects=["commits"])
    )
    (deleted,), (cut,) = model.named("queue_deleted"), model.named("truncate")
    committed = model.state.requests[0].committed

    assert (deleted.effect["committed_0"] is committed) == keeps
    assert (cut.effect["committed_0"] is committed) == policy.startswith("rocketmq")


@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("feature", ["truncate", "crash"])
def test_in_rocketmq_a_committed_offset_outlives_its_queue(policy: str, feature: str) -> None:
    chosen = preset(policy)
    bounds = named(feature, chosen, requests=1, messages=1, aspects=["commits"])

    assert _in_queue(specification_of(chosen, bounds)) == ("violated" if policy.startswith("rocketmq") else "holds")


def _planted(slip: str, bounds: Bounds | None = None) -> Model:
    name, change, size = SLIPS[slip]
    return mutated(STRICT, bounds or named(size, STRICT), name, change)


@pytest.mark.parametrize("slip", SLIPS)
def test_an_offset_that_changes_without_an_answer_is_found(slip: str) -> None:
    model = _planted(slip)
    verdict = explore(model, [offset_goes_on(model)], limit_states=300_000).verdict(MOVED)

    assert verdict.verdict == "violated"


def test_a_mutant_is_not_proved() -> None:
    proof = prove_model(_planted("begins anew", PLAIN), names=[MOVED], depth_max=0)

    assert proof.verdict(MOVED) != "proved"


OURS = ("strict", "strict-clone")


def _never_moves(_state: State, request: Request) -> Int:
    return request.offset


def _moves_too_far(state: State, request: Request) -> Int:
    return state.visible_end_of(request) + 1


def _forgets_the_beginning(_state: State, _request: Request) -> Bool:
    return FALSE


def _is_never_moved(_state: State, _request: Request) -> Bool:
    return FALSE


def _always_answers(_state: State, _request: Request) -> Bool:
    return TRUE


SHARED: dict[str, tuple[str, Callable[[State, Request], Any], str, str]] = {
    "a read never moves the offset": ("offset_after_read", _never_moves, "tiny", "answer_is_right"),
    "a read moves past the end": ("offset_after_read", _moves_too_far, "truncate", "answer_is_right"),
    "a read forgets the beginning": ("is_trimmed", _forgets_the_beginning, "truncate", "answer_is_right"),
    "a read answers whatever there is": ("is_answered_by_read", _always_answers, "tiny", "answer_is_right"),
    "no offset is ever gone": ("is_moved", _is_never_moved, "truncate", "moved_is_told"),
    "no role has changed since the read": ("is_told_of_role", _is_never_moved, "role", "told_of_role_change"),
}
"""Maps a mistake in a helper that effects and properties once shared to (name of the helper, the wrong helper, bounds
under which the mistake shows, violated property)."""


def _broken(policy: str, bounds: Bounds) -> set[str]:
    model = specification_of(preset(policy), bounds)
    found = explore(model, [item for item in properties_of(model) if item.kind == "always"], limit_states=100_000)
    return {each.name for each in found.verdicts if each.verdict == "violated"}


@pytest.mark.parametrize("policy", quick_if(OURS, lambda name: name == "strict-clone"))
@pytest.mark.parametrize("slip", SHARED)
def test_a_mistake_in_a_shared_helper_is_caught_by_the_property(
    slip: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper, wrong, bounds, name = SHARED[slip]
    monkeypatch.setattr(State, helper, wrong)

    assert name in _broken(policy, named(bounds, preset(policy)))


ANSWERED_BY: Final = {
    "insert": ("next_pull(0,q0)", "pull_read(0)", "role_change", "hold(0)"),
    "put-back": (
        *("tick", "tick", "next_pull(0,q0)", "pull_read(0)", "hold(0)"),
        *("scan_start(q0)", "role_change", "scan_each(0)", "scan_end(q0)"),
    ),
}


@pytest.mark.parametrize("change", ["role_change", "master_returns"])
@pytest.mark.parametrize("steps", ANSWERED_BY.values(), ids=ANSWERED_BY)
def test_a_change_of_role_answers_requests_outside_the_buckets(steps: Sequence[str], change: str) -> None:
    policy = with_knobs(preset("rocketmq-5"), ["on_role_change=answer", "on_master_return=answer"])
    model = specification_of(policy, named("role", policy, requests=1))
    by_label = {action.label: action for action in model.actions}
    last = trace_of(model, [by_label[change if each == "role_change" else each] for each in steps]).steps[-1].state
    values = {variable.name: value for variable, value in zip(model.variables, last, strict=True)}

    assert (values["phase_0"], values["open_0"], values["role_news_0"]) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["rocketmq-4.9", "rocketmq-5"])
def test_a_crash_leaves_no_queue_that_begins_after_its_end(policy: str) -> None:
    """Old messages are deleted without a flush. If a crash removes later messages, the queue begins at its end."""
    chosen = preset(policy)
    model = specification_of(chosen, named("crash", chosen, requests=1, messages=1, aspects=["truncate"]))
    steps = ("append", "make_visible", "trim", "crash_and_recover")
    by_label = {action.label: action for action in model.actions}
    last = trace_of(model, [by_label[each] for each in steps]).steps[-1].state
    values = {variable.name: value for variable, value in zip(model.variables, last, strict=True)}
    begins_late = _crash_keeps_the_beginning(model.policy, model.bounds)

    assert values["visible_start"] == values["visible_end"] == 0
    assert explore(model, [visible_is_monotone(model)]).verdict("visible_is_monotone").verdict == "holds"
    wrong = explore(begins_late, [visible_is_monotone(begins_late)]).verdict("visible_is_monotone")
    assert (wrong.verdict, wrong.depth) == ("violated", len(steps))


def _crash_keeps_the_beginning(policy: Policy, bounds: Bounds) -> Model:
    """Inject a fault: a crash keeps the beginning of the queue."""
    return mutated(policy, bounds, "crash_and_recover", forgetting("visible_start"))


def test_vacuous_properties_are_distinguished() -> None:
    """The terms alone show that `seen_survives` holds vacuously for strict, but not with visible unflushed messages."""
    bounds = EXPLORATIONS["crash"]
    folded = {
        name: {item.name for item in properties_of(specification_of(preset(name), bounds)) if item.by_construction}
        for name in ("strict", "rocketmq-4.9")
    }

    assert "only_disk_survives" in folded["strict"]
    assert "seen_survives" not in folded["rocketmq-4.9"]
    assert "no_lost_wakeup" not in folded["strict"]


def test_check_and_prove_mark_vacuous_properties() -> None:
    """The text output does not call a vacuous property held or proved; the JSON has the verdict with a mark."""
    name = "only_disk_survives"
    check = ["check", "--policy", "strict", "--bounds", "crash", "--property", name, "--all"]
    proof = ["prove", "--policy", "strict", "--aspect", "crash", "--requests", "2", "--property", name]
    told = [CliRunner().invoke(main, words) for words in (check, proof)]

    assert [done.exit_code for done in told] == [0, 0]
    for done in told:
        row = next(line for line in done.output.splitlines() if name in line)
        assert "by construction" in row
        assert "holds" not in row
        assert "proved" not in row
    as_json = [CliRunner().invoke(main, [*words, "--json"]).output for words in (check, proof)]
    assert '"by_construction":true' in as_json[0]
    assert f'"by_construction":["{name}"]' in as_json[1]


def test_properties_that_could_break_are_not_marked_vacuous() -> None:
    words = ["check", "--policy", "strict", "--bounds", "buckets", "--property", "no_lost_wakeup"]
    done = CliRunner().invoke(main, words)

    assert "by construction" not in done.output
    assert "holds" in done.output


BROKEN_BY_ASPECTS = {
    ("tags", "notify_grain=batch"): {"no_lost_wakeup", "lost_by_keep", "woken_within"},
    ("tags", "notify=before_visible"): {"no_lost_wakeup", "lost_by_keep", "woken_within"},
    ("buckets", "bucket_removal=never"): {"buckets_are_swept"},
    ("commits", "commit=before_hold"): {"commit_never_regresses"},
    ("commits", "commit=after_hold"): {"commit_never_regresses"},
    ("channels", "on_close=ignore"): {"closed_is_let_go"},
    ("limit", "hold_limit=at_read"): {"hold_limit_kept"},
    ("truncate", "on_truncate=ignore"): {"moved_is_told"},
    ("crash", "visible_after=append"): {"seen_survives"},
    ("role", "on_role_change=ignore"): {"told_of_role_change"},
    ("role", "on_master_return=ignore"): {"told_of_master_return"},
    ("role", "on_master_return=look_then_take"): {"return_is_whole", "told_of_master_return"},
    ("crash", "visible_after=flush_if_sync"): {"seen_survives"},
    ("role", "scan_throw=abort_round"): {"round_is_whole"},
    ("role", "slave=reads_only"): {"no_lost_wakeup", "lost_by_keep", "woken_within"},
}
"""(feature, changed knob of strict) -> the properties that this change breaks."""


def _violated_aspects(model: Model) -> set[str]:
    judged = [item for item in properties_of(model) if item.kind != "sometimes"]
    found = explore(model, judged)
    assert found.complete
    return {verdict.name for verdict in found.verdicts if verdict.verdict == "violated"}


def _changed(setting: str, base: str = "strict") -> Policy:
    return with_knob(preset(base), setting)


QUICK = {("channels", "on_close=ignore"), ("crash", "visible_after=append")}


@pytest.mark.parametrize("broken", quick_if(BROKEN_BY_ASPECTS, lambda case: case in QUICK), ids="-".join)
def test_each_knob_of_strict_is_needed_with_its_feature(broken: tuple[str, str]) -> None:
    aspect, setting = broken

    assert _violated_aspects(specification_of(_changed(setting), EXPLORATIONS[aspect])) == BROKEN_BY_ASPECTS[broken]
    assert _violated_aspects(specification_of(preset("strict"), EXPLORATIONS[aspect])) == set()


def test_an_unsafe_removal_orphans_a_bucket_even_under_strict() -> None:
    """Arrivals never find a bucket that was removed because it looked empty, so its request waits for its deadline."""
    changed = _changed("bucket_removal=if_empty_unsafe")

    assert "no_orphan" in _violated_aspects(specification_of(changed, EXPLORATIONS["buckets"]))


def test_announcing_by_tag_is_safe_for_each_message_and_not_for_batches() -> None:
    """The tag of a batch's last message says nothing about the batch's other messages."""
    batch = _changed("notify_grain=batch")

    assert "no_lost_wakeup" in _violated_aspects(specification_of(batch, EXPLORATIONS["tags"]))
    assert (
        _violated_aspects(specification_of(with_knob(batch, "notify_only_if_tag_matches=false"), EXPLORATIONS["tags"]))
        == set()
    )
    assert _violated_aspects(specification_of(batch, named("tiny", batch, messages=2))) == set()


def test_an_announcement_may_come_at_the_append_but_not_before_the_message_is_visible() -> None:
    """A notification at the append is safe once the message is visible; before that it loses a wakeup."""
    early = _changed("notify=before_visible")

    assert preset("strict").notify == "at_append"
    assert _violated_aspects(specification_of(preset("strict"), named("tiny", early))) == set()
    assert "no_lost_wakeup" in _violated_aspects(specification_of(early, named("tiny", early)))


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
def test_strict_keeps_all_properties_with_all_features(name: str) -> None:
    aspects = frozenset(set(ASPECTS) - {"lateness"})
    bounds = Bounds("all", requests=1, messages=1, queues=2, tags=2, aspects=aspects)
    model = specification_of(preset(name), bounds)
    found = explore(model, engine="python", limit_states=3_000)

    broken = {verdict.name for verdict in found.verdicts if verdict.verdict == "violated"}
    assert found.distinct_states >= 3_000
    assert not broken & {"stays_in_range", "time_can_pass", "lists_have_owners", "answer_is_right"}
    assert not (broken and name.startswith("strict"))


def test_a_model_without_features_has_none_of_their_variables() -> None:
    names = {variable.name for variable in state_of(preset("rocketmq-lmq"), named("tiny", preset("strict"))).variables}

    assert not {name for name in names if name.startswith(("queue", "wants", "present", "committed", "closed", "late"))}
    assert {"log_end", "visible_end", "phase_0", "offset_1"} <= names


@pytest.mark.parametrize("bounds", EXPLORATIONS.values(), ids=EXPLORATIONS)
def test_a_token_has_its_bounds_and_features(bounds: Bounds) -> None:
    model = specification_of(preset("rocketmq-4.9"), bounds)
    first = next(action for action in model.actions if action.name == "next_pull")
    back = replay(token_of(model, [first])).model.bounds

    assert attrs.evolve(back, name=bounds.name) == bounds


def test_the_token_of_a_model_without_features_has_its_old_form() -> None:
    token = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAgQAAQgGxyPaLw"  # noqa: S105 - a run, no secret

    assert replay(token).model.bounds == Bounds("token", 2, 1, 1, 2)


@pytest.mark.parametrize("scan_ticks", [2, 3, 4])
@pytest.mark.parametrize("name", PRESETS)
def test_tight_bounds_on_answers(name: str, scan_ticks: int) -> None:
    """RocketMQ answers up to a scan's period less one tick late and wakes within a period; strict is never late."""
    aspects = frozenset({"lateness"})
    found = response_bounds(preset(name), Bounds("lateness", requests=1, scan_ticks=scan_ticks, aspects=aspects))
    ticks = {bound.name: bound.ticks for bound in found}

    assert ticks == (
        {"late": 0, "woken": 0} if name.startswith("strict") else {"late": scan_ticks - 1, "woken": scan_ticks}
    )
    for bound in found:
        assert (bound.token is None) == (bound.ticks == 0)
        if bound.token is not None:
            assert max(replay(bound.token).steps[-1].state) >= (bound.ticks or 0)


def test_response_bounds_need_the_feature_lateness() -> None:
    with pytest.raises(BoundsError, match="lateness"):
        response_bounds(preset("strict"), named("tiny", preset("strict")))
    assert response_bounds(_changed("tick=free")) == ()


def test_an_early_answer_violates_a_property() -> None:
    policy = preset("strict")
    tiny = named("tiny", policy)
    model = specification_of(policy, tiny)
    guard = next(action for action in model.actions if action.name == "expire").guard
    looks = next(place for place, part in enumerate(guard.args) if "deadline_0" in str(part))

    assert "not_answered_early" in _violated_aspects(mutated(policy, tiny, "expire", dropping_conjunct(looks)))


FOUND_ON = {
    "a": {"rocketmq-4.9", "rocketmq-5", "rocketmq-lmq"},
    "b": {"rocketmq-4.9", "rocketmq-5", "rocketmq-pr7359", "rocketmq-lmq"},
    "i": {"rocketmq-4.9", "rocketmq-5", "rocketmq-pr7359"},
    "j": {"rocketmq-lmq"},
    "l": {"rocketmq-4.9"},
    "m": {"rocketmq-5", "rocketmq-pr7359", "rocketmq-lmq"},
    "slave": {"rocketmq-4.9"},
}
"""Finding that only some policies of RocketMQ have -> the names of these policies."""
WITNESS = {"a": "lost_by_hold", "b": "lost_by_keep", "c": "queued_by_deadline", "d": "nothing_dropped"}
"""Finding -> the property that distinguishes it from other findings with the same violated property."""


def _broken_hazards(entries: list[Entry], policy: str) -> set[str]:
    return {name for entry in entries if entry.policy == policy for name in entry.violated}


@pytest.mark.parametrize("policy", PRESETS)
def test_each_preset_breaks_exactly_the_properties_of_its_findings(policy: str) -> None:
    assert _broken_hazards(pinned(), policy) == set(FACTS[policy])


@pytest.mark.parametrize("hazard", [*FOUND_ON, "c", "d", "e", "g", "h", "o", "p"])
def test_each_finding_occurs_with_exactly_its_presets(hazard: str) -> None:
    rocketmq = {name for name in PRESETS if name.startswith("rocketmq")}
    witness = WITNESS.get(hazard)
    found = {
        policy
        for policy, facts in FACTS.items()
        for name, signs in facts.items()
        if hazard in signs and witness in {None, name}
    }

    assert found == FOUND_ON.get(hazard, rocketmq)


OURS_PROGRESS: Final = ("strict", "strict-clone")
CUT: Final = frozenset({"truncate"})
TWO_TAGS: Final = Bounds("two-tags", requests=1, messages=1, tags=2, aspects=CUT)
TWO_QUEUES: Final = Bounds("two-queues", requests=1, messages=1, queues=2, aspects=CUT)
WORLDS: Final[dict[str, Bounds]] = {
    each.name: each
    for each in (
        named("tiny", preset("rocketmq-4.9")),
        named("truncate", preset("strict")),
        named("crash", preset("strict")),
        TIMEOUTS["timeout"],
        TWO_TAGS,
        TWO_QUEUES,
    )
}
QUICK_PROGRESS: Final = {("strict", "two-tags"), ("strict-clone", "two-tags")}


@pytest.mark.parametrize(
    "case", quick_if(product(OURS_PROGRESS, WORLDS), lambda case: case in QUICK_PROGRESS), ids="-".join
)
def test_our_policies_answer_every_pull(case: tuple[str, str]) -> None:
    policy, world = case

    assert unanswered(specification_of(preset(policy), WORLDS[world])) is None


@pytest.mark.long
def test_without_fairness_a_pull_may_stay_open() -> None:
    """Without fairness a run may stop, so a pull is never answered though every deadline is kept."""
    found = unanswered(specification_of(preset("strict"), WORLDS["truncate"]), Fairness((), time_passes=False))

    assert found is not None
    assert found.steps == ()


def test_weak_fairness_is_enough_for_one_pull_of_one_queue_without_tags() -> None:
    """With weak fairness of each urgent action and tick, repeated truncation leaves no pull waiting."""
    model = specification_of(preset("strict"), attrs.evolve(WORLDS["truncate"], requests=1))

    assert unanswered(model, attrs.evolve(fairness_of(model), time_passes=False)) is None


@pytest.mark.parametrize(
    "world", [TWO_TAGS, TWO_QUEUES, *quick_if([WORLDS["truncate"]], lambda _: False)], ids=lambda world: world.name
)
def test_weak_fairness_is_not_enough_with_several_queues_tags_or_pulls(world: Bounds) -> None:
    """Messages that a pull does not want can be appended and truncated again and again, so that time never passes."""
    model = specification_of(preset("strict"), world)
    found = unanswered(model, attrs.evolve(fairness_of(model), time_passes=False))

    assert found is not None
    assert {"append", "make_visible", "truncate"} <= {label.partition("(")[0] for label in found.steps}
    assert "tick" not in found.steps


def test_rocketmq_leaves_dropped_pulls_open() -> None:
    assert unanswered(specification_of(preset("rocketmq-4.9"), WORLDS["tiny"])) is not None


ONE_PULL: Final = Bounds("plain", requests=1, messages=1)


def test_a_pull_that_is_held_for_ever_is_found() -> None:
    strict = preset("strict")
    slips = [mutated(strict, ONE_PULL, "tick", forgetting("deadline")), without(strict, ONE_PULL, "run")]

    assert unanswered(specification_of(strict, ONE_PULL)) is None
    assert [unanswered(slip) is not None for slip in slips] == [True, True]


@pytest.mark.parametrize(("leads_to", "is_fair"), [(2, False), (1, True)])
def test_a_step_out_of_a_component_does_not_count_as_taken_in_it(leads_to: int, is_fair: bool) -> None:
    graph: Graph = {(1,): [(STILL, (1,)), ("a", (leads_to,))], (2,): []}
    parts = list(_fair_parts(graph, {(1,)}, Fairness(weak=("a",), time_passes=True)))
    assert parts == ([{(1,)}] if is_fair else [])


# -- parts that are constants in every correct model ---------------------------------------------------------------


FORGOTTEN_BY_CRASH: Final = {
    "strict": ("dispatcher", "scanner", "phase", "open", "log_end", "next_scan"),
    "rocketmq-pr7359": ("rechecker",),
}


@pytest.mark.parametrize(
    ("policy", "variable"), [(policy, name) for policy, names in FORGOTTEN_BY_CRASH.items() for name in names]
)
def test_a_crash_that_keeps_one_part_of_memory_is_found(policy: str, variable: str) -> None:
    """A crash that does not reset one of the variables violates `only_disk_survives`."""
    bounds = Bounds("crash", requests=1, messages=1, hold_ticks=2, aspects=frozenset({"crash"}))
    wrong = mutated(preset(policy), bounds, "crash_and_recover", forgetting(variable))
    found = explore(wrong, select(properties_of(wrong), ["only_disk_survives"]))

    assert found.verdict("only_disk_survives").verdict == "violated"


def _widest(policy: str) -> Model:
    aspects = frozenset(ASPECTS) - {"lateness"}
    return specification_of(preset(policy), Bounds("all", requests=2, messages=2, queues=2, tags=3, aspects=aspects))


@pytest.mark.parametrize("policy", ["strict", "rocketmq-lmq", "rocketmq-pr7359"])
@pytest.mark.parametrize("above", [True, False])
def test_each_variable_that_leaves_its_range_violates_a_property(policy: str, above: bool) -> None:
    model = _widest(policy)
    numbers = [each for each in model.variables if not each.truth]
    tick = next(each for each in model.actions if each.name == "tick")
    unseen = []
    for variable in numbers:
        value = const((variable.upper or 0) + 1 if above else variable.lower - 1)
        step = attrs.evolve(tick, effect={variable.name: value})
        item = stays_in_range(attrs.evolve(model, actions=(step,)))
        values = values_of(model, model.initial)
        if not any(evaluate(condition, values) for _, condition in item.closing):
            unseen.append(variable.name)

    assert len(numbers) > 20
    assert unseen == []


def _is_full_of_held(self: State) -> Bool:
    return self.is_limited & any_of(each.is_("held") for each in self.requests)


def test_a_limit_that_counts_only_the_table_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request in a notifier's list counts as held, so it leaves less room for other requests."""
    monkeypatch.setattr(State, "is_full", property(_is_full_of_held))
    model = specification_of(preset("strict-clone"), EXPLORATIONS["limit"])
    found = explore(model, select(properties_of(model), ["hold_limit_kept"]))

    assert found.verdict("hold_limit_kept").verdict == "violated"


def test_a_shrinking_queue_lowers_no_commit_of_another_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(request: Request, _queue: Queue, end: Int, *, cuts: bool) -> tuple[Int, Int]:
        committed = request.committed
        return committed, ite(committed > end, end, committed) if cuts else committed

    bounds = Bounds("three", requests=1, messages=1, queues=2, aspects=frozenset({"commits", "truncate"}))

    def verdict() -> str:
        return explore(specification_of(STRICT, bounds)).verdict("commit_never_regresses").verdict

    assert verdict() == "holds"
    monkeypatch.setattr(faults, "cut_commit", cut)
    assert verdict() == "violated"
