"""How what `longpoll check` found is shown: as one JSON object, and as a table for people.

The keys are a contract with the programs that read them (docs/law.md). Leaves out every command line (`law`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from rich.text import Text

from longpoll.output import out, say, styled, table
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.response import BOUNDS as RESPONSE_BOUNDS
from longpoll_spec.engines.survey import Row, Survey
from longpoll_spec.hazards import hazards_of

BY_CONSTRUCTION: Final = "by construction"
"""Said instead of a verdict where the law's text leaves a property nothing to say: it is true, and shows nothing."""
COLOURS: Final = {
    BY_CONSTRUCTION: "cyan",
    "holds": "green",
    "proved": "green",
    "violated": "bold red",
    "refuted": "bold red",
    "unknown": "yellow",
}
"""Verdict -> its colour in a table."""


def survey(found: Survey) -> dict[str, Any]:
    """The result as the object that `--json` prints; the counts are those of the exploration that was asked for."""
    asked = found.asked
    return {
        "policy": found.policy.name,
        "bounds": asked.model.bounds.name,
        "engine": asked.engine,
        **_counts(asked),
        "compile_seconds": round(asked.compile_seconds, 3),
        "complete": all(each.complete for each in found.explorations),
        "urgent": asked.urgent,
        "properties": [_row(found.policy.name, row) for row in found.rows],
        "explorations": [{"bounds": each.model.bounds.name, **_counts(each)} for each in found.explorations],
        "bounds_found": {each.name: {"ticks": each.ticks, "token": each.token} for each in found.response},
        **({} if asked.seen is None else {"coverage": _coverage(asked)}),
    }


def _counts(found: Exploration) -> dict[str, Any]:
    return {
        "distinct_states": found.distinct_states,
        "transitions": found.transitions,
        "depth": found.depth,
        "seconds": round(found.seconds, 3),
    }


def _coverage(found: Exploration) -> dict[str, dict[str, int]]:
    """How often a simulation's runs took each action, and came to what each `sometimes` property is about."""
    actions: dict[str, int] = {}
    for action in found.model.actions:
        actions[action.name] = actions.get(action.name, 0) + found.fired[action.label]
    seen = found.seen or {}
    meant = {each.name: seen[each.name] for each in found.verdicts if kind_of(each) == "sometimes"}
    return {"actions": actions, "sometimes": meant}


def _show_coverage(found: Exploration) -> None:
    coverage = _coverage(found)
    table("Steps taken", ("action", "times"), ((name, f"{count:,}") for name, count in coverage["actions"].items()))
    rows = ((name, f"{count:,}") for name, count in coverage["sometimes"].items())
    table("States and steps seen", ("meant to be reached", "times"), rows)


def _row(policy: str, row: Row) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "name": verdict.name,
        "kind": kind_of(verdict),
        "verdict": verdict.verdict,
        "by_construction": verdict.by_construction,
        "depth": verdict.depth,
        "token": verdict.token,
        "bounds": row.bounds,
        "hazards": hazards_of(policy, verdict.name) if verdict.verdict == "violated" else (),
    }


def kind_of(verdict: Verdict) -> str:
    """`always` or `sometimes`: an `inductive` property, which only a proof needs, is shown as an `always`."""
    return "sometimes" if verdict.kind == "sometimes" else "always"


def show_survey(found: Survey) -> None:
    """Print the result for a person, what came of it first."""
    show_verdict(verdict_of(found))
    for each in found.explorations:
        _show_counts(each)
    asked = found.asked
    if not all(each.complete for each in found.explorations):
        out.print(styled("[yellow]Stopped early: what is unknown was not found in these states.[/]"))
    out.tell(f"time waits for: {', '.join(asked.urgent) or 'nothing'}")
    for bound in found.response:
        ticks = "none" if bound.ticks is None else f"{bound.ticks} ticks"
        out.print(f"{bound.name}: tight bound {ticks} (scan period {RESPONSE_BOUNDS.scan_ticks} ticks)")
    stated = [row for row in found.rows if kind_of(row.verdict) == "always"]
    table("Always true", ("property", "verdict", "steps", "bounds", "hazard"), map(_cells(found.policy.name), stated))
    meant = [row.verdict for row in found.rows if kind_of(row.verdict) == "sometimes"]
    missing = [verdict.name for verdict in meant if verdict.verdict != "reached"]
    if meant:
        out.print(f"meant to be reached: {len(meant) - len(missing)} of {len(meant)} are")
    if missing:
        out.tell(styled("[yellow]not reached: {}[/]", ", ".join(missing)))
    if asked.seen is not None:
        _show_coverage(asked)
    late = [(bound.name, bound.token) for bound in found.response if bound.token is not None]
    show_tokens([*late, *((row.verdict.name, row.verdict.token) for row in stated if row.verdict.token is not None)])


def verdict_of(found: Survey) -> str:
    """What the exit code says of all properties together, in words, with the names of those that decide it."""
    by_verdict: dict[str, list[str]] = {}
    for row in found.rows:
        by_verdict.setdefault(row.verdict.verdict, []).append(row.verdict.name)
    if "violated" in by_verdict:
        return f"violated: {', '.join(by_verdict['violated'])}"
    open_ones = [*by_verdict.get("unknown", ()), *by_verdict.get("unreached", ())]
    if open_ones:
        return f"unknown: {', '.join(open_ones)}"
    held, reached = len(by_verdict.get("holds", ())), len(by_verdict.get("reached", ()))
    return f"holds: {held} always, and {reached} that must come about do"


def show_verdict(said: str) -> None:
    """Print what came of a command, on a line of its own, which stands above all else that it says."""
    out.tell(styled("[bold]verdict: {}[/]", said))


def _show_counts(found: Exploration) -> None:
    bounds = found.model.bounds
    rate = found.distinct_states / max(found.seconds, 1e-3)
    more = [f"{bounds.queues} queues"] * (bounds.queues > 1) + [f"{bounds.tags} tags"] * (bounds.tags > 1)
    world = "".join(f", {each}" for each in (*more, *sorted(bounds.aspects)))
    out.tell(
        f"{found.model.policy.name}: requests {bounds.requests}, messages {bounds.messages}, hold {bounds.hold_ticks}, "
        f"scan {bounds.scan_ticks} ticks{world}; {found.engine}: {found.distinct_states:,} distinct states, "
        f"{found.transitions:,} transitions, depth {found.depth}, {found.seconds:.1f} s ({rate:,.0f} states/s)",
    )


def _cells(policy: str) -> Callable[[Row], tuple[object, ...]]:
    def cells(row: Row) -> tuple[object, ...]:
        verdict = row.verdict
        known = hazards_of(policy, verdict.name) if verdict.verdict == "violated" else ()
        steps = "" if verdict.depth is None else verdict.depth
        told = coloured(BY_CONSTRUCTION if verdict.by_construction else verdict.verdict)
        return verdict.name, told, steps, row.bounds, ", ".join(known)

    return cells


def show_tokens(tokens: Iterable[tuple[str, str | None]]) -> None:
    """Print the command that explains each counterexample, each on a line that can be copied whole."""
    for name, token in tokens:
        say(f"{name}: longpoll explain {token}")


def coloured(verdict: str) -> Text:
    """A verdict in its colour."""
    return styled(f"[{COLOURS[verdict]}]{{}}[/]", verdict)
