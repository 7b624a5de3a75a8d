"""The form of a property: a function from a model to a statement. Users read the docstring of the function.

A property about a step, such as "no time passes while ...", says that no such step is enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.state import Request
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, all_of, any_of, substitute

Text: TypeAlias = Callable[[Model], Property | None]
"""The function of a property. The function returns None if the property does not apply to the model's policy or bounds.
"""
Wrong: TypeAlias = Iterable[tuple[Action, Bool]]
"""Actions, each with the condition under which its step breaks the property."""


def always(text: Text, term: Bool) -> Property:
    """The property that a term is true in every state."""
    return Property(text.__name__, "always", sentence_of(text), term, here=term)


def no_step(text: Text, wrong: Wrong, also: Bool = TRUE) -> Property:
    """The property that none of these steps is enabled, and that `also` is true in every state."""
    closing = [(action, condition) for action, condition in wrong if condition is not FALSE]
    term = all_of(~(action.guard & condition) for action, condition in closing) & also
    labels = tuple((action.label, condition) for action, condition in closing)
    return Property(text.__name__, "always", sentence_of(text), term, also, labels)


def no_tick(text: Text, model: Model, condition: Callable[[Request], Bool]) -> Property | None:
    """The property that no time passes while a condition is true of a request.

    The result is None if time is free, because time may then pass at any point and no deadline can be promised.
    """
    if model.state.policy.tick == "free":
        return None
    here = any_of(condition(request) for request in model.state.requests)
    return no_step(text, [(tick, here) for tick in model.named("tick")])


def int_after(term: Int, action: Action) -> Int:
    """The value of an integer term after the action, as a term over the state before it."""
    result: Term = substitute(term, action.effect)
    assert isinstance(result, Int)
    return result


def sentence_of(text: Text) -> str:
    """The docstring of a property, on one line."""
    return " ".join((text.__doc__ or "").split())
