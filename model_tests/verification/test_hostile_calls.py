"""Every command escapes markup and control characters in its arguments and in the names that it prints."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from longpoll import output
from longpoll.cli import main
from longpoll.commands import client, specification
from longpoll.output import Exit, emit_json, err, out, plain, progress_bar, say, styled, table
from longpoll.verification.report import Page, Row
from longpoll_broker.rocketmq.accounts.access_control import AccountFile, read_rules
from longpoll_client.messages import ReceivedMessage
from longpoll_runtime.logs import JsonFormatter, TextFormatter
from longpoll_spec.engines import ablate as ablate_engine
from longpoll_spec.errors import ConfigError

HOSTILE: Final = (
    "[/x]", "a[red]b", "[bold]a[/bold][", "[link=http://a]b[/link]", "\\[a]", ":smile:", "{0} {x} %s", "<b>&'\"",
    "a\x1b[2Jb", "a\x1b]0;title\x07b", "a\x9b31mb", "a\u202eb\u2066c", "a\u200bb\ufeff", "a\rb\x00c\x7f",
)  # fmt: skip
NAMES: Final = (*HOSTILE, "a\nFORGED line", "a\U000e0041b")
ALL: Final = "[/x]a[red]b\x1b[2J\u202e\nFORGED line"
UNSEEN: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
EXITS: Final = frozenset({0, 1, 2, 3})
SECRET: Final = "topsecret7"  # noqa: S105 - no output may contain this secret
Words = tuple[str, ...]


def leaves(command: click.Command = main, path: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """Yield (words that call it, command) for every command that is not a group."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


LEAVES: Final = dict(leaves())
QUICK_END: Final[dict[str, Sequence[str]]] = {
    "check": ("--policy=none such",),
    "prove": ("--policy=none such",),
    "export": ("--policy=none such",),
    "serve": ("--listen=nowhere", "--name-server=nowhere"),
    "verify": ("--broker=nowhere",),
    "observe": ("--broker=nowhere",),
}
"""Command -> options that make it end at once, because otherwise it would run for long or until it is stopped."""
NOWHERE: Final = "--name-server=127.0.0.1:1"


def run(words: Sequence[str]) -> Result:
    return CliRunner().invoke(main, list(words))


def assert_harmless(result: Result, words: Sequence[str]) -> None:
    """Assert a documented exit code, no traceback or internal error, no control characters and no forged line."""
    shown = result.output
    assert result.exit_code in EXITS, (words, result.exit_code, shown)
    assert "Traceback" not in shown, (words, shown)
    assert "internal error of longpoll" not in shown, (words, shown)
    assert UNSEEN.search(shown) is None, (words, shown)
    forged = [line for line in shown.splitlines() if line.lstrip(" │|").startswith("FORGED")]
    assert forged == [], (words, shown)


def calls(path: Words, text: str) -> Iterator[list[str]]:
    """Yield one call of a command for each of its options and arguments, with a hostile text as the value."""
    command = LEAVES[path]
    for wrong in command.params:
        if not (isinstance(wrong, click.Option) and wrong.is_flag):
            yield [*path, *words_of(path, command, wrong, text)]


def words_of(path: Words, command: click.Command, wrong: click.Parameter, text: str) -> list[str]:
    """Return the arguments of a command for a short run, including the hostile text."""
    options, arguments = list(QUICK_END.get(path[0], ())), []
    if not options and any("--name-server" in one.opts for one in command.params):
        options.append(NOWHERE)
    for one in command.params:
        value = text if one is wrong else "1"
        if one is not wrong and not one.required:
            continue
        if isinstance(one, click.Option):
            options += [one.opts[0], value]
        else:
            arguments.append(value)
    return [*options, *arguments]


@pytest.fixture(scope="module", autouse=True)
def _wide() -> Iterator[None]:
    """Make tables so wide that no name is truncated."""
    with pytest.MonkeyPatch.context() as patch:
        for console in (output.out, output.err):
            patch.setattr(console, "_width", 2_000)
        yield


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_a_hostile_text_in_a_call_is_escaped(path: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in calls(path, ALL):
        assert_harmless(run(words), words)


PLACES: Final = ("file", "file/below", "deep_file", "dangling", "nested", "nested/part-1", ".", "missing/below")
TEXTS: Final = ("x" * 5_000, "(" * 2_000, "nan", "1e300", "-1", "", "lp1.x", "127.0.0.1:99999", "file:f")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_usage_error_is_one_sentence(path: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "deep_file").write_text("[" * 100_000)
    (tmp_path / "dangling").symlink_to(tmp_path / "no" / "where")
    (tmp_path / "nested" / "part-directory.ndjson").mkdir(parents=True)
    (tmp_path / "nested" / "meta.json").write_text('{"format_version": 1, "policy": ' + "[" * 100_000)
    for text in (*PLACES, *TEXTS):
        for words in calls(path, text):
            result = run(words)
            assert_harmless(result, words)
            is_told = re.search(r"(?m)^(longpoll|Error): .*\n\Z", result.stderr)
            assert is_told or result.exit_code != Exit.USER, (words, result.stderr)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
def test_a_line_of_the_log_is_one_line(name: str, formatter: type[logging.Formatter]) -> None:
    record = logging.LogRecord("longpoll", logging.WARNING, "p", 1, "group %s", (name,), None)
    written = formatter().format(record)
    assert UNSEEN.search(written) is None
    assert "\n" not in written


BROKEN_FILES: Final = {
    "plain_acl.yml": (
        f'accounts:\n- accessKey: "\x1b[2J{ALL!r}"\n  secretKey: {SECRET}\n  nonsense: {SECRET}\n',
    ),
    "broker.conf": (
        f"flushDiskType={ALL}\n",
        "listenPort=[/x]a[red]b\x1b[2J\n",
        "[/x]\x1b[2J=1\nbrokerName=a\u202eb\n",
        f"secretKey={SECRET}\nlistenPort=x\n",
        f"no key and no value {SECRET}\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "number"), [(file, number) for file, texts in BROKEN_FILES.items() for number in range(len(texts))]
)
def test_errors_about_broken_files_contain_no_secret(file: str, number: int, tmp_path: Path) -> None:
    (tmp_path / file).write_text(BROKEN_FILES[file][number], "utf-8")
    option = "--acl" if file.endswith("yml") else "--config"
    words = ["serve", f"{option}={tmp_path / file}", f"--store={tmp_path / 'store'}", "--listen=nowhere"]
    result = run(words)
    assert_harmless(result, words)
    assert result.exit_code == 2
    assert SECRET not in result.output


ROOT: Final = Path(__file__).parents[2] / "reference" / "longpoll"
WIDE: Final = 400


def assert_shown(text: str, hostile: str) -> None:
    assert UNSEEN.search(text) is None, repr(text)
    shown = plain(hostile)
    assert shown in " ".join(text.replace("│", " ").split()) or shown in text, (shown, text)


@contextmanager
def consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    file = io.StringIO()
    with monkeypatch.context() as patch:
        for console in (out, err):
            patch.setattr(console, "_file", file)
            patch.setattr(console, "_width", WIDE)
        patch.setattr("sys.stdout", file)
        yield file


def received(name: str) -> ReceivedMessage:
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
    "ablate": lambda name: out.print(specification._said(ablate_engine.Row("p", "k", (), (name,)))),
    "message": lambda name: client.print_message(received(name), as_json=False),
}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_output_escapes_a_name(monkeypatch: pytest.MonkeyPatch, way: str, name: str) -> None:
    with consoles(monkeypatch) as written:
        WAYS[way](name)
    assert_shown(written.getvalue(), name)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_json_keeps_a_text_and_has_no_control_characters(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with consoles(monkeypatch) as written:
        emit_json({"name": name})
    assert UNSEEN.search(written.getvalue()) is None
    assert json.loads(written.getvalue()) == {"name": name}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_progress_bar_escapes_a_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = io.StringIO()
    monkeypatch.setattr(output, "err", Console(file=file, force_terminal=True, width=WIDE, color_system=None))
    with progress_bar() as bar:
        task = bar.add_task(f"consuming {name}", total=2)
        bar.update(task, description=f"still {name}", refresh=True)
    # Control sequences that rich itself writes are removed first.
    drawn = re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", file.getvalue())
    assert f"still {plain(name)}" in drawn
    assert UNSEEN.search(drawn) is None


def test_every_command_writes_through_the_escaping_functions() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if writes_in(path.read_text("utf-8"))}
    # exit_codes must work before other modules are loaded, so it has its own escaping.
    assert found == {"output.py", "exit_codes.py"}


def writes_in(text: str) -> list[int]:
    """Return the numbers of lines that write to stdout, lay out a table without the helper, or use a name as markup."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = r"print|click\.(secho|echo)|sys\.std(out|err)\.write|rich\.print|(.*\.)?(Table|Console|grid|from_markup)"
    return [call.lineno for call in calls if re.fullmatch(names, ast.unparse(call.func)) or is_marked(call)]


def is_marked(call: ast.Call) -> bool:
    """Whether a call interprets as markup a text that is neither a literal nor a colour of our own tables."""
    if ast.unparse(call.func) not in {"styled", "Text"}:
        return False
    parts = [part for node in call.args[:1] for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]
    return not (
        all(re.match(r"MARKS|COLOURS|colour\b", ast.unparse(part.value)) for part in parts)
        and all(isinstance(node, ast.Constant | ast.JoinedStr | ast.IfExp) for node in call.args[:1])
    )


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
def test_an_error_in_a_file_of_accounts_contains_no_secret(entry: str) -> None:
    content = f"accounts:\n- accessKey: RocketMQ\n  {entry.format(secret=QUOTED)}"
    with pytest.raises(ConfigError) as raised:
        read_rules(content.encode(), "plain_acl.yml")
    assert QUOTED not in str(raised.value)
    assert "plain_acl.yml" in str(raised.value)


def test_an_error_in_yaml_has_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2, column 2"):
        AccountFile.parse(b"accounts: [\n]]")
