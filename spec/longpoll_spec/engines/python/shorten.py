"""Shorten a run: remove steps one by one as long as the run still shows the same property.

The shortest run of all needs an exploration (see `minimise`).
"""

from __future__ import annotations

from collections.abc import Sequence

from longpoll_spec.engines.python.compile import Packed, Question, Successors, question, successors
from longpoll_spec.model import Action, Model, Property


def shorten(model: Model, item: Property, run: Sequence[Action]) -> list[Action]:
    """A run to a state or step that breaks the property, from which no single step can be removed."""
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
    for number, (index, label) in enumerate(run, start=1):
        is_last = number == len(run)
        following = next((after for found, after in step(state) if found == index), None)
        if following is None:
            return False
        if is_last and label in closing and closing[label](state):
            return True
        state = following
    return here(state)
