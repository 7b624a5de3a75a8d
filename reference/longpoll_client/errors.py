"""Every exception of the client, one class a fault.

Wrong bytes and values: see `longpoll_protocol.errors`. Wrong settings: `ConfigError`.
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
"""Answers after which a producer tries another queue, at once: another broker may take the message.

`retryResponseCodes` of 5.x, less two that no broker of the tree gives (204, 205). In 4.9.7 a busy broker (2) is not
among them, and its sends fail.
"""


class ClientError(LongpollError):
    """A request of the client did not end well: names the request code and what the broker said."""


class UnreachableError(ClientError, ConnectionError):
    """No connection to a name server or broker could be made."""

    retriable: bool = True


class ConnectionLostError(ClientError, ConnectionError):
    """The connection ended before the answer came; whether the request was served is not known."""

    retriable: bool = True


class AnswerTimeoutError(ClientError, TimeoutError):
    """No answer came in time; whether the request was served is not known."""

    retriable: bool = True


class ReplyTimeoutError(ClientError, TimeoutError):
    """A request was sent and no reply came in time; whether it was served is not known."""

    retriable: bool = True


class LifecycleError(ClientError):
    """A client was asked for what it does only before its start, while it runs, or before it is closed."""


class NoRouteError(ClientError):
    """No broker is known for the topic, or its permission forbids the call; a broker may register later."""

    retriable: bool = True


class NotOursError(ClientError):
    """A queue was named that is not this consumer's now: it may have changed hands."""


class RefusedError(ClientError):
    """The broker or name server answered, and not with success."""

    def __init__(self, asked: str, code: int, remark: str | None) -> None:
        is_unknown = code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        hint = "; pass a name server's address, or use a newer broker" * is_unknown
        super().__init__(f"{asked}: the broker says {code}{f' ({remark.strip()})' if remark else ''}{hint}")
        self.code = code
        """A `ResponseCode`, or a number that is none."""
        self.remark = remark
        self.retriable: bool = code in RETRIED_CODES
