"""Between a command and the system: whatever ends a command becomes one of four exit codes and at most one sentence.

1 is what a command says of what it looked at, and nothing else: a code of 1 that no command has chosen (click's for an
abort, rich's for a closed pipe, Python's for an exception) is a fault of longpoll itself, which leaves the question
open. Imported before anything heavy, so that Ctrl-C is answered from the first moments of a start; hence nothing but
small modules of the standard library here.

Leaves out the mistakes that commands tell by themselves (`output.user_mistakes`).
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
"""With this in the environment a fault of longpoll itself shows its traceback at once."""
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
STOPPED: Final = "stopped by Ctrl-C before the work was done: what was asked is unknown"
NO_MEMORY: Final = "the memory ran out before the work was done: what was asked is unknown"
AGAIN_S: Final = 0.005
"""How long after a Ctrl-C that came to nothing it is raised again."""
SENTENCE_MAX: Final = 1_000
"""Letters of an error's own words that are shown."""


class ReaderGoneError(Exception):
    """Nobody reads our output any more."""


@contextmanager
def readers() -> Iterator[None]:
    """Give a closed pipe a name of our own, for click has an end of its own for those."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error


class _Interrupts:
    """What became of Ctrl-C. Invariant: `held_back` is true only while imports run that must not end half done."""

    def __init__(self) -> None:
        self.came = False
        self.held_back = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """What SIGINT does while a command runs."""
        self.came = True
        if not self.held_back:
            raise KeyboardInterrupt


_interrupts: Final = _Interrupts()


@contextmanager
def whole_imports() -> Iterator[None]:
    """Let Ctrl-C wait until the imports in the block are done: some libraries swallow it, and are then half there."""
    _interrupts.held_back = True
    try:
        yield
    finally:
        _interrupts.held_back = False
    if _interrupts.came:
        raise KeyboardInterrupt


@contextmanager
def until_signalled(stop: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call `stop` instead of ending the process, as long as the block lasts."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def interrupted_by_sigterm() -> AbstractContextManager[None]:
    """Have SIGTERM do what Ctrl-C does as long as the block lasts: leave through every `with`, and clean up."""
    return until_signalled(_interrupt)


def _interrupt() -> None:
    raise KeyboardInterrupt


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command as the whole of this process, and leave with its code."""
    _open_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupts.handle)
        sys.unraisablehook = _unraisable
    try:
        code = _code_of(command)
    except KeyboardInterrupt:
        code = UNKNOWN
    # From here on a further Ctrl-C ends the process as it would any other, without a word.
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
    """What a piece of work raised instead of giving a result: as a block, whatever ends it stands in `error`."""

    error: BaseException

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        self.error = error
        return True


def attempted(work: Callable[[], Result]) -> Result | Raised:
    """Do some work; what it raises is handed back for the caller to tell, Ctrl-C and the end of a command too."""
    raised = Raised()
    with raised:
        return work()
    return raised


def ended(command: Callable[[], object], words: Sequence[str]) -> object:
    """Run a command that was called with `words`; what it returns, or SystemExit with a code of ours."""
    result = attempted(command)
    if not isinstance(result, Raised):
        return result
    if isinstance(result.error, SystemExit) and _is_ours(result.error.code):
        raise result.error
    raise SystemExit(_told(result.error, words)) from None


def _is_ours(code: object) -> bool:
    """Whether a command has chosen this code: 1 must be the member `VIOLATED` of its exit codes."""
    return code is None or (isinstance(code, int) and (type(code) is not int or code in {OK, USER, UNKNOWN}))


def _told(error: BaseException, words: Sequence[str]) -> int:
    """Say on stderr how the command ended, where that needs saying; its code."""
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
        return UNKNOWN  # quietly: the reader of our output has closed it
    told = _told_of_system(error, words) if isinstance(error, OSError) else _told_of_extra(error, words)
    return _fault(error) if told is None else told


def _reader_is_gone() -> bool:
    """Whether it is our output that is a pipe without a reader, and not some connection of a command's own."""
    polled = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            polled.register(stream.fileno(), 0)
    return any(happened & select.POLLERR for _number, happened in polled.poll(0))


def _is(error: BaseException, module: Any, name: str) -> bool:
    return module is not None and isinstance(error, getattr(module, name))


def _told_of_system(error: OSError, words: Sequence[str]) -> int | None:
    """What the system refused: room, or a file that was named in the call; None: something else."""
    file = "" if error.filename is None else os.fsdecode(error.filename)
    reason = error.strerror or type(error).__name__
    if error.errno in NO_ROOM:
        where = f"to {printable(file)}" if file else "what was to be written"
        return _say(f"cannot write {where}: {reason}; make room and try again", UNKNOWN)
    if file and is_named(file, words):
        return _say(f"cannot use {printable(file)}: {reason}; name another or mend it", USER)
    return None


def _told_of_extra(error: BaseException, words: Sequence[str]) -> int | None:
    """What is installed with an extra only; None: something else."""
    needed = extras.missing(error, words[0] if words else "")
    return None if needed is None else _say(needed, USER)


def is_named(file: str, words: Sequence[str]) -> bool:
    """Whether a file, or a directory above it, was named in the call."""
    wanted = _whole(file)
    for word in words:
        name = word.partition("=")[2] if word.startswith("--") else word
        with suppress(ValueError, OSError):
            given = _whole(name)
            if name and (wanted == given or wanted.startswith(given + os.sep)):
                return True
    return False


def _whole(file: str) -> str:
    """The file from the root on. Links stay as they are, for one of them may be what is wrong."""
    from pathlib import Path  # noqa: PLC0415 - not needed by a command that ends well

    return os.path.normpath(Path.cwd() / file)


def _fault(error: BaseException) -> int:
    """An error that nobody expected: one sentence, and the traceback where it can be read."""
    return _say(fault(error), UNKNOWN)


def fault(error: BaseException) -> str:
    """An error that nobody expected, in one sentence; its traceback is kept where it can be read."""
    import traceback  # noqa: PLC0415 - not needed by a command that ends well

    said = printable(str(error)[:SENTENCE_MAX])
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    lines = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG):
        with suppress(OSError, ValueError):
            sys.stderr.write(lines)
    return f"a fault of longpoll itself, so what was asked is unknown: {what}; {_kept(lines)}"


def _kept(lines: str) -> str:
    """Keep a traceback in a file; where it is, in words."""
    import tempfile  # noqa: PLC0415 - not needed by a command that ends well

    try:
        handle, file = tempfile.mkstemp(prefix="longpoll-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as written:
            written.write(lines)
    except OSError:
        return f"set {DEBUG}=1 and call again to see the traceback"
    return f"please report it with the traceback in {file}"


def printable(text: str) -> str:
    """Text on one line, with what a terminal would act on escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _say(sentence: str, code: int) -> int:
    """Write one line to stderr, if that can be written to; return the code."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"longpoll: {sentence}\n")
        sys.stderr.flush()
    return code


def _forget_output() -> None:
    """Lead what is still to be flushed nowhere, or Python complains of it once more at its exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _open_standard_streams() -> None:
    """Put nothing in the place of streams that the caller closed, or the next file that is opened takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                if nowhere != number:
                    os.dup2(nowhere, number)
                    os.close(nowhere)
                setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - a number, and it stays open


def _unraisable(what: Any) -> None:
    """Ctrl-C in a place that no exception leaves, such as a destructor or a library's callback, comes once more.

    A moment later, and from the outside: what is raised in here goes nowhere either.
    """
    if isinstance(what.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _interrupts.handle)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(what)
