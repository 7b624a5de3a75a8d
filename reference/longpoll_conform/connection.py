"""One connection to the broker under test, which records every byte in both directions; and a latency probe (`Echo`).

A separate thread reads, so the recorded time of an answer is its arrival time. `play` sends the requests. A slow answer
is the broker's fault only if the broker answered the small requests of the probe faster while it prepared that answer.
"""

from __future__ import annotations

import math
import socket
import statistics
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any, Final, Literal

from attrs import define, frozen

from longpoll_conform.wire import FRAME_SIZE_MAX, NotReadableError, decode_command, encode_command
from longpoll_runtime.threads import spawn

Address = tuple[str, int]
NO_ANSWER: Final = "no answer"
CONNECT_S: Final = 5.0
SEND_S: Final = 10.0
JOIN_S: Final = 2.0
AFTER_S: Final = 0.25
"""How many seconds to read after the last step of a conversation if the broker leaves the connection open."""
UNASKED_S: Final = 1.0
"""How many seconds to wait for another answer after an answer that matches no request."""
FRAMES_MAX: Final = 400
"""The maximum number of recorded frames of one connection; a vector has tens. Later frames are dropped."""
PERIOD_S: Final = 0.05
ANSWER_S: Final = 10.0
"""How many seconds an answer may take. A broker that is silent for longer is not slow but broken, which other clauses
report."""
REQUEST: Final = {"code": 30, "extFields": {"topic": "echo", "queueId": "0"}, "body": b""}
"""The smallest request, which asks for the end of a queue. Any answer counts, even an error for a missing topic."""
SLOW_MS: Final = 250.0
"""If an echo takes longer than this, in ms, it explains why an answer or a step was late."""
COARSE_MS: Final = 1_000.0
"""If an echo takes longer than this, in ms, an answer at the time of the echo cannot show that the broker is prompt."""
TOO_SLOW: Final = "the machine was too slow to tell"
REMEDY: Final = "run it again on an idle machine next to the broker, or this clause alone with --only"


class SilentError(Exception):
    """The broker cannot be reached, or no longer accepts data. The message names the failed attempt."""


@frozen
class RecordedFrame:
    """One frame, or bytes that are not a frame, on a connection."""

    at_ms: float
    """Milliseconds since the start of the conversation."""
    line: str
    """The name of the connection."""
    way: Literal["sent", "came", "closed"]
    content: bytes
    """The whole frame with its length, or the bytes that are not a frame."""


@define(eq=False)
class Answer:
    """The answer to a request."""

    command: Mapping[str, Any] | None
    """The decoded command; None if no answer arrived or the connection was closed."""
    at_s: float
    """When the frame arrived, in seconds of the monotonic clock; if no frame arrived, the end of the wait."""


def _opaque_of(one: RecordedFrame) -> int | None:
    try:
        return int(decode_command(one.content[4:])["opaque"])
    except NotReadableError:
        return None


class Conversation:
    """The recorded traffic of a vector's connections, in order. Thread-safe."""

    def __init__(self, frames_max: int = FRAMES_MAX) -> None:
        self._begun_s = time.monotonic()
        self._frames_max = frames_max
        self._lock = threading.Lock()
        self.spoken: list[RecordedFrame] = []

    def note(self, line: str, way: Literal["sent", "came", "closed"], content: bytes) -> None:
        """Record a frame."""
        with self._lock:
            if len(self.spoken) < self._frames_max:
                at_ms = (time.monotonic() - self._begun_s) * 1000
                self.spoken.append(RecordedFrame(round(at_ms, 1), line, way, bytes(content)))


class Connection:
    """A connection. Invariant: `_answers` and `pushes` contain the received commands that no caller has taken yet."""

    def __init__(self, name: str, address: Address, conversation: Conversation) -> None:
        """Connect. Raises SilentError if the broker cannot be reached."""
        self.name = name
        self.pushes: list[Mapping[str, Any]] = []
        self.is_closed = False
        """Whether the broker closed it, or sent something unreadable."""
        self.answered_twice: list[int] = []
        """Requests that were answered again, by their opaque."""
        self.unasked: list[int] = []
        """Opaques of unexpected answers."""
        self._answered: set[int] = set()
        self._asked: set[int] = set()
        self._may_be_any = False
        """Whether an answer may have any opaque, because raw bytes were sent."""
        self._is_hung_up = self._is_cut = False
        self._conversation = conversation
        self._came = threading.Condition()
        self._writing = threading.Lock()
        self._answers: dict[int, Answer] = {}
        self._opaque = 0
        self._unasked_s = 0.0
        try:
            self._socket = socket.create_connection(address, CONNECT_S)
        except OSError as error:
            raise SilentError(f"cannot connect to {address[0]}:{address[1]}: {error.strerror or error}") from error
        self._socket.settimeout(SEND_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = spawn(f"conform-{name}", self._read)

    def ask(self, request: Mapping[str, Any], serialize: str = "JSON") -> int:
        """Send a request; return its opaque (request id). Raises SilentError if the broker accepts no data."""
        with self._writing:
            self._opaque += 1
            opaque = self._opaque
            self._asked.add(opaque)
            self._send(encode_command({**request, "opaque": opaque}, serialize))
        return opaque

    def send_bytes(self, content: bytes, opaque: int) -> None:
        """Send raw bytes, and expect an answer with this opaque (request id). Raises SilentError."""
        with self._writing:
            self._asked.add(opaque)
            self._may_be_any = True
            self._send(content)

    def _send(self, content: bytes) -> None:
        self._conversation.note(self.name, "sent", content)
        try:
            self._socket.sendall(content)
        except OSError as error:
            raise SilentError(f"the broker no longer accepts requests: {error.strerror or error}") from error

    def wait(self, opaque: int, timeout_s: float) -> Answer:
        """Wait for the answer to a request.

        After an answer that matches no request, wait only `UNASKED_S` longer, because that answer may be this
        request's, with a wrong id.
        """
        end_s = time.monotonic() + timeout_s
        with self._came:
            while opaque not in self._answers:
                if self.unasked:
                    end_s = min(end_s, self._unasked_s + UNASKED_S)
                left_s = end_s - time.monotonic()
                if left_s <= 0 or self.is_closed:
                    return Answer(None, time.monotonic())
                self._came.wait(left_s)
            return self._answers.pop(opaque)

    @property
    def missing(self) -> str:
        """Return the reason why no answer arrived, as text."""
        if self.unasked:
            return f"{NO_ANSWER}, but one with opaque {self.unasked[0]}, which no request has,"
        return f"{NO_ANSWER} and a closed connection" if self._is_cut else NO_ANSWER

    def frames_of(self, opaque: int) -> tuple[RecordedFrame, ...]:
        """Return the recorded frames of a request and of its answers, and the frames that match no request."""
        return tuple(one for one in self._conversation.spoken if _opaque_of(one) in {opaque, None, *self.unasked})

    def hear_out(self) -> None:
        """Stop sending, and read until the broker closes the connection, for at most `AFTER_S`."""
        self._is_hung_up = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._reader.join(AFTER_S)

    def close(self) -> None:
        """Close the connection, and wait until its reading thread ends."""
        self._is_hung_up = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._reader.join(JOIN_S)

    def _read(self) -> None:
        try:
            while True:
                frame = self._frame()
                self._take(decode_command(frame), time.monotonic())
        except (EOFError, OSError, NotReadableError):
            pass
        with self._came:
            self.is_closed = True
            self._came.notify_all()

    def _frame(self) -> bytes:
        head = self._exactly(4, b"")
        (size,) = struct.unpack(">i", head)
        if not 4 <= size <= FRAME_SIZE_MAX:
            self._conversation.note(self.name, "came", head)
            raise NotReadableError(f"frame size {size}; allowed 4 to {FRAME_SIZE_MAX}")
        frame = self._exactly(size, head)
        self._conversation.note(self.name, "came", head + frame)
        return frame

    def _exactly(self, size: int, before: bytes) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = self._socket.recv(min(size - len(found), 1 << 18))
            except TimeoutError:
                continue
            except OSError:
                part = b""
            if not part:
                if not self._is_hung_up:
                    self._is_cut = True
                    self._conversation.note(self.name, "closed", before + found)
                raise EOFError
            found += part
        return bytes(found)

    def _take(self, command: Mapping[str, Any], at_s: float) -> None:
        with self._came:
            if command["flag"] & 1:
                if command["opaque"] not in self._asked and not self._may_be_any:
                    self.unasked.append(command["opaque"])
                    self._unasked_s = at_s
                elif command["opaque"] in self._answered:
                    self.answered_twice.append(command["opaque"])
                self._answered.add(command["opaque"])
                self._answers[command["opaque"]] = Answer(command, at_s)
            else:
                self.pushes.append(command)
            self._came.notify_all()


class Echo:
    """Measures the broker's latency with small requests until `close`.

    Invariant: `_took` contains the arrival time and the latency of each answer. A latency counts from the time at which
    its request was due to be sent.
    """

    def __init__(self, broker: Address) -> None:
        """Start to send requests."""
        self._broker = broker
        self._took: list[tuple[float, float]] = []
        self._due_s = math.inf
        """The time of the next request, which a busy machine may send later."""
        self._ended = threading.Event()
        self._thread = spawn("conform-echo", self._run)

    def worst_ms(self, since_s: float = 0.0, until_s: float = math.inf) -> float:
        """Returns the longest latency in an interval of the monotonic clock, in ms; an open request counts too."""
        open_s = time.monotonic() - self._due_s if self._due_s <= until_s else 0.0
        took = tuple(self._took)
        return 1000 * max(0.0, open_s, *(each for at_s, each in took if at_s >= since_s and at_s - each <= until_s))

    def usual_ms(self) -> float:
        """The median latency in milliseconds."""
        return 1000 * statistics.median([0.0, *(took_s for _at_s, took_s in tuple(self._took))])

    def close(self) -> None:
        """Stop the measurement, and wait until its thread ends."""
        self._ended.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        # Connect again after a connection has ended, because the suite may restart the broker.
        while not self._ended.wait(PERIOD_S):
            with (
                suppress(SilentError),
                closing(Connection("echo", self._broker, Conversation())) as line,
            ):
                self._due_s = time.monotonic()
                while not self._ended.wait(self._due_s - time.monotonic()):
                    answer = line.wait(line.ask(REQUEST), ANSWER_S)
                    if answer.command is None:
                        break
                    self._took.append((answer.at_s, answer.at_s - self._due_s))
                    self._due_s = time.monotonic() + PERIOD_S
            self._due_s = math.inf


def too_slow(worst_ms: float) -> str:
    """A message that the host was too slow to test a clause, with advice."""
    return f"{TOO_SLOW}: the smallest request took {worst_ms:,.0f} ms; {REMEDY}"
