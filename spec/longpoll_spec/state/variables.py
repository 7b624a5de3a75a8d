"""What a variable of the state is, and what several of them are called. Leaves out which there are (`state`)."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.terms import Int, Term, bool_variable, const, int_variable, parameter, truth


@frozen
class Variable:
    """One variable of the state: name, range (both ends belong to it; no upper end when unbounded), first value."""

    name: str
    lower: int
    upper: int | None
    initial: int
    sentence: str
    truth: bool = False
    """A truth value: 0 or 1 in every engine's words."""
    labels: tuple[str, ...] = ()
    """A word for each value, where the values are not quantities."""
    limit: Int | None = None
    """The parameter of the law that its upper end is: a proof that leaves the parameter open leaves this open too."""
    numbers_queues: bool = False
    """Its value is the number of a queue, or the count of queues for none: renaming queues renames it."""

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
        """Its first value as a term; what starts full starts full whatever the parameter is."""
        if self.truth:
            return truth(bool(self.initial))
        return self.limit if self.limit is not None and self.initial == self.upper else const(self.initial)

    def show(self, value: int) -> str:
        """The value as a reader wants it."""
        if self.truth:
            return "yes" if value else "no"
        return self.labels[value] if self.labels else str(value)


def flag(name: str, sentence: str, *, initial: bool = False) -> Variable:
    """A truth-valued variable."""
    return Variable(name, 0, 1, int(initial), sentence, truth=True)


def queue_number(name: str, bounds: Bounds, sentence: str) -> Variable:
    """A variable that names a queue or none; at first it names none."""
    labels = (*(f"q{index}" for index in range(bounds.queues)), "none")
    return Variable(name, 0, bounds.queues, bounds.queues, sentence, labels=labels, numbers_queues=True)


def of_queue(name: str, index: int, bounds: Bounds) -> str:
    """The name of a queue's variable, such as `log_end_q0`; the only queue's has no number."""
    return f"{name}_q{index}" if bounds.queues > 1 else name


def hold_ticks_of(bounds: Bounds) -> Int:
    """A pull's deadline as a parameter, which a proof may leave open."""
    return parameter("hold_ticks", bounds.hold_ticks)


def scan_ticks_of(bounds: Bounds) -> Int:
    """The scan's period as a parameter, which a proof may leave open."""
    return parameter("scan_ticks", bounds.scan_ticks)


HELD_LIMIT: Final = parameter("held_limit", 1)
"""The aspect `limit`: 1, at most one request is held; 0, there is no limit. A proof leaves it open."""
REFUSAL_NEEDS: Final = parameter("refusal_needs", 1)
"""The aspect `capacity`: 1, the executor refuses only beside another request; 0, a lone one too. A proof leaves it
open, for what only restricts makes a proof say less."""
SWITCHES: Final = {"limit": HELD_LIMIT, "capacity": REFUSAL_NEEDS}
"""Aspect that restricts what can happen -> its parameter."""
