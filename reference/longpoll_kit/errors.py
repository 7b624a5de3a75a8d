"""Errors of the kit: a violation by the service, and an unusable subject."""

from __future__ import annotations

from typing import Final

from longpoll_spec.errors import LongpollError, UserError

HINTS: Final = {
    "no_lost_wakeup": (
        "check a message that comes after a poll's read and before its wait, and whether every waiting poll is woken; "
        "a service that waits for several messages or bytes must wait for one in this test"
    ),
    "answered_by_deadline": (
        "check how a poll's timeout is measured, and what ends its wait; and whether the server's listen backlog is as "
        "large as the number of polls at once (Python's http.server has 5)"
    ),
    "not_early": (
        "a poll with nothing to read waits until its deadline: check what else ends its wait, such as a limit on "
        "waiting polls or a proxy; a service that counts whole seconds declares wait_unit_ms = 1000"
    ),
    "holds": "check that a poll with nothing to read waits at all, and in which unit the service reads its wait",
    "answered_once": (
        "check the removal of a message, or of a poll, from its list after the answer; a service that gives an "
        "unacknowledged message again declares redelivery_ms"
    ),
    "given_again": "check what happens to a message whose reader never acknowledges it",
    "nothing_lost": "check where a message is between its removal and the answer to its poll",
    "in_order": "check whether two polls, or a poll and a publish, can change the same queue at once",
    "served_in_turn": "check in which order waiting polls are listed, and which of them a message wakes",
    "right_messages": "check whether queue names, bodies and positions are stored unchanged",
    "cancelled_is_over": "check whether a cancelled poll is still in the list of waiting polls",
    "deleted_is_over": "check whether the deletion of a queue wakes the polls of that queue",
    "heartbeats": "check what is sent to a poll while it waits, and that the timer of each poll is set again",
    "kept_by_restart": "check what is on disk when a publish is acknowledged",
}
"""Maps each property to advice about where to look for the fault if a service breaks the property."""


class ViolationError(LongpollError, AssertionError):
    """The service broke a property; the message describes what happened.

    A subject may raise this error too, for a property that the subject itself checks, with its own hint. Otherwise
    `prop` is a key of `HINTS`.
    """

    def __init__(self, prop: str, what: str, hint: str | None = None) -> None:
        super().__init__(f"{prop}: {what}; {HINTS[prop] if hint is None else hint}")
        self.property = prop


class SubjectError(UserError):
    """The subject does not meet the requirements of the kit; the message says what to change."""


class ServiceError(UserError):
    """The service refuses requests or has stopped, so the test ends."""


class StandstillError(LongpollError):
    """The host paused for so long that a late answer proves nothing, so the example ends."""
