"""Every exception of the client, one class a fault.

Leaves out what is wrong with bytes and values (`longpoll_protocol.errors`) and with settings (`ConfigError`).
"""

from longpoll_spec.errors import LongpollError


class ClientError(LongpollError):
    """A request of the client did not end well: names the request code and what the broker said."""


class UnreachableError(ClientError):
    """No connection to a name server or broker could be made."""


class ConnectionLostError(ClientError):
    """The connection ended before the answer came; whether the request was served is not known."""


class AnswerTimeoutError(ClientError):
    """No answer came in time; whether the request was served is not known."""


class ReplyTimeoutError(ClientError):
    """A request was sent and no reply came in time; whether it was served is not known."""


class LifecycleError(ClientError):
    """A client was asked for what it does only before its start, while it runs, or before it is closed."""


class NoRouteError(ClientError):
    """The name server knows no broker for the topic."""


class NotOursError(ClientError):
    """A queue was named that is not this consumer's now: it may have changed hands."""


class RefusedError(ClientError):
    """The broker or name server answered, and not with success."""

    def __init__(self, asked: str, code: int, remark: str | None) -> None:
        super().__init__(f"{asked}: the broker says {code}{f' ({remark})' if remark else ''}")
        self.code = code
        """A `ResponseCode`, or a number that is none."""
        self.remark = remark
