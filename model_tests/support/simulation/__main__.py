"""`python -m model_tests.support.simulation`: runs the whole broker in simulations with random schedules and faults."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Final

import attrs
import click
from attrs import define, field
from model_tests.support.simulation.checker import PROMISES
from model_tests.support.simulation.run import Outcome
from model_tests.support.simulation.search import Settings, explain, search

from longpoll.options.specification import knob_option, policy_option
from longpoll.options.values import SEED_MAX, Amount, Whole
from longpoll.output import Exit, out, say, styled, user_mistakes
from longpoll_spec.errors import UserError, not_known

RUNS: Final = 300


@define
class Done:
    outcomes: list[Outcome] = field(factory=list)
    begun_s: float = field(factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the first run began."""
        return time.monotonic() - self.begun_s

    def without_evidence(self) -> str | None:
        """Returns why runs without a failure do not show that the promises hold, or None if they do show it."""
        if not any(each.answered_count for each in self.outcomes):
            return "no request got an answer, so nothing was judged; increase --runs"
        early = sum(each.kind is not None for each in self.outcomes)
        return f"{early:,} runs ended early because they broke another promise" if early else None

    def __str__(self) -> str:
        runs = len(self.outcomes)
        steps, answers = (
            sum(getattr(each, name) for each in self.outcomes) for name in ("step_count", "answered_count")
        )
        minutes = sum(each.virtual_ms for each in self.outcomes) / 60_000
        rate = f"{runs / self.seconds if self.seconds else 0:,.0f}/s"
        return f"{runs:,} runs ({rate}), {steps:,} steps, {answers:,} answers, {minutes:,.1f} min of virtual time"


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
    promises: Sequence[str],
) -> None:
    """Run the broker and its clients in a simulation, once per seed, until a run breaks a promise.

    The broker's code is real; threads, clock, network and disk are simulated. The seed determines the schedule and
    the faults: kills, power cuts, broken connections, stops and clock steps. The same seed gives the same run. A
    failing run is shortened, and the clients' actions and the faults that are left are printed.

    \b
    Examples:
      python -m model_tests.support.simulation --minutes 10 --seed 1000
      python -m model_tests.support.simulation --policy rocketmq-4.9 --promise "lost wakeup"
      python -m model_tests.support.simulation --runs 100 --knob recheck_after_hold=none

    Exit codes: 0 every promise was kept, 1 one was broken, 2 a mistake in the call, 3 unknown: no request got an
    answer, or with --promise, some runs ended early because they broke another promise.
    """  # noqa: D301 - click reads a real backspace: the lines after it keep their breaks
    settings = Settings(policy_name, tuple(knobs))
    assert settings.policy
    for promise in promises:
        if promise not in PROMISES:
            raise UserError(not_known("promise", promise, PROMISES))
    done = Done()
    seeds = itertools.islice(itertools.count(seed), runs if runs is not None else None if minutes else RUNS)

    def told(_seed: int, outcome: Outcome) -> bool:
        done.outcomes.append(attrs.evolve(outcome, turns=()))
        return minutes is None or done.seconds < minutes * 60

    found = search(settings, seeds, told, promises=promises)
    if found is not None:
        failure = explain(settings, *found)
        out.print(styled("[red]broken[/red] (seed {}): {}", failure.seed, failure.said))
        say(f"\n{failure.plan}\n")
        say(f"Runs until the failure: {done}; shortened from {failure.found_turns} to {len(failure.turns)} steps.")
        raise SystemExit(Exit.VIOLATED)
    why_unknown = done.without_evidence()
    if why_unknown is not None:
        out.print(styled("[yellow]unknown[/yellow]: {}\n{}", done, why_unknown))
        raise SystemExit(Exit.UNKNOWN)
    out.print(styled("[green]every promise was kept[/green]: {}", done))


if __name__ == "__main__":
    main()
