"""The interface to implement for a service under test: publish, poll, and optional abilities.

A queue is a named, ordered sequence of messages, which exists once it is named. A poll requests messages of one queue.
The service answers at once if the queue has the requested messages. Otherwise it holds the poll, and answers when a
message arrives or when the poll's deadline passes.

The subject starts the service itself, usually in its `__init__` or in its module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, get_args

from attrs import field, frozen

from longpoll_kit.errors import SubjectError

Semantics = Literal["consuming", "offsets", "confirming", "newest"]
"""How polls read a queue:

- consuming: a message goes to one poll, which removes it from the queue (like BLPOP of Redis).
- offsets: a poll names the position from which it reads, and removes nothing (like an event feed over HTTP).
- confirming: like offsets, but a poll's position confirms all messages before it, which may then be removed (like
  getUpdates of Telegram).
- newest: a poll names the position that it knows, and gets the newest value after this position; values in between may
  be left out (like a watch of Consul)."""
MessageOrder = Literal["total", "key", "none"]


@frozen
class Polled:
    """The answer to a poll."""

    bodies: Sequence[bytes] = ()
    """The messages in order; empty if the deadline passed."""
    position_next: Any = field(default=None, kw_only=True)
    """The position after these messages, in any form that the service defines; the kit passes it to a later poll.

    For a poll of several queues, a mapping from queue to position."""


def _not_written(method: str) -> SubjectError:
    return SubjectError(f"this subject has no {method}; write the method, or do not use it")


class LongPollSubject(Protocol):
    """A service under test. Derive from this class, and write `semantics`, `publish`, `start_poll` and `finish_poll`.

    The attributes declare what the service's documentation promises, and the kit tests these promises.

    Leave out a method of `OPTIONAL` if the service lacks the ability: the kit then never calls the method, and the
    report lists it. Several threads call `publish`, `start_poll`, `finish_poll` and `cancel` at once. An exception from
    any of these methods ends the test, except from `finish_poll` of a poll that was cancelled or in flight during a
    restart.
    """

    semantics: Semantics
    order: MessageOrder = "total"
    """The delivery order of a consuming service. The default `total` means the order of the whole queue.

    key: the messages of one key are delivered in order, like a FIFO queue of SQS; the kit then calls `publish_keyed`.
    none: messages are delivered in any order, like a standard queue of SQS."""
    redelivery_ms: int | None = None
    """How long after a delivery a consuming service may deliver the message again; None: never, 0: at any time.

    With `acknowledge`, the service must deliver every unacknowledged message again, but never an acknowledged message.
    """
    wait_unit_ms: int = 1
    """The timeout of each poll is a multiple of this value, such as 1,000 for a service that counts whole seconds."""
    wait_min_ms: int = 0
    """The shortest timeout that the service accepts; at least 1 if 0 means to wait forever, as for BLPOP of Redis."""
    wait_max_ms: int | None = None
    """The longest timeout that the service accepts; None if it accepts any timeout."""
    client_ends_wait: bool = False
    """Whether the client ends the wait, so that a consuming service learns late that the wait is over.

    A message that arrives at the end of the wait may then go to the ended poll, and no other poll gets it in time."""
    polls_max: int | None = None
    """How many polls the service accepts at once; None if it accepts any number."""
    body_max: int | None = None
    """The size in bytes of the largest message that the service accepts; None if it accepts any size."""
    gone: tuple[type[Exception], ...] = ()
    """Exceptions which mean that the service refuses requests or has stopped. They end the test with the verdict
    `unknown`."""
    visible_ms: int = 0
    """How long a message may stay invisible to polls after its publish returns."""
    serves_longest_waiting: bool = False
    """Whether a consuming service gives a message to the poll that has waited longest, as BLPOP of Redis does."""
    durable: bool = False
    """Whether acknowledged messages survive a restart; otherwise they may be lost."""
    heartbeat_ms: int | None = None
    """The interval at which the service sends heartbeats to a held poll; None for a service without heartbeats."""
    ends_at_deletion: bool = False
    """Whether the deletion of a queue ends its polls at once; otherwise they may wait until their deadlines."""
    process_id: int | None = None
    """The process of a service on this host. The time that this process waits for a processor does not count."""

    def publish(self, queue: str, body: bytes) -> None:
        """Publish a message, and return when the message is acknowledged, so that a poll can get it."""
        ...

    def publish_keyed(self, queue: str, key: str, body: bytes) -> None:  # noqa: ARG002 - who derives takes it
        """Publish a message with an ordering key, and return when the message is acknowledged."""
        raise _not_written("publish_keyed")

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Any:
        """Send a poll that may wait for `timeout_ms`, without waiting for its answer; return any object as its handle.

        `position` is None for the queue's first message, or the `position_next` of an earlier answer; with the
        semantics `consuming` it is always None.
        """
        ...

    def finish_poll(self, handle: Any) -> Polled:
        """Wait for the answer of a poll."""
        ...

    def acknowledge(self, handle: Any) -> None:  # noqa: ARG002 - who derives takes it
        """Acknowledge the messages of a poll's answer, which must not be delivered again.

        The kit calls this method after `finish_poll`.
        """
        raise _not_written("acknowledge")

    def cancel(self, handle: Any) -> None:  # noqa: ARG002 - who derives takes it
        """Cancel a poll. Return when the service can no longer give this poll a message.

        The poll's `finish_poll` then returns the messages that the service had given to the poll, possibly none. If the
        subject cannot know these messages, `finish_poll` raises any exception.
        """
        raise _not_written("cancel")

    def answered_again(self, handle: Any) -> bool:  # noqa: ARG002 - who derives takes it
        """Return, without waiting, whether the service answered a poll a second time."""
        raise _not_written("answered_again")

    def start_poll_of(self, queues: Sequence[str], positions: Sequence[Any], timeout_ms: int) -> Any:  # noqa: ARG002 - who derives takes it
        """Send one poll that waits for several queues; `finish_poll` returns messages of any of these queues."""
        raise _not_written("start_poll_of")

    def delete_queue(self, queue: str) -> None:  # noqa: ARG002 - who derives takes it
        """Delete a queue. Polls of this queue may end in any way, but must end by their deadlines."""
        raise _not_written("delete_queue")

    def heartbeats(self, handle: Any) -> int:  # noqa: ARG002 - who derives takes it
        """Return the number of heartbeats that arrived for a poll before its answer; called after `finish_poll`."""
        raise _not_written("heartbeats")

    def restart(self) -> None:
        """Restart the service. Return when it accepts requests; polls in flight may end in any way."""
        raise _not_written("restart")

    def close(self) -> None:
        """Release the resources that this subject opened."""
        raise _not_written("close")


OPTIONAL: Final = (
    "acknowledge", "cancel", "answered_again", "start_poll_of", "delete_queue", "heartbeats", "restart", "close",
)  # fmt: skip
NEEDED: Final = ("publish", "start_poll", "finish_poll")


def abilities_of(subject: object) -> frozenset[str]:
    """The optional methods that a subject implements. Raises SubjectError if the subject is invalid."""
    name = type(subject).__name__
    semantics = getattr(subject, "semantics", None)
    if semantics not in get_args(Semantics):
        known = " or ".join(repr(each) for each in get_args(Semantics))
        raise SubjectError(f"{name}.semantics is {semantics!r}; set it to {known}")
    needed = (*NEEDED, *(["publish_keyed"] if getattr(subject, "order", "total") == "key" else []))
    missing = [each for each in needed if not _has(subject, each)]
    if missing:
        raise SubjectError(f"{name} has no {' and no '.join(missing)}; longpoll.LongPollSubject describes them")
    return frozenset(each for each in OPTIONAL if _has(subject, each))


def _has(subject: object, method: str) -> bool:
    written = getattr(type(subject), method, None)
    return written is not None and written is not getattr(LongPollSubject, method)


def wait_of(subject: LongPollSubject, wanted_ms: int) -> int:
    """Return a timeout in milliseconds that the service accepts, if possible at least `wanted_ms`."""
    unit_ms = max(1, getattr(subject, "wait_unit_ms", 1))
    whole_ms = -(-max(wanted_ms, getattr(subject, "wait_min_ms", 0)) // unit_ms) * unit_ms
    most_ms = getattr(subject, "wait_max_ms", None)
    return whole_ms if most_ms is None else min(whole_ms, most_ms)


def polled_of(answer: object, subject: object) -> Polled:
    """Check the result of `finish_poll`. Raises SubjectError if the result is not a `Polled`."""
    if isinstance(answer, Polled) and all(isinstance(body, bytes) for body in answer.bodies):
        return answer
    raise SubjectError(
        f"{type(subject).__name__}.finish_poll returned {answer!r:.80}; return longpoll.Polled([body, ...]) "
        "with bodies of bytes, or longpoll.Polled() for none"
    )
