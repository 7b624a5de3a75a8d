"""A conversation as text: sender, time, and each frame decoded next to its bytes.

A broker may send anything, so texts are escaped for terminals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from longpoll_conform.connection import RecordedFrame
from longpoll_conform.wire import NotReadableError, decode_command

HEX_SIZE_MAX: Final = 256
"""Bytes shown of a frame; the rest is counted."""
HEX_COLUMNS: Final = 32
TEXT_MAX: Final = 600
ARROWS: Final = {"sent": ">", "came": "<", "closed": "x"}


def lines_of(spoken: Sequence[RecordedFrame]) -> Iterator[str]:
    """Each frame: when, on which connection, decoded, and its bytes in hexadecimal."""
    for one in spoken:
        yield f"{one.at_ms:9.1f} ms  {one.line} {ARROWS[one.way]} {meaning(one)}"
        yield from (f"              {row}" for row in _hex(one.content))


def meaning(one: RecordedFrame) -> str:
    """A frame in words."""
    if one.way == "closed":
        rest = f", after {len(one.content)} bytes of a frame" if one.content else ""
        return f"the broker closed the connection{rest}"
    if len(one.content) < 8:
        return f"{len(one.content)} bytes that are not a frame"
    try:
        command = decode_command(one.content[4:])
    except NotReadableError as error:
        return f"{len(one.content)} bytes that are not a command: {error}"
    kind = "answer" if command["flag"] & 1 else "request"
    said = {name: command[name] for name in ("remark", "extFields") if command[name]}
    body = f", body of {len(command['body'])} bytes" if command["body"] else ""
    text = json.dumps(said, ensure_ascii=True)
    shown = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
    return f"{kind} {command['code']} opaque {command['opaque']} {command['serialize']} {shown}{body}"


def _hex(content: bytes) -> Iterator[str]:
    shown = content[:HEX_SIZE_MAX]
    for start in range(0, len(shown), HEX_COLUMNS):
        yield shown[start : start + HEX_COLUMNS].hex(" ", 4)
    if len(content) > HEX_SIZE_MAX:
        yield f"... and {len(content) - HEX_SIZE_MAX} more bytes"
