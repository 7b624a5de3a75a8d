"""The environment of the model is complete: each of a dozen restrictions leaves a `sometimes` property unreached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest
from model_tests.support.spec.cases import quick_if

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.model import ACTION_NAMES, Action, Model, select
from longpoll_spec.mutants.generated import mutated
from longpoll_spec.policy import PRESETS, STRICT, preset
from longpoll_spec.reachability import ACTS, PHASES
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import IDLE, Request, State
from longpoll_spec.terms import Bool, all_of, truth

Restriction = Callable[[State, Action], Bool]


def _actor(state: State, action: Action) -> Request:
    return state.requests[next(actor for actor in action.actors if isinstance(actor, int))]


def _nobody(*labels: str) -> Restriction:
    return lambda state, _action: all_of(~each.is_(*labels) for each in state.requests)


def _dispatcher_rests(state: State, _action: Action) -> Bool:
    return state.dispatcher.at(IDLE)


def _scanner_rests(state: State, _action: Action) -> Bool:
    return state.scanner.at(IDLE)


def _alone(state: State, action: Action) -> Bool:
    actor = _actor(state, action)
    return all_of(~each.is_("pulling", "missed") for each in state.requests if each is not actor)


def _by_the_scanner(_state: State, action: Action) -> Bool:
    return truth("scanner" in action.actors)


def _its_pull_is_held(state: State, action: Action) -> Bool:
    return _actor(state, action).is_("held")


def _all_is_flushed(state: State, _action: Action) -> Bool:
    return all_of(queue.flushed_end.is_(queue.log_end) for queue in state.queues)


def _past_the_deadline(state: State, action: Action) -> Bool:
    return _actor(state, action).deadline <= 0


CUT: Final = {"requests": 1, "messages": 1}
ONE_QUEUE: Final = {**CUT, "queues": 1}
RESTRICTED: Final[dict[str, tuple[str, Restriction, str, dict[str, Any], str]]] = {
    "no append while dispatching": (
        *("append", _dispatcher_rests, "tiny", {"requests": 1, "messages": 2}),
        "append_while_dispatching",
    ),
    "no append while scanning": ("append", _scanner_rests, "tiny", CUT, "append_while_scanning"),
    "one pull after another": ("next_pull", _alone, "tiny", {}, "next_pull_while_pulling"),
    "no scan between read and insert": ("scan_start", _nobody("missed"), "tiny", CUT, "scan_start_while_inserting"),
    "only the scanner throws": ("notifier_throws", _by_the_scanner, "tiny", CUT, "dispatcher_throws"),
    "a channel closes only when its pull is held": (
        *("channel_closes", _its_pull_is_held, "channels", CUT),
        "channel_closes_while_inserting",
    ),
    "cuts only with nothing held": ("truncate", _nobody("held"), "truncate", CUT, "truncate_while_held"),
    "cuts only with no pull in flight": ("truncate", _nobody("missed"), "truncate", CUT, "truncate_while_inserting"),
    "deletions only with nothing held": ("queue_deleted", _nobody("held"), "truncate", CUT, "queue_deleted_while_held"),
    "trims only with no pull in flight": ("trim", _nobody("missed"), "truncate", CUT, "trim_while_inserting"),
    "role changes only with nothing held": (
        *("role_change", _nobody("held"), "role", ONE_QUEUE),
        "role_change_while_held",
    ),
    "role changes only with no pull in flight": (
        *("role_change", _nobody("missed"), "role", ONE_QUEUE),
        "role_change_while_inserting",
    ),
    "the master returns only with nothing woken": (
        *("master_returns", _nobody("queued"), "role", ONE_QUEUE),
        "master_returns_while_queued",
    ),
    "a crash only when all is flushed": (
        *("crash_and_recover", _all_is_flushed, "crash", CUT),
        "crash_and_recover_while_unflushed",
    ),
    "a crash only with nothing held": (
        *("crash_and_recover", _nobody("held"), "crash", CUT),
        "crash_and_recover_while_held",
    ),
    "refusals only past the deadline": (
        *("executor_rejects", _past_the_deadline, "tiny", {"requests": 1}),
        "executor_rejects_while_early",
    ),
    "a stop only with nothing in flight": ("stop", _nobody("missed"), "tiny", {"requests": 1}, "stop_while_inserting"),
    "commits only with nothing held": (
        *("offset_commit", _nobody("held"), "commits", CUT),
        "offset_commit_while_held",
    ),
}


def _verdict(model: Model, name: str) -> str:
    return explore(model, select(properties_of(model), [name]), engine="python").verdict(name).verdict


@pytest.mark.parametrize("restriction", RESTRICTED)
def test_a_restricted_environment_leaves_a_property_unreached(restriction: str) -> None:
    """A restricted environment breaks no `always` property, so only the named `sometimes` property detects it."""
    action, part, size, numbers, name = RESTRICTED[restriction]
    bounds = named(size, STRICT, **numbers)

    def restrict(state: State, one: Action) -> Action:
        return attrs.evolve(one, guard=one.guard & part(state, one))

    assert _verdict(specification_of(STRICT, bounds), name) == "reached"
    assert _verdict(mutated(STRICT, bounds, action, restrict), name) == "unreached"


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name == "strict"))
def test_each_action_of_the_environment_is_checked_in_each_of_its_phases(policy: str) -> None:
    chosen = preset(policy)
    sizes = [named("tiny", chosen, requests=2, messages=2)]
    sizes += [named(each, chosen) for each in ("queues", "commits", "channels", "truncate", "crash", "role")]
    given = [[item.name for item in properties_of(specification_of(chosen, bounds))] for bounds in sizes]
    found = {name for names in given for name in names}
    asked = {f"{name}_while_{phase}" for name, phases in ACTS.items() for phase in phases}
    excluded = {name for name in asked - found if name.endswith("_while_scanning") and chosen.take == "in_place"}
    if chosen.slave == "reads_only":
        excluded |= {"role_change_while_dispatching", "master_returns_while_dispatching"}

    assert all(len(names) == len(set(names)) for names in given)
    assert asked - found == excluded
    assert set(ACTS) <= set(ACTION_NAMES)
    assert {phase for phases in ACTS.values() for phase in phases} == set(PHASES)
