"""Turns every end of a command into one of four exit codes and at most one sentence.

Only a command itself may choose exit code 1. A 1 from elsewhere (click's for an abort, rich's for a closed pipe,
Python's for an exception) is an internal error and becomes 3. This module is imported first, so that Ctrl-C works from
the start; therefore it imports only small modules of the standard library.

`output.user_mistakes` handles the user mistakes that commands report.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, TypeVar

from longpoll import extras

Result = TypeVar("Result")
OK: Final = 0
VIOLATED: Final = 1
USER: Final = 2
UNKNOWN: Final = 3
DEBUG: Final = "LONGPOLL_DEBUG"
"""If this environment variable is set, an internal error prints its traceback."""
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
STOPPED: Final = "stopped by Ctrl-C before the end, so the result is unknown"
NO_MEMORY: Final = "out of memory before the end, so the result is unknown"
AGAIN_S: Final = 0.005
"""Seconds after which a swallowed Ctrl-C is raised again."""
SENTENCE_MAX: Final = 1_000
"""Texts of exceptions are cut to this many characters."""


class ReaderGoneError(Exception):
    """The reader of our output has closed the pipe."""


@contextmanager
def readers() -> Iterator[None]:
    """Raise `ReaderGoneError` if the block writes to a closed pipe, because click would exit with its own code."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error


class _Interrupts:
    """The state of Ctrl-C. Invariant: `held_back` is true only during imports that must not be interrupted."""

    def __init__(self) -> None:
        self.came = False
        self.held_back = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        if not self.held_back:
            raise KeyboardInterrupt


_interrupts: Final = _Interrupts()


@contextmanager
def whole_imports() -> Iterator[None]:
    """Delay Ctrl-C until the block's imports are done, because some libraries swallow it and stay half imported."""
    _interrupts.held_back = True
    try:
        yield
    finally:
        _interrupts.held_back = False
    if _interrupts.came:
        raise KeyboardInterrupt


@contextmanager
def until_signalled(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM call `stop` instead of ending the process."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def interrupted_by_sigterm() -> AbstractContextManager[None]:
    """Within the block, SIGTERM raises KeyboardInterrupt like Ctrl-C, so that every `with` cleans up."""
    return until_signalled(_interrupt)


def _interrupt() -> None:
    raise KeyboardInterrupt


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command as this whole process, and exit with its code."""
    _open_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupts.handle)
        sys.unraisablehook = _unraisable
    try:
        code = _code_of(command)
    except KeyboardInterrupt:
        code = UNKNOWN
    # From here on, Ctrl-C ends the process silently.
    with suppress(ValueError, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _code_of(command: Callable[[], object]) -> int:
    try:
        ended(command, sys.argv[1:])
    except SystemExit as leaving:
        code = OK if leaving.code is None else leaving.code
    else:
        code = OK
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        code = _told(error, ())
        _forget_output()
    return code if isinstance(code, int) else UNKNOWN


class Raised:
    """A block that catches every exception and keeps it in `error`."""

    error: BaseException

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        self.error = error
        return True


def attempted(work: Callable[[], Result]) -> Result | Raised:
    """Do some work and return its result, or what it raised, including KeyboardInterrupt and SystemExit."""
    raised = Raised()
    with raised:
        return work()
    return raised


def ended(command: Callable[[], object], words: Sequence[str]) -> object:
    """Run a command that was called with `words`; return its result, or raise SystemExit with one of our codes."""
    result = attempted(command)
    if not isinstance(result, Raised):
        return result
    if isinstance(result.error, SystemExit) and _is_ours(result.error.code):
        raise result.error
    raise SystemExit(_told(result.error, words)) from None


def _is_ours(code: object) -> bool:
    """Whether the command itself chose this code. Code 1 counts only as the enum member `VIOLATED`."""
    return code is None or (isinstance(code, int) and (type(code) is not int or code in {OK, USER, UNKNOWN}))


def _told(error: BaseException, words: Sequence[str]) -> int:
    """Report on stderr how the command ended, if needed; return its code."""
    click = sys.modules.get("click")
    if _interrupts.came or isinstance(error, KeyboardInterrupt | EOFError) or _is(error, click, "Abort"):
        return _say(STOPPED, UNKNOWN)
    if _is(error, click, "ClickException"):
        with suppress(OSError, ValueError):
            error.show()  # type: ignore[attr-defined] # click's own, with the usage above it
        return USER
    if isinstance(error, MemoryError):
        return _say(NO_MEMORY, UNKNOWN)
    if isinstance(error, ReaderGoneError | BrokenPipeError) and _reader_is_gone():
        _forget_output()
        return UNKNOWN  # Print nothing, because the reader has closed the pipe.
    told = _told_of_system(error, words) if isinstance(error, OSError) else _told_of_extra(error, words)
    return _fault(error) if told is None else told


def _reader_is_gone() -> bool:
    """Whether the broken pipe is our own output, not a connection of the command."""
    polled = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            polled.register(stream.fileno(), 0)
    return any(happened & select.POLLERR for _number, happened in polled.poll(0))


def _is(error: BaseException, module: Any, name: str) -> bool:
    return module is not None and isinstance(error, getattr(module, name))


def _told_of_system(error: OSError, words: Sequence[str]) -> int | None:
    """Report a full disk, or a file from the command line that cannot be used; return None for another error."""
    file = "" if error.filename is None else os.fsdecode(error.filename)
    reason = error.strerror or type(error).__name__
    if error.errno in NO_ROOM:
        where = f"to {printable(file)}" if file else "the output"
        return _say(f"cannot write {where}: {reason}; free some disk space and try again", UNKNOWN)
    if file and is_named(file, words):
        return _say(f"cannot use {printable(file)}: {reason}; fix it or name another file", USER)
    return None


def _told_of_extra(error: BaseException, words: Sequence[str]) -> int | None:
    """Report a missing extra; return None for another error."""
    needed = extras.missing(error, words[0] if words else "")
    return None if needed is None else _say(needed, USER)


def is_named(file: str, words: Sequence[str]) -> bool:
    """Whether the command line named a file or a directory above it."""
    wanted = _whole(file)
    for word in words:
        name = word.partition("=")[2] if word.startswith("--") else word
        with suppress(ValueError, OSError):
            given = _whole(name)
            if name and (wanted == given or wanted.startswith(given + os.sep)):
                return True
    return False


def _whole(file: str) -> str:
    """Return the absolute path without resolving links, because a broken link may be the cause of the error."""
    from pathlib import Path  # noqa: PLC0415 - not needed by a command that ends well

    return os.path.normpath(Path.cwd() / file)


def _fault(error: BaseException) -> int:
    """Report an unexpected error in one sentence, with the file of its traceback."""
    return _say(fault(error), UNKNOWN)


def fault(error: BaseException) -> str:
    """Return a sentence about an unexpected error, and write the error's traceback to a file."""
    import traceback  # noqa: PLC0415 - not needed by a command that ends well

    said = printable(str(error)[:SENTENCE_MAX])
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    lines = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG):
        with suppress(OSError, ValueError):
            sys.stderr.write(lines)
    return f"internal error of longpoll, so the result is unknown: {what}; {_kept(lines)}"


def _kept(lines: str) -> str:
    """Write a traceback to a file; return a text that names it."""
    import tempfile  # noqa: PLC0415 - not needed by a command that ends well

    try:
        handle, file = tempfile.mkstemp(prefix="longpoll-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as written:
            written.write(lines)
    except OSError:
        return f"set {DEBUG}=1 and run the command again to see the traceback"
    return f"please report it and attach the traceback in {file}"


def printable(text: str) -> str:
    """Text on one line, with control characters escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _say(sentence: str, code: int) -> int:
    """Write one line to stderr, if it is open; return the code."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"longpoll: {sentence}\n")
        sys.stderr.flush()
    return code


def _forget_output() -> None:
    """Send unflushed output to /dev/null; otherwise Python complains about it again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream; otherwise the next opened file gets its descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                if nowhere != number:
                    os.dup2(nowhere, number)
                    os.close(nowhere)
                setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - a number, and it stays open


def _unraisable(what: Any) -> None:
    """Raise Ctrl-C again if it came where exceptions are lost, such as in a destructor or a library's callback.

    A timer raises Ctrl-C again, because an exception that this hook raises would be lost too.
    """
    if isinstance(what.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _interrupts.handle)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(what)
