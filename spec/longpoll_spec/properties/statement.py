"""How a property is written: a function from model to statement, with its docstring as the sentence.

A property about a step (`no time passes while ...`) says that no such step is enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.state import Request
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, all_of, any_of, substitute

Text: TypeAlias = Callable[[Model], Property | None]
"""None where the statement does not apply to the model's policy or bounds."""
Wrong: TypeAlias = Iterable[tuple[Action, Bool]]
"""Steps, each with the condition under which it breaks the property."""


def always(text: Text, term: Bool) -> Property:
    """The property that this is true of every state."""
    return Property(text.__name__, "always", sentence_of(text), term, here=term)


def no_step(text: Text, wrong: Wrong, also: Bool = TRUE) -> Property:
    """The property that no such step is enabled, and that `also` is true of every state."""
    closing = [(action, condition) for action, condition in wrong if condition is not FALSE]
    term = all_of(~(action.guard & condition) for action, condition in closing) & also
    labels = tuple((action.label, condition) for action, condition in closing)
    return Property(text.__name__, "always", sentence_of(text), term, also, labels)


def no_tick(text: Text, model: Model, condition: Callable[[Request], Bool]) -> Property | None:
    """The property that no time passes while this is true of a request.

    None under free time, where time may pass at any point and no deadline can be promised.
    """
    if model.state.policy.tick == "free":
        return None
    here = any_of(condition(request) for request in model.state.requests)
    return no_step(text, [(tick, here) for tick in model.named("tick")])


def int_after(term: Int, action: Action) -> Int:
    """An integer after the action's step."""
    result: Term = substitute(term, action.effect)
    assert isinstance(result, Int)
    return result


def sentence_of(text: Text) -> str:
    """The docstring of a property on one line."""
    return " ".join((text.__doc__ or "").split())
