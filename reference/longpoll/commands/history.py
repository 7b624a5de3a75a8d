"""`longpoll history`: converts recorded histories. The formats are in `longpoll_judge.read.convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from longpoll.options.values import FilledPath, Whole
from longpoll.output import emit_json, json_option, out, progress_bar, user_mistakes
from longpoll_judge.generate import write
from longpoll_judge.read.convert import FormatName, TargetExistsError
from longpoll_judge.read.convert import convert as convert_history
from longpoll_judge.recording import load
from longpoll_judge.specification_steps import project


@click.group()
def history() -> None:
    """Convert recorded histories to another format, or to steps of the specification.

    `longpoll serve --record DIR` and `longpoll observe --record DIR` record a history.

    \b
    Examples:
      longpoll history convert /tmp/history /tmp/history-parquet
      longpoll history steps /tmp/history /tmp/steps --topic T
    """


@history.command()
@click.argument("source", type=FilledPath(), metavar="HISTORY")
@click.argument("target", type=FilledPath(), metavar="DIR")
@click.option(
    "--to",
    "into",
    type=click.Choice(get_args(FormatName)),
    default="parquet",
    show_default=True,
    help="The format of the copy.",
)
@json_option
@user_mistakes
def convert(source: Path, target: Path, into: FormatName, as_json: bool) -> None:
    """Convert HISTORY to another format in the new directory DIR. The judge gives both the same verdict.

    \b
    Examples:
      longpoll history convert /tmp/history /tmp/smaller              Parquet: a tenth of the size, faster to judge
      longpoll history convert /tmp/smaller /tmp/again --to ndjson    one JSON object per line
    """
    with progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("converting", total=None)
        count = convert_history(
            source, target, into=into, say=lambda done, whole: progress.update(task, completed=done, total=whole)
        )
    said: dict[str, Any] = {"events": count, "format": into, "directory": str(target)}
    if as_json:
        emit_json(said)
    else:
        out.print(f"{count} events written to {target} as {into}")


@history.command()
@click.argument("source", type=FilledPath(), metavar="HISTORY")
@click.argument("target", type=FilledPath(), metavar="DIR")
@click.option("--topic", required=True, help="The topic of the queue.")
@click.option("--queue", type=Whole(min=0), default=0, show_default=True, help="The queue's number.")
@json_option
@user_mistakes
def steps(source: Path, target: Path, topic: str, queue: int, as_json: bool) -> None:
    """Convert the events of one queue to steps of the specification, in the new directory DIR.

    HISTORY must come from `longpoll serve --record`. `longpoll judge DIR` then checks whether the specification allows
    the steps. Each pulling connection counts as one consumer; it must read all messages, and each of its pulls must
    start where the last one ended.

    \b
    Examples:
      longpoll serve --policy strict-clone --record /tmp/history      then send to T, consume it, and press Ctrl-C
      longpoll history steps /tmp/history /tmp/steps --topic T
      longpoll judge /tmp/steps --engine local
    """
    found = project(load(source), topic, queue)
    if target.exists() and any(target.iterdir()):
        raise TargetExistsError(f"{target} is not empty; choose a new directory")
    write(target, found.events, found.meta)
    assert found.meta.law is not None, "a history of steps declares its bounds"
    said: dict[str, Any] = {
        "events": len(found.events),
        "policy": found.meta.policy,
        "requests": found.meta.law.requests,
        "directory": str(target),
    }
    if as_json:
        emit_json(said)
    else:
        out.print(f"{len(found.events)} steps of {found.meta.policy} written to {target}")
