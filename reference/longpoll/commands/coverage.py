"""`longpoll coverage`: reports which parts of the specification some tokens, or a history of steps, exercise.

The counting is in `longpoll_spec.engines.coverage`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from longpoll.output import emit_json, json_option, out, say, table, user_mistakes
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.coverage import SMALL, Coverage, Transitions, coverage_of
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import TokenError, UserError
from longpoll_spec.policy import Policy
from longpoll_spec.render.notation import sizes_of

TOKEN: Final = re.compile(r"\blp\d+\.[\w-]+")
"""A token anywhere in a text."""
STDIN: Final = "-"
SHOWN_MAX: Final = 12
"""Most missing items that a table lists; --json has all of them."""


@click.command()
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...|DIR...")
@json_option
@user_mistakes
def coverage(*, tokens: Sequence[str], as_json: bool) -> None:
    """Report which actions, places, request transitions and `sometimes` properties some runs exercise.

    A TOKEN names a run: `longpoll check` prints one for each counterexample. Write - to read all tokens from standard
    input. Runs with different policies, knobs or features are counted separately.

    A DIR holds a history of steps, which `longpoll observe --inside` records. For a DIR the command counts how often
    the history takes each transition of the specification's state graph. Steps whose order is unknown are counted in
    an order that the specification allows.

    \b
    Examples:
      longpoll check --policy rocketmq-4.9 --json | longpoll coverage -
      longpoll coverage TOKEN
      longpoll coverage TOKEN TOKEN --json
      longpoll observe --inside java-4.9.7 --record /tmp/steps      needs Java and Maven
      longpoll coverage /tmp/steps --json
    """
    if all(Path(word).is_dir() for word in tokens):
        _of_history(tokens, as_json=as_json)
        return
    found = coverage_of(replay(token) for token in _named(tokens))
    if as_json:
        emit_json({"laws": [_shown(each) for each in found]})
        return
    for each in found:
        out.print(f"{each.policy}, {sizes_of(each.bounds)}: {each.runs} run{'s' if each.runs != 1 else ''}")
        table("Exercised", ("part", "seen", "of", "not seen"), (_row(part.name, each) for part in each.parts))


def _of_history(directories: Sequence[str], *, as_json: bool) -> None:
    """Count the transitions in histories of steps, per policy and bounds of their sources."""
    from longpoll_judge.read.source import find  # noqa: PLC0415 - tokens need no extra
    from longpoll_judge.rules.conformance import fitting_runs  # noqa: PLC0415 - see above

    laws: dict[tuple[Policy, Bounds], Transitions] = {}
    placed: dict[tuple[Policy, Bounds], list[int]] = {}
    for model, count, steps in fitting_runs(find(directories)):
        key = (model.policy, model.bounds)
        if key not in laws:
            laws[key], placed[key] = Transitions(model), [0, 0, 0]
        made = laws[key].see(steps)
        placed[key] = [one + more for one, more in zip(placed[key], (1, count, made), strict=True)]
    if not laws:
        raise UserError(
            f"{', '.join(directories)}: this is not a history of steps; record one with `longpoll observe --inside`"
        )
    if as_json:
        emit_json({"laws": [_transitions_shown(each, placed[key]) for key, each in laws.items()]})
        return
    for key, each in laws.items():
        sources, count, _ = placed[key]
        out.print(f"{key[0].name}, {count:,} steps of {sources} queues, against the graph of {sizes_of(SMALL)}")
        rows = [_transitions_row(name, known) for name, known in each.of.items()]
        rows.append(
            ("all", f"{sum(map(_times, each.of.values())):,}", sum(r[2] for r in rows), sum(r[3] for r in rows), "")
        )
        table("Transitions", ("action", "times", "seen", "of", "not seen, for instance"), rows)
        for name, words in each.beyond.items():
            for word, times in words.items():
                say(f"  beyond that graph: {name}: {word} ({times:,} times)")


def _transitions_row(name: str, known: Mapping[str, int]) -> tuple[str, str, int, int, str]:
    missing = [word for word, times in known.items() if not times]
    return name, f"{_times(known):,}", len(known) - len(missing), len(known), next(iter(missing), "")


def _times(known: Mapping[str, int]) -> int:
    return sum(known.values())


def _transitions_shown(of: Transitions, placed: Sequence[int]) -> dict[str, Any]:
    return {
        "policy": of.model.policy.name,
        "sources": placed[0],
        "steps": placed[1],
        "run": placed[2],
        "transitions": of.of,
        "beyond": of.beyond,
    }


def _named(tokens: Iterable[str]) -> Iterator[str]:
    for word in tokens:
        if word != STDIN:
            yield word
            continue
        read = TOKEN.findall(sys.stdin.read())
        if not read:
            raise TokenError("standard input has no token; try `longpoll check --json | longpoll coverage -`")
        yield from dict.fromkeys(read)


def _row(name: str, of: Coverage) -> tuple[str, int, int, str]:
    part = of.part(name)
    more = len(part.missing) - SHOWN_MAX
    shown = ", ".join(part.missing[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
    return part.name, len(part.seen), len(part.all), shown


def _shown(of: Coverage) -> dict[str, Any]:
    return {
        "policy": of.policy,
        "bounds": sizes_of(of.bounds),
        "runs": of.runs,
        **{
            part.name: {"seen": [item for item in part.all if item in part.seen], "missing": part.missing}
            for part in of.parts
        },
    }
