"""When a proof at a few numbers of requests is one for any: the law of fewer is this law, and these are enough.

Each case is the law with one difference, or as little of it as tells one count of requests from another. Leaves out the
proof at each of these numbers (`test_any_parts`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs
import pytest

from longpoll_spec.engines.smt import any_number as smt_any
from longpoll_spec.engines.smt.any_number import Statements, compare, numbers_of, statements_of
from longpoll_spec.engines.smt.proof import PLAIN
from longpoll_spec.engines.smt.rest import NotUniformError, Rests
from longpoll_spec.law import law_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.policy import STRICT
from longpoll_spec.state import State
from longpoll_spec.state.variables import Variable
from longpoll_spec.terms import TRUE, Bool, Int, all_of, any_of, int_variable, ite


def stated(requests: int) -> Statements:
    """What a proof of strict is about, at a number of requests."""
    return statements_of(partial(law_of, STRICT), requests, PLAIN)


TWO: Final = stated(2)

# -- the law of fewer ----------------------------------------------------------------------------------------------


FOUR: Final = stated(4)


def _with_actions(one: Statements, change: Callable[[Action], Action]) -> Statements:
    actions = tuple(map(change, one.model.actions))
    return attrs.evolve(one, model=attrs.evolve(one.model, actions=actions))


def _first_only(change: Callable[[Action], Action]) -> Callable[[Statements], Statements]:
    label = next(each.label for each in TWO.model.actions if each.name == "hold")
    return lambda one: _with_actions(one, lambda each: change(each) if each.label == label else each)


def _wrong_effect(action: Action) -> Action:
    name = next(iter(action.effect))
    return attrs.evolve(action, effect=dict(action.effect) | {name: list(action.effect.values())[-1]})


def _less_effect(action: Action) -> Action:
    return attrs.evolve(action, effect=dict(list(action.effect.items())[1:]))


def _more_effect(action: Action) -> Action:
    name, variable = next((each.name, each) for each in TWO.model.variables if each.name not in action.effect)
    return attrs.evolve(action, effect=dict(action.effect) | {name: variable.first})


def _without_last(one: Statements) -> Statements:
    return attrs.evolve(one, model=attrs.evolve(one.model, actions=one.model.actions[:-1]))


def _with_more(one: Statements) -> Statements:
    last = attrs.evolve(one.model.actions[-1], name="another")
    return attrs.evolve(one, model=attrs.evolve(one.model, actions=(*one.model.actions, last)))


def _with_other(one: Statements) -> Statements:
    *rest, _last, more = _with_more(one).model.actions
    return attrs.evolve(one, model=attrs.evolve(one.model, actions=(*rest, more)))


def _with_property(
    change: Callable[[Property], Property], kind: str, fits: Callable[[Property], bool]
) -> Callable[[Statements], Statements]:
    def changed(one: Statements) -> Statements:
        rows: tuple[Property, ...] = getattr(one, kind)
        place = next(at for at, item in enumerate(rows) if fits(item))
        others: dict[str, Any] = {kind: (*rows[:place], change(rows[place]), *rows[place + 1 :])}
        return attrs.evolve(one, **others)

    return changed


def _says(item: Property) -> bool:
    return item.here is not TRUE


def _closes(item: Property) -> bool:
    return bool(item.closing)


def _says_less(item: Property) -> Property:
    return attrs.evolve(item, here=TRUE)


def _never_closes(item: Property) -> Property:
    return attrs.evolve(item, closing=item.closing[1:])


def _always_closes(item: Property) -> Property:
    return attrs.evolve(item, closing=tuple((label, TRUE) for label, _condition in item.closing))


def _closes_twice(item: Property) -> Property:
    label, _condition = item.closing[0]
    return attrs.evolve(item, closing=((label, TRUE), *item.closing))


def _closes_elsewhere(item: Property) -> Property:
    """A step breaks it that breaks nothing where more requests are."""
    known = {label for label, _condition in item.closing}
    other = next(each.label for each in TWO.model.actions if each.label not in known)
    return attrs.evolve(item, closing=(*item.closing, (other, TRUE)))


def _other_name(item: Property) -> Property:
    return attrs.evolve(item, name="another")


def _begins_otherwise(one: Statements) -> Statements:
    first, *rest = one.model.variables
    changed = (attrs.evolve(first, initial=first.initial + 1), *rest)
    model: Any = _Begun(one.model, changed)
    return attrs.evolve(one, model=model)


class _Begun:
    """A model whose variables are others."""

    def __init__(self, model: Model, variables: tuple[Variable, ...]) -> None:
        self.bounds, self.actions, self.variables = model.bounds, model.actions, variables


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_without_last, "other actions"),
        (_with_more, "other actions"),
        (_with_other, "other actions"),
        (_first_only(lambda each: attrs.evolve(each, guard=TRUE)), "hold.0. is another"),
        (_first_only(_wrong_effect), "after hold.0. is another"),
        (_first_only(_less_effect), "after hold.0. is another"),
        (_first_only(_more_effect), "after hold.0. is another"),
        (_with_property(_says_less, "stated", _says), "is another"),
        (_with_property(_says_less, "helping", _says), "is another"),
        (_with_property(_never_closes, "stated", _closes), " at .* is another"),
        (_with_property(_always_closes, "stated", _closes), " at .* is another"),
        (_with_property(_closes_twice, "stated", _closes), " at .* is another"),
        (_with_property(_closes_elsewhere, "stated", _closes), " at .* is another"),
        (_with_property(_other_name, "helping", _says), "other statements"),
        (lambda one: attrs.evolve(one, helping=one.helping[1:]), "other statements"),
        (_begins_otherwise, "first state is another"),
    ],
    ids=[
        "an action less",
        "an action more",
        "another action",
        "a guard",
        "an effect",
        "an effect less",
        "an effect more",
        "a property",
        "a lemma",
        "a step less that breaks",
        "a step that always breaks",
        "a step that breaks in another case as well",
        "a step more that breaks",
        "a lemma's name",
        "a lemma less",
        "the first state",
    ],
)
def test_a_law_that_is_another_with_fewer_requests_is_refused(
    change: Callable[[Statements], Statements], why: str
) -> None:
    """Whatever of it differs; as it is, it is the law of fewer."""
    compare(FOUR, TWO, Rests(4))
    with pytest.raises(NotUniformError, match=why):
        compare(FOUR, change(TWO), Rests(4))


# -- how many are enough -------------------------------------------------------------------------------------------


def _nobody_is(phase: str) -> Callable[[State], Bool]:
    return lambda state: all_of(~each.is_(phase) for each in state.requests)


def _some_is(phase: str) -> Callable[[State], Bool]:
    return lambda state: any_of(each.is_(phase) for each in state.requests)


def _anything(_state: State) -> Bool:
    return TRUE


def _is_behind(state: State) -> Bool:
    """Of each request and of what all share."""
    return all_of(each.offset <= int_variable("log_end") for each in state.requests)


def _grows(_state: State) -> Int:
    return int_variable("log_end") + 1


def _grows_by_others(state: State) -> Int:
    """By one where somebody is kept, by two where somebody is idle."""
    end = int_variable("log_end")
    return ite(_some_is("kept")(state), end + 1, ite(_some_is("idle")(state), end + 2, end))


def _small(
    guard: Callable[[State], Bool], *lemmas: Callable[[State], Bool], end: Callable[[State], Int] | None = None
) -> Statements:
    """Strict where requests do nothing but be held, as they may by this guard; and these are the statements.

    With `end` who is held sets the log's end to it as well.
    """
    model = FOUR.model
    more: dict[str, Int | Bool] = {} if end is None else {"log_end": end(model.state)}
    holds = [
        attrs.evolve(each, guard=guard(model.state), effect=dict(each.effect) | more) for each in model.named("hold")
    ]
    said = [each(model.state) for each in lemmas]
    helping = tuple(Property(f"lemma_{place}", "inductive", "", here, here) for place, here in enumerate(said))
    return Statements(attrs.evolve(model, actions=tuple(holds)), (), helping)


@pytest.mark.parametrize(
    ("law", "numbers"),
    [
        (_small(_anything, _nobody_is("held")), (1, 2)),
        (_small(_some_is("idle"), _nobody_is("held")), (1, 2)),
        (_small(lambda state: _some_is("idle")(state) & _some_is("kept")(state), _nobody_is("held")), (1, 3)),
        (_small(lambda state: _nobody_is("idle")(state) & _nobody_is("kept")(state), _nobody_is("held")), (1, 2)),
        (_small(_some_is("kept"), _some_is("idle"), _nobody_is("held")), (1, 3)),
        (_small(_anything, lambda state: _nobody_is("idle")(state) | _nobody_is("kept")(state)), (1, 3)),
        (_small(_anything, _is_behind), (1, 2)),
        (_small(_anything, _is_behind, end=_grows), (1, 2, 3)),
        (_small(_anything, _is_behind, end=_grows_by_others), (1, 2, 4)),
    ],
    ids=[
        "nobody",
        "some",
        "two",
        "none",
        "some assumed",
        "one of both",
        "behind",
        "two named",
        "two named, by two others",
    ],
)
def test_so_many_are_needed_as_a_question_names_and_has_witnesses(law: Statements, numbers: tuple[int, ...]) -> None:
    """Who acts, whom the statement is about, and one for each "for some" of what is assumed; and one that stays."""
    assert numbers_of(law, [item.name for item in law.helping], Rests(4)) == numbers


def test_what_is_not_assumed_needs_no_witness() -> None:
    """A statement that is not kept is asked for, and not in every state that is asked for."""
    law = _small(_some_is("kept"), _some_is("idle"), _nobody_is("held"))
    either = _small(_anything, lambda state: _some_is("idle")(state) | _some_is("kept")(state))

    assert numbers_of(law, ["lemma_1"], Rests(4)) == (1, 2)
    assert numbers_of(either, [], Rests(4)) == (1,)


def test_a_step_that_breaks_something_names_who_acts_and_its_guard_and_condition_have_witnesses() -> None:
    """Be held where somebody is idle, and break something where somebody is kept: three are needed."""
    law = _small(_some_is("idle"))
    steps = tuple((each.label, _some_is("kept")(law.model.state)) for each in law.model.actions)
    item = Property("steps", "always", "", TRUE, TRUE, steps)

    assert numbers_of(attrs.evolve(law, stated=(item,)), [], Rests(4)) == (1, 3)


def test_more_than_was_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law is compared with itself for fewer requests than it is read at, and a cutoff has to be one of those."""
    law = stated(3)
    kept = [item.name for item in law.candidates]
    assert smt_any.CUTOFF_MAX < smt_any.READ
    monkeypatch.setattr(smt_any, "CUTOFF_MAX", 9)
    assert numbers_of(law, kept, Rests(3)) == (1, 9)
    monkeypatch.setattr(smt_any, "CUTOFF_MAX", 8)
    with pytest.raises(NotUniformError, match="9 requests would be needed, more than 8"):
        numbers_of(law, kept, Rests(3))


def test_a_statement_that_spares_one_request_is_refused() -> None:
    """Though the law treats all alike: what is said of the others does not follow by a change of names."""
    law = _small(_anything, _nobody_is("held"), lambda state: ~state.requests[1].is_("held"))

    with pytest.raises(NotUniformError, match="not interchangeable"):
        numbers_of(law, [item.name for item in law.helping], Rests(4))


def test_ours_need_nine() -> None:
    """However many were read: one question names nobody, and has nine witnesses."""
    assert {
        numbers_of(one, [item.name for item in one.candidates], Rests(len(one.model.state.requests)))
        for one in (stated(3), FOUR)
    } == {(1, 9)}
