"""Summaries of growing logs, and what they show about the part of a log that is not in memory.

The numbers come from `overview`; `queue_judge` chooses the part in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import frozen

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.queue_log import BEGINNING, NEVER, Outlook
from longpoll_judge.run.overview import LogSpan

Log = tuple[str, str, int, str]
"""Broker, topic, queue and source."""
_JOINS: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (min, ("append_min", "known_min", "visible_min", "after_min_ns", "before_min_ns")),
    (
        max,
        (
            *("append_max", "known_max", "acknowledged_max", "visible_max", "visible_early"),
            *("after_max_ns", "before_max_ns"),
        ),
    ),
)


@frozen(eq=False)
class Outlooks:
    """Summaries of each queue's log outside the window."""

    before: dict[QueueName, list[LogSpan]]
    whole: dict[QueueName, list[LogSpan]]
    settled_ns: int

    def __call__(self, name: QueueName) -> Outlook:
        """The outlook of one queue."""
        before, whole = self.before.get(name, []), self.whole.get(name, [])
        is_white_box = any(span.visible_max > BEGINNING for span in whole)
        end = max((span.visible_max if is_white_box else span.acknowledged_max + 1 for span in before), default=0)
        known = max((span.known_max for span in before), default=-1)
        return Outlook(
            is_white_box=is_white_box,
            first_known=min((span.known_min for span in whole), default=NEVER),
            first_before=min((span.known_min for span in before), default=NEVER),
            floor=max(end, known + 1, 0) if before else BEGINNING,
            end_before=max(end, 0),
            ended_before_ns=max((span.before_max_ns for span in before), default=BEGINNING),
            begins_after_ns=self.settled_ns,
        )


def by_queue(spans: Mapping[Log, LogSpan]) -> dict[QueueName, list[LogSpan]]:
    """The numbers of all sources of each queue."""
    found: dict[QueueName, list[LogSpan]] = {}
    for log, span in spans.items():
        found.setdefault(log[:3], []).append(span)
    return found


def follows(one: LogSpan, other: LogSpan) -> bool:
    """Whether no two events of a log, of which the one is in the one span, can contradict each other."""
    return (
        one.append_max < other.append_min
        and one.known_max < other.known_min
        and one.visible_max <= other.visible_min
        and one.after_max_ns <= other.before_min_ns
    )


def together(one: LogSpan, other: LogSpan) -> LogSpan:
    """The numbers of both; the other came later."""
    least, most = ({name: join(getattr(one, name), getattr(other, name)) for name in names} for join, names in _JOINS)
    return msgspec.structs.replace(
        one,
        count=one.count + other.count,
        append_count=one.append_count + other.append_count,
        rises=one.rises and other.rises and follows(one, other),
        **least,
        **most,
    )


def are_shown_early(spans: Mapping[Log, LogSpan], known: Mapping[Log, LogSpan]) -> set[QueueName]:
    """Queues of which a piece may show an end before its last message was appended, given what came before it."""
    found: set[QueueName] = set()
    for log, span in spans.items():
        before = known.get(log, span)
        first = min(before.append_min, span.append_min)
        reached = known[log].append_max + 1 if log in known else BEGINNING
        if first < NEVER and span.visible_early > max(reached, first):
            found.add(log[:3])
    return found
