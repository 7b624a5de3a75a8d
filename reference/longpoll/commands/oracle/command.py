"""`longpoll oracle`: checks step by step whether a program's run is one of the specification.

The lines are in `requests`, the sessions in `session`, and the input and output in `connections`.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from longpoll.addresses import address_of
from longpoll.commands.oracle.connections import serve_standard, serve_tcp
from longpoll.commands.oracle.requests import Oracle
from longpoll.commands.oracle.session import CompiledSpecification, Total
from longpoll.exit_codes import interrupted_by_sigterm, until_signalled
from longpoll.options.specification import aspect_option, knob_option, policy_option
from longpoll.output import Exit, check_directory, emit_json, err, json_option, json_text, say, user_mistakes
from longpoll_spec.errors import ConfigError
from longpoll_spec.history import Law
from longpoll_spec.policy import preset, with_knobs

BACKLOG = 128


@click.command()
@policy_option()
@knob_option()
@click.option("--requests", default=2, show_default=True, help="Request slots: maximum concurrent pulls.")
@click.option("--queues", default=1, show_default=True, help="Queues that share one dispatcher and one scanner.")
@click.option("--tags", default=1, show_default=True, help="Number of different tags.")
@click.option("--hold-ticks", default=1, show_default=True, help="A pull's deadline in ticks.")
@click.option("--scan-ticks", default=2, show_default=True, help="Ticks between two scans.")
@aspect_option("Add this feature to the model; repeatable.")
@click.option(
    "--hidden",
    multiple=True,
    metavar="ACTION",
    help="An action that the program may take without reporting it; repeatable.",
)
@click.option("--listen", metavar="HOST:PORT", help="Listen for TCP connections instead of using standard input.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the history of each session into a subdirectory of DIR with the session's name.",
)
@json_option
@user_mistakes
def oracle(
    *,
    policy_name: str,
    knobs: Sequence[str],
    requests: int,
    queues: int,
    tags: int,
    hold_ticks: int,
    scan_ticks: int,
    aspects: Sequence[str],
    hidden: Sequence[str],
    listen: str | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Check a program's steps, sent as JSON lines, against the specification.

    The program sends one request per line (docs/oracle.md). The answer says whether the specification allows the step.
    Lines come from standard input until it ends, or over TCP until Ctrl-C or SIGTERM. At the end the command
    prints a summary. --json prints it as one object: to standard error, or with --listen to standard output.

    \b
    Examples:
      echo '{"do": "may"}' | longpoll oracle --policy strict
      longpoll oracle --policy rocketmq-4.9 --record histories
      longpoll oracle --policy strict-clone --knob recheck_after_keep=false --hidden tick
      longpoll oracle --policy strict --listen 127.0.0.1:0 --json

    Exit codes: 0 all steps allowed, 1 a step rejected or a property violated, 2 a mistake in the command line,
    3 unknown: no step was sent, a line was invalid, or a property is undecided.
    """
    law = Law(
        requests=requests,
        queues=queues,
        tags=tags,
        hold_ticks=hold_ticks,
        scan_ticks=scan_ticks,
        aspects=sorted(set(aspects)),
        hidden=sorted(set(hidden)),
    )
    beside = CompiledSpecification(with_knobs(preset(policy_name), knobs), law)
    if record is not None:
        check_directory(record, "histories")
    asked = Oracle(beside, record)
    try:
        if listen is None:
            with interrupted_by_sigterm():
                serve_standard(asked)
        else:
            _serve_tcp(asked, listen, as_json=as_json)
    finally:
        asked.close()
    _say_end(asked, as_json=as_json, is_standard=listen is None)
    sys.exit(_exit_code(asked.total))


def _exit_code(total: Total) -> Exit:
    if total.refused or total.broken:
        return Exit.VIOLATED
    return Exit.UNKNOWN if total.unknown or total.mistakes or not total.steps else Exit.OK


def _serve_tcp(asked: Oracle, listen: str, *, as_json: bool) -> None:
    stopped = threading.Event()
    with until_signalled(stopped.set), _listener(listen) as listener:
        host, port = listener.getsockname()[:2]
        if as_json:
            emit_json({"ready": True, "address": f"{host}:{port}", "policy": asked.beside.policy.name})
        else:
            say(f"ready oracle={host}:{port} policy={asked.beside.policy.name}")
        serve_tcp(asked, listener, stopped.is_set)


def _listener(listen: str) -> socket.socket:
    """A listening socket; raises `ConfigError`."""
    address = address_of(listen)
    try:
        return socket.create_server(address, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {listen}: {error}; choose another address or port 0") from None


def _say_end(asked: Oracle, *, as_json: bool, is_standard: bool) -> None:
    total = asked.total
    if not as_json:
        err.tell(total.told())
    elif is_standard:
        # Standard output has only answers. The JSON stays on one line on any terminal.
        err.print(json_text(total.fields()), soft_wrap=True, markup=False)
    else:
        emit_json(total.fields())
