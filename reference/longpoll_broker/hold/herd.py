"""Shares one encoded answer among the equal pulls that one message wakes (a thundering herd).

The shared answers differ only in `opaque`. When an answer may be shared: see `hold.pull_runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import Found
from longpoll_broker.io.channel import Parts
from longpoll_broker.shared.filters import Filter
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.fast import PullHeads, pull_heads
from longpoll_protocol.frames import Buffer

RESPONSE: Final = CommandFlag.RESPONSE.value
COPIED_SIZE_MAX: Final = 2048
"""Records of at most this many bytes are copied into each answer, because a separate buffer would cost as much."""
TERMS: Final[Callable[[Pull], tuple[Any, ...]]] = attrgetter(
    "topic", "queue_id", "offset", "group", "count_max", "filter", "flag", "sys_flag", "serialize"
)
"""Selects the fields of a pull that its answer depends on. Pulls that agree in these fields have equal `HerdKey`s."""


class HerdKey(msgspec.Struct, frozen=True, gc=False):
    """Everything that the answer to a woken pull depends on, except the pull's `opaque`."""

    topic: TopicConfig | None
    """The topic's configuration, which includes its name."""
    queue_id: int
    offset: int
    group: GroupConfig | None
    count_max: int
    filter: Filter | None
    flag: int
    ends: tuple[int, int]
    """The queue's minimum offset and its visible end."""
    log_start: int
    since: object
    """An object that `forget_last` replaces, because a deleted and recreated topic may be equal in all other fields."""


@define(slots=True, eq=False)
class HerdAnswer:
    """The answer to one woken pull, kept for later pulls with the same key.

    Most messages wake only one pull, so the shared buffers are created when a second pull needs them. Invariant: if
    `_heads` exists, `_body` exists too. Several threads may create the buffers at the same time, with the same result.
    """

    key: HerdKey
    terms: tuple[Any, ...]
    """The `TERMS` of the pull that this answer was made for."""
    found: Found
    _body: bytes = field(default=b"", init=False)
    """The records as one buffer if they are small; otherwise empty."""
    _heads: PullHeads | None = field(default=None, init=False)

    def parts(self, opaques: Sequence[int]) -> Parts:
        """Returns the buffers of the answers to pulls of one channel, one answer for each `opaque`."""
        heads, records = self._heads or self._make(), self.found.read.records
        if len(opaques) == 1:
            return (heads.head(opaques[0]), *records)
        if self._body:
            return (heads.frames(opaques, self._body),)
        parts: list[Buffer] = []
        for opaque in opaques:
            parts.append(heads.head(opaque))
            parts.extend(records)
        return parts

    def _make(self) -> PullHeads:
        read = self.found.read
        if read.size_bytes <= COPIED_SIZE_MAX:
            self._body = b"".join(read.records)
        self._heads = heads = pull_heads(
            self.found.code, RESPONSE, read.status.name,
            read.offset_next, read.offset_min, read.offset_max, read.size_bytes,
        )  # fmt: skip
        return heads
