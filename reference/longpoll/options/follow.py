"""The options that choose where the findings of a followed history go.

The output itself: `longpoll.views.follow`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from longpoll.views.follow.report import Places

PORT_MAX: Final = 65_535


def following_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as one `places`."""

    @click.option(
        "--findings",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="--follow: append each finding to this file as a line of JSON, once, when it is final.",
    )
    @click.option(
        "--checkpoint",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="--follow: keep the state in this directory; after a restart no finding is reported twice.",
    )
    @click.option(
        "--metrics-port",
        type=click.IntRange(0, PORT_MAX),
        metavar="PORT",
        help="--follow: serve Prometheus metrics on this port of 127.0.0.1; 0 picks a free port.",
    )
    @click.option(
        "--webhook", metavar="URL", help="--follow: POST each finding to this URL, with retries until it is accepted."
    )
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
