"""Writes a broker's own history: events in the spec's vocabulary, one a line.

Whoever has an event encodes it; a thread of its own only writes. Encoding is quicker than handing an object over, and
a thread that encodes in long calls would keep the interpreter from those who serve.

Back-pressure: when the disk cannot follow, whoever has an event waits for room, up to `WAIT_S` unless told otherwise;
only after that is the event dropped, and the next one that finds room is preceded by a `lost` event that says how many
were. A clean stop writes everything; after a kill the last line may be torn.

Leaves out the schema (`longpoll_spec.history`) and what happens when. Times are the runtime's monotonic clock;
`meta.json` puts them on Unix time.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

import msgspec
from attrs import frozen

from longpoll_broker.errors import BrokerUserError
from longpoll_broker.runtime import Runtime
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Meta, Source

log = logging.getLogger(__name__)

WAITING_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes waiting for the disk: about 300,000 events."""
WAIT_S: Final = 1.0
"""How long an event waits for room before it counts as lost."""
IDLE_S: Final = 0.05
"""How long the writer sleeps when little is there; a batch is one write."""
BATCH_SIZE: Final = 1024 * 1024
"""Bytes that wake the writer at once."""
PART_SIZE_MAX: Final = 256 * 1024 * 1024
"""A part file over this many bytes is followed by the next."""


class RecordError(BrokerUserError):
    """The directory for the history cannot be used."""


@frozen
class Moment:
    """An interval of the monotonic clock that contains what happened."""

    after_ns: int
    before_ns: int


class HistoryRecorder:
    """One source of a history: one life of one broker.

    Invariants: `_sequence` is the number of events accepted, and the next one's number; `_waiting` are the lines that
    are accepted and not yet with the writer, in order; everything behind `_changed` changes under its lock.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        *,
        broker: str,
        policy: str,
        uncertainty_ns: int = 0,
        hold_limit: int = -1,
        wait_s: float = WAIT_S,
    ) -> None:
        """`uncertainty_ns` is what this observer cannot know of its moments; `wait_s` is how long it may be delayed.

        `hold_limit` is how many pulls the broker promises to hold at most; -1 for no promise.
        """
        self._runtime = runtime
        self._monotonic_ns = runtime.monotonic_ns
        self._directory = directory
        self._broker = broker
        self._wait_s = wait_s
        started_ms = runtime.unix_ms()
        self.source = f"{broker.replace(':', '-')}-{started_ms}"
        self._changed = runtime.condition()
        self._waiting = bytearray()
        self._encode_into = msgspec.json.Encoder().encode_into
        self._sequence = 0
        self._lost = 0
        self._told = False
        """Whether the writer has been woken for what waits."""
        self._stopping = False
        self._failed = False
        self._part = 0
        self._part_size = 0
        now_ns = runtime.monotonic_ns()
        try:
            runtime.files.make_directory(directory)
            source = Source(
                name=self.source,
                clock="monotonic",
                offset_ns=started_ms * 1_000_000 - now_ns,
                uncertainty_ns=uncertainty_ns,
                hold_limit=hold_limit,
            )
            self._add_to_meta(source, policy)
            self._file = runtime.files.open_append(self._part_path())
        except OSError as error:
            raise RecordError(
                f"cannot record into {directory}: {error}; name a directory that can be written"
            ) from None
        self.put("source_started", now_ns)
        self._thread = runtime.spawn("history-writer", self._run)

    def now_ns(self) -> int:
        """The clock of the events."""
        return self._runtime.monotonic_ns()

    def put(self, event: str, after_ns: int, *, before_ns: int = 0, **fields: Any) -> None:
        """Accept an event that happened after `after_ns` and before now (or before `before_ns`, if given)."""
        moment_ns = before_ns or self._monotonic_ns()
        fields["event"] = event
        fields["after_ns"] = after_ns
        fields["before_ns"] = moment_ns
        fields["source"] = self.source
        fields["broker"] = self._broker
        with self._changed:
            if len(self._waiting) >= WAITING_SIZE_MAX and not self._wait_for_room():
                self._lost += 1
                return
            if self._lost:
                self._tell_lost(moment_ns)
            waiting = self._waiting
            self._encode_into(Event(sequence=self._sequence, **fields), waiting, -1)
            waiting += b"\n"
            self._sequence += 1
            if len(waiting) >= BATCH_SIZE and not self._told:
                self._told = True
                self._changed.notify_all()

    def lose(self, count: int) -> None:
        """Say that events could not be recorded: the next event is preceded by a `lost` that counts them."""
        with self._changed:
            self._lost += count

    def stop(self) -> None:
        """Write everything and end; the last event is `source_stopped`."""
        self.put("source_stopped", self._runtime.monotonic_ns())
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._file.sync()
        self._file.close()

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _tell_lost(self, moment_ns: int) -> None:
        """Declare what was dropped before the event that is accepted now."""
        lost = Event(
            event="lost",
            after_ns=moment_ns,
            before_ns=moment_ns,
            source=self.source,
            sequence=self._sequence,
            broker=self._broker,
            lost_count=self._lost,
        )
        self._encode_into(lost, self._waiting, -1)
        self._waiting += b"\n"
        self._sequence += 1
        self._lost = 0

    def _wait_for_room(self) -> bool:
        if self._failed or not self._wait_s:
            return False
        self._changed.notify_all()
        self._changed.wait(self._wait_s)
        return len(self._waiting) < WAITING_SIZE_MAX

    def _run(self) -> None:
        while True:
            with self._changed:
                if len(self._waiting) < BATCH_SIZE and not self._stopping:
                    self._changed.wait(IDLE_S)
                lines, self._waiting = self._waiting, bytearray()
                self._told = False
                stopping = self._stopping
                self._changed.notify_all()
            if lines and not self._failed:
                self._write(lines)
            if stopping:
                return

    def _write(self, lines: bytearray) -> None:
        try:
            if self._part_size >= PART_SIZE_MAX:
                self._file.close()
                self._part += 1
                self._part_size = 0
                self._file = self._runtime.files.open_append(self._part_path())
            self._file.write(lines)
            self._part_size += len(lines)
        except OSError:
            # The broker goes on; the history lacks its end, which the judge takes for what it is.
            self._failed = True
            log.exception("the history cannot be written any more")

    def _part_path(self) -> str:
        return f"{self._directory}/part-{self.source}-{self._part:05d}.ndjson"

    def _add_to_meta(self, source: Source, policy: str) -> None:
        path = f"{self._directory}/{META_FILE}"
        sources: list[Source] = []
        if self._runtime.files.exists(path):
            try:
                sources = msgspec.json.decode(self._runtime.files.read(path), type=Meta).sources
            except msgspec.DecodeError as error:
                raise RecordError(f"{path} is not a history's meta file ({error}); name another directory") from None
        meta = Meta(format_version=FORMAT_VERSION, sources=[*sources, source], policy=policy)
        self._runtime.files.write_atomic(path, msgspec.json.encode(meta))
