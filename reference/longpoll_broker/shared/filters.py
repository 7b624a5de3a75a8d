"""Filters of subscriptions, by a tag's hash or by properties, and the table of the filters that groups registered.

The broker compares tags by hash; the client separates tags with equal hashes. The SQL92 language: see `sql92`. The
setting that permits it: see `hold.pull`.

Registered filters are stored separately from subscriptions, because any subscription is accepted, but only a filter
that compiles. RocketMQ also keeps filters when a group's last member leaves. Therefore a pull may find no filter (code
27), a filter older than its subscription (28) or, in RocketMQ, a later version from members that left long ago.

Differences from RocketMQ: RocketMQ drops a filter a day after its group; this broker drops the oldest filters when
there are too many. RocketMQ compiles an expression at the heartbeat; this broker compiles it at the first pull. So if
an older version follows an invalid expression, RocketMQ accepts the older version at once, and this broker accepts it
after a pull has failed. Bit maps (`enableCalcFilterBitMap`, `consumerFilter.json`) are not supported.

Sources: `FilterAPI.java`, `ExpressionMessageFilter.java`, `ConsumerFilterManager.java`, which are the same in 4.9.7 and
5.5.0. Each rule was tried on both versions. The string hash is Java's `String.hashCode`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache, wraps
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.sql92 import Expression, Lookup, Sql92Error, Sql92LimitError, compile_expression
from longpoll_protocol.properties import word_hash
from longpoll_protocol.sizes import MIB
from longpoll_spec.tables import with_table

SUBSCRIBE_ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
CACHED_SIZE_MAX: Final = 1_000
"""Maximum characters of an expression whose filter is cached, because a long expression's filter takes a megabyte."""
Made = TypeVar("Made")


class ExpressionError(ValueError):
    """A subscription expression that RocketMQ cannot parse."""


@with_table
class TagFilter(msgspec.Struct, frozen=True):
    """A parsed tag subscription. All pulls with the same subscription share it."""

    expression: str
    expression_type: str
    codes: frozenset[int]
    """Hashes of the subscribed tags; ignored if `all_tags` is true."""
    all_tags: bool

    def matches(self, tags_code: int | None) -> bool:
        """Whether a message with this tag hash may match; None means an unknown hash."""
        return self.all_tags or tags_code is None or tags_code in self.codes


@with_table
class SqlFilter(msgspec.Struct, frozen=True):
    """A subscription whose type is not TAG. All pulls with the same subscription share it."""

    expression: str
    expression_type: str
    condition: Expression | None
    """None if the expression does not compile; as in RocketMQ, a pull with this filter gets every message."""
    problem: str
    """Why the expression does not compile; empty if the expression compiles."""
    over_limit: bool = False
    """Whether pulls are refused because the expression exceeds a limit that RocketMQ does not have."""

    def matches(self, _tags_code: int | None) -> bool:
        """Returns true, because a filter by properties does not depend on the tag's hash."""
        return True

    def matches_properties(self, lookup: Lookup) -> bool:
        """Whether a message with these properties matches."""
        return self.condition is None or self.condition.matches(lookup)


Filter: TypeAlias = TagFilter | SqlFilter


def filter_of(expression: str | None, expression_type: str | None, *, with_parts: bool = False) -> Filter:
    """Returns the filter of a subscription; raises `ExpressionError` where `FilterAPI.build` throws."""
    if is_tag_type(expression_type):
        return tag_filter(expression, expression_type)
    assert expression_type is not None
    if not expression:
        raise ExpressionError(f"Expression can't be null! {expression_type}")
    return sql_filter(expression, expression_type, with_parts=with_parts)


def prepare_parser(*, with_parts: bool) -> None:
    """Build the parser of expressions in advance, because this takes longer than parsing any expression."""
    compile_expression("TRUE", with_parts=with_parts)


def _cached(make: Callable[..., Made]) -> Callable[..., Made]:
    cached = lru_cache(maxsize=1024)(make)

    @wraps(make)
    def find(expression: str | None, *arguments: Any, **named: Any) -> Made:
        return (cached if len(expression or "") <= CACHED_SIZE_MAX else make)(expression, *arguments, **named)

    return find


@_cached
def tag_filter(expression: str | None, expression_type: str | None) -> TagFilter:
    """Parse tags; raises `ExpressionError` where `FilterAPI.build` throws.

    An absent or empty expression means every tag. `||` separates tags, and blanks around a tag are removed. As in
    RocketMQ, the tags are parsed only if the type is absent or `TAG`, so with an empty type no message matches.
    """
    kind = TAG if expression_type is None else expression_type
    if kind != TAG:
        if not expression:
            raise ExpressionError(f"Expression can't be null! {kind}")
        return TagFilter(expression, kind, frozenset(), expression == SUBSCRIBE_ALL)
    if not expression or expression == SUBSCRIBE_ALL:
        return TagFilter(SUBSCRIBE_ALL, kind, frozenset(), all_tags=True)
    parts = expression.split("||")
    if not any(parts):
        # Java's `split` drops trailing empty strings, so an expression that consists of separators has no parts.
        raise ExpressionError("subString split error")
    tags = (part.strip() for part in parts)
    return TagFilter(expression, kind, frozenset(word_hash(tag) for tag in tags if tag), all_tags=False)


@_cached
def sql_filter(expression: str, expression_type: str, *, with_parts: bool = False) -> SqlFilter:
    """Returns the filter of a type other than TAG. As in `FilterFactory`, only SQL92 compiles to a condition.

    `with_parts` selects 5.x's language, with CONTAINS, STARTSWITH and ENDSWITH.
    """
    if expression_type != SQL92:
        return SqlFilter(expression, expression_type, None, f"no filter is of type {expression_type[:64]}")
    try:
        return SqlFilter(expression, expression_type, compile_expression(expression, with_parts=with_parts), "")
    except Sql92Error as error:
        return SqlFilter(expression, expression_type, None, str(error), isinstance(error, Sql92LimitError))


def is_as_said(wanted: Filter) -> bool:
    """Whether a filter equals the filter that its expression describes.

    The two filters differ if a heartbeat sent hashes that are not those of the expression's tags, or requested a filter
    server.
    """
    if isinstance(wanted, SqlFilter):
        return True
    try:
        return tag_filter(wanted.expression, wanted.expression_type) == wanted
    except ExpressionError:
        return False


def not_supported(expression_type: str) -> str:
    """Returns RocketMQ's remark for a type other than TAG while `enablePropertyFilter` is off."""
    return f"The broker does not support consumer to filter message by {expression_type[:64]}"


def is_tag_type(expression_type: str | None) -> bool:
    """Whether the type is absent, empty or `TAG` (`ExpressionType.isTagType`)."""
    return not expression_type or expression_type == TAG


ORPHAN_COUNT_MAX: Final = 10_000
"""Maximum filters of groups without members; beyond this limit, the oldest filter is removed."""

FILTER_UNIT: Final = 512
"""The size of an ordinary filter in characters, for quotas."""
FILTER_COST: Final = 100
"""Characters by which a filter counts for the quota in addition to its text."""
EXPRESSIONS_SIZE_MAX: Final = 64 * MIB
"""Maximum characters of all filters together, because filters may outlive their groups."""

Place = tuple[str, str]
"""Topic and group."""


@define(slots=True, eq=False)
class FilterData:
    """One group's filter for one topic, compiled when a pull first needs it."""

    expression: str
    expression_type: str
    version: int
    """The `subVersion` of the filter's last registration."""
    with_parts: bool = False
    """Whether the expression is in 5.x's language."""
    _filter: SqlFilter | None = field(default=None, init=False)

    @property
    def filter(self) -> SqlFilter:
        """The compiled filter; two threads may compile it at the same time, with the same result."""
        if self._filter is None:
            self._filter = sql_filter(self.expression, self.expression_type, with_parts=self.with_parts)
        return self._filter

    @property
    def is_known_bad(self) -> bool:
        """Whether compiling the filter for a pull has failed."""
        return self._filter is not None and self._filter.condition is None


@define(slots=True, eq=False)
class FilterTable:
    """The registered filters. Invariant: `_orphans` has the filters of groups without members, oldest first."""

    outlive_groups: bool = False
    """Whether a group's filters stay when its last member leaves."""
    with_parts: bool = False
    """Whether expressions use 5.x's language, with CONTAINS, STARTSWITH and ENDSWITH."""
    quota: Quota = field(factory=lambda: Quota("characters of filters", EXPRESSIONS_SIZE_MAX, FILTER_UNIT), init=False)
    _by_place: dict[Place, FilterData] = field(factory=dict, init=False)
    _orphans: dict[Place, None] = field(factory=dict, init=False)

    def get(self, topic: str, group: str) -> FilterData | None:
        """Returns a group's filter for a topic, or None if the group has no filter or the filter does not compile."""
        known = self._by_place.get((topic, group))
        return None if known is None or known.filter.condition is None else known

    def register(  # noqa: PLR0917 - one caller
        self, topic: str, group: str, expression: str, expression_type: str, version: int, channel: Hashable = None
    ) -> None:
        """Register a heartbeat's expression of a type other than TAG, if it is newer than the known expression.

        An invalid expression replaces the known expression, so that pulls get an error. An empty expression is ignored.
        Nothing is compiled here, because a heartbeat may have many expressions and a pull needs only one.
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
        """Called when a group has lost its last member; `topics` are the topics that it subscribed to."""
        for topic in topics:
            self.unsubscribed(topic, group)

    def unsubscribed(self, topic: str, group: str) -> None:
        """Called when a group no longer subscribes to a topic."""
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
