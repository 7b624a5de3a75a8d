"""Make a rule's method a step of its machine, which performs it, checks it, and records it for the report.

Performing a step: the machine's `do`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

Arguments = ParamSpec("Arguments")


def step(body: Callable[Concatenate[Any, Arguments], object]) -> Callable[Concatenate[Any, Arguments], None]:
    """A method that passes `body` to its machine, as `machine.do(name, arguments, body)`."""

    @functools.wraps(body)
    def wrapped(machine: Any, /, *nothing: Arguments.args, **arguments: Arguments.kwargs) -> None:
        machine.do(body.__name__, arguments, lambda: body(machine, *nothing, **arguments))

    # Hypothesis disables rules at random for whole examples, by this name. With different names most examples would
    # have polls without publishes, or the reverse; under one name all rules stay enabled.
    wrapped.__name__ = "step"
    return wrapped
