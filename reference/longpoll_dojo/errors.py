"""Errors of a tested program: a violation, and a program that cannot be tested."""

from __future__ import annotations

from typing import Final

from longpoll_spec.errors import LongpollError, UserError

HINTS: Final = {
    "no_lost_wakeup": "check a message between look and hold; which queue is woken; whether all its pulls are woken; "
    "that a pull waits for one message only",
    "answered_by_deadline": "check how you compute and order deadlines, which clock you use, and whether each tick "
    "looks at them",
    "not_answered_early": "a pull without messages must wait until its deadline; check how you compute it, which clock "
    "you use, and what else ends a wait; the kit has may_answer_early for a service whose polls may end early",
    "answered_once": "remove an answered pull from every list that contains it",
    "answer_is_right": "answer a pull with the messages of its own queue, from its own offset on, without a gap",
    "offset_goes_on": "offset_next must be the pull's offset plus the number of messages in its answer",
    "nothing_for_closed": "when a connection closes, drop its held pulls, and also the pulls that are about to be held",
    "nothing_unasked": "an answer must contain the id of a pull of this schedule",
    "forgets_at_reset": "a reset must clear everything: tables, deadlines, messages and paused work",
    "same_again": "equal messages must get equal answers; avoid real clocks, random numbers and threads",
    "speaks_the_protocol": "answer each message with lines of JSON that end with "
    '{"done": ID} or {"at": "...", "id": ID}, and flush the output after each line',
}
"""Property -> what to check after a violation. The first six are properties of the specification."""


class ViolationError(LongpollError):
    """The program broke a property; `property` is a key of `HINTS`, and the text describes the violation."""

    def __init__(self, prop: str, what: str) -> None:
        super().__init__(what)
        assert prop in HINTS
        self.property = prop


class ProgramError(LongpollError):
    """The program exited, hung, or violated the protocol. The message gives the reason."""


class StartError(UserError):
    """The program cannot be started, or does not answer its first message. The message gives the next step."""


class TokenError(UserError):
    """The token is damaged, or its schedule cannot run. The message gives the reason."""


class StarterError(UserError):
    """The example programs cannot be written to the directory. The message gives the reason."""
