"""`longpoll history`: what can be done with a recorded history besides judging it.

Leaves out the formats (`longpoll_judge.read.convert`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from longpoll.output import emit_json, json_option, out, progress_bar, user_mistakes
from longpoll_judge.read.convert import FormatName, TargetExistsError
from longpoll_judge.read.convert import convert as convert_history
from longpoll_judge.testing.generate import write
from longpoll_judge.testing.law_projection import project
from longpoll_judge.testing.recording import load


@click.group()
def history() -> None:
    """Work with recorded histories.

    \b
    Examples:
      longpoll history convert /tmp/history /tmp/history-parquet
      longpoll history steps /tmp/history /tmp/steps --topic T
    """


@history.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="HISTORY")
@click.argument("target", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--to", "into", type=click.Choice(get_args(FormatName)), default="parquet", show_default=True)
@json_option
@user_mistakes
def convert(source: Path, target: Path, into: FormatName, as_json: bool) -> None:
    """Write HISTORY into the new directory DIR in another format; the judge says the same of both.

    \b
    Examples:
      longpoll history convert /tmp/history /tmp/smaller              Parquet: a tenth of the size, judged faster
      longpoll history convert /tmp/smaller /tmp/again --to ndjson    one JSON object a line
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
@click.argument("source", type=click.Path(path_type=Path), metavar="HISTORY")
@click.argument("target", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--topic", required=True, help="The topic to follow.")
@click.option("--queue", type=click.IntRange(min=0), default=0, show_default=True, help="The queue of it.")
@json_option
@user_mistakes
def steps(source: Path, target: Path, topic: str, queue: int, as_json: bool) -> None:
    """Write what `serve --record` recorded of one queue as steps of the law, into the new directory DIR.

    `longpoll judge DIR` then says whether the law allows them. Each connection that pulls is one consumer, which must
    read all messages and go on where its last pull ended.

    \b
    Examples:
      longpoll serve --policy strict-clone --record /tmp/history      and a few consumers of queue 0
      longpoll history steps /tmp/history /tmp/steps --topic T
      longpoll judge /tmp/steps --engine local
    """
    found = project(load(source), topic, queue)
    if target.exists() and any(target.iterdir()):
        raise TargetExistsError(f"{target} is not empty; name a new directory")
    write(target, found.events, found.meta)
    assert found.meta.law is not None, "a history of steps declares its law"
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
