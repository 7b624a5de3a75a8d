"""A pinned sum over all steps of a small exploration detects faults that counts of states and steps do not detect."""

from __future__ import annotations

import inspect
import textwrap
from types import CodeType, FunctionType
from typing import Final

import attrs
import numpy as np
import pytest
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.edges import (
    FEATURES,
    OTHERS,
    PAIRS,
    TOGETHER,
    Edges,
    edges_of,
    explorations,
    hash_of,
    hashed,
    pinned,
    stirred,
)

from longpoll_spec.actions import actions_of, faults, pull, traversal, wake
from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, Bounds, named
from longpoll_spec.engines import manifest
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.words import words_of
from longpoll_spec.engines.python import successors
from longpoll_spec.engines.smt.configurations import world_with
from longpoll_spec.engines.smt.proof import prove_model
from longpoll_spec.model import Action
from longpoll_spec.mutants.generated import Change, called, forgetting, mutated, with_effect
from longpoll_spec.policy import PRESETS, STRICT, Policy, preset
from longpoll_spec.specification import specification_of
from longpoll_spec.state import State, state_of
from longpoll_spec.state.parts import Tag
from longpoll_spec.terms import Effect, changes, const, substitute, variables_of

PINNED: Final = {(each.policy, each.bounds): each for each in pinned()}
MODELS: Final = {(policy.name, bounds.name): (policy, bounds) for policy, bounds in explorations()}
QUICK_STATES: Final = 400_000
CLONE_STATES: Final = 60_000
"""The limit of states for explorations of `strict-clone`, which differs from `strict` in two knobs only."""
SMALL_STATES: Final = 20_000


def _is_quick(key: tuple[str, str]) -> bool:
    """Whether the exploration is of `strict`, of a knob value that no preset has, or of a small pair of features."""
    policy, name = key
    states = PINNED[key].distinct_states
    if not policy.startswith("strict"):
        return name in PAIRS and states <= SMALL_STATES
    return states <= (CLONE_STATES if policy == "strict-clone" else QUICK_STATES)


def test_each_exploration_and_each_pair_of_features_is_pinned_for_each_preset() -> None:
    assert len(PAIRS) == len(FEATURES) * (len(FEATURES) - 1) // 2
    assert list(PINNED) == list(MODELS)
    assert {(entry.policy, entry.bounds) for entry in manifest.pinned()} <= set(PINNED)
    assert {(policy, pair) for policy in PRESETS for pair in PAIRS} <= set(PINNED)
    assert {*(f"strict+{setting}" for setting in OTHERS), *TOGETHER} <= {policy for policy, _bounds in PINNED}
    assert {bounds.messages for bounds in PAIRS.values()} == {2}


@pytest.mark.parametrize("key", quick_if(PINNED, _is_quick), ids=" ".join)
def test_the_pinned_sums_of_steps_are_found(key: tuple[str, str]) -> None:
    assert edges_of(specification_of(*MODELS[key])) == PINNED[key]


@pytest.mark.parametrize("key", [("strict", "tiny"), ("rocketmq-4.9", "buckets+crash")])
def test_the_plain_engine_gives_the_same_sum_of_steps(key: tuple[str, str]) -> None:
    model = specification_of(*_smaller(*MODELS[key]))
    step, layout = successors(model), layout_of(model)
    seen, pending, total = {model.initial}, [model.initial], 0
    while pending:
        before = pending.pop()
        for index, after in step(before):
            here, there = (int(hashed(words_of([layout.pack(each)], layout.words))[0]) for each in (before, after))
            whole = (here + hash_of(model.actions[index].label) - there) % 2**64
            total += int(stirred(np.array([whole], dtype=np.uint64))[0])
            if after not in seen:
                seen.add(after)
                pending.append(after)

    assert f"{total % 2**64:016x}" == edges_of(model).edges


def _smaller(policy: Policy, bounds: Bounds) -> tuple[Policy, Bounds]:
    return policy, attrs.evolve(bounds, requests=1)


Planted = tuple[object, str, str]
CUT_BACK: Final[dict[str, tuple[Planted, str]]] = {
    "wakes at the end": ((faults._shrunk, "(each.offset > end)", "(each.offset >= end)"), "truncate"),
    "keeps what it read": ((faults._shrunk, "(each.offset >= end)", "(each.offset > end)"), "tags+truncate"),
    "begins at 0": ((faults._shrunk, "queue.visible_start > end, end", "queue.visible_start > end, 0"), "truncate"),
    "loses the disk": (
        (faults._shrunk, "queue.flushed_end > end, end", "queue.flushed_end > end, 0"),
        "truncate+crash",
    ),
    "keeps the log": ((faults._shrunk, "(queue.log_end, end)", "(queue.log_end, queue.log_end)"), "truncate"),
    "keeps what is wanted": ((faults._shrunk, "each.wanted & ~here", "each.wanted"), "tags+truncate"),
}
FULL: Final = 'state.is_full if policy.hold_limit == "in_lock"'
RUNS: Final = "guard = state.running"
PLANTED: Final[dict[str, tuple[Planted, str, str]]] = {
    **{f"a queue that is cut back {name}": (each, "strict", bounds) for name, (each, bounds) in CUT_BACK.items()},
    "an SQL filter passes nothing": ((Tag.passes, " | self._passes_sql(wants)", ""), "strict", "sql"),
    "a read and an insert check the limit": (
        (pull._refused, FULL, 'state.is_full if policy.hold_limit != "none"'),
        *("strict+hold_limit=at_read", "limit"),
    ),
    "an insert checks no limit where channels close": (
        (pull._refused, FULL, f"{FULL} and not state.bounds.has('channels')"),
        *("strict", "channels+limit"),
    ),
    "a wake leaves the heap entry": (
        (wake.to_executor, "request.armed & ~wakes", "request.armed"),
        *("strict+heap_entry=one_shot", "tiny"),
    ),
    "a put-back waits for no lock": (
        (traversal.may_put_back, "state.lock_free(queue)", "TRUE"),
        *("strict-clone+recheck_after_hold=in_lock", "tiny"),
    ),
    "no stop while a pull is on its way": (
        (faults.stop.text, RUNS, f"{RUNS} & all_of(~each.is_('pulling') for each in state.requests)"),
        *("strict", "tiny"),
    ),
    "no flush during a scan": ((faults.flush.text, RUNS, f"{RUNS} & state.scanner.at(IDLE)"), "strict", "crash"),
    "no trim during a dispatch": (
        (faults.trim.text, RUNS, f"{RUNS} & state.dispatcher.at(IDLE)"),
        *("strict", "truncate"),
    ),
}
"""Name -> (mutant, exploration whose pinned sum detects it). The last three mutants change no verdict."""


def _plant(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    function, text, slip = planted
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(text) == 1
    pending = [compile(f"from __future__ import annotations\n{source.replace(text, slip)}", "<slip>", "exec")]
    while pending[-1].co_name != function.__name__:
        pending += [each for each in pending.pop().co_consts if isinstance(each, CodeType)]
    monkeypatch.setattr(function, "__code__", pending[-1])


@pytest.mark.parametrize("name", PLANTED)
def test_a_mutant_that_changes_a_step_changes_the_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted, policy, bounds = PLANTED[name]
    _plant(planted, monkeypatch)

    assert edges_of(specification_of(*MODELS[policy, bounds])) != PINNED[policy, bounds]


@pytest.mark.parametrize("feature", ["role", "channels"])
def test_an_insert_that_checks_no_limit_with_another_feature_is_not_proved(
    feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exploring `limit` with `role` cannot detect this mutant, because the bounds have only one request."""
    _plant((pull._refused, FULL, f"{FULL} and not state.bounds.has('{feature}')"), monkeypatch)
    model = specification_of(STRICT, attrs.evolve(world_with({feature}), requests=2))

    assert prove_model(model, names=["hold_limit_kept"], depth_max=0).whole == "unknown"


def _old_commit(state: State, action: Action) -> Effect:
    """Inject a fault: a consumer that switches to another queue keeps the committed offset of its previous queue."""
    request = state.requests[int(action.actors[0])]
    return {str(each.args[0]): request.committed for each in (request.committed, request.carried) if each.op == "var"}


@pytest.mark.parametrize(
    ("pair", "action", "change"),
    [
        pytest.param("queues+commits", "next_pull", with_effect(_old_commit), id="a turn carries the old commit"),
        pytest.param("buckets+crash", "crash_and_recover", forgetting("present"), id="a crash leaves the bucket"),
    ],
)
def test_a_mutant_that_needs_two_features_changes_the_sum(pair: str, action: str, change: Change) -> None:
    """Some mutants need two features, so no exploration of a single feature detects them."""
    wrong = edges_of(mutated(STRICT, PAIRS[pair], action, change))

    assert wrong.edges != PINNED["strict", pair].edges


def _counts(found: Edges) -> tuple[int, int, int]:
    return found.distinct_states, found.transitions, found.depth


def test_a_step_to_another_state_changes_the_sum_with_equal_counts() -> None:
    """A woken pull that keeps its offset gives the same number of states and transitions, but other steps."""
    right = PINNED["strict", "tiny"]
    wrong = edges_of(mutated(STRICT, named("tiny", STRICT), "run", forgetting("offset")))

    assert _counts(wrong) == _counts(right)
    assert wrong.edges != right.edges


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_at_one_queue_changes_no_request_of_another(name: str) -> None:
    """The test compares terms, because no exploration has queues, commits and truncation together."""
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
def test_a_pull_on_another_queue_keeps_no_value_of_the_old_queue(name: str) -> None:
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
    """If the step of finding (m) were missing, the property `return_is_whole` would hold vacuously."""
    model = specification_of(preset("rocketmq-5"), EXPLORATIONS["role"])
    written = {each.label: changes(each.effect).keys() for each in model.named("return_take")}

    assert {"return_due_q0", "return_due_q1"} <= written["return_take(q0)"]


ON_DISK: Final = frozenset({"flushed_end", "committed"})
OF_CONSUMERS: Final = frozenset({"offset", "queue", "wants", "carried"})
OF_MODEL: Final = frozenset({"running", "changed", "is_master"})


@pytest.mark.parametrize("name", PRESETS)
def test_a_crash_forgets_all_memory(name: str) -> None:
    state = state_of(preset(name), Bounds("all", queues=2, tags=2, aspects=frozenset(ASPECTS)))
    (crash,) = (each for each in actions_of(state) if each.name == "crash_and_recover")
    kept = {called(each.name) for each in state.variables} - set(map(called, changes(crash.effect)))

    assert kept <= ON_DISK | OF_CONSUMERS | OF_MODEL
