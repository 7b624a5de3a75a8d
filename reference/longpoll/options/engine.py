"""The options of `longpoll check` that belong to one engine or another, and the Spark session that one of them needs.

Leaves out what the options mean: each engine's `explore` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from longpoll.options import completion
from longpoll.options.cluster import conf_option
from longpoll_spec.engines import ENGINES
from longpoll_spec.errors import EngineLimitError

Command = TypeVar("Command", bound=Callable[..., Any])
NAMES: Final = ("symmetry", "workers", "memory_mb", "master", "conf", "checkpoint", "runs", "steps", "seed")
"""What `engine_options` adds to a command, besides `engine`."""
_OPTIONS: Final = (
    click.option(
        "--engine",
        default=ENGINES[0],
        show_default=True,
        help=f"One of {', '.join(ENGINES)}.",
        shell_complete=completion.engines,
    ),
    click.option("--workers", type=int, default=1, show_default=True, help="packed: processes that share the search."),
    click.option(
        "--symmetry",
        is_flag=True,
        help="packed: explore one state for all that differ only in which request or queue is which.",
    ),
    click.option(
        "--memory-mb",
        type=click.IntRange(min=1),
        help="packed: use about this much memory, MiB, and disks (TMPDIR) for the rest.",
    ),
    click.option(
        "--master", metavar="URL", help="spark: the cluster, such as local[4], spark://host:7077 or sc://host:15002."
    ),
    conf_option,
    click.option(
        "--checkpoint",
        type=click.Path(file_okay=False, path_type=Path),
        help="spark: keep each level in this directory, and go on with the search that is there.",
    ),
    click.option("--runs", type=click.IntRange(min=1), help="simulate: how many random runs."),
    click.option(
        "--steps", type=click.IntRange(min=1, max=10_000), help="simulate: how many steps a run takes at most."
    ),
    click.option("--seed", type=click.IntRange(min=0), help="simulate: equal seeds give equal runs."),
)


def engine_options(command: Command) -> Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextmanager
def opened(engine: str, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The options as the engine wants them: a session in place of the address of a cluster, while the block lasts."""
    options = {name: value for name, value in given.items() if name in NAMES and name not in {"master", "conf"}}
    if engine != "spark":
        if given["master"] is not None or given["conf"]:
            what = "master" if given["master"] is not None else "settings of Spark"
            raise EngineLimitError(f"the {engine} engine has no {what}; use --engine spark")
        yield options
        return
    # Spark takes its time, and only this engine needs it.
    from longpoll_judge.run.spark.cluster import open_cluster  # noqa: PLC0415
    from longpoll_judge.run.spark.travel import travelling  # noqa: PLC0415

    with open_cluster(given["master"], given["conf"]) as found:
        options |= {"session": found.session, "parallel": found.parallel}
        yield options if found.is_here else options | {"travelling": travelling}
