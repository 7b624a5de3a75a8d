"""`longpoll store show|verify|dump`: reads a store directory, RocketMQ's or ours, and never writes to it.

`longpoll_broker.store.inspect` and `verify` read the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from longpoll.exit_codes import printable
from longpoll.options.values import Whole
from longpoll.output import Exit, emit_json, err, json_option, out, progress_bar, styled, table, user_mistakes
from longpoll_broker.store.consume_queue import is_address
from longpoll_broker.store.inspect import Blank, FoundQueue, StoreDirectory, Torn, is_pre_blank, record_fields
from longpoll_broker.store.verify import verify as verify_store
from longpoll_protocol.log_record import Damage, Record
from longpoll_runtime.files import RealFiles

topic_option = click.option("--topic", help="Only this topic. Default: all topics.")
queue_option = click.option("--queue", "queue_id", type=Whole(min=0), help="Only the queue with this id.")
from_option = click.option(
    "--from", "offset_first", type=Whole(min=0), default=0, show_default=True, help="First queue offset."
)
key_option = click.option("--key", help="Only messages with this key or unique key.")
id_option = click.option("--id", "message_id", help="Only the message with this id, which the broker returned on send.")
stored_from_option = click.option(
    "--stored-from", "stored_from_ms", type=int, help="Only messages stored at this time or later, in ms since 1970."
)
stored_to_option = click.option(
    "--stored-to", "stored_to_ms", type=int, help="Only messages stored at this time or earlier, in ms since 1970."
)
count_option = click.option("--count", type=Whole(min=0), help="Maximum lines to show. Default: all.")
directory_argument = click.argument("directory", metavar="DIR", type=click.Path())


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Show, verify or dump a store directory of RocketMQ 4.9, RocketMQ 5.x or `longpoll serve`.

    These commands never write to the store. Stop its broker first, or the result may be incomplete.

    \b
    Examples:
      longpoll store verify ~/store                        check that the records and queues are intact
      longpoll store show ~/store                          list the queues and their offsets
      longpoll store show ~/store --topic T --queue 0      list the messages of a queue, as a consumer gets them
      longpoll store dump ~/store --json                   print every record of the commit log as a JSON line
      longpoll store dump ~/store --what units --json      print every unit of the consume queues

    Exit codes: 0 sound, 1 damaged, 2 not a store, or not readable, 3 not all of it can be checked.
    """


@store.command("verify")
@directory_argument
@json_option
@user_mistakes
def verify_command(directory: str, as_json: bool) -> None:
    """Check the CRC and place of every record, and that the commit log and the consume queues agree.

    Batch and extended consume queues, compacted topics and RocksDB are not checked: with them the exit code is 3.

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


@store.command("show")
@directory_argument
@topic_option
@queue_option
@from_option
@key_option
@id_option
@stored_from_option
@stored_to_option
@count_option
@json_option
@user_mistakes
def show_command(
    directory: str,
    *,
    topic: str | None,
    queue_id: int | None,
    offset_first: int,
    count: int | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """List the queues, or the messages of a queue, as consumers can read them.

    Without options, the command lists the queues. With --json or an option that selects messages, it lists messages in
    queue order, one per line. It searches keys in the messages themselves, not in the index.

    \b
    Examples:
      longpoll store show ~/store
      longpoll store show ~/store --topic T --queue 0 --from 100 --count 10 --json
      longpoll store show ~/store --key order-17 --json
      longpoll store show ~/store --id 7F00000100002A9F00000000000003E8
      longpoll store show ~/store --topic T --stored-from 1795246130656 --stored-to 1795246204434
    """
    wanted = _Wanted(**asked)
    with _opened(directory) as found:
        if topic is None and queue_id is None and not as_json and wanted == _Wanted():
            _show_queues(found)
            return
        lines = itertools.chain.from_iterable(
            _messages(found, queue, offset_first) for queue in found.queues if _is_chosen(queue, topic, queue_id)
        )
        _print_lines(itertools.islice(filter(wanted.has, lines), count), as_json)


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
    help="The commit log's records or blanks, the consume queues' units, or everything.",
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
    """Print the commit log in its order, one record per line with all its fields.

    The command reports damage on stderr, continues with the next intact record, and then exits with 1.

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
        err.print(text, soft_wrap=True)
    if damaged:
        raise SystemExit(Exit.VIOLATED)


@attrs.frozen
class _Wanted:
    """The filter of messages; None accepts every value."""

    key: str | None = None
    message_id: str | None = None
    stored_from_ms: int | None = None
    stored_to_ms: int | None = None

    def has(self, line: dict[str, Any]) -> bool:
        """Whether a message's line matches; a damaged one matches only an empty filter."""
        if line["kind"] == "damage":
            return self == _Wanted()
        properties, stored_ms = line["properties"], line["storeTimestamp"]
        return (
            self.key in {None, properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")}
            and (self.message_id is None or self.message_id.upper() == line["msgId"])
            and (self.stored_from_ms is None or stored_ms >= self.stored_from_ms)
            and (self.stored_to_ms is None or stored_ms <= self.stored_to_ms)
        )


@contextmanager
def _opened(directory: str) -> Iterator[StoreDirectory]:
    found = StoreDirectory(RealFiles(), directory)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def _progress(title: str, directory: str) -> Iterator[Any]:
    """A progress bar over the bytes of the store's files, on stderr."""
    with _opened(directory) as found:
        total = sum(file.size for file in found.log)
        total += sum(file.size for queue in found.queues for file in queue.files)
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as progress:
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
    """The queue's messages as a consumer gets them; a damaged one has a reason instead."""
    for offset, physical_offset, size, tags_code in queue.units(offset_first):
        if is_pre_blank(physical_offset, size) or physical_offset < found.log_start:
            continue
        record = found.record_at(physical_offset)
        if isinstance(record, Damage):
            file, position = queue.place(offset)
            why = f"{file}, byte {position}, points to physical offset {physical_offset}, where there is {record.found}"
            yield {"kind": "damage", "topic": queue.topic, "queueId": queue.queue_id, "queueOffset": offset, "why": why}
        else:
            yield record_fields(record, found.tags_code_of(record) if is_address(tags_code) else tags_code)


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
            yield record_fields(entry, found.tags_code_of(entry))


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
            # Control characters separate the properties; `printable` keeps all on one line.
            out.print(printable(text), soft_wrap=True)
