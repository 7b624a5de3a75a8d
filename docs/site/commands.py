"""A page for each command, from its help text, usage line and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from longpoll.cli import COMMANDS, main

PARAGRAPH = re.compile(r"\n\s*\n")


def pages() -> dict[str, str]:
    """Map the name of each file to its text. The first file lists all commands."""
    found = {f"{name}.md": "\n".join(_page(f"longpoll {name}", _command(name))) + "\n" for name in COMMANDS}
    return {"index.md": "\n".join(_index()) + "\n", **found}


def _command(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    return command


def _index() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "The commands of `longpoll --help`. Each page has the text of `longpoll COMMAND --help`."
    yield ""
    yield "| command | purpose |"
    yield "| --- | --- |"
    yield from (f"| [`longpoll {name}`]({name}.md) | {_cell(said)} |" for name, (_module, said) in COMMANDS.items())
    yield from ("", "```{toctree}", ":hidden:", "", *COMMANDS, "```")


def _page(name: str, command: click.Command, level: int = 1) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"{'#' * level} {name}"
    yield ""
    yield from ("```text", " ".join([name, *command.collect_usage_pieces(context)]), "```", "")
    yield from _helped(command.help or "")
    rows = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if rows:
        yield from ("| option | meaning |", "| --- | --- |")
        yield from (f"| `{_cell(option)}` | {_prose(said)} |" for option, said in rows)
        yield ""
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from _page(f"{name} {each}", below, level + 1)


def _helped(text: str) -> Iterator[str]:
    """Convert a help text to Markdown: parts with fixed line breaks become blocks, and other parts become prose."""
    for paragraph in PARAGRAPH.split(inspect.cleandoc(text.partition("\f")[0])):
        lines = paragraph.strip("\n").splitlines()
        if lines and lines[0].strip() == "\b":
            yield from ("```text", *(line.rstrip() for line in lines[1:]), "```", "")
        else:
            yield _prose(" ".join(line.strip() for line in lines))
            yield ""


def _prose(text: str) -> str:
    """Escape Markdown in prose, except between backticks."""
    parts = re.split(r"(`[^`]*`)", _cell(text))
    return "".join(part if number % 2 else re.sub(r"([*_<>\[\]#])", r"\\\1", part) for number, part in enumerate(parts))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
