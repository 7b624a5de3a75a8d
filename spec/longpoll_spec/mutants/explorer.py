"""The explorer of a policy: a page with its specification, similar ones, its mutants, and the editable parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.tokens import token_of
from longpoll_spec.model import Action, Model
from longpoll_spec.mutants.edits import edits_of
from longpoll_spec.mutants.generated import Mutant, mutants_of, thread_of_mutant
from longpoll_spec.mutants.named import named_mutants
from longpoll_spec.policy import PRESETS, Policy, knob_values, with_knob
from longpoll_spec.render.export.explorer.data import Mistake, data_of
from longpoll_spec.render.export.explorer.page import page_of
from longpoll_spec.specification import specification_of
from longpoll_spec.state import state_of

PAIRS_MAX: Final = 150
"""With more pairs of knobs than this a page has none of them, because it would load too slowly."""


def explorer_of(policy: Policy, bounds_of: Callable[[Policy], Bounds]) -> str:
    """The page. `bounds_of` gives the bounds of each policy on the page.

    Raises what `bounds_of` raises.
    """
    return page_of(law_data(policy, bounds_of), f"Long polling, step by step: {policy.name}")


def law_data(policy: Policy, bounds_of: Callable[[Policy], Bounds]) -> str:
    """The page's data: the policy, then those that differ in one knob or two, then the other presets."""
    models = [specification_of(each, bounds_of(each)) for each in near(policy, bounds_of)]
    laws = [(model, token_of(model, ())) for model in models]
    return data_of(laws, _mistakes(models[0]), edits_of(models[0]))


def near(policy: Policy, bounds_of: Callable[[Policy], Bounds]) -> Iterator[Policy]:
    """The policy, those that differ in one knob or two, and the other presets.

    Pairs are used only where each knob changes some step in addition to the other, and only if there are few pairs.
    """
    yield policy
    if policy.name in PRESETS:
        one = [with_knob(policy, setting) for setting in _otherwise(policy)]
        yield from one
        two = list(_two_otherwise(policy, one, bounds_of))
        yield from two if len(two) <= PAIRS_MAX else ()
    yield from (each for each in PRESETS.values() if each.name != policy.name)


def _otherwise(policy: Policy) -> Iterator[str]:
    for knob, values in knob_values().items():
        yield from (f"{knob}={str(value).lower()}" for value in values if value != getattr(policy, knob))


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


def slip_name(slip: Mutant) -> str:
    """Its name on the page; an edit by hand with the same effect gets this name too."""
    return f"{slip.action} {_what(slip)}"


def _what(slip: Mutant) -> str:
    return f"{thread_of_mutant(slip.kinds)} {slip.what}".lstrip()


def actions_with(slip: Mutant, model: Model) -> tuple[Action, ...]:
    """All actions of the mutant, before `tick` waits for the urgent ones."""
    state = state_of(model.policy, model.bounds)
    return tuple(slip.change(state, action) if slip.touches(action) else action for action in actions_of(state))
