"""`longpoll coverage`: what a list of tokens exercises of the law, and what it does not.

Leaves out the counting (`longpoll_spec.engines.coverage`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

from longpoll.output import emit_json, json_option, out, table, user_mistakes
from longpoll_spec.engines.coverage import Coverage, coverage_of
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import TokenError
from longpoll_spec.render.notation import sizes_of

TOKEN: Final = re.compile(r"\blp\d+\.[\w-]+")
"""A token anywhere in a text."""
STDIN: Final = "-"
SHOWN_MAX: Final = 12
"""Most missing items that a table names; --json has all."""


@click.command()
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
@json_option
@user_mistakes
def coverage(*, tokens: Sequence[str], as_json: bool) -> None:
    """Tell which actions, places, moves of requests and `sometimes` properties the runs of some tokens exercise.

    A TOKEN of - stands for every token in what is read from stdin, such as the output of `longpoll check`. Runs of
    different laws (policies, knobs, aspects) are counted apart.

    \b
    Examples:
      longpoll coverage TOKEN
      longpoll coverage TOKEN TOKEN --json
      longpoll check --policy rocketmq-4.9 --json | longpoll coverage -
    """
    found = coverage_of(replay(token) for token in _named(tokens))
    if as_json:
        emit_json({"laws": [_shown(each) for each in found]})
        return
    for each in found:
        out.print(
            f"{each.policy}, {sizes_of(each.bounds)}: {each.runs} run{'s' if each.runs != 1 else ''}",
        )
        table("Exercised", ("part", "seen", "of", "not seen"), (_row(part.name, each) for part in each.parts))


def _named(tokens: Iterable[str]) -> Iterator[str]:
    for word in tokens:
        if word != STDIN:
            yield word
            continue
        read = TOKEN.findall(sys.stdin.read())
        if not read:
            raise TokenError("no token in what was read from stdin; try `longpoll check --json | longpoll coverage -`")
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
