"""Amounts that a caller gives: finite ones, and none so large that reckoning with it overflows.

Click's own range lets `nan` and `inf` through, since neither lies outside of anything. Leaves out whole numbers, for
which `click.IntRange` is enough.
"""

from __future__ import annotations

import math
from typing import Any, Final

import click

AMOUNT_MAX: Final = 1e9
"""More milliseconds than eleven days, more messages a second than a machine sends."""


class Amount(click.FloatRange):
    """A finite number from 0 to `AMOUNT_MAX`; with `above_zero` more than 0."""

    name = "number"

    def __init__(self, *, above_zero: bool = False) -> None:
        super().__init__(min=0, max=AMOUNT_MAX, min_open=above_zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; what is none, or not finite, is the caller's mistake."""
        number = super().convert(value, param, ctx) if not _is_endless(value) else None
        if number is None:
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def _is_endless(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
