"""The options that choose a law: policy, knobs, bounds, aspects, properties.

Leaves out what the names mean (`longpoll_spec.policy`, `longpoll_spec.bounds`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import click

from longpoll.options import completion
from longpoll_spec.bounds import ASPECTS, NAMES

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def policy_option(said: str = "A preset; `longpoll policies` lists them.", default: str | None = "strict") -> Decorator:
    """`--policy`, passed as `policy_name`; `said` is its help. Without a default it may be None."""
    return click.option(
        "--policy",
        "policy_name",
        metavar="NAME",
        default=default,
        show_default=default is not None,
        help=said,
        shell_complete=completion.policies,
    )


def knob_option(said: str = "Set one knob; repeatable.") -> Decorator:
    """`--knob`, handed over as `knobs`; `said` is its help."""
    return click.option(
        "--knob", "knobs", multiple=True, metavar="NAME=VALUE", help=said, shell_complete=completion.knobs
    )


_SIZES: Final = {
    "--requests": "Request slots, instead of those of the bounds.",
    "--messages": "Messages that are ever appended.",
    "--hold-ticks": "A pull's deadline in ticks.",
    "--scan-ticks": "Ticks between two scans.",
}


def size_options(*, queues: str, tags: str) -> Decorator:
    """The numbers that bounds are made of, handed over together as `sizes`; `queues` and `tags` are the help of two."""
    said = _SIZES | {"--queues": queues, "--tags": tags}
    names = [name[2:].replace("-", "_") for name in said]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            sizes = {name: given.pop(name) for name in names}
            return command(sizes=sizes, **given)

        for name in reversed(said):
            called = click.option(name, type=int, help=said[name])(called)
        return called

    return add


def bounds_option(default: str) -> Decorator:
    """`--bounds`, handed over as `bounds_name`."""
    return click.option(
        "--bounds",
        "bounds_name",
        default=default,
        show_default=True,
        help=f"One of {', '.join(NAMES)}.",
        shell_complete=completion.bounds,
    )


def aspect_option(said: str = f"One of {', '.join(ASPECTS)}; repeatable.") -> Decorator:
    """`--aspect`, handed over as `aspects`; `said` is its help."""
    return click.option(
        "--aspect", "aspects", multiple=True, metavar="NAME", help=said, shell_complete=completion.aspects
    )


def property_option(*, proved: bool = False) -> Decorator:
    """`--property`, handed over as `names`; with `proved` only what can be proved is offered."""
    offered = completion.provable if proved else completion.properties
    return click.option(
        "--property", "names", multiple=True, metavar="NAME", help="Only this one; repeatable.", shell_complete=offered
    )
