"""Each path, package and public Python name that a page of the docs names exists."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from longpoll_conform.vectors import recorded
from longpoll_spec.engines.smt.configurations import CONFIGURATIONS

ROOT: Final = Path(__file__).parents[2]
TRACKED: Final = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    check=True,
    capture_output=True,
    text=True,
).stdout.split()
PACKAGES: Final = {Path(name).parts[1] for name in TRACKED if re.fullmatch(r"(spec|reference)/\w+/__init__\.py", name)}
HISTORIES: Final = {"CHANGELOG.md", "docs/upstream.md"}
"""Pages about former versions, and about other projects."""
MADE: Final = {"index/", "only_first.py"}
"""Names of files that a program writes: a folder of RocketMQ's store, and a learner's exercise."""
_FENCE: Final = re.compile(r"^(`{3,}|~{3,})(\w*)[^\n]*\n(.*?)^\1[`~]*$", re.MULTILINE | re.DOTALL)
_PATH: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)*/|(?:[\w-]+/)*[\w-]+\.(?:py|lock|in)|[\w-]+(?:/[\w.-]+)*/[\w-]+\.\w+")
_DOTTED: Final = re.compile(r"longpoll\w*(?:\.\w+)+|longpoll_[a-z]+")
_SUBGRAPH: Final = re.compile(r'subgraph \w+\["([\w]+)[^"]*"\]\n((?: +(?!end\n)\w+(?: --> \w+)*\n)+)')
"""A part of a diagram that has a package's modules."""


def exists(path: str) -> bool:
    """Whether a path is a file or, if it ends in `/`, a folder below any folder of the tree."""
    return any(f"/{name}".endswith(f"/{path}") or (path[-1] == "/" and f"/{path}" in f"/{name}") for name in TRACKED)


def importable(name: str) -> bool:
    for cut in range(name.count(".") + 1):
        module, *attributes = name.rsplit(".", cut)
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            continue
        for attribute in attributes:
            found = getattr(found, attribute, None)
        return found is not None
    return False


def in_package(folder: str, name: str) -> bool:
    return exists(f"{folder}/{name}.py") or exists(f"{folder}/{name}/")


def table_rows(text: str) -> list[str]:
    """Return the modules and packages in the first column of architecture.md's table of the specification."""
    part = text.partition("\n## `spec/longpoll_spec`\n")[2].partition("\n## ")[0]
    return [name for row in re.findall(r"^\| (`[^|]*)\|", part, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]


def missing(page: str, text: str) -> set[str]:
    """Return the names on a page that the tree does not have, except files that the page's blocks create."""
    blocks = "\n".join(block[2] for block in _FENCE.findall(text))
    found = set()
    for span in re.findall(r"`([^`\n]+)`", _FENCE.sub("", text)):
        if _PATH.fullmatch(span) and "VERSION" not in span:
            known = exists(span) or span in MADE or (span[-1] != "/" and span.split("/")[-1] in blocks)
            if not known and not span.startswith(("out/", "dist/", "longpoll-report/", ".venv/", "conf/")):
                found.add(span)
        elif _DOTTED.fullmatch(span) and span not in PACKAGES and not importable(span):
            found.add(span)
    if page == "docs/architecture.md":
        named = [("spec/longpoll_spec", name) for name in table_rows(text)]
        for package, lines in _SUBGRAPH.findall(blocks):
            folder = {"spec": "spec/longpoll_spec"}.get(package, package)
            named += [(folder, name) for name in re.findall(r"\w+", lines)]
        found |= {name for folder, name in named if not in_package(folder, name.rstrip("/"))}
        found |= {name for name in re.findall(r'\w+\["(longpoll\w*)', blocks) if name not in PACKAGES}
    return found


@pytest.mark.parametrize(
    "page", sorted(name for name in TRACKED if name.endswith(".md") and "/zh/" not in name and name not in HISTORIES)
)
def test_each_name_on_a_page_exists(page: str) -> None:
    assert missing(page, (ROOT / page).read_text("utf-8")) == set()


@pytest.mark.parametrize(
    ("page", "said", "name"),
    [
        ("README.md", "See `model_tests/law/` for more.", "model_tests/law/"),
        ("README.md", "See `service/hold_service.py`.", "service/hold_service.py"),
        ("README.md", "Call `longpoll_kit.subject.Subjekt`.", "longpoll_kit.subject.Subjekt"),
        ("docs/architecture.md", "\n## `spec/longpoll_spec`\n\n| `terms`, `reached` | x |\n", "reached"),
        ("docs/architecture.md", '```mermaid\n  subgraph b["longpoll_broker"]\n  core --> store\n```\n', "core"),
        ("docs/architecture.md", '```mermaid\n  judge["longpoll_umpire (Spark)"]\n```\n', "longpoll_umpire"),
    ],
)
def test_a_name_that_does_not_exist_is_reported(page: str, said: str, name: str) -> None:
    assert missing(page, said) == {name}


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("docs/lessons/7-any-number.md", f"makes the proof in {len(CONFIGURATIONS)} configurations"),
        (
            "docs/conformance.md",
            f"{len(recorded('4.9.7'))} vectors of Apache RocketMQ 4.9.7 and {len(recorded('5.5.0'))} of 5.5.0",
        ),
    ],
)
def test_a_number_of_a_page_is_that_of_the_code(page: str, said: str) -> None:
    assert said in (ROOT / page).read_text("utf-8")
