"""Saves the state of judging a growing history, so that a killed follower can continue.

The file `judging.state` has a line with its name and version, a checksum, and the contents of a `Growing` as
MessagePack, with events as Arrow streams. It is written under another name and renamed, so it is always complete. It
also holds how far each part was read, and a checksum of some earlier bytes (`read.growing_history`). So a rewritten
part is noticed, and a deleted one is not read.

Reported findings are stored separately (`show.findings_file`): findings that are judged again are not reported again.
"""

from __future__ import annotations

import os
import zlib
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
from longpoll_judge.errors import CheckpointError
from longpoll_judge.read import files
from longpoll_judge.read.files import Stamp
from longpoll_judge.read.growing_history import GONE, checksum_before
from longpoll_judge.run.incremental.queue_judge import Growing

STATE_FILE: Final = "judging.state"
WRITTEN_ANEW: Final = "a part that was written anew, or cut, after it was read"
VERSION: Final = 8
"""Is raised with every change of what is kept, or of what the judge makes of it."""
_TITLE: Final = b"longpoll judging "
_SUM_BYTES: Final = 4
_THEN: Final = "all of the history is judged again (what was told is not told again)"
_REMEDY: Final = f"remove it, and {_THEN}"


@frozen
class Limits:
    """The thresholds of a judgement."""

    wake_ms: float
    late_ms: float


@define(eq=False)
class Parts:
    """Notices parts that were rewritten or cut after they were read."""

    known: dict[str, tuple[int, int]] = field(factory=dict)
    """By part how far it was read, and what tells that it is still the same."""
    stamps: dict[str, Stamp] = field(factory=dict)
    """Of each part when it was looked at; who differs is read, who does not is not."""
    expected: dict[str, tuple[int, int]] = field(factory=dict)
    """By part how far it is about to be read, and what tells that it is still the same then."""

    def expect(self, ends: Mapping[str, int], read: Mapping[str, int]) -> None:
        """Before parts are read up to `ends`, of which `read` has what was read before."""
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
        """Whether a part is not what it was when it was about to be read, or what was read of it before is not."""
        places = filter(None, (self.expected.get(part), self.known.get(part)))
        # Mostly it was expected to be read so far, and is not read once more for that.
        found = ((before, now[1] if end == now[0] else checksum_before(part, end)) for end, before in places)
        return now[1] != GONE and any(then not in {GONE, before} for before, then in found)

    def are_anew(self, stamps: Mapping[str, Stamp], ends: Mapping[str, int]) -> int:
        """How many parts are not what was read of them; one that is gone is not asked for."""
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
    """The saved state of a follower."""

    growing: Growing
    ends: dict[str, tuple[int, int]] = field(factory=dict)
    """By part: where the next look begins, and what tells that it is what was read (`checksum_before`)."""
    shown: list[Finding] = field(factory=list)
    seen: set[str] = field(factory=set)
    """Names of findings that were looked at."""
    untold: int = 0
    """How many violations were listed in no result (`Picked`)."""


def stream_checkpoint(kept: Path) -> Path:
    """Where a query on Spark keeps its checkpoint, next to the file where this process keeps its state."""
    return kept.with_name(f"stream-{VERSION}")


def is_begun(kept: Path | None) -> bool:
    """Whether a query on Spark has judged a batch there."""
    return kept is not None and any((stream_checkpoint(kept) / "commits").glob("[0-9]*"))


def _plain(value: Any) -> Any:
    """What MessagePack has no type for, as bytes."""
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


def write_state(file: Path, state: State) -> None:
    """Put the state on disk; raises OSError."""
    content = packed(state)
    temporary = file.with_suffix(".tmp")
    with temporary.open("wb") as written:
        written.write(_TITLE + str(VERSION).encode() + b"\n")
        written.write(zlib.crc32(content).to_bytes(_SUM_BYTES, "big"))
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    temporary.replace(file)


def read_state(file: Path, growing: Growing) -> State | None:
    """The saved state; None if there is none.

    Raises `CheckpointError` if it is damaged, of another version or thresholds, or of other parts.
    """
    try:
        title, _newline, rest = file.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}; {_REMEDY}") from None
    if title != _TITLE + str(VERSION).encode():
        what = "from another version" if title.startswith(_TITLE) else "no state of a follower"
        raise CheckpointError(f"{file} is {what}; {_REMEDY}")
    content = rest[_SUM_BYTES:]
    if zlib.crc32(content).to_bytes(_SUM_BYTES, "big") != rest[:_SUM_BYTES]:
        raise CheckpointError(f"{file} is damaged, its checksum differs; {_REMEDY}")
    try:
        found = unpacked(content)
    except (msgspec.DecodeError, pa.ArrowInvalid, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; {_REMEDY}") from None
    if (found.growing.wake_ms, found.growing.late_ms) != (growing.wake_ms, growing.late_ms):
        raise CheckpointError(f"{file} has other thresholds; {_REMEDY}")
    for part, (end, known) in found.ends.items():
        if files.entry(part) is not None and checksum_before(part, end) != known:
            raise CheckpointError(f"{part} has changed since it was judged; remove {file}, and {_THEN}")
    return found
