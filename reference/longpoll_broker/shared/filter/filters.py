"""Filters of subscriptions: by a tag's hash, or by properties.

The broker compares tags by hash; the client separates tags with equal hashes. The SQL92 language: see `sql92`.
Permission to use it: see `hold.pull`.

Sources: `FilterAPI.java`, `ExpressionMessageFilter.java`, `ConsumerFilterManager.build`; the string hash is Java's
`String.hashCode`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from longpoll_broker.shared.filter.sql92 import Expression, Lookup, Sql92Error, Sql92LimitError, compile_expression
from longpoll_protocol.properties import word_hash
from longpoll_spec.tables import with_table

SUBSCRIBE_ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
CACHED_SIZE_MAX: Final = 1_000
"""Maximum characters of an expression whose filter is cached: a long one takes a megabyte."""
Made = TypeVar("Made")


class ExpressionError(ValueError):
    """A subscription expression that RocketMQ cannot parse."""


@with_table
class TagFilter(msgspec.Struct, frozen=True):
    """A parsed tag subscription, shared by all pulls with the same one."""

    expression: str
    expression_type: str
    codes: frozenset[int]
    """Hashes of the subscribed tags; ignored with `all_tags`."""
    all_tags: bool

    def matches(self, tags_code: int | None) -> bool:
        """Whether a message with this tag hash may match; None means an unknown hash."""
        return self.all_tags or tags_code is None or tags_code in self.codes


@with_table
class SqlFilter(msgspec.Struct, frozen=True):
    """A subscription whose type is not TAG, shared in the same way."""

    expression: str
    expression_type: str
    condition: Expression | None
    """None if it does not compile: then a pull that brings it gets every message, as from RocketMQ."""
    problem: str
    """Why it does not compile; empty if it does."""
    over_limit: bool = False
    """Whether it exceeds a limit that RocketMQ does not have; a pull that brings it is refused."""

    def matches(self, _tags_code: int | None) -> bool:
        """Always true: a tag's hash does not matter."""
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


def _cached(make: Callable[..., Made]) -> Callable[..., Made]:
    """Cache the results for short expressions."""
    cached = lru_cache(maxsize=1024)(make)

    @wraps(make)
    def find(expression: str | None, *arguments: Any, **named: Any) -> Made:
        return (cached if len(expression or "") <= CACHED_SIZE_MAX else make)(expression, *arguments, **named)

    return find


@_cached
def tag_filter(expression: str | None, expression_type: str | None) -> TagFilter:
    """Parse tags; raises `ExpressionError` where `FilterAPI.build` throws.

    An absent or empty expression means every tag. `||` separates tags, which are trimmed. As in Java, only an absent
    type or `TAG` has its tags parsed, so with the empty type nothing matches.
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
        # Java's split drops trailing empty strings, so nothing is left.
        raise ExpressionError("subString split error")
    tags = (part.strip() for part in parts)
    return TagFilter(expression, kind, frozenset(word_hash(tag) for tag in tags if tag), all_tags=False)


@_cached
def sql_filter(expression: str, expression_type: str, *, with_parts: bool = False) -> SqlFilter:
    """Returns the filter of any other type; as in `FilterFactory`, only SQL92 compiles to a condition.

    `with_parts` is 5.x's language, with CONTAINS, STARTSWITH and ENDSWITH.
    """
    if expression_type != SQL92:
        return SqlFilter(expression, expression_type, None, f"no filter is of type {expression_type[:64]}")
    try:
        return SqlFilter(expression, expression_type, compile_expression(expression, with_parts=with_parts), "")
    except Sql92Error as error:
        return SqlFilter(expression, expression_type, None, str(error), isinstance(error, Sql92LimitError))


def is_as_said(wanted: Filter) -> bool:
    """Whether a filter agrees with its expression.

    False if a heartbeat sent other hashes than those of its tags, or left the filtering to a filter server.
    """
    if isinstance(wanted, SqlFilter):
        return True
    try:
        return tag_filter(wanted.expression, wanted.expression_type) == wanted
    except ExpressionError:
        return False


def not_supported(expression_type: str) -> str:
    """RocketMQ's remark on a type other than TAG while `enablePropertyFilter` is off."""
    return f"The broker does not support consumer to filter message by {expression_type[:64]}"


def is_tag_type(expression_type: str | None) -> bool:
    """`ExpressionType.isTagType`: absent, empty or `TAG`."""
    return not expression_type or expression_type == TAG
