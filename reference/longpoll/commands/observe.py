"""`longpoll observe`: a proxy between RocketMQ clients and brokers that records what it sees, until a signal ends it.

Leaves out what the proxy does (`longpoll_observe`) and judging (`judge`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import click
import msgspec
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from longpoll.addresses import address_of
from longpoll.guard import printable, until_signalled
from longpoll.options.amounts import Amount
from longpoll.output import Exit, emit_json, fail, out, progress_bar, say, user_mistakes
from longpoll_java.inside.record import Size
from longpoll_java.inside.record import record as record_inside
from longpoll_java.jars import JAVA, NAMES, Jars, chosen
from longpoll_java.rules import SCAN_MS
from longpoll_observe import Observer
from longpoll_runtime.logs import logging_to
from longpoll_runtime.real import RealRuntime

MESSAGES: Final = 10_000
QUEUES: Final = 16
REST_S: Final = 21.0
"""Four periods of the scan: those who wait are walked, and their deadlines pass."""
SCAN_MS_MIN: Final = 500
"""A round of the scan has to be short beside its period, by which the law counts the ticks to a deadline."""
MESSAGES_MAX: Final = 10_000_000
QUEUES_MAX: Final = 1_000


@click.command()
@click.option("--listen", default="127.0.0.1:10912", show_default=True, help="Where clients reach the first broker.")
@click.option("--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker to observe; repeatable.")
@click.option("--name-server", metavar="HOST:PORT", help="Its routes are rewritten to lead through the proxy.")
@click.option(
    "--name-server-listen", metavar="HOST:PORT", help="Where clients reach the name server; none: a free port."
)
@click.option(
    "--capture",
    "captures",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read a capture of the broker's port (pcap, pcapng) instead of relaying; repeatable.",
)
@click.option(
    "--inside",
    type=click.Choice(NAMES),
    help="Start this Java broker, send to it, and record its own steps instead of relaying.",
)
@click.option(
    "--jars",
    type=click.Path(path_type=Path, file_okay=False),
    help="Of --inside: a folder of the broker's jars, and no Maven.",
)
@click.option(
    "--messages", type=click.IntRange(1, MESSAGES_MAX), help=f"Of --inside: how many are sent. [default: {MESSAGES}]"
)
@click.option(
    "--queues", type=click.IntRange(1, QUEUES_MAX), help=f"Of --inside: how many they are sent to. [default: {QUEUES}]"
)
@click.option(
    "--rest-s",
    type=Amount(),
    help="Of --inside: seconds in the middle in which nothing is sent, so that scans come to those who wait. "
    f"[default: {REST_S:g}]",
)
@click.option(
    "--delayed-percent",
    type=click.IntRange(0, 100),
    help="Of --inside: of a hundred times that a thread comes to a place, how often it waits there. [default: 0]",
)
@click.option(
    "--scan-ms",
    type=click.IntRange(SCAN_MS_MIN, SCAN_MS),
    help=f"Of --inside: how often a rule has the scan come, with holds of three times that. [default: {SCAN_MS}]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Of --inside: what the sends' pauses and the delays are drawn from. [default: 0]",
)
@click.option("--record", required=True, type=click.Path(path_type=Path), help="Write the history into this directory.")
@click.option("--json", "as_json", is_flag=True, help="The ready line as one JSON object.")
@user_mistakes
def observe(
    *,
    listen: str,
    brokers: tuple[str, ...],
    name_server: str | None,
    name_server_listen: str | None,
    captures: tuple[Path, ...],
    inside: str | None,
    jars: Path | None,
    messages: int | None,
    queues: int | None,
    rest_s: float | None,
    delayed_percent: int | None,
    scan_ms: int | None,
    seed: int | None,
    record: Path,
    as_json: bool,
) -> None:
    """Relay every byte between RocketMQ clients and brokers, and record a history, until Ctrl-C or SIGTERM.

    With --capture the history is made of what a capture saw of a broker's port, and nothing is relayed.

    With --inside an unchanged Java broker is started under a load that races pulls, sends and scans, and every step of
    its hold table is recorded as a step of the law (docs/java.md); `longpoll judge` holds them against its policy.

    The ready line tells where clients find each broker and the name server. A broker beyond the first gets a free port;
    so does one that only a route names, when the route is first asked for.

    Exit code 0 when the history is whole, 3 when the disk did not take all of it, or a capture lacks something.

    \b
    Examples:
      longpoll observe --broker 127.0.0.1:10911 --record /tmp/history
      longpoll observe --listen 127.0.0.1:0 --broker 127.0.0.1:10911 --name-server 127.0.0.1:9876 --record /tmp/history
      longpoll judge /tmp/history                    what the broker did wrong
      tcpdump -i any -w port.pcap tcp port 10911     on the broker's machine, and then
      longpoll observe --capture port.pcap --broker 10.0.0.5:10911 --record /tmp/history
      longpoll observe --inside java-4.9.7 --messages 100000 --record /tmp/steps
      longpoll observe --inside java-5.5.0 --delayed-percent 5 --scan-ms 1000 --seed 7 --record /tmp/delayed
      longpoll coverage /tmp/delayed                 which of the law's transitions were seen
    """
    if inside is not None or jars is not None:
        if brokers or captures or name_server is not None or name_server_listen is not None:
            raise click.UsageError("--inside starts a broker itself: leave out --broker, --name-server and --capture")
        rest_s = REST_S if rest_s is None else rest_s
        often = (delayed_percent or 0, scan_ms or SCAN_MS)
        size = Size(queues or QUEUES, messages or MESSAGES, seed or 0, rest_s, *often)
        _record_inside(chosen(inside, jars), record, size, as_json=as_json)
        return
    if any(each is not None for each in (messages, queues, rest_s, delayed_percent, scan_ms, seed)):
        said = (
            "--messages, --queues, --rest-s, --delayed-percent, --scan-ms and --seed are of --inside, which names the "
            "Java broker to start"
        )
        raise click.UsageError(said)
    runtime = RealRuntime()
    if captures:
        if name_server is not None or name_server_listen is not None:
            raise click.UsageError("a capture is read and nothing is relayed: leave out --name-server")
        _read_captures(runtime, captures, brokers, record, as_json=as_json)
        return
    stopped = runtime.event()
    with until_signalled(stopped.set):
        with (
            logging_to(sys.stderr, "text", "warning"),
            Observer.start(
                runtime,
                brokers=[address_of(broker) for broker in brokers],
                record_directory=str(record.absolute()),
                name_server=None if name_server is None else address_of(name_server),
                listen=address_of(listen),
                name_server_listen=None if name_server_listen is None else address_of(name_server_listen),
            ) as observer,
        ):
            _say_ready(observer, record, as_json=as_json)
            stopped.wait()
        if observer.trouble:
            fail(observer.trouble, Exit.UNKNOWN)


def _record_inside(jars: Jars, directory: Path, size: Size, *, as_json: bool) -> None:
    """Record a Java broker's own steps, and say how many."""
    _refuse_used(directory)
    with progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task(f"sending to Java {jars.version}", total=size.messages)
        done = record_inside(jars, directory, size, lambda sent: progress.update(task, completed=sent))
    if as_json:
        emit_json({**attrs.asdict(done), "on": f"{JAVA}{jars.version}", "record": str(directory)})
        return
    out.print(
        f"{done.steps:,} steps of {done.policy} in {size.queues} queues: {done.messages:,} messages and {done.pulls:,} "
        f"pulls in {done.seconds:.1f} s; judge them: longpoll judge {directory}",
        soft_wrap=True,
    )


def _refuse_used(directory: Path) -> None:
    if directory.exists():
        raise click.UsageError(f"{directory} is there already; name a new directory")


def _say_ready(observer: Observer, record: Path, *, as_json: bool) -> None:
    doors = {name: f"{host}:{port}" for name, (host, port) in observer.doors.items()}
    name_server = observer.name_server_address
    served = None if name_server is None else "{}:{}".format(*name_server)
    if as_json:
        emit_json({"ready": True, "brokers": doors, "name-server": served, "record": str(record)})
        return
    words = [f"broker={name}@{door}" for name, door in doors.items()]
    if served is not None:
        words.append(f"name-server={served}")
    say(printable(" ".join(["ready", *words, f"record={record}"])))


def _read_captures(
    runtime: RealRuntime, files: Sequence[Path], brokers: Sequence[str], record: Path, *, as_json: bool
) -> None:
    """Make a history of captures, and say what became of them."""
    from longpoll_observe.capture import read_captures  # noqa: PLC0415 - needs an extra, which relaying does not

    if not brokers:
        raise click.UsageError("name the --broker of which packets are to be read")
    if record.exists() and (not record.is_dir() or any(record.iterdir())):
        raise click.UsageError(f"{record} is not empty; name a new directory")
    with (
        logging_to(sys.stderr, "text", "error"),
        progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as progress,
    ):
        task = progress.add_task("reading", total=None)
        report = read_captures(
            runtime,
            files,
            brokers=[address_of(broker) for broker in brokers],
            record_directory=str(record.absolute()),
            say=lambda done, whole: progress.update(task, completed=done, total=whole),
        )
    if as_json:
        emit_json({**msgspec.to_builtins(report), "record": str(record)})
    else:
        out.print(
            f"{report.packets} packets of {report.connections} connections ({report.partly_seen} there before): "
            f"{report.requests} requests, {report.answers} answers; bytes missing {report.gaps} times, "
            f"{report.dropped} packets dropped; clock: {report.clock}",
            soft_wrap=True,
        )
    lacking = [*report.damage, *([report.trouble] if report.trouble else [])]
    if lacking:
        fail("; ".join(lacking), Exit.UNKNOWN)
