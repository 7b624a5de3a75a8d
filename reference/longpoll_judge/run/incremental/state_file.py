"""Saves the state of judging a growing history, so that a killed follower can continue.

The file `judging.state` has a line with its name and version, a checksum, and the contents of a `Growing` as
MessagePack, with events as Arrow streams. It is written under another name and renamed, so it is always complete. It
also holds how far each part was read, and a checksum of some earlier bytes (`read.checksum`). So a rewritten part is
noticed, and a deleted one is not read.

Reported findings are stored separately (`show.checkpoint`): findings that are judged again are not reported again.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field, frozen

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.exchange import decode, encode
from longpoll_judge.contract.result import Finding
from longpoll_judge.errors import CheckpointError
from longpoll_judge.evidence.survey import Survey
from longpoll_judge.read import files
from longpoll_judge.read.checksum import GONE, checksum_before
from longpoll_judge.read.files import Stamp
from longpoll_judge.run.incremental.held_pulls import Held
from longpoll_judge.run.incremental.queue_judge import Growing, Logged, Piece
from longpoll_judge.run.incremental.recent_events import Asked, Beside, Offsets, Recent
from longpoll_judge.run.queue_verdict import RESULT_SCHEMA, Row, as_table
from longpoll_judge.run.tally import Latest, Tally
from longpoll_judge.run.windows import Log, LogSpan
from longpoll_spec.tables import with_table

STATE_FILE: Final = "judging.state"
WRITTEN_ANEW: Final = "a part that was written anew, or cut, after it was read"
VERSION: Final = 7
"""Is raised with every change of what is kept, or of what the judge makes of it."""
_TITLE: Final = b"longpoll judging "
_SUM_BYTES: Final = 4
_THEN: Final = "all of the history is judged again (what was told is not told again)"
_REMEDY: Final = f"remove it, and {_THEN}"


@with_table
class _Piece(msgspec.Struct):
    spans: list[LogSpan]
    log: bytes
    last_ns: int


@with_table
class _Recent(msgspec.Struct):
    pieces: list[tuple[bytes, int]]
    gone_ns: int
    count: int
    fresh: int
    judged_ns: int


@with_table
class _Offsets(msgspec.Struct):
    recent: _Recent
    lasting: bytes
    found: list[Finding]
    is_over: bool


@with_table
class _Held(msgspec.Struct):
    events: bytes
    found: dict[str, Finding]
    open: dict[str, Finding]
    is_over: bool


@with_table
class _Asked(msgspec.Struct):
    """Columns as their bytes."""

    text: bytes
    first: bytes
    last: bytes
    again: bytes
    is_over: bool


@with_table
class _Beside(msgspec.Struct):
    recent: _Recent
    found: list[Finding]
    offsets: _Offsets
    held: _Held
    asked: _Asked


@with_table
class _Kept(msgspec.Struct):
    """A `Growing`, how far its parts were read, and the findings that were shown."""

    wake_ms: float
    late_ms: float
    ends: dict[str, tuple[int, int]]
    """As those of a `State`."""
    shown: list[Finding]
    seen: list[str]
    untold: int
    beside: _Beside
    window: list[_Piece]
    rare: bytes
    before: list[LogSpan]
    all_spans: list[LogSpan]
    pending: bytes
    tally: list[Row]
    survey: Survey
    doubts: dict[str, int]
    unstopped: dict[str, int]
    logged: list[str]
    disordered: list[tuple[QueueName, int]]
    reached: list[tuple[QueueName, int]]
    settled_ns: int


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
    """How many violations were not reported one by one."""


def stream_checkpoint(kept: Path) -> Path:
    """Where a query on Spark keeps its checkpoint, next to the file where this process keeps its state."""
    return kept.with_name(f"stream-{VERSION}")


def is_begun(kept: Path | None) -> bool:
    """Whether a query on Spark has judged a batch there."""
    return kept is not None and any((stream_checkpoint(kept) / "commits").glob("[0-9]*"))


def packed(state: State) -> bytes:
    """The state as bytes."""
    return msgspec.msgpack.encode(_kept(state))


def unpacked(content: bytes) -> State:
    """The state of bytes; raises `msgspec.DecodeError`, `pa.ArrowInvalid` and OSError for others."""
    return _state(msgspec.msgpack.decode(content, type=_Kept))


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


def _kept(state: State) -> _Kept:
    growing, beside = state.growing, state.growing.beside
    offsets, held, asked = beside.offsets, beside.held, beside.asked
    tally = growing.tally.rows()
    return _Kept(
        wake_ms=growing.wake_ms,
        late_ms=growing.late_ms,
        ends=state.ends,
        shown=state.shown,
        seen=sorted(state.seen),
        untold=state.untold,
        beside=_Beside(
            recent=_kept_recent(beside.recent),
            found=list(beside.found.values.values()),
            offsets=_Offsets(
                recent=_kept_recent(offsets.recent),
                lasting=encode(offsets.lasting),
                found=list(offsets.found.values.values()),
                is_over=offsets.is_over,
            ),
            held=_Held(encode(held.events), held.found, held.open, held.is_over),
            asked=_Asked(
                text=asked.text.tobytes(),
                first=asked.first.tobytes(),
                last=asked.last.tobytes(),
                again=asked.again.tobytes(),
                is_over=asked.is_over,
            ),
        ),
        window=[_Piece(list(one.spans.values()), encode(one.log), one.last_ns) for one in growing.window],
        rare=encode(growing.rare),
        before=list(growing.before.values()),
        all_spans=list(growing.all_spans.values()),
        pending=encode(growing.pending),
        tally=list(zip(*(tally[name].to_pylist() for name in RESULT_SCHEMA.names), strict=True)),
        survey=growing.survey,
        doubts=growing.doubts,
        unstopped=dict(growing.unstopped),
        logged=list(growing.logged.latest.values.values()),
        disordered=list(growing.disordered.items()),
        reached=list(growing.reached.items()),
        settled_ns=growing.settled_ns,
    )


def _state(kept: _Kept) -> State:
    held = kept.beside.held
    tally = Tally(keeps_latest=True)
    tally.restore(as_table(kept.tally))
    offsets = Offsets(
        recent=_recent(kept.beside.offsets.recent),
        lasting=decode(kept.beside.offsets.lasting),
        found=Latest({finding.id: finding for finding in kept.beside.offsets.found}),
        is_over=kept.beside.offsets.is_over,
    )
    growing = Growing(
        wake_ms=kept.wake_ms,
        late_ms=kept.late_ms,
        beside=Beside(
            recent=_recent(kept.beside.recent),
            found=Latest({finding.id: finding for finding in kept.beside.found}),
            offsets=offsets,
            held=Held(decode(held.events), held.found, held.open, held.is_over),
            asked=_asked(kept.beside.asked),
        ),
        window=deque(Piece(_by_log(one.spans), decode(one.log), one.last_ns) for one in kept.window),
        rare=decode(kept.rare),
        before=_by_log(kept.before),
        all_spans=_by_log(kept.all_spans),
        pending=decode(kept.pending),
        tally=tally,
        survey=kept.survey,
        doubts=kept.doubts,
        unstopped=Counter(kept.unstopped),
        logged=Logged.of(kept.logged),
        disordered=dict(kept.disordered),
        reached=dict(kept.reached),
        settled_ns=kept.settled_ns,
    )
    return State(growing, kept.ends, kept.shown, set(kept.seen), kept.untold)


def _asked(kept: _Asked) -> Asked:
    text, again = (np.frombuffer(column, dtype=np.uint64) for column in (kept.text, kept.again))
    first, last = (np.frombuffer(column, dtype=np.int64) for column in (kept.first, kept.last))
    return Asked(text, first, last, again, kept.is_over)


def _kept_recent(recent: Recent) -> _Recent:
    pieces = [(encode(table), last_ns) for table, last_ns in recent.pieces]
    return _Recent(pieces, recent.gone_ns, recent.count, recent.fresh, recent.judged_ns)


def _recent(kept: _Recent) -> Recent:
    pieces = deque((decode(content), last_ns) for content, last_ns in kept.pieces)
    return Recent(pieces, kept.gone_ns, kept.count, kept.fresh, kept.judged_ns)


def _by_log(spans: list[LogSpan]) -> dict[Log, LogSpan]:
    return {(span.broker, span.topic, span.queue, span.source): span for span in spans}
