"""Derives, from the effects of the actions, between which phases each action moves a request.

For each action, every phase in turn is substituted for the request's phase in guard and effect. If the guard does not
become false, the possible next phases are the constants in the effect. A derived move might need a condition that no
run fulfils, so a test compares the derived moves with the moves in all runs under the bounds `tiny`.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from longpoll_spec.model import Action, Model
from longpoll_spec.state import Request
from longpoll_spec.terms import FALSE, Term, after, const, substitute


@frozen(order=True)
class PhaseChange:
    """A move of a request by an action, from the phase `before` to the phase `after`, by their names."""

    action: str
    before: str
    after: str


def phase_changes_of(model: Model) -> tuple[PhaseChange, ...]:
    """Every move of a request to another phase, each once, in the order of the specification."""
    request = model.state.requests[0]
    return tuple(dict.fromkeys(move for action in model.actions for move in _moves(model, action, request)))


def _moves(model: Model, action: Action, request: Request) -> Iterator[PhaseChange]:
    labels = model.state.phases.labels
    name = f"phase_{request.index}"
    assert request.phase.args == (name,)
    for value, label in enumerate(labels):
        here = {name: const(value)}
        if after(action.guard, here) is not FALSE:
            then = action.effect.get(name, request.phase)
            yield from (
                PhaseChange(action.name, label, labels[leaf])
                for leaf in leaves(substitute(then, here))
                if leaf != value
            )


def leaves(term: Term) -> Iterator[int]:
    """The constants that a term of nested choices can evaluate to."""
    if term.op == "const":
        yield term.args[0]
    elif term.op == "ite":
        for branch in term.args[1:]:
            yield from leaves(branch)
