"""Rules for the source text; each rule is seen to fail on an injected line."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELF = Path(__file__).relative_to(ROOT).as_posix()
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".in", ".lock", ".yml", ".json", ".pml", ".tla", ""}

BANNED = {
    "an unfinished mark": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    "a machine's path": re.compile(r"(?<![\w.])/(work|root|home|farm|Users)/"),
    "a download address": re.compile(r"pythonhosted|registry\.npmjs|repo\d?\.maven|proxy\.golang|deb\.debian"),
    "a broad except": re.compile(r"^\s*except(\s+(Base)?Exception)?(\s+as\s+\w+)?\s*:", re.MULTILINE),
    "a patched clock or threads of the process": re.compile(
        r"setattr\((time|threading)\b|setattr\([\w.]+, .(time|threading)\b"
    ),
    "a mark of a merge": re.compile(r"^(<{7}|>{7}|\|{7})( |$)", re.MULTILINE),
}
PLANTS = {
    "an unfinished mark": "x = 1  # TO" + "DO",
    "a machine's path": "see /ho" + "me/me/notes",
    "a download address": "from files.python" + "hosted.org",
    "a broad except": "    except Exc" + "eption:",
    "a patched clock or threads of the process": "monkeypatch.setattr(host_pauses" + ', "time", clock)',
    "a mark of a merge": "<" * 7 + " HEAD",
}


def tracked() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if name != SELF and path.suffix in TEXT_SUFFIXES and path.is_file() and "/golden/" not in name:
            yield path


GUARD = "reference/longpoll/exit_codes.py"
"""Every error leaves the program through this module, so only this module may catch all exceptions."""


def offences(name: str, text: str) -> list[str]:
    allowed = {"a broad except": 1} if name == GUARD else {}
    return [f"{name}: {rule}" for rule, pattern in BANNED.items() if len(pattern.findall(text)) > allowed.get(rule, 0)]


def test_text_is_clean() -> None:
    found = [line for path in tracked() for line in offences(str(path.relative_to(ROOT)), path.read_text("utf-8"))]

    assert found == []


@pytest.mark.parametrize("rule", BANNED)
def test_each_rule_fails_on_a_forbidden_line(rule: str) -> None:
    assert offences("planted", PLANTS[rule]) == [f"planted: {rule}"]


def python_files(*folders: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def test_every_shipped_module_has_a_docstring() -> None:
    """Each shipped module has a docstring; test modules are exempt."""
    bare = [
        str(path.relative_to(ROOT))
        for path in python_files("spec", "reference")
        if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None and path.stat().st_size > 0
    ]

    assert bare == []


SUPPORT = "model_tests/support/broker"
SLEEPERS = {f"{SUPPORT}/brokers.py": "polls for a condition, with a limit"}


def test_tests_do_not_sleep() -> None:
    sleeping = re.compile(r"\btime\.sleep\(|\bfrom time import .*\bsleep\b")
    found = {str(path.relative_to(ROOT)) for path in python_files("model_tests") if sleeping.search(path.read_text())}

    assert found == set(SLEEPERS)


SPEAKS = re.compile(r"\bassert\b|pytest\.(raises|fail)|run_state_machine_as_test|\bassert_\w+\(|\bcheck_\w+\(")


def silent_tests(source: str) -> list[str]:
    """Return the tests that neither make an assertion nor call a helper of the same module that makes one."""
    lines = source.splitlines()
    functions = {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    helpers = [name for name, text in functions.items() if not name.startswith("test_") and SPEAKS.search(text)]
    return [
        name
        for name, text in functions.items()
        if name.startswith("test_")
        and not SPEAKS.search(text)
        and not any(re.search(rf"\b{helper}\(", text) for helper in helpers)
    ]


def test_tests_assert() -> None:
    silent = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in python_files("model_tests")
        for name in silent_tests(path.read_text("utf-8"))
    ]

    assert silent == [], "\n".join(silent)


def test_a_test_without_an_assertion_is_reported() -> None:
    helper = "def look(x):\n    assert x\n\n"

    assert silent_tests(helper + "def test_a():\n    print(1)\n") == ["test_a"]
    assert silent_tests(helper + "def test_a():\n    look(1)\n") == []


LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings, as repository hosts write them."""
    headings = re.findall(r"^#+ +(.*?) *$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lost_links(page: Path, text: str) -> list[str]:
    lost = []
    for target, anchor in LINK.findall(text):
        file = page.parent / target if target else page
        if not file.exists():
            lost.append(target)
        elif anchor and file.suffix == ".md" and anchor not in anchors(text if file == page else file.read_text()):
            lost.append(f"{target}#{anchor}")
    return lost


def test_markdown_links_lead_somewhere() -> None:
    pages = [path for path in tracked() if path.suffix == ".md"]

    assert {path.name: lost for path in pages if (lost := lost_links(path, path.read_text("utf-8")))} == {}


def test_a_broken_link_is_reported() -> None:
    page = ROOT / "README.md"
    good = "[a](docs/safety.md) [b](docs/safety.md#access-control) [c](#here)\n## Here\n"

    assert lost_links(page, good) == []
    assert lost_links(page, "[a](docs/none.md) [b](docs/safety.md#none) [c](#here)\n```\n## Here\n```\n") == [
        "docs/none.md",
        "docs/safety.md#none",
        "#here",
    ]
