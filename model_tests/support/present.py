"""Unwraps values that a test expects not to be None."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return the value, which must not be None."""
    assert value is not None
    return value
