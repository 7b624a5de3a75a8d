"""The explorer of a policy: a page with its specification, similar policies and mutants, and editable actions.

A reader may edit parts of guards and lines of effects, which have the same names as in mutants (`generated`). On the
page, the guards and new values that a property depends on are variables, for which the interpreter in `law.js`
substitutes the edited actions. So the page has each property once, whatever the reader edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.tokens import token_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.mutants.generated import (
    Mutant,
    called,
    conjuncts,
    kinds_of,
    mutants_of,
    part_names,
    thread_of_mutant,
)
from longpoll_spec.mutants.named import named_mutants
from longpoll_spec.policy import PRESETS, Policy, other_settings, with_knob
from longpoll_spec.render.export.explorer.page import OF, ByHand, Mistake, Text, data_of, page_of
from longpoll_spec.render.notation import NOTATION, Writer, bare
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import state_of
from longpoll_spec.terms import Bool, Term, bool_variable, changes, int_variable


def edits_of(model: Model) -> ByHand:
    """The editable parts of a model's actions.

    The guard of `tick` does not require that no urgent action is enabled; the page adds this condition.
    """
    actions = tuple(actions_of(model.state))
    parts = tuple(part_names(model.policy, action) for action in actions)
    return ByHand(tuple(_editable_texts(model, actions, parts)), parts, stated_of_named(model))


def stated_of_named(model: Model) -> tuple[Property, ...]:
    """The model's properties, stated about actions in which each guard and each new value is a variable."""
    return properties_of(attrs.evolve(model, actions=tuple(map(_named, model.actions))))


def _named(action: Action) -> Action:
    effect = {name: _alike(term, f"{name}{OF}{action.label}") for name, term in action.effect.items()}
    return attrs.evolve(action, guard=bool_variable(f"{OF}{action.label}"), effect=effect)


def _alike(term: Term, name: str) -> Term:
    return bool_variable(name) if isinstance(term, Bool) else int_variable(name)


def _editable_texts(model: Model, actions: Sequence[Action], parts: Sequence[tuple[str, ...]]) -> Iterator[Text]:
    alike: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number, action in enumerate(actions):
        alike.setdefault((action.name, kinds_of(action)), []).append(number)
    writer = Writer(NOTATION, {each.name: each.labels for each in model.variables if each.labels})
    for (name, kinds), instances in alike.items():
        first = actions[instances[0]]
        guard = [bare(writer.text(part)) for part in conjuncts(first)]
        said = tuple(
            (part, text)
            for part, text, term in zip(parts[instances[0]], guard, conjuncts(first), strict=True)
            if term.op != "true"
        )
        yield Text(name, thread_of_mutant(kinds), tuple(instances), said, tuple(_lines(writer, first)))


def _lines(writer: Writer, action: Action) -> Iterator[tuple[str, str]]:
    """Yield (name of a variable without numbers, its assignments as text) for each variable that changes."""
    written: dict[str, list[str]] = {}
    for name, term in changes(action.effect).items():
        written.setdefault(called(name), []).append(f"{name} := {bare(writer.value(term, name))}")
    for name, lines in written.items():
        yield name, "\n".join(lines)


PAIRS_MAX: Final = 150
"""The greatest number of policies on a page that differ in two knobs. If there are more such policies, the page has
none of them, because it would load slowly."""


def explorer_of(policy: Policy, bounds_of: Callable[[Policy], Bounds]) -> str:
    """The page of a policy, as HTML. `bounds_of` gives the bounds of each policy on the page.

    Raises what `bounds_of` raises.
    """
    return page_of(law_data(policy, bounds_of), f"Long polling, step by step: {policy.name}")


def law_data(policy: Policy, bounds_of: Callable[[Policy], Bounds]) -> str:
    """The data of the page, as JSON: the policy, then the policies that differ in one knob or two, then the presets."""
    models = [specification_of(each, bounds_of(each)) for each in near(policy, bounds_of)]
    laws = [(model, token_of(model, ())) for model in models]
    return data_of(laws, _mistakes(models[0]), edits_of(models[0]))


def near(policy: Policy, bounds_of: Callable[[Policy], Bounds]) -> Iterator[Policy]:
    """Yield the policy, the policies that differ from it in one knob or two, and the other presets.

    A pair of knobs is used only if its model differs from the models with only one of the two knobs changed, and only
    if there are few pairs.
    """
    yield policy
    if policy.name in PRESETS:
        one = [with_knob(policy, setting) for setting in other_settings(policy)]
        yield from one
        two = list(_two_otherwise(policy, one, bounds_of))
        yield from two if len(two) <= PAIRS_MAX else ()
    yield from (each for each in PRESETS.values() if each.name != policy.name)


def _two_otherwise(policy: Policy, one: Sequence[Policy], bounds_of: Callable[[Policy], Bounds]) -> Iterator[Policy]:
    # Terms are compared by identity, so the models are kept alive during the comparison.
    laws = {each.name: specification_of(each, bounds_of(each)) for each in (policy, *one)}
    texts = {name: _texts(law) for name, law in laws.items()}
    for first, second in combinations(one, 2):
        knob, _, setting = second.name.removeprefix(f"{policy.name}+").partition("=")
        if f"+{knob}=" in first.name:
            continue
        both = with_knob(first, f"{knob}={setting}")
        law = specification_of(both, bounds_of(both))
        if _texts(law) not in (texts[policy.name], texts[first.name], texts[second.name]):
            yield both


def _texts(law: Model) -> tuple[object, ...]:
    return tuple(
        (each.label, each.urgent, id(each.guard), *((name, id(term)) for name, term in each.effect.items()))
        for each in law.actions
    )


def _mistakes(model: Model) -> Iterator[Mistake]:
    policy, bounds = model.policy, model.bounds
    for slip in (*named_mutants(policy, bounds), *mutants_of(policy, bounds)):
        if slip.is_in(policy, bounds):
            yield Mistake(slip.action, _what(slip), actions_with(slip, model), slip.planted(policy, bounds))


def _what(slip: Mutant) -> str:
    return f"{thread_of_mutant(slip.kinds)} {slip.what}".lstrip()


def actions_with(slip: Mutant, model: Model) -> tuple[Action, ...]:
    """All actions of a mutant.

    The guard of `tick` does not require that no urgent action is enabled; the page adds this condition.
    """
    state = state_of(model.policy, model.bounds)
    return tuple(slip.change(state, action) if slip.touches(action) else action for action in actions_of(state))
