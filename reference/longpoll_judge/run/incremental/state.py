"""The state of judging a growing history, as bytes for Spark's state store; and which parts were rewritten.

The bytes are MessagePack, with events as Arrow streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.batch import decode, encode
from longpoll_judge.contract.result import Finding
from longpoll_judge.read.files import Stamp
from longpoll_judge.read.growing_history import GONE, checksum_before
from longpoll_judge.run.incremental.queue_judge import Growing

WRITTEN_ANEW: Final = "a part that was written anew, or cut, after it was read"
VERSION: Final = 8
"""Increases with every change of the state, or of its meaning."""


@frozen
class Limits:
    """The thresholds of a judgement."""

    wake_ms: float
    late_ms: float


@define(eq=False)
class Parts:
    """Notices parts that were rewritten or cut after they were read."""

    known: dict[str, tuple[int, int]] = field(factory=dict)
    """By part how far it was read, and a checksum of the bytes before that."""
    stamps: dict[str, Stamp] = field(factory=dict)
    """The stamp of each part at the last look; a part with another stamp is read."""
    expected: dict[str, tuple[int, int]] = field(factory=dict)
    """By part how far it is about to be read, and the checksum at that time."""

    def expect(self, ends: Mapping[str, int], read: Mapping[str, int]) -> None:
        """Note the parts before they are read up to `ends`; `read` has how far each was read before."""
        self.expected = {
            part: (end, checksum_before(part, end)) for part, end in ends.items() if end > read.get(part, 0)
        }

    def note(self, ends: Mapping[str, int]) -> int:
        """Note that the parts up to these ends are as read; return how many were rewritten during the read."""
        new = {part: end for part, end in ends.items() if part not in self.known or self.known[part][0] != end}
        now = {part: (end, checksum_before(part, end)) for part, end in new.items()}
        anew = [part for part, place in now.items() if self._is_other(part, place)]
        self.known |= now
        for part in anew:
            self.expected.pop(part, None)
        return len(anew)

    def _is_other(self, part: str, now: tuple[int, int]) -> bool:
        """Whether a part has changed since it was about to be read, or since it was read."""
        places = filter(None, (self.expected.get(part), self.known.get(part)))
        # Mostly it was expected to be read so far, and is not read once more for that.
        found = ((before, now[1] if end == now[0] else checksum_before(part, end)) for end, before in places)
        return now[1] != GONE and any(then not in {GONE, before} for before, then in found)

    def are_anew(self, stamps: Mapping[str, Stamp], ends: Mapping[str, int]) -> int:
        """The number of parts that changed after they were read; deleted parts do not count."""
        self.note({part: end for part, end in ends.items() if part not in self.known})
        changed = [part for part, stamp in stamps.items() if part in self.known and self.stamps.get(part) != stamp]
        self.stamps = dict(stamps)
        anew = [
            part for part in changed if checksum_before(part, self.known[part][0]) not in {GONE, self.known[part][1]}
        ]
        for part in anew:
            self.known[part] = self.known[part][0], checksum_before(part, self.known[part][0])
        return len(anew)


@define
class State:
    """The state of a group of queues."""

    growing: Growing
    shown: list[Finding] = field(factory=list)
    """Findings whose evidence is a history by itself."""


def stream_checkpoint(directory: Path) -> Path:
    """Where in this directory a query on Spark has its checkpoint; another version has another place."""
    return directory / f"stream-{VERSION}"


def is_begun(directory: Path | None) -> bool:
    """Whether a query on Spark with this directory has judged a batch."""
    return directory is not None and any((stream_checkpoint(directory) / "commits").glob("[0-9]*"))


def _plain(value: Any) -> Any:
    """Encode a table or an array as bytes, because MessagePack has no type for them."""
    if isinstance(value, pa.Table):
        return encode(value)
    assert isinstance(value, np.ndarray), type(value)
    return value.tobytes()


def _restored(kind: Any, value: Any) -> Any:
    """The opposite of `_plain`, by the type of the field."""
    if kind is pa.Table:
        return decode(value)
    if get_origin(kind) is Counter:
        return Counter(value)
    assert get_origin(kind) is np.ndarray, kind
    return np.frombuffer(value, dtype=get_args(get_args(kind)[1])[0])


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER: Final = msgspec.msgpack.Decoder(State, dec_hook=_restored)


def packed(state: State) -> bytes:
    """The state as bytes."""
    return _ENCODER.encode(state)


def unpacked(content: bytes) -> State:
    """The state of bytes; raises `msgspec.DecodeError`, `pa.ArrowInvalid` and OSError for others."""
    return _DECODER.decode(content)
