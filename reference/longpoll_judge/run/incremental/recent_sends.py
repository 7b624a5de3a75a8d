"""Judges sends, and the ends of queues in answers, while a history grows.

The last seconds are judged repeatedly as a separate record, each event at least twice. Earlier and later events count
as gaps of this record. So anything that depends on them is unknown, and certain findings stand. Events further apart
than the seconds in memory are left to a judgement of the whole.

Repeated identifiers are noticed here too (`request_ids`). Committed offsets (`committed_offsets`) and the count of held
pulls (`held_pulls`) need more events in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.batch import taken
from longpoll_judge.contract.causes import identified
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.source_survey import DISORDER_NS
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import coded, fill
from longpoll_judge.rules.logs import judge_offset_regression
from longpoll_judge.rules.sends import judge_sends
from longpoll_judge.run.incremental.committed_offsets import Offsets
from longpoll_judge.run.incremental.held_pulls import Held
from longpoll_judge.run.incremental.latest_values import Latest
from longpoll_judge.run.incremental.recent_events import Recent
from longpoll_judge.run.incremental.request_ids import Asked

EVENTS_MAX: Final = 500_000
"""Most events that are at hand, about 100 bytes each."""
FINDINGS_MAX: Final = 1_000
"""Most findings that are kept, those that were found last, and most of each kind that one look gives."""
KINDS: Final = frozenset({"request_received", "answer_sent", "message_acknowledged", "append", "make_visible"})


@define(eq=False)
class Beside:
    """The last seconds of a history."""

    recent: Recent = field(factory=Recent)
    found: Latest[str, Finding] = field(factory=Latest[str, Finding])
    """By name, what is certain."""
    offsets: Offsets = field(factory=Offsets)
    held: Held = field(factory=Held)
    asked: Asked = field(factory=Asked)
    beyond: int = 0
    """The count that one look left out, each time it grew."""
    _beyond_last: int = 0

    def findings(self) -> Iterator[Finding]:
        """All that is certain and kept; who asks tells it."""
        yield from self.found.look()
        yield from self.offsets.found.look()
        yield from self.held.findings()

    @property
    def untold(self) -> int:
        """How many findings were dropped before a judgement was requested."""
        return self.found.left_out + self.offsets.found.left_out + self.beyond

    def add(
        self, table: pa.Table, limits: Mapping[str, int], context: Context, survey: Survey, settled_ns: int
    ) -> dict[str, int]:
        """Take what is new, and judge if it is enough; what only the end can tell, and how often.

        No event from before the settled moment comes any more; `limits` are what sources promise to hold at most.
        """
        self.offsets.add(table, context, survey, settled_ns, self.asked.again)
        table = self.asked.without(table)
        codes, names = coded(table, "event")
        rows = np.flatnonzero(np.array([name in KINDS for name in names], dtype=np.bool_)[codes])
        if len(rows) and self.recent.add(taken(table, rows)):
            self.judge(context, survey)
            self.recent.forget(EVENTS_MAX)
        return self.held.add(table, limits, context, survey, settled_ns)

    def ask(self, table: pa.Table) -> dict[str, int]:
        """Remember identifiers, and let go of requests at hand whose one came again; the doubts that arise."""
        doubts = self.asked.add(table)
        if doubts:
            self.recent.leave_out(self.asked.without)
            self.held.events = self.asked.without(self.held.events)
        return doubts

    def judge(self, context: Context, survey: Survey) -> None:
        """Judge what is at hand."""
        observers = survey.observers
        context = self.recent.context(context, survey.disorder_ns + DISORDER_NS)
        tables = [fill(table) for table, _last_ns in self.recent.pieces]
        found: list[Finding] = []
        beyond = 0
        if observers.acknowledged or observers.sends or observers.identified:
            listed, left_out, _share, _unasked = judge_sends(lambda: enumerate(tables), context, most=FINDINGS_MAX)
            found, beyond = found + listed, beyond + left_out
        if observers.min_least < observers.min_most or not survey.answered <= survey.shown:
            listed, left_out = judge_offset_regression(lambda: enumerate(tables), context, most=FINDINGS_MAX)
            found, beyond = found + listed, beyond + left_out
        certain = [one for one in found if one.verdict == "violated" and context.asks(one.clause)]
        for finding in identified(certain):
            self.found.put(finding.id, finding, FINDINGS_MAX)
        self.beyond += max(beyond - self._beyond_last, 0)
        self._beyond_last = beyond
