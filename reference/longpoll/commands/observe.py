"""`longpoll observe`: a proxy between RocketMQ clients and brokers that records what it sees, until a signal ends it.

Leaves out what the proxy does (`longpoll_observe`) and judging (`judge`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from longpoll.addresses import address_of
from longpoll.guard import printable, until_signalled
from longpoll.output import Exit, emit_json, fail, out, progress_bar, say, user_mistakes
from longpoll_observe import Observer
from longpoll_runtime.logs import logging_to
from longpoll_runtime.real import RealRuntime


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
    record: Path,
    as_json: bool,
) -> None:
    """Relay every byte between RocketMQ clients and brokers, and record a history, until Ctrl-C or SIGTERM.

    With --capture the history is made of what a capture saw of a broker's port, and nothing is relayed.

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
    """
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
