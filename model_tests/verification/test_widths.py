"""Tables fit the columns there are, lose nothing to that, and what came of a command stands above its counts."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from longpoll import output
from longpoll.cli import main
from longpoll.commands.judge import show
from longpoll.output import WIDTH_MIN, WIDTH_OF_A_FILE, out, table
from longpoll.verification.page import Page, Row
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write

COMMANDS: Final = Path(output.__file__).parent
WIDTHS: Final = (20, 33, 40, 60, 80, 140, 300)
HEADS: Final = ("property", "verdict", "seen", "where")
ROWS: Final = (
    (
        "no_lost_wakeup_of_any",
        "violated",
        "a pull waited though its message was there",
        "a-rather-long-id-without-a-break",
    ),
    ("answered_once", "holds", "", "T/0"),
)
BORDERS: Final = re.compile("[┏┓┗┛━┃┳╇┡┩└┘┴│├┤┼─\\s]+")


def assert_within(text: str, width: int) -> None:
    """No line is longer than there are columns."""
    assert text
    assert [line for line in text.splitlines() if cell_len(line) > width] == []


def letters(text: str) -> str:
    """A text without what a layout adds."""
    return BORDERS.sub("", text)


def shown(monkeypatch: pytest.MonkeyPatch, columns: str | None) -> str:
    """What a pipe gets of one table with this COLUMNS."""
    file = io.StringIO()
    with monkeypatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        if columns is not None:
            patch.setenv("COLUMNS", columns)
        patch.setattr(out, "_file", file)
        table("Always true of it", HEADS, ROWS)
    return file.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_fits_and_no_letter_is_lost(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Whatever COLUMNS says: each cell is there in one piece where rows are stacked, each of its words else."""
    text = shown(monkeypatch, str(width))

    assert_within(text, width)
    if "│" in text:
        assert all(
            word in text for row in ROWS for cell in row for word in cell.split() if len(word) <= output.WORD_MAX
        )
    else:
        assert all(letters(cell) in letters(text) for row in ROWS for cell in row)
    assert ("│" in text) == (width >= 80)


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        (None, WIDTH_OF_A_FILE),
        ("", WIDTH_OF_A_FILE),
        ("0", WIDTH_OF_A_FILE),
        ("-40", WIDTH_OF_A_FILE),
        ("forty", WIDTH_OF_A_FILE),
        ("\u0664\u0660", WIDTH_OF_A_FILE),
        ("9" * 40, WIDTH_OF_A_FILE),
        ("40", 40),
        ("3", WIDTH_MIN),
        ("999999", output.WIDTH_MAX),
    ],
)
def test_columns_is_what_the_environment_says_of_them(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    """Where it says nothing that makes sense, a pipe has its usual width; nothing narrower than can be read."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(out, "_file", io.StringIO())

    assert out.width == width


@pytest.mark.parametrize("width", [40, 80])
def test_the_commands_tables_are_as_wide_as_columns(width: int) -> None:
    """Those of `policies`, which has the widest, through the command line."""
    done = CliRunner().invoke(main, ["policies"], env={"COLUMNS": str(width)})

    assert done.exit_code == 0
    assert_within(done.stdout, width)
    assert letters("rechecked_under_lock") in letters(done.stdout)
    assert "rocketmq-pr7359" in done.stdout


def test_a_page_and_a_judgement_fit_forty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The main job's table, whose parts are said once where it has columns, and all that `judge` prints."""
    monkeypatch.setenv("COLUMNS", "40")
    page = Page([Row("law", "each engine", "ok", "5,043 states"), Row("law", "strict", "violated", "no_lost_wakeup")])
    page.print()
    narrow = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "100")
    page.print()
    wide = capsys.readouterr().out
    write(tmp_path, simulate(Load(events=300)), simulated_meta())
    result = judge([tmp_path], engine="local")
    monkeypatch.setenv("COLUMNS", "40")
    show(result)
    judged = capsys.readouterr().out

    assert_within(narrow, 40)
    assert_within(judged, 40)
    assert narrow.count("law") == 2
    assert wide.count("│ law ") == 1
    for text in (narrow, wide):
        assert text.startswith("verdict: violated (1 ok, 1 violated)\n")
    assert judged.startswith(f"verdict: {result.verdict}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "--policy", "rocketmq-4.9", "--bounds", "tiny", "--requests", "1"], "violated: 10 of 20 properties"),
        (["check", "--bounds", "tiny", "--requests", "1"], "holds: "),
        (["check", "--bounds", "tiny", "--requests", "1", "--max-states", "5"], "unknown: "),
        (["prove", "--property", "answered_once", "--requests", "2"], "proved"),
    ],
)
def test_the_verdict_stands_above_all_counts(words: list[str], said: str) -> None:
    """On the first line, with the properties that decide it, or their number."""
    lines = CliRunner().invoke(main, words, env={"COLUMNS": "100"}).stdout.splitlines()

    assert lines[0].startswith(f"verdict: {said}")
    assert [line for line in lines if line.startswith("verdict: ")] == lines[:1]


def own_layouts(source: str) -> list[int]:
    """The lines that make a table or a console of rich's, which know nothing of `output`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if ast.unparse(call.func).rpartition(".")[2] in {"Table", "Console", "grid"}]


def test_no_command_lays_out_a_table_by_itself() -> None:
    """Only `output` does; a planted one is seen."""
    found = {path.name for path in COMMANDS.rglob("*.py") if own_layouts(path.read_text("utf-8"))}

    assert found == {"output.py"}
    assert own_layouts("from rich.table import Table\ngrid = Table(title='a')") == [2]


def test_prose_is_wrapped_where_columns_are_known_and_else_not() -> None:
    """At 40 columns all but the commands to copy fits; in a pipe each sentence is one line, to be searched for."""
    words = ["check", "--policy", "rocketmq-4.9", "--bounds", "tiny", "--requests", "1", "--all"]
    narrow, piped = (CliRunner().invoke(main, words, env={"COLUMNS": columns}).stdout for columns in ("40", ""))

    prose = [
        "\n".join(line for line in each.splitlines() if "longpoll explain" not in line) for each in (narrow, piped)
    ]

    assert_within(prose[0], 40)
    assert narrow.count("longpoll explain lp1.") == piped.count("longpoll explain lp1.") > 5
    assert piped.splitlines()[2].startswith("time waits for: ")
    with pytest.raises(AssertionError):
        assert_within(prose[1], 100)
