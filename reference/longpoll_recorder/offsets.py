"""What a history tells of requests for committed offsets (14, 15), and of those that may put offsets back.

Leaves out who hears of them: the broker's own recorder, and the proxy.
"""

from __future__ import annotations

from typing import Any, Final

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader

OFFSET_CODES: Final = (int(RequestCode.QUERY_CONSUMER_OFFSET), int(RequestCode.UPDATE_CONSUMER_OFFSET))

NUMBER_MAX: Final = (1 << 60) - 1
"""A history holds no larger number; an offset beyond it is as far out of bounds there as it was here."""

RESETTING_CODES: Final = (207, 215, 222, 314)
"""Requests that change a group's offsets without being commits: the group is deleted, or the topic, the offsets are put
to a moment, or are copied from another group."""


def kept(number: int) -> int:
    """An offset or a time as a history holds it: whatever a client asks for, the line stays readable."""
    return max(-NUMBER_MAX, min(number, NUMBER_MAX))


def resetting_fields(request: Command) -> dict[str, str]:
    """Whose offsets such a request changes; empty texts stand for any group, or any topic."""
    fields = request.ext_fields or {}
    groups = (fields.get(name) for name in ("groupName", "destGroup", "group"))
    return {"group": next(filter(None, groups), ""), "topic": fields.get("topic", "")}


def offset_fields(request: Command) -> dict[str, Any]:
    """The fields of the `request_received` of a query or an update of an offset; raises HeaderError."""
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        update = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        asked = {"topic": update.topic, "queue": update.queue_id, "group": update.consumer_group}
        return asked | {"commit_offset": kept(max(update.commit_offset, -1))}
    query = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
    return {"topic": query.topic, "queue": query.queue_id, "group": query.consumer_group}


def told_offset(code: int, answer: Command) -> dict[str, int]:
    """What an answer to a request of this code tells: the committed offset, where it is one; raises HeaderError."""
    if code != RequestCode.QUERY_CONSUMER_OFFSET or answer.code != ResponseCode.SUCCESS:
        return {}
    told = (answer.ext_fields or {}).get("offset", "")
    if not told.lstrip("-").isdecimal() or len(told) > 19:
        raise HeaderError("an answer to a query of an offset", "offset", f"is not a number but {told[:40]!r}")
    return {"offset": kept(max(int(told), -1))}
