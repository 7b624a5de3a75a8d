"""Judges the committed offsets that groups get while a history grows.

The last exchanges about offsets are judged as a separate record, and everything before them counts as a gap. So an
older answer proves no violation and explains no later commit. Requests that may explain an offset at any time stay in
memory: those without an answer, such as one-way commits; those with a repeated identifier; and those that move offsets.
Anything that depends on older commits is left to a judgement of the whole. So is everything once memory is full.

The rules: `rules.commits`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field

from longpoll_judge.columns.batch import joined, taken
from longpoll_judge.columns.keys import NO_KEYS, Keys, request_keys
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.contract.causes import identified
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.source_survey import DISORDER_NS
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import fill
from longpoll_judge.rules.commits import OFFSET_CODES, RESETS, exchanges, judge_exchanges
from longpoll_judge.rules.cross_queue import have_request, rows_where
from longpoll_judge.rules.queue_columns import MS
from longpoll_judge.run.incremental.latest_values import Latest
from longpoll_judge.run.incremental.recent_events import Recent

EVENTS_MAX: Final = 100_000
"""Most events that are at hand, about 100 bytes each."""
LASTING_MAX: Final = 50_000
"""Most requests of long ago that are at hand, since they may still excuse."""
FINDINGS_MAX: Final = 1_000
"""Most findings that are kept, those that were found last."""
OF_ALL: Final = "commit.told.most"
"""Findings that depend on all earlier commits."""


@define(eq=False)
class Offsets:
    """The last exchanges about offsets. Invariant: what is in no piece and not `lasting` was answered before them."""

    recent: Recent = field(factory=Recent)
    lasting: pa.Table = field(factory=lambda: joined([]))
    """Requests of before that had no answer of their own then, or put offsets elsewhere."""
    found: Latest[str, Finding] = field(factory=Latest[str, Finding])
    """By name, what is certain."""
    is_over: bool = False
    """Whether too much would have to stay at hand."""

    def add(self, table: pa.Table, context: Context, survey: Survey, settled_ns: int, again: Keys) -> None:
        """Add new events, and judge those before the settled time if there are enough.

        `again` are the requests with a repeated identifier: they prove no violation, and their commits may explain an
        offset.
        """
        if self.is_over:
            return
        mine = taken(table, np.flatnonzero(self._about(table)))
        if not len(mine):
            return
        if self.recent.add(mine):
            if survey.offset_queries or survey.offset_updates:
                self._judge(context, survey, settled_ns, again)
            for gone in self.recent.forget(EVENTS_MAX):
                self._outlive(gone, again)

    def _about(self, table: pa.Table) -> Booleans:
        """Which events are requests about offsets, or answers to such of these that are at hand."""
        about = rows_where(table, "request_received")
        codes = is_one_of(table["code"].to_numpy(), (*OFFSET_CODES, *RESETS))
        about &= codes | (table["commit_offset"].to_numpy() >= 0)
        answers = np.flatnonzero(rows_where(table, "answer_sent") & have_request(table))
        if not len(answers):
            return about
        at_hand = [self.lasting, *(piece for piece, _last_ns in self.recent.pieces)]
        asked = [_keys(table, np.flatnonzero(about)), *(_requests(each) for each in at_hand)]
        about[answers[np.isin(request_keys(table, answers), np.concatenate(asked))]] = True
        return about

    def _judge(self, context: Context, survey: Survey, settled_ns: int, again: Keys) -> None:
        context = self.recent.context(context, survey.disorder_ns + DISORDER_NS)
        facts = {name: evolve(one, last_ns=min(one.last_ns, settled_ns)) for name, one in context.sources.items()}
        tables = [fill(each) for each in (self.lasting, *(piece for piece, _last_ns in self.recent.pieces))]
        if not any(is_one_of(each["code"].to_numpy(), OFFSET_CODES).any() for each in tables):
            return
        asked, answers, twice = exchanges(tables)
        at_hand = asked, answers, np.union1d(twice, again)
        found, _share, _gaps = judge_exchanges(at_hand, evolve(context, sources=facts))
        certain = [one for one in found if one.verdict == "violated" and one.clause != OF_ALL]
        settled = [one for one in certain if context.asks(one.clause) and one.window_end_ms * MS < settled_ns]
        for finding in identified(settled):
            self.found.put(finding.id, finding, FINDINGS_MAX)

    def _outlive(self, gone: pa.Table, again: Keys) -> None:
        """Keep of what is let go what may still excuse."""
        asked = fill(joined([self.lasting, taken(gone, np.flatnonzero(rows_where(gone, "request_received")))]))
        answered = _keys(gone, np.flatnonzero(rows_where(gone, "answer_sent")))
        keys = request_keys(asked, np.arange(len(asked)))
        stays = is_one_of(asked["code"].to_numpy(), RESETS) | ~have_request(asked)
        stays |= ~np.isin(keys, answered) | np.isin(keys, again)
        self.lasting = taken(asked, np.flatnonzero(stays))
        if len(self.lasting) > LASTING_MAX:
            self.is_over, self.lasting, self.recent = True, joined([]), Recent()


def _requests(table: pa.Table) -> Keys:
    return _keys(table, np.flatnonzero(rows_where(table, "request_received")))


def _keys(table: pa.Table, rows: Integers) -> Keys:
    return request_keys(table, rows) if len(rows) else NO_KEYS
