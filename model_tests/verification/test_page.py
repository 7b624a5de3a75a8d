"""The report of `longpoll verify`, the width of output, shell completion, and a whole run of `verify`."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.recording import write
from rich.cells import cell_len

from longpoll import output
from longpoll.cli import COMMANDS, COMPLETING, main
from longpoll.commands.judge import show
from longpoll.output import WIDTH_MIN, WIDTH_OF_A_FILE, Exit, out, table
from longpoll.verification import specification
from longpoll.verification import stages as verify
from longpoll.verification.broker_process import ServedBroker, ServeError
from longpoll.verification.limits import limits_of
from longpoll.verification.report import Outcome, Page, Row, render_page
from longpoll.verification.stages import JAVA_STORE, java_store_is_read, store_row
from longpoll.wire import load
from longpoll.wire.load import LoadPlan
from longpoll_client.messages import decode_messages
from longpoll_judge.run.pipeline import judge
from longpoll_runtime.real import RealRuntime


def row(outcome: Outcome, detail: str = "seen", token: str | None = None) -> Row:
    return Row("law", "what", outcome, detail, 1.5, token)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["ok", "skipped"], Exit.OK),
        (["ok", "unknown"], Exit.UNKNOWN),
        (["unknown", "violated", "ok"], Exit.VIOLATED),
        ([], Exit.OK),
    ],
)
def test_exit_code_is_the_worst_row(outcomes: list[Outcome], code: Exit) -> None:
    page = Page()
    page.stage("title", lambda: [row(outcome) for outcome in outcomes], part="law")

    assert page.exit_code == code


def test_html_escapes_every_text(tmp_path: Path) -> None:
    recorded = tmp_path / "history"
    write(recorded, simulate(Load(events=300)), simulated_meta())
    judged = judge([recorded], engine="local")
    written = render_page([row("violated", "<script>alert(1)</script>")], [("a < b", "<svg></svg>")], judged)

    assert "<script>" not in written
    assert "&lt;script&gt;" in written
    assert "a &lt; b" in written
    assert "<svg></svg>" in written
    assert 'The history is <span class="outcome valid">valid</span>: <a href="verdict.html">' in written
    assert written.endswith("</html>\n")


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
    assert text
    assert [line for line in text.splitlines() if cell_len(line) > width] == []


def letters(text: str) -> str:
    """Return a text without spaces and table lines."""
    return BORDERS.sub("", text)


def shown(monkeypatch: pytest.MonkeyPatch, columns: str | None) -> str:
    """Return a table as it is printed to a pipe, with this value of the variable COLUMNS."""
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
def test_the_width_follows_the_variable_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    """An invalid COLUMNS gives a pipe its default width, and no width is below the smallest readable width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(out, "_file", io.StringIO())

    assert out.width == width


def test_a_page_and_a_judgement_fit_forty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
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
def test_the_verdict_is_above_all_counts(words: list[str], said: str) -> None:
    lines = CliRunner().invoke(main, words, env={"COLUMNS": "100"}).stdout.splitlines()

    assert lines[0].startswith(f"verdict: {said}")
    assert [line for line in lines if line.startswith("verdict: ")] == lines[:1]


def test_prose_is_wrapped_only_if_the_width_is_known() -> None:
    """At 40 columns everything except commands is wrapped; in a pipe a sentence is one line, so `grep` finds it."""
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


def offered(*words: str) -> list[str]:
    kind = get_completion_class("zsh")
    assert kind is not None
    found = kind(main, {}, "longpoll", COMPLETING).get_completions(list(words[:-1]), words[-1])
    return [each.value for each in found]


def test_a_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(offered("")) == set(COMMANDS)
    assert offered("check", "--policy", "strict", "--prop") == ["--property"]
    assert offered("export", "out", "--to", "tl") == ["tla"]
    assert offered("no-such", "--prop") == []

    def lacking(name: str) -> object:
        raise ModuleNotFoundError(f"No module named 'pyarrow', for {name}", name="pyarrow")

    monkeypatch.setattr("longpoll.cli.importlib.import_module", lacking)
    assert offered("judge", "--eng") == []
    assert set(offered("")) == set(COMMANDS)


@pytest.mark.parametrize("asked", ["ksh_source", "bash", "bash_complete"])
def test_an_unknown_completion_request_is_one_error_line(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMP_WORDS", raising=False)
    done = CliRunner().invoke(main, [], env={COMPLETING: asked}, prog_name="longpoll")

    assert done.exit_code == 2
    assert "bash_source, zsh_source, fish_source" in done.stderr
    assert done.stderr.count("\n") == 1


LIMITS = limits_of(0)


def test_races_are_found() -> None:
    rows = list(specification.races_are_found())

    assert [row.outcome for row in rows] == ["ok"] * len(specification.HAZARDS)
    assert all(row.token for row in rows)


def test_java_store_is_read_and_damage_is_seen(tmp_path: Path) -> None:
    """`store verify` accepts the Java broker's store, and names the place of one flipped byte in a body."""
    assert java_store_is_read()[0].outcome == "ok"

    with as_file(files("longpoll.verification") / JAVA_STORE) as archive, tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    log = min((tmp_path / "store" / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    content[100] ^= 0xFF
    log.write_bytes(content)
    row = store_row("damaged", tmp_path / "store")

    assert row.outcome == "violated"
    assert log.name in row.detail


def test_load_notices_a_lost_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = decode_messages
    monkeypatch.setattr(verify, "LoadPlan", lambda topic: LoadPlan(topic, message_count=60, queue_count=2))
    with ServedBroker(tmp_path / "store", None) as served:
        assert verify.load(RealRuntime(), served.address, "T_whole", lambda _done, _all: None)[0].outcome == "ok"
        monkeypatch.setattr(load, "STALL_S", 2.0)
        monkeypatch.setattr(load, "decode_messages", lambda body: honest(body)[:-1])
        row = verify.load(RealRuntime(), served.address, "T_lossy", lambda _done, _all: None)[0]

    assert row.outcome == "violated"
    assert re.search(r"\d+ of \d+ delivered|nothing was delivered", row.detail)


def test_a_broker_that_does_not_start_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")

    with pytest.raises(ServeError, match="ended before it was ready"):
        ServedBroker(tmp_path / "store", None)


LONGPOLL = Path(sys.executable).with_name("longpoll")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_verify_succeeds_and_writes_its_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [LONGPOLL, "verify", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )

    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads(done.stdout)
    parts = {row["part"] for row in page["rows"]}
    assert {"law", "proof", "store", "broker", "clauses", "races", "history"} <= parts
    report = (tmp_path / page["report"]).read_text()
    assert report.count("<svg") >= 3
    assert "The history is" in report
