"""Every mutant with every method: the result of exploration, and whether the proofs of each scope still hold.

`python -m model_tests.support.spec.slip_table --help` creates the table and compares it with the pinned one next to
this file. It exits with 1 if they differ, or if exploration breaks a mutant that a proof proves. The mutants are the
named ones (`zoo`) and those that `slips` generates by rule in any scope. All named ones and some others are pinned: all
of them take hours, and can be added with `--every` and `--write`. Proofs: see `slip_proofs`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import attrs
import msgspec
from attrs import frozen
from model_tests.support.spec.slip_proofs import Proofs

from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.manifest import text_of
from longpoll_spec.engines.smt.configurations import WORLDS
from longpoll_spec.mutants.generated import Mutant, mutants_of
from longpoll_spec.mutants.named import named_mutants
from longpoll_spec.policy import Policy, preset
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.tables import with_table

POLICIES: Final = ("strict", "strict-clone")
LIMIT_STATES: Final = 100_000
"""A mutant may make the space endless; violations appear long before this limit."""
QUICK: Final = ("limit", "capacity", "buckets", "channels", "crash", "truncate", "queues")
LARGE: Final = ("commits", "role", "tags", "sql")
"""Features explored only for mutants in none of the others."""
STANDS: Final = "the proof stands"
NOTHING: Final = "nothing differs"
PINNED: Final = "slip_table.json"
MISTAKE: Final = 2
"""The exit code of a usage error, from argparse."""
Report = Callable[[str], None]


@with_table
class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One mutant in one policy. Results of a run or a proof are property names."""

    policy: str
    slip: str
    bounds: str
    """The first of `explored` in which a run breaks a property, or else the numbers differ; "" for none."""
    broken: str
    """What exploring finds there: the property with the shortest run, `unreached: ` and what it comes to no more,
    `the numbers`, or `NOTHING`."""
    steps: int | None = None
    """Steps of the shortest run that breaks the property; None without one."""
    worlds: dict[str, list[str]]
    """Scope -> the first property whose proof is lost for eight requests, and for any number; or `STANDS`."""


@frozen
class Found:
    """The result of exploring one mutant."""

    bounds: Bounds | None
    broken: str
    steps: int | None = None
    token: str | None = None
    """The run: it replays on the mutant only."""


def explored(policy: Policy) -> tuple[Bounds, ...]:
    """Returns the bounds in which a mutant is tried, smallest first."""
    small = (named("tiny", policy), named("tiny", policy, hold_ticks=3), TIMEOUTS["timeout"])
    return (*small, *(EXPLORATIONS[name] for name in (*QUICK, *LARGE)))


def slips_in(policy: Policy, every: int = 1) -> list[Mutant]:
    """Returns the named mutants of any scope, and one in `every` of those by rule, each once."""
    worlds = [attrs.evolve(world, requests=2) for world in WORLDS.values()]
    by_hand = _each_once(slip for world in worlds for slip in named_mutants(policy, world))
    return by_hand + _each_once(slip for world in worlds for slip in mutants_of(policy, world))[::every]


def _each_once(slips: Iterable[Mutant]) -> list[Mutant]:
    found: dict[str, Mutant] = {}
    for slip in slips:
        found.setdefault(name_of(slip), slip)
    return list(found.values())


def name_of(slip: Mutant) -> str:
    """Name a mutant in one line: the action, the actor kinds if needed, and the mistake."""
    who = "".join(f" of the {kind}" for kind in slip.kinds if kind)
    return f"{slip.action}{who} {slip.what}"


def found_by_exploring(slip: Mutant, policy: Policy, *, thoroughly: bool) -> Found:
    """Returns the first violation, else the lost reachability or the differing numbers.

    Bounds after the first difference are explored only if `thoroughly`.
    """
    differs = Found(None, NOTHING)
    places = [bounds for bounds in explored(policy) if slip.is_in(policy, bounds)]
    for bounds in [each for each in places if each.name not in LARGE] or places:
        wrong = _explored(slip, policy, bounds)
        broken = [each for each in wrong.verdicts if each.verdict == "violated"]
        if broken:
            first = min(broken, key=_steps)
            return Found(bounds, first.name, first.depth, first.token)
        if differs.bounds is None:
            differs = _difference(slip, wrong)
        if differs.bounds is not None and not thoroughly:
            break
    return differs


def _explored(slip: Mutant, policy: Policy, bounds: Bounds) -> Exploration:
    model = slip.planted(policy, bounds)
    judged = [item for item in properties_of(model) if item.kind != "sometimes"]
    return explore(model, judged, limit_states=LIMIT_STATES)


def _difference(slip: Mutant, wrong: Exploration) -> Found:
    """Returns how an exploration without violation differs from the original's."""
    policy, bounds = wrong.model.policy, wrong.model.bounds
    right = _right(policy, bounds)
    counts = [(each.distinct_states, each.transitions, each.depth) for each in (wrong, right)]
    if counts[0] == counts[1]:
        return Found(None, NOTHING)
    model = slip.planted(policy, bounds)
    sought = [item for item in properties_of(model) if item.kind == "sometimes"]
    again = explore(model, sought, limit_states=LIMIT_STATES)
    reached = {each.name for each in right.verdicts if each.verdict == "reached"}
    gone = [each.name for each in again.verdicts if each.verdict == "unreached" and each.name in reached]
    return Found(bounds, f"unreached: {gone[0]}" if gone else "the numbers")


@cache
def _right(policy: Policy, bounds: Bounds) -> Exploration:
    model = specification_of(policy, bounds)
    return explore(model, properties_of(model), limit_states=LIMIT_STATES)


def _steps(verdict: Verdict) -> int:
    assert verdict.depth is not None, verdict.name
    return verdict.depth


def rows_of(
    policy: Policy, slips: Iterable[Mutant], worlds: Iterable[str] = WORLDS, report: Report | None = None
) -> Iterator[tuple[Row, Found]]:
    """Iterate over a row for each mutant, with its violating run. `report` gets each mutant before it is tried.

    If a proof holds, exploration is thorough, because a run would contradict the proof.
    """
    proofs = {name: Proofs(policy, WORLDS[name]) for name in worlds}
    for slip in slips:
        if report is not None:
            report(f"{policy.name}: {name_of(slip)}")
        stands = {name: proof.of(slip) for name, proof in proofs.items()}
        found = found_by_exploring(
            slip, policy, thoroughly=any(each and each.eight is None for each in stands.values())
        )
        yield (
            Row(
                policy=policy.name,
                slip=name_of(slip),
                bounds="" if found.bounds is None else found.bounds.name,
                broken=found.broken,
                steps=found.steps,
                worlds={
                    name: [each.eight or STANDS, each.any_number or STANDS]
                    for name, each in stands.items()
                    if each is not None
                },
            ),
            found,
        )


def contradictions(rows: Iterable[Row]) -> list[str]:
    """Returns each row in which a run breaks the mutant in a scope whose proof holds."""
    said: list[str] = []
    for row in rows:
        for world, (eight, any_number) in row.worlds.items():
            if row.steps is not None and _is_within(row, WORLDS[world]):
                stands = [how for how, told in (("8", eight), ("any", any_number)) if told == STANDS]
                said += [
                    f"{row.policy}, {row.slip}: {row.broken} is broken in {row.steps} steps ({row.bounds}), and all is "
                    f"proved for {how} requests in the world {world}"
                    for how in stands
                ]
    return said


def _is_within(row: Row, world: Bounds) -> bool:
    """Whether the scope includes everything in the explored bounds."""
    bounds = next(each for each in explored(preset(row.policy)) if each.name == row.bounds)
    return bounds.aspects <= world.aspects and bounds.queues <= world.queues and bounds.tags <= max(world.tags, 1)


def pinned_text() -> str:
    """Returns the pinned table's text: one row per line."""
    return Path(__file__).with_name(PINNED).read_text(encoding="utf-8")


def pinned() -> list[Row]:
    """Returns the pinned table."""
    return msgspec.json.decode(pinned_text(), type=list[Row])


def changes(rows: Iterable[Row], known: Iterable[Row]) -> list[str]:
    """Returns each row that differs from its pinned one; ignores rows that are not pinned."""
    by_name = {(row.policy, row.slip): row for row in known}
    return [
        f"{row.policy}, {row.slip}: pinned {_told(before)}, now {_told(row)}"
        for row in rows
        if (before := by_name.get((row.policy, row.slip), row)) != row
    ]


def _told(row: Row) -> str:
    run = f" in {row.steps} steps" if row.steps is not None else ""
    proofs = (f"{world}: {' | '.join(dict.fromkeys(both))}" for world, both in row.worlds.items())
    return "; ".join((f"{row.broken}{run} ({row.bounds or 'nowhere'})", *proofs))


def _write(rows: Iterable[Row]) -> None:
    """Pin these rows, with those pinned of other mutants, in order."""
    known = {(row.policy, row.slip): row for row in (*pinned(), *rows)}
    ordered = ((name, name_of(slip)) for name in POLICIES for slip in slips_in(preset(name)))
    text = text_of(known[key] for key in ordered if key in known)
    Path(__file__).with_name(PINNED).write_text(text, encoding="utf-8")


def pinned_slips(policy: Policy) -> list[Mutant]:
    """Returns the mutants of a policy in the pinned table."""
    names = {row.slip for row in pinned() if row.policy == policy.name}
    return [slip for slip in slips_in(policy) if name_of(slip) in names]


_EXAMPLES: Final = """examples:
  python -m model_tests.support.spec.slip_table --slip truncate
  python -m model_tests.support.spec.slip_table --policy strict --every 20 --json
  python -m model_tests.support.spec.slip_table --every 1 --write

exit codes: 0 as pinned, 1 another table or a proof that stands where a run breaks the law, 2 a mistake in the call,
3 stopped before the end
"""


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m model_tests.support.spec.slip_table",
        description="Plant slips in the law, one at a time: what exploring says, and which worlds' proofs stand.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only this policy; may be given twice")
    parser.add_argument("--slip", default="", metavar="TEXT", help="only slips whose name has this text")
    parser.add_argument(
        "--every", type=int, metavar="N", help="not the pinned slips, but one in N of those by rule; 1 is all"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, each run with its token")
    parser.add_argument("--write", action="store_true", help="pin what is found, beside what else is pinned")
    chosen = parser.parse_args(words)
    if chosen.every is not None and chosen.every < 1:
        parser.error(f"--every must be 1 or more, not {chosen.every}")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    """Create the table and compare it; exit codes as in `--help`."""
    chosen = _arguments(words)
    found: list[tuple[Row, Found]] = []
    try:
        for name in dict.fromkeys(chosen.policy or POLICIES):
            slips = slips_in(preset(name), chosen.every) if chosen.every else pinned_slips(preset(name))
            found += rows_of(preset(name), [slip for slip in slips if chosen.slip in name_of(slip)], report=_say)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped before every slip was tried: the table is not known\n")
        return 3
    return _told_all(found, as_json=chosen.json, write=chosen.write)


def _told_all(found: Sequence[tuple[Row, Found]], *, as_json: bool, write: bool) -> int:
    rows = [row for row, _ in found]
    if write:
        _write(rows)
    wrong = [*contradictions(rows), *changes(rows, pinned())]
    if as_json:
        told = [_as_json(*each) for each in found]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode({"rows": told, "wrong": wrong})).decode() + "\n")
    else:
        lines = (f"{row.policy}, {row.slip}: {_told(row)}" for row in rows)
        sys.stdout.writelines(f"{line}\n" for line in (*lines, *wrong, f"{len(rows)} slips, {len(wrong)} wrong"))
    return 1 if wrong else 0


def _as_json(row: Row, found: Found) -> Mapping[str, object]:
    return {**msgspec.structs.asdict(row), "token": found.token}


def _say(text: str) -> None:
    """Show progress on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")


if __name__ == "__main__":
    sys.exit(main())
