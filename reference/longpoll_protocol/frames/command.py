"""RemotingCommand: one request or reply, from a frame and to one.

A `RemoteProtocolError` means that the peer's connection must be closed, as RocketMQ does; fields that a request lacks
are not its business (`headers`).
Leaves out framing (`frame`), the two header encodings (`json_header`, `rocketmq_header`), what extension fields mean
(`headers`) and what bodies mean (`bodies`, `message`).

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

# Looking a member up in its enum, and `&` on an IntFlag, cost more than what is done with them here.
_JSON: Final = Serialisation.JSON
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONE_WAY: Final = int(CommandFlag.ONE_WAY)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One request or reply. It holds no reference cycles, so the collector need not know it (`gc=False`)."""

    code: int
    """A `RequestCode` in a request, a `ResponseCode` in a reply; unknown numbers are allowed."""
    opaque: int = 0
    """Chosen by the one who asks, copied by the one who replies."""
    flag: int = 0
    """`CommandFlag` bits."""
    ext_fields: dict[str, str] | None = None
    """The extension fields, all text; None when the header has none, which is not the same on the wire as {}."""
    body: Buffer = EMPTY
    """The bytes behind the header; see `Frame.body` on how long a received one is valid."""
    remark: str | None = None
    """In a reply, why it is not a success."""
    language: str = "JAVA"
    """The peer's language, any text. Our replies say JAVA, the one name that every client's parser knows."""
    version: int = VERSION
    """Ordinal of the peer's release in `MQVersion.java`."""
    serialisation: Serialisation = Serialisation.JSON
    """How the header was or will be written."""

    @property
    def is_response(self) -> bool:
        """Whether this is a reply."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no reply."""
        return self.flag & _ONE_WAY != 0


def reply(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: Buffer = EMPTY,
) -> Command:
    """The reply to a request: its opaque and serialisation, its flag with the response bit."""
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
    """Read the header of a frame; raises RemoteProtocolError."""
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
    """The command as buffers to write one after the other; the body is passed on uncopied.

    Raises LocalProtocolError when it does not fit the protocol.
    """
    body = command.body
    head = encode_head(command, len(body), size_max)
    return [head, body] if len(body) else [head]


def encode_head(command: Command, body_size: int, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """Everything of the frame before a body of `body_size` bytes; `command.body` is not looked at.

    Raises LocalProtocolError when it does not fit the protocol.
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
    """The hot path of answers: everything of the frame before the body, without making a Command.

    Write it and then `body_size` bytes, in as many buffers as they come in (one `sendmsg`).
    `serialisation` None copies the request's; 4.9 answers woken pulls in JSON whatever the request was in.
    Raises LocalProtocolError when it does not fit the protocol.
    """
    kind = request.serialisation if serialisation is None else serialisation
    write = write_json if kind is _JSON else write_rocketmq
    # Java makes an answer anew, whatever else the request's flag said.
    header = write(code, "JAVA", VERSION, request.opaque, _RESPONSE, remark, ext_fields)
    return frame_head(kind, header, body_size, size_max)
