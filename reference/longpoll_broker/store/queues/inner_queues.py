"""Multi-dispatch: messages that additional queues list too, as light queues (`%LMQ%...`) need.

A producer names the queues in the property `INNER_MULTI_DISPATCH`. The store adds `INNER_MULTI_QUEUE_OFFSET`, the
message's offset in each, so that the dispatcher can list the record again. Checks of the names: see
`send.inner_queues`.

Sources: `MultiDispatch.wrapMultiDispatch`, `ConsumeQueue.multiDispatchLmqQueue`, `checkMultiDispatchQueue` 4.9.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import Record, with_zeros
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.names import LMQ_PREFIX, RETRY_PREFIX, queue_name_problem
from longpoll_protocol.properties import (
    FORM_4_9,
    FORM_5,
    INNER_OFFSETS,
    INNER_QUEUES,
    read_properties,
    write_properties,
)

SEPARATOR: Final = ","
_MARK: Final = INNER_OFFSETS.encode()
_OFFSET: Final = re.compile("[0-9]{1,19}")
"""Longer numbers do not fit a long, and Python refuses thousands of digits."""

Place = tuple[str, int, int]
"""A queue by topic and id, and an offset in it."""


def with_offsets(message: MessageToStore, offsets: Sequence[int]) -> MessageToStore:
    """Add the message's offset in each inner queue to its properties, in their existing form.

    Raises MessageRefusedError when they do not fit.
    """
    form = FORM_5 if message.properties.endswith(b"\x02") else FORM_4_9
    properties = read_properties(message.properties.decode("utf-8", "surrogatepass"))
    properties[INNER_OFFSETS] = SEPARATOR.join(map(str, offsets))
    written = write_properties(properties, form)
    if len(written) > PROPERTIES_SIZE_MAX:
        raise MessageRefusedError(f"the properties with {len(offsets)} inner queues do not fit a record")
    return replace(message, properties=with_zeros(written))


def inner_queue_id(topic: str, queue_id: int, *, light: bool) -> int:
    """Returns an inner queue's id: 0 for a light topic, otherwise the id of the message's own queue."""
    return 0 if light and topic.startswith(LMQ_PREFIX) else queue_id


def is_inner_place(record: Record, place: Place) -> bool:
    """Whether an additional queue lists a record at an offset, with or without light queues."""
    return any(place in inner_places(record, light=light) for light in (False, True))


def inner_places(record: Record, *, light: bool) -> list[Place]:
    """Returns the places of a record in additional queues; none if its properties are incomplete.

    Skips names that are unsafe as paths: a broker without this feature stored the property unchecked.
    """
    if _MARK not in record.properties or record.topic.startswith(RETRY_PREFIX):
        return []
    properties = read_properties(record.properties.decode("utf-8", "surrogatepass"))
    names = properties.get(INNER_QUEUES, "").split(SEPARATOR)
    offsets = properties.get(INNER_OFFSETS, "").split(SEPARATOR)
    if len(names) != len(offsets) or not all(_OFFSET.fullmatch(text) for text in offsets):
        return []
    return [
        (name, inner_queue_id(name, record.queue_id, light=light), int(text))
        for name, text in zip(names, offsets, strict=True)
        if queue_name_problem(name) is None
    ]
