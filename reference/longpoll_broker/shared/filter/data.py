"""The SQL92 filters that groups registered by heartbeats, each with its subscription's version.

They are separate from subscriptions: any subscription replaces the old one, but a filter needs an expression that
compiles. RocketMQ also keeps filters when a group's last member leaves. So a pull may find no filter (code 27), one
older than its subscription (28) or, in RocketMQ, a later version from members long gone.

Differences from RocketMQ: it drops a filter a day after its group; here the oldest of too many goes. It compiles at the
heartbeat; we compile at the first pull. So after an expression that does not compile, it accepts an older version at
once; we accept it after a pull has failed. Bit maps (`enableCalcFilterBitMap`, `consumerFilter.json`) are absent.

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
"""Maximum filters of groups without members; then the oldest is removed."""

FILTER_COST: Final = 100
"""Characters that a filter counts in addition to its text."""
EXPRESSIONS_SIZE_MAX: Final = 64 * MIB
"""Maximum characters of all filters, because they may outlive their groups."""

Place = tuple[str, str]
"""Topic and group."""


@define(slots=True, eq=False)
class FilterData:
    """One group's filter of one topic, compiled when a pull first needs it."""

    expression: str
    expression_type: str
    version: int
    """The `subVersion` of its last registration."""
    with_parts: bool = False
    """Whether it uses 5.x's language."""
    _filter: SqlFilter | None = field(default=None, init=False)

    @property
    def filter(self) -> SqlFilter:
        """The compiled filter; two concurrent first reads both compile it, with the same result."""
        if self._filter is None:
            self._filter = sql_filter(self.expression, self.expression_type, with_parts=self.with_parts)
        return self._filter

    @property
    def is_known_bad(self) -> bool:
        """Whether compilation for a pull has failed."""
        return self._filter is not None and self._filter.condition is None


@define(slots=True, eq=False)
class FilterTable:
    """Every registered filter. Invariant: `_orphans` are those of groups without members, oldest first."""

    outlive_groups: bool = False
    """Whether a group's filters stay when its last member leaves."""
    with_parts: bool = False
    """Whether expressions use 5.x's language, with CONTAINS, STARTSWITH and ENDSWITH."""
    quota: Quota = field(factory=lambda: Quota("characters of filters", EXPRESSIONS_SIZE_MAX), init=False)
    _by_place: dict[Place, FilterData] = field(factory=dict, init=False)
    _orphans: dict[Place, None] = field(factory=dict, init=False)

    def get(self, topic: str, group: str) -> FilterData | None:
        """Returns a group's filter of a topic; None without one that compiles."""
        known = self._by_place.get((topic, group))
        return None if known is None or known.filter.condition is None else known

    def register(  # noqa: PLR0917 - one caller
        self, topic: str, group: str, expression: str, expression_type: str, version: int, channel: Hashable = None
    ) -> None:
        """Register a heartbeat's expression, of a type other than TAG, if its version is later than the known one.

        An invalid expression replaces the known one, so that pulls get an error. An empty one is ignored. Nothing is
        compiled here, because a heartbeat may bring many expressions and a pull needs one.
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
        """A group lost its last member; `topics` are its subscribed topics."""
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
