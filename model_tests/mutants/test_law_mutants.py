"""Slips planted in the law's guards and effects: each one must turn a property or the counts red."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import attrs
import pytest

from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.law import law_of
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.state import State
from longpoll_spec.terms import Effect, const, ite
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.caught import NOBODY, Catch, catches
from longpoll_spec.testing.slips import Change, forgetting, reached, slipped, slips_of, with_effect

LIMIT_STATES = 40_000
"""A slip may make the space endless; what differs shows long before this."""
LONGER_LOG = Bounds("longer-log", requests=1, messages=2)
"""Some slips need a second message rather than a second request."""

SAMPLE = 8
"""Of our own policy's slips one in so many is tried each time; all of them, of every preset and aspect, at length."""
AT_LEAST = 12


def _red(base: Model, model: Model) -> list[str]:
    """What tells the slipped model from the right one: properties that changed, and `counts`."""
    right, wrong = _right(base.policy.name, base.bounds), explore(model, engine="python", limit_states=LIMIT_STATES)
    before = {verdict.name: verdict.verdict for verdict in right.verdicts}
    red = [verdict.name for verdict in wrong.verdicts if verdict.verdict != before[verdict.name]]
    return red + ["counts"] * (_counts(right) != _counts(wrong))


def _counts(result: Exploration) -> tuple[int, int, int]:
    return result.distinct_states, result.transitions, result.depth


@cache
def _right(policy: str, bounds: Bounds) -> Exploration:
    return explore(law_of(preset(policy), bounds), engine="python")


def _is_caught(policy: str, name: str, change: Change) -> list[str]:
    for bounds in (named("tiny", preset(policy)), LONGER_LOG):
        red = _red(law_of(preset(policy), bounds), slipped(preset(policy), bounds, name, change))
        if red:
            return red
    return []


def _missed(found: Sequence[Catch]) -> list[str]:
    return [f"{each.slip.action} {each.slip.what}" for each in found if each.by == NOBODY]


def test_slips_in_any_action_are_caught() -> None:
    """Of the slips in every action of our own policy some are planted: a property or the numbers catch all."""
    found = list(catches(preset("strict"), named("tiny", preset("strict")), every=SAMPLE))

    assert _missed(found) == []
    assert len(found) >= AT_LEAST
    assert len({each.by for each in found}) >= 5, "one property alone would catch by luck"


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "bounds"),
    [*((policy, "tiny") for policy in PRESETS), *(("strict", aspect) for aspect in EXPLORATIONS)],
)
def test_every_slip_in_every_action_is_caught(policy: str, bounds: str) -> None:
    """All of them, in every preset, and in our own policy under every aspect, there with one request."""
    # With two, and by the properties alone, they are tried in `test_slip_table`.
    requests = None if bounds in {"tiny", "queues", "limit", "capacity"} else 1
    found = list(catches(preset(policy), named(bounds, preset(policy), requests=requests)))

    assert _missed(found) == []
    assert len(found) >= AT_LEAST


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
def test_the_comparison_begins_at_the_pinned_numbers(policy: str) -> None:
    """What a slip is compared with is what the manifest pins, so a slip in the law itself turns the manifest red."""
    entry = pinned_entry(policy, "tiny")

    assert _counts(_right(policy, named("tiny", preset(policy)))) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )


def test_a_slip_that_acts_nowhere_is_no_slip() -> None:
    """The law itself differs from itself in no state, and a guard without a part in some."""
    policy, size = preset("strict"), named("tiny", preset("strict"))
    model = law_of(policy, size)
    states = reached(model)
    forgets = next(slip for slip in slips_of(policy, size) if (slip.action, slip.what[:6]) == ("hold", "forget"))

    assert forgets.shows(model, states)
    assert not attrs.evolve(forgets, change=lambda _, action: action).shows(model, states)


def _wakes_without_leaving(state: State, action: Action) -> Effect:
    """A recheck that hands the request to the executor and forgets to take it out of the table."""
    actor = action.actors[0]
    return {f"phase_{actor}": state.requests[actor].phase} if isinstance(actor, int) else {}


def _two_at_once(state: State, _action: Action) -> Effect:
    return {"log_end": state.log_end + 2}


def _all_at_once(state: State, _action: Action) -> Effect:
    return {"visible_end": state.log_end}


def _to_the_log_end(state: State, action: Action) -> Effect:
    """A read that answers with the end of the log, which is not visible yet."""
    request = state.requests[int(action.actors[0])]
    return {f"offset_{request.index}": ite(state.has_more(request), state.log_end, request.offset)}


def _one_by_one(state: State, action: Action) -> Effect:
    """A read whose next offset is one further, however much it gave."""
    request = state.requests[int(action.actors[0])]
    return {f"offset_{request.index}": ite(state.has_more(request), request.offset + 1, request.offset)}


def _new_deadline(state: State, action: Action) -> Effect:
    """A wake that buys time: looking at a request gives it a new deadline."""
    return {f"deadline_{action.actors[0]}": state.hold_ticks}


def _scan_again(_state: State, _action: Action) -> Effect:
    """A scan that is due again at once."""
    return {"next_scan": const(0)}


SLIPS: tuple[tuple[str, str, Change, str], ...] = (
    ("strict-clone", "run", forgetting("offset"), "answer_is_right"),
    ("strict-clone", "run", forgetting("copies"), "answered_once"),
    ("strict-clone", "run", forgetting("open"), "nothing_dropped"),
    ("strict-clone", "run", with_effect(_to_the_log_end), "answer_is_right"),
    ("strict-clone", "run", with_effect(_one_by_one), "answer_is_right"),
    ("strict", "recheck", with_effect(_wakes_without_leaving), "answered_once"),
    ("strict-clone", "recheck", with_effect(_wakes_without_leaving), "answered_once"),
    ("strict-clone", "hold", forgetting("recheck_due"), "lost_by_hold"),
    ("strict-clone", "make_visible", forgetting("dispatcher"), "no_lost_wakeup"),
    ("strict-clone", "make_visible", with_effect(_all_at_once), "counts"),
    ("strict-clone", "expire", forgetting("copies"), "answered_by_deadline"),
    ("strict-clone", "next_pull", forgetting("deadline"), "counts"),
    ("strict-clone", "next_pull", forgetting("open"), "answered_once"),
    ("strict-clone", "tick", forgetting("deadline"), "expire_fires"),
    ("strict-clone", "tick", forgetting("next_scan"), "scan_start_fires"),
    ("strict-clone", "stop", forgetting("phase"), "answered_on_stop"),
    ("strict-clone", "stop", forgetting("open"), "nothing_dropped"),
    ("strict-clone", "notify_end", forgetting("phase"), "lists_have_owners"),
    ("strict-clone", "scan_end", forgetting("scanner"), "time_can_pass"),
    ("strict-clone", "scan_start", forgetting("next_scan"), "time_can_pass"),
    ("strict-clone", "scan_start", with_effect(_scan_again), "time_can_pass"),
    ("strict-clone", "scan_each", with_effect(_new_deadline), "counts"),
    ("strict-clone", "notify_each", forgetting("copies"), "answered_by_deadline"),
    ("strict-clone", "executor_rejects", forgetting("open"), "nothing_dropped"),
    ("strict-clone", "notifier_throws", forgetting("open"), "nothing_dropped"),
    ("strict-clone", "pull_read", forgetting("open"), "nothing_dropped"),
    ("strict-clone", "pull_read", with_effect(_to_the_log_end), "answer_is_right"),
    ("strict-clone", "append", with_effect(_two_at_once), "stays_in_range"),
    ("rocketmq-4.9", "notify_end", forgetting("dispatcher"), "time_can_pass"),
)


_FIRST = {slip[3]: number for number, slip in reversed(list(enumerate(SLIPS)))}
"""Property -> the first of the slips that it must catch, which the quick suite tries."""


@pytest.mark.parametrize(
    "number",
    quick_if(range(len(SLIPS)), lambda number: number in _FIRST.values()),
    ids=lambda number: f"{number}-{SLIPS[number][1]}",
)
def test_a_slip_in_an_effect_is_caught(number: int) -> None:
    policy, name, change, red = SLIPS[number]

    assert red in _is_caught(policy, name, change)


def test_the_unslipped_law_is_green() -> None:
    """The same comparison finds nothing in a law without a slip, and its numbers are the pinned ones."""
    policy = preset("strict-clone")
    tiny = named("tiny", policy)
    entry = pinned_entry("strict-clone", "tiny")

    assert _red(law_of(policy, tiny), slipped(policy, tiny, "run", lambda _, action: attrs.evolve(action))) == []
    assert _counts(_right("strict-clone", tiny)) == (entry.distinct_states, entry.transitions, entry.depth)
