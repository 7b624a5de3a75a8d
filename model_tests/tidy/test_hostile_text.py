"""Texts of strangers reach the terminal as they are: no markup, no control characters, no turned order of letters."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from longpoll import output
from longpoll.commands import ablate, client, store
from longpoll.commands import admin as admin_commands
from longpoll.output import emit_json, err, out, plain, progress_bar, say, styled, table
from longpoll.verification.page import Page, Row
from longpoll_broker.service.access.access_control import read_rules
from longpoll_broker.service.access.account_file import AccountFile
from longpoll_client.messages import ReceivedMessage
from longpoll_runtime.logs import TextFormatter
from longpoll_spec.engines import ablate as ablate_engine
from longpoll_spec.errors import ConfigError

ROOT: Final = Path(__file__).parents[2] / "reference" / "longpoll"
HOSTILE: Final = (
    "[/x]",
    "a[red]b",
    "[bold]a[/bold][",
    "[link=http://a]b[/link]",
    "\\[a]",
    ":smile:",
    "a\x1b[2Jb",
    "a\x1b]0;title\x07b",
    "a\x9b31mb",
    "a\u202eb\u2066c",
    "a\u200bb\ufeff",
    "a\rb\x00c\x7f",
    "{0} {x} %s",
)
UNSEEN: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
WIDE: Final = 400


def assert_shown(text: str, hostile: str) -> None:
    """The name is there, written out, and nothing in the text steers a terminal."""
    assert UNSEEN.search(text) is None, repr(text)
    shown = plain(hostile)
    assert shown in " ".join(text.replace("│", " ").split()) or shown in text, (shown, text)


@contextmanager
def consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What both consoles and stdout are written."""
    file = io.StringIO()
    with monkeypatch.context() as patch:
        for console in (out, err):
            patch.setattr(console, "_file", file)
            patch.setattr(console, "_width", WIDE)
        patch.setattr("sys.stdout", file)
        yield file


def received(name: str) -> ReceivedMessage:
    """A message with this tag and body."""
    body = name.encode("utf-8", "surrogatepass")
    return ReceivedMessage("T", 0, 0, body, {"TAGS": name}, "id", 0, "h", 0, "h", 0, 0, 0, 0)


WAYS: Final[dict[str, Callable[[str], object]]] = {
    "out": lambda name: out.print(f"a {name} b"),
    "err": lambda name: err.print(f"a {name} b", style="dim"),
    "cell": lambda name: table("T", ("c",), [(name,)]),
    "column": lambda name: table("T", (name,), [("c",)]),
    "title": lambda name: table(name, ("c",), [("c" * WIDE,)]),
    "styled": lambda name: out.print(styled("[red]{}[/]", name)),
    "say": say,
    "verify row": lambda name: Page().add([Row("p", name, "violated", name, 0.0)]),
    "verify page": lambda name: Page([Row("p", name, "unknown", "d", 0.0, "t")]).print(),
    "verify detail": lambda name: Page([Row("p", "w", "skipped", name, 0.0)]).print(),
    "topic made": lambda name: admin_commands._tell_done({}, f"created topic {name}", as_json=False),
    "store line": lambda name: store._print_lines(iter([{"topic": name}]), as_json=False),
    "ablate": lambda name: out.print(ablate._said(ablate_engine.Row("p", "k", (), (name,)))),
    "message": lambda name: client.print_message(received(name), as_json=False),
}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("way", WAYS)
def test_every_way_out_shows_a_name_as_it_is(monkeypatch: pytest.MonkeyPatch, way: str, name: str) -> None:
    with consoles(monkeypatch) as written:
        WAYS[way](name)
    assert_shown(written.getvalue(), name)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_json_is_the_same_text_and_steers_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with consoles(monkeypatch) as written:
        emit_json({"name": name})
    assert UNSEEN.search(written.getvalue()) is None
    assert json.loads(written.getvalue()) == {"name": name}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_progress_bar_shows_a_name_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = io.StringIO()
    monkeypatch.setattr(output, "err", Console(file=file, force_terminal=True, width=WIDE, color_system=None))
    with progress_bar() as bar:
        task = bar.add_task(f"consuming {name}", total=2)
        bar.update(task, description=f"still {name}", refresh=True)
    # What rich itself steers the terminal with does not count.
    drawn = re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue())
    assert f"still {plain(name)}" in drawn
    assert UNSEEN.search(drawn) is None


def test_no_command_writes_past_the_one_place() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if writes_in(path.read_text("utf-8"))}
    assert found == {
        "output.py",  # the one place
        "guard.py",  # before anything else is loaded; it writes out by itself what it shows
        "verification/real_client_child.py",  # JSON, to its parent
    }


def writes_in(text: str) -> list[int]:
    """The lines that write to a stream of the process by themselves."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write", "rich.print"}
    return [call.lineno for call in calls if ast.unparse(call.func) in names]


QUOTED: Final = "s3cr3t"
BROKEN: Final = (
    "secretKey: [{secret}\n",
    "secretKey: *{secret}\n",
    "secretKey: !{secret} x\n",
    'secretKey: "{secret}\\q"\n',
    "secretKey: '{secret}\n",
    "secretKey: {secret}: b\n",
    "secretKey: @{secret}\n",
    "secretKey: %{secret}\n",
    "secretKey: {secret}\n  b: c\n",
    "secretKey: {secret}\x00\n",
    "secretKey: {secret}\n\t- b\n",
    "%YAML 9.9\n---\nsecretKey: {secret}\n",
    "? {{secretKey: {secret}\n",
    "secretKey: &{secret}\n&b c\n",
    "secretKey: {{{secret}: [}}\n",
    "secretKey: [{secret}]\n",
    "secretKey: {{a: {secret}}}\n",
)


@pytest.mark.parametrize("entry", BROKEN, ids=range(len(BROKEN)))
def test_no_error_of_a_file_of_accounts_tells_a_secret(entry: str) -> None:
    content = f"accounts:\n- accessKey: RocketMQ\n  {entry.format(secret=QUOTED)}"
    with pytest.raises(ConfigError) as raised:
        read_rules(content.encode(), "plain_acl.yml")
    assert QUOTED not in str(raised.value)
    assert "plain_acl.yml" in str(raised.value)


def test_a_place_in_broken_yaml_is_told() -> None:
    with pytest.raises(ConfigError, match="line 2, column 2"):
        AccountFile.parse(b"accounts: [\n]]")


def test_logs_turn_no_letters() -> None:
    record = logging.LogRecord("a", logging.ERROR, "b", 1, "topic %s", ("x\u202ey\x9bz",), None)
    assert TextFormatter().format(record).endswith("topic x\\u202ey\\u009bz")
