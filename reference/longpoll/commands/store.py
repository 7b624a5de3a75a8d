"""`longpoll store verify`: checks a store directory, RocketMQ's or ours, and never writes to it.

`longpoll_broker.store.inspect` and `verify` read the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from longpoll.commands import gone
from longpoll.output import Exit, emit_json, err, json_option, out, progress_bar, styled, table, user_mistakes
from longpoll_broker.store.inspect import StoreDirectory
from longpoll_broker.store.verify import verify as verify_store
from longpoll_runtime.files import RealFiles

directory_argument = click.argument("directory", metavar="DIR", type=click.Path())


class _StoreGroup(click.Group):
    """A group whose removed commands print a sentence with their replacement."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or gone.answer(f"store {cmd_name}")


@click.group(cls=_StoreGroup, context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Verify a store directory of RocketMQ 4.9, RocketMQ 5.x or `longpoll serve`.

    The command never writes to the store. Stop its broker first, or the result may be incomplete.

    \b
    Example:
      longpoll store verify ~/store      check that the records and queues are intact

    Exit codes: 0 sound, 1 damaged, 2 not a store, or not readable, 3 not all of it can be checked.
    """


@store.command("verify")
@directory_argument
@json_option
@user_mistakes
def verify_command(directory: str, as_json: bool) -> None:
    """Check the CRC and place of every record, and that the commit log and the consume queues agree.

    Batch and extended consume queues, compacted topics and RocksDB are not checked: if they have contents, the exit
    code is 3.

    There are two kinds of problems. `damage` leads to exit code 1. A `tail` is the rest of a crash, which the broker
    repairs when it opens the store; it leads to exit code 0.

    \b
    Example:
      longpoll store verify ~/store --json
    """
    files = RealFiles()
    with _progress("verify", directory) as advance:
        verdict = verify_store(files, directory, advance)
    queues = [
        {"topic": queue.topic, "queue": queue.queue_id, "min": queue.offset_min, "max": queue.offset_max}
        for queue in verdict.queues
    ]
    problems = [attrs.asdict(problem) for problem in verdict.problems]
    if as_json:
        kept = {"files": verdict.cut_files, "bytes": verdict.cut_bytes}
        told = {"messages": verdict.messages, "lackingSectors": verdict.lacking, "cut": kept}
        emit_json(
            {**told, "queues": queues, "problems": problems, "unread": [attrs.asdict(each) for each in verdict.unread]}
        )
    else:
        rest = "not all of it can be read" if verdict.unread else "sound"
        out.print(styled("[bold]verdict: {}[/]", "damaged" if verdict.is_damaged else rest))
        out.print(f"{verdict.messages} messages in {len(queues)} queues, {verdict.problem_count} problems")
        if verdict.lacking:
            out.print(f"{verdict.lacking} messages may lack a disk sector in a part that no checksum covers")
        if verdict.cut_files:
            cut = f"{verdict.cut_bytes} bytes in {verdict.cut_files} files of commitlog_cut"
            out.print(f"{cut}: earlier starts cut them off after damage; they may contain acknowledged messages")
        for part in verdict.unread:
            out.print(styled("{}", f"{part.path} was not checked: it contains {part.what}"))
        if problems:
            table("Problems", list(problems[0]), (list(problem.values()) for problem in problems))
    if verdict.problem_count > len(verdict.problems):
        err.print(f"longpoll: {verdict.problem_count - len(verdict.problems)} more problems")
    if verdict.is_damaged:
        raise SystemExit(Exit.VIOLATED)
    if verdict.unread:
        raise SystemExit(Exit.UNKNOWN)


@contextmanager
def _opened(directory: str) -> Iterator[StoreDirectory]:
    found = StoreDirectory(RealFiles(), directory)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def _progress(title: str, directory: str) -> Iterator[Any]:
    with _opened(directory) as found:
        total = sum(file.size for file in found.log)
        total += sum(file.size for queue in found.queues for file in queue.files)
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task(title, total=total)

        def advance(size: int) -> None:
            progress.advance(task, size)

        yield advance
