"""A run without the steps that it does not need: what is left out one by one, as long as the run still shows the same.

Leaves out finding the shortest run of all, which only exploring can (see `minimise` for which of those is shown).
"""

from __future__ import annotations

from collections.abc import Sequence

from longpoll_spec.engines.python.compile import Packed, Question, Successors, question, successors
from longpoll_spec.model import Action, Model, Property


def shorten(model: Model, item: Property, run: Sequence[Action]) -> list[Action]:
    """A run that ends in a state, or with a step, that breaks the property, of which no single step can be left out."""
    step, breaks = successors(model), question(model, ~item.here)
    closing = {label: question(model, condition) for label, condition in item.closing}
    index = {action.label: number for number, action in enumerate(model.actions)}
    kept, at = list(run), 0
    while at < len(kept):
        shorter = [*kept[:at], *kept[at + 1 :]]
        if _breaks(step, breaks, closing, model.initial, [(index[each.label], each.label) for each in shorter]):
            kept, at = shorter, 0
        else:
            at += 1
    return kept


def _breaks(
    step: Successors, here: Question, closing: dict[str, Question], state: Packed, run: Sequence[tuple[int, str]]
) -> bool:
    """Whether the run can be taken, and its end breaks the property."""
    for number, (index, label) in enumerate(run, start=1):
        is_last = number == len(run)
        following = next((after for found, after in step(state) if found == index), None)
        if following is None:
            return False
        if is_last and label in closing and closing[label](state):
            return True
        state = following
    return here(state)
