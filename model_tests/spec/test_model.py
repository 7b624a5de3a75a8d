"""The model: terms, variables, actions, bounds and policies, and the errors for unknown names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from model_tests.support.spec.cases import model_named, quick_if
from model_tests.support.spec.strategies import BOOL_NAMES, INT_NAMES, VALUE_MAX, bools, ints, runs, values

from longpoll_spec.actions import FAMILIES
from longpoll_spec.bounds import NAMES, Bounds, named
from longpoll_spec.engines import explore, simplify
from longpoll_spec.engines.evaluate import after_step, enabled_actions, evaluate, trace_of, values_of
from longpoll_spec.engines.packed.compile import Expand, expand_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.python import successors
from longpoll_spec.engines.simplify import Simplifier, decided, ranges_of
from longpoll_spec.errors import GUESSED_MAX, LISTED_MAX, BoundsError, not_known
from longpoll_spec.model import ACTION_NAMES, Model, Property, Said
from longpoll_spec.policy import PRESETS, STRICT, STRICT_CLONE, Policy, knob_values, policy_named, preset, with_knob
from longpoll_spec.render.phase_changes import PhaseChange, phase_changes_of
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import Tag, assign, down, phases_of, state_of
from longpoll_spec.state.parts import tags_of, wishes_of
from longpoll_spec.terms import (
    FALSE,
    TRUE,
    Bool,
    Int,
    Term,
    all_of,
    any_of,
    bool_variable,
    const,
    int_variable,
    ite,
    nodes,
    substitute,
    variables_of,
)


def test_a_term_has_no_truth_value() -> None:
    term = int_variable("a") < 3

    with pytest.raises(TypeError, match="no truth value"):
        bool(term)
    with pytest.raises(TypeError, match="no truth value"):
        _ = term and TRUE
    with pytest.raises(TypeError, match="no truth value"):
        _ = not term


def test_terms_are_not_compared_with_equals() -> None:
    a = int_variable("a")

    with pytest.raises(TypeError, match="is_"):
        _ = a == 3
    with pytest.raises(TypeError, match="is_"):
        _ = a != 3
    with pytest.raises(TypeError, match="no truth value"):
        _ = 0 < a < 3


def test_the_branches_of_ite_have_one_type() -> None:
    with pytest.raises(TypeError, match="one of each"):
        ite(bool_variable("p"), TRUE, 1)  # type: ignore[call-overload]


def test_equal_terms_are_one_object() -> None:
    first = (int_variable("a") + 1 < int_variable("b")) & bool_variable("p")
    second = (int_variable("a") + 1 < int_variable("b")) & bool_variable("p")

    assert first is second


def test_constants_fold() -> None:
    a = int_variable("a")

    assert const(2) + 3 is const(5)
    assert all_of((a < 3, FALSE)) is FALSE
    assert any_of((a < 3, TRUE)) is TRUE
    assert ~~(a < 3) is (a < 3)
    assert ite(a < 3, 1, 2).is_(1) is (a < 3)


def test_nodes_come_arguments_first() -> None:
    term = (int_variable("a") + int_variable("b") < 3) & (int_variable("a") + int_variable("b") <= 5)
    order = [id(node) for node in nodes(term)]

    assert len(set(order)) == len(order)
    assert all(
        order.index(id(arg)) < order.index(id(node))
        for node in nodes(term)
        for arg in node.args
        if isinstance(arg, (Int, Bool))
    )


@given(term=bools(), state=values)
def test_negation_gives_the_opposite_truth_value(term: Bool, state: dict[str, int]) -> None:
    assert evaluate(~term, state) == 1 - evaluate(term, state)


@given(term=bools(), number=ints(), truth=bools(), state=values)
def test_substitution_agrees_with_evaluation_after_the_step(
    term: Bool, number: Int, truth: Bool, state: dict[str, int]
) -> None:
    """The value of a term after substituting an effect equals its value in the state after the effect."""
    effect: dict[str, Term] = {"a": number, "p": truth}
    stepped = {**state, "a": evaluate(number, state), "p": evaluate(truth, state)}

    assert evaluate(substitute(term, effect), state) == evaluate(term, stepped)


@given(left=bools(), right=bools(), state=values)
def test_truth_equality_and_implication(left: Bool, right: Bool, state: dict[str, int]) -> None:
    a, b = evaluate(left, state), evaluate(right, state)

    assert evaluate(left.is_(right), state) == int(a == b)
    assert evaluate(left.implies(right), state) == int(not a or bool(b))


@given(term=bools())
def test_a_term_reads_only_its_variables(term: Bool) -> None:
    names = variables_of(term)
    low: dict[str, int] = dict.fromkeys((*INT_NAMES, *BOOL_NAMES), 0)
    high = {name: value if name in names else 1 for name, value in low.items()}

    assert evaluate(term, low) == evaluate(term, high)


@given(st.one_of(ints(), bools()))
def test_a_node_knows_what_it_reads(term: Term) -> None:
    """A node has the names of exactly the variables in its term, and equal nodes are one object."""
    for node in nodes(term):
        assert node.reads == {each.args[0] for each in nodes(node) if each.op == "var"}
        args = [arg for arg in node.args if isinstance(arg, Int | Bool)]
        assert len(args) != 1 or node.reads is args[0].reads
    assert variables_of(term) == term.reads


RANGES: dict[str, tuple[int, int]] = {**dict.fromkeys(INT_NAMES, (0, VALUE_MAX)), **dict.fromkeys(BOOL_NAMES, (0, 1))}


@given(term=bools(4), state=values)
def test_a_simplified_term_means_the_same(term: Bool, state: dict[str, int]) -> None:
    assert evaluate(Simplifier(RANGES).simplify(term), state) == evaluate(term, state)


def test_an_addition_and_a_subtraction_in_a_step_cancel() -> None:
    a, b, p = int_variable("a"), int_variable("b"), bool_variable("p")
    simplify = Simplifier(RANGES).simplify

    assert simplify((a - (b + 1)) - (a - b) < 0) is TRUE
    assert simplify(ite(p, a + 1, a) - a < 1) is ~p
    assert simplify(a + b < 0) is FALSE
    assert simplify(a <= VALUE_MAX) is TRUE
    assert simplify(a < b).op == "lt"


@given(term=bools(2), guard=bools(2), state=values)
def test_a_decided_term_means_the_same_where_the_guard_holds(term: Bool, guard: Bool, state: dict[str, int]) -> None:
    assume(evaluate(guard, state))

    assert evaluate(decided(term, guard, RANGES), state) == evaluate(term, state)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict"))
@given(data=st.data())
def test_simplification_keeps_the_conditions_of_steps(name: str, data: st.DataObject) -> None:
    """Every condition of every enabled step keeps its value, whatever was simplified."""
    policy = preset(name)
    model = specification_of(policy, named("tiny", policy))
    _, state = data.draw(runs(model))
    here = values_of(model, state)
    actions = {action.label: action for action in model.actions if evaluate(action.guard, here)}
    claims = [(label, each) for item in properties_of(model) for label, each in item.closing if label in actions]
    if not claims:
        return
    label, condition = data.draw(st.sampled_from(claims))

    made = decided(condition, actions[label].guard, ranges_of(model))
    assert evaluate(made, here) == evaluate(condition, here)


def test_a_part_is_decided_by_its_cases_under_the_guard() -> None:
    """A part that is constant in all its cases under the guard is replaced by its value."""
    a, b, p = int_variable("a"), int_variable("b"), bool_variable("p")

    assert decided((a < b) & (b < a), TRUE, RANGES) is FALSE
    assert decided(p | ~(p & (a <= b)), TRUE, RANGES) is TRUE
    assert decided((a + 1 > 0) & (a < b), TRUE, RANGES) is (a < b)
    assert decided(ite(p, a, b).is_(3), (a < 3) & (b < 3), RANGES) is FALSE
    assert decided((a < b) & p, p, RANGES) is (a < b)


def test_a_part_with_too_many_cases_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part with more cases than the limit stays as it is, and only its small parts are decided."""
    a, b, c = (int_variable(name) for name in INT_NAMES)
    monkeypatch.setattr(simplify, "CASES_MAX", (VALUE_MAX + 1) ** 2)

    wide = (a + b) < c + 1
    assert decided(wide & (a <= VALUE_MAX), TRUE, RANGES) is wide
    assert any(node is c for node in nodes(decided(wide, TRUE, RANGES)))


def small() -> Model:
    return specification_of(STRICT, named("tiny", STRICT))


def changed(model: Model, **changes: Any) -> Model:
    first, *others = model.actions
    return attrs.evolve(model, actions=(attrs.evolve(first, **changes), *others))


def expanded(model: Model, properties: Sequence[Property]) -> Expand:
    return expand_of(model, layout_of(model), properties)


def test_equal_models_are_equal_keys() -> None:
    first, second = small(), small()
    assert first is not second
    assert Said(first) == Said(second)
    assert properties_of(first) is properties_of(second)
    assert expanded(first, properties_of(first)) is expanded(second, properties_of(second))


@pytest.mark.parametrize("change", ["guard", "effect", "urgent", "policy", "bounds"])
def test_models_that_differ_in_one_part_are_different_keys(change: str) -> None:
    model = small()
    first = model.actions[0]
    other = {
        "guard": changed(model, guard=TRUE),
        "effect": changed(model, effect={**first.effect, next(iter(first.effect)): const(0)}),
        "urgent": changed(model, urgent=not first.urgent),
        "policy": specification_of(policy_named("strict-clone"), model.bounds),
        "bounds": specification_of(STRICT, named("small", STRICT)),
    }[change]
    assert Said(model) != Said(other)
    assert properties_of(model) is not properties_of(other)


@pytest.mark.parametrize("part", ["here", "kind", "closing"])
def test_a_search_checks_only_its_own_properties(part: str) -> None:
    model = small()
    first, *others = properties_of(model)
    slips: dict[str, Any] = {"here": TRUE, "kind": "sometimes", "closing": ((model.actions[0].label, TRUE),)}
    asked = expanded(model, [first, *others])
    assert expanded(model, [attrs.evolve(first, **{part: slips[part]}), *others]) is not asked
    assert expanded(model, others) is not asked


@pytest.mark.parametrize("policy", PRESETS.values(), ids=str)
def test_every_variable_has_a_sentence(policy: Policy) -> None:
    variables = state_of(policy, named("small", policy)).variables

    assert len({variable.name for variable in variables}) == len(variables)
    for variable in variables:
        assert variable.upper is not None
        assert variable.lower <= variable.initial <= variable.upper
        assert variable.sentence.endswith(".")
        assert not variable.labels or len(variable.labels) > variable.upper


def test_a_variable_exists_only_where_it_can_matter() -> None:
    """`armed` exists only with one-shot heap entries, and `recheck_due` only with a recheck after the insert."""
    plain = state_of(STRICT, named("tiny", STRICT))
    one_shot = with_knob(STRICT, "heap_entry=one_shot")
    no_recheck = with_knob(STRICT, "recheck_after_hold=none")

    assert plain.requests[0].armed is FALSE
    assert state_of(one_shot, named("tiny", one_shot)).requests[0].armed.op == "var"
    assert state_of(no_recheck, named("tiny", no_recheck)).requests[0].recheck_due is FALSE


def test_lists_are_shared_only_under_one_lock() -> None:
    """With traversal in place all notifiers share the phase `taken`; with clones each notifier has its own phase."""
    assert "taken" in phases_of(STRICT)
    assert "taken_by_scanner" in phases_of(with_knob(STRICT, "take=clone_and_clear"))


def test_tags_are_compared_by_hash_and_sql_by_its_oracle() -> None:
    """The third tag has the hash of the first tag, so pulls for the first tag get its messages but do not want them.

    SQL92 pulls want exactly the messages that their filter passes.
    """
    bounds = Bounds("tags", tags=3, aspects=frozenset({"sql"}))
    tags, (*_, sql) = tags_of(bounds), wishes_of(bounds)

    def wanted(tag: Tag, wish: int) -> tuple[bool, bool]:
        return tag.passes(const(wish)) is TRUE, tag.is_wanted(const(wish)) is TRUE

    assert [tag.name for tag in tags] == ["t0", "t1", "t2", "t0_sql", "t1_sql", "t2_sql"]
    assert [wanted(tags[2], wish) for wish in range(3)] == [(True, False), (False, False), (True, True)]
    assert [wanted(tag, sql.index) for tag in tags] == [(False, False)] * 3 + [(True, True)] * 3
    assert len(state_of(STRICT, bounds).tags) == 6


@pytest.mark.parametrize("sql", [False, True])
@pytest.mark.parametrize("tags", [1, 2, 3])
def test_a_message_passes_only_pulls_for_its_hash_or_for_its_filter(tags: int, sql: bool) -> None:
    """A message passes exactly the pulls for a tag with its hash, and the SQL92 pulls if the filter passes it."""
    bounds = Bounds("tags", tags=tags, aspects=frozenset({"sql"} if sql else ()))
    hashes, nothing = ("a", "b", "a"), len(wishes_of(bounds))
    for tag in tags_of(bounds):
        passed = {each for each in range(nothing + 1) if tag.passes(const(each)) is TRUE}
        same = {each for each in range(tags) if hashes[each] == hashes[tag.tag]}
        assert passed == same | ({tags} if tag.by_sql else set())


def test_queues_are_named_only_where_there_are_several() -> None:
    one, two = (state_of(STRICT, named("tiny", STRICT, queues=queues)) for queues in (1, 2))
    names = {variable.name: variable for variable in two.variables}

    assert "log_end" in {variable.name for variable in one.variables}
    assert {"log_end_q0", "visible_end_q1", "unscanned_q0", "dispatcher_queue", "queue_1"} <= set(names)
    assert (names["queue_1"].numbers_queues, names["queue_1"].show(names["queue_1"].initial)) == (True, "none")
    assert two.lock_free(two.queues[0]) is not two.lock_free(two.queues[1])


def test_assigning_a_variable_twice_is_an_error() -> None:
    with pytest.raises(AssertionError, match="written twice"):
        assign((int_variable("x"), 1), (int_variable("x"), 2))


def test_a_variable_that_the_policy_lacks_is_not_assigned() -> None:
    effect = assign((FALSE, True), (int_variable("x"), 1))

    assert list(effect) == ["x"]
    assert effect["x"] is const(1)


def test_remaining_time_stops_at_zero() -> None:
    assert down(const(2)) is const(1)
    assert down(const(0)) is const(0)


MODELS = {name: specification_of(policy, named("tiny", policy, messages=2)) for name, policy in PRESETS.items()}


def test_actions_have_the_names_of_scheduling_points() -> None:
    assert {family.name for family in FAMILIES} == set(ACTION_NAMES)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_actions_read_and_write_only_variables_of_the_state(model: Model) -> None:
    names = {variable.name for variable in model.variables}
    labels = [action.label for action in model.actions]

    assert len(set(labels)) == len(labels)
    for action in model.actions:
        assert variables_of(action.guard, *action.effect.values()) <= names
        assert set(action.effect) <= names
        assert action.effect


def test_time_waits_only_for_urgent_actions() -> None:
    model = MODELS["strict"]
    start, pulling = model.initial, trace_of(model, list(model.named("next_pull"))[:1]).steps[-1].state

    assert "tick" in {action.name for action in enabled_actions(model, start)}
    assert "tick" not in {action.name for action in enabled_actions(model, pulling)}
    assert set(model.urgent).isdisjoint({"append", "next_pull", "tick", "stop", "executor_rejects", "notifier_throws"})


def test_a_step_that_is_not_enabled_is_refused() -> None:
    model = specification_of(STRICT, named("tiny", STRICT))

    with pytest.raises(ValueError, match="step 1: run\\(0\\) is not enabled"):
        trace_of(model, model.named("run")[:1])


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-pr7359"}))
@given(data=st.data())
def test_no_run_leaves_the_ranges(name: str, data: st.DataObject) -> None:
    """Guards disable steps at every bound; a step out of a range would fail the assertion in `after_step`."""
    model = MODELS[name]
    _, state = data.draw(runs(model))

    for action in enabled_actions(model, state):
        assert len(after_step(model, action, state)) == len(model.variables)


def test_the_simplest_run_answers_a_pull() -> None:
    model = specification_of(preset("rocketmq-4.9"), named("tiny", preset("rocketmq-4.9")))
    by_label = {action.label: action for action in model.actions}
    story = [
        "next_pull(0)",
        "pull_read(0)",
        "hold(0)",
        "append",
        "make_visible",
        "notify_start",
        "notify_each(0)",
        "notify_end",
        "run(0)",
    ]
    end = trace_of(model, [by_label[label] for label in story]).steps[-1].state
    values = {variable.name: variable.show(value) for variable, value in zip(model.variables, end, strict=True)}

    assert (values["phase_0"], values["offset_0"], values["open_0"], values["copies_0"]) == ("idle", "1", "no", "0")


NEVER_MADE = {"strict": {PhaseChange("notify_end", "kept", "idle"), PhaseChange("scan_end", "kept", "idle")}}
"""Phase changes that are derived from the actions but occur in no run, because a stop waits for the lock of a traversal
in place."""


def _made(model: Model) -> set[PhaseChange]:
    """Every phase change of request 0 that occurs in some run."""
    step, labels = successors(model), model.state.phases.labels
    place = [variable.name for variable in model.variables].index("phase_0")
    known, waiting, made = {model.initial}, [model.initial], set[PhaseChange]()
    while waiting:
        state = waiting.pop()
        for index, after in step(state):
            if state[place] != after[place]:
                made.add(PhaseChange(model.actions[index].name, labels[state[place]], labels[after[place]]))
            if after not in known:
                known.add(after)
                waiting.append(after)
    return made


@pytest.mark.parametrize("name", PRESETS)
def test_derived_phase_changes_are_those_of_runs(name: str) -> None:
    """Every phase change of a run is derived from the specification. Every derived change occurs or is listed."""
    model = model_named(name)
    read = set(phase_changes_of(model))

    assert _made(model) == read - NEVER_MADE.get(name, set())
    assert NEVER_MADE.get(name, set()) <= read


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_name_gives_bounds(name: str) -> None:
    assert named(name, STRICT).requests >= named(name, STRICT_CLONE).requests >= 1


def test_a_changed_knob_is_in_the_name_of_the_policy() -> None:
    """Changed knobs are part of the policy's name, so a result is not taken for the preset's."""
    bounds = named("tiny", STRICT, messages=2, requests=2)

    assert (bounds.messages, bounds.name) == (2, "tiny+messages=2")


@pytest.mark.parametrize(
    "wrong",
    [{"requests": 0}, {"requests": 65}, {"messages": 0}, {"hold_ticks": 0}, {"scan_ticks": 1}, {"scan_ticks": -3}],
)
def test_impossible_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BoundsError, match=f"{next(iter(wrong))} must be from"):
        named("tiny", STRICT, **wrong)


def test_an_unbounded_log_is_for_proofs() -> None:
    """Bounds without a limit of messages exist for proofs, and cannot be explored."""
    assert Bounds("proof", messages=None).messages is None


SEEN_IN = {
    "notify_grain": "tags",
    "notify_only_if_tag_matches": "tags",
    "visible_after": "crash",
    "bucket_removal": "buckets",
    "hold_limit": "limit",
    "commit": "commits",
    "scan_throw": "role",
    "on_close": "channels",
    "on_role_change": "role",
    "on_master_return": "role",
    "after_return": "role",
    "slave": "role",
    "on_truncate": "truncate",
}
"""Knob that matters only with a feature -> the name of this feature."""
DEAR = {knob for knob, aspect in SEEN_IN.items() if aspect in {"role", "tags", "commits"}}


def test_presets_are_found_by_name() -> None:
    assert all(preset(name).name == name for name in PRESETS)


@pytest.mark.parametrize("knob", quick_if(knob_values(), lambda knob: knob not in DEAR))
def test_every_knob_changes_some_model(knob: str) -> None:
    bases = [STRICT, STRICT_CLONE, with_knob(STRICT_CLONE, "tick=free"), with_knob(STRICT, "expiry=scan")]

    bounds = SEEN_IN.get(knob, "tiny")

    assert any(_counts(base, bounds) != _counts(other, bounds) for base in bases for other in _turned(base, knob))


def _turned(base: Policy, knob: str) -> list[Policy]:
    values = [value for value in knob_values()[knob] if value != getattr(base, knob)]
    return [with_knob(base, f"{knob}={str(value).lower()}") for value in values]


@cache
def _counts(policy: Policy, bounds: str) -> tuple[int, ...]:
    model = specification_of(policy, named(bounds, policy))
    # If a knob changes neither states nor steps, it must change the violated properties.
    result = explore(model, [item for item in properties_of(model) if item.name == "told_of_role_change"])
    broken = sum(verdict.verdict == "violated" for verdict in result.verdicts)
    return result.distinct_states, result.transitions, result.depth, broken


MANY = [f"name-{number}" for number in range(LISTED_MAX + 1)]

LONG = "1" * (GUESSED_MAX + 1)


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (not_known("engine", "pyton", ["python", "packed"]), "did you mean 'python'? known: python, packed"),
        (not_known("engine", "x", ["python", "python"]), "known: python"),
        (not_known("engine", "x", []), "known: none"),
        (not_known("engine", "x", ["python"], "longpoll engines"), "known: python (see `longpoll engines`)"),
        (not_known("engine", "x", MANY, "longpoll engines"), f"`longpoll engines` lists all {len(MANY)}"),
        (not_known("engine", "x", MANY), "known: " + ", ".join(MANY)),
        (not_known("engine", LONG, [LONG + "2"]), f"known: {LONG}2"),
        (not_known("engine", LONG[1:], [LONG]), f"did you mean {LONG!r}? known: {LONG}"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(said: str, whole: str) -> None:
    (_unknown, rest) = said.split("; ", 1)

    assert rest == whole


def test_a_long_name_is_truncated_in_the_error() -> None:
    assert not_known("engine", LONG[1:], []).startswith(f"unknown engine {LONG[1:]!r}; ")
    assert not_known("engine", LONG, []).startswith(f"unknown engine {LONG[1:]!r}... ({len(LONG)} characters); ")
