"""`longpoll oracle`: reads steps as lines from standard input, and checks them one by one.

The lines and the sessions are in `session`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from attrs import define, field

from longpoll.commands.gone import former_options
from longpoll.commands.oracle.session import LINE_MAX, CompiledSpecification, Oracle, Total
from longpoll.exit_codes import interrupted_by_sigterm
from longpoll.options.specification import aspect_option, knob_option, policy_option
from longpoll.options.values import FilledPath
from longpoll.output import Exit, check_directory, err, json_option, json_text, user_mistakes
from longpoll_spec.history import Law
from longpoll_spec.policy import preset, with_knobs

CHUNK_BYTES: Final = 1 << 16
STDIN, STDOUT = 0, 1


@define
class Lines:
    """Splits bytes into lines. Invariant: `_rest` has no line feed, and at most `LINE_MAX` bytes."""

    _rest: bytearray = field(factory=bytearray)
    _is_passing_over: bool = False
    """Whether the current line is too long, so that the rest of it is skipped."""

    def answered(self, oracle: Oracle, chunk: bytes) -> Iterator[bytes]:
        """Yield the answers to the lines that end in a chunk; an empty line gets no answer."""
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
        """Return the answer to a last line that has no line feed."""
        return b"".join(self.answered(oracle, b"\n"))


def serve_standard(oracle: Oracle) -> None:
    """Answer on standard output until standard input ends; raises `BrokenPipeError` if the output is closed."""
    lines = Lines()
    while chunk := os.read(STDIN, CHUNK_BYTES):
        _write_all(b"".join(lines.answered(oracle, chunk)))
    _write_all(lines.last(oracle))


def _write_all(answers: bytes) -> None:
    rest = memoryview(answers)
    while rest:
        rest = rest[os.write(STDOUT, rest) :]


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
@click.option(
    "--record",
    type=FilledPath(file_okay=False),
    metavar="DIR",
    help="Write the history of each session into a subdirectory of DIR with the session's name.",
)
@former_options("oracle")
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
    record: Path | None,
    as_json: bool,
) -> None:
    """Check a program's steps, sent as JSON lines, against the specification.

    The program sends one request per line (docs/oracle.md). The answer says whether the specification allows the step.
    Lines come from standard input until it ends. At the end the command prints a summary to standard error, with
    --json as one object.

    \b
    Examples:
      echo '{"do": "may"}' | longpoll oracle --policy strict
      longpoll oracle --policy rocketmq-4.9 --record histories
      longpoll oracle --policy strict-clone --knob recheck_after_keep=false --hidden tick

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
        with interrupted_by_sigterm():
            serve_standard(asked)
    finally:
        asked.close()
    if as_json:
        # The JSON stays on one line on any terminal.
        err.print(json_text(asked.total.fields()), soft_wrap=True, markup=False)
    else:
        err.tell(asked.total.told())
    sys.exit(_exit_code(asked.total))


def _exit_code(total: Total) -> Exit:
    if total.refused or total.broken:
        return Exit.VIOLATED
    return Exit.UNKNOWN if total.unknown or total.mistakes or not total.steps else Exit.OK
