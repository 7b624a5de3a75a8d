"""Writes a history: each event is one JSON line, in the vocabulary of the specification.

The thread that has an event encodes it, and a separate thread only writes. Encoding takes less time than passing an
object to another thread, and a thread that encodes many events at once would block the serving threads.

Back-pressure: if the disk is too slow, the recording thread waits for room, by default at most `WAIT_S` seconds, and
then drops the event. The next recorded event is preceded by a `lost` event with the number and times of the dropped
events. Failed writes are retried. Room for a `lost` event and for the end is reserved in memory and on disk, so an
incomplete history is marked; `trouble` has a sentence for the user. A clean stop writes everything; after a kill the
last line may be torn.

`longpoll_spec.history` has the schema. Times are those of the runtime's monotonic clock, and `meta.json` relates them
to Unix time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
from attrs import define, frozen

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from longpoll_runtime import Buffer, Runtime
from longpoll_spec.errors import UserError
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Meta, Source

OFFSET_CODES: Final = (int(RequestCode.QUERY_CONSUMER_OFFSET), int(RequestCode.UPDATE_CONSUMER_OFFSET))

NUMBER_MAX: Final = (1 << 60) - 1
"""Maximum number in a history. A larger offset is replaced by this number, because both are out of any queue's range.
"""

RESETTING_CODES: Final = (207, 215, 222, 314)
"""The codes of requests that change a group's offsets without a commit: they delete the group or topic, reset the
offsets to a time, or copy them from another group."""


def kept(number: int) -> int:
    """Limit an offset or time to the range of a history, so that the line stays readable."""
    return max(-NUMBER_MAX, min(number, NUMBER_MAX))


def resetting_fields(request: Command) -> dict[str, str]:
    """Return the group and the topic of a request in `RESETTING_CODES`. An empty text means any group or topic."""
    fields = request.ext_fields or {}
    groups = (fields.get(name) for name in ("groupName", "destGroup", "group"))
    return {"group": next(filter(None, groups), ""), "topic": fields.get("topic", "")}


def offset_fields(request: Command) -> dict[str, Any]:
    """Returns the `request_received` fields of a query or commit of an offset; raises HeaderError."""
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        update = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        asked = {"topic": update.topic, "queue": update.queue_id, "group": update.consumer_group}
        return asked | {"commit_offset": kept(max(update.commit_offset, -1))}
    query = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
    return {"topic": query.topic, "queue": query.queue_id, "group": query.consumer_group}


def told_offset(code: int, answer: Command) -> dict[str, int]:
    """Return the committed offset in an answer as a field of the event, or {} if it has none; raises HeaderError."""
    if code != RequestCode.QUERY_CONSUMER_OFFSET or answer.code != ResponseCode.SUCCESS:
        return {}
    told = (answer.ext_fields or {}).get("offset", "")
    if not told.lstrip("-").isdecimal() or len(told) > 19:
        raise HeaderError("an answer to a query of an offset", "offset", f"is not a number but {told[:40]!r}")
    return {"offset": kept(max(int(told), -1))}


log = logging.getLogger(__name__)

WAITING_SIZE_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes that wait for the disk, which are about 300,000 events."""
WAIT_S: Final = 1.0
"""The seconds that an event waits for room before it counts as lost."""
IDLE_S: Final = 0.05
"""The seconds that the writer sleeps if it has little to write, so that it writes many events at once."""
RETRY_S: Final = 0.5
"""The seconds that the writer waits after a failed write before it tries again."""
BATCH_SIZE: Final = 1024 * 1024
"""The number of waiting bytes that wakes the writer at once, and about the greatest size of one write."""
PART_SIZE_MAX: Final = 256 * 1024 * 1024
"""The bytes of a part file after which the next part file begins."""
KEPT_SIZE: Final = 64 * 1024
"""The bytes reserved on disk for the end of the history, so that it can be written on a full disk."""
TORN_SIZE_MAX: Final = KEPT_SIZE // 2
"""Maximum bytes of the rest of a partly written line that is still written at the end."""


class RecordError(UserError):
    """The directory for the history cannot be used."""


@frozen
class Moment:
    """An interval of the monotonic clock that contains an event."""

    after_ns: int
    before_ns: int


@define
class Loss:
    """Events that were not recorded: their number, and the interval that contains them."""

    count: int = 0
    after_ns: int = 0
    before_ns: int = 0

    def add(self, count: int, after_ns: int, before_ns: int) -> None:
        """Count `count` more lost events between these times."""
        self.after_ns = min(self.after_ns, after_ns) if self.count else after_ns
        self.before_ns = max(self.before_ns, before_ns)
        self.count += count


class Parts:
    """The part files of one source.

    Invariant: `_size` is the length of the current file; `KEPT_SIZE` bytes after it have disk blocks.
    """

    def __init__(self, runtime: Runtime, directory: str, source: str) -> None:
        """Open the first part; raises OSError."""
        self._files = runtime.files
        self._path_start = f"{directory}/part-{source}-"
        self._number = 0
        self._size = 0
        self._file = self._files.open_append(self._path())
        self._file.reserve(KEPT_SIZE)

    def append(self, lines: Buffer) -> int:
        """Append bytes and reserve room after them; returns their number. Raises OSError; then call `written`."""
        self._go_on()
        self._file.reserve(len(lines) + KEPT_SIZE)
        self._file.write(lines)
        self._size += len(lines)
        return len(lines)

    def append_end(self, lines: Buffer) -> None:
        """Append the last bytes in the reserved room; raises OSError."""
        self._file.write(lines)

    def written(self) -> int:
        """Return how many bytes a failed write has added to the file."""
        try:
            size = self._files.size(self._path())
        except OSError:
            return 0
        more, self._size = size - self._size, size
        return more

    def close(self) -> None:
        """Make everything durable, and close the file; raises OSError."""
        try:
            self._file.sync()
        finally:
            self._file.close()

    def _go_on(self) -> None:
        """Begin the next part if the current part is long; if creating it fails, the current part grows."""
        if self._size < PART_SIZE_MAX:
            return
        number, self._number = self._number, self._number + 1
        try:
            following = self._files.open_append(self._path())
            following.reserve(KEPT_SIZE)
        except OSError:
            self._number = number
            return
        self._file.close()
        self._file, self._size = following, 0

    def _path(self) -> str:
        return f"{self._path_start}{self._number:05d}.ndjson"


class HistoryRecorder:
    """One source of a history: one run of one broker.

    Invariants: `_sequence` is the number of accepted events, and the number of the next event. `_waiting` has the
    accepted lines that the writer has not taken, in order. The lock of `_changed` protects all fields after it.
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
        clock: Callable[[], int] | None = None,
    ) -> None:
        """Start recording. `uncertainty_ns` is the error of an observer's times; `put` blocks at most `wait_s`.

        `hold_limit` is the broker's promised maximum of held pulls, or -1 without a promise. `clock` replaces this
        process's monotonic clock by a clock of Unix time in ns, which may be set back or forward.
        """
        self._runtime = runtime
        self._monotonic_ns = clock or runtime.monotonic_ns
        self._directory = directory
        self._broker = broker
        self._wait_s = wait_s
        now_ns = self._monotonic_ns()
        started_ms = runtime.unix_ms() if clock is None else now_ns // 1_000_000
        self._unix_offset_ns = started_ms * 1_000_000 - now_ns if clock is None else 0
        self.source = f"{broker.replace(':', '-')}-{started_ms}"
        self._changed = runtime.condition()
        self._waiting = bytearray()
        self._encode_into = msgspec.json.Encoder().encode_into
        self._sequence = 0
        self._loss = Loss()
        """The losses that a `lost` event must declare before the next event."""
        self._dropped = 0
        """The number of events that the disk did not accept in time."""
        self._told = False
        """Whether the writer has been woken for the lines that wait."""
        self._stopping = False
        self._stopped_ns = 0
        self._refused: OSError | None = None
        """The error of the last write; None if it succeeded."""
        self._end_error: OSError | None = None
        """The error because of which the history has no `source_stopped`."""
        try:
            runtime.files.make_directory(directory)
            source = Source(
                name=self.source,
                clock="monotonic" if clock is None else "unix",
                offset_ns=self._unix_offset_ns,
                uncertainty_ns=uncertainty_ns,
                hold_limit=hold_limit,
            )
            self._add_to_meta(source, policy)
            self._parts = Parts(runtime, directory, self.source)
        except OSError as error:
            raise RecordError(f"cannot record into {directory}: {error}; choose a writable directory") from None
        self.put("source_started", now_ns, before_ns=0 if clock is None else now_ns)
        self._thread = runtime.spawn("history-writer", self._run)

    @property
    def trouble(self) -> str:
        """A sentence for the user about missing events, valid after `stop`; empty if the history is complete."""
        if self._end_error is not None:
            return (
                f"the history in {self._directory} has no end, and may lack more: {self._end_error}; "
                "record again where there is room"
            )
        if self._dropped:
            return (
                f"the history in {self._directory} is not whole: the disk did not take {self._dropped} events in time, "
                "and `lost` events say when; record again on a quicker disk with more room"
            )
        return ""

    def now_ns(self) -> int:
        """Returns the current time of the clock that events use, in nanoseconds."""
        return self._runtime.monotonic_ns()

    def unix_ms(self, moment_ns: int) -> int:
        """Converts a time of the events' clock to Unix time, in milliseconds."""
        return (moment_ns + self._unix_offset_ns) // 1_000_000

    def put(self, event: str, after_ns: int, *, before_ns: int = 0, **fields: Any) -> None:
        """Accept an event that happened after `after_ns` and before now (or before `before_ns`, if given).

        After `stop`, this method does nothing.
        """
        moment_ns = before_ns or self._monotonic_ns()
        fields["event"] = event
        fields["after_ns"] = after_ns
        fields["before_ns"] = moment_ns
        fields["source"] = self.source
        fields["broker"] = self._broker
        with self._changed:
            if self._stopping:
                return
            if len(self._waiting) >= WAITING_SIZE_MAX and not self._wait_for_room():
                self._loss.add(1, after_ns, moment_ns)
                self._dropped += 1
                return
            waiting = self._waiting
            if self._loss.count:
                self._encode_loss(waiting)
            self._encode_into(Event(sequence=self._sequence, **fields), waiting, -1)
            waiting += b"\n"
            self._sequence += 1
            if len(waiting) >= BATCH_SIZE and not self._told:
                self._told = True
                self._changed.notify_all()

    def lose(self, count: int, after_ns: int, before_ns: int) -> None:
        """Record that events between these times were not seen: a `lost` event will precede the next event."""
        with self._changed:
            self._loss.add(count, after_ns, before_ns)

    def measured(self, uncertainty_ns: int, clock_name: str = "") -> None:
        """Write the measured uncertainty to the meta file, and the clock's name if it is given."""
        path = f"{self._directory}/{META_FILE}"
        files = self._runtime.files
        try:
            meta = msgspec.json.decode(files.read(path), type=Meta)
            sources = [
                msgspec.structs.replace(source, uncertainty_ns=uncertainty_ns, clock=clock_name or source.clock)
                if source.name == self.source
                else source
                for source in meta.sources
            ]
            files.write_atomic(path, msgspec.json.encode(msgspec.structs.replace(meta, sources=sources)))
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s still says what was claimed before it was measured: %s", path, error)

    def stop(self) -> str:
        """Write everything and end the history with the event `source_stopped`. Returns `trouble`."""
        with self._changed:
            self._stopped_ns = self._monotonic_ns()
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        try:
            self._parts.close()
        except OSError as error:
            self._end_error = self._end_error or error
        return self.trouble

    # -- encoding and writing events ---------------------------------------------------------------------------------

    def _encode_loss(self, into: bytearray) -> None:
        """Encode a `lost` event about the events that were lost since the last one."""
        loss, self._loss = self._loss, Loss()
        self._encode(into, "lost", loss.after_ns, loss.before_ns, lost_count=loss.count)

    def _encode(self, into: bytearray, event: str, after_ns: int, before_ns: int, **fields: Any) -> None:
        made = Event(
            event=event,
            after_ns=after_ns,
            before_ns=before_ns,
            source=self.source,
            sequence=self._sequence,
            broker=self._broker,
            **fields,
        )
        self._encode_into(made, into, -1)
        into += b"\n"
        self._sequence += 1

    def _wait_for_room(self) -> bool:
        if self._refused is not None or not self._wait_s:
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
            written = self._write(lines)
            if stopping or written < len(lines):
                with self._changed:
                    # If the lines before `_waiting` have no room, these lines have none either.
                    lines += self._waiting
                    self._waiting = bytearray()
                self._write_end(lines, written)
                return

    def _write(self, lines: bytearray) -> int:
        """Write lines, retrying on errors. Returns the number of bytes written if writing still fails at the stop."""
        at = 0
        while at < len(lines):
            found = lines.find(b"\n", min(at + BATCH_SIZE, len(lines) - 1))
            stop = found + 1
            was_stopping = self._stopping
            try:
                at += self._parts.append(lines[at:stop])
                self._take()
            except OSError as error:
                at += self._parts.written()
                self._refuse(error)
                if was_stopping:
                    break
                with self._changed:
                    if not self._stopping:
                        self._changed.wait(RETRY_S)
        return at

    def _refuse(self, error: OSError) -> None:
        if self._refused is None:
            log.error("the history in %s cannot be written: %s; trying again", self._directory, error)
        self._refused = error

    def _take(self) -> None:
        if self._refused is not None:
            self._refused = None
            log.warning("the history in %s can be written again", self._directory)

    def _write_end(self, lines: bytearray, at: int) -> None:
        """Write the last events, with the number of accepted lines that had no room."""
        end = bytearray()
        if 0 < at < len(lines) and lines[at - 1] != ord("\n"):
            stop = lines.index(b"\n", at) + 1
            if stop - at <= TORN_SIZE_MAX:
                end += lines[at:stop]
                at = stop
            else:
                end += b"\n"
                at = lines.rfind(b"\n", 0, at) + 1
        with self._changed:
            unwritten = msgspec.json.Decoder(Event).decode_lines(lines[at:])
            if unwritten:
                self._sequence = unwritten[0].sequence
            for event in unwritten:
                self._loss.add(event.lost_count or 1, event.after_ns, event.before_ns)
            self._dropped += sum(event.event != "lost" for event in unwritten)
            if self._loss.count:
                self._encode_loss(end)
            self._encode(end, "source_stopped", self._stopped_ns, self._stopped_ns)
        try:
            self._parts.append_end(end)
        except OSError as error:
            self._end_error = error

    def _add_to_meta(self, source: Source, policy: str) -> None:
        path = f"{self._directory}/{META_FILE}"
        sources: list[Source] = []
        if self._runtime.files.exists(path):
            try:
                sources = msgspec.json.decode(self._runtime.files.read(path), type=Meta).sources
            except msgspec.DecodeError as error:
                raise RecordError(
                    f"{path} is not the meta file of a history ({error}); choose another directory"
                ) from None
        meta = Meta(format_version=FORMAT_VERSION, sources=[*sources, source], policy=policy)
        self._runtime.files.write_atomic(path, msgspec.json.encode(meta))
