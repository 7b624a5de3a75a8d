"""Divides the cases of a parametrised test into quick and long ones.

A test over every preset, knob or part checks the same for each; the quick suite keeps one of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

Case = TypeVar("Case")


def quick_if(cases: Iterable[Case], is_quick: Callable[[Case], bool]) -> list[ParameterSet]:
    """Returns every case, in order; those that are not quick are marked `long`."""
    return [pytest.param(case, marks=() if is_quick(case) else pytest.mark.long) for case in cases]
