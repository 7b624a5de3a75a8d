"""Failing functions, with which tests replace real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raising(error: BaseException) -> Callable[..., Any]:
    """Returns a function that raises this error whatever its arguments are."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail
