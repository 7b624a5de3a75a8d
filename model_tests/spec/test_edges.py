"""Pinned steps of small explorations: what counts do not see, and what only two features together show."""

from __future__ import annotations

from typing import Final

import pytest
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.edges import FEATURES, PAIRS, Edges, bounds_of, edges_of, pinned

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, Bounds, named
from longpoll_spec.model import Action
from longpoll_spec.mutants.generated import Change, called, forgetting, mutated, with_effect
from longpoll_spec.policy import PRESETS, STRICT, preset
from longpoll_spec.specification import specification_of
from longpoll_spec.state import State, state_of
from longpoll_spec.terms import Effect, changes, const, substitute, variables_of

PINNED: Final = {(each.policy, each.bounds): each for each in pinned()}
QUICK_STATES: Final = 600
QUICK: Final = frozenset(
    {
        ("strict", "truncate+sql"),
        ("strict", "sql+crash"),
        ("strict", "queues+capacity"),
        ("strict-clone", "capacity+sql"),
        ("strict-clone", "commits+channels"),
        ("rocketmq-4.9", "capacity+role"),
        ("rocketmq-4.9", "commits+capacity"),
        ("rocketmq-5", "capacity+role"),
        ("rocketmq-5", "commits+channels"),
        ("rocketmq-lmq", "buckets+commits"),
    }
)
"""The small explorations that kill most mutants of the specification, besides those of `strict` with few states."""


def _is_quick(key: tuple[str, str]) -> bool:
    return key in QUICK or (key[0] == "strict" and PINNED[key].distinct_states <= QUICK_STATES)


def _bounds(policy: str, name: str) -> Bounds:
    return PAIRS[name] if name in PAIRS else named(name, preset(policy))


def test_each_pair_of_features_is_pinned_for_each_preset() -> None:
    wanted = [(each.name, bounds.name) for each in PRESETS.values() for bounds in bounds_of(each)]

    assert len(PAIRS) == len(FEATURES) * (len(FEATURES) - 1) // 2
    assert list(PINNED) == wanted
    assert {(policy, pair) for policy in PRESETS for pair in PAIRS} <= set(PINNED)


@pytest.mark.parametrize(
    "key",
    quick_if(PINNED, _is_quick),
    ids=" ".join,
)
def test_the_steps_are_as_pinned(key: tuple[str, str]) -> None:
    policy, name = key

    assert edges_of(specification_of(preset(policy), _bounds(policy, name))) == PINNED[key]


def _old_commit(state: State, action: Action) -> Effect:
    """A turn to another queue carries what was committed in the old one."""
    request = state.requests[int(action.actors[0])]
    return {str(each.args[0]): request.committed for each in (request.committed, request.carried) if each.op == "var"}


@pytest.mark.parametrize(
    ("pair", "action", "change"),
    [
        pytest.param("queues+commits", "next_pull", with_effect(_old_commit), id="a turn carries the old commit"),
        pytest.param("buckets+crash", "crash_and_recover", forgetting("present"), id="a crash leaves the bucket"),
    ],
)
def test_what_needs_two_features_is_seen(pair: str, action: str, change: Change) -> None:
    """Mutants of two features at once, which no exploration of one feature shows."""
    wrong = edges_of(mutated(STRICT, PAIRS[pair], action, change))

    assert wrong.edges != PINNED["strict", pair].edges


def _counts(found: Edges) -> tuple[int, int, int]:
    return found.distinct_states, found.transitions, found.depth


def test_a_step_that_leads_elsewhere_is_seen_where_the_counts_stay() -> None:
    """A woken pull that keeps its offset: as many states, transitions and levels, and other steps."""
    right = PINNED["strict", "tiny"]
    wrong = edges_of(mutated(STRICT, named("tiny", STRICT), "run", forgetting("offset")))

    assert _counts(wrong) == _counts(right)
    assert wrong.edges != right.edges


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_at_one_queue_changes_no_request_of_another(name: str) -> None:
    """Decided by the text alone, with every feature: no exploration has all of queues, commits and truncation."""
    state = state_of(preset(name), Bounds("all", queues=2, tags=2, aspects=frozenset(ASPECTS)))
    elsewhere = {f"queue_{each.index}": const(1) for each in state.requests}
    steps = [each for each in actions_of(state) if "q0" in each.actors and each.name != "next_pull"]
    wrong = {
        (step.label, variable)
        for step in steps
        for variable in changes({each: substitute(term, elsewhere) for each, term in step.effect.items()})
        if variable.endswith(("_0", "_1"))
    }

    assert {"make_visible", "truncate", "notify_start", "scan_end"} <= {each.name for each in steps}
    assert wrong == set()


@pytest.mark.parametrize("name", PRESETS)
def test_a_turn_to_another_queue_keeps_nothing_of_the_old_one(name: str) -> None:
    state = state_of(preset(name), Bounds("all", queues=2, tags=2, aspects=frozenset(ASPECTS)))
    kept = ("offset_0", "committed_0", "carried_0", "passes_0")
    turns = [each for each in actions_of(state) if each.name == "next_pull" and each.actors[:2] == (0, "q0")]
    read = {
        (turn.label, variable)
        for turn in turns
        for variable in kept
        if variables_of(substitute(turn.effect[variable], {"queue_0": const(1)})) & set(kept)
    }

    assert len(turns) == 3
    assert read == set()


def test_a_master_return_may_end_the_traversal_of_other_buckets() -> None:
    """The step of finding (m); where it is missing, `return_is_whole` says nothing."""
    model = specification_of(preset("rocketmq-5"), EXPLORATIONS["role"])
    written = {each.label: changes(each.effect).keys() for each in model.named("return_take")}

    assert {"return_due_q0", "return_due_q1"} <= written["return_take(q0)"]


ON_DISK: Final = frozenset({"flushed_end", "committed"})
OF_CONSUMERS: Final = frozenset({"offset", "queue", "wants", "carried"})
OF_MODEL: Final = frozenset({"running", "changed"})


@pytest.mark.parametrize("name", PRESETS)
def test_a_crash_forgets_all_memory(name: str) -> None:
    """Decided by the text alone, with every feature."""
    state = state_of(preset(name), Bounds("all", queues=2, tags=2, aspects=frozenset(ASPECTS)))
    (crash,) = (each for each in actions_of(state) if each.name == "crash_and_recover")
    kept = {called(each.name) for each in state.variables} - set(map(called, changes(crash.effect)))

    assert kept <= ON_DISK | OF_CONSUMERS | OF_MODEL
