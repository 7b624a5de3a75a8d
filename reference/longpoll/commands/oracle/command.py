"""`longpoll oracle`: reads steps as lines from standard input or TCP connections, and checks them one by one.

The lines and the sessions are in `session`. One thread serves all connections.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import click
from attrs import define, field

from longpoll.commands.oracle.session import LINE_MAX, CompiledSpecification, Oracle, Total
from longpoll.exit_codes import interrupted_by_sigterm, until_signalled
from longpoll.options.specification import aspect_option, knob_option, policy_option
from longpoll.options.values import FilledPath, address_of
from longpoll.output import Exit, check_directory, emit_json, err, json_option, json_text, say, user_mistakes
from longpoll_spec.errors import ConfigError
from longpoll_spec.history import Law
from longpoll_spec.policy import preset, with_knobs

CHUNK_BYTES: Final = 1 << 16
UNSENT_MAX: Final = 1 << 20
"""Unsent bytes of answers at which the oracle stops reading from a client."""
CONNECTIONS_MAX: Final = 1_000
WAIT_S: Final = 0.2
"""Seconds between two checks whether to stop."""
STDIN, STDOUT = 0, 1


@define
class Lines:
    """Splits bytes into lines. Invariant: `_rest` has no line feed, and at most `LINE_MAX` bytes."""

    _rest: bytearray = field(factory=bytearray)
    _is_passing_over: bool = False
    """Whether the current line is too long and is skipped."""

    def answered(self, oracle: Oracle, chunk: bytes) -> Iterator[bytes]:
        """The answers to the lines that end in a chunk; an empty line gets none."""
        self._rest += chunk
        if b"\n" in chunk:
            *whole, rest = self._rest.split(b"\n")
            self._rest = rest
            for line in whole:
                if self._is_passing_over:
                    self._is_passing_over = False
                elif len(line) > LINE_MAX:
                    yield oracle.too_long() + b"\n"
                elif line.strip():
                    yield oracle.answer(bytes(line)) + b"\n"
        if len(self._rest) > LINE_MAX:
            if not self._is_passing_over:
                yield oracle.too_long() + b"\n"
            self._is_passing_over = True
            self._rest.clear()

    def last(self, oracle: Oracle) -> bytes:
        """The answer to a last line without a line feed."""
        return b"".join(self.answered(oracle, b"\n"))


def serve_standard(oracle: Oracle) -> None:
    """Answer on standard output until standard input ends; raises `BrokenPipeError` if the reader has gone."""
    lines = Lines()
    while chunk := os.read(STDIN, CHUNK_BYTES):
        _write_all(b"".join(lines.answered(oracle, chunk)))
    _write_all(lines.last(oracle))


def _write_all(answers: bytes) -> None:
    rest = memoryview(answers)
    while rest:
        rest = rest[os.write(STDOUT, rest) :]


@define
class _Peer:
    """One connection."""

    socket: socket.socket
    lines: Lines = field(factory=Lines)
    unsent: bytearray = field(factory=bytearray)
    has_ended: bool = False
    """Whether the client has closed its side."""


def serve_tcp(oracle: Oracle, listener: socket.socket, is_stopped: Callable[[], bool]) -> None:
    """Answer every connection until `is_stopped`. A session outlives its connection, until a request closes it."""
    with selectors.DefaultSelector() as selector, closing(listener):
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        try:
            while not is_stopped():
                for key, _ in selector.select(WAIT_S):
                    if key.data is None:
                        _accept(selector, listener)
                    else:
                        _turn(selector, key.data, oracle)
        finally:
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    key.data.socket.close()


def _accept(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    try:
        accepted, _ = listener.accept()
    except OSError:  # the client has gone, or no descriptor is free; the next one may work
        return
    if len(selector.get_map()) > CONNECTIONS_MAX:
        accepted.close()
        return
    accepted.setblocking(False)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector.register(accepted, selectors.EVENT_READ, _Peer(accepted))


def _turn(selector: selectors.BaseSelector, peer: _Peer, oracle: Oracle) -> None:
    try:
        if len(peer.unsent) < UNSENT_MAX and not peer.has_ended:
            _read(peer, oracle)
        if peer.unsent:
            del peer.unsent[: peer.socket.send(peer.unsent)]
    except (BlockingIOError, InterruptedError):
        pass
    except OSError:  # the client has gone
        peer.has_ended = True
        peer.unsent.clear()
    if peer.has_ended and not peer.unsent:
        selector.unregister(peer.socket)
        peer.socket.close()
        return
    is_full = len(peer.unsent) >= UNSENT_MAX or peer.has_ended
    wanted = (0 if is_full else selectors.EVENT_READ) | (selectors.EVENT_WRITE if peer.unsent else 0)
    selector.modify(peer.socket, wanted, peer)


def _read(peer: _Peer, oracle: Oracle) -> None:
    try:
        chunk = peer.socket.recv(CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return
    if chunk:
        peer.unsent += b"".join(peer.lines.answered(oracle, chunk))
    else:
        peer.unsent += peer.lines.last(oracle)
        peer.has_ended = True


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
    type=FilledPath(file_okay=False),
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
