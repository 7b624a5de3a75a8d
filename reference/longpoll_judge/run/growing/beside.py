"""Judges what belongs to no queue alone while a history grows: what is sent, and the ends that answers tell.

The last seconds are judged as a record by itself, again and again, each event twice or more. What came before them is a
hole of this record, and what may come after it too, so what would rest on either is unknown here, and what is certain
stands. What lies further apart than the seconds that are at hand is left to a judgement of the whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field

from longpoll_judge.columns.exchange import taken
from longpoll_judge.columns.queue_log import BEGINNING
from longpoll_judge.contract.identity import identified
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.holes import Holes, holes_of, union
from longpoll_judge.evidence.source_survey import DISORDER_NS
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import coded, fill
from longpoll_judge.rules.falls import judge_falls
from longpoll_judge.rules.sends import judge_sends
from longpoll_judge.rules.steps import MS

EVENTS_MAX: Final = 500_000
"""Most events that are at hand, about 100 bytes each."""
SPAN_NS: Final = 20_000 * MS
"""How long they are at hand, if they are no more: longer than a send may stay without an answer."""
FRESH_MIN: Final = 50_000
"""This number of new events is judged at once, or half of what is at hand, ..."""
FRESH_NS: Final = 1_000 * MS
"""... or what came in this time."""
FINDINGS_MAX: Final = 1_000
"""Most findings that are kept."""
KINDS: Final = frozenset({"request_received", "answer_sent", "message_acknowledged", "append", "make_visible"})


@define(eq=False)
class Beside:
    """The last seconds of a history. Invariant: what is not in `pieces` happened before `gone_ns`."""

    pieces: deque[tuple[pa.Table, int]] = field(factory=deque)
    """Events, and the last moment among them."""
    gone_ns: int = BEGINNING
    count: int = 0
    fresh: int = 0
    """Events that were not judged."""
    judged_ns: int = BEGINNING
    """The last moment of what was."""
    found: dict[str, Finding] = field(factory=dict)
    """By name, what is certain."""

    def add(self, table: pa.Table, context: Context, survey: Survey) -> None:
        """Take what is new, and judge if it is enough."""
        codes, names = coded(table, "event")
        rows = np.flatnonzero(np.array([name in KINDS for name in names], dtype=np.bool_)[codes])
        if not len(rows):
            return
        last_ns = int(table["before_ns"].to_numpy()[rows].max())
        self.pieces.append((taken(table, rows), last_ns))
        self.count += len(rows)
        self.fresh += len(rows)
        if self.fresh >= min(FRESH_MIN, self.count // 2) or last_ns >= self.judged_ns + FRESH_NS:
            self.judge(context, survey)
            self.fresh, self.judged_ns = 0, last_ns
            self._forget(last_ns)

    def _forget(self, last_ns: int) -> None:
        while len(self.pieces) > 1 and (self.count > EVENTS_MAX or self.pieces[0][1] < last_ns - SPAN_NS):
            table, gone_ns = self.pieces.popleft()
            self.count -= len(table)
            self.gone_ns = max(self.gone_ns, gone_ns)

    def judge(self, context: Context, survey: Survey) -> None:
        """Judge what is at hand."""
        attendance = survey.attendance
        disorder_ns = max((seen.disorder_ns for seen in survey.sources.values()), default=0)
        if self.gone_ns > BEGINNING:
            context = since(context, self.gone_ns + disorder_ns + DISORDER_NS)
        tables = [fill(table) for table, _last_ns in self.pieces]
        found: list[Finding] = []
        if attendance.acknowledged or attendance.sends:
            found += judge_sends(lambda: enumerate(tables), context)[0]
        if attendance.min_least < attendance.min_most or not survey.answered <= survey.shown:
            found += judge_falls(lambda: enumerate(tables), context)[0]
        certain = [one for one in found if one.verdict == "violated" and context.asks(one.clause)]
        for finding in identified(certain):
            if len(self.found) < FINDINGS_MAX:
                self.found.setdefault(finding.id, finding)


def since(context: Context, until_ns: int) -> Context:
    """The context of a record of which nothing before a moment is known."""
    gone = holes_of([(BEGINNING, until_ns)])

    def holed(holes: dict[str, Holes], names: Collection[str]) -> dict[str, Holes]:
        return {name: union((holes[name], gone)) if name in holes else gone for name in {*holes, *names}}

    facts = {name: evolve(fact, holes=union((fact.holes, gone))) for name, fact in context.sources.items()}
    brokers = {*context.broker_holes, *context.life_holes}
    return evolve(
        context,
        sources=facts,
        broker_holes=holed(context.broker_holes, brokers),
        life_holes=holed(context.life_holes, brokers),
    )
