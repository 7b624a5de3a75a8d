"""The lessons are true: every command runs as it stands and prints the lines below it, edits of the mutant included."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from attrs import frozen
from click.testing import CliRunner

from longpoll.cli import main
from longpoll.output import Exit
from longpoll_spec.actions import pull
from longpoll_spec.actions.run import expire
from longpoll_spec.bounds import named
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.policy import preset
from longpoll_spec.state import state_of
from longpoll_spec.testing.mutant import broken_by, report, rewritten

BEGUN: Final = "`make setup`"
"""What a reader has done before."""


def number_of(name: str) -> int:
    """A lesson's number, of its page's name."""
    return int(name.partition("-")[0])


ROOT: Final = Path(__file__).parents[2]
LESSONS: Final = ROOT / "docs" / "lessons"
PAGES: Final = sorted(LESSONS.glob("[0-9]*-*.md"), key=lambda page: number_of(page.name))
BLOCK: Final = re.compile(r"^```(console|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANYTHING: Final = "..."
WIDTH: Final = "140"
MUTANT: Final = "docs/lessons/mutant.py"
TABLES: Final = "hold-table"
"""A folder of programs to begin with, which a lesson has the dojo write."""
PROGRAM: Final = re.compile(r"docs/lessons/\w+\.py")
"""A program that a reader edits; a diff before a command is for the one that the command names."""


@frozen
class Command:
    """One command of a lesson, and the lines that it shows of what is printed."""

    line: str
    shown: tuple[str, ...]
    edit: str
    """The diff that stands before it, if one does."""


def commands(page: str) -> Iterator[Command]:
    """The commands of a page, in order; an edit is for the next block only."""
    edit = ""
    for kind, block in BLOCK.findall(page):
        if kind == "diff":
            edit = block
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *shown = part.splitlines()
            yield Command(line, tuple(shown), edit)
        edit = ""


def missing_line(shown: tuple[str, ...], said: str) -> str | None:
    """The first line that nothing printed begins with, in this order.

    Lines follow on each other, but for where `...` stands between.
    """
    lines = said.splitlines()
    at, free = 0, False
    for wanted in shown:
        if wanted == ANYTHING:
            free = True
            continue
        reach = range(at, len(lines)) if free else range(at, min(at + 1, len(lines)))
        found = next((index for index in reach if lines[index].startswith(wanted)), None)
        if found is None:
            return wanted
        at, free = found + 1, False
    return None


def edited(text: str, edit: str) -> str:
    """The text after an edit: lines that go, which are there once, and in their place those that come."""
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", edit, re.MULTILINE):
        gone, comes = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE) for lines in (old, new))
        assert text.count(gone) == 1, old
        text = text.replace(gone, comes)
    return text


def _run(command: Command, directory: Path) -> str:
    words = [word.replace(TABLES, str(directory / TABLES)) for word in shlex.split(command.line)]
    if TABLES in command.line and "--starter" not in words:
        CliRunner().invoke(main, ["dojo", "--starter", "python", str(directory / TABLES)])
    if command.edit:
        (program,) = [word for word in words if PROGRAM.fullmatch(word)]
        changed = directory / Path(program).name
        changed.write_text(edited((ROOT / program).read_text("utf-8"), command.edit), "utf-8")
        words[words.index(program)] = str(changed)
    if words[0] == "longpoll":
        done = CliRunner().invoke(main, words[1:], env={"COLUMNS": WIDTH})
        if JAVA in command.line and done.exit_code == Exit.USER:
            pytest.skip(f"JAVA BROKER NOT TRIED: {done.stderr}")
        assert done.exit_code in {0, 1}, done.output
        return done.output
    assert words[0] == "python"
    ran = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in {0, 1}, ran.stderr
    return ran.stdout


SLOW: Final = re.compile(
    r"longpoll (prove|judge|lesson (6|7\.2|9|11)|dojo --moves|check --policy [\w.-]+ --bounds tiny( --all)?$)|python"
)
"""What takes a second and more is run at length only; what the lessons check is run each time."""
JAVA: Final = "--on java"


def _cases() -> Iterator[ParameterSet]:
    for page in PAGES:
        for number, command in enumerate(commands(page.read_text("utf-8")), start=1):
            slow = SLOW.match(command.line) is not None
            marks = [pytest.mark.long] * slow + [pytest.mark.peers, pytest.mark.timeout(600)] * (JAVA in command.line)
            case = f"{page.stem.partition('-')[0]}-{number}"
            yield pytest.param(page.name, command, id=case, marks=marks)


@pytest.mark.parametrize(("page", "command"), list(_cases()))
def test_a_command_prints_what_the_lesson_shows(
    page: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs, and the lines that the lesson shows are among what it prints, in their order."""
    monkeypatch.chdir(ROOT)
    said = _run(command, tmp_path)

    assert command.shown, f"{page}: {command.line} shows nothing"
    assert missing_line(command.shown, said) is None, f"{page}: {command.line}\n{said}"


def test_every_lesson_is_listed_and_has_commands() -> None:
    """The list has every lesson, there are at least three races, and each has steps."""
    listed = re.findall(r"\]\((\d+-[\w-]+\.md)\)", (LESSONS / "README.md").read_text("utf-8"))

    assert listed == [page.name for page in PAGES]
    assert len(PAGES) >= 4
    for page in PAGES:
        assert len(list(commands(page.read_text("utf-8")))) >= 4, page.name
    for page in LESSONS.rglob("[0-9]*-*.md"):
        assert BEGUN in page.read_text("utf-8").split("\n\n")[1], f"{page}: who begins here is not told where to type"


def test_the_mutant_begins_as_the_law_itself(tmp_path: Path) -> None:
    """The law's own text in place of itself changes no number, and breaks nothing."""
    policy = preset("strict")
    found, wrong = broken_by(rewritten(state_of(policy, named("tiny", policy)), pull.hold))
    entry = pinned_entry("strict", "tiny")

    assert wrong == []
    assert (found.distinct_states, found.transitions, found.depth) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )


def test_an_action_that_the_policy_lacks_is_refused() -> None:
    """There is nothing to put another text in place of."""
    with pytest.raises(ValueError, match=r"rocketmq-4\.9 has no action expire"):
        report(expire, policy="rocketmq-4.9", bounds="tiny")
