"""What one writes to have a service tested: how to publish to it and how to poll it, and what else it can do.

A queue is an ordered sequence of messages with a name; it is there as soon as it is named. A poll asks one queue for
messages: with some there it is answered at once, else it waits until one comes or its deadline passes.

Leaves out how a service is started: that is the subject's own affair, mostly of its `__init__` or of a module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, get_args

from attrs import field, frozen

from longpoll_kit.errors import SubjectError

Semantics = Literal["consuming", "offsets"]
"""consuming: a message goes to one poll, which takes it off the queue (as BLPOP of Redis does).
offsets: a poll says from where on it reads, and takes nothing away (as an event feed over HTTP does)."""


@frozen
class Polled:
    """The answer to a poll."""

    bodies: Sequence[bytes] = ()
    """The messages, in their order; none when the deadline passed."""
    position_next: Any = field(default=None, kw_only=True)
    """Where to go on after these messages, as the service says it: any value, which a later poll is given back."""


def _not_written(method: str) -> SubjectError:
    return SubjectError(f"this subject has no {method}; write the method, or do not use it")


class LongPollSubject(Protocol):
    """A service under test. Derive from it, and write `semantics`, `publish`, `start_poll` and `finish_poll`.

    `cancel`, `answered_again`, `restart` and `close` are left out by who cannot do them, and are then never called;
    a report says so. `start_poll`, `finish_poll` and `cancel` are called on several threads at once. What any of them
    raises ends the test, but for `finish_poll` of a poll that was cancelled or under way during a restart.
    """

    semantics: Semantics
    durable: bool = False
    """Whether a restart keeps what was acknowledged; otherwise it may keep nothing."""
    process_id: int | None = None
    """The process of a service on this machine, whose waits for a processor are then no fault of its own."""

    def publish(self, queue: str, body: bytes) -> None:
        """Publish a message; returns when it is acknowledged: from then on a poll can have it."""
        ...

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Any:
        """Send a poll that may wait for `timeout_ms`, without waiting for its answer; returns a handle of any kind.

        `position` is None for the first message of the queue, or the `position_next` of an earlier answer; where the
        semantics are `consuming` it is always None.
        """
        ...

    def finish_poll(self, handle: Any) -> Polled:
        """Wait for the answer of a poll."""
        ...

    def cancel(self, handle: Any) -> None:  # noqa: ARG002 - who derives takes it
        """Cancel a poll; returns when the service gives it no further message.

        Its `finish_poll` then returns what it was given before, or nothing, or raises.
        """
        raise _not_written("cancel")

    def answered_again(self, handle: Any) -> bool:  # noqa: ARG002 - who derives takes it
        """Whether anything came for a poll after its answer; without waiting."""
        raise _not_written("answered_again")

    def restart(self) -> None:
        """Stop the service and start it again; returns when it serves. Polls under way may end in any way."""
        raise _not_written("restart")

    def close(self) -> None:
        """End what this subject began."""
        raise _not_written("close")


OPTIONAL: Final = ("cancel", "answered_again", "restart", "close")
NEEDED: Final = ("publish", "start_poll", "finish_poll")


def abilities_of(subject: object) -> frozenset[str]:
    """Which of the optional methods a subject has; raises SubjectError for one that cannot be used."""
    name = type(subject).__name__
    semantics = getattr(subject, "semantics", None)
    if semantics not in get_args(Semantics):
        known = " or ".join(repr(each) for each in get_args(Semantics))
        raise SubjectError(f"{name}.semantics is {semantics!r}; set it to {known}")
    missing = [each for each in NEEDED if not _has(subject, each)]
    if missing:
        raise SubjectError(f"{name} has no {' and no '.join(missing)}; longpoll.LongPollSubject describes them")
    return frozenset(each for each in OPTIONAL if _has(subject, each))


def _has(subject: object, method: str) -> bool:
    written = getattr(type(subject), method, None)
    return written is not None and written is not getattr(LongPollSubject, method)


def polled_of(answer: object, subject: object) -> Polled:
    """What `finish_poll` returned; raises SubjectError if it is no answer."""
    if isinstance(answer, Polled) and all(isinstance(body, bytes) for body in answer.bodies):
        return answer
    raise SubjectError(
        f"{type(subject).__name__}.finish_poll returned {answer!r:.80}; return longpoll.Polled([body, ...]) "
        "with bodies of bytes, or longpoll.Polled() for none"
    )
