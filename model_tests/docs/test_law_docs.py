"""The pages about the law tell the truth: every command in them runs, every token shows what is said of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import pinned
from longpoll_spec.engines.tokens import replay
from longpoll_spec.law import properties_of
from longpoll_spec.model import Trace, select
from longpoll_spec.policy import PRESETS, REDUNDANT
from longpoll_spec.testing.traces import breaks_its_property

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("law.md", "findings.md")
TOKEN = re.compile(r"lp1\.[\w-]+")
CLAIM = re.compile(r"`(\w+)`,? \(?(\d+) steps")
HAZARDS = {
    "a": ("lost_by_hold",),
    "b": ("lost_by_keep",),
    "c": ("queued_by_deadline",),
    "d": ("dropped_by_reject", "dropped_by_throw"),
    "e": ("closed_is_let_go",),
    "g": ("moved_is_told",),
    "h": ("commit_never_regresses",),
    "i": ("buckets_are_swept",),
    "j": ("no_orphan",),
    "l": ("round_is_whole",),
    "m": ("return_is_whole",),
    "o": ("told_of_role_change",),
    "p": ("answered_on_stop",),
}
"""Hazard -> the properties that stand for it in the table of the findings."""
COLUMNS = ("rocketmq-4.9", "rocketmq-5", "rocketmq-pr7359", "rocketmq-lmq")


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL):
            found += [(page, line) for line in block.splitlines()]
    return found


def _sections(page: str) -> Iterator[str]:
    yield from (DOCS / page).read_text("utf-8").split("\n## ")[1:]


WORSE = (
    r"check --policy rocketmq-4\.9$",
    r"recheck_after_hold=none",
    r"recheck_after_keep=false",
    r"recheck_after_hold=before_lock",
    r"recheck_after_hold=in_lock",
    r"recheck_after_hold=after_insert --property lost_by_keep",
    r"heap_entry=one_shot --knob tick=free",
    r"rocketmq-pr7359 .*lost_by_keep",
    r"rocketmq-lmq --property no_orphan$",
    r"on_truncate=wake --property",
    r"notify=before_visible",
    r"notify_grain=batch --property",
)
"""What the pages say is violated: by RocketMQ itself, by a knob set for the worse, by a remedy that is not enough."""


def _expected_exit(command: str) -> int:
    return int(any(re.search(part, command) for part in WORSE))


def _takes_long(command: str) -> bool:
    return bool(re.search(r"ablate| prove |check --policy rocketmq-4.9$", command))


LONG: Final = (pytest.mark.long, pytest.mark.timeout(1800))
"""A proof for any number takes minutes, and many times as long beside other work."""


def _cases() -> list[ParameterSet]:
    """Each command once; what tries every knob or every number takes long."""
    return [
        pytest.param(page, command, marks=LONG if _takes_long(command) else ())
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
    seen = set()
    for section in _sections("findings.md"):
        claims = {(name, int(steps)) for name, steps in CLAIM.findall(section)}
        shown = set()
        for token in TOKEN.findall(section):
            trace = replay(token)
            assert breaks_its_property(trace), trace.property_name
            assert trace.depth == _shortest(trace), trace.property_name
            shown.add((trace.property_name, trace.depth))
        assert shown == claims, section.splitlines()[0]
        seen |= {name for name, _ in shown}

    assert seen == {name for names in HAZARDS.values() for name in names} | {"seen_survives", "told_of_master_return"}


def _shortest(trace: Trace) -> int | None:
    """The steps of the shortest run that breaks the trace's property, under its own bounds."""
    judged = select(properties_of(trace.model), [trace.property_name])
    return explore(trace.model, judged).verdict(trace.property_name).depth


def test_the_table_of_hazards_is_what_is_pinned() -> None:
    """Each preset has the hazards that the table says, and no others; our own policies have none at all."""
    page = (DOCS / "findings.md").read_text("utf-8")
    violated = {
        policy: {name for entry in pinned() if entry.policy == policy for name in entry.violated} for policy in PRESETS
    }
    rows = re.findall(r"^\| \((\w)\) \|[^|]*\|(.*)\|[^|]*\|$", page, re.MULTILINE)

    assert [letter for letter, _ in rows] == list(HAZARDS)
    for letter, cells in rows:
        for policy, cell in zip(COLUMNS, map(str.strip, cells.split("|")), strict=True):
            there = violated[policy] >= set(HAZARDS[letter])
            assert (cell == "yes") == there, (letter, policy)
            assert cell in {"yes", "closed", ""}
    assert violated["strict"] == violated["strict-clone"] == set()


def test_the_redundant_knobs_are_those_of_the_policy() -> None:
    """The table of redundant knobs has the changes that `policy.REDUNDANT` gives reasons for, in the same presets."""
    page = (DOCS / "findings.md").read_text("utf-8")
    both = {"both": ("strict", "strict-clone")}
    listed = {
        (policy, change)
        for change, where in re.findall(r"^\| `(\w+=\w+)` \| ([\w-]+) \|", page, re.MULTILINE)
        for policy in both.get(where, (where,))
    }

    assert listed == set(REDUNDANT)
