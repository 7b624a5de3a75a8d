"""The readme, lessons and slides match the commands' output."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from attrs import frozen
from click.testing import CliRunner
from docs.site import chinese, slides

from longpoll.cli import main
from longpoll.commands.lesson.exercises.invariants import broken_by, is_changed, mutant_of
from longpoll.output import Exit
from longpoll_spec.engines.manifest import pinned_entry

SET_UP: Final = "make setup EXTRAS=spec,judge,simulation"
"""The command that sets up the environment, which a reader has run before the lessons."""


def number_of(name: str) -> int:
    return int(name.partition("-")[0])


ROOT: Final = Path(__file__).parents[2]
LESSONS: Final = ROOT / "docs" / "lessons"
PAGES: Final = sorted(LESSONS.glob("[0-9]*-*.md"), key=lambda page: number_of(page.name))
LECTURER: Final = ROOT / "docs" / "lecturer.md"
BLOCK: Final = re.compile(r"^```(console|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANYTHING: Final = "..."
WIDTH: Final = "140"
TABLES: Final = "hold-table"
"""The folder of starter programs that the dojo writes in a lesson."""
PROGRAM: Final = re.compile(r"docs/(lessons|examples)/\w+\.py")
"""A program that a reader edits. A diff that precedes a command changes the program that the command runs."""


@frozen
class Command:
    line: str
    shown: tuple[str, ...]
    edit: str
    """The diff before the command, or ""."""


def commands(page: str) -> Iterator[Command]:
    """Yield the commands of a page in order; a diff belongs only to the next block."""
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
    """Return the first shown line that the output lacks at its position; a line of the output may be longer.

    Lines must be adjacent unless `...` separates them.
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
    """Return the text after applying a diff, whose removed lines must occur exactly once in the text."""
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", edit, re.MULTILINE):
        gone, comes = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE) for lines in (old, new))
        assert text.count(gone) == 1, old
        text = text.replace(gone, comes)
    return text


def run(command: Command, directory: Path) -> str:
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
        assert done.exit_code in {Exit.OK, Exit.VIOLATED, Exit.PARTLY}, done.output
        return done.output
    assert words[0] == "python"
    ran = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in {0, 1}, ran.stderr
    return ran.stdout


SLOW: Final = re.compile(
    r"longpoll (prove|judge|lesson (6|7\.2|9|11)|dojo --moves|check --policy [\w.-]+ --bounds tiny( --all)?$)|python"
)
"""Commands that take a second or more and run only in long tests. The checks of the lessons always run."""
JAVA: Final = "--on java"


def _cases() -> Iterator[ParameterSet]:
    for page in (*PAGES, LECTURER):
        for number, command in enumerate(commands(page.read_text("utf-8")), start=1):
            slow = SLOW.match(command.line) is not None
            marks = [pytest.mark.long] * slow + [pytest.mark.peers, pytest.mark.timeout(600)] * (JAVA in command.line)
            case = f"{page.stem.partition('-')[0]}-{number}"
            yield pytest.param(page.name, command, id=case, marks=marks)


@pytest.mark.parametrize(("page", "command"), list(_cases()))
def test_a_command_prints_what_the_lesson_shows(
    page: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said = run(command, tmp_path)

    assert command.shown, f"{page}: {command.line} shows nothing"
    assert missing_line(command.shown, said) is None, f"{page}: {command.line}\n{said}"


def test_every_lesson_is_listed_and_has_commands() -> None:
    listed = re.findall(r"\]\((\d+-[\w-]+\.md)\)", (LESSONS / "README.md").read_text("utf-8"))

    assert listed == [page.name for page in PAGES]
    assert len(PAGES) >= 4
    for page in PAGES:
        assert len(list(commands(page.read_text("utf-8")))) >= 4, page.name
    for page in (LESSONS / "README.md", LESSONS / "zh" / "README.md"):
        assert SET_UP in page.read_text("utf-8"), page


def test_the_mutant_begins_as_the_specification() -> None:
    mutant = mutant_of(str(LESSONS / "mutant.py"))
    found, wrong = broken_by(mutant)
    entry = pinned_entry("strict", "tiny")

    assert (wrong, is_changed(mutant)) == ([], False)
    assert (found.distinct_states, found.transitions, found.depth) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )


DECK_PAGES: Final = [path for folder in (slides.LESSONS, chinese.CHINESE) for path in sorted(folder.glob("[0-9]*.md"))]
HEADING: Final = re.compile(r"^#{1,2} (.*)$", re.MULTILINE)
MADE: Final = "# 1. A lesson\n\nFirst.\n\n## Look\n\n{}\n\n```console\n# no heading\n```\n\nAfter.\n\n**1.1** Do it.\n"


@pytest.mark.parametrize("path", DECK_PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_slides_contain_the_whole_lesson(path: Path) -> None:
    """The slides have each block and word once, in order; a heading may repeat on each slide of its section."""
    text = path.read_text("utf-8")
    made = slides.slides_of(text)
    shown = [piece for slide in made for piece in slide.pieces]
    headings = [slide.heading for slide in made]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    said = "".join(part if place % 2 else HEADING.sub("", part) for place, part in enumerate(parts))
    assert re.sub(r"\s+", "", "".join(shown)) == re.sub(r"\s+", "", said)
    assert list(dict.fromkeys(headings)) == [head for part in parts[::2] for head in HEADING.findall(part)]
    for slide in made:
        prose = [len(piece) for piece in slide.pieces if not piece.startswith(("```", "<details>"))]
        assert sum(prose) <= slides.LETTERS_MAX or len(prose) == 1


def test_a_slide_ends_where_a_reader_does() -> None:
    """A slide ends after a block, before an exercise or at too many words, and no block line becomes a heading."""
    made = slides.slides_of(MADE.format("Look here."))
    assert [(slide.heading, len(slide.pieces)) for slide in made] == [
        ("1. A lesson", 1),
        ("Look", 2),
        ("Look", 1),
        ("Look", 1),
    ]
    assert made[-1].pieces == ("**1.1** Do it.",)
    long = "word " * (slides.LETTERS_MAX // 10)
    assert len(slides.slides_of(MADE.format(f"{long}\n\n{long}\n\n{long}"))) == len(made) + 1


def test_a_deck_needs_nothing_else_and_runs_no_other_script() -> None:
    """A deck has a section for each slide and no address except the lesson's, and it escapes markup in texts."""
    text = MADE.format("A `<script>alert(1)</script>` & [a link](../model.md) @SCRIPT@.")
    page = slides.deck("1-made", text, "en")

    assert page.count("<section ") == len(slides.slides_of(text))
    assert re.findall(r'(?:href|src)="([^"]*)"', page) == ["../lessons/1-made.html"]
    assert "<script>alert" not in page
    assert "@SCRIPT@" in page
    assert 'href="../../lessons/zh/1-made.html"' in slides.deck("1-made", text, "zh-Hans")
    assert "'unsafe-inline'; script-src 'sha256-" in unescape(page)


def test_every_lesson_has_a_deck_that_is_listed() -> None:
    listed = re.findall(r'href="([^"]*)"', slides.page())

    assert sorted(listed) == sorted(place for place, _ in slides.decks())
    assert len(listed) == len(DECK_PAGES)


README: Final = (ROOT / "README.md").read_text("utf-8")
SHELL: Final = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def excerpt(text: str) -> tuple[str, ...]:
    block = re.search(r"^```text\n(rocketmq-4\.9: .*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return tuple(line for shown in block[1].splitlines() for line in (shown, "..."))


def test_the_excerpt_is_what_explain_prints() -> None:
    checked = CliRunner().invoke(main, ["check", "--policy", "rocketmq-4.9", "--property", "no_lost_wakeup", "--json"])
    (verdict,) = json.loads(checked.stdout)["properties"]
    printed = CliRunner().invoke(main, ["explain", verdict["token"]]).stdout
    shown = excerpt(README)

    assert len([line for line in shown if line != "..."]) == 8
    assert missing_line(shown, printed) is None
    assert missing_line(excerpt(README.replace("Pull thread 0", "Pull thread 1")), printed) is not None


def test_the_counts_of_the_evidence_are_those_of_the_pages() -> None:
    findings = (ROOT / "docs" / "findings.md").read_text("utf-8")
    table = re.findall(r"^\| \(\w\) \|.*\| ([^|]*) \|$", findings, re.MULTILINE)
    java = (
        (ROOT / "docs" / "java.md")
        .read_text("utf-8")
        .partition("## Reproduced findings")[2]
        .partition("\n\nFor (m)")[0]
    )
    rust = (ROOT / "docs" / "upstream.md").read_text("utf-8").partition("## rocketmq-rust")[2]
    reports = re.findall(r"^\| ([^|]+) \| `--only", rust, re.MULTILINE)
    replayed = set(re.findall(r"^\| (\(\w\)) \|.* seen", java, re.MULTILINE))

    assert f"[{len(table)} findings]" in README
    assert f"; {table.count('none known')} have no upstream report" in README
    assert f"- {len(replayed)} of them [replay" in README
    assert f"[{len(reports)} reports]" in README
