"""Calls that fail, for tests that put them in the place of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises this error, whatever its arguments."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail
