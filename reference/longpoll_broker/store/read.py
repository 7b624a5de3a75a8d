"""What one read of a queue gives: how it ended, what was found, and where to go on.

Leaves out reading (`store.selection`) and what an answer makes of it (`hold.pull`).
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
    """A filter that looks at messages' properties; the longer its expression, the longer that may take."""

    @property
    def expression(self) -> str:
        """Its text."""
        ...

    def matches_properties(self, lookup: Lookup, /) -> bool:
        """Whether a message with these properties is wanted."""
        ...


Matches = tuple[TagsMatch | None, ByProperties | None]
"""Which messages are wanted, by their tags code and by their properties; None lets everything through.

Source: `isMatchedByConsumeQueue` and `isMatchedByCommitLog`.
"""
ALL: Final[Matches] = (None, None)


class GetStatus(enum.StrEnum):
    """`GetMessageStatus.java`, less the two that only 5.x has."""

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
    """What a read of a queue found (`GetMessageResult.java`)."""

    status: GetStatus
    offset_next: int
    """`nextBeginOffset`."""
    offset_min: int
    offset_max: int
    records: list[memoryview]
    """Slices of the mapped log, whole records in queue order; neighbours in the log are one slice. Send or copy them
    soon, and drop them before the store closes."""
    offsets: list[int]
    """The queue offset of each message; one a message, also where `records` merged several."""
    size_bytes: int
    """Sum of the lengths of `records`."""
    suggest_slave: bool
    """`suggestPullingFromSlave`: the reader is further behind than the share of memory that the log may fill."""
