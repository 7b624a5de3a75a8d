"""The timeline of an example: its latest events in order, with milliseconds since the first listed event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from longpoll_kit.model import MS, Ask, Queue, shown

EVENTS_MAX: Final = 12
"""The maximum number of lines of a timeline, because older events rarely explain a failure."""
Moment: TypeAlias = tuple[int, str]
"""The time of an event, in ns, and its text."""


def lines_of(
    queues: Iterable[Queue], asks: Iterable[Ask], others: Iterable[Moment], most: int = EVENTS_MAX
) -> tuple[str, ...]:
    """Return the latest events as lines, at most `most` lines."""
    events = [*others, *(moment for ask in asks for moment in _of_ask(ask))]
    events += [moment for queue in queues for moment in _of_queue(queue)]
    latest = sorted(events)[-most:]
    return tuple(f"{(at_ns - latest[0][0]) / MS:9.1f} ms  {what}" for at_ns, what in latest)


def _of_queue(queue: Queue) -> Iterator[Moment]:
    for message in queue.messages:
        yield message.begun_ns, f"{message} is published to {queue.name}"
        if message.acked_ns is not None:
            yield message.acked_ns, f"message {message.number} of {queue.name} is acknowledged"


def _of_ask(ask: Ask) -> Iterator[Moment]:
    yield ask.begun_ns, f"{ask} begins"
    if ask.cancelled_ns is not None:
        yield ask.cancelled_ns, f"poll {ask.number} is cancelled, or ended by a restart"
    if ask.ended_ns is not None and ask.answer is not None:
        bodies = ask.answer.bodies
        more = f" and {len(bodies) - 1} more" if len(bodies) > 1 else ""
        yield ask.ended_ns, f"poll {ask.number} is answered with {shown(bodies[0]) if bodies else 'nothing'}{more}"
    elif ask.ended_ns is not None:
        yield ask.ended_ns, f"poll {ask.number} raises {ask.error!r:.100}"
