"""Write reports to the files that the user named. Contents: `junit`, `pages`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longpoll_conform.report.junit import junit
from longpoll_conform.report.pages import write_pages
from longpoll_conform.suite import Result, Suite
from longpoll_spec.errors import OutputError


def write_reports(suite: Suite, results: Sequence[Result], junit_file: Path | None, pages: Path | None) -> None:
    """Write the requested ones: JUnit XML into a file, pages into a directory. Raises OutputError."""
    for place, write in (
        (junit_file, lambda path: path.write_text(junit(results), encoding="utf-8")),
        (pages, lambda path: write_pages(path, suite, results)),
    ):
        try:
            if place is not None:
                write(place)
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror or error}") from error
