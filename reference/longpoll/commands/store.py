"""`longpoll store show|verify|dump`: look at a store directory, RocketMQ's or ours, without writing to it.

Leaves out the reading itself (`longpoll_broker.store.inspect`, `verify`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from longpoll.output import Exit, emit_json, err, json_option, out, table, user_mistakes
from longpoll_broker.runtime.files import RealFiles
from longpoll_broker.store.inspect import (
    Blank,
    FoundQueue,
    StoreDirectory,
    Torn,
    is_pre_blank,
    record_fields,
)
from longpoll_broker.store.record import Damage, Record
from longpoll_broker.store.verify import verify as verify_store

topic_option = click.option("--topic", help="Only this topic.")
queue_option = click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue id.")
from_option = click.option(
    "--from", "offset_first", type=click.IntRange(min=0), default=0, show_default=True, help="First queue offset."
)
count_option = click.option("--count", type=click.IntRange(min=0), help="At most so many lines.")
directory_argument = click.argument("directory", metavar="DIR", type=click.Path())


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Show, verify or dump a store directory of RocketMQ 4.9 or 5.x, or of `longpoll serve`; never writes to it.

    \b
    Examples:
      longpoll store verify ~/store                        are records whole, do log and queues agree?
      longpoll store show ~/store                          the queues and their ranges
      longpoll store show ~/store --topic T --queue 0      the messages of a queue, as a consumer gets them
      longpoll store dump ~/store --json                   every record of the commit log, one JSON line each
      longpoll store dump ~/store --what units --json      every consume-queue unit

    Exit codes: 0 sound, 1 damaged, 2 no store or not readable.
    """


@store.command("verify")
@directory_argument
@json_option
@user_mistakes
def verify_command(directory: str, as_json: bool) -> None:
    """Check every record's CRC and place, and that log and queues say the same.

    A problem is `damage` (exit 1), or the `tail` that a crash leaves and opening the store repairs (exit 0).

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
        emit_json({"messages": verdict.messages, "queues": queues, "problems": problems})
    else:
        out.print(f"{verdict.messages} messages in {len(queues)} queues, {verdict.problem_count} problems")
        if problems:
            table("Problems", list(problems[0]), (list(problem.values()) for problem in problems))
    if verdict.problem_count > len(verdict.problems):
        err.print(f"longpoll: {verdict.problem_count - len(verdict.problems)} more problems are not listed")
    if verdict.is_damaged:
        raise SystemExit(Exit.VIOLATED)


@store.command("show")
@directory_argument
@topic_option
@queue_option
@from_option
@count_option
@json_option
@user_mistakes
def show_command(
    directory: str, *, topic: str | None, queue_id: int | None, offset_first: int, count: int | None, as_json: bool
) -> None:
    """Show what consumers can read: the queues, or the messages of a topic in queue order.

    With --json, every message of the chosen queues is one line.

    \b
    Examples:
      longpoll store show ~/store
      longpoll store show ~/store --topic T --queue 0 --from 100 --count 10 --json
    """
    with _opened(directory) as found:
        if topic is None and queue_id is None and not as_json:
            _show_queues(found)
            return
        lines = itertools.chain.from_iterable(
            _messages(found, queue, offset_first) for queue in found.queues if _is_chosen(queue, topic, queue_id)
        )
        _print_lines(itertools.islice(lines, count), as_json)


@store.command("dump")
@directory_argument
@topic_option
@queue_option
@from_option
@count_option
@click.option(
    "--what",
    type=click.Choice(["records", "blanks", "units", "all"]),
    default="records",
    show_default=True,
    help="The log's records, its blanks, the queues' units, or all of them.",
)
@json_option
@user_mistakes
def dump_command(
    directory: str,
    *,
    topic: str | None,
    queue_id: int | None,
    offset_first: int,
    count: int | None,
    what: str,
    as_json: bool,
) -> None:
    """Dump the commit log in its own order, one record a line with every decoded field.

    Damaged places are named on stderr; reading goes on with the next whole record, and the exit code is 1.

    \b
    Examples:
      longpoll store dump ~/store --json
      longpoll store dump ~/store --what blanks --json
      longpoll store dump ~/store --what units --topic T --json
    """
    torn: list[Torn] = []
    with _opened(directory) as found:
        lines: Iterator[dict[str, Any]] = iter(())
        if what != "units":
            lines = _log_lines(found, what, torn, (topic, queue_id, offset_first))
        if what in {"units", "all"}:
            chosen = (queue for queue in found.queues if _is_chosen(queue, topic, queue_id))
            units = itertools.chain.from_iterable(_unit_lines(queue, offset_first) for queue in chosen)
            lines = itertools.chain(lines, units)
        _print_lines(itertools.islice(lines, count), as_json)
        damaged = [place for place in torn if place.followed or not found.crashed]
    for place in torn:
        text = f"longpoll: {place.file}, byte {place.offset}: found {place.found}, expected {place.expected}"
        err.print(text, soft_wrap=True, markup=False)
    if damaged:
        raise SystemExit(Exit.VIOLATED)


@contextmanager
def _opened(directory: str) -> Iterator[StoreDirectory]:
    found = StoreDirectory(RealFiles(), directory)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def _progress(title: str, directory: str) -> Iterator[Any]:
    """A bar over the bytes of the directory's files, on stderr; gone when the work is done."""
    with _opened(directory) as found:
        total = sum(len(file.view) for file in found.log)
        total += sum(len(file.view) for queue in found.queues for file in queue.files)
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def advance(size: int) -> None:
            progress.advance(task, size)

        yield advance


def _is_chosen(queue: FoundQueue, topic: str | None, queue_id: int | None) -> bool:
    return topic in {None, queue.topic} and queue_id in {None, queue.queue_id}


def _show_queues(found: StoreDirectory) -> None:
    ranges = [found.range_of(queue) for queue in found.queues]
    table(
        f"Queues ({'not closed' if found.crashed else 'cleanly closed'}, {len(found.log)} commit-log files)",
        ["topic", "queue", "min", "max"],
        ((each.topic, each.queue_id, each.offset_min, each.offset_max) for each in ranges),
    )


def _messages(found: StoreDirectory, queue: FoundQueue, offset_first: int) -> Iterator[dict[str, Any]]:
    """The queue's messages as a consumer gets them; a message that cannot be read says why."""
    for offset, physical_offset, size, tags_code in queue.units(offset_first):
        if is_pre_blank(physical_offset, size) or physical_offset < found.log_start:
            continue
        record = found.record_at(physical_offset)
        if isinstance(record, Damage):
            file, position = queue.place(offset)
            why = f"{file}, byte {position}, points to physical offset {physical_offset}, where there is {record.found}"
            yield {"kind": "damage", "topic": queue.topic, "queueId": queue.queue_id, "queueOffset": offset, "why": why}
        else:
            yield {**record_fields(record), "tagsCode": tags_code}


def _log_lines(
    found: StoreDirectory, what: str, torn: list[Torn], chosen: tuple[str | None, int | None, int]
) -> Iterator[dict[str, Any]]:
    topic, queue_id, offset_first = chosen
    for entry in found.walk_log():
        if isinstance(entry, Torn):
            torn.append(entry)
        elif isinstance(entry, Blank):
            if what != "records":
                yield {"kind": "blank", "physicalOffset": entry.physical_offset, "size": entry.size}
        elif what != "blanks" and _is_wanted(entry, topic, queue_id, offset_first):
            yield record_fields(entry)


def _is_wanted(record: Record, topic: str | None, queue_id: int | None, offset_first: int) -> bool:
    return topic in {None, record.topic} and queue_id in {None, record.queue_id} and record.queue_offset >= offset_first


def _unit_lines(queue: FoundQueue, offset_first: int) -> Iterator[dict[str, Any]]:
    for offset, physical_offset, size, tags_code in queue.units(offset_first):
        yield {
            "kind": "unit",
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": offset,
            "physicalOffset": physical_offset,
            "size": size,
            "tagsCode": tags_code,
        }


def _print_lines(lines: Iterator[dict[str, Any]], as_json: bool) -> None:
    for line in lines:
        if as_json:
            emit_json(line)
        else:
            text = "  ".join(f"{name}={value}" for name, value in line.items())
            # Properties are separated by control characters, which a terminal must not see.
            shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
            out.print(shown, markup=False, soft_wrap=True)
