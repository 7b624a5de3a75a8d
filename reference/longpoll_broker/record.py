"""Writes a broker's own history: events in the spec's vocabulary, one a line, by a thread of its own.

Back-pressure: when the disk cannot follow, whoever has an event waits for room, up to `WAIT_S` unless told otherwise;
only after that is the event dropped, and the next one that finds room is preceded by a `lost` event that says how many
were. A clean stop writes everything; after a kill the last line may be torn.

Leaves out the schema (`longpoll_spec.history`) and what happens when. Times are the runtime's monotonic clock;
`meta.json` puts them on Unix time.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import Any, Final

import msgspec
from attrs import frozen

from longpoll_broker.errors import BrokerUserError
from longpoll_broker.runtime import Runtime
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Meta, Source

log = logging.getLogger(__name__)

CAPACITY: Final = 262_144
"""Events waiting for the disk, about 150 MB at most."""
WAIT_S: Final = 1.0
"""How long an event waits for room before it counts as lost."""
IDLE_S: Final = 0.05
"""How long the writer sleeps when little is there; a batch is one write."""
BATCH: Final = 8192
"""Events that wake the writer at once."""
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

    Invariants: `_sequence` is the number of events accepted, and the next one's number; `_events` are accepted and not
    yet written, in order; everything behind `_changed` changes under its lock.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        *,
        broker: str,
        policy: str,
        uncertainty_ns: int = 0,
        wait_s: float = WAIT_S,
    ) -> None:
        """`uncertainty_ns` is what this observer cannot know of its moments; `wait_s` is how long it may be delayed."""
        self._runtime = runtime
        self._directory = directory
        self._broker = broker
        self._wait_s = wait_s
        started_ms = runtime.unix_ms()
        self.source = f"{broker.replace(':', '-')}-{started_ms}"
        self._changed = runtime.condition()
        self._events: deque[Event] = deque()
        self._sequence = 0
        self._lost = 0
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

    def put(self, event: str, after_ns: int, **fields: Any) -> None:
        """Accept an event that happened after `after_ns` and before now (or before `before_ns`, if given)."""
        before_ns = fields.pop("before_ns", None) or self._runtime.monotonic_ns()
        with self._changed:
            if len(self._events) >= CAPACITY and not self._wait_for_room():
                self._lost += 1
                return
            if self._lost:
                self._append("lost", before_ns, before_ns, {"lost_count": self._lost})
                self._lost = 0
            self._append(event, after_ns, before_ns, fields)
            if len(self._events) == BATCH:
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

    def _append(self, event: str, after_ns: int, before_ns: int, fields: dict[str, Any]) -> None:
        self._events.append(
            Event(
                event=event,
                after_ns=after_ns,
                before_ns=before_ns,
                source=self.source,
                sequence=self._sequence,
                broker=self._broker,
                **fields,
            )
        )
        self._sequence += 1

    def _wait_for_room(self) -> bool:
        if self._failed or not self._wait_s:
            return False
        self._changed.notify_all()
        self._changed.wait(self._wait_s)
        return len(self._events) < CAPACITY

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        while True:
            with self._changed:
                if len(self._events) < BATCH and not self._stopping:
                    self._changed.wait(IDLE_S)
                batch = list(self._events)
                self._events.clear()
                stopping = self._stopping
                self._changed.notify_all()
            if batch and not self._failed:
                self._write(encoder.encode_lines(batch))
            if stopping:
                return

    def _write(self, lines: bytes) -> None:
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
