"""`longpoll history`: what can be done with a recorded history besides judging it.

Leaves out the formats (`longpoll_judge.convert`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from longpoll.output import emit_json, json_option, out, progress_bar, user_mistakes
from longpoll_judge.convert import FormatName
from longpoll_judge.convert import convert as convert_history


@click.group()
def history() -> None:
    """Work with recorded histories.

    \b
    Examples:
      longpoll history convert /tmp/history /tmp/history-parquet
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
