"""One queue's messages: which offsets exist, their tags, and between which moments each became visible.

Inside the broker (white-box) `append` has a message's tag and `make_visible` the time. Outside it (black-box) only
`message_acknowledged` is seen. Where a wakeup is judged, a message is visible from its acknowledgement, as the producer
is promised. Where an answer's content is judged, it may have been visible earlier, and must be `slack_ns` later. The
visible end of one generation of a queue never moves back. Parts of a log that are not loaded are summarized.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.expression import Expression
from longpoll_judge.columns.lookup import Ascending, Integers
from longpoll_judge.read.schema import INTEGER_LIMIT

NEVER: Final = INTEGER_LIMIT
"""Later than every moment of a history, and higher than every offset."""
BEGINNING: Final = -INTEGER_LIMIT


def suffix_min(values: Integers) -> Integers:
    """Each place's smallest value from there to the end, with `NEVER` appended for the place after the last."""
    return np.append(np.minimum.accumulate(values[::-1])[::-1], NEVER).astype(np.int64)


@frozen(eq=False)
class Growth:
    """The visible end as a function of time, from (end, not before, not after) triples in any order."""

    end: Integers
    after_ns: Integers
    before_ns: Integers

    @cached_property
    def _by_end(self) -> tuple[Ascending, Integers, Integers]:
        order = np.argsort(self.end, kind="stable")
        return Ascending(self.end[order]), suffix_min(self.after_ns[order]), suffix_min(self.before_ns[order])

    def visible_between(self, offset: Integers) -> tuple[Integers, Integers]:
        """The interval [earliest, latest] in which each offset becomes visible; `NEVER` if it does not."""
        ends, after_ns, before_ns = self._by_end
        place = ends.below(offset + 1)
        return after_ns[place], before_ns[place]

    def end_at_least(self, moment_ns: Integers) -> Integers:
        """The end that was certainly reached before each moment."""
        return _highest(self._by_before, moment_ns, "left")

    def end_at_most(self, moment_ns: Integers) -> Integers:
        """The end that may have been reached at each moment."""
        return _highest(self._by_after, moment_ns, "right")

    @cached_property
    def _by_before(self) -> tuple[Integers, Integers]:
        return _highest_by(self.before_ns, self.end)

    @cached_property
    def _by_after(self) -> tuple[Integers, Integers]:
        return _highest_by(self.after_ns, self.end)


def _highest_by(times: Integers, end: Integers) -> tuple[Integers, Integers]:
    """The moments ascending, and the highest end before the first of them, and up to each."""
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate(([0], np.maximum.accumulate(end[order])))


def _highest(by_time: tuple[Integers, Integers], moment_ns: Integers, side: Any) -> Integers:
    times, highest = by_time
    found: Integers = highest[np.searchsorted(times, moment_ns, side=side)]
    return found


@frozen(eq=False)
class QueueLog:
    """One queue's log as the record shows it."""

    offsets: Integers
    """Offsets whose messages were seen, ascending, each once."""
    tag_codes: Integers
    """Their tags' hash codes."""
    growth: Growth
    is_white_box: bool
    """Whether visibility was seen from within the broker."""
    slack_ns: int
    """How long after its acknowledgement a message may stay invisible; 0 when white-box."""
    first_known: int | None = None
    """The first offset of the whole record, where this is not all of it."""
    perhaps: Integers = field(factory=lambda: np.empty(0, dtype=np.int64))
    """Offsets, ascending, whose messages were seen when one life of the queue or another may have been."""

    def may_be_there(self, offset: Integers) -> NDArray[np.bool_]:
        """Whether a message with each offset was, or may have been, seen."""
        known = self.is_known(offset)
        return known | np.isin(offset, self.perhaps) if len(self.perhaps) else known

    @property
    def base(self) -> int:
        """Offsets below were appended before the record began."""
        if self.first_known is not None:
            return self.first_known
        return int(self.offsets[0]) if len(self.offsets) else NEVER

    def is_known(self, offset: Integers) -> NDArray[np.bool_]:
        """Whether each offset's message was seen."""
        return self.known_count(offset, offset + 1) > 0

    def known_count(self, first: Integers, end: Integers) -> Integers:
        """How many messages with offsets in [first, end) were seen."""
        return self.ranks.between(first, end)

    @cached_property
    def ranks(self) -> Ascending:
        """How many of the offsets lie below others."""
        return Ascending(self.offsets)

    def visible_for_wake(self, offset: Integers) -> tuple[Integers, Integers]:
        """When each offset's message became visible, as wakeups are judged."""
        return self.growth.visible_between(offset)

    def visible_for_content(self, offset: Integers) -> tuple[Integers, Integers]:
        """When each offset's message became visible, as contents are judged."""
        after_ns, before_ns = self.growth.visible_between(offset)
        if not self.is_white_box:
            return np.full_like(after_ns, BEGINNING), np.minimum(before_ns + self.slack_ns, NEVER)
        return np.where(offset < self.base, BEGINNING, after_ns), before_ns

    def end_at_least(self, moment_ns: Integers) -> Integers:
        """The visible end that was certainly reached before each moment."""
        return self.growth.end_at_least(moment_ns - self.slack_ns)

    def end_at_most(self, moment_ns: Integers) -> Integers:
        """The highest visible end possible at each moment; `NEVER` when the record does not bound it."""
        if not self.is_white_box:
            return np.full_like(moment_ns, NEVER)
        return np.maximum(self.growth.end_at_most(moment_ns), self.base)

    def matching(self, expression: Expression) -> Matching:
        """The messages that the expression takes."""
        return Matching(self, expression)


@frozen(eq=False)
class Matching:
    """Those messages of a log that one expression takes."""

    log: QueueLog
    expression: Expression

    @cached_property
    def offsets(self) -> Integers:
        """Seen and matching, ascending."""
        return self.log.offsets[self.expression.matches(self.log.tag_codes)]

    @cached_property
    def _ranks(self) -> Ascending:
        return Ascending(self.offsets)

    @cached_property
    def _visible(self) -> tuple[Integers, Integers]:
        after_ns, before_ns = self.log.visible_for_wake(self.offsets)
        return suffix_min(after_ns), suffix_min(before_ns)

    def count(self, first: Integers, end: Integers) -> tuple[Integers, Integers]:
        """How many messages in [first, end) match: at least, and at most."""
        if self.expression.takes_everything:
            return end - first, end - first
        least = self._ranks.between(first, end)
        unseen = end - first - self.log.known_count(first, end)
        return least, least + np.maximum(unseen, 0)

    def first(self, offset: Integers) -> Integers:
        """The first matching offset at or after each offset; `NEVER` when none is known."""
        if self.expression.takes_everything and self.log.is_white_box:
            return offset
        return np.append(self.offsets, NEVER)[self._ranks.below(offset)]

    def first_visible(self, offset: Integers) -> tuple[Integers, Integers]:
        """Between which moments the first matching message at or after each offset became visible."""
        if self.expression.takes_everything and self.log.is_white_box:
            return self.log.visible_for_wake(offset)
        after_ns, before_ns = self._visible
        place = self._ranks.below(offset)
        return after_ns[place], before_ns[place]


@frozen
class Gap:
    """A summary of a queue's log between two loaded parts."""

    reach: int
    """It shows no offset below this."""
    begins_ns: int
    """Nothing that it shows happened before this moment."""
    ended_ns: int
    """All that it, or what lies before both pieces, shows happened at this moment or before."""
    floor: int
    """Neither it nor what lies before both pieces shows an offset at or above this, or a higher visible end."""


@frozen
class Outlook:
    """A summary of one queue's log outside a window and its neighbours."""

    is_white_box: bool
    """Whether visibility was seen from within the broker, anywhere."""
    first_known: int
    """The first offset whose message was seen anywhere; `NEVER` when none was."""
    first_before: int = NEVER
    """The first offset whose message earlier windows show; `NEVER` when they show none."""
    floor: int = BEGINNING
    """Earlier windows show no offset at or above this, and no higher visible end."""
    end_before: int = 0
    """The highest visible end that they show."""
    ended_before_ns: int = BEGINNING
    """All that they show of the log happened at this moment or before."""
    reach: int = NEVER
    """Later windows show no offset below this."""
    begins_after_ns: int = NEVER
    """Nothing that they show of the log happened before this moment."""
    gap: Gap | None = None
    """What lies between the piece around an offset and the piece around a moment, where these are apart. Then all but
    `floor` that is told here of earlier windows is of the gap as well."""
