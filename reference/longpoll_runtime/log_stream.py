"""Writes log lines to a stream: never without end, and never so that somebody waits.

Strangers cause lines (connections, refusals), so each place in the code may write a limited number a second. Lines that
a full pipe does not take are dropped, and before the next one stands how many. Leaves out files and their rotation: a
service manager keeps stderr.
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
"""Lines of one place in the code within a second; the next one after it says how many were left out."""
PIECE_SIZE: Final = 4096
"""Bytes written at once: a pipe that takes anything takes as many (`PIPE_BUF`)."""


@define
class _Place:
    """One place in the code that logs."""

    second: int
    written: int = 0
    left_out: int = 0


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream, and from one place in the code no more than a given number of lines within a second.

    Invariant: all below changes only in `emit` and `flush`, which hold the handler's lock. There are as many `_places`
    as statements that log, however many strangers cause them.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._places: dict[tuple[str, int], _Place] = {}
        self._dropped = 0
        """Lines that the stream did not take since the last that it took."""
        self._rest = bytearray()
        """What is still to be written of a line that was begun."""
        self._poll = select.poll()
        self._descriptor: int | None = None
        """None where nobody ever waits: the stream is no file."""
        try:
            self._descriptor = stream.fileno()
            self._poll.register(self._descriptor, select.POLLOUT)
        except (io.UnsupportedOperation, AttributeError, ValueError):
            pass

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
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
        """Write what is still to be written, as far as that keeps nobody waiting."""
        with self.lock or nullcontext():
            if self._descriptor is None:
                super().flush()
            else:
                self._write_rest(self._descriptor)

    def _write(self, record: logging.LogRecord, descriptor: int) -> None:
        """Write a record, or drop it where the stream does not take it at once."""
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
        """Write what was begun as far as nobody waits for that; whether all of it is written."""
        while self._rest:
            if not self._poll.poll(0):
                return False
            try:
                size = os.write(descriptor, self._rest[:PIECE_SIZE])
            except BlockingIOError:
                return False
            except OSError:
                # Whoever read the log is gone.
                self._rest.clear()
                return False
            del self._rest[:size]
        return True


@contextmanager
def logging_to(stream: TextIO, kind: Format, level: str) -> Iterator[None]:
    """Have everything from `level` on written to a stream within the block."""
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
