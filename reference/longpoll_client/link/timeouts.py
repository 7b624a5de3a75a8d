"""Checks of a caller's time-out and count."""

from __future__ import annotations

from typing import Final

from longpoll_spec.errors import ConfigError

WAIT_S_MAX: Final = 365 * 86_400.0
"""A wait without end lasts a year: no clock of the operating system takes much more."""


def check_count(count_max: int | None) -> None:
    """Raise ConfigError for a count under 1; None is no limit."""
    if count_max is not None and count_max < 1:
        raise ConfigError(f"count_max is {count_max}: it must be at least 1, or None for no limit")


def wait_ns(timeout_s: float) -> int:
    """Nanoseconds, at least 0 and at most a year. Raises ConfigError for other types."""
    try:
        if 0.0 <= timeout_s <= WAIT_S_MAX:
            return int(timeout_s * 1e9)
        return int(min(max(timeout_s, 0.0), WAIT_S_MAX) * 1e9)
    except (TypeError, ValueError):
        raise ConfigError(f"a time-out of {timeout_s!r} is not valid; pass seconds, such as 3.0") from None
