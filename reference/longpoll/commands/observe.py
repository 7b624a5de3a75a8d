"""`longpoll observe`: a proxy between RocketMQ clients and brokers that records what it sees, until a signal ends it.

Leaves out what the proxy does (`longpoll_observe`) and judging (`judge`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from longpoll.addresses import address_of
from longpoll.guard import printable, until_signalled
from longpoll.output import Exit, emit_json, fail, say, user_mistakes
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
@click.option("--record", required=True, type=click.Path(path_type=Path), help="Write the history into this directory.")
@click.option("--json", "as_json", is_flag=True, help="The ready line as one JSON object.")
@user_mistakes
def observe(
    *,
    listen: str,
    brokers: tuple[str, ...],
    name_server: str | None,
    name_server_listen: str | None,
    record: Path,
    as_json: bool,
) -> None:
    """Relay every byte between RocketMQ clients and brokers, and record a history, until Ctrl-C or SIGTERM.

    The ready line tells where clients find each broker and the name server. A broker beyond the first gets a free port;
    so does one that only a route names, when the route is first asked for.

    Exit code 0 when the history is whole, 3 when the disk did not take all of it.

    \b
    Examples:
      longpoll observe --broker 127.0.0.1:10911 --record /tmp/history
      longpoll observe --listen 127.0.0.1:0 --broker 127.0.0.1:10911 --name-server 127.0.0.1:9876 --record /tmp/history
      longpoll judge /tmp/history                    what the broker did wrong
    """
    runtime = RealRuntime()
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
