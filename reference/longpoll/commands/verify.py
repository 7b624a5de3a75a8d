"""`longpoll verify`: checks the specification and our broker end to end, and writes one page.

The stages are in `longpoll.verification.stages`, which is imported when the command runs, because it needs extras.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from longpoll.commands.gone import former_options
from longpoll.options.values import FilledPath, race_option
from longpoll.output import check_directory, check_file, emit_json, err, json_option, user_mistakes
from longpoll_runtime.real import RealRuntime

REPORT: Final = "longpoll-report"
PAGE: Final = "index.html"


@click.command()
@race_option
@click.option(
    "--report",
    "report_directory",
    default=REPORT,
    show_default=True,
    type=FilledPath(file_okay=False),
    help="Directory for the report, index.html.",
)
@json_option
@former_options("verify")
@user_mistakes
def verify(*, race_s: float, report_directory: Path, as_json: bool) -> None:
    """Check the specification, test the reference broker under load, judge its history, and print one report.

    The command starts the broker with a temporary store and records its history. It also replays recorded RocketMQ
    conversations. The report is always complete: a stage that cannot run has a row with the reason. To test another
    broker, use `longpoll conform`.

    \b
    Examples:
      longpoll verify
      longpoll verify --json
      longpoll verify --race-seconds 60 --report build/verify

    Exit codes: 0 everything passed, 1 a violation, 2 a mistake in the command line, 3 unknown.
    """
    from longpoll.verification import specification, stages  # noqa: PLC0415 - needs extras, which --help does not
    from longpoll.verification.report import VERDICT, Page, render_page  # noqa: PLC0415 - the same
    from longpoll_judge.show.page import render_html  # noqa: PLC0415 - the same

    runtime = RealRuntime()
    path = report_directory / PAGE
    history = (report_directory / f"history-{runtime.unix_ms()}").absolute()
    check_directory(report_directory, "the report into")
    check_file(path, "the report")
    page = Page()
    with tempfile.TemporaryDirectory(prefix="longpoll-verify-") as scratch:
        stages.run_all(page, stages.Job(race_s, history, Path(scratch), runtime))
    path.write_text(render_page(page.rows, specification.charts(page.rows), page.result), encoding="utf-8")
    if page.result is not None:
        (report_directory / VERDICT).write_text(render_html(page.result), encoding="utf-8")
    if as_json:
        rows = [row.as_json() for row in page.rows]
        emit_json({"exit_code": int(page.exit_code), "rows": rows, "report": str(path), "history": str(history)})
    else:
        page.print()
        err.print(f"report: {path}\nhistory: {history}", soft_wrap=True)
    sys.exit(page.exit_code)
