"""The form of an action: a function from the state and the actors to a step. Users read the docstring of the function.

Every action is a guard, then an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TypeAlias

from longpoll_spec.model import Action, Actor, Family, Step, Who
from longpoll_spec.policy import Policy
from longpoll_spec.state import Notifier, Queue, Request, State, Tag, Wish

Participant: TypeAlias = Request | Notifier | Queue | Tag | Wish


def always(policy: Policy) -> bool:  # noqa: ARG001 - one signature for every such question
    """The value of `urgent` for an action that is urgent in every policy."""
    return True


def never(policy: Policy) -> bool:  # noqa: ARG001 - one signature for every such question
    """The value of `urgent` for an action that is urgent in no policy."""
    return False


def everywhere(state: State) -> bool:  # noqa: ARG001 - one signature for every such question
    """The value of `exists` for an action that exists under every policy and bounds."""
    return True


def action(
    *who: Who,
    name: str = "",
    exists: Callable[[State], bool] = everywhere,
    urgent: Callable[[Policy], bool] = always,
    thread: str = "",
) -> Callable[[Callable[..., Step]], Family]:
    """Make a family from an action function.

    `who` has the kinds of the action's participants. The family has one instance for every choice of participants,
    which the function gets as terms. For `thread` see `model.Action`."""

    def make(text: Callable[..., Step]) -> Family:
        sentence = " ".join((text.__doc__ or "").split())
        assert sentence, f"{text.__name__} has no sentence"
        return Family(name or text.__name__, sentence, text, who, exists, urgent, thread)

    return make


def instances(family: Family, state: State) -> Iterable[Action]:
    """Every instance of a family, in the order of its actors."""
    if not family.exists(state):
        return
    for chosen in product(*(_pool(state, each) for each in family.who)):
        step = family.text(state, *(participant for _, participant in chosen))
        actors = tuple(actor for each, _ in chosen for actor in each)
        yield Action(
            name=family.name,
            actors=actors,
            sentence=family.sentence,
            guard=step.guard,
            effect=step.effect,
            urgent=family.urgent(state.policy),
            thread=_thread(family, actors),
            place=family.place,
        )


def _thread(family: Family, actors: Sequence[Actor]) -> str:
    """For an action of a file: the thread that the file names, else the acting request, else the action's name."""
    request = next((f"request {actor}" for actor in actors if isinstance(actor, int)), family.name)
    return family.thread or (request if family.place else "")


def _pool(state: State, who: Who) -> Sequence[tuple[tuple[Actor, ...], Participant]]:
    """All participants of a kind, each with its name in labels. A single queue or tag needs no name."""
    match who:
        case "request":
            return [((each.index,), each) for each in state.requests]
        case "notifier":
            return [((each.name,), each) for each in state.notifiers]
        case "queue":
            return [((each.name,) if len(state.queues) > 1 else (), each) for each in state.queues]
        case "tag":
            return [((each.name,) if state.filters else (), each) for each in state.tags]
        case "wish":
            return [((each.name,) if state.filters else (), each) for each in state.wishes]
