"""The commands in the docs exist: each with its options, each make target, each module.

These tests run no command: `test_every_command` runs the pages' commands, and the pages' tests (`test_spec_page`,
`test_lessons`, `test_differences`) check the output.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from attrs import frozen
from click.testing import CliRunner

from longpoll.cli import COMMANDS, main
from longpoll_spec.bounds import NAMES
from longpoll_spec.custom import policy_from
from longpoll_spec.engines import ENGINES
from longpoll_spec.errors import UserError
from longpoll_spec.policy import preset, with_knobs

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob(".github/*.md")]
)
TARGETS: Final = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
FENCED: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPECIFIED: Final = {"check", "prove", "export"}
SHELL: Final = {"", "console", "sh", "bash"}
SPAN: Final = re.compile(r"(?<!`)`((?:longpoll|make|python -m) [^`\n]+)`(?!`)")
TYPED: Final = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ )*((?:\.venv/bin/)?(?:longpoll|make|python)(?: .*)?)$", re.MULTILINE
)
TUTORIAL: Final = ROOT / "docs" / "first-test.md"
ACTIVATED: Final = "source .venv/bin/activate"


@frozen
class Typed:
    line: str
    whole: bool
    """Whether the command stands in a block; a command within a sentence may leave out required options."""


def commands(text: str) -> Iterator[Typed]:
    for kind, block in FENCED.findall(text):
        if kind in SHELL:
            yield from (Typed(line, whole=True) for line in TYPED.findall(block))
    yield from (Typed(line, whole=False) for line in SPAN.findall(FENCED.sub("", text)))


def wrong(typed: Typed) -> str | None:
    words = shlex.split(typed.line, comments=True)
    ends = [place for place, word in enumerate(words) if word in {"|", "&", ">", "..."} or word.startswith((">", "<"))]
    program, *words = words[: min(ends, default=len(words))]
    if program.endswith("make"):
        targets = [word for word in words if "=" not in word]
        return next((f"no target {each}" for each in targets if each not in TARGETS), None)
    if program.endswith("python"):
        return _wrong_module(words)
    try:
        _check_call(words, whole=typed.whole)
    except (click.UsageError, UserError) as error:
        return str(error)
    return None


def _wrong_module(words: list[str]) -> str | None:
    if words[0] != "-m":
        return None if (ROOT / words[0]).is_file() else f"no file {words[0]}"
    found = words[1] == "pytest" or importlib.util.find_spec(words[1]) is not None
    return None if found else f"no module {words[1]}"


def _check_call(words: list[str], *, whole: bool) -> None:
    command: click.Command = main
    name = "longpoll"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise click.UsageError(f"no command {name}")
        command = found
    try:
        context = command.make_context(name, words)
    except (click.MissingParameter, click.BadOptionUsage):
        if whole:
            raise
        return
    except click.exceptions.Exit:  # `--help` and `--version`
        return
    given = context.params
    file = given.get("file")
    known = (
        policy_from(str(ROOT / file))
        if file and (ROOT / file).is_file()
        else (policy_from if name in SPECIFIED else preset)(given.get("policy_name") or "strict")
    )
    with_knobs(known, given.get("knobs") or ())
    if given.get("bounds_name", NAMES[0]) not in NAMES or (name == "check" and given["engine"] not in {*ENGINES, None}):
        raise click.UsageError("no such bounds or engine")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_command_of_a_page_exists(page: Path) -> None:
    found = {each.line: why for each in commands(page.read_text("utf-8")) if (why := wrong(each))}

    assert found == {}


def test_each_example_of_a_commands_help_exists() -> None:
    helps = [CliRunner().invoke(main, [name, "--help"], env={"COLUMNS": "200"}).stdout for name in COMMANDS]
    examples = [line for text in helps for line in re.findall(r"^ +(longpoll .*?)(?:  .*)?$", text, re.MULTILINE)]

    assert len(examples) > 50
    assert {line: why for line in examples if (why := wrong(Typed(line, whole=True)))} == {}


def reader_can_type(page: Path, text: str) -> bool:
    """Whether a page says how to put `longpoll` on the PATH, if one of its blocks uses it."""
    bare = [each for each in commands(text) if each.whole and each.line.startswith(("longpoll", "python"))]
    starts = [each for each in (page.parent / "README.md", TUTORIAL) if each != page and each.is_file()]
    is_guide = page.is_relative_to(ROOT / "docs")
    return not bare or ACTIVATED in text or (is_guide and any(ACTIVATED in each.read_text("utf-8") for each in starts))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_that_uses_longpoll_says_how_to_set_it_up(page: Path) -> None:
    assert reader_can_type(page, page.read_text("utf-8"))


@pytest.mark.parametrize(
    "planted",
    [
        "longpoll chekc --policy strict",
        "longpoll check --policy stirct",
        "longpoll check --knob expiry=never",
        "longpoll check --bounds tinny",
        "longpoll judge",
        "make no-such-target",
        "python -m longpoll_spec.no_such",
        "python docs/lessons/no_such.py",
    ],
)
def test_a_wrong_command_is_reported(planted: str) -> None:
    (typed,) = commands(f"Text.\n\n```console\n{planted}  # why\n```\n")

    assert wrong(typed)
    assert wrong(Typed("longpoll judge history --json | grep verdict", whole=True)) is None
    assert wrong(Typed("longpoll judge", whole=False)) is None
    assert not reader_can_type(ROOT / "planted.md", "```\nlongpoll check\n```\n")
