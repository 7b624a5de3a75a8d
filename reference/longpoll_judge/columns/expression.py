"""Decides by hash, as a RocketMQ broker does, which tags a subscription expression matches.

A broker compares the 64-bit `tagsCode` of the consume queue, which is `String.hashCode` of the tag, and leaves the
exact comparison to the client. Therefore an answer with the tag `BB` to a subscriber of `Aa` is correct: both tags have
the same hash. SQL92 is not supported, because it needs the message's properties; such expressions are reported as not
judged.

Source: `FilterAPI.buildSubscriptionData`, `DefaultMessageFilter.isMatchedByConsumeQueue`,
`MessageExtBrokerInner.tagsString2tagsCode`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import is_one_of
from longpoll_protocol.properties import java_hash

EVERYTHING: Final = "*"
TAG_TYPE: Final = "TAG"


@frozen
class Expression:
    """A subscription expression that can be decided from tags."""

    takes_everything: bool
    tag_codes: tuple[int, ...]

    def matches(self, tag_codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns for each tag's hash code whether the expression matches it."""
        if self.takes_everything:
            return np.ones(len(tag_codes), dtype=np.bool_)
        return is_one_of(tag_codes, self.tag_codes)


def parse(expression_type: str, expression: str) -> Expression | None:
    """Parse an expression; returns None if tags alone cannot decide it (SQL92, or an unknown type or text)."""
    if expression_type != TAG_TYPE or not expression:
        return None
    if expression == EVERYTHING:
        return Expression(takes_everything=True, tag_codes=())
    tags = sorted({tag.strip() for tag in expression.split("||") if tag.strip()})
    return Expression(takes_everything=False, tag_codes=tuple(java_hash(tag) for tag in tags))
