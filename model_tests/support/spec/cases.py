"""Which cases of a parametrised test the quick suite runs, and which only the long one.

A test over every preset, knob or part says the same of each; the quick suite keeps one of each kind.
Left out: tests that are long as a whole, which carry the mark themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

Case = TypeVar("Case")


def quick_if(cases: Iterable[Case], is_quick: Callable[[Case], bool]) -> list[ParameterSet]:
    """Give every case, in order; those that are not quick are marked `long`."""
    return [pytest.param(case, marks=() if is_quick(case) else pytest.mark.long) for case in cases]
