"""The pages about the law tell the truth: every command in them runs, every token shows what is said of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.tokens import replay
from longpoll_spec.law import law_of
from longpoll_spec.policy import preset
from longpoll_spec.testing.traces import breaks_its_property

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("law.md", "findings.md")
TOKEN = re.compile(r"lp1\.[\w-]+")
CLAIM = re.compile(r"`(\w+)`,? \(?(\d+) steps")


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
            found += [(page, line) for line in block.splitlines()]
    return found


def _sections(page: str) -> Iterator[str]:
    yield from (DOCS / page).read_text("utf-8").split("\n## ")[1:]


def _expected_exit(command: str) -> int:
    """What the pages say of a command: of those that set a knob for the worse, and of RocketMQ itself, a violation."""
    worse = (
        "check --policy rocketmq-4.9",
        "recheck_after_hold=none",
        "recheck_after_keep=false",
        "recheck_after_hold=before_lock",
        "recheck_after_hold=in_lock",
        "recheck_after_hold=after_insert --property lost_by_keep",
        "heap_entry=one_shot --knob tick=free",
    )
    return int(any(part in command for part in worse))


def _cases() -> list[ParameterSet]:
    """Each command once; what tries every knob or every number takes long."""
    return [
        pytest.param(page, command, marks=pytest.mark.long if re.search(r"ablate|requests any", command) else ())
        for page, command in dict.fromkeys(_commands())
    ]


@pytest.mark.parametrize(("page", "command"), _cases())
def test_every_command_does_what_the_page_says(page: str, command: str) -> None:
    """A command in a page ends as the page says: proved and held, or violated where it says so."""
    words = shlex.split(command)
    done = CliRunner().invoke(main, words[1:])

    assert words[0] == "longpoll"
    assert done.exit_code == _expected_exit(command), f"{page}: {command}\n{done.output}"


def test_every_token_breaks_what_its_section_claims() -> None:
    """Each token of the findings breaks what its section names, in as many steps, and no run is shorter."""
    policy = preset("rocketmq-4.9")
    explored = explore(law_of(policy, named("tiny", policy)))
    seen = set()
    for section in _sections("findings.md"):
        claims = {name: int(steps) for name, steps in CLAIM.findall(section)}
        for token in TOKEN.findall(section):
            trace = replay(token)
            seen.add(trace.property_name)
            assert breaks_its_property(trace), trace.property_name
            assert trace.depth == claims[trace.property_name] == explored.verdict(trace.property_name).depth

    assert seen == {
        "lost_by_hold",
        "lost_by_keep",
        "queued_by_deadline",
        "dropped_by_reject",
        "dropped_by_throw",
        "answered_on_stop",
    }


def test_a_token_that_shows_nothing_is_seen() -> None:
    """A run that stops one step short of the race breaks nothing."""
    trace = replay(next(token for token in TOKEN.findall((DOCS / "findings.md").read_text("utf-8"))))
    short = type(trace)(trace.model, trace.steps[:-1], trace.property_name)

    assert breaks_its_property(trace)
    assert not breaks_its_property(short)
