"""A send with its fields read in the same pass as its header: the hottest of all requests.

Reading the fields as texts first, and then the texts as what they mean, takes three times as long. Whatever is not a
310 in the form that clients give it, or is wrong in any way, is left to the common way, which also finds the words.

Leaves out what the fields mean (`headers.send`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Serialisation
from longpoll_protocol.frames.json_header import FEW_SIZE, FIELD_COUNT_MAX, HeaderNumbers, mark_count
from longpoll_protocol.headers.send import SendMessageRequestHeaderV2
from longpoll_spec.tables import with_table

START: Final = b'{"code":310,'
"""How the header of a 310 begins from every client that writes JSON."""
_JSON: Final = Serialisation.JSON


class SendCommand(Command, frozen=True, gc=False, kw_only=True):
    """A 310 request whose extension fields are in `header`; `ext_fields` is None."""

    header: SendMessageRequestHeaderV2


@with_table
class _SendValues(HeaderNumbers, gc=False, kw_only=True):
    """As `HeaderValues`, but for the fields."""

    extFields: SendMessageRequestHeaderV2  # noqa: N815 - the key on the wire


_decoder: Final = msgspec.json.Decoder(_SendValues, strict=False)


def read_send(header: bytes, body: memoryview) -> SendCommand | None:
    """A send of a JSON header that begins with `START`, and its body; None when the common way has to read it."""
    try:
        if not header.isascii():
            # The names of unknown fields are not looked at below.
            str(header, "utf-8")
        read = _decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(header) >= FEW_SIZE and mark_count(header) > FIELD_COUNT_MAX:
        return None
    return SendCommand(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON,
        header=read.extFields,
    )  # fmt: skip
