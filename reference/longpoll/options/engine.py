"""The options of `longpoll check` that belong to one engine, and those that choose a Spark cluster.

Each engine's `explore` documents its options; `longpoll_judge.run.spark.session` documents those of a cluster.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from longpoll.options.values import FilledPath
from longpoll_spec.engines import ENGINES, EXPLORERS
from longpoll_spec.errors import EngineLimitError

Command = TypeVar("Command", bound=Callable[..., Any])
SETTINGS_MAX: Final = 200
SAID_OTHERWISE: Final = frozenset({"spark.master", "spark.remote"})
_SETTING: Final = re.compile(r"(spark\.[A-Za-z0-9_.\-]+)=(.*)", re.DOTALL)
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.")


class Place(FilledPath):
    """A directory: a path, or a URI, which is passed as text."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the text of a URI."""
        if isinstance(value, str) and _URI.match(value):
            return value
        return super().convert(value, param, ctx)


def _settings(_context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> Mapping[str, str]:
    """Parse NAME=VALUE settings; if a name occurs twice, its last value counts."""
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
_CLUSTER_OPTIONS: Final = (
    click.option(
        "--master",
        metavar="URL",
        help="spark: the cluster, such as local[4], spark://host:7077 or sc://host:15002.  [default: SPARK_REMOTE, the "
        "session of spark-submit, or all cores of this machine]",
    ),
    conf_option,
)


def cluster_options(command: Command) -> Command:
    """Add the options that choose a Spark cluster to a command."""
    for option in reversed(_CLUSTER_OPTIONS):
        command = option(command)
    return command


NAMES: Final = ("symmetry", "workers", "memory_mb", "master", "conf", "checkpoint")
"""The parameters, other than `engine`, that `engine_options` adds to a command."""
_OPTIONS: Final = (
    click.option(
        "--engine",
        metavar="NAME",
        help=f"One of {', '.join(ENGINES)}.  [default: packed; python where numpy is missing]",
    ),
    click.option("--workers", type=int, default=1, show_default=True, help="packed: number of processes."),
    click.option(
        "--symmetry",
        is_flag=True,
        help="packed: merge states that differ only in the numbering of requests or queues.",
    ),
    click.option(
        "--memory-mb",
        type=click.IntRange(min=1),
        help="packed: keep about this many MiB in memory, and the rest on disk (TMPDIR).",
    ),
    click.option(
        "--master", metavar="URL", help="spark: the cluster, such as local[4], spark://host:7077 or sc://host:15002."
    ),
    conf_option,
    click.option(
        "--checkpoint",
        type=FilledPath(file_okay=False),
        help="spark: keep each level in this directory, and resume the search that is there.",
    ),
)


def engine_options(command: Command) -> Command:
    """Add the options of all engines to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def default_engine() -> str:
    """The default engine: the fast one, or the plain one if numpy is missing."""
    return EXPLORERS[0] if importlib.util.find_spec("numpy") is not None else EXPLORERS[1]


@contextmanager
def opened(engine: str, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options for the engine, with an open Spark session in place of the cluster's address."""
    options = {name: value for name, value in given.items() if name in NAMES and name not in {"master", "conf"}}
    if engine != "spark":
        if given["master"] is not None or given["conf"]:
            what = "--master" if given["master"] is not None else "--conf"
            raise EngineLimitError(
                f"the {engine} engine does not run on Spark: leave out {what}, or add --engine spark"
            )
        yield options
        return
    # Importing Spark takes a second, and only this engine needs it. The extra of Spark includes all packages of the
    # other engines.
    importlib.import_module("pyspark")
    from longpoll_judge.run.spark.code_archive import travelling  # noqa: PLC0415
    from longpoll_judge.run.spark.session import open_cluster  # noqa: PLC0415

    with open_cluster(given["master"], given["conf"]) as found:
        options |= {"session": found.session, "parallel": found.parallel}
        yield options if found.is_here else options | {"travelling": travelling}
