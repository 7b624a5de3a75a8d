"""The option type for an amount, such as milliseconds: finite, and too small to overflow.

Click's own range accepts `nan` and `inf`. For whole numbers use `click.IntRange`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import click

AMOUNT_MAX: Final = 1e9
"""Over eleven days in milliseconds; more messages per second than a machine sends."""


class Amount(click.FloatRange):
    """A finite number from 0 to `AMOUNT_MAX`, or above 0 if `above_zero`."""

    name = "number"

    def __init__(self, *, above_zero: bool = False) -> None:
        super().__init__(min=0, max=AMOUNT_MAX, min_open=above_zero)

    def _describe_range(self) -> str:
        """The range in help texts and errors; click would write `0<=x<=1000000000.0`."""
        return "above 0, at most 10^9" if self.min_open else "0 to 10^9"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the number; fails for other text and for `nan` and `inf`."""
        number = super().convert(value, param, ctx) if not _is_endless(value) else None
        if number is None:
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def _is_endless(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False
