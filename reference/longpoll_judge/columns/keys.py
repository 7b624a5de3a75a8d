"""Requests by a number made of their identifiers, to notice one whose events lie in places that are judged apart.

Each place reports the numbers of its requests: eight bytes each, of which the last two name the place. A request whose
number two places report is judged in both, with all its events. If two requests have the same number, a place reads
events that it does not need, which is harmless because nothing is compared by these numbers alone.
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
"""The bits of a key that hold its place."""
KEY_BITS: Final = ~PLACE_BITS
RANGE_KEYS: Final = 1 << 20
"""About the number of keys that are compared at once."""
LONG_BYTES: Final = 256
"""Longer texts are rare. They are hashed one by one, so that they do not slow down the others."""
FEW_BYTES: Final = 1_024
"""The hashes of no more than this are cached."""
_ONES: Final = np.uint64((1 << 64) - 1)
_WEIGHT: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: odd, and its bits are spread evenly."""


def request_keys(table: pa.Table, rows: Integers) -> Keys:
    """The key of the request of each of these rows, the same wherever it is made."""
    if not len(rows):
        return NO_KEYS
    sources, source_names = coded_texts(table, "source")
    requests, request_names = coded_texts(table, "request")
    keys: Keys = text_hashes(source_names)[sources[rows]] * _WEIGHT + text_hashes(request_names)[requests[rows]]
    return keys


def text_hashes(texts: pa.StringArray) -> Keys:
    """A number for each text, the same wherever it is made: eight bytes of all texts at a time are mixed in."""
    if not len(texts):
        return NO_KEYS
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = (texts.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
    # A split's few names are hashed for each kind of event in it.
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
    """The sorted keys in `count` ranges of equal width, the same ranges for every group."""
    borders = np.array([(place << 64) // count for place in range(1, count)], dtype=np.uint64)
    return np.split(keys, np.searchsorted(keys, borders & KEY_BITS))


def shared(groups: Iterable[Keys]) -> Keys:
    """The keys that come from several places, with each of these."""
    # The groups are sorted as a rule: the stable sort merges such runs, three times as fast as the other one sorts.
    keys = np.sort(np.concatenate([NO_KEYS, *groups]), kind="stable")
    change = np.append(np.uint64(0), keys[1:] ^ keys[:-1])[: len(keys)]
    is_again = (change != 0) & (change <= PLACE_BITS)
    several: Keys = keys[is_again | np.append(is_again, False)[1:]]
    return several


@define
class KeyFile:
    """Groups of sorted keys, one behind the other in a file."""

    _file: BinaryIO
    _lengths: list[int] = field(factory=list)

    def put(self, keys: Keys) -> None:
        """Add a group."""
        self._lengths.append(len(keys))
        keys.tofile(self._file)

    def shared(self) -> Keys:
        """See `shared`."""
        return np.concatenate([NO_KEYS, *map(shared, self._ranges())])

    def _ranges(self) -> Iterator[tuple[Keys, ...]]:
        """The sorted keys of each group, range by range."""
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
    """A file of keys that goes with the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file:
        yield KeyFile(file)
