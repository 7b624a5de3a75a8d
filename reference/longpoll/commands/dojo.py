"""`longpoll dojo`: tests your own hold table, in any language, in every order of messages.

The protocol, the schedules and their checks are in `longpoll_kit.programs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from longpoll import exit_codes
from longpoll.options.values import SEED_MAX, Amount, Whole
from longpoll.output import Exit, emit_json, json_option, out, progress_bar, say, styled, table, user_mistakes
from longpoll_kit.programs.explore import Bounds, Finding, Search, Start, examined
from longpoll_kit.programs.process import ANSWER_S, START_S, Program
from longpoll_kit.programs.protocol import ProgramError
from longpoll_kit.programs.schedule import allowances, steps_of, token_of
from longpoll_kit.programs.starters import LANGUAGES, RIGHT, write
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import UserError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DEFAULTS: Final = Bounds()
COUNT_MAX: Final = 9
MOVES_MAX: Final = 30
WAIT_MAX_MS: Final = 3_600_000
DRAWN_S: Final = 10.0
"""Random schedules run for this many seconds if the user gives only a seed."""


def bound(option: str, name: str, most: int, text: str, least: int = 0) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds an integer option, for a field of the bounds or for a limit in milliseconds."""
    default = getattr(DEFAULTS, name, 0)
    return click.option(option, name, type=Whole(least, most), default=default, show_default=True, help=text)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--starter",
    "language",
    type=click.Choice(list(LANGUAGES)),
    help="Write example programs, correct and faulty ones, into the directory PROGRAM; test nothing.",
)
@bound("--moves", "moves", MOVES_MAX, "Maximum steps of a schedule that finishes each message before the next.")
@bound("--interleaved", "interleaved", MOVES_MAX, "Maximum steps of an interleaved schedule.")
@bound("--pulls", "pulls", MOVES_MAX, "Maximum pulls in a schedule.")
@bound("--messages", "arrivals", MOVES_MAX, "Maximum messages that arrive in a schedule.")
@bound("--closes", "closes", COUNT_MAX, "Maximum connections that close in a schedule.")
@bound("--queues", "queues", COUNT_MAX, "Number of queues.", least=1)
@bound("--connections", "connections", COUNT_MAX, "Number of connections that pull.", least=1)
@bound("--wake-ms", "wake_ms", WAIT_MAX_MS, "Maximum ms from a message's arrival to the answer of a waiting pull.")
@bound("--late-ms", "late_ms", WAIT_MAX_MS, "Maximum ms from a pull's deadline to its answer.")
@click.option(
    "--seed", type=Whole(0, SEED_MAX), help="After all short schedules, run longer random ones from this seed."
)
@click.option(
    "--minutes", type=Amount(above_zero=True), help="How long to run random schedules; without --seed from seed 0."
)
@click.option(
    "--answer-s", type=Amount(above_zero=True), default=ANSWER_S, show_default=True,
    help="Seconds within which the program must answer a line.",
)  # fmt: skip
@click.option("--replay", "token", metavar="TOKEN", help="Run the schedule of a finding again and show it.")
@json_option
@user_mistakes
def dojo(
    *,
    program: Sequence[str],
    language: str | None,
    wake_ms: int,
    late_ms: int,
    seed: int | None,
    minutes: float | None,
    answer_s: float,
    token: str | None,
    as_json: bool,
    **bounds: int,
) -> None:
    """Test your own hold table, in any language, in every order of messages up to a bound.

    PROGRAM reads pulls, messages, ticks and closed connections as JSON lines, and writes answers (docs/dojo.md). Time
    is virtual: each line contains the current time. If the program announces scheduling points, the test also sends
    other messages at these points. The command reports a bug as the shortest schedule that shows it.

    \b
    Examples:
      longpoll dojo --starter python hold-table
      longpoll dojo python3 hold-table/right.py
      longpoll dojo --moves 6 --seed 1 --minutes 5 ./my-program --its-option
      longpoll dojo --replay dojo1.p1a2070.aa ./my-program

    Exit codes: 0 every schedule passed, 1 one failed, 2 a mistake in the command line, 3 unknown: the run stopped
    before the last schedule.
    """
    if language is not None:
        _write(language, program, as_json=as_json)
        return
    chosen = None if token is None else steps_of(token)

    def start() -> Program:
        return Program(program, answer_s=answer_s, start_s=max(START_S, answer_s))

    begun_s = time.monotonic()
    search = Search(Bounds(**bounds), allowances(wake_ms, late_ms))
    was_stopped = False
    with exit_codes.interrupted_by_sigterm():
        _check(start)
        if chosen is not None:
            search.finding = examined(start, search.limits, chosen)
            search.played += 1
        else:
            first_seed = 0 if seed is None and minutes is not None else seed
            was_stopped = _search(search, start, first_seed, DRAWN_S if minutes is None else minutes * 60)
    _show(search, was_stopped=was_stopped, is_replay=chosen is not None, begun_s=begun_s, as_json=as_json)


def _check(start: Start) -> None:
    """Check that the program answers a reset; raises UserError."""
    with start() as program:
        try:
            program.turn(b'{"type":"reset","id":0,"now_ms":0,"wall_ms":0}')
        except ProgramError as error:
            said = program.complaint().strip().splitlines()
            wrote = f" (its last error output: {said[-1]})" if said else ""
            raise UserError(
                f'the program must answer the first message, a reset, with {{"done": 0}}: {error}{wrote}; '
                "get example programs with --starter"
            ) from None


def _search(search: Search, start: Start, seed: int | None, seconds: float) -> bool:
    """Run the search; returns whether Ctrl-C stopped it."""
    with progress_bar(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()) as bar:
        task = bar.add_task("schedules", total=None)
        search.told = lambda text: bar.update(task, description=text)
        try:
            search.run(start)
            if seed is not None:
                search.run_drawn(start, seed, seconds, RealRuntime())
        except KeyboardInterrupt:
            return True
    return False


def _write(language: str, words: Sequence[str], *, as_json: bool) -> None:
    if len(words) != 1:
        raise UserError("--starter needs exactly one directory; write: longpoll dojo --starter python DIRECTORY")
    written = write(language, Path(words[0]))
    if as_json:
        told = [
            {"file": each.file, "says": each.says, "breaks": each.breaks, "build": each.words(each.language.build),
             "run": each.words(each.language.run)}
            for each in written
        ]  # fmt: skip
        emit_json({"exit_code": 0, "directory": words[0], "programs": told})
        return
    rows = [(each.file, each.says or "right", each.breaks) for each in written]
    table(f"written into {words[0]}", ["file", "bug", "breaks"], rows)
    right = next(each for each in written if each.name == RIGHT)
    build = " ".join(right.words(right.language.build))
    run = f"{build + ' && ' if build else ''}longpoll dojo {' '.join(right.words(right.language.run))}"
    faulty = next(each for each in written if each.name != RIGHT)
    say(f"\nNext: cd {words[0]} && {run}\nFor another program, replace {RIGHT} by its name, such as {faulty.name}.")


def _show(search: Search, *, was_stopped: bool, is_replay: bool, begun_s: float, as_json: bool) -> None:
    code = Exit.OK
    if search.finding is not None:
        code = Exit.VIOLATED
    elif was_stopped or not search.played:
        code = Exit.UNKNOWN
    seconds = time.monotonic() - begun_s
    if as_json:
        emit_json(_as_json(search, code, seconds))
    elif search.finding is not None:
        _show_finding(search.finding)
        say(f"\nafter {_covered(search)} in {seconds:.1f} s")
    elif code == Exit.UNKNOWN:
        why = "stopped by Ctrl-C" if was_stopped else "no schedule ran"
        out.print(styled("[yellow]unknown[/yellow], {}: no bug found in {}", why, _covered(search)))
    elif is_replay:
        out.print(styled("[green]right[/green]: the schedule passed twice, with a reset in between"))
    else:
        out.print(styled("[green]right[/green]: {} ({} s)", _covered(search), f"{seconds:.1f}"))
        _show_coverage(search)
    if code:
        raise SystemExit(code)


def _show_finding(finding: Finding) -> None:
    prop = finding.violation.property
    out.print(styled("[bold red]{}[/]{}", prop, str(finding.violation).removeprefix(prop)), soft_wrap=True)
    say("\n".join(["the last events:", *(f"  {line}" for line in finding.played.story)]))
    if finding.complaint:
        say(f"the end of its standard error:\n{finding.complaint.rstrip()}")
    say(f"run it again:\n    longpoll dojo --replay {token_of(finding.played.steps)} PROGRAM")


def _covered(search: Search) -> str:
    drawn = f" ({search.drawn:,} random)" if search.drawn else ""
    return f"{search.played:,} schedules{drawn}, {search.turns:,} messages"


def _show_coverage(search: Search) -> None:
    plain, interleaved = (sum(counts.values()) for counts in (search.plain, search.interleaved))
    say(f"all schedules of up to {max(search.plain, default=0)} steps: {plain:,}")
    if search.step_points:
        points = ", ".join(f"{name} ({count:,})" for name, count in sorted(search.step_points.items()))
        say(f"all interleaved schedules of up to {max(search.interleaved, default=0)} steps: {interleaved:,}")
        say(f"scheduling points: {points}")
    else:
        say("the program announces no scheduling points, so interleavings of its threads were not tested")
    say(f"bounds: at most {search.bounds}")


def _as_json(search: Search, code: Exit, seconds: float) -> dict[str, Any]:
    return {
        "exit_code": int(code),
        "verdict": {Exit.OK: "right", Exit.VIOLATED: "wrong"}.get(code, "unknown"),
        "bounds": search.bounds.as_json(),
        "plain": search.plain,
        "interleaved": search.interleaved,
        "played": search.played,
        "drawn": search.drawn,
        "messages": search.turns,
        "step_points": dict(sorted(search.step_points.items())),
        "seconds": round(seconds, 3),
        "finding": None if search.finding is None else search.finding.as_json(),
    }
