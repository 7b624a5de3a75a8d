"""The actions for a reader: sentence, location in Java, guard and effect, as the policies have them.

Policies with the same text share a paragraph. The rest of the page: `spec_page`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import ndiff
from functools import cache
from typing import Final

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import EXPLORATIONS, Bounds
from longpoll_spec.model import ACTION_NAMES, Action, Actor, Model
from longpoll_spec.policy import PRESETS, STRICT, Policy
from longpoll_spec.render.conditions import condition_of, samples
from longpoll_spec.render.java_breakpoints import stopped_at
from longpoll_spec.render.readable import effect_lines, guard_lines, reader_of
from longpoll_spec.render.story.rocketmq_names import place_of
from longpoll_spec.state import State, state_of
from longpoll_spec.terms import TRUE, Term

OPEN: Final = Bounds("open", requests=2, messages=None)
"""The bounds of the text: two requests and an open log."""
Told = tuple[str, ...]
"""An action in one policy: its sentence, then its lines."""


@cache
def model_of(policy: Policy, bounds: Bounds = OPEN) -> Model:
    """The model whose text is shown: its `tick` does not yet wait for the urgent actions."""
    state = state_of(policy, bounds)
    return Model(policy, bounds, state, tuple(actions_of(state)))


def named_terms(state: State) -> dict[str, Term]:
    """Frequent terms that get a name; the name ends with the number of the request or queue that it is about."""
    several = len(state.queues) > 1
    of_queues = {f"_{queue.name}" if several else "": queue for queue in state.queues}
    return {
        **{f"lock free{end}": state.lock_free(queue) for end, queue in of_queues.items()},
        **{f"bucket looks empty{end}": state.bucket_looks_empty(queue) for end, queue in of_queues.items()},
        **({f"lock free_{each.index}": state.lock_free_of(each) for each in state.requests} if several else {}),
        **{f"more_{each.index}": state.has_more(each) for each in state.requests},
    }


def actions_text() -> Iterator[str]:
    """Every action that some preset has, in the order of the spec."""
    for name in ACTION_NAMES:
        yield from _action(name)


def _in_presets(name: str) -> str:
    waited = {
        policy.name: any(
            each.urgent for bounds in (OPEN, *EXPLORATIONS.values()) for each in _instances(policy, bounds, name)
        )
        for policy in PRESETS.values()
    }
    those = [policy for policy, urgent in waited.items() if urgent]
    return f" (in {_list(those)})" if those else ""


Groups = dict[tuple[Told, ...], list[str]]
"""The texts of an action, each with its policies."""


def _groups(name: str, bounds: Bounds) -> Groups:
    groups: Groups = {}
    for policy in PRESETS.values():
        model = model_of(policy, bounds)
        texts = tuple(action_told(model, action) for action in kinds_of_action(model, name))
        if texts:
            groups.setdefault(texts, []).append(policy.name)
    return groups


def _action(name: str) -> Iterator[str]:
    plain = _groups(name, OPEN)
    with_aspect = {aspect: opened(bounds) for aspect, bounds in EXPLORATIONS.items()}
    alone = {
        aspect: groups for aspect, bounds in with_aspect.items() if not plain and (groups := _groups(name, bounds))
    }
    everywhere = [plain, *alone.values()]
    yield f"### {name}"
    yield ""
    for sentence in dict.fromkeys(lines[0] for groups in everywhere for told in groups for lines in told):
        yield sentence
        yield ""
    yield f"- in RocketMQ: {places_text(name)}"
    yield from (f"- a thread of {each}" for each in stopped_at(name))
    exists = condition_of(lambda policy, bounds: bool(_instances(policy, bounds, name)))
    urgent = condition_of(lambda policy, bounds: any(each.urgent for each in _instances(policy, bounds, name)))
    yield f"- exists: {exists.text}"
    yield f"- time waits for it: {'always' if urgent == exists else urgent.text + _in_presets(name)}"
    for told, policies in plain.items():
        yield from _block(f"In {_list(policies)}:" if len(plain) > 1 else "In every preset that has it:", told)
    for aspect, groups in alone.items():
        for told, policies in groups.items():
            yield from _block(f"Only with {aspect}, in {_list(policies)}:", told)
    for aspect, bounds in with_aspect.items():
        if plain:
            yield from _difference(name, aspect, bounds)
    yield ""


def opened(bounds: Bounds) -> Bounds:
    """The bounds with two requests and any number of messages."""
    return attrs.evolve(bounds, requests=OPEN.requests, messages=OPEN.messages)


def places_text(name: str) -> str:
    """Where an action lies in RocketMQ's source, over all policies and bounds that have it."""
    every = [model_of(*sample).named(name) for sample in samples()]
    places = dict.fromkeys(place_of(action) for actions in every for action in actions)
    return "; ".join(filter(None, places)) or "nobody does it"


def _block(words: str, told: tuple[Told, ...]) -> Iterator[str]:
    yield from ("", words, "", "```text")
    for number, lines in enumerate(told):
        yield from ([""] if number else [])
        yield from lines[1:]
    yield "```"


def _difference(name: str, aspect: str, bounds: Bounds) -> Iterator[str]:
    before, after = (action_lines(name, STRICT, each) for each in (OPEN, bounds))
    changed = [f"{line[0]}{line[2:]}" for line in ndiff(before, after) if line[0] in "+-"]
    if changed:
        yield from ("", f"With {aspect}, in `{STRICT.name}`:", "", "```diff", *changed, "```")


@cache
def action_lines(name: str, policy: Policy, bounds: Bounds) -> tuple[str, ...]:
    """All kinds of an action in one policy, line by line; empty if the policy lacks it."""
    model = model_of(policy, bounds)
    return tuple(line for action in kinds_of_action(model, name) for line in action_told(model, action)[1:])


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kinds_of_action(model: Model, name: str) -> list[Action]:
    """One instance of each kind of an action: the first request, queue and tag, and each notifier."""
    return [action for action in model.named(name) if not any(_is_another(actor) for actor in action.actors)]


def _is_another(actor: Actor) -> bool:
    return bool(re.fullmatch(r"[qt]?[1-9]\d*", str(actor)))


def action_told(model: Model, action: Action) -> Told:
    """An action in words: its sentence, its head, and a line for each part of guard and effect."""
    reader = reader_of(model, [(term, name) for name, term in named_terms(model.state).items() if term is not TRUE])
    variables = {variable.name: variable for variable in model.variables}
    actors = ", ".join("r" if isinstance(actor, int) else actor for actor in action.actors)
    guard = guard_lines(reader, action.guard)
    if action.name == "tick" and model.policy.tick == "maximal_progress":
        guard = ["no action that time waits for can happen"]
    effect = effect_lines(reader, action, variables) or ["nothing changes"]
    head = f"{action.name}({actors})" if actors else action.name
    return (
        action.sentence,
        head,
        *(f"  {'when' if not number else 'and '} {line}" for number, line in enumerate(guard)),
        *(f"  {'then' if not number else '    '} {line}" for number, line in enumerate(effect)),
    )


def _instances(policy: Policy, bounds: Bounds, name: str) -> tuple[Action, ...]:
    return model_of(policy, bounds).named(name)
