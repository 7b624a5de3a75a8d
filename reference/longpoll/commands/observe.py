"""`longpoll observe`: runs a recording proxy between RocketMQ clients and brokers until a signal.

The proxy is `longpoll_observe`; `judge` judges its histories.
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

from longpoll.exit_codes import printable, until_signalled
from longpoll.options.values import Amount, FilledPath, Whole, address_of
from longpoll.output import Exit, begin_recording, emit_json, end_recording, fail, out, progress_bar, say, user_mistakes
from longpoll_java.byteman_rules import SCAN_MS
from longpoll_java.jars import JAVA, NAMES, Jars, chosen
from longpoll_java.recording import Size
from longpoll_java.recording import record as record_inside
from longpoll_observe import Observer
from longpoll_runtime.log_stream import logging_to
from longpoll_runtime.real import RealRuntime

MESSAGES: Final = 10_000
QUEUES: Final = 16
REST_S: Final = 21.0
"""Seconds without sends: four periods of the scan, so that scans reach waiting pulls and deadlines pass."""
SCAN_MS_MIN: Final = 500
"""The shortest permitted period of a scan, in ms. A scan must be short compared with its period, because the
specification counts deadlines in periods."""
MESSAGES_MAX: Final = 10_000_000
QUEUES_MAX: Final = 1_000


@click.command()
@click.option(
    "--listen", default="127.0.0.1:10912", show_default=True, help="The proxy's address for the first broker."
)
@click.option("--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker to observe; repeatable.")
@click.option(
    "--name-server",
    metavar="HOST:PORT",
    help="A name server; the proxy rewrites its routes to lead clients to the proxy.",
)
@click.option(
    "--name-server-listen",
    metavar="HOST:PORT",
    help="The proxy's address for the name server. Default: a free port of 127.0.0.1.",
)
@click.option(
    "--capture",
    "captures",
    multiple=True,
    type=FilledPath(),
    metavar="FILE",
    help="Read a packet capture of the broker's port (pcap, pcapng) instead of running a proxy; repeatable.",
)
@click.option(
    "--inside",
    type=click.Choice(NAMES),
    help="Start this Java broker under load and record its internal steps, instead of running a proxy.",
)
@click.option(
    "--jars",
    type=FilledPath(file_okay=False),
    help="--inside: directory of the broker's jars. Default: Maven downloads them.",
)
@click.option(
    "--messages", type=Whole(1, MESSAGES_MAX), help=f"--inside: number of messages to send. Default: {MESSAGES}."
)
@click.option("--queues", type=Whole(1, QUEUES_MAX), help=f"--inside: number of queues to send to. Default: {QUEUES}.")
@click.option(
    "--rest-s",
    type=Amount(),
    help=f"--inside: seconds to pause halfway, so that scans reach the waiting pulls. Default: {REST_S:g}.",
)
@click.option(
    "--delayed-percent",
    type=Whole(0, 100),
    help="--inside: how often a thread is delayed when it reaches a breakpoint, in percent. Default: 0.",
)
@click.option(
    "--scan-ms",
    type=Whole(SCAN_MS_MIN, SCAN_MS),
    help=f"--inside: period of the scan; pulls are held for three periods. Default: {SCAN_MS}.",
)
@click.option("--seed", type=Whole(0), help="--inside: seed of the random pauses and delays. Default: 0.")
@click.option("--record", required=True, type=FilledPath(), help="Write the history into this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the ready line, or the result, as one JSON object.")
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
    """Run a proxy between RocketMQ clients and running brokers and record a history, until Ctrl-C or SIGTERM.

    The ready line lists the proxy's addresses for the clients: one per broker, and one for the name server. Every
    broker after the first gets a free port, and so does every other broker in the name server's routes.

    With --capture, the command reads a packet capture of the broker's port instead of running a proxy.

    With --inside, the command starts an unchanged Java broker under a load that races pulls, sends and scans. It
    records every step of the broker's hold table as a step of the specification (docs/java.md). `longpoll judge` then
    checks the steps against the broker's policy.

    Exit codes: 0 the history is complete, 2 a mistake in the command line, 3 the history is incomplete.

    \b
    Examples:
      longpoll serve --store /tmp/store              start a broker in another terminal
      longpoll observe --broker 127.0.0.1:10911 --record /tmp/history
      longpoll observe --listen 127.0.0.1:0 --broker 127.0.0.1:10911 --name-server 127.0.0.1:9876 --record /tmp/history
      longpoll judge /tmp/history                    judge the recorded history
      tcpdump -i any -w port.pcap tcp port 10911     capture packets on the broker's machine
      longpoll observe --capture port.pcap --broker 10.0.0.5:10911 --record /tmp/captured
      longpoll observe --inside java-4.9.7 --messages 100000 --record /tmp/steps
      longpoll observe --inside java-5.5.0 --delayed-percent 5 --scan-ms 1000 --seed 7 --record /tmp/delayed
    """
    if inside is not None or jars is not None:
        if brokers or captures or name_server is not None or name_server_listen is not None:
            raise click.UsageError(
                "--inside and --jars start their own broker; remove --broker, --name-server, --name-server-listen and "
                "--capture"
            )
        rest_s = REST_S if rest_s is None else rest_s
        often = (delayed_percent or 0, scan_ms or SCAN_MS)
        size = Size(queues or QUEUES, messages or MESSAGES, seed or 0, rest_s, *often)
        _record_inside(chosen(inside, jars), record, size, as_json=as_json)
        return
    if any(each is not None for each in (messages, queues, rest_s, delayed_percent, scan_ms, seed)):
        raise click.UsageError(
            "--messages, --queues, --rest-s, --delayed-percent, --scan-ms and --seed need --inside, the Java broker to "
            "start"
        )
    runtime = RealRuntime()
    if captures:
        if name_server is not None or name_server_listen is not None:
            raise click.UsageError("--capture runs no proxy; remove --name-server and --name-server-listen")
        _read_captures(runtime, captures, brokers, record, as_json=as_json)
        return
    begin_recording(record)
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
        end_recording(record, observer.trouble)


def _record_inside(jars: Jars, directory: Path, size: Size, *, as_json: bool) -> None:
    if directory.exists():
        raise click.UsageError(f"{directory} already exists; choose a new directory")
    with progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task(f"sending to Java {jars.version}", total=size.messages)
        done = record_inside(jars, directory, size, lambda sent: progress.update(task, completed=sent))
    if as_json:
        emit_json({**attrs.asdict(done), "on": f"{JAVA}{jars.version}", "record": str(directory)})
        return
    out.print(
        f"{done.steps:,} steps of {done.policy} in {size.queues} queues: {done.messages:,} messages and {done.pulls:,} "
        f"pulls in {done.seconds:.1f} s; next: longpoll judge {directory}",
        soft_wrap=True,
    )


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
    from longpoll_observe.capture import read_captures  # noqa: PLC0415 - needs an extra, unlike the proxy

    if not brokers:
        raise click.UsageError("--capture needs --broker, the address of the broker in the capture")
    if record.exists() and (not record.is_dir() or any(record.iterdir())):
        raise click.UsageError(f"{record} is not empty; choose a new directory")
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
            f"{report.packets} packets of {report.connections} connections ({report.partly_seen} older than the "
            f"capture): {report.requests} requests, {report.answers} answers; {report.gaps} gaps, "
            f"{report.dropped} packets dropped; clock: {report.clock}",
            soft_wrap=True,
        )
    lacking = [*report.damage, *([report.trouble] if report.trouble else [])]
    if lacking:
        fail("; ".join(lacking), Exit.UNKNOWN)
