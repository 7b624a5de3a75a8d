"""The lines that a program writes, which are untrusted input, and the properties that apply only to programs."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from longpoll_kit.errors import ViolationError
from longpoll_runtime.logs import escaped
from longpoll_spec.errors import LongpollError, UserError

HINTS: Final = {
    "offset_goes_on": "offset_next must be the pull's offset plus the number of messages in its answer",
    "forgets_at_reset": "a reset must clear everything: tables, deadlines, messages and paused work",
    "same_again": "equal messages must get equal answers; avoid real clocks, random numbers and threads",
    "speaks_the_protocol": "answer each message with lines of JSON that end with "
    '{"done": ID} or {"at": "...", "id": ID}, and flush the output after each line',
}
"""Maps each property that applies only to programs to advice after a violation. Other properties:
`longpoll_kit.errors`."""
NUMBER_MAX: Final = 2**53
"""The largest integer that JSON parsers of every language represent exactly."""
SHOWN_MAX: Final = 120
"""The maximum number of characters of a program's line in an error message."""


class ProgramError(LongpollError):
    """The program exited, hung, or violated the protocol. The message gives the reason."""


class StartError(UserError):
    """The program cannot be started, or does not answer its first message. The message says what to do next."""


class TokenError(UserError):
    """The token is damaged, or its schedule cannot run. The message gives the reason."""


def broken(prop: str, what: str) -> ViolationError:
    """Return the violation of a property that applies only to programs (`HINTS`)."""
    return ViolationError(prop, what, HINTS[prop])


Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The answer to a pull, which does not end the turn."""

    answer: Number
    messages: tuple[str, ...]
    offset_next: Number


class At(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A report that the program paused its work on a message at a scheduling point. The report ends the turn."""

    at: str
    id: Number


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A report that the program's work on a message is done. The report ends the turn."""

    done: Number


Reply = Answer | At | Done
KINDS: Final[dict[str, type[Reply]]] = {"answer": Answer, "at": At, "done": Done}
"""Maps the key by which a line is recognised to the type of the line."""
_lines: Final = msgspec.json.Decoder(dict[str, Any])


def reply_of(line: bytes) -> Reply:
    """Parse a line. Raises ProgramError."""
    try:
        told = _lines.decode(line)
        kind = next((kind for key, kind in KINDS.items() if key in told), None)
        if kind is not None:
            return msgspec.convert(told, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(f"it wrote {shown(line)}, which is not valid: {error}") from None
    raise ProgramError(f"it wrote {shown(line)}, which is not an answer, at or done")


def shown(line: bytes) -> str:
    """Return an untrusted line for an error message, escaped and truncated."""
    text = escaped(line[: SHOWN_MAX + 1].decode("utf-8", "backslashreplace"))
    return repr(text) if len(line) <= SHOWN_MAX else f"{text[:SHOWN_MAX]!r}... ({len(line)} bytes)"
