"""Formats log records as text for people, or as one JSON object per line for machines.

A record may have an event, by which users can count and find such records:

    log.info("%s closed", channel, extra=event("connection_closed", peer=channel.peer))

| key of a JSON line | content |
|---|---|
| `time` | RFC 3339, UTC, milliseconds |
| `level`, `logger`, `message` | as in `logging` |
| `event` and its fields | the event's name and data; not in every line |
| `left_out` | number of lines of the same log statement omitted before this one |
| `error` | the traceback, if any |

A client's data cannot start a new line. `log_stream` writes the lines.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_FIELDS: Final = "longpoll_fields"
LEFT_OUT: Final = "longpoll_left_out"
"""The attribute of a log record with the number of lines of the same log statement that were omitted before it."""
_NOT_PLAIN: Final = re.compile("[^ -~]")


def escaped(text: str) -> str:
    """Return the text on one line, with invisible characters escaped as in JSON.

    The escaped text cannot end a line, control a terminal or reorder letters. Escaped JSON has the same meaning.
    """
    return _NOT_PLAIN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def event(name: str, /, **fields: Any) -> dict[str, dict[str, Any]]:
    """Return the `extra` of a log record with an event. Fields that are not JSON values are written as text."""
    return {_FIELDS: {"event": name, **fields}}


class TextFormatter(logging.Formatter):
    """Formats a record as one line for people.

    A traceback follows on indented lines, so that none of these lines looks like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, with invisible characters escaped."""
        left_out = getattr(record, LEFT_OUT, 0)
        note = f" ({left_out} such lines were left out before it)" if left_out else ""
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}{note}"
        lines = [escaped(line)]
        if record.exc_info:
            lines += ["    " + escaped(line) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object as text. The fields of an event never replace the standard keys."""
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
    """Escape lone surrogates in the value's texts, because peers may send them and UTF-8 cannot encode them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {str(key): _writable(inner) for key, inner in value.items()}
    return value
