"""Every exception of the reference, one class a fault.

A `LocalProtocolError` is our own misuse of the wire code; a `RemoteProtocolError` is a peer's misbehaviour.
Leaves out RocketMQ's response codes, which are answers and not exceptions (`wire.command`).
"""


class BrokerError(Exception):
    """Whatever the reference's own code raises on purpose."""


class BrokerUserError(BrokerError):
    """The user asked for something that cannot be; the text says what to do next."""


class ConfigError(BrokerUserError):
    """A configuration file or option cannot be used."""


class ProtocolError(BrokerError):
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


class StoreError(BrokerError):
    """A store directory or file cannot be used."""


class StoreUserError(StoreError, BrokerUserError):
    """The named store directory is not there, not a store, or in use."""


class StoreDamageError(StoreError):
    """Bytes in a store file are not what they must be: names file, offset, found and expected."""


class MessageRefusedError(StoreError):
    """A message breaks a limit of the store; nothing was written."""


class ClientError(BrokerError):
    """A request of the client did not end well: names the request code and what the broker said."""


class UnreachableError(ClientError):
    """No connection to a name server or broker could be made."""


class ConnectionLostError(ClientError):
    """The connection ended before the answer came; whether the request was served is not known."""


class AnswerTimeoutError(ClientError):
    """No answer came in time; whether the request was served is not known."""


class NoRouteError(ClientError):
    """The name server knows no broker for the topic."""


class RefusedError(ClientError):
    """The broker or name server answered, and not with success."""

    def __init__(self, asked: str, code: int, remark: str | None) -> None:
        super().__init__(f"{asked}: the broker says {code}{f' ({remark})' if remark else ''}")
        self.code = code
        """A `ResponseCode`, or a number that is none."""
        self.remark = remark
