"""Event fields of requests for committed offsets (14, 15), and of requests that may reset offsets.

Used by the broker's recorder and by the proxy.
"""

from __future__ import annotations

from typing import Any, Final

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader

OFFSET_CODES: Final = (int(RequestCode.QUERY_CONSUMER_OFFSET), int(RequestCode.UPDATE_CONSUMER_OFFSET))

NUMBER_MAX: Final = (1 << 60) - 1
"""Maximum number in a history; a larger offset is equally out of bounds."""

RESETTING_CODES: Final = (207, 215, 222, 314)
"""Requests that change a group's offsets without a commit.

They delete the group or topic, reset the offsets to a time, or copy them from another group.
"""


def kept(number: int) -> int:
    """Limit an offset or time to the range of a history, so that the line stays readable."""
    return max(-NUMBER_MAX, min(number, NUMBER_MAX))


def resetting_fields(request: Command) -> dict[str, str]:
    """Returns group and topic of such a request; an empty text means any."""
    fields = request.ext_fields or {}
    groups = (fields.get(name) for name in ("groupName", "destGroup", "group"))
    return {"group": next(filter(None, groups), ""), "topic": fields.get("topic", "")}


def offset_fields(request: Command) -> dict[str, Any]:
    """Returns the `request_received` fields of a query or commit of an offset; raises HeaderError."""
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        update = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        asked = {"topic": update.topic, "queue": update.queue_id, "group": update.consumer_group}
        return asked | {"commit_offset": kept(max(update.commit_offset, -1))}
    query = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
    return {"topic": query.topic, "queue": query.queue_id, "group": query.consumer_group}


def told_offset(code: int, answer: Command) -> dict[str, int]:
    """Returns an answer's committed offset, if it has one; raises HeaderError."""
    if code != RequestCode.QUERY_CONSUMER_OFFSET or answer.code != ResponseCode.SUCCESS:
        return {}
    told = (answer.ext_fields or {}).get("offset", "")
    if not told.lstrip("-").isdecimal() or len(told) > 19:
        raise HeaderError("an answer to a query of an offset", "offset", f"is not a number but {told[:40]!r}")
    return {"offset": kept(max(int(told), -1))}
