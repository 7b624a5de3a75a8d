"""Errors of the kit: a violation by the service, and an unusable subject."""

from __future__ import annotations

from typing import Final

from longpoll_spec.errors import LongpollError, UserError

HINTS: Final = {
    "no_lost_wakeup": "look at what happens to a message that comes after a poll has looked and before it waits, "
    "and at whether every poll that waits is told; a service that waits for several messages or "
    "bytes must wait for one in this test",
    "answered_by_deadline": "look at how the time that a poll may wait is counted, and at what ends its wait",
    "not_early": "a poll with nothing to read waits until its deadline: look at what else ends its wait",
    "answered_once": "look at what takes a message, or a poll, off the list when it has been answered",
    "nothing_lost": "look at who holds a message between the moment it is taken and the moment its poll is answered",
    "in_order": "look at whether two polls, or a poll and a publish, can change the same queue at once",
    "right_messages": "look at what is kept of a queue's name, of a body's bytes and of a position",
    "cancelled_is_over": "look at whether a poll that was cancelled is still on the list of those that wait",
    "kept_by_restart": "look at what is on the disk when a publish is acknowledged",
}
"""Property -> where to look when it is broken."""


class ViolationError(LongpollError, AssertionError):
    """The service broke a property; `property` is a key of `HINTS`, and the text says what happened."""

    def __init__(self, prop: str, what: str) -> None:
        super().__init__(f"{prop}: {what}; {HINTS[prop]}")
        self.property = prop


class SubjectError(UserError):
    """The subject is not written as the kit needs it; the text says what to change."""


class StandstillError(LongpollError):
    """The host paused for so long that lateness shows nothing; the example ends, and counts as excused."""
