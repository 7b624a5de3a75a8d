"""Proofs for any number of requests: reading terms as quantifiers, comparison, assumptions and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.spec.cases import breaks_its_property, quick_if

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import ablate
from longpoll_spec.engines.evaluate import evaluate
from longpoll_spec.engines.smt import any_number as smt_any
from longpoll_spec.engines.smt.any_number import (
    SAMPLE,
    WORLD,
    Readers,
    Statements,
    compare,
    numbers_of,
    prove_any,
    statements_of,
)
from longpoll_spec.engines.smt.proof import PLAIN
from longpoll_spec.engines.smt.quantifiers import NotUniformError, Rest
from longpoll_spec.engines.symmetry import slot_of
from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.policy import REDUNDANT, STRICT, other_settings, preset, with_knob
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import State
from longpoll_spec.state.variables import Variable
from longpoll_spec.terms import TRUE, Bool, Int, all_of, any_of, bool_variable, int_variable, ite

_SMALLER_WORLDS = [(queues, tags) for queues in (1, 2) for tags in (1, 2) if (queues, tags) != (2, 2)]


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("strict", PLAIN),
        pytest.param("strict", WORLD, marks=pytest.mark.long),
        pytest.param("strict-clone", WORLD, marks=pytest.mark.long),
        *(
            pytest.param(name, attrs.evolve(WORLD, queues=queues, tags=tags), marks=pytest.mark.long)
            for name in ablate.POLICIES
            for queues, tags in _SMALLER_WORLDS
        ),
    ],
)
def test_our_policies_are_proved_for_any_number(name: str, world: Bounds) -> None:
    """Every `always` property of our policies is proved completely, with a cutoff below `CUTOFF_MAX`."""
    whole = prove_any(preset(name), world=world)
    wanted = [item.name for item in properties_of(whole.proof.model) if item.kind == "always"]

    assert whole.why_not is None
    assert whole.cutoff is not None
    assert 2 < whole.cutoff < smt_any.CUTOFF_MAX
    assert whole.proved_at == (1, whole.cutoff)
    assert whole.proof.given_up == {}
    assert list(whole.proof.needed) == wanted
    assert {each.verdict for each in whole.proof.obligations} == {"proved"}
    assert {whole.proof.verdict(each) for each in wanted} == {"proved"}


_BREAKING = [
    (name, setting)
    for name in ablate.POLICIES
    for setting in other_settings(preset(name))
    if (name, setting) not in REDUNDANT
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "setting"), _BREAKING)
def test_a_change_of_a_needed_knob_is_refuted(name: str, setting: str) -> None:
    """A run that replays refutes each property that needs the knob, and no obligation of the property is proved."""
    broken = [each.name for each in ablate.row_of(preset(name), setting, requests=2).violations]
    proof = prove_any(with_knob(preset(name), setting), names=broken).proof
    runs = [each for each in proof.obligations if each.token is not None]

    assert broken
    assert "proved" not in {proof.verdict(each) for each in broken}
    assert runs
    for run in runs:
        assert run.token is not None
        assert run.property_name in broken
        assert breaks_its_property(replay(run.token))


def _pairs(state: State) -> Bool:
    """A relation between two requests: they are in the bucket with the same offset."""
    return any_of(
        one.is_("held") & other.is_("held") & one.offset.is_(other.offset)
        for one in state.requests
        for other in state.requests
        if one.index < other.index
    )


def _with_guard(change: Callable[[State, Action], Bool]) -> Callable[[Bounds], Model]:
    def make(bounds: Bounds) -> Model:
        model = specification_of(STRICT, bounds)
        actions = [attrs.evolve(each, guard=each.guard & change(model.state, each)) for each in model.actions]
        return attrs.evolve(model, actions=tuple(actions))

    return make


def _spares_one(_state: State, action: Action) -> Bool:
    return ~any_of([int_variable("phase_1").is_(0)]) if action.label == "hold(1)" else all_of(())


def _many_only(state: State, action: Action) -> Bool:
    idle = any_of(each.is_("idle") for each in state.requests)
    return idle if action.name == "append" and len(state.requests) > 3 else all_of(())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda state, _action: ~_pairs(state), "not treated like the others", marks=pytest.mark.long),
        (_spares_one, "not interchangeable"),
        pytest.param(_many_only, "append differs with 1 requests", marks=pytest.mark.long),
    ],
)
def test_a_specification_that_is_not_monadic_is_unknown(change: Callable[[State, Action], Bool], why: str) -> None:
    """A relation between requests, an exception for one request, and a guard that needs large numbers are refused."""
    made = _with_guard(change)
    whole = prove_any(STRICT, world=PLAIN, names=["answered_once"], depth_max=0, model_of=made)

    assert whole.cutoff is None
    assert "in_range" in whole.proof.given_up
    assert whole.why_not is not None
    assert why in whole.why_not
    assert whole.proof.verdict("answered_once") == "unknown"


def _holds(count: int) -> list[Bool]:
    return [bool_variable(f"open_{index}") for index in range(count)]


def test_junctions_over_all_other_requests_become_quantifiers() -> None:
    """A junction over all other requests becomes a quantifier. A junction over some, or over pairs, is refused."""
    everyone = _holds(4)
    rest = Rest(frozenset({1, 2, 3}))

    assert rest.restricted(all_of(everyone), frozenset({2, 3})) is all_of(everyone[:2])
    assert rest.restricted(any_of(everyone[1:]), frozenset({3})) is any_of(everyone[1:3])
    for odd in (
        any_of(everyone[:3]),
        everyone[1],
        any_of(one & other for one in everyone for other in everyone if one is not other),
    ):
        with pytest.raises(NotUniformError):
            rest.closed(odd)


def test_a_sum_over_requests_is_refused() -> None:
    """A hold limit written as a sum cannot be read as a quantifier."""
    copies: Int = int_variable("copies_0")
    for index in range(1, 4):
        copies = copies + int_variable(f"copies_{index}")

    with pytest.raises(NotUniformError):
        Rest(frozenset({1, 2, 3})).closed(copies <= 3)


def test_a_statement_needs_a_witness_only_if_it_could_be_lost() -> None:
    """As an assumption, only "for some" needs a witness. As a condition, "for some" and "for every" need one each."""
    everyone = _holds(4)
    rest = Rest(frozenset(range(4)))
    every, some = all_of(everyone), any_of(everyone)
    chosen = every.is_(bool_variable("running"))

    assert [len(rest.witnesses(term, 1)) for term in (every, some, ~every, ~some, chosen)] == [0, 1, 1, 0, 1]
    assert [len(rest.witnesses(term, -1)) for term in (every, some, ~every, ~some, chosen)] == [1, 0, 0, 1, 1]
    assert len(rest.witnesses(some & (some | bool_variable("running")), 1)) == 1


def _doubled(values: Mapping[str, int]) -> dict[str, int]:
    """The values of a state of three requests, with a fourth request that equals the third."""
    again = {f"{name[:-2]}_3": value for name, value in values.items() if slot_of(name) == 2}
    return dict(values) | again


@pytest.mark.parametrize("name", quick_if(ablate.POLICIES, lambda name: name == "strict-clone"))
@given(data=st.data())
@settings(max_examples=3)
def test_an_unnamed_request_can_be_duplicated(name: str, data: st.DataObject) -> None:
    """Every statement about a state also holds after an unnamed request was duplicated."""
    few, more = (_stated(name, requests) for requests in (3, 4))
    values = {each.name: data.draw(_values(each), each.name) for each in few.model.variables}
    twice = _doubled(values)
    kept = {action.label: action for action in few.model.actions if 2 not in action.actors}
    others = {action.label: action for action in more.model.actions}

    assert set(twice) == {each.name for each in more.model.variables}
    for one, other in zip(few.all, more.all, strict=True):
        assert evaluate(one.here, values) == evaluate(other.here, twice), one.name
        wrong = {label for label, condition in one.closing if label in kept and evaluate(condition, values)}
        assert wrong == {label for label, condition in other.closing if label in kept and evaluate(condition, twice)}
    for label, action in kept.items():
        assert evaluate(action.guard, values) == evaluate(others[label].guard, twice), label


def _values(variable: Variable) -> st.SearchStrategy[int]:
    return st.integers(variable.lower, variable.lower + 4 if variable.upper is None else variable.upper)


@cache
def _stated(name: str, requests: int) -> Statements:
    return statements_of(lambda bounds: specification_of(preset(name), bounds), requests, WORLD)


@pytest.mark.long
def test_a_cutoff_above_the_compared_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A specification that needs more requests than were compared is not proved for other numbers."""
    monkeypatch.setattr("longpoll_spec.engines.smt.any_number.CUTOFF_MAX", 3)
    read = statements_of(lambda bounds: specification_of(STRICT, bounds), SAMPLE)

    with pytest.raises(NotUniformError, match="more than 3"):
        numbers_of(read, [item.name for item in read.candidates], Readers())


@pytest.mark.parametrize("requests", [12, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", quick_if(ablate.POLICIES, lambda name: name == "strict"))
def test_the_specification_is_the_same_for_more_requests(name: str, requests: int) -> None:
    """The specification of more requests, with the additional ones removed, equals the specification that was read."""
    read = statements_of(lambda bounds: specification_of(preset(name), bounds), 9)
    more = statements_of(lambda bounds: specification_of(preset(name), bounds), requests)

    compare(more, read, Readers())
    odd = attrs.evolve(read.model, actions=(attrs.evolve(read.model.actions[0], guard=_pairs(read.model.state)),))
    with pytest.raises(NotUniformError):
        compare(more, attrs.evolve(read, model=odd), Readers())


def stated(requests: int) -> Statements:
    return statements_of(partial(specification_of, STRICT), requests, PLAIN)


TWO: Final = stated(2)

# -- the specification of fewer requests ---------------------------------------------------------------------------


FOUR: Final = stated(4)


def _with_actions(one: Statements, change: Callable[[Action], Action]) -> Statements:
    actions = tuple(map(change, one.model.actions))
    return attrs.evolve(one, model=attrs.evolve(one.model, actions=actions))


def _in_holds(change: Callable[[Action], Action], *labels: str) -> Callable[[Statements], Statements]:
    """Change every action `hold`, or those with these labels."""
    known = labels or [each.label for each in TWO.model.named("hold")]
    return lambda one: _with_actions(one, lambda each: change(each) if each.label in known else each)


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
    """A model with other initial values."""

    def __init__(self, model: Model, variables: tuple[Variable, ...]) -> None:
        self.bounds, self.actions, self.variables = model.bounds, model.actions, variables


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(_without_last, "the actions differ", id="an action less"),
        pytest.param(_with_more, "the actions differ", id="an action more"),
        pytest.param(_with_other, "the actions differ", id="another action"),
        pytest.param(_in_holds(lambda each: attrs.evolve(each, guard=TRUE)), "hold.0. differs", id="a guard"),
        pytest.param(
            _in_holds(lambda each: attrs.evolve(each, guard=TRUE), "hold(1)"),
            "not interchangeable",
            id="of one request",
        ),
        pytest.param(_in_holds(_wrong_effect), "after hold.0. differs", id="an effect"),
        pytest.param(_in_holds(_less_effect), "after hold.0. differs", id="an effect less"),
        pytest.param(_in_holds(_more_effect), "after hold.0. differs", id="an effect more"),
        pytest.param(_with_property(_says_less, "stated", _says), "differs", id="a property"),
        pytest.param(_with_property(_says_less, "helping", _says), "differs", id="a lemma"),
        pytest.param(_with_property(_never_closes, "stated", _closes), " at .* differs", id="a step less that breaks"),
        pytest.param(
            _with_property(_always_closes, "stated", _closes), " at .* differs", id="a step that always breaks"
        ),
        pytest.param(
            _with_property(_closes_twice, "stated", _closes),
            " at .* differs",
            id="a step that breaks in another case as well",
        ),
        pytest.param(
            _with_property(_closes_elsewhere, "stated", _closes), " at .* differs", id="a step more that breaks"
        ),
        pytest.param(_with_property(_other_name, "helping", _says), "the statements differ", id="a lemma's name"),
        pytest.param(
            lambda one: attrs.evolve(one, helping=one.helping[1:]), "the statements differ", id="a lemma less"
        ),
        pytest.param(_begins_otherwise, "first state differs", id="the first state"),
    ],
)
def test_a_specification_that_differs_with_fewer_requests_is_refused(
    change: Callable[[Statements], Statements], why: str
) -> None:
    compare(FOUR, TWO, Readers())
    with pytest.raises(NotUniformError, match=why):
        compare(FOUR, change(TWO), Readers())


# -- the cutoff ----------------------------------------------------------------------------------------------------


def _nobody_is(phase: str) -> Callable[[State], Bool]:
    return lambda state: all_of(~each.is_(phase) for each in state.requests)


def _some_is(phase: str) -> Callable[[State], Bool]:
    return lambda state: any_of(each.is_(phase) for each in state.requests)


def _anything(_state: State) -> Bool:
    return TRUE


def _is_behind(state: State) -> Bool:
    return all_of(each.offset <= int_variable("log_end") for each in state.requests)


def _grows(_state: State) -> Int:
    return int_variable("log_end") + 1


def _grows_by_others(state: State) -> Int:
    """An effect that grows by one if some request is kept, and by two if some request is idle."""
    end = int_variable("log_end")
    return ite(_some_is("kept")(state), end + 1, ite(_some_is("idle")(state), end + 2, end))


def _small(
    guard: Callable[[State], Bool], *lemmas: Callable[[State], Bool], end: Callable[[State], Int] | None = None
) -> Statements:
    """Return strict with only the action `hold`, with this guard and these lemmas.

    With `end`, `hold` also sets the log's end.
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
        pytest.param(_small(_anything, _nobody_is("held")), (1, 2), id="nobody"),
        pytest.param(_small(_some_is("idle"), _nobody_is("held")), (1, 2), id="some"),
        pytest.param(
            _small(lambda state: _some_is("idle")(state) & _some_is("kept")(state), _nobody_is("held")),
            (1, 3),
            id="two",
        ),
        pytest.param(
            _small(lambda state: _nobody_is("idle")(state) & _nobody_is("kept")(state), _nobody_is("held")),
            (1, 2),
            id="none",
        ),
        pytest.param(_small(_some_is("kept"), _some_is("idle"), _nobody_is("held")), (1, 3), id="some assumed"),
        pytest.param(
            _small(_anything, lambda state: _nobody_is("idle")(state) | _nobody_is("kept")(state)),
            (1, 3),
            id="one of both",
        ),
        pytest.param(_small(_anything, _is_behind), (1, 2), id="behind"),
        pytest.param(_small(_anything, _is_behind, end=_grows), (1, 2, 3), id="two named"),
        pytest.param(_small(_anything, _is_behind, end=_grows_by_others), (1, 2, 4), id="two named, by two others"),
    ],
)
def test_the_cutoff_counts_named_requests_and_witnesses(law: Statements, numbers: tuple[int, ...]) -> None:
    """The cutoff counts the acting request, the statement's request, a witness for each "for some", and one more."""
    assert numbers_of(law, [item.name for item in law.helping], Readers()) == numbers


def test_a_property_that_is_not_assumed_needs_no_witness() -> None:
    """A property that is not inductive is checked, but not assumed in other checks, so it needs no witness."""
    law = _small(_some_is("kept"), _some_is("idle"), _nobody_is("held"))
    either = _small(_anything, lambda state: _some_is("idle")(state) | _some_is("kept")(state))

    assert numbers_of(law, ["lemma_1"], Readers()) == (1, 2)
    assert numbers_of(either, [], Readers()) == (1,)


def test_the_guard_and_the_condition_of_a_step_need_witnesses() -> None:
    """The guard and the condition of a hold each need a witness, so three requests are needed."""
    law = _small(_some_is("idle"))
    steps = tuple((each.label, _some_is("kept")(law.model.state)) for each in law.model.actions)
    item = Property("steps", "always", "", TRUE, TRUE, steps)

    assert numbers_of(attrs.evolve(law, stated=(item,)), [], Readers()) == (1, 3)


def test_a_cutoff_above_the_maximum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cutoff has a maximum, above which the proof is refused."""
    law = stated(3)
    kept = [item.name for item in law.candidates]
    monkeypatch.setattr(smt_any, "CUTOFF_MAX", 9)
    assert numbers_of(law, kept, Readers()) == (1, 9)
    monkeypatch.setattr(smt_any, "CUTOFF_MAX", 8)
    with pytest.raises(NotUniformError, match="9 requests would be needed, more than 8"):
        numbers_of(law, kept, Readers())


def test_a_statement_that_excludes_one_request_is_refused() -> None:
    """A statement that excludes one request is not symmetric, so renaming does not transfer it to other requests."""
    law = _small(_anything, _nobody_is("held"), lambda state: ~state.requests[1].is_("held"))

    with pytest.raises(NotUniformError, match="not interchangeable"):
        numbers_of(law, [item.name for item in law.helping], Readers())


def test_our_policies_need_nine_requests() -> None:
    assert {numbers_of(one, [item.name for item in one.candidates], Readers()) for one in (stated(3), FOUR)} == {(1, 9)}
