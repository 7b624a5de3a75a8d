"""What is logged, as text for people or as one JSON object a line for machines.

Every record is one of `logging`'s. Those that somebody may want to count or to search for say what happened besides,
with a name and fields:

    log.info("%s is gone", channel, extra=event("connection_closed", peer=channel.peer))

| key of a JSON line | what |
|---|---|
| `time` | RFC 3339, UTC, to the millisecond |
| `level`, `logger`, `message` | as `logging` has them |
| `event` and its fields | what happened; not in every line |
| `left_out` | how many lines of the same place in the code were left out before this one |
| `error` | the traceback, when there is one |

What a stranger sent cannot begin a line of its own. `log_stream` writes the lines.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_FIELDS: Final = "longpoll_fields"
LEFT_OUT: Final = "longpoll_left_out"
"""Attribute of a record: how many lines of its place in the code were left out before it."""
_NOT_PLAIN: Final = re.compile("[^ -~]")


def escaped(text: str) -> str:
    """A text on one line, with what is no visible letter written as JSON writes it.

    Nothing in it ends a line, steers a terminal or turns the order of letters; JSON stays what it was.
    """
    return _NOT_PLAIN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def event(name: str, /, **fields: Any) -> dict[str, dict[str, Any]]:
    """The `extra` of a record that says what happened; fields are what JSON has, anything else is written as text."""
    return {_FIELDS: {"event": name, **fields}}


class TextFormatter(logging.Formatter):
    """One line for people; a traceback follows, indented, so that no line of it looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without what a stranger's text could do to it."""
        left_out = getattr(record, LEFT_OUT, 0)
        note = f" ({left_out} such lines were left out before it)" if left_out else ""
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}{note}"
        lines = [escaped(line)]
        if record.exc_info:
            lines += ["    " + escaped(line) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; a field of the record's event never hides what every line has."""
        told: dict[str, Any] = dict(getattr(record, _FIELDS, {}))
        told |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        left_out = getattr(record, LEFT_OUT, 0)
        if left_out:
            told["left_out"] = left_out
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return escaped(msgspec.json.encode(_writable(told), enc_hook=str).decode())


def _writable(value: Any) -> Any:
    """A value whose texts can all be written as UTF-8: peers send halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(key): _writable(inner) for key, inner in value.items()}
    return value
