"""How what `longpoll check` found is shown: as one JSON object, and as a table for people.

The keys are a contract with whoever reads them (docs/law.md). Leaves out every command line (`law`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click

from longpoll.output import out, table
from longpoll_spec.engines.exploration import Exploration, Verdict

COLOURS: Final = {
    "holds": "green",
    "proved": "green",
    "violated": "bold red",
    "refuted": "bold red",
    "unknown": "yellow",
}
"""Verdict -> its colour in a table."""


def exploration(found: Exploration) -> dict[str, Any]:
    """The result as the object that `--json` prints."""
    return {
        "policy": found.model.policy.name,
        "bounds": found.model.bounds.name,
        "engine": found.engine,
        "distinct_states": found.distinct_states,
        "transitions": found.transitions,
        "depth": found.depth,
        "seconds": round(found.seconds, 3),
        "compile_seconds": round(found.compile_seconds, 3),
        "complete": found.complete,
        "urgent": found.urgent,
        "properties": [_verdict(verdict) for verdict in found.verdicts],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "kind": kind_of(verdict),
        "verdict": verdict.verdict,
        "depth": verdict.depth,
        "token": verdict.token,
    }


def kind_of(verdict: Verdict) -> str:
    """`always` or `sometimes`: what a proof needs besides is an `always` to whoever explores."""
    return "sometimes" if verdict.kind == "sometimes" else "always"


def show_exploration(found: Exploration) -> None:
    """Print the result for a person."""
    bounds = found.model.bounds
    rate = found.distinct_states / max(found.seconds, 1e-3)
    out.print(
        f"{found.model.policy.name}: requests {bounds.requests}, messages {bounds.messages}, hold {bounds.hold_ticks}, "
        f"scan {bounds.scan_ticks} ticks; {found.engine}: {found.distinct_states:,} distinct states, "
        f"{found.transitions:,} transitions, depth {found.depth}, {found.seconds:.1f} s ({rate:,.0f} states/s)",
        soft_wrap=True,
    )
    if not found.complete:
        out.print("[yellow]Stopped early: what is unknown was not found in these states.[/]")
    out.print(f"time waits for: {', '.join(found.urgent) or 'nothing'}", soft_wrap=True)
    stated = [verdict for verdict in found.verdicts if kind_of(verdict) == "always"]
    rows = ((each.name, coloured(each.verdict), "" if each.depth is None else each.depth) for each in stated)
    table("Always true", ("property", "verdict", "steps"), rows)
    meant = [verdict for verdict in found.verdicts if kind_of(verdict) == "sometimes"]
    missing = [verdict.name for verdict in meant if verdict.verdict != "reached"]
    out.print(f"meant to be reached: {len(meant) - len(missing)} of {len(meant)} are")
    if missing:
        out.print(f"[yellow]not reached: {', '.join(missing)}[/]", soft_wrap=True)
    show_tokens((each.name, each.token) for each in stated if each.token is not None)


def show_tokens(tokens: Iterable[tuple[str, str | None]]) -> None:
    """Print the command that explains each counterexample, each on a line that can be copied whole."""
    for name, token in tokens:
        click.echo(f"{name}: longpoll explain {token}")


def coloured(verdict: str) -> str:
    """A verdict as markup."""
    return f"[{COLOURS[verdict]}]{verdict}[/]"
