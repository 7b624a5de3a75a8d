"""How an action is written down: a function from state and actors to a step, with its docstring as the law's sentence.

The uniform shape of every action is guard, then effect. Leaves out the actions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Literal

from longpoll_spec.model import Action, Actor, Family, Step
from longpoll_spec.policy import Policy
from longpoll_spec.state import Notifier, Request, State

Who = Literal["request", "notifier"]


def always(policy: Policy) -> bool:  # noqa: ARG001 - one signature for every such question
    """In every policy."""
    return True


def never(policy: Policy) -> bool:  # noqa: ARG001 - one signature for every such question
    """In no policy."""
    return False


def action(
    *who: Who,
    name: str = "",
    exists: Callable[[Policy], bool] = always,
    urgent: Callable[[Policy], bool] = always,
) -> Callable[[Callable[..., Step]], Family]:
    """Make a family of a text. `who` takes part, one instance for every choice; the text gets them as terms."""

    def actors(state: State) -> Iterable[tuple[Actor, ...]]:
        pools: dict[Who, list[Actor]] = {
            "request": [request.index for request in state.requests],
            "notifier": [notifier.name for notifier in state.notifiers],
        }
        return product(*(pools[each] for each in who))

    def make(text: Callable[..., Step]) -> Family:
        sentence = " ".join((text.__doc__ or "").split())
        assert sentence, f"{text.__name__} has no sentence"
        return Family(name or text.__name__, sentence, text, actors, exists, urgent)

    return make


def instances(family: Family, state: State) -> Iterable[Action]:
    """Every instance of a family, in the order of its actors."""
    if not family.exists(state.policy):
        return
    for actors in family.actors(state):
        step = family.text(state, *(participant(state, actor) for actor in actors))
        yield Action(
            name=family.name,
            actors=actors,
            sentence=family.sentence,
            guard=step.guard,
            effect=step.effect,
            urgent=family.urgent(state.policy),
        )


def participant(state: State, actor: Actor) -> Request | Notifier:
    """The terms of an actor."""
    if isinstance(actor, int):
        return state.requests[actor]
    return next(notifier for notifier in state.notifiers if notifier.name == actor)
