"""The page, its exit code and its HTML say what the rows say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from longpoll.output import Exit
from longpoll.verification import html
from longpoll.verification.page import Outcome, Page, Row
from longpoll_judge.run.job import judge
from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write


def row(outcome: Outcome, detail: str = "seen", token: str | None = None) -> Row:
    """A row with this outcome."""
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
    """One violated row decides, then one unknown row; what is skipped decides nothing."""
    page = Page()
    page.stage("title", lambda: [row(outcome) for outcome in outcomes], part="law")

    assert page.exit_code == code


def test_page_prints_every_row_and_token(capsys: pytest.CaptureFixture[str]) -> None:
    """The human page has each row's words, and a command for each counterexample."""
    page = Page([row("ok", "first detail"), row("violated", "second detail", "lp1.abc")])

    page.print()

    text = capsys.readouterr().out
    assert "first detail" in text
    assert "second detail" in text
    assert "longpoll explain lp1.abc" in text


def test_html_escapes_what_it_is_given(tmp_path: Path) -> None:
    """A detail with markup stays text, and the file is one whole page."""
    recorded = tmp_path / "history"
    write(recorded, simulate(Load(events=300)), simulated_meta())
    judged = judge([recorded], engine="local")
    text = html.render([row("violated", "<script>alert(1)</script>")], [("a < b", "<svg></svg>")], judged)
    path = html.write(tmp_path / "report", text)

    written = path.read_text()
    assert "<script>" not in written
    assert "&lt;script&gt;" in written
    assert "a &lt; b" in written
    assert "<svg></svg>" in written
    assert "The history is" in written
    assert written.endswith("</html>\n")


def test_ctrl_c_in_a_stage_ends_the_command_and_is_no_row() -> None:
    """What else a stage raises is one: the others go on."""

    def raising(error: BaseException) -> Callable[[], Sequence[Row]]:
        def work() -> Sequence[Row]:
            raise error

        return work

    page = Page()
    page.stage("a stage", raising(OSError("gone")), part="suite")
    with pytest.raises(KeyboardInterrupt):
        page.stage("another", raising(KeyboardInterrupt()), part="suite")
    assert [(one.part, one.what, one.outcome) for one in page.rows] == [("suite", "a stage", "unknown")]
