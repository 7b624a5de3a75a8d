"""Writes log lines to a stream, with limits and without blocking.

Unauthenticated clients can cause lines, for example about connections, so each log statement may write a limited number
of lines per second. Lines that a full pipe does not accept are dropped, and the next line reports their number. Log
files are not rotated, because a service manager stores stderr.
"""

from __future__ import annotations

import io
import logging
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Literal, TextIO

from attrs import define

from longpoll_runtime.logs import LEFT_OUT, JsonFormatter, TextFormatter, event

Format = Literal["text", "json"]
LINES_PER_SECOND_MAX: Final = 20
"""Maximum number of lines per second of one log statement, whose next line reports the number of omitted lines."""
PIECE_SIZE: Final = 4096
"""The number of bytes written at once. A pipe that has any room accepts this many (`PIPE_BUF`)."""


@define
class _Place:
    second: int
    written: int = 0
    left_out: int = 0


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes log records to a stream, with a maximum of lines per second for each log statement.

    Invariant: all attributes change only in `emit` and `flush`, under the lock of the handler. `_places` has at most
    one entry per log statement, however many clients cause lines.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._places: dict[tuple[str, int], _Place] = {}
        self._dropped = 0
        """The number of lines dropped since the stream last accepted a line."""
        self._rest = bytearray()
        """The rest of a line that is not written yet."""
        self._poll = select.poll()
        self._descriptor: int | None = None
        """The descriptor of the stream; None if the stream is not a file, because it never blocks then."""
        try:
            self._descriptor = stream.fileno()
            self._poll.register(self._descriptor, select.POLLOUT)
        except (io.UnsupportedOperation, AttributeError, ValueError):
            pass

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it if the log statement has reached its maximum."""
        second = int(record.created)
        place = self._places.setdefault((record.pathname, record.lineno), _Place(second))
        if place.second != second:
            place.second, place.written = second, 0
        if place.written >= LINES_PER_SECOND_MAX:
            place.left_out += 1
            return
        place.written += 1
        if place.left_out:
            setattr(record, LEFT_OUT, place.left_out)
            place.left_out = 0
        if self._descriptor is None:
            super().emit(record)
        else:
            self._write(record, self._descriptor)

    def flush(self) -> None:
        """Write the rest of an incomplete line, as far as that is possible without blocking."""
        with self.lock or nullcontext():
            if self._descriptor is None:
                super().flush()
            else:
                self._write_rest(self._descriptor)

    def _write(self, record: logging.LogRecord, descriptor: int) -> None:
        """Write a record, or drop it if the stream would block."""
        if not self._write_rest(descriptor):
            self._dropped += 1
            return
        if self._dropped:
            told: dict[str, Any] = {"name": __name__, "levelname": "WARNING", "args": (self._dropped,)}
            told |= {"msg": "%d lines were dropped: the log was not read"} | event("lines_dropped", count=self._dropped)
            note = logging.makeLogRecord(told)
            self._rest += f"{self.format(note)}\n".encode("utf-8", "backslashreplace")
            self._dropped = 0
        self._rest += f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        self._write_rest(descriptor)

    def _write_rest(self, descriptor: int) -> bool:
        """Write the rest of an incomplete line without blocking; returns whether all of it is written."""
        while self._rest:
            if not self._poll.poll(0):
                return False
            try:
                size = os.write(descriptor, self._rest[:PIECE_SIZE])
            except BlockingIOError:
                return False
            except OSError:
                # The reader of the log has closed its end.
                self._rest.clear()
                return False
            del self._rest[:size]
        return True


@contextmanager
def logging_to(stream: TextIO, kind: Format, level: str) -> Iterator[None]:
    """Write log records of `level` and above to a stream, inside the block."""
    handler = LimitedHandler(stream)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.flush()
        root.setLevel(before)
