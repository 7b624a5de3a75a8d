"""Messages that further queues list as well: multi-dispatch, on which light queues (`%LMQ%...`) are built.

A producer names the queues in the property `INNER_MULTI_DISPATCH`; the store adds `INNER_MULTI_QUEUE_OFFSET`, the
message's offset in each, so that a dispatcher that only has the record can list it there again. Leaves out who may name
which queue (`send.send_processor`) and waking those who wait there, which is the dispatcher's as for any queue.

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
"""Longer numbers are no long's, and thousands of digits are nothing that Python reads."""

Place = tuple[str, int, int]
"""A queue by topic and id, and an offset in it."""


def with_offsets(message: MessageToStore, offsets: Sequence[int]) -> MessageToStore:
    """The message with its offset in each of its inner queues, its properties written in the form that they have.

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
    """The queue id of an inner queue: a light topic has one queue, any other as many as the message's own."""
    return 0 if light and topic.startswith(LMQ_PREFIX) else queue_id


def is_inner_place(record: Record, place: Place) -> bool:
    """Whether a further queue lists a record at an offset, with light queues or without."""
    return any(place in inner_places(record, light=light) for light in (False, True))


def inner_places(record: Record, *, light: bool) -> list[Place]:
    """Where a record is listed besides its own queue; nowhere when its properties do not say it whole.

    A name that may not become a path is passed over: a broker that did not know the property stored it as it came.
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
