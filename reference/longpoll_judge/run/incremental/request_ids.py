"""The identifiers of requests in a growing history, so that a repeated one is noticed however late it comes.

If requests share an identifier, only an answer's own fields show which request it answers. The first request may be
judged by then. It stays in the sum, which becomes doubtful; later requests with that identifier are left to a judgement
of the whole.

Recorders number their requests, for each connection or all together. So identifiers are stored as a text and a span of
numbers: `7-1`, `7-2` and `7-3` are one entry. An identifier without a number, or without an adjacent one, takes 24
bytes. If there are too many, all of these are forgotten, which is a separate doubt.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.columns.keys import NO_KEYS, Keys, repeated, request_keys, text_hashes
from longpoll_judge.columns.lookup import Integers
from longpoll_judge.read.schema import coded_texts, compute
from longpoll_judge.rules.cross_queue import WEIGHT, have_request, rows_where
from longpoll_judge.rules.queue_columns import REQUEST_EVENTS

SPANS_MAX: Final = 2_000_000
"""Most spans that are remembered, 48 MB."""
AGAIN_MAX: Final = 100_000
"""Most identifiers that came again of which what comes later is left out."""
CAME_AGAIN: Final = "a request whose identifier came again"
TOO_MANY: Final = "identifiers that are too many to remember, so that one may have come again"
_NUMBERED: Final = r"^(?P<text>(?s:.)*?)(?P<number>0|[1-9][0-9]{0,17})$"
"""With no zero before it, so that text and number are of one identifier alone."""
_NO_NUMBER: Final = -1


def _none() -> Integers:
    return np.zeros(0, dtype=np.int64)


@define(eq=False)
class Asked:
    """Invariant: the spans are in order of their text and first number, and no two of one text touch."""

    text: Keys = field(factory=NO_KEYS.copy)
    first: Integers = field(factory=_none)
    last: Integers = field(factory=_none)
    again: Keys = field(factory=NO_KEYS.copy)
    """The keys of requests whose identifier came again."""
    is_over: bool = False

    def add(self, table: pa.Table) -> dict[str, int]:
        """Remember what is asked; the doubts that arise, each with how often."""
        rows = np.flatnonzero(rows_where(table, "request_received") & have_request(table))
        if self.is_over or not len(rows):
            return {}
        keys = request_keys(table, rows)
        text, number = _numbered(table, rows)
        place, is_known = self._find(text, number)
        came_again = np.union1d(keys[is_known], repeated([keys]))
        fresh = np.flatnonzero(~is_known)
        order = fresh[np.lexsort((number[fresh], text[fresh]))]
        is_first = np.append(True, (text[order][1:] != text[order][:-1]) | (number[order][1:] != number[order][:-1]))
        order = order[is_first[: len(order)]]
        self._insert(place[order], text[order], number[order])
        new = np.setdiff1d(came_again, self.again)
        self.again = np.union1d(self.again, new[: max(AGAIN_MAX - len(self.again), 0)])
        doubts = {CAME_AGAIN: len(new)} if len(new) else {}
        if len(self.first) > SPANS_MAX:
            self.is_over, self.text, self.first, self.last = True, NO_KEYS, _none(), _none()
            doubts[TOO_MANY] = SPANS_MAX
        return doubts

    def without(self, table: pa.Table) -> pa.Table:
        """The events but those of requests whose identifier came again."""
        if not len(self.again) or not len(table):
            return table
        is_theirs = np.isin(request_keys(table, np.arange(len(table))), self.again)
        is_theirs &= np.logical_or.reduce([rows_where(table, event) for event in REQUEST_EVENTS])
        return table.filter(pa.array(~is_theirs)) if is_theirs.any() else table

    def _find(self, text: Keys, number: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Where each identifier belongs among the spans, and whether it is in one of them."""
        low = np.searchsorted(self.text, text, side="left")
        high = np.searchsorted(self.text, text, side="right")
        start = low.copy()
        while (low < high).any():
            middle = (low + high) // 2
            is_behind = (low < high) & (self.first[np.minimum(middle, len(self.first) - 1)] <= number)
            low, high = np.where(is_behind, middle + 1, low), np.where(is_behind | (low >= high), high, middle)
        is_known: NDArray[np.bool_] = (low > start) & (np.append(self.last, _NO_NUMBER)[low - 1] >= number)
        return low, is_known

    def _insert(self, place: Integers, text: Keys, number: Integers) -> None:
        """Add identifiers that are in no span, in order, and join those that touch."""
        text = np.insert(self.text, place, text)
        first, last = np.insert(self.first, place, number), np.insert(self.last, place, number)
        starts = np.flatnonzero(np.append(True, (text[1:] != text[:-1]) | (first[1:] > last[:-1] + 1))[: len(text)])
        ends = np.append(starts[1:], len(text)) - 1
        self.text, self.first, self.last = text[starts], first[starts], last[ends[: len(starts)]]


def _numbered(table: pa.Table, rows: Integers) -> tuple[Keys, Integers]:
    """The identifier of each row as the key of a text, by source, and the number behind it."""
    codes, texts = coded_texts(table, "request")
    used, own = np.unique(codes[rows], return_inverse=True)
    names = texts.take(pa.array(used))
    found = compute.extract_regex(names, _NUMBERED)
    text = compute.coalesce(compute.struct_field(found, "text"), names)
    number = compute.fill_null(compute.struct_field(found, "number").cast(pa.int64()), _NO_NUMBER)
    sources, source_names = coded_texts(table, "source")
    keys: Keys = text_hashes(source_names)[sources[rows]] * WEIGHT + text_hashes(text)[own]
    return keys, number.to_numpy()[own]
