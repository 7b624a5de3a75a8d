"""A pull with its fields read in the same pass as its header, as `send_request` reads a send.

Whatever is not an 11 in the form that clients give it, or is wrong in any way, is left to the common way, which also
finds the words. Leaves out what the fields mean (`headers.pull`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Serialisation
from longpoll_protocol.frames.json_header import FEW_SIZE, FIELD_COUNT_MAX, HeaderNumbers, mark_count
from longpoll_protocol.headers.pull import PullMessageRequestHeader
from longpoll_spec.tables import with_table

START: Final = b'{"code":11,'
"""How the header of an 11 begins from every client that writes JSON."""
_JSON: Final = Serialisation.JSON


class PullCommand(Command, frozen=True, gc=False, kw_only=True):
    """An 11 request whose extension fields are in `header`; `ext_fields` is None."""

    header: PullMessageRequestHeader


@with_table
class _PullValues(HeaderNumbers, gc=False, kw_only=True):
    """As `HeaderValues`, but for the fields."""

    extFields: PullMessageRequestHeader  # noqa: N815 - the key on the wire


_decoder: Final = msgspec.json.Decoder(_PullValues, strict=False)


def read_pull(header: bytes, body: memoryview) -> PullCommand | None:
    """A pull of a JSON header that begins with `START`, and its body; None when the common way has to read it."""
    if len(header) >= FEW_SIZE and mark_count(header) > FIELD_COUNT_MAX:
        # Unknown fields are not even counted below.
        return None
    try:
        if not header.isascii():
            # The names of unknown fields are not looked at below.
            str(header, "utf-8")
        read = _decoder.decode(header)
        fields = read.extFields
        fields.check()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, HeaderError):
        return None
    return PullCommand(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON, header=fields
    )
