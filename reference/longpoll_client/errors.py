"""Every exception of the client, one class for each kind of fault.

For wrong bytes and values see `longpoll_protocol.errors`, and for wrong settings `ConfigError`.
"""

from __future__ import annotations

from typing import Final

from longpoll_protocol.codes import ResponseCode
from longpoll_spec.errors import LongpollError

RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.GO_AWAY,
    }
)
"""Response codes after which a producer immediately tries another queue, because another broker may take the message.

The list is `retryResponseCodes` of 5.x without two codes that no broker in the source tree returns (204, 205). In 4.9.7
the list lacks the code of a busy broker (2), so a send to a busy broker fails."""


class ClientError(LongpollError):
    """A request of the client failed. The message names the request code and the broker's remark."""


class UnreachableError(ClientError, ConnectionError):
    """The client could not connect to a name server or broker."""

    retriable: bool = True


class ConnectionLostError(ClientError, ConnectionError):
    """The connection ended before the response came, so it is unknown whether the request was served."""

    retriable: bool = True


class AnswerTimeoutError(ClientError, TimeoutError):
    """No response came in time, so it is unknown whether the request was served."""

    retriable: bool = True


class ReplyTimeoutError(ClientError, TimeoutError):
    """A request message was sent but no reply came in time, so it is unknown whether the request was served."""

    retriable: bool = True


class LifecycleError(ClientError):
    """A method was called in the wrong state of a client: before its start, after its start, or after its close."""


class NoRouteError(ClientError):
    """No broker is known for the topic, or the topic's permission forbids the call; a broker may register later."""

    retriable: bool = True


class NotOursError(ClientError):
    """The queue does not belong to this consumer now, perhaps because a rebalance has moved it to another member."""


class RefusedError(ClientError):
    """The broker or name server answered with an error code."""

    def __init__(self, asked: str, code: int, remark: str | None) -> None:
        is_unknown = code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        hint = "; pass a name server's address, or use a newer broker" * is_unknown
        super().__init__(f"{asked}: the broker says {code}{f' ({remark.strip()})' if remark else ''}{hint}")
        self.code = code
        """A `ResponseCode`, or a number that is none."""
        self.remark = remark
        self.retriable: bool = code in RETRIED_CODES
