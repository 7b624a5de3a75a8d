"""Each aspect of the world: what a policy's knob does there, and that the law sees the difference."""

from __future__ import annotations

from itertools import combinations

import attrs
import pytest

from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.response import response_bounds
from longpoll_spec.engines.tokens import replay, token_of
from longpoll_spec.errors import BoundsError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, Policy, preset, with_knob
from longpoll_spec.state import state_of
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.slips import dropping_conjunct, slipped

BROKEN_BY = {
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
    ("role", "on_master_return=look_then_take"): {"return_is_whole"},
    ("crash", "visible_after=flush_if_sync"): {"seen_survives"},
    ("role", "scan_throw=abort_round"): {"round_is_whole"},
}
"""(aspect, one knob of strict set otherwise) -> exactly what then breaks there."""

PAIRS = tuple(combinations(sorted(set(ASPECTS) - {"lateness"}), 2))


def _violated(model: Model) -> set[str]:
    judged = [item for item in properties_of(model) if item.kind != "sometimes"]
    found = explore(model, judged)
    assert found.complete
    return {verdict.name for verdict in found.verdicts if verdict.verdict == "violated"}


def _changed(setting: str, base: str = "strict") -> Policy:
    return with_knob(preset(base), setting)


QUICK = {("tags", "notify_grain=batch"), ("channels", "on_close=ignore"), ("crash", "visible_after=append")}


@pytest.mark.parametrize("broken", quick_if(BROKEN_BY, lambda case: case in QUICK), ids="-".join)
def test_a_knob_of_strict_is_needed_where_its_aspect_is_on(broken: tuple[str, str]) -> None:
    """Set otherwise it breaks exactly what it is there for, and as it is it breaks nothing."""
    aspect, setting = broken

    assert _violated(law_of(_changed(setting), EXPLORATIONS[aspect])) == BROKEN_BY[broken]
    assert _violated(law_of(preset("strict"), EXPLORATIONS[aspect])) == set()


def test_an_unsafe_removal_orphans_a_bucket_even_under_strict() -> None:
    """A bucket removed because it looked empty is lost to arrivals; only its own deadline would free the request."""
    changed = _changed("bucket_removal=if_empty_unsafe")

    assert "no_orphan" in _violated(law_of(changed, EXPLORATIONS["buckets"]))
    assert "no_orphan" in _violated(law_of(preset("rocketmq-lmq"), EXPLORATIONS["buckets"]))


def test_announcing_by_tag_is_safe_for_each_message_and_not_for_batches() -> None:
    """The last message's tag says nothing of those before it; who is woken by any arrival loses nothing."""
    batch = _changed("notify_grain=batch")

    assert "no_lost_wakeup" in _violated(law_of(batch, EXPLORATIONS["tags"]))
    assert _violated(law_of(with_knob(batch, "notify_only_if_tag_matches=false"), EXPLORATIONS["tags"])) == set()
    assert _violated(law_of(batch, named("tiny", batch, messages=2))) == set()


def test_an_announcement_may_come_at_the_append_but_not_before_the_message_is_visible() -> None:
    """Told by the append itself, once the message is visible, strict keeps all; told earlier it loses a wakeup."""
    early = _changed("notify=before_visible")

    assert preset("strict").notify == "at_append"
    assert _violated(law_of(preset("strict"), named("tiny", early))) == set()
    assert "no_lost_wakeup" in _violated(law_of(early, named("tiny", early)))


@pytest.mark.parametrize("name", PRESETS)
def test_aspects_go_together(name: str) -> None:
    """All aspects at once, with two queues and two tags: runs stay in range, and strict keeps every property."""
    aspects = frozenset(set(ASPECTS) - {"lateness"})
    bounds = Bounds("all", requests=1, messages=1, queues=2, tags=2, aspects=aspects)
    model = law_of(preset(name), bounds)
    found = explore(model, engine="python", limit_states=3_000)

    broken = {verdict.name for verdict in found.verdicts if verdict.verdict == "violated"}
    assert found.distinct_states >= 3_000
    assert not broken & {"stays_in_range", "time_can_pass", "lists_have_owners", "answer_is_right"}
    assert not (broken and name.startswith("strict"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["strict", "strict-clone"])
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_no_two_aspects_break_strict(name: str, pair: tuple[str, str]) -> None:
    """Every two aspects together, explored whole: strict keeps every property."""
    bounds = Bounds("two", requests=1, messages=2, aspects=frozenset(pair))

    assert _violated(law_of(preset(name), bounds)) == set()


@pytest.mark.long
@pytest.mark.parametrize("name", ["strict", "strict-clone"])
@pytest.mark.parametrize("aspect", sorted(set(ASPECTS) - {"lateness"}))
def test_no_aspect_breaks_strict_among_queues_and_tags(name: str, aspect: str) -> None:
    """Each aspect with two queues and two tags, explored whole: strict keeps every property."""
    bounds = Bounds("many", requests=1, messages=1, queues=2, tags=2, aspects=frozenset({aspect}))

    assert _violated(law_of(preset(name), bounds)) == set()


def test_a_world_without_aspects_has_none_of_their_variables() -> None:
    """What is off costs nothing: the base model's variables are those it always had."""
    names = {variable.name for variable in state_of(preset("rocketmq-lmq"), named("tiny", preset("strict"))).variables}

    assert not {name for name in names if name.startswith(("queue", "wants", "present", "committed", "closed", "late"))}
    assert {"log_end", "visible_end", "phase_0", "offset_1"} <= names


def test_an_unknown_aspect_is_refused() -> None:
    """The error names the aspects there are."""
    with pytest.raises(BoundsError, match="buckets"):
        named("tiny", preset("strict"), aspects=["weather"])


@pytest.mark.parametrize("bounds", EXPLORATIONS.values(), ids=EXPLORATIONS)
def test_a_token_carries_its_world(bounds: Bounds) -> None:
    """Queues, tags and aspects come back from a token, and its run replays."""
    model = law_of(preset("rocketmq-4.9"), bounds)
    first = next(action for action in model.actions if action.name == "next_pull")
    back = replay(token_of(model, [first])).model.bounds

    assert attrs.evolve(back, name=bounds.name) == bounds


def test_a_token_of_the_plain_world_is_as_it_was() -> None:
    """A token from before there were aspects is still read."""
    token = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAgQAAQgGxyPaLw"  # noqa: S105 - a run, no secret

    assert replay(token).model.bounds == Bounds("token", 2, 1, 1, 2)


@pytest.mark.parametrize("scan_ticks", [2, 3, 4])
@pytest.mark.parametrize("name", PRESETS)
def test_tight_bounds_on_answers(name: str, scan_ticks: int) -> None:
    """RocketMQ is late by up to a scan's period less one tick, and wakes within a period; strict at once."""
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


def test_no_bound_is_found_where_none_is_counted() -> None:
    """Without the aspect the question is the user's mistake, and free time promises nothing."""
    with pytest.raises(BoundsError, match="lateness"):
        response_bounds(preset("strict"), named("tiny", preset("strict")))
    assert response_bounds(_changed("tick=free")) == ()


def test_an_answer_before_its_time_is_seen() -> None:
    """An `expire` that forgets to look at the deadline answers a pull early, and a property says so."""
    policy = preset("strict")
    tiny = named("tiny", policy)
    model = law_of(policy, tiny)
    guard = next(action for action in model.actions if action.name == "expire").guard
    looks = next(place for place, part in enumerate(guard.args) if "deadline_0" in str(part))

    assert "not_answered_early" in _violated(slipped(policy, tiny, "expire", dropping_conjunct(looks)))


def _red(right: Model, wrong: Model) -> set[str]:
    """The properties that are judged otherwise."""
    before, after = (
        {each.name: each.verdict for each in explore(model, limit_states=200_000).verdicts} for model in (right, wrong)
    )
    return {name for name in before if before[name] != after[name]}
