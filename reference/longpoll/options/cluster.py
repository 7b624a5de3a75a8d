"""The options that choose a Spark cluster, and path arguments that may be URIs.

`longpoll_judge.run.spark.session` documents their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
SETTINGS_MAX: Final = 200
SAID_OTHERWISE: Final = frozenset({"spark.master", "spark.remote"})
_SETTING: Final = re.compile(r"(spark\.[A-Za-z0-9_.\-]+)=(.*)", re.DOTALL)
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.")


class Place(click.Path):
    """A directory: a path, or a URI, which is passed as text."""

    name = "place"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A path, or the URI."""
        if isinstance(value, str) and _URI.match(value):
            return value
        return super().convert(value, param, ctx)


def _settings(_context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> Mapping[str, str]:
    """Names and values; the last value of a name counts."""
    if len(given) > SETTINGS_MAX:
        raise click.BadParameter(f"{len(given)} settings are too many: give at most {SETTINGS_MAX}")
    found: dict[str, str] = {}
    for text in given:
        match = _SETTING.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"{text!r} is not a setting of Spark: write spark.NAME=VALUE")
        if match[1] in SAID_OTHERWISE:
            raise click.BadParameter(f"{match[1]}: use --master")
        found[match[1]] = match[2]
    return found


conf_option: Final = click.option(
    "--conf",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="spark: a setting, such as spark.executor.memory=4g; repeatable.",
)
"""Settings of Spark, as a mapping."""
_OPTIONS: Final = (
    click.option(
        "--master",
        metavar="URL",
        help="spark: the cluster, such as local[4], spark://host:7077 or sc://host:15002.  [default: SPARK_REMOTE, the "
        "session of spark-submit, or all cores of this machine]",
    ),
    conf_option,
)


def cluster_options(command: Command) -> Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
