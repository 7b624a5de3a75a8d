"""The messages of all queues: which offsets exist, their tags, and between which times each message became visible.

An observer inside the broker (white-box) records a message's tag with `append` and the time of its visibility with
`make_visible`. An observer outside (black-box) records only `message_acknowledged`. The rules about wakeups take a
message as visible from its acknowledgement on, because the acknowledgement promises this to the producer. The rules
about the content of answers assume that a message may be visible before its acknowledgement, and must be visible
`slack_ns` after the acknowledgement. The visible end of one generation of a queue never falls. Each log belongs to one
generation, and has a number.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from attrs import define, field, frozen

from longpoll_judge.columns.expression import Expression
from longpoll_judge.columns.lookup import BEGINNING, NEVER, Booleans, Grouped, Integers, grouped, running, suffix_min
from longpoll_judge.kernel.lives import Lives
from longpoll_judge.kernel.window import Window
from longpoll_protocol.properties import java_hash

MESSAGES: Final = ("append", "message_acknowledged", "message_seen")
"""The events that show a message's tag and its offset; `message_seen` does not show when the message became visible."""


@frozen(eq=False)
class Growth:
    """The visible end of each log over time, from unordered rows of log, end, earliest time and latest time."""

    log: Integers
    end: Integers
    after_ns: Integers
    before_ns: Integers
    count: int
    """The number of logs."""

    @cached_property
    def _by_end(self) -> tuple[Grouped, Integers, Integers]:
        ends, order = grouped(self.log, self.end, self.count)
        return ends, suffix_min(ends.group, self.after_ns[order]), suffix_min(ends.group, self.before_ns[order])

    def visible_between(self, log: Integers, offset: Integers) -> tuple[Integers, Integers]:
        """Returns the earliest and latest time at which each offset became visible; `NEVER` if it never did."""
        ends, after_ns, before_ns = self._by_end
        place = ends.below(log, offset + 1)
        return ends.pick(log, place, after_ns, NEVER), ends.pick(log, place, before_ns, NEVER)

    def end_at_least(self, log: Integers, moment_ns: Integers) -> Integers:
        """Returns the end that each log had certainly reached before each given time."""
        return self._highest(self._by_before, log, moment_ns)

    def end_at_most(self, log: Integers, moment_ns: Integers) -> Integers:
        """Returns the highest end that each log may have reached at each given time."""
        return self._highest(self._by_after, log, moment_ns + 1)

    def _highest(self, by_time: tuple[Grouped, Integers], log: Integers, moment_ns: Integers) -> Integers:
        times, highest = by_time
        place = times.below(log, moment_ns)
        return np.where(place > times.bounds[log], np.append(highest, 0)[place - 1], 0)

    @cached_property
    def _by_before(self) -> tuple[Grouped, Integers]:
        return self._by_time(self.before_ns)

    @cached_property
    def _by_after(self) -> tuple[Grouped, Integers]:
        return self._by_time(self.after_ns)

    def _by_time(self, moment_ns: Integers) -> tuple[Grouped, Integers]:
        times, order = grouped(self.log, moment_ns, self.count)
        return times, np.maximum(running(times.group, self.end[order]), 0)


@define(eq=False, slots=False)
class Logs:
    """All logs of a window, as far as the record shows them."""

    known: Grouped
    """For each log, the offsets of the messages that the record shows, without duplicates."""
    tag_codes: Integers
    """The hash code of each known message's tag."""
    growth: Growth
    is_white_box: Booleans
    """For each log, whether an observer inside the broker recorded visibility."""
    wake_ns: int
    base: Integers
    """For each log, the first known offset or `NEVER`; lower offsets were appended before the record began."""
    perhaps: tuple[Integers, Integers]
    """The log and offset of each message that may belong to one of several lives of its queue."""
    _matching: dict[Expression, Matching] = field(factory=dict)

    def slack_ns(self, log: Integers) -> Integers:
        """Returns how long, in ns, a message may stay invisible after its acknowledgement; 0 for white-box logs."""
        return np.where(self.is_white_box[log], 0, self.wake_ns)

    def may_be_there(self, log: Integers, offset: Integers) -> Booleans:
        """Returns whether the record shows, or may show, a message at each offset of a log."""
        known = self.is_known(log, offset)
        if len(self.perhaps[0]):
            seen, _order = grouped(*self.perhaps, self.known.count)
            known |= seen.at(log, offset) >= 0
        return known

    def is_known(self, log: Integers, offset: Integers) -> Booleans:
        """Returns whether the record certainly shows a message at each offset of a log."""
        found: Booleans = self.known.at(log, offset) >= 0
        return found

    def visible_for_content(self, log: Integers, offset: Integers) -> tuple[Integers, Integers]:
        """Returns the interval in which each message became visible, for rules about the content of answers."""
        after_ns, before_ns = self.growth.visible_between(log, offset)
        white = self.is_white_box[log]
        after_ns = np.where(white & (offset >= self.base[log]), after_ns, BEGINNING)
        return after_ns, np.minimum(before_ns + self.slack_ns(log), NEVER)

    def end_at_least(self, log: Integers, moment_ns: Integers) -> Integers:
        """Returns the visible end that each log had certainly reached before each given time."""
        return self.growth.end_at_least(log, moment_ns - self.slack_ns(log))

    def end_at_most(self, log: Integers, moment_ns: Integers) -> Integers:
        """Returns the highest possible visible end at each given time; `NEVER` if the record does not bound the end."""
        most = np.maximum(self.growth.end_at_most(log, moment_ns), self.base[log])
        return np.where(self.is_white_box[log], most, NEVER)

    def matching(self, expression: Expression) -> Matching:
        """Returns the messages that the expression matches; results are cached by expression."""
        if expression not in self._matching:
            self._matching[expression] = Matching(self, expression)
        return self._matching[expression]


@frozen(eq=False)
class Matching:
    """The messages that a subscription's expression matches."""

    logs: Logs
    expression: Expression

    @cached_property
    def offsets(self) -> Grouped:
        """The offsets of the known messages that match the expression."""
        known = self.logs.known
        if self.expression.takes_everything:
            return known
        mine = self.expression.matches(self.logs.tag_codes)
        return Grouped(known.group[mine], known.numbers[mine], known.count)

    @cached_property
    def _visible(self) -> tuple[Integers, Integers]:
        offsets = self.offsets
        after_ns, before_ns = self.logs.growth.visible_between(offsets.group, offsets.numbers)
        return suffix_min(offsets.group, after_ns), suffix_min(offsets.group, before_ns)

    def count(self, log: Integers, first: Integers, end: Integers) -> Integers:
        """Returns the lowest possible number of matching messages in [first, end) of each log."""
        return end - first if self.expression.takes_everything else self.offsets.between(log, first, end)

    def first(self, log: Integers, offset: Integers) -> Integers:
        """Returns the first matching offset at or after each offset; `NEVER` if no such message is known."""
        found = self.offsets.pick(log, self.offsets.below(log, offset), self.offsets.numbers, NEVER)
        return np.where(self.logs.is_white_box[log], offset, found) if self.expression.takes_everything else found

    def first_visible(self, log: Integers, offset: Integers) -> tuple[Integers, Integers]:
        """Returns the interval in which a matching message at or after each offset first became visible."""
        place = self.offsets.below(log, offset)
        after_ns, before_ns = (self.offsets.pick(log, place, each, NEVER) for each in self._visible)
        if self.expression.takes_everything:
            white = self.logs.is_white_box[log]
            told = self.logs.growth.visible_between(log, offset)
            return np.where(white, told[0], after_ns), np.where(white, told[1], before_ns)
        return after_ns, before_ns

    def first_delivered(self, deliveries: Growth, log: Integers, offset: Integers) -> tuple[Integers, Integers]:
        """Returns the interval in which an answer first showed a matching message at or after each offset."""
        return deliveries.visible_between(log, offset if self.expression.takes_everything else self.first(log, offset))


def make_logs(window: Window, lives: Lives, wake_ns: int) -> Logs:
    """Returns the logs of a window. Events that may belong to a generation also bound the generation's visible end."""
    count = lives.count
    white = np.zeros(len(window.names), dtype=np.bool_)
    moved = window.rows("make_visible")
    white[window.queue[moved]] = True
    # In a record from inside, only an `append` event shows an append; an answer with the message does not.
    outside = window.rows("message_seen")
    seen = np.concatenate([*(window.rows(name) for name in MESSAGES[:2]), outside[~white[window.queue[outside]]]])
    seen = seen[window.integers("queue_offset", seen) >= 0]
    sure, sure_log = lives.sure(seen)
    offset = window.integers("queue_offset", sure)
    known, order = grouped(sure_log, offset, count)
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (known.group[1:] != known.group[:-1]) | (known.numbers[1:] != known.numbers[:-1])
    known = Grouped(known.group[is_first], known.numbers[is_first], count)
    tags, names = window.codes("tag", sure[order[is_first]])
    tag_codes = np.array([java_hash(tag) for tag in names], dtype=np.int64)[tags]
    perhaps, perhaps_log = lives.doubtful(seen)
    acknowledged = window.rows("message_acknowledged")
    acknowledged = acknowledged[~white[window.queue[acknowledged]]]
    source = np.concatenate((moved, acknowledged))
    rows, log = lives.possible(source)
    is_end = np.isin(rows, moved) if len(moved) and len(acknowledged) else np.full(len(rows), bool(len(moved)))
    end = np.where(is_end, window.integers("visible_end", rows), window.integers("queue_offset", rows) + 1)
    before_ns = np.where(lives.are_sure(rows, log), window.integers("before_ns", rows), NEVER)
    growth = Growth(log, end, window.integers("after_ns", rows), before_ns, count)
    first = known.bounds[:-1]
    base = np.where(known.bounds[1:] > first, np.append(known.numbers, NEVER)[first], NEVER)
    return Logs(
        known=known,
        tag_codes=tag_codes,
        growth=growth,
        is_white_box=white[lives.queue],
        wake_ns=wake_ns,
        base=np.where(lives.first_known >= 0, lives.first_known, base),
        perhaps=(perhaps_log, window.integers("queue_offset", perhaps)),
    )
