"""What the pulls of one queue that a message wakes have in common: one answer, but for their opaques.

Leaves out who finds out whether they still have it, and who writes it (`service.pull.pull_service`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll_broker.core.filter.filters import Filter
from longpoll_broker.core.hold import Pull
from longpoll_broker.core.pull import Found
from longpoll_broker.core.tables.topics import GroupConfig, TopicConfig
from longpoll_broker.service.io.channel import Parts
from longpoll_protocol.frames.pull_answer import PullHeads, pull_heads

COPIED_SIZE_MAX: Final = 2048
"""Bytes of records that a row's answers are given copies of: a further buffer costs a system call as much."""
CHANNEL: Final[Callable[[Pull], Hashable]] = attrgetter("channel")
TERMS: Final[Callable[[Pull], tuple[Any, ...]]] = attrgetter(
    "topic", "queue_id", "offset", "group", "count_max", "filter", "flag", "sys_flag", "serialize"
)
"""Pulls that are equal in these have equal keys at any one moment."""


class RowKey(msgspec.Struct, frozen=True, gc=False):
    """Everything that the answer to a woken pull depends on but its opaque."""

    topic: TopicConfig | None
    """With its name, as the group."""
    queue_id: int
    offset: int
    group: GroupConfig | None
    count_max: int
    filter: Filter | None
    flag: int
    ends: tuple[int, int]
    """Of the queue."""
    log_start: int


@define(slots=True, eq=False)
class RowAnswer:
    """The answer to one woken pull, for those after it that have the same key.

    Most messages wake one pull, so what the others would share is made for the second. Invariant: where `_heads` is
    made, so is `_body`; any thread may make both, and makes the same.
    """

    key: RowKey
    terms: tuple[Any, ...]
    """`TERMS` of that pull."""
    flag: int
    """Of the answer."""
    found: Found
    _body: bytes = field(default=b"", init=False)
    """The records as one, where that is little; else empty."""
    _heads: PullHeads | None = field(default=None, init=False)

    def parts(self, opaques: Sequence[int]) -> Parts:
        """The buffers of the answers to some pulls of one channel."""
        heads, records = self._heads or self._make(), self.found.read.records
        if len(opaques) == 1:
            return (heads.head(opaques[0]), *records)
        if self._body:
            return (heads.frames(opaques, self._body),)
        return [part for opaque in opaques for part in (heads.head(opaque), *records)]

    def _make(self) -> PullHeads:
        read = self.found.read
        if read.size_bytes <= COPIED_SIZE_MAX:
            self._body = b"".join(read.records)
        self._heads = heads = pull_heads(
            self.found.code, self.flag, read.status.name,
            read.offset_next, read.offset_min, read.offset_max, read.size_bytes,
        )  # fmt: skip
        return heads
