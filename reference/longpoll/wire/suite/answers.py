"""Reads replies for the model: headers with their types, pull bodies as whole, checked records.

The expected replies: see `model`.
"""

from __future__ import annotations

from typing import TypeVar

from longpoll.wire.suite.model import FOUND, NOT_FOUND, OFFSET_MOVED, RETRY_IMMEDIATELY, Answer, Stored
from longpoll.wire.suite.model import ViolationError as Violation
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import Header, PullMessageResponseHeader
from longpoll_protocol.log_record import Damage, decode
from longpoll_protocol.properties import decode_properties

H = TypeVar("H", bound=Header)
WITH_OFFSETS = frozenset({FOUND, NOT_FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED})


def header_of(command: Command, kind: type[H]) -> H:
    """The reply's fields; raises ViolationError if one is missing or not a number."""
    try:
        return kind.decode(command.ext_fields)
    except HeaderError as error:
        raise Violation(f"code {command.code} with fields {command.ext_fields}: {error}") from None


def pull_answer(command: Command) -> Answer:
    """A pull's answer; raises ViolationError if it is a rejection, or its header or body cannot be read."""
    if command.code not in WITH_OFFSETS:
        raise Violation(f"a valid pull was rejected: code {command.code} {command.remark}")
    header = header_of(command, PullMessageResponseHeader)
    stored = records_of(memoryview(command.body))
    if bool(stored) != (command.code == FOUND):
        raise Violation(f"an answer with code {command.code} carries {len(stored)} messages")
    return Answer(command.code, header.next_begin_offset, header.min_offset, header.max_offset, stored)


def records_of(body: memoryview) -> list[Stored]:
    """The records of a body; raises ViolationError for a damaged one (size, magic, CRC...)."""
    found: list[Stored] = []
    start = 0
    while start < len(body):
        physical_offset = int.from_bytes(body[start + 28 : start + 36])
        record = decode(body, start, len(body), physical_offset)
        if isinstance(record, Damage):
            raise Violation(
                f"byte {start + record.offset} of a pull's body: {record.found} instead of {record.expected}"
            )
        found.append(
            Stored(
                record.topic,
                record.queue_id,
                record.queue_offset,
                physical_offset,
                bytes(record.body),
                decode_properties(record.properties),
            )
        )
        start += record.size
    return found
