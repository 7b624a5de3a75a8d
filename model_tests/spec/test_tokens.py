"""Tokens replay runs, and the checker follows observed steps whose times are intervals."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.strategies import runs

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import conform, tokens
from longpoll_spec.engines.conform import Checker
from longpoll_spec.engines.evaluate import after_step, enabled_actions, is_enabled
from longpoll_spec.engines.tokens import PREFIX, parse, replay, token_of
from longpoll_spec.errors import TokenError
from longpoll_spec.model import OPEN_MAX, Model, Order, SeenStep, order_of
from longpoll_spec.policy import PRESETS, STRICT, STRICT_CLONE, preset, with_knob
from longpoll_spec.specification import specification_of

MODELS = {name: specification_of(policy, named("tiny", policy)) for name, policy in PRESETS.items()}


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
@given(data=st.data())
def test_a_token_replays_to_its_run(name: str, data: st.DataObject) -> None:
    model = MODELS[name]
    taken, state = data.draw(runs(model))
    token = token_of(model, taken, "no_lost_wakeup")
    trace = replay(token)

    assert re.fullmatch(r"[A-Za-z0-9._~-]+", token)
    assert len(token) < 160
    assert [step.action.label for step in trace.steps[1:] if step.action] == [action.label for action in taken]
    assert (trace.steps[-1].state, trace.property_name) == (state, "no_lost_wakeup")
    assert trace.model.policy == model.policy


def test_a_token_names_its_knobs_and_bounds() -> None:
    policy = with_knob(with_knob(preset("strict"), "expiry=scan"), "on_stop=silent")
    model = specification_of(policy, Bounds("own", requests=3, messages=4, hold_ticks=5, scan_ticks=6))
    named_ = parse(token_of(model, []))

    assert (named_.policy.expiry, named_.policy.on_stop, named_.policy.take) == ("scan", "silent", "in_place")
    assert (named_.bounds.requests, named_.bounds.messages) == (3, 4)
    assert (named_.bounds.hold_ticks, named_.bounds.scan_ticks) == (5, 6)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict"))
@given(data=st.data())
def test_a_damaged_token_is_refused(name: str, data: st.DataObject) -> None:
    taken, _ = data.draw(runs(MODELS[name]))
    token = token_of(MODELS[name], taken)
    at = data.draw(st.integers(len(PREFIX), len(token) - 2))
    other = data.draw(st.sampled_from("ABCxyz019-_!").filter(lambda char: char != token[at]))

    for damaged in (token[:at] + other + token[at + 1 :], token[:at]):
        with pytest.raises(TokenError):
            replay(damaged)


def test_a_token_of_another_specification_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["strict"]
    monkeypatch.setattr(tokens, "fingerprint_of", lambda _: 12345)
    token = token_of(model, model.named("append"))
    monkeypatch.undo()

    with pytest.raises(TokenError, match="another version of the specification"):
        replay(token)


def test_a_token_of_an_impossible_run_is_refused() -> None:
    model = MODELS["strict"]

    with pytest.raises(TokenError, match=r"step 1: run\(0\) is not enabled"):
        replay(token_of(model, model.named("run")[:1]))


WORLD: Final = Bounds("world", requests=2, messages=None)
MODEL: Final = specification_of(STRICT_CLONE, WORLD)
LABELS: Final = [action.label for action in MODEL.actions if action.name != "stop"]
STEPS: Final = 6


def exact(labels: Sequence[str]) -> list[SeenStep]:
    return [SeenStep((label,), at, at) for at, label in enumerate(labels)]


def walk(model: Model, draw: random.Random, count: int) -> list[str]:
    state, labels = model.initial, []
    for _ in range(count):
        action = draw.choice([each for each in enabled_actions(model, state) if each.name != "stop"])
        state = after_step(model, action, state)
        labels.append(action.label)
    return labels


def is_run(model: Model, labels: Sequence[str]) -> bool:
    actions = {action.label: action for action in model.actions}
    state = model.initial
    for label in labels:
        if not is_enabled(model, actions[label], state):
            return False
        state = after_step(model, actions[label], state)
    return True


def orders(steps: Sequence[SeenStep]) -> Iterator[tuple[SeenStep, ...]]:
    """Every order that the times allow: a step that ended before another step began comes first."""
    for order in permutations(steps):
        if all(
            order[later].before_ns >= order[first].after_ns for later in range(len(order)) for first in range(later)
        ):
            yield order


def seen(draw: random.Random) -> list[SeenStep]:
    labels = walk(MODEL, draw, STEPS)
    if draw.random() < 0.5:
        labels[draw.randrange(STEPS)] = draw.choice(LABELS)
    widths = [draw.choice([0, 0, 7, 12, 25]) for _ in labels]
    return [
        SeenStep((label,), 10 * at - width, 10 * at + width)
        for at, (label, width) in enumerate(zip(labels, widths, strict=True))
    ]


def agrees_with_every_order(runs: int) -> bool:
    """Whether the checker agrees with trying every order of random steps; asserts that both verdicts occur."""
    draw = random.Random(5)
    checker, verdicts = Checker(MODEL), set()
    for _ in range(runs):
        steps = seen(draw)
        expected = any(is_run(MODEL, [step.actions[0] for step in order]) for order in orders(steps))
        verdicts.add(expected)
        if checker.check(steps).conforms != expected:
            return False
    assert verdicts == {True, False}
    return True


def test_the_checker_agrees_with_trying_every_order() -> None:
    assert agrees_with_every_order(60)


def test_a_checker_that_ignores_overlaps_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison detects a checker that only takes steps in the order of their ends."""

    def by_end(steps: Sequence[SeenStep]) -> Order:
        order = order_of(steps)
        return attrs.evolve(order, open_at=tuple((number,) for number in range(len(order.steps))))

    monkeypatch.setattr(conform, "order_of", by_end)

    assert not agrees_with_every_order(60)


def test_an_impossible_step_is_refused_with_the_false_part_of_its_guard() -> None:
    """A hold is reported before its read has missed, so the part of the guard about the phase is false."""
    found = Checker(MODEL).check(exact(["next_pull(0)", "hold(0)", "pull_read(0)"]))

    assert (found.conforms, found.placed, found.certain) == (False, 1, 1)
    (refusal,) = found.refusals
    assert (refusal.step, refusal.action) == (1, "hold(0)")
    assert [part.op for part in refusal.false] == ["eq"]


def test_an_observed_value_must_agree_with_the_state() -> None:
    """A step is refused if the observed visible end differs from the specification's; the error has the two values."""
    steps = exact(["append", "make_visible"])
    right, wrong = (attrs.evolve(steps[1], known=(("visible_end", end),)) for end in (1, 2))

    assert Checker(MODEL).check([steps[0], right]).conforms
    (refusal,) = Checker(MODEL).check([steps[0], wrong]).refusals
    assert refusal.contradicted == (("visible_end", 1, 2),)


def test_the_actor_of_a_step_may_be_unknown() -> None:
    """Any fitting instance of an action may have acted, and a later step decides which."""
    anyone = SeenStep(("pull_read(0)", "pull_read(1)"), 1, 1)
    first = SeenStep(("next_pull(1)",), 0, 0)

    assert Checker(MODEL).check([first, anyone, SeenStep(("hold(1)",), 2, 2)]).conforms
    assert Checker(MODEL).check([first, anyone, SeenStep(("hold(0)",), 2, 2)]).placed == 2


def test_hidden_actions_may_happen_between_observed_steps() -> None:
    steps = exact(["pull_read(0)", "hold(0)"])

    assert not Checker(MODEL).check(steps).conforms
    assert Checker(MODEL, hidden=frozenset({"next_pull"})).check(steps).conforms
    assert not Checker(MODEL, hidden=frozenset({"tick"})).check(steps).conforms


def test_too_many_possibilities_are_undecided() -> None:
    """With more possibilities than the limit the result is undecided and not "conforms"."""
    steps = [SeenStep((label,), 0, 9) for label in ("next_pull(0)", "next_pull(1)", "append", "make_visible")]
    found = Checker(MODEL, possible_max=2).check(steps)

    assert (found.undecided, found.conforms, found.refusals) == (True, False, ())


def test_hidden_actions_that_may_repeat_for_ever_are_undecided() -> None:
    """If an unseen action can repeat for ever, as appends to an unbounded log, the result is undecided."""
    found = Checker(MODEL, hidden=frozenset({"append"}), possible_max=50).check(exact(["make_visible"]))

    assert (found.undecided, found.conforms) == (True, False)


def test_the_number_of_followed_orders_is_limited() -> None:
    """If the clock is unknown, all steps may be next, but the number of tracked orders stays limited."""
    clear = exact(["append"] * 10)
    vague = [SeenStep(("append",), 100, 200)] * (OPEN_MAX + 1)
    order = order_of([*clear, *vague])
    found = Checker(MODEL).check([*clear, *vague])

    assert len(order.open_at) == 10
    assert (found.placed, found.undecided) == (10, True)
    assert Checker(MODEL).check([*clear, *vague[:6]]).conforms


def test_a_long_run_conforms_in_any_order_of_its_events() -> None:
    model = specification_of(STRICT, attrs.evolve(WORLD, queues=2))
    draw = random.Random(3)
    labels = walk(model, draw, 200)
    steps = [SeenStep((label,), 10 * at - draw.choice([0, 6, 15]), 10 * at) for at, label in enumerate(labels)]
    lost = next(at for at, label in enumerate(labels) if label.startswith("pull_read"))
    without = [*exact(labels)[:lost], *exact(labels)[lost + 1 :]]
    draw.shuffle(steps)

    assert Checker(model).check(steps).conforms
    assert not Checker(model).check(without).conforms
