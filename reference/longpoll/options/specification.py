"""The options that choose a model: policy, knobs, bounds, features, properties.

The names are defined in `longpoll_spec.policy` and `longpoll_spec.bounds`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import click

from longpoll_spec.bounds import ASPECTS, NAMES
from longpoll_spec.custom import policy_from
from longpoll_spec.errors import UserError
from longpoll_spec.policy import Policy, with_knobs

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def policy_option(said: str = "A preset; `longpoll policies` lists them.", default: str | None = "strict") -> Decorator:
    """Add `--policy`, passed as `policy_name`. `said` is the help text. Without a default the value may be None."""
    return click.option(
        "--policy",
        "policy_name",
        metavar="NAME",
        default=default,
        show_default=default is not None,
        help=said,
    )


def knob_option(said: str = "Override one knob of the policy; repeatable.") -> Decorator:
    """Add `--knob`, passed as `knobs`. `said` is the help text."""
    return click.option("--knob", "knobs", multiple=True, metavar="NAME=VALUE", help=said)


file_argument = click.argument("file", metavar="[FILE]", required=False)
"""A specification file of the user, in place of `--policy`."""


def chosen_policy(file: str | None, policy_name: str, knobs: Iterable[str]) -> Policy:
    """The policy that the options name; raises `UserError`."""
    if file is not None:
        named = click.get_current_context().get_parameter_source("policy_name")
        if named is click.core.ParameterSource.COMMANDLINE:
            raise UserError(f"--policy does not go with {file}: the file says from which policy it starts")
        if not file.endswith(".py"):
            raise UserError(f"{file} is no specification file, whose name ends with .py; for a policy use --policy")
    return with_knobs(policy_from(file or policy_name), knobs)


_SIZES: Final = {
    "--requests": "Override the number of request slots.",
    "--messages": "Override the number of messages that are appended.",
    "--hold-ticks": "Override a pull's deadline, in ticks.",
    "--scan-ticks": "Override the number of ticks between two scans.",
}


def size_options(*, queues: str, tags: str) -> Decorator:
    """Add an option for each size of the bounds, passed together as `sizes`; `queues` and `tags` are two help texts."""
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
    """Add `--bounds`, passed as `bounds_name`."""
    return click.option(
        "--bounds",
        "bounds_name",
        metavar="NAME",
        default=default,
        show_default=True,
        help=f"Preset of model bounds: {', '.join(NAMES)}.",
    )


def aspect_option(said: str = f"Switch on a feature of the model: {', '.join(ASPECTS)}; repeatable.") -> Decorator:
    """Add `--feature`, and its former name `--aspect`, passed as `aspects`. `said` is the help text."""
    return click.option("--feature", "--aspect", "aspects", multiple=True, metavar="NAME", help=said)


property_option = click.option(
    "--property", "names", multiple=True, metavar="NAME", help="Check only this property; repeatable."
)
