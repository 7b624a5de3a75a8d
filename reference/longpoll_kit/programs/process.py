"""The program under test as a process: send a message, and read lines until the program ends its turn.

The program runs without a shell in its own process group, and the kit kills the whole group. One thread does
everything, so limits stop a program that writes endlessly or not at all: a line has at most 64 KiB, a turn has at most
1,000 lines and `answer_s` seconds, and the first message must be handled within `start_s` seconds.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from longpoll_kit.programs.protocol import Answer, ProgramError, Reply, StartError, reply_of, shown

LINE_MAX: Final = 65_536
LINES_MAX: Final = 1_000
CHUNK: Final = 65_536
COMPLAINT_MAX: Final = 1_000
"""How many bytes at the end of the program's standard error are kept."""
ANSWER_S: Final = 5.0
START_S: Final = 30.0
END_S: Final = 1.0
"""How long a program whose output has ended may take to exit."""


class Program:
    """A running program, which ends with the `with` block. Between two calls of `turn`, all output has been read."""

    def __init__(self, words: Sequence[str], *, answer_s: float = ANSWER_S, start_s: float = START_S) -> None:
        """Start the program. Raises StartError."""
        self._name = words[0]
        self._answer_s = answer_s
        self._start_s = start_s
        self._is_new = True
        self._lines: deque[bytes] = deque()
        self._found = b""
        self._complaint = b""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own program
                list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise StartError(
                f"{self._name} cannot be run: {why}; write, for example, ./my-program, or python3 program.py"
            ) from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(self._err, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def turn(self, message: bytes) -> list[Reply]:
        """Send a message, and read lines until the program ends the turn. Raises ProgramError."""
        limit_s = self._start_s if self._is_new else self._answer_s
        until_s = time.monotonic() + limit_s
        self._write(message)
        replies: list[Reply] = []
        while not replies or isinstance(replies[-1], Answer):
            if len(replies) >= LINES_MAX:
                raise ProgramError(f"it wrote {LINES_MAX} answers to one message without ending it")
            replies.append(reply_of(self._line(until_s, limit_s)))
        if self._lines or self._found:
            more = self._lines[0] if self._lines else self._found
            raise ProgramError(f"it wrote {shown(more)} after it had ended the message")
        self._is_new = False
        return replies

    def complaint(self) -> str:
        """Return the last bytes of the program's standard error."""
        return self._complaint.decode("utf-8", "backslashreplace")

    def end(self) -> None:
        """Kill the program and its children, and wait until the program has exited."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._in, self._out, self._err):
            pipe.close()

    def _write(self, message: bytes) -> None:
        """Write a message without blocking: it fits into a pipe, because the program has read the previous line."""
        try:
            os.write(self._in.fileno(), message + b"\n")
        except BrokenPipeError:
            raise ProgramError(self._how_it_ended("does not read its standard input any more")) from None

    def _line(self, until_s: float, limit_s: float) -> bytes:
        while not self._lines:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise ProgramError(self._silent(limit_s))
            ready = self._poll.poll(left_s * 1000)
            for number, _event in ready:
                if number == self._out.fileno():
                    self._read_lines()
                else:
                    self._read_complaint()
        return self._lines.popleft()

    def _read_lines(self) -> None:
        found = os.read(self._out.fileno(), CHUNK)
        if not found:
            rest = f", after {shown(self._found)} without a line end" if self._found else ""
            raise ProgramError(self._how_it_ended("closed its standard output") + rest)
        *lines, self._found = (self._found + found).split(b"\n")
        self._lines.extend(lines)
        if any(len(line) > LINE_MAX for line in (*lines, self._found)):
            longest = max((*lines, self._found), key=len)
            raise ProgramError(f"it wrote a line of more than {LINE_MAX} bytes: {shown(longest[:LINE_MAX])}")

    def _read_complaint(self) -> None:
        found = os.read(self._err.fileno(), CHUNK)
        if not found:
            self._poll.unregister(self._err)
        self._complaint = (self._complaint + found)[-COMPLAINT_MAX:]

    def _silent(self, limit_s: float) -> str:
        said = f"it did not end the message within {limit_s:g} s"
        if self._found:
            return f"{said}; it wrote {shown(self._found)} without a line end"
        return f"{said}; if it wrote an answer, it may not have flushed its output"

    def _how_it_ended(self, otherwise: str) -> str:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return f"it {otherwise}"
        while self._poll_complaint():
            self._read_complaint()
        if code < 0:
            return f"it was ended by signal {-code} during the test"
        return f"it exited with code {code} during the test"

    def _poll_complaint(self) -> bool:
        polled = select.poll()
        polled.register(self._err, select.POLLIN)
        return any(event & select.POLLIN for _number, event in polled.poll(0))
