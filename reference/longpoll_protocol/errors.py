"""Errors of the wire protocol, one class for each kind of fault.

A `LocalProtocolError` is a mistake on our side, and a `RemoteProtocolError` is a mistake of the peer. RocketMQ's
response codes are values and not exceptions (`codes`).
"""

from longpoll_spec.errors import LongpollError


class ProtocolError(LongpollError):
    """Base class of the protocol's errors."""


class LocalProtocolError(ProtocolError):
    """Our side tried to send something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids; its connection is closed."""


class HeaderError(ProtocolError):
    """A field of a command's header or body is missing or unreadable.

    The command itself is complete: a broker answers it with code 1 and keeps the connection.
    """

    def __init__(self, where: str, field: str, problem: str) -> None:
        super().__init__(f"field {field!r} of {where} {problem}")
        self.field = field
        """The field's name on the wire."""


class MessageRefusedError(LongpollError):
    """A message exceeds a limit of the store; nothing was written."""
