"""Checks whether a part is still the one that was read, by a checksum of a few places, at the same cost for any size.

A rewritten part normally differs at each place because its events have other timestamps. One changed byte elsewhere
goes undetected. `follow` and `local` use this.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Final

from longpoll_judge.read import files
from longpoll_judge.read.source import kind_of
from longpoll_spec.history import NDJSON_SUFFIX

GONE: Final = -1
"""The sum of a part that is not there any more."""
_PLACES: Final = 4
"""Of what was read that many places are compared, from its first to its last bytes, ..."""
_PLACE_BYTES: Final = 4_096
"""... and this number of bytes of each: of Parquet the last ones say what all its columns hold, and where."""


def checksum_before(part: str, end: int, start: int = 0) -> int:
    """The checksum of a part of lines between two bytes, or of all of any other part.

    `GONE` if the part no longer exists.
    """
    found = files.entry(part)
    if found is None:
        return GONE
    if kind_of(part) != NDJSON_SUFFIX:
        start, end = 0, found.size
    total = zlib.crc32(end.to_bytes(8, "big"))
    with suppress(FileNotFoundError), files.open_file(part) as file:
        for number in range(_PLACES):
            file.seek(start + max(end - start - _PLACE_BYTES, 0) * number // (_PLACES - 1))
            total = zlib.crc32(file.read(min(end - start, _PLACE_BYTES)), total)
        return total
    return GONE
