"""`longpoll soak`: runs a real broker process with random load and faults, on real sockets and a real disk.

The rounds are in `longpoll.verification.soak`.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from attrs import frozen
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from longpoll import exit_codes
from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import SEED_MAX, Amount, FilledPath, Whole
from longpoll.output import Exit, check_directory, emit_json, json_option, out, progress_bar, say, styled, user_mistakes
from longpoll.verification.soak import BrokenPromiseError, Counts, Soak, real_plan_of
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import preset, with_knobs

MINUTES: Final = 1.0


@frozen
class Failure:
    """The round that broke a promise; without a seed, the broker's last stop broke it."""

    seed: int | None
    said: str
    kept: Path
    """The directory of the last broker's history, and of its store unless --store was given."""


@click.command()
@policy_option("The broker's policy.")
@knob_option("Change one knob of the policy; repeatable.")
@click.option("--minutes", type=Amount(above_zero=True), default=MINUTES, show_default=True, help="How long to run.")
@click.option("--seed", type=Whole(0, SEED_MAX), default=0, show_default=True, help="The seed of the first round.")
@click.option(
    "--store",
    "store_directory",
    type=FilledPath(file_okay=False),
    help="New or empty directory for the store, which is kept. Default: a temporary one.",
)
@json_option
@user_mistakes
def soak(
    *, policy_name: str, knobs: Sequence[str], minutes: float, seed: int, store_directory: Path | None, as_json: bool
) -> None:
    """Run a broker process on a real disk, with load, kills, stops and broken connections, until a promise breaks.

    The seed determines the requests and faults, as for `simulate-broker`. The operating system schedules the threads,
    so the same seed may not fail again. Each time the broker stops, the command verifies its store and judges its
    history. After a failure, it keeps the store and the history.

    \b
    Examples:
      longpoll soak
      longpoll soak --minutes 60 --seed 1000
      longpoll soak --policy rocketmq-5 --knob recheck_after_hold=after_insert --minutes 5
      longpoll soak --store /mnt/slow-disk/store

    Exit codes: 0 every promise was kept, 1 one was broken, 2 a mistake in the command line, 3 unknown: no request got
    an answer, the judge found no run valid, or it has no verdict on a broker that stopped cleanly.
    """
    policy = with_knobs(preset(policy_name), knobs)
    if store_directory is not None:
        check_directory(store_directory, "the store into")
        if any(store_directory.iterdir()):
            raise ConfigError(f"{store_directory} is not empty; choose a new directory for the store")
    options = ["--log-level=error", f"--policy={policy_name}", *(f"--knob={knob}" for knob in knobs)]
    directory = Path(tempfile.mkdtemp(prefix="longpoll-soak-"))
    failure: Failure | None = None
    try:
        running = Soak(directory, policy, options, (store_directory or directory / "store").absolute())
        failure = _soak(running, minutes * 60, seed)
    finally:
        if failure is None:
            shutil.rmtree(directory, ignore_errors=True)
    _show(running.counts, failure, as_json=as_json)


def _soak(running: Soak, seconds: float, first_seed: int) -> Failure | None:
    """Run rounds until the time is over; then stop the last broker."""
    until_s = time.monotonic() + seconds
    seed: int | None = None
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with exit_codes.interrupted_by_sigterm(), running, progress_bar(*columns) as bar:
        task = bar.add_task("soaking", total=None)
        try:
            for seed in itertools.count(first_seed):
                running.round(seed)
                bar.update(task, description=str(running.counts))
                if time.monotonic() >= until_s:
                    break
            seed = None
            running.end_life(is_killed=False)
        except BrokenPromiseError as error:
            return Failure(seed, str(error), running.directory)
    return None


def _show(counts: Counts, failure: Failure | None, *, as_json: bool) -> None:
    code = Exit.OK if failure is None else Exit.VIOLATED
    doubt = counts.doubt if failure is None else None
    if doubt is not None:
        code = Exit.UNKNOWN
    if as_json:
        emit_json(_as_json(counts, failure, code))
    elif failure is not None:
        where = "at the end" if failure.seed is None else f"seed {failure.seed}"
        out.print(styled("[red]broken[/red] ({}): {}", where, failure.said))
        if failure.seed is not None:
            say(f"\n{real_plan_of(failure.seed)}\n")
        say(f"{counts}\nKept: {failure.kept}")
    elif doubt is not None:
        out.print(styled("[yellow]unknown[/yellow], {}: {}", doubt, counts))
    else:
        out.print(styled("[green]every promise was kept[/green]: {}", counts))
    if code:
        raise SystemExit(code)


def _as_json(counts: Counts, failure: Failure | None, code: Exit) -> dict[str, Any]:
    told = None
    if failure is not None:
        plan = [] if failure.seed is None else str(real_plan_of(failure.seed)).splitlines()
        told = {"seed": failure.seed, "said": failure.said, "plan": plan, "kept": str(failure.kept)}
    return {
        "exit_code": int(code),
        "rounds": counts.rounds,
        "answers": counts.answers,
        "mishaps": dict(counts.mishaps),
        "judged": dict(counts.judged),
        "stored": counts.stored,
        "failure": told,
    }
