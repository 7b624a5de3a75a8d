"""What bytes and values may not be, one class a fault.

A `LocalProtocolError` is our own misuse of the wire code; a `RemoteProtocolError` is a peer's misbehaviour.
Leaves out RocketMQ's response codes, which are answers and not exceptions (`codes`).
"""

from longpoll_spec.errors import LongpollError


class ProtocolError(LongpollError):
    """Bytes or values that the remoting protocol does not allow; see the two subclasses."""


class LocalProtocolError(ProtocolError):
    """We tried to send what the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow; its connection is closed."""


class HeaderError(ProtocolError):
    """A field of a command's header or body is missing or cannot be read.

    The command itself is whole: a broker answers it with code 1 and the connection goes on.
    """

    def __init__(self, where: str, field: str, problem: str) -> None:
        super().__init__(f"field {field!r} of {where} {problem}")
        self.field = field
        """The field's name on the wire."""


class MessageRefusedError(LongpollError):
    """A message breaks a limit of the store; nothing was written."""
