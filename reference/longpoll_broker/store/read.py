"""The result of reading a queue: status, messages, and next offset.

Reading: see `store.selection`. Answers: see `hold.pull`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from longpoll_protocol.log_record import Lookup
from longpoll_spec.tables import with_table

TagsMatch = Callable[[int], bool]


class ByProperties(Protocol):
    """A filter on message properties; longer expressions take longer."""

    @property
    def expression(self) -> str:
        """The filter's text."""
        ...

    def matches_properties(self, lookup: Lookup, /) -> bool:
        """Whether a message with these properties matches."""
        ...


Matches = tuple[TagsMatch | None, ByProperties | None]
"""Filters by tags code and by properties; None matches everything.

Source: `isMatchedByConsumeQueue` and `isMatchedByCommitLog`.
"""
ALL: Final[Matches] = (None, None)


class GetStatus(enum.StrEnum):
    """`GetMessageStatus.java`, without the two of 5.x."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@with_table
class GetResult(msgspec.Struct, frozen=True):
    """The result of reading a queue (`GetMessageResult.java`)."""

    status: GetStatus
    offset_next: int
    """`nextBeginOffset`."""
    offset_min: int
    offset_max: int
    records: list[memoryview]
    """Slices of the mapped log, whole records in queue order; adjacent records share a slice.

    Send or copy them soon, and release them before the store closes.
    """
    offsets: list[int]
    """The queue offset of each message, even if `records` merged several."""
    size_bytes: int
    """Sum of the lengths of `records`."""
    suggest_slave: bool
    """`suggestPullingFromSlave`: the reader is further behind than the log's share of memory."""
