"""Failing functions, for tests that replace real ones by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raising(error: BaseException) -> Callable[..., Any]:
    """Returns a function that raises this error for any arguments."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail
