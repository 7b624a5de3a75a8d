"""The SQL92 filters that groups have registered by their heartbeats, each with the version of its subscription.

They are kept beside the subscriptions, not in them: a subscription is replaced whatever it says, a filter only by an
expression that compiles, and RocketMQ keeps a group's filters when its last member leaves. So a pull may find that
there is none for its subscription (27), or one that is older than the subscription (28), or, in RocketMQ, one of
members long gone that had a later version.

Leaves out the bit maps of `enableCalcFilterBitMap` and with them `consumerFilter.json`, which is kept for their sake.
RocketMQ forgets a filter a day after its group; here the oldest of too many goes. RocketMQ compiles at the heartbeat,
we at the first pull that needs it: an expression of an older version that follows one that does not compile is taken
over by RocketMQ at once, here once a pull has found that the newer one does not compile.

Source: `ConsumerFilterManager.java`, the same in 4.9.7 and 5.5.0, where each rule was tried.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from attrs import define, field

from longpoll_broker.shared.filter.filters import SqlFilter, sql_filter
from longpoll_broker.shared.quota import Quota
from longpoll_protocol.sizes import MIB

ORPHAN_COUNT_MAX: Final = 10_000
"""Most filters of groups without members; the oldest goes for one more."""

FILTER_COST: Final = 100
"""For how many characters a filter counts besides its text."""
EXPRESSIONS_SIZE_MAX: Final = 64 * MIB
"""Most characters of all filters: they may stay when their group has no members."""

Place = tuple[str, str]
"""Topic and group."""


@define(slots=True, eq=False)
class FilterData:
    """One group's filter of one topic, compiled when a pull first asks for it."""

    expression: str
    expression_type: str
    version: int
    """The `subVersion` that it was last registered with."""
    with_parts: bool = False
    """Whether it is of 5.x's language."""
    _filter: SqlFilter | None = field(default=None, init=False)

    @property
    def filter(self) -> SqlFilter:
        """The compiled filter; two threads that are the first to ask compile it each, to the same end."""
        if self._filter is None:
            self._filter = sql_filter(self.expression, self.expression_type, with_parts=self.with_parts)
        return self._filter

    @property
    def is_known_bad(self) -> bool:
        """Whether a pull has found that it does not compile."""
        return self._filter is not None and self._filter.condition is None


@define(slots=True, eq=False)
class FilterTable:
    """Every registered filter. Invariant: `_orphans` are those whose group has no members, the oldest first."""

    outlive_groups: bool = False
    """Whether a group's filters stay when its last member leaves."""
    with_parts: bool = False
    """Whether expressions are of 5.x's language, which has CONTAINS, STARTSWITH and ENDSWITH."""
    quota: Quota = field(factory=lambda: Quota("characters of filters", EXPRESSIONS_SIZE_MAX), init=False)
    _by_place: dict[Place, FilterData] = field(factory=dict, init=False)
    _orphans: dict[Place, None] = field(factory=dict, init=False)

    def get(self, topic: str, group: str) -> FilterData | None:
        """The filter of a group for a topic; None when there is none, or one that does not compile."""
        known = self._by_place.get((topic, group))
        return None if known is None or known.filter.condition is None else known

    def register(  # noqa: PLR0917 - one caller
        self, topic: str, group: str, expression: str, expression_type: str, version: int, channel: Hashable = None
    ) -> None:
        """Take over a heartbeat's expression, which is not of type TAG, if its version is later than the known one.

        One that does not compile takes the known one away, so that pulls are told; an empty one does nothing at all.
        Nothing is compiled here: a heartbeat may bring any number of expressions, a pull asks for one.
        """
        if not expression:
            return
        place = (topic, group)
        self._orphans.pop(place, None)
        known = self._by_place.get(place)
        is_newer = known is None or known.is_known_bad or version > known.version
        if is_newer and self.quota.take(place, channel, FILTER_COST + len(topic) + len(group) + len(expression)):
            self._by_place[place] = FilterData(expression, expression_type, version, self.with_parts)

    def group_gone(self, group: str, topics: Iterable[str]) -> None:
        """A group has lost its last member; these are the topics that it had subscribed to."""
        for topic in topics:
            self.unsubscribed(topic, group)

    def unsubscribed(self, topic: str, group: str) -> None:
        """A group no longer subscribes to a topic."""
        place = (topic, group)
        if place not in self._by_place:
            return
        if not self.outlive_groups:
            del self._by_place[place]
            self.quota.release(place)
            return
        self._orphans[place] = None
        if len(self._orphans) > ORPHAN_COUNT_MAX:
            oldest = next(iter(self._orphans))
            del self._orphans[oldest], self._by_place[oldest]
            self.quota.release(oldest)
