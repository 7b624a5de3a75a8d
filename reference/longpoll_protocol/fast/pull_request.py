"""A fast decoder that reads a pull's fields together with its header, as `send_request` does for a send.

Requests other than a usual, valid 11 take the normal path, which also creates the error texts. Fields: see
`headers.pull`.
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
"""The begin of an 11's header from every client that writes JSON."""
_JSON: Final = Serialisation.JSON


class PullCommand(Command, frozen=True, gc=False, kw_only=True):
    """A request of code 11 whose extension fields are in `header`; `ext_fields` is None."""

    header: PullMessageRequestHeader


@with_table
class _PullValues(HeaderNumbers, gc=False, kw_only=True):
    extFields: PullMessageRequestHeader  # noqa: N815 - the key on the wire


_decoder: Final = msgspec.json.Decoder(_PullValues, strict=False)


def read_pull(header: bytes, body: memoryview) -> PullCommand | None:
    """Decode a pull whose JSON header begins with `START`, and its body; None leaves it to the normal path."""
    if len(header) >= FEW_SIZE and mark_count(header) > FIELD_COUNT_MAX:
        # Unknown fields are not counted below.
        return None
    try:
        if not header.isascii():
            # The names of unknown fields are not checked below.
            str(header, "utf-8")
        read = _decoder.decode(header)
        fields = read.extFields
        fields.check()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, HeaderError):
        return None
    return PullCommand(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON, header=fields
    )
