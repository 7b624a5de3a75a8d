"""The answer to a send with its fields read in the same pass as its header: what a busy producer receives.

Brokers write a success in JSON, code first, also Java's. Whatever is otherwise, or wrong in any way, is left to the
common way, which also finds the words.

Leaves out what the fields mean (`headers.send`).
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
"""How the header of every success begins."""
MARK: Final = b'"msgId"'
"""What is in no other answer's."""
Failure = TypeVar("Failure", bound=Exception)
_JSON: Final = Serialisation.JSON
_RESPONSE: Final = int(CommandFlag.RESPONSE)


class SentAnswer(Command, frozen=True, gc=False, kw_only=True):
    """A success whose extension fields are in `header`, all of them; `ext_fields` is None."""

    header: SendMessageResponseHeader


class _SentFields(SendMessageResponseHeader, gc=False, forbid_unknown_fields=True):
    """An answer with more fields, such as 5.x's `recallHandle`, is left to the common way, which keeps them."""


@with_table
class _SentValues(HeaderNumbers, gc=False, kw_only=True):
    """As `HeaderValues`, but for the fields."""

    extFields: _SentFields  # noqa: N815 - the key on the wire


_decoder: Final = msgspec.json.Decoder(_SentValues, strict=False)


def read_sent(header: bytes, body: memoryview) -> SentAnswer | None:
    """The answer to a send of a JSON header that begins with `START`; None when the common way has to read it."""
    if MARK not in header or not header.isascii():
        # The names of unknown fields are not looked at below, and might be no text.
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
    """The fields of an answer to a send, however it was read; raises HeaderError."""
    return answer.header if isinstance(answer, SentAnswer) else SendMessageResponseHeader.decode(answer.ext_fields)


def plain(answer: Command) -> Command:
    """The answer with its extension fields, for who has asked by code and reads whatever comes."""
    if not isinstance(answer, SentAnswer):
        return answer
    return Command(
        answer.code, answer.opaque, answer.flag, answer.header.encode(), answer.body, answer.remark, answer.language,
        answer.version, answer.serialisation,
    )  # fmt: skip


def with_fields(callback: Callable[[Command | Failure], None]) -> Callable[[Command | Failure], None]:
    """The same callback, told the extension fields of every answer, as `plain` gives them."""
    return lambda answer: callback(answer if isinstance(answer, Exception) else plain(answer))


class SentConnection(Connection):
    """A connection whose answers to sends may come as `SentAnswer`s, several at once where they lie side by side."""

    __slots__ = ()

    def _decode(self, frame: Frame) -> Command:
        """Read the header of a frame; raises RemoteProtocolError."""
        if frame.serialisation is not _JSON or bytes(frame.header[: len(START)]) != START:
            return decode_frame(frame)
        return read_sent(bytes(frame.header), frame.body) or decode_frame(frame)

    def next_sent(self) -> list[SentAnswer]:
        """The answers to sends that come next and lie whole in what was received last; often none.

        Raises nothing: `next_event` meets whatever ends the burst.
        """
        return self._frames.next_alike(START, read_sent)
