"""Hashes of request identifiers, which show whether a request has events in several places.

A place is a part of the history that is judged separately, such as a bucket of queues. Each place reports a key of
eight bytes for each of its requests, of which the last two bytes are the number of the place. If two places report the
same hash, the request is judged in both places, with all of the request's events. If two different requests have the
same hash, a place reads events that it does not need, which is harmless because the judge then compares the identifiers
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
from attrs import define, field
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import Integers
from longpoll_judge.read.schema import coded_texts

Keys = NDArray[np.uint64]
NO_KEYS: Final[Keys] = np.empty(0, dtype=np.uint64)
PLACE_BITS: Final = np.uint64((1 << 16) - 1)
"""The bits of a key that hold the number of a place, which is a separately judged part of the history."""
KEY_BITS: Final = ~PLACE_BITS
RANGE_KEYS: Final = 1 << 20
"""The approximate number of keys that are compared at once."""
LONG_BYTES: Final = 256
"""The length in bytes above which a text is hashed alone, so that it does not slow down short texts."""
FEW_BYTES: Final = 1_024
"""If texts have at most this many bytes in total, their hashes are cached."""
_ONES: Final = np.uint64((1 << 64) - 1)
_WEIGHT: Final = np.uint64(0x9E3779B97F4A7C15)
"""The hash multiplier, 2^64 over the golden ratio, is odd and its bits are spread evenly."""


def request_keys(table: pa.Table, rows: Integers) -> Keys:
    """Returns the key of the request of each row, which is the same in every process."""
    if not len(rows):
        return NO_KEYS
    sources, source_names = coded_texts(table, "source")
    requests, request_names = coded_texts(table, "request")
    keys: Keys = text_hashes(source_names)[sources[rows]] * _WEIGHT + text_hashes(request_names)[requests[rows]]
    return keys


def text_hashes(texts: pa.StringArray) -> Keys:
    """Returns a hash of each text, the same in every process. Each step adds the next eight bytes of every text."""
    if not len(texts):
        return NO_KEYS
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = (texts.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
    # Cache the results for short input, because a split has few names, and the same names are hashed again for each
    # kind of event.
    return (_hashes if len(content) <= FEW_BYTES else _hashes.__wrapped__)(offsets.tobytes(), content)


@lru_cache(maxsize=1 << 10)
def _hashes(offsets: bytes, content: bytes) -> Keys:
    ends = np.frombuffer(offsets, dtype=np.int32)
    words: Keys = np.ndarray((len(content) + 1,), dtype="<u8", buffer=content + bytes(8), strides=(1,))
    begins, sizes = ends[:-1], ends[1:] - ends[:-1]
    longest = int(sizes.max())
    hashes = (sizes.astype(np.uint64) + np.uint64(1)) * _WEIGHT
    is_long = sizes > LONG_BYTES
    for begin in range(0, min(longest, LONG_BYTES), 8):
        (more,) = ((sizes > begin) & ~is_long).nonzero()
        left = np.minimum(sizes[more] - begin, 8).astype(np.uint64)
        word = words[begins[more] + begin] & (_ONES >> (np.uint64(64) - left * np.uint64(8)))
        mixed = (hashes[more] ^ word) * _WEIGHT
        hashes[more] = mixed ^ (mixed >> np.uint64(29))
    for place in np.flatnonzero(is_long).tolist() if longest > LONG_BYTES else ():
        text = content[ends[place] : ends[place + 1]]
        hashes[place] = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    hashes *= _WEIGHT
    hashes.flags.writeable = False
    return hashes


def ranges_of(keys: Keys, count: int) -> list[Keys]:
    """Returns the sorted keys, cut into `count` ranges of equal width. The ranges do not depend on the keys."""
    borders = np.array([(place << 64) // count for place in range(1, count)], dtype=np.uint64)
    return np.split(keys, np.searchsorted(keys, borders & KEY_BITS))


def shared(groups: Iterable[Keys]) -> Keys:
    """Returns the keys that come from several places, once for each place that reported them."""
    # Usually each group is already sorted. The stable sort merges sorted groups three times as fast as the default
    # sort.
    keys = np.sort(np.concatenate([NO_KEYS, *groups]), kind="stable")
    change = np.append(np.uint64(0), keys[1:] ^ keys[:-1])[: len(keys)]
    is_again = (change != 0) & (change <= PLACE_BITS)
    several: Keys = keys[is_again | np.append(is_again, False)[1:]]
    return several


@define
class KeyFile:
    """A file of groups of sorted keys, one group after the other."""

    _file: BinaryIO
    _lengths: list[int] = field(factory=list)

    def put(self, keys: Keys) -> None:
        """Append a group of sorted keys."""
        self._lengths.append(len(keys))
        keys.tofile(self._file)

    def shared(self) -> Keys:
        """Returns the keys that come from several places; see the function `shared`."""
        return np.concatenate([NO_KEYS, *map(shared, self._ranges())])

    def _ranges(self) -> Iterator[tuple[Keys, ...]]:
        total = sum(self._lengths)
        if not total:
            return
        self._file.flush()
        mapped = np.memmap(self._file, dtype=np.uint64, mode="r", shape=(total,))
        groups = np.split(mapped, np.cumsum(self._lengths)[:-1])
        count = -(-total // RANGE_KEYS)
        yield from zip(*(ranges_of(group, count) for group in groups), strict=True)


@contextmanager
def open_keys() -> Iterator[KeyFile]:
    """Open a temporary file of keys, which is deleted at the end of the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file:
        yield KeyFile(file)
