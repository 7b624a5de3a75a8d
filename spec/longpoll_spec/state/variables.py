"""The class of a state variable, and the names of variables. Which ones exist: see `state`."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.terms import Int, Term, bool_variable, const, int_variable, parameter, truth


@frozen
class Variable:
    """One state variable: name, inclusive range (no upper end if unbounded), first value."""

    name: str
    lower: int
    upper: int | None
    initial: int
    sentence: str
    truth: bool = False
    """A truth value: 0 or 1 in every engine."""
    labels: tuple[str, ...] = ()
    """A word for each value, if the values are not quantities."""
    limit: Int | None = None
    """The parameter that is its upper end: a proof that leaves the parameter open leaves this open too."""
    numbers_queues: bool = False
    """Its value is the number of a queue, or the count of queues for none; renaming queues renames it."""

    @property
    def term(self) -> Term:
        """The variable as a term."""
        return bool_variable(self.name) if self.truth else int_variable(self.name)

    @property
    def greatest(self) -> Int | None:
        """Its upper end as a term; None when it is unbounded."""
        if self.upper is None:
            return None
        return const(self.upper) if self.limit is None else self.limit

    @property
    def first(self) -> Term:
        """Its first value as a term: the parameter, if it starts at its upper end."""
        if self.truth:
            return truth(bool(self.initial))
        return self.limit if self.limit is not None and self.initial == self.upper else const(self.initial)

    def show(self, value: int) -> str:
        """The value for readers."""
        if self.truth:
            return "yes" if value else "no"
        return self.labels[value] if self.labels else str(value)


def flag(name: str, sentence: str, *, initial: bool = False) -> Variable:
    """A truth-valued variable."""
    return Variable(name, 0, 1, int(initial), sentence, truth=True)


def queue_number(name: str, bounds: Bounds, sentence: str) -> Variable:
    """A variable that names a queue or none; first none."""
    labels = (*(f"q{index}" for index in range(bounds.queues)), "none")
    return Variable(name, 0, bounds.queues, bounds.queues, sentence, labels=labels, numbers_queues=True)


def of_queue(name: str, index: int, bounds: Bounds) -> str:
    """The name of a queue's variable, such as `log_end_q0`; without a number if there is one queue."""
    return f"{name}_q{index}" if bounds.queues > 1 else name


def hold_ticks_of(bounds: Bounds) -> Int:
    """A pull's deadline as a parameter, which a proof may leave open."""
    return parameter("hold_ticks", bounds.hold_ticks)


def scan_ticks_of(bounds: Bounds) -> Int:
    """The scan's period as a parameter, which a proof may leave open."""
    return parameter("scan_ticks", bounds.scan_ticks)


HELD_LIMIT: Final = parameter("held_limit", 1)
"""The feature `limit`: 1, at most one request is held; 0, no limit. A proof leaves it open."""
REFUSAL_NEEDS: Final = parameter("refusal_needs", 1)
"""The feature `capacity`: 1, the executor rejects only next to another request; 0, also a lone one. A proof leaves it
open, because a restriction would weaken the proof.
"""
SWITCHES: Final = {"limit": HELD_LIMIT, "capacity": REFUSAL_NEEDS}
"""Feature that only restricts behaviour -> its parameter."""
