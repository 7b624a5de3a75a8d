"""`python -m model_tests.support.simulation`: runs the whole broker in simulations with random schedules and faults."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Final

import click
from attrs import define, field
from model_tests.support.simulation.checker import PROMISES
from model_tests.support.simulation.plan import GRAINS
from model_tests.support.simulation.run import Outcome
from model_tests.support.simulation.search import STRATEGIES, Failure, Settings, explain, search
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import SEED_MAX, Amount, Whole
from longpoll.output import Exit, out, progress_bar, say, styled, user_mistakes
from longpoll_spec.errors import UserError, not_known

RUNS: Final = 300
"""Default number of runs."""


@define
class Done:
    """Counts of the runs so far."""

    runs: int = 0
    passed_over: int = 0
    """Runs that ended early because they broke another promise than the selected ones."""
    points: int = 0
    answers: int = 0
    virtual_ms: float = 0
    begun_s: float = field(factory=time.monotonic)

    def note(self, outcome: Outcome) -> None:
        """Count a run."""
        self.runs += 1
        self.passed_over += outcome.kind is not None
        self.points += outcome.step_count
        self.answers += outcome.answered_count
        self.virtual_ms += outcome.virtual_ms

    @property
    def seconds(self) -> float:
        """Seconds since the first run began."""
        return time.monotonic() - self.begun_s

    def without_evidence(self) -> str | None:
        """Why runs without a failure do not show that the promises hold; None if they do show it."""
        if not self.answers:
            return "no request got an answer, so nothing was judged; increase --runs"
        if self.passed_over:
            return f"{self.passed_over:,} runs ended early because they broke another promise"
        return None

    def __str__(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0
        return (
            f"{self.runs:,} runs ({rate:,.0f}/s), {self.points:,} steps, {self.answers:,} answers, "
            f"{self.virtual_ms / 60_000:,.1f} min of virtual time"
        )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@policy_option("The broker's policy.")
@knob_option("Change one knob of the policy; repeatable.")
@click.option("--minutes", type=Amount(above_zero=True), help="Stop after this time.")
@click.option(
    "--runs",
    type=Whole(1, SEED_MAX),
    help=f"Stop after this many runs, one per seed. Default: {RUNS}, or no limit with --minutes.",
)
@click.option("--seed", type=Whole(0, SEED_MAX), default=0, show_default=True, help="The first seed.")
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default="mixed",
    show_default=True,
    help="How to choose the next thread: at random (walk), with few switches, by priorities (PCT), or mixed.",
)
@click.option(
    "--grain",
    type=click.Choice(GRAINS),
    default="operation",
    show_default=True,
    help="Where a switch may happen: at operations such as locks and sockets, at each line, or at each memory access.",
)
@click.option(
    "--promise",
    "promises",
    multiple=True,
    metavar="NAME",
    help=f"Check only this promise; repeatable. One of {', '.join(PROMISES)}.",
)
@user_mistakes
def main(
    *,
    policy_name: str,
    knobs: Sequence[str],
    minutes: float | None,
    runs: int | None,
    seed: int,
    strategy: Any,
    grain: Any,
    promises: Sequence[str],
) -> None:
    """Run the broker and its clients in a simulation, once per seed, until a run breaks a promise.

    The broker's code is real; threads, clock, network and disk are simulated. The seed determines the schedule and
    the faults: kills, power cuts, broken connections, stops and clock steps. The same seed gives the same run. A
    failing run is shortened and printed thread by thread.

    \b
    Examples:
      python -m model_tests.support.simulation --minutes 10 --seed 1000
      python -m model_tests.support.simulation --policy rocketmq-4.9 --promise "lost wakeup"
      python -m model_tests.support.simulation --grain line --runs 100 --knob recheck_after_hold=none

    Exit codes: 0 every promise was kept, 1 one was broken, 2 a mistake in the call, 3 unknown: no request got an
    answer, or with --promise, some runs ended early because they broke another promise.
    """  # noqa: D301 - click reads a real backspace: the lines after it keep their breaks
    settings = Settings(policy_name, tuple(knobs), strategy, grain)
    assert settings.policy
    for promise in promises:
        if promise not in PROMISES:
            raise UserError(not_known("promise", promise, PROMISES))
    done = Done()
    seeds = itertools.islice(itertools.count(seed), runs if runs is not None else None if minutes else RUNS)
    with progress_bar(SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()) as bar:
        task = bar.add_task("simulating", total=None)

        def told(_seed: int, outcome: Outcome) -> bool:
            done.note(outcome)
            bar.update(task, description=str(done))
            return minutes is None or done.seconds < minutes * 60

        found = search(settings, seeds, told, promises=promises)
        failure = None if found is None else explain(settings, *found)
    _show(done, failure)


def _show(done: Done, failure: Failure | None) -> None:
    why_unknown = done.without_evidence() if failure is None else None
    if failure is not None:
        out.print(styled("[red]broken[/red] (seed {}): {}", failure.seed, failure.said))
        say(f"\n{failure.plan}\n\n{failure.story}\n")
        say(f"Runs until the failure: {done}; shortened from {failure.found_turns} to {len(failure.turns)} steps.")
        raise SystemExit(Exit.VIOLATED)
    if why_unknown is not None:
        out.print(styled("[yellow]unknown[/yellow]: {}\n{}", done, why_unknown))
        raise SystemExit(Exit.UNKNOWN)
    out.print(styled("[green]every promise was kept[/green]: {}", done))


if __name__ == "__main__":
    main()
