"""Which messages a subscription wants, as far as the broker can tell from a message's tag hash.

The hash decides here; two tags with one hash are told apart by the client. Leaves out SQL92 expressions, which the
broker refuses while `enablePropertyFilter` is off.

Sources: `FilterAPI.java`, `ExpressionMessageFilter.java`; the string hash is Java's `String.hashCode`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

SUBSCRIBE_ALL: Final = "*"
TAG: Final = "TAG"


class ExpressionError(ValueError):
    """A subscription expression that RocketMQ cannot parse."""


class TagFilter(msgspec.Struct, frozen=True):
    """A parsed subscription; shared by every pull that asks for the same."""

    expression: str
    expression_type: str
    codes: frozenset[int]
    """Hashes of the wanted tags; not looked at when `all_tags`."""
    all_tags: bool

    def matches(self, tags_code: int | None) -> bool:
        """Whether a message with this tag hash may be wanted; None means that the hash is not known."""
        return self.all_tags or tags_code is None or tags_code in self.codes


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """`String.hashCode` over UTF-16 code units, as a signed 32-bit number."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@lru_cache(maxsize=4096)
def tag_filter(expression: str | None, expression_type: str | None) -> TagFilter:
    """Parse a subscription; raises `ExpressionError` as `FilterAPI.build` throws.

    An absent or empty tag expression means every tag. `||` separates tags, which are trimmed. The type is compared
    as Java does: only an absent type or `TAG` has its tags parsed, so with the empty type nothing matches.
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
        # Java's split drops trailing empty strings, and here nothing else is left.
        raise ExpressionError("subString split error")
    tags = (part.strip() for part in parts)
    return TagFilter(expression, kind, frozenset(java_hash(tag) for tag in tags if tag), all_tags=False)


def is_tag_type(expression_type: str | None) -> bool:
    """`ExpressionType.isTagType`: absent, empty or `TAG`."""
    return not expression_type or expression_type == TAG
