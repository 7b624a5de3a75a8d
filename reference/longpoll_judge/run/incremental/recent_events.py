"""The last events of some kinds while a history grows, which are judged repeatedly as a separate record.

Earlier events count as a gap of this record. `recent_sends` and `committed_offsets` judge it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

import pyarrow as pa
from attrs import define, evolve, field

from longpoll_judge.columns.queue_log import BEGINNING
from longpoll_judge.evidence.source_survey import RecordGaps, gaps_of, union
from longpoll_judge.evidence.survey import Context
from longpoll_judge.rules.queue_columns import MS

SPAN_NS: Final = 20_000 * MS
"""How long events are at hand, if there are not too many: longer than a send may stay without an answer."""
FRESH_MIN: Final = 50_000
"""This number of new events is judged at once, or half of what is at hand, ..."""
FRESH_NS: Final = 1_000 * MS
"""... or what came in this time."""


@define(eq=False)
class Recent:
    """Invariant: what is not in `pieces` happened before `gone_ns`."""

    pieces: deque[tuple[pa.Table, int]] = field(factory=deque)
    """Events, and the last moment among them."""
    gone_ns: int = BEGINNING
    count: int = 0
    fresh: int = 0
    """Events that were not judged."""
    judged_ns: int = BEGINNING
    """The last moment of what was."""

    def add(self, table: pa.Table) -> bool:
        """Take what is new; whether it is enough to judge."""
        last_ns = int(table["before_ns"].to_numpy().max())
        self.pieces.append((table, last_ns))
        self.count += len(table)
        self.fresh += len(table)
        return self.fresh >= min(FRESH_MIN, self.count // 2) or last_ns >= self.judged_ns + FRESH_NS

    def leave_out(self, without: Callable[[pa.Table], pa.Table]) -> None:
        """Let go of some of the events at hand."""
        self.pieces = deque((without(table), last_ns) for table, last_ns in self.pieces)
        self.count = sum(len(table) for table, _last_ns in self.pieces)

    def forget(self, events_max: int) -> list[pa.Table]:
        """Note that all was judged, and let go of what is too much or too old; what that was."""
        _table, last_ns = self.pieces[-1]
        self.fresh, self.judged_ns = 0, last_ns
        gone: list[pa.Table] = []
        while len(self.pieces) > 1 and (self.count > events_max or self.pieces[0][1] < last_ns - SPAN_NS):
            table, gone_ns = self.pieces.popleft()
            self.count -= len(table)
            self.gone_ns = max(self.gone_ns, gone_ns)
            gone.append(table)
        return gone

    def context(self, context: Context, disorder_ns: int) -> Context:
        """The context of what is at hand, as a record that begins with it."""
        return context if self.gone_ns == BEGINNING else since(context, self.gone_ns + disorder_ns)


def since(context: Context, until_ns: int) -> Context:
    """The context of a record of which nothing before a moment is known."""
    gone = gaps_of([(BEGINNING, until_ns)])

    def holed(holes: dict[str, RecordGaps], names: Collection[str]) -> dict[str, RecordGaps]:
        return {name: union((holes[name], gone)) if name in holes else gone for name in {*holes, *names}}

    facts = {name: evolve(fact, holes=union((fact.holes, gone))) for name, fact in context.sources.items()}
    brokers = {*context.broker_holes, *context.life_holes}
    return evolve(
        context,
        sources=facts,
        broker_holes=holed(context.broker_holes, brokers),
        life_holes=holed(context.life_holes, brokers),
    )
