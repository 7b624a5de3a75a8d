"""Who moves a request from which phase to which: found in the law's effects, not written down a second time.

Each phase is put into guard and effect of each action in place of the request's own; the guard may then come out false,
and else the phases that the effect can give are the leaves of what is left of it. That is what the text allows: a leaf
may stand under a condition that no run fulfils (a test holds the moves to those of all runs at tiny).
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from longpoll_spec.model import Action, Model
from longpoll_spec.state import Request
from longpoll_spec.terms import FALSE, Term, after, const, substitute


@frozen(order=True)
class Move:
    """One action that moves a request, by the names of the phases; or that leaves it where it stands (`stays`)."""

    action: str
    before: str
    after: str

    @property
    def stays(self) -> bool:
        """Whether the request is then where it was."""
        return self.before == self.after


def moves_of(model: Model) -> tuple[Move, ...]:
    """Every move of some request to another phase, each once, in the order of the law's text."""
    request = model.state.requests[0]
    found = (move for action in model.actions for move in _moves(model, action, request))
    return tuple(dict.fromkeys(move for move in found if not move.stays))


def steps_of(model: Model) -> tuple[Move, ...]:
    """Every way in which an action meets a request: its moves, and what a request's own action leaves where it is."""
    request = model.state.requests[0]
    found: list[Move] = []
    for action in model.actions:
        own = request.index in action.actors
        found += (move for move in _moves(model, action, request) if own or not move.stays)
    return tuple(dict.fromkeys(found))


def _moves(model: Model, action: Action, request: Request) -> Iterator[Move]:
    labels = model.state.phases.labels
    name = f"phase_{request.index}"
    assert request.phase.args == (name,)
    for value, label in enumerate(labels):
        here = {name: const(value)}
        if after(action.guard, here) is not FALSE:
            then = action.effect.get(name, request.phase)
            for leaf in dict.fromkeys(_leaves(substitute(then, here))):
                yield Move(action.name, label, labels[leaf])


def _leaves(term: Term) -> Iterator[int]:
    """The constants that a term can come out as."""
    if term.op == "const":
        yield term.args[0]
        return
    assert term.op == "ite", term
    for branch in term.args[1:]:
        yield from _leaves(branch)
