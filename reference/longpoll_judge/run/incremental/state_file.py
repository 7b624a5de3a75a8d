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
from collections import Counter, deque
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.batch import QueueName, decode, encode
from longpoll_judge.contract.result import Finding
from longpoll_judge.errors import CheckpointError
from longpoll_judge.evidence.survey import Survey
from longpoll_judge.read import files
from longpoll_judge.read.growing_history import checksum_before
from longpoll_judge.run.incremental.committed_offsets import Offsets
from longpoll_judge.run.incremental.held_pulls import Held
from longpoll_judge.run.incremental.latest_values import Latest
from longpoll_judge.run.incremental.log_findings import Logged
from longpoll_judge.run.incremental.log_spans import Log
from longpoll_judge.run.incremental.queue_judge import Growing, Piece
from longpoll_judge.run.incremental.recent_events import Recent
from longpoll_judge.run.incremental.recent_sends import Beside
from longpoll_judge.run.incremental.request_ids import Asked
from longpoll_judge.run.overview import LogSpan
from longpoll_judge.run.queue_verdict import RESULT_SCHEMA, Row, as_table
from longpoll_judge.run.tally import Tally
from longpoll_spec.tables import with_table

STATE_FILE: Final = "judging.state"
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


def write_state(file: Path, state: State) -> None:
    """Put the state on disk; raises OSError."""
    content = msgspec.msgpack.encode(_kept(state))
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
        kept = msgspec.msgpack.decode(content, type=_Kept)
        found = _state(kept)
    except (msgspec.DecodeError, pa.ArrowInvalid, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; {_REMEDY}") from None
    if (kept.wake_ms, kept.late_ms) != (growing.wake_ms, growing.late_ms):
        raise CheckpointError(f"{file} has other thresholds; {_REMEDY}")
    for part, (end, known) in kept.ends.items():
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
