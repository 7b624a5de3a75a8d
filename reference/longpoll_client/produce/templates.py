"""The head of a send's request, written into a template of its queue: what many sends have alike is written once.

Byte for byte what `Exchange.written` makes of the same parcel. Leaves out signed requests, whose fields begin with none
alike, and the body, which is sent uncopied.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from longpoll_client.link.calls import Write
from longpoll_client.produce.outgoing import Parcel
from longpoll_protocol.codes import VERSION
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames import Buffer, Serialisation, frame_head
from longpoll_protocol.headers import Header

TEMPLATE_COUNT_MAX: Final = 10_000
"""Queues whose templates are kept, of 300 bytes each; with more they are made anew."""
BORN: Final = "g"
PROPERTIES: Final = "i"
"""`SendMessageRequestHeaderV2`: the two fields that differ from one message of a queue to the next."""

_JSON: Final = Serialisation.JSON
_encode: Final = msgspec.json.Encoder().encode


class RequestWriter(Protocol):
    """A connection, threaded or asyncio."""

    @property
    def is_signed(self) -> bool:
        """Whether every request is signed."""
        ...

    def writer(self, code: int, header: Header | None, body: Buffer, /) -> Write:
        """The function that writes a request, signed if necessary."""
        ...


class HeadTemplates:
    """The templates of one producer; each is made when it is first used, and threads may make one at the same time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, int, int], bytes] = {}

    def writer(self, connection: RequestWriter, parcel: Parcel, queue_id: int) -> Write:
        """The function that writes the request of a send: by a template, unless it is signed."""
        if connection.is_signed:
            return connection.writer(parcel.code, parcel.header(queue_id), parcel.body)
        return lambda opaque: [self.head(parcel, queue_id, opaque), parcel.body]

    def head(self, parcel: Parcel, queue_id: int, opaque: int) -> bytes:
        """Everything of the frame before the body; raises LocalProtocolError when it does not fit the protocol."""
        key = (parcel.topic, parcel.group, queue_id, parcel.code, parcel.sys_flag)
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= TEMPLATE_COUNT_MAX:
                self._known.clear()
            template = self._known[key] = _template(parcel, queue_id)
        try:
            header = template % (opaque, parcel.born_ms, _encode(parcel.properties))
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"text is not Unicode: {error}") from None
        return frame_head(_JSON, header, len(parcel.body))


def _template(parcel: Parcel, queue_id: int) -> bytes:
    """The header with places for opaque, time and properties."""
    places = {BORN: b'"%d"', PROPERTIES: b"%b"}
    fields = parcel.header(queue_id).encode()
    written = [_fixed(name) + b":" + (places.get(name) or _fixed(value)) for name, value in fields.items()]
    return b"".join(
        (
            b'{"code":%d,"language":"PYTHON","version":%d,"opaque":' % (parcel.code, VERSION),
            b'%d,"flag":0,"serializeTypeCurrentRPC":"JSON","extFields":{',
            b",".join(written),
            b"}}",
        )
    )


def _fixed(text: str) -> bytes:
    """Text in JSON, with no place in it."""
    return _encode(text).replace(b"%", b"%%")
