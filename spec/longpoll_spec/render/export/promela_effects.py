"""A simultaneous effect as a sequence of assignments.

A variable is written after every term that reads its old value. Where terms read each other's variables in a cycle, one
old value is saved first, in a variable that is 0 again at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.terms import FALSE, Effect, Int, Term, bool_variable, const, int_variable, substitute, variables_of

SAVED: Final = "old_"
"""The prefix of variables that save old values."""


@frozen
class Assignment:
    """One assignment. `variable` is the target, or the variable that the target saves."""

    target: str
    variable: str
    term: Term


def sequence(effect: Effect) -> tuple[Assignment, ...]:
    """The effect's assignments in an order that makes them simultaneous; unchanged variables are left out."""
    waiting = {name: term for name, term in effect.items() if not _is_itself(name, term)}
    done: list[Assignment] = []
    cleared: list[Assignment] = []
    while waiting:
        free = next((name for name in waiting if not _is_read_by_others(name, waiting)), None)
        if free is None:
            free = next(iter(waiting))
            old, saved, zero = _places(free, waiting[free])
            done.append(Assignment(SAVED + free, free, old))
            cleared.append(Assignment(SAVED + free, free, zero))
            others = {name: substitute(term, {free: saved}) for name, term in waiting.items() if name != free}
            waiting = {free: waiting[free], **others}
        done.append(Assignment(free, free, waiting.pop(free)))
    return (*done, *cleared)


def _places(name: str, term: Term) -> tuple[Term, Term, Term]:
    """The variable, the place that saves its old value, and the content of that place between steps."""
    if isinstance(term, Int):
        return int_variable(name), int_variable(SAVED + name), const(0)
    return bool_variable(name), bool_variable(SAVED + name), FALSE


def saved_by(assignments: Sequence[Assignment]) -> Iterator[str]:
    """The variables whose old values the assignments save."""
    return (each.variable for each in assignments if each.target == SAVED + each.variable)


def _is_itself(name: str, term: Term) -> bool:
    return term.op == "var" and bool(term.args[0] == name)


def _is_read_by_others(name: str, waiting: Effect) -> bool:
    return any(name in variables_of(term) for other, term in waiting.items() if other != name)
