"""`longpoll dojo`: your own hold table, in any language, driven through every order of messages.

Leaves out the protocol, the orders and what is right (`longpoll_dojo`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from longpoll import guard
from longpoll.options.amounts import Amount
from longpoll.output import Exit, emit_json, json_option, out, progress_bar, say, styled, table, user_mistakes
from longpoll_dojo.errors import HINTS, ProgramError
from longpoll_dojo.explore import Bounds, Finding, Search, Start, replayed
from longpoll_dojo.moves import moves_of, token_of
from longpoll_dojo.program import ANSWER_S, START_S, Program
from longpoll_dojo.starters import LANGUAGES, RIGHT, write
from longpoll_dojo.story import as_json as json_of
from longpoll_dojo.story import lines_of
from longpoll_dojo.world import Allowances
from longpoll_spec.errors import UserError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
SEED_MAX: Final = 2**32 - 1
DEFAULTS: Final = Bounds()
COUNT_MAX: Final = 9
MOVES_MAX: Final = 30
WAIT_MAX_MS: Final = 3_600_000
DRAWN_S: Final = 10.0
"""How long orders are drawn when only a seed is given."""


def bound(name: str, default: int, most: int, text: str) -> Callable[[Decorated], Decorated]:
    """An option for a bound of the search."""
    return click.option(name, type=click.IntRange(0, most), default=default, show_default=True, help=text)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--starter",
    "language",
    type=click.Choice(list(LANGUAGES)),
    help="Write programs to begin with, right and wrong ones, into the directory PROGRAM, and end.",
)
@bound("--moves", DEFAULTS.moves, MOVES_MAX, "Moves of an order in which each message is done before the next comes.")
@bound("--interleaved", DEFAULTS.interleaved, MOVES_MAX, "Moves of one in which others come at its step points.")
@bound("--pulls", DEFAULTS.pulls, MOVES_MAX, "Most pulls of an order.")
@bound("--messages", DEFAULTS.arrivals, MOVES_MAX, "Most messages that arrive.")
@bound("--closes", DEFAULTS.closes, COUNT_MAX, "Most connections that close.")
@click.option("--queues", type=click.IntRange(1, COUNT_MAX), default=DEFAULTS.queues, show_default=True, help="Queues.")
@click.option(
    "--connections", type=click.IntRange(1, COUNT_MAX), default=DEFAULTS.connections, show_default=True,
    help="Connections that pull.",
)  # fmt: skip
@bound("--wake-ms", 0, WAIT_MAX_MS, "A pull may be answered so long after a message for it came; 0: at once.")
@bound("--late-ms", 0, WAIT_MAX_MS, "A pull may be answered so long after its deadline.")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), help="Then draw longer orders from this seed on.")
@click.option("--minutes", type=Amount(above_zero=True), help="How long orders are drawn; without --seed from seed 0.")
@click.option(
    "--answer-s", type=Amount(above_zero=True), default=ANSWER_S, show_default=True, help="Most seconds of a turn."
)
@click.option("--replay", "token", metavar="TOKEN", help="Play the order of a finding again, and tell it.")
@json_option
@user_mistakes
def dojo(
    *,
    program: Sequence[str],
    language: str | None,
    moves: int,
    interleaved: int,
    pulls: int,
    messages: int,
    closes: int,
    queues: int,
    connections: int,
    wake_ms: int,
    late_ms: int,
    seed: int | None,
    minutes: float | None,
    answer_s: float,
    token: str | None,
    as_json: bool,
) -> None:
    """Drive a hold table of your own, in any language, through every order of messages up to a bound.

    PROGRAM reads pulls, messages, ticks and closed connections as JSON lines, and writes answers (docs/dojo.md). Time
    is virtual: each line says what time it is. Where it announces step points, other messages come in between. What it
    does wrong is told as the smallest order that shows it.

    \b
    Examples:
      longpoll dojo --starter python hold-table
      longpoll dojo python3 hold-table/right.py
      longpoll dojo --moves 6 --seed 1 --minutes 5 ./my-program --its-option
      longpoll dojo --replay dojo1.p1a2070.aa ./my-program

    Exit codes: 0 every order that was played is right, 1 one is not, 2 a mistake in the call, 3 unknown: stopped
    before every order up to the bound was played.
    """
    if language is not None:
        _write(language, program, as_json=as_json)
        return
    allowances = Allowances(wake_ms, late_ms)
    chosen = None if token is None else moves_of(token)

    def start() -> Program:
        return Program(program, answer_s=answer_s, start_s=max(START_S, answer_s))

    bounds = Bounds(
        moves=moves, interleaved=interleaved, pulls=pulls, arrivals=messages, closes=closes, queues=queues,
        connections=connections,
    )  # fmt: skip
    begun_s = time.monotonic()
    search = Search(bounds, allowances)
    was_stopped = False
    with guard.interrupted_by_sigterm():
        _check(start)
        if chosen is not None:
            search.finding = replayed(chosen, start, allowances, search)
        else:
            first_seed = 0 if seed is None and minutes is not None else seed
            was_stopped = _search(search, start, first_seed, DRAWN_S if minutes is None else minutes * 60)
    _show(search, was_stopped=was_stopped, is_replay=chosen is not None, begun_s=begun_s, as_json=as_json)


def _check(start: Start) -> None:
    """Whether the program answers a reset at all. Raises UserError: there is nothing to judge yet."""
    with start() as program:
        try:
            program.turn(b'{"type":"reset","id":0,"now_ms":0,"wall_ms":0}')
        except ProgramError as error:
            said = program.complaint().strip().splitlines()
            wrote = f" (it wrote: {said[-1]})" if said else ""
            raise UserError(
                f'the program does not answer the first message, a reset, with {{"done": 0}}: {error}{wrote}; '
                "see --starter for programs that do"
            ) from None


def _search(search: Search, start: Start, seed: int | None, seconds: float) -> bool:
    """Whether Ctrl-C stopped it."""
    with progress_bar(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()) as bar:
        task = bar.add_task("orders", total=None)
        search.told = lambda text: bar.update(task, description=text)
        try:
            search.run(start, seed=seed, seconds=seconds)
        except KeyboardInterrupt:
            return True
    return False


def _write(language: str, words: Sequence[str], *, as_json: bool) -> None:
    if len(words) != 1:
        raise UserError("--starter needs one directory, and nothing after it: longpoll dojo --starter python DIRECTORY")
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
    table(f"written into {words[0]}", ["file", "what it does wrong", "breaks"], rows)
    right = next(each for each in written if each.name == RIGHT)
    build = " ".join(right.words(right.language.build))
    say(f"\nGo there, and: {build + ' && ' if build else ''}longpoll dojo {' '.join(right.words(right.language.run))}")


# -- shown -----------------------------------------------------------------------------------------------------------


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
        why = "stopped by Ctrl-C" if was_stopped else "no order was played"
        out.print(styled("[yellow]unknown[/yellow], {}: nothing was found wrong in {}", why, _covered(search)))
    elif is_replay:
        out.print(styled("[green]right[/green]: the order breaks nothing, played twice with a reset between"))
    else:
        out.print(styled("[green]right[/green]: {} ({} s)", _covered(search), f"{seconds:.1f}"))
        _show_coverage(search)
    if code:
        raise SystemExit(code)


def _show_finding(finding: Finding) -> None:
    out.print(styled("[bold red]{}[/]: {}", finding.violation.property, finding.violation))
    for line in lines_of(finding.played):
        say(line)
    say(f"\nhint: {HINTS[finding.violation.property]}")
    if finding.complaint:
        say(f"it wrote to its standard error, at last:\n{finding.complaint.rstrip()}")
    say(f"again: longpoll dojo --replay {token_of(finding.played.moves)} PROGRAM")


def _covered(search: Search) -> str:
    drawn = f", {search.drawn:,} of them drawn from seeds" if search.drawn else ""
    return f"{search.played:,} orders{drawn}, {search.turns:,} messages"


def _show_coverage(search: Search) -> None:
    plain, interleaved = (sum(counts.values()) for counts in (search.plain, search.interleaved))
    say(f"every order of up to {max(search.plain, default=0)} moves: {plain:,}")
    if search.step_points:
        points = ", ".join(f"{name} ({count:,})" for name, count in sorted(search.step_points.items()))
        say(f"every interleaving of up to {max(search.interleaved, default=0)} moves: {interleaved:,}")
        say(f"step points: {points}")
    else:
        say("the program announces no step points: what its threads do between two steps was not looked at")
    say(f"of at most {search.bounds}")


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
        "finding": None if search.finding is None else json_of(search.finding),
    }
