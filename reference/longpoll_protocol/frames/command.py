"""RemotingCommand: one request or reply, decoded from a frame and encoded to one.

After a `RemoteProtocolError` the peer's connection must be closed, as RocketMQ does. Missing fields are not checked
here: see `headers`. Framing: see `frame`. Header encodings: see `json_header`, `rocketmq_header`. Bodies: see `bodies`,
`message`.

Source: `remoting/protocol/RemotingCommand.java`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from longpoll_protocol.codes import VERSION, CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.frames.frame import EMPTY, FRAME_SIZE_MAX, Buffer, Frame, Serialisation, frame_head
from longpoll_protocol.frames.json_header import read_json, write_json
from longpoll_protocol.frames.rocketmq_header import read_rocketmq, write_rocketmq

__all__ = [
    "Command",
    "CommandFlag",
    "RequestCode",
    "ResponseCode",
    "decode_frame",
    "encode",
    "encode_head",
    "encode_reply_head",
    "reply",
]

# Enum lookups, and `&` on an IntFlag, would cost more than the work done with them.
_JSON: Final = Serialisation.JSON
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONE_WAY: Final = int(CommandFlag.ONE_WAY)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One request or reply. It has no reference cycles, so it needs no garbage collection (`gc=False`)."""

    code: int
    """A `RequestCode` in a request, a `ResponseCode` in a reply; unknown numbers are allowed."""
    opaque: int = 0
    """Chosen by the requester, copied to the reply."""
    flag: int = 0
    """`CommandFlag` bits."""
    ext_fields: dict[str, str] | None = None
    """The extension fields, all text; None for a header without them, which differs on the wire from {}."""
    body: Buffer = EMPTY
    """The bytes after the header; see `Frame.body` on how long a received one is valid."""
    remark: str | None = None
    """In a reply, why it failed."""
    language: str = "JAVA"
    """The peer's language, any text. Our replies say JAVA, the only name that every client's parser knows."""
    version: int = VERSION
    """Ordinal of the peer's release in `MQVersion.java`."""
    serialisation: Serialisation = Serialisation.JSON
    """The encoding of the header."""

    @property
    def is_response(self) -> bool:
        """Whether this is a reply."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the sender expects no reply."""
        return self.flag & _ONE_WAY != 0


def reply(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: Buffer = EMPTY,
) -> Command:
    """Create the reply to a request: its opaque and serialisation, its flag with the response bit."""
    return Command(
        code=code,
        opaque=request.opaque,
        flag=_RESPONSE,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        serialisation=request.serialisation,
    )


def decode_frame(frame: Frame) -> Command:
    """Decode a frame; raises RemoteProtocolError."""
    kind = frame.serialisation
    read = read_json(frame.header) if kind is _JSON else read_rocketmq(frame.header)
    return Command(
        read.code,
        read.opaque,
        read.flag,
        read.extFields,
        frame.body,
        read.remark,
        read.language,
        read.version,
        kind,
    )


def encode(command: Command, size_max: int = FRAME_SIZE_MAX) -> list[Buffer]:
    """Encode the command as buffers to write in order; the body is not copied.

    Raises LocalProtocolError if it does not fit the protocol.
    """
    body = command.body
    head = encode_head(command, len(body), size_max)
    return [head, body] if len(body) else [head]


def encode_head(command: Command, body_size: int, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """Returns the frame up to a body of `body_size` bytes; ignores `command.body`.

    Raises LocalProtocolError if it does not fit the protocol.
    """
    write = write_json if command.serialisation is _JSON else write_rocketmq
    header = write(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.ext_fields,
    )
    return frame_head(command.serialisation, header, body_size, size_max)


def encode_reply_head(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body_size: int = 0,
    serialisation: Serialisation | None = None,
    size_max: int = FRAME_SIZE_MAX,
) -> bytes:
    """Returns an answer's frame up to the body, without creating a Command (fast path).

    Write it and then `body_size` bytes, in any number of buffers (one `sendmsg`). `serialisation` None copies the
    request's; 4.9 always answers woken pulls in JSON. Raises LocalProtocolError if it does not fit the protocol.
    """
    kind = request.serialisation if serialisation is None else serialisation
    write = write_json if kind is _JSON else write_rocketmq
    # As in Java, which ignores the other bits of the request's flag.
    header = write(code, "JAVA", VERSION, request.opaque, _RESPONSE, remark, ext_fields)
    return frame_head(kind, header, body_size, size_max)
