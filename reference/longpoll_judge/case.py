"""What is judged at once, one queue, and what a property's code hands back: suspects, each with a way to explain it.

Leaves out the properties (`promptness`, `rightness`) and their assembly (`verdict`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from numpy.typing import NDArray

from longpoll_judge.queue_log import NEVER, Integers, Matching, QueueLog
from longpoll_judge.result import FindingVerdict
from longpoll_judge.steps import MS, Events, Pulls, canonical, pulls, queue_log
from longpoll_judge.survey import Context

Booleans = NDArray[np.bool_]


@frozen
class Explanation:
    """Why one suspect is one."""

    why: str
    """One sentence with its numbers."""
    rows: list[int]
    """The events that show it."""


@frozen(eq=False)
class Suspects:
    """Some of a queue's requests that break, or may break, one property."""

    property: str
    verdict: FindingVerdict
    members: Integers
    """Indices that `explain` understands, in the order of time."""
    explain: Callable[[int], Explanation]


def suspects(name: str, violated: Booleans, unknown: Booleans, explain: Callable[[int], Explanation]) -> list[Suspects]:
    """The violated and the unknown members of one property."""
    return [
        Suspects(name, "violated", np.flatnonzero(violated), explain),
        Suspects(name, "unknown", np.flatnonzero(unknown), explain),
    ]


@define(frozen=True, eq=False)
class Case:
    """One queue's history, joined and sorted."""

    topic: str = field()
    queue: int = field()
    events: Events = field()
    log: QueueLog = field()
    pulls: Pulls = field()
    context: Context = field()

    @cached_property
    def matchings(self) -> list[Matching | None]:
        """For each of the pulls' expressions the messages it takes; None where tags cannot decide."""
        return [None if known is None else self.log.matching(known) for known in self.pulls.expressions]

    @cached_property
    def is_decidable(self) -> Booleans:
        """Whether tags decide what each pull takes."""
        known = np.array([matching is not None for matching in self.matchings], dtype=np.bool_)
        return known[self.pulls.expression] if len(known) else np.zeros(0, dtype=np.bool_)

    def by_expression(self, question: Callable[[Matching, Integers], tuple[Integers, Integers]]) -> list[Integers]:
        """Ask each pull's own matching about its index; two answers a pull, `NEVER` where undecidable."""
        answers = [np.full(len(self.pulls), NEVER, dtype=np.int64) for _ in range(2)]
        for code, matching in enumerate(self.matchings):
            if matching is not None:
                mine = np.flatnonzero(self.pulls.expression == code)
                for column, values in zip(answers, question(matching, mine), strict=True):
                    column[mine] = values
        return answers

    def message_rows(self, offset: int) -> list[int]:
        """The events that show one message: its append or acknowledgement, and what made it visible."""
        appended = np.concatenate((self.events.rows("append"), self.events.rows("message_acknowledged")))
        seen = appended[self.events.integers("queue_offset")[appended] == offset][:1]
        moved = self.events.rows("make_visible")
        visible = moved[self.events.integers("visible_end")[moved] > offset][:1]
        return [*seen.tolist(), *visible.tolist()]


def make_case(table: pa.Table, topic: str, queue: int, context: Context) -> Case:
    """Sort and join the events of one queue."""
    events = canonical(table)
    log = queue_log(events, context.wake_ns)
    return Case(topic, queue, events, log, pulls(events, context, log), context)


def ms(duration_ns: int) -> str:
    """Nanoseconds as text in milliseconds."""
    return f"{duration_ns / MS:.3f} ms"
