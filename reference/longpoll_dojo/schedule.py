"""Play one order: reset, its moves, and an end at which everything owed is due.

Choosing orders: `explore`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from attrs import define, field, frozen

from longpoll_dojo.errors import ProgramError, ViolationError
from longpoll_dojo.model import Allowances, Message, Model
from longpoll_dojo.replies import Reply
from longpoll_dojo.steps import Step


class Partner(Protocol):
    """Answers messages: a `program.Program`, or a fake in a test."""

    def turn(self, message: bytes) -> list[Reply]:
        """Send it a message, and read until its turn has ended. Raises ProgramError."""
        ...


@frozen
class Turn:
    """A message and the program's output; the message is None for a move that sends nothing."""

    message: Message | None
    replies: tuple[Reply, ...] = ()

    def heard(self) -> tuple[str, ...]:
        """The output in a canonical order: answers of one turn may come in any order."""
        return tuple(sorted(map(repr, self.replies)))


@define(eq=False)
class Schedule:
    """An order in progress. Invariant: `moves` lead from the reset to the state of `world`; `turns` are its turns."""

    partner: Partner
    allowances: Allowances
    world: Model = field(init=False)
    moves: list[Step] = field(factory=list)
    turns: list[Turn] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.world = Model(self.allowances)

    def begin(self) -> None:
        """Reset the program. Raises ViolationError."""
        self._had({"type": "reset", "id": 0, "now_ms": 0, "wall_ms": self.world.wall_ms})

    def make(self, move: Step) -> None:
        """Make a move. Raises ViolationError, and TokenError if it is impossible."""
        message = self.world.message_of(move)
        self.moves.append(move)
        if message is None:
            self.turns.append(Turn(None))
        else:
            self._had(message)

    def finish(self) -> None:
        """Continue all paused messages, and tick until everything owed is due. Raises ViolationError."""
        self._let_go()
        for moment_ms in self.world.last_ticks_ms():
            self._had(self.world.tick_at(moment_ms))
            self._let_go()

    def _let_go(self) -> None:
        while self.world.paused:
            message = self.world.message_of(Step("go", message_id=next(iter(self.world.paused))))
            assert message is not None
            self._had(message)

    def _had(self, message: Message) -> None:
        try:
            replies = self.partner.turn(msgspec.json.encode(message))
            self.turns.append(Turn(message, tuple(replies)))
            self.world.take(replies)
        except ProgramError as error:
            if not self.turns or self.turns[-1].message is not message:
                self.turns.append(Turn(message))
            raise ViolationError("speaks_the_protocol", str(error)) from None


@frozen
class Played:
    """An order that was played to its end, or to a violation."""

    moves: tuple[Step, ...]
    turns: tuple[Turn, ...]
    violation: ViolationError | None

    def is_alike(self, other: Played) -> bool:
        """Whether the program behaved the same in both."""
        return [turn.heard() for turn in self.turns] == [turn.heard() for turn in other.turns]


Chooser = Callable[[Schedule], Step | None]
"""Chooses the next move; None ends the order."""


def play(partner: Partner, allowances: Allowances, choose: Chooser) -> Played:
    """Play the chosen order. Raises TokenError for impossible moves."""
    order = Schedule(partner, allowances)
    try:
        order.begin()
        while (move := choose(order)) is not None:
            order.make(move)
        order.finish()
    except ViolationError as error:
        return Played(tuple(order.moves), tuple(order.turns), error)
    return Played(tuple(order.moves), tuple(order.turns), None)


def given(moves: Sequence[Step]) -> Chooser:
    """Choose exactly these moves."""
    rest = iter(moves)
    return lambda _order: next(rest, None)
