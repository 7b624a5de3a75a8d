"""Certain faults of logs while a history grows; each look finds some of them again.

`queue_judge` chooses the logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
from attrs import define, field

from longpoll_judge.read.schema import compute
from longpoll_judge.run.incremental.latest_values import Latest
from longpoll_judge.run.queue_verdict import FINDING, Found, as_table

LOGGED_MAX: Final = 1_000
"""Most faults of logs that are kept, those that were found last."""


@define(eq=False)
class Logged:
    """The faults, each as the text of a result row, by what it says and its place."""

    latest: Latest[tuple[object, ...], str] = field(factory=Latest[tuple[object, ...], str])

    @classmethod
    def of(cls, texts: Iterable[str]) -> Logged:
        """These faults, which were looked at."""
        return cls(Latest({_named(msgspec.json.decode(text, type=Found)): text for text in texts}))

    def add(self, rows: pa.Table) -> int:
        """Take what is certain of some result rows; how much that is."""
        count = 0
        for text in rows.filter(compute.equal(rows["kind"], FINDING))["text"].to_pylist():
            found = msgspec.json.decode(text, type=Found)
            if found.finding.verdict == "violated":
                self.latest.put(_named(found), text, LOGGED_MAX)
                count += 1
        return count

    def look(self) -> pa.Table:
        """All that is kept, as result rows; who asks tells it."""
        return as_table([(FINDING, 0, 1, text) for text in self.latest.look()])


def _named(found: Found) -> tuple[object, ...]:
    return found.finding.clause, found.finding.why, found.order
