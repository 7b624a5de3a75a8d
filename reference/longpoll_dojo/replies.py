"""The three kinds of lines that a program may write, parsed as untrusted input."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from longpoll_dojo.errors import ProgramError
from longpoll_runtime.logs import escaped

NUMBER_MAX: Final = 2**53
"""Integers that every language's JSON can represent; those of an order are small."""
SHOWN_MAX: Final = 120
"""The most letters of a program's line in an error message."""


Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The answer to a pull. It does not end the turn."""

    answer: Number
    messages: tuple[str, ...]
    offset_next: Number


class At(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The work on a message pauses at a scheduling point, and the turn ends."""

    at: str
    id: Number


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The work on a message is done, and the turn ends."""

    done: Number


Reply = Answer | At | Done
_answers: Final = msgspec.json.Decoder(Answer)
_ats: Final = msgspec.json.Decoder(At)
_dones: Final = msgspec.json.Decoder(Done)


ABSENT: Final = msgspec.Raw()


class _Keys(msgspec.Struct):
    """The key that identifies the kind of a line; the others are skipped."""

    answer: msgspec.Raw = ABSENT
    at: msgspec.Raw = ABSENT
    done: msgspec.Raw = ABSENT


_keys: Final = msgspec.json.Decoder(_Keys)


def reply_of(line: bytes) -> Reply:
    """Parse a line. Raises ProgramError."""
    try:
        if line.startswith(b'{"done"'):
            return _dones.decode(line)
        keys = _keys.decode(line)
        if keys.answer is not ABSENT:
            return _answers.decode(line)
        if keys.at is not ABSENT:
            return _ats.decode(line)
        if keys.done is not ABSENT:
            return _dones.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(f"it wrote {shown(line)}, which is not valid: {error}") from None
    raise ProgramError(f"it wrote {shown(line)}, which is not an answer, at or done")


def shown(line: bytes) -> str:
    """An untrusted line for an error message: escaped and truncated."""
    text = escaped(line[: SHOWN_MAX + 1].decode("utf-8", "backslashreplace"))
    return repr(text) if len(line) <= SHOWN_MAX else f"{text[:SHOWN_MAX]!r}... ({len(line)} bytes)"
