"""The front page is short and true: its excerpt, its counts, and a table of ways in that lead to a working path."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from model_tests.docs.test_lessons import missing_line

from longpoll.cli import main

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text("utf-8")
WORDS_MAX: Final = 600
SHELL: Final = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def excerpt(text: str) -> tuple[str, ...]:
    """The lines of the output that the page shows."""
    block = re.search(r"^```text\n(rocketmq-4\.9: .*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return tuple(line for shown in block[1].splitlines() for line in (shown, "..."))


def rows(text: str) -> list[tuple[str, str, str]]:
    """The table of ways in: goal, command, link."""
    table = text.partition("## I want to")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)[2:]


def test_the_excerpt_is_what_explain_prints() -> None:
    """Each line, in this order; a wrong one is seen."""
    checked = CliRunner().invoke(main, ["check", "--policy", "rocketmq-4.9", "--property", "no_lost_wakeup", "--json"])
    (verdict,) = json.loads(checked.stdout)["properties"]
    printed = CliRunner().invoke(main, ["explain", verdict["token"]]).stdout
    shown = excerpt(README)

    assert len([line for line in shown if line != "..."]) == 9
    assert missing_line(shown, printed) is None
    assert missing_line(excerpt(README.replace("Pull thread 0", "Pull thread 1")), printed) is not None


def test_the_counts_of_the_evidence_are_those_of_the_pages() -> None:
    """Findings, those that nobody had reported, those that replay on Java, and the reports on another broker."""
    findings = (ROOT / "docs" / "findings.md").read_text("utf-8")
    table = re.findall(r"^\| \(\w\) \|.*\| ([^|]*) \|$", findings, re.MULTILINE)
    java = (ROOT / "docs" / "java.md").read_text("utf-8").partition("## What is shown")[2].partition("\n\nOf (m)")[0]
    rust = (ROOT / "docs" / "upstream.md").read_text("utf-8").partition("## rocketmq-rust")[2]
    reports = re.findall(r"^\| ([^|]+) \| `--only", rust, re.MULTILINE)
    replayed = set(re.findall(r"^\| (\(\w\)) \|.* seen", java, re.MULTILINE))

    assert f"[{len(table)} findings]" in README
    assert f"; {table.count('none known')} have no upstream report" in README
    assert f"- {len(replayed)} of them [replay" in README
    assert f"[{len(reports)} reports]" in README
