"""What ends an order: a program that did what it must not, and one that cannot be driven at all."""

from __future__ import annotations

from typing import Final

from longpoll_spec.errors import LongpollError, UserError

HINTS: Final = {
    "no_lost_wakeup": "look at what happens to a message that comes after a pull has looked and before it is held, at "
    "which queue is woken, and at whether all who wait there are",
    "answered_by_deadline": "look at how deadlines are reckoned and ordered, from which clock, and at who looks at "
    "them when a tick comes",
    "not_answered_early": "a pull with nothing to read waits until its deadline: look at how that is reckoned, from "
    "which clock, and at what else ends a wait",
    "answered_once": "look at whether a pull that was answered is taken off every list that it stands on",
    "answer_is_right": "a pull is answered with the messages of its own queue, from its own offset on, without a gap",
    "offset_goes_on": "offset_next is the pull's offset and as many more as there are messages in its answer",
    "nothing_for_closed": "look at whether a connection that closes takes its held pulls with it, those too that "
    "are just about to be held",
    "nothing_unasked": "an answer names the id of a pull of this order",
    "forgets_at_reset": "look at what is left after a reset: tables, deadlines, messages, paused work",
    "same_again": "the same messages have the same answers: look for real clocks, random numbers and threads of its "
    "own",
    "speaks_the_protocol": "each message is answered by lines of JSON, the last of which is "
    '{"done": ID} or {"at": "...", "id": ID}, written at once and not kept in a buffer',
}
"""Property -> where to look when it is broken. The first six are the law's."""


class ViolationError(LongpollError):
    """The program did what it must not; `property` is a key of `HINTS`, and the text says what happened."""

    def __init__(self, prop: str, what: str) -> None:
        super().__init__(what)
        assert prop in HINTS
        self.property = prop


class ProgramError(LongpollError):
    """The program ended, hung, or wrote what is not of the protocol; the text says which."""


class StartError(UserError):
    """A program that cannot be started, or does not answer its first message; the text says what to do."""


class TokenError(UserError):
    """A token that names no order, or an order that cannot be played; the text says why."""


class StarterError(UserError):
    """The starters cannot be written where they were asked for; the text says why."""
