"""The types of option values: numbers with readable ranges, names of files and directories, and HOST:PORT.

`Amount` also rejects `nan` and `inf`, which click's `FloatRange` accepts.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import click

from longpoll_runtime import Address
from longpoll_spec.errors import ConfigError

AMOUNT_MAX: Final = 1e9
"""The largest amount: over eleven days in milliseconds, and more messages per second than a machine sends."""
SEED_MAX: Final = 2**32 - 1


class Whole(click.IntRange):
    """A whole number from `min` to `max`; the help shows `1 to 9`, where click would write `1<=x<=9`."""

    name = "integer"

    def _describe_range(self) -> str:
        return f"{self.min} or more" if self.max is None else f"{self.min} to {self.max}"


class Amount(click.FloatRange):
    """A finite number from 0 to `AMOUNT_MAX`, or above 0 if `above_zero`."""

    name = "number"

    def __init__(self, *, above_zero: bool = False) -> None:
        super().__init__(min=0, max=AMOUNT_MAX, min_open=above_zero)

    def _describe_range(self) -> str:
        return "above 0, at most 10^9" if self.min_open else "0 to 10^9"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the number; fails for other text and for `nan` and `inf`."""
        number = super().convert(value, param, ctx) if not _is_endless(value) else None
        if number is None:
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


UNITS: Final = {"s": 1, "m": 60, "h": 3_600}
"""Maps the letter of a unit to its seconds."""


class Duration(Amount):
    """Seconds above 0, optionally with a unit: 90, 90s, 2m or 1h."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds; other text is a usage error."""
        unit = UNITS.get(value[-1:]) if isinstance(value, str) else None
        return super().convert(value[:-1] if unit else value, param, ctx) * (unit or 1)


def _is_endless(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


class FilledPath(click.Path):
    """A path. An empty one, from an unset variable for example, is an error: it would mean the current directory."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; an empty path is a usage error."""
        if not str(value):
            self.fail("the path is empty; name a file or directory", param, ctx)
        return super().convert(value, param, ctx)


def address_of(text: str) -> Address:
    """Parse HOST:PORT; raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address; write HOST:PORT with a port from 0 to 65535 (0: any free port)")
    return host.strip("[]"), int(port)


RACE_S: Final = 8.0
"""Default duration of a race, seconds."""
race_option = click.option(
    "--race-seconds",
    "race_s",
    type=Amount(),
    default=RACE_S,
    show_default=True,
    help="How long to race messages against waiting pulls; 0 skips the race.",
)
