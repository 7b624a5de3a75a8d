"""A fast decoder of answers to sends, for busy producers.

Brokers, including Java's, write a success in JSON with the code first. Other or invalid answers take the normal path,
which also creates the error texts. Fields: see `headers.send`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.frames.command import Command, decode_frame
from longpoll_protocol.frames.connection import Connection
from longpoll_protocol.frames.frame import Frame, Serialisation
from longpoll_protocol.frames.json_header import HeaderNumbers
from longpoll_protocol.headers.send import SendMessageResponseHeader
from longpoll_spec.tables import with_table

START: Final = b'{"code":0,'
"""The begin of every success's header."""
MARK: Final = b'"msgId"'
"""A part of these answers that no other answer has."""
Failure = TypeVar("Failure", bound=Exception)
_JSON: Final = Serialisation.JSON
_RESPONSE: Final = int(CommandFlag.RESPONSE)


class SentAnswer(Command, frozen=True, gc=False, kw_only=True):
    """A success with all extension fields in `header`; `ext_fields` is None."""

    header: SendMessageResponseHeader


class _SentFields(SendMessageResponseHeader, gc=False, forbid_unknown_fields=True):
    """The allowed fields. Answers with more, such as 5.x's `recallHandle`, take the normal path."""


@with_table
class _SentValues(HeaderNumbers, gc=False, kw_only=True):
    extFields: _SentFields  # noqa: N815 - the key on the wire


_decoder: Final = msgspec.json.Decoder(_SentValues, strict=False)


def read_sent(header: bytes, body: memoryview) -> SentAnswer | None:
    """Decode a send's answer whose JSON header begins with `START`; None leaves it to the normal path."""
    if MARK not in header or not header.isascii():
        # The names of unknown fields are not checked below and may be invalid text.
        return None
    try:
        read = _decoder.decode(header)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not read.flag & _RESPONSE:
        return None
    return SentAnswer(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON,
        header=read.extFields,
    )  # fmt: skip


def header_of(answer: Command) -> SendMessageResponseHeader:
    """Returns the fields of a send's answer, decoded by either path; raises HeaderError."""
    return answer.header if isinstance(answer, SentAnswer) else SendMessageResponseHeader.decode(answer.ext_fields)


def plain(answer: Command) -> Command:
    """Returns the answer with its extension fields, for callers that need any code's fields."""
    if not isinstance(answer, SentAnswer):
        return answer
    return Command(
        answer.code, answer.opaque, answer.flag, answer.header.encode(), answer.body, answer.remark, answer.language,
        answer.version, answer.serialisation,
    )  # fmt: skip


def with_fields(callback: Callable[[Command | Failure], None]) -> Callable[[Command | Failure], None]:
    """Wrap a callback, so that it gets every answer with extension fields, as from `plain`."""
    return lambda answer: callback(answer if isinstance(answer, Exception) else plain(answer))


class SentConnection(Connection):
    """A connection that may return answers to sends as `SentAnswer`s, several at once if adjacent."""

    __slots__ = ()

    def _decode(self, frame: Frame) -> Command:
        """Decode a frame; raises RemoteProtocolError."""
        if frame.serialisation is not _JSON or bytes(frame.header[: len(START)]) != START:
            return decode_frame(frame)
        return read_sent(bytes(frame.header), frame.body) or decode_frame(frame)

    def next_sent(self) -> list[SentAnswer]:
        """Returns the next answers to sends that are complete in the last received data; often none.

        Raises nothing: `next_event` handles the frame that ends the burst.
        """
        return self._frames.next_alike(START, read_sent)
