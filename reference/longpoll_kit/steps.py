"""Makes a rule's method a step of its machine, which does it, judges it, and notes it for the report.

Leaves out what doing a step is: `do` of the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

Arguments = ParamSpec("Arguments")


def step(body: Callable[Concatenate[Any, Arguments], object]) -> Callable[Concatenate[Any, Arguments], None]:
    """A method that has its machine do `body`, by `machine.do(name, arguments, body)`."""

    @functools.wraps(body)
    def wrapped(machine: Any, /, *nothing: Arguments.args, **arguments: Arguments.kwargs) -> None:
        machine.do(body.__name__, arguments, lambda: body(machine, *nothing, **arguments))

    # Hypothesis switches rules off at random, whole examples long, and tells them by this name. Here that leaves most
    # examples with polls but nothing sent, or sends but no poll; under one name all rules stay on.
    wrapped.__name__ = "step"
    return wrapped
