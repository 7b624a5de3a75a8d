"""The options that say where the findings of a followed history go.

Leaves out the telling: `longpoll.shown.following`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from longpoll.shown.following.tell import Places

PORT_MAX: Final = 65_535


def following_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options, and hand them to it as one `places`."""

    @click.option(
        "--findings",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="--follow: add each finding to this file as a line of JSON when it is certain, once.",
    )
    @click.option(
        "--checkpoint",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="--follow: remember here what was told; a start with the same directory tells none twice.",
    )
    @click.option(
        "--metrics-port",
        type=click.IntRange(0, PORT_MAX),
        metavar="PORT",
        help="--follow: tell Prometheus metrics at this port of 127.0.0.1; 0 for any.",
    )
    @click.option("--webhook", metavar="URL", help="--follow: post each finding there, until it is taken.")
    @wraps(command)
    def wrapped(
        *args: Any,
        findings: Path | None,
        checkpoint: Path | None,
        metrics_port: int | None,
        webhook: str | None,
        **options: Any,
    ) -> None:
        command(*args, places=Places(findings, checkpoint, metrics_port, webhook), **options)

    return wrapped
