"""Packages: which modules a package holds and imports, threads, tables, duplicates and the protocol page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from model_tests.service.test_runtime import THREADS
from model_tests.support.broker import protocol_page
from model_tests.support.broker.protocol_page import anchor, contents, heading, section_text
from model_tests.support.struct_classes import NEVER_DECODED, is_decodable, struct_classes
from model_tests.tidy.duplicates import Pair, pairs, sources

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_spec.tables import WITH_TABLE

ROOT = Path(__file__).parents[2]
SIBLINGS_MAX: Final = 15
LARGER: Final = {
    "spec/longpoll_spec": 20,  # The modules are the chapters of the specification, in reading order.
    "reference/longpoll_judge/kernel": 21,  # Each module implements one rule, or has helpers that several rules share.
}
NAMED: Final = re.compile(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?:\.[A-Z_]\w*)*`")


def packages() -> Iterator[Path]:
    for folder in ("spec", "reference"):
        yield from (path.parent for path in (ROOT / folder).rglob("__init__.py"))


def siblings(package: Path) -> list[str]:
    inside = [path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return sorted(path.stem for path in inside if not path.name.startswith("__"))


def sizes() -> Mapping[str, int]:
    return {path.relative_to(ROOT).as_posix(): len(siblings(path)) for path in packages()}


def too_large(found: Mapping[str, int]) -> set[str]:
    """Return packages with too many modules, and packages that have an exception without needing it."""
    large = {name for name, size in found.items() if size > LARGER.get(name, SIBLINGS_MAX)}
    return large | {name for name, size in LARGER.items() if found.get(name) != size}


def test_no_package_has_too_many_modules() -> None:
    """The test fails for one module too many and for an exception that is not needed."""
    found = sizes()

    assert len(found) > 30
    assert too_large(found) == set()
    for planted in ("reference/longpoll_judge/run", *LARGER):
        assert too_large({**found, planted: LARGER.get(planted, SIBLINGS_MAX) + 1}) == {planted}


def test_every_package_has_a_docstring() -> None:
    silent = [path for path in packages() if not ast.get_docstring(ast.parse((path / "__init__.py").read_text()))]

    assert silent == []


def homeless(text: str, package: Path) -> set[str]:
    """Return modules that a package's docstring names and that do not exist."""
    top = next(path for path in (package, *package.parents) if path.parent.name in {"spec", "reference"})
    rooms = {path.name: path for path in top.iterdir() if (path / "__init__.py").is_file()}
    found = set()
    for name in NAMED.findall(text):
        first, *inside = name.split(".")
        place = rooms.get(first)
        if place is not None and not any(
            place.joinpath(*inside[:depth]).with_suffix(".py").is_file() for depth in range(1, len(inside) + 1)
        ):
            found.add(name)
    return found


@pytest.mark.parametrize("folder", ["spec", "reference"])
def test_a_module_named_in_a_docstring_exists(folder: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    found = {(path.name, name) for path in paths for name in homeless(path.read_text(encoding="utf-8"), path.parent)}

    assert found == set()
    hold = ROOT / "reference" / "longpoll_broker" / "hold"
    assert homeless("as `shared.names.RETRY` and `shared.topics.Topics` say", hold) == {"shared.names"}


STARTERS = {"Thread", "Timer", "start_new_thread", "ThreadPoolExecutor", "ThreadingHTTPServer", "start_http_server"}
HOMES = {"threading", "_thread", "concurrent.futures", "http.server", "prometheus_client"}
ALLOWED = {
    "longpoll_runtime/threads.py": "the one place",
    "longpoll_judge/read/source.py": "the same",
    "longpoll_conform/capabilities.py": "the same",
    "longpoll_conform/holds.py": "the same",
    "longpoll_conform/pops.py": "the same",
    "longpoll_conform/suite.py": "the same",
    "longpoll_conform/record.py": "the same",
    "longpoll/wire/relay.py": "runs within a test, which sees what the relay no longer passes on",
    "longpoll_runtime/host_pauses.py": "a control thread that only looks whether the machine stands still",
    "longpoll/commands/serve.py": "metrics: a library's server, whose end costs no client anything",
    "longpoll/views/follow.py": "the same",
    "longpoll_kit/subjects/event_loop.py": "a client's event loop, which `close` stops and joins",
    "longpoll_kit/subjects/on_sqs.py": "a client's requests, whose pool `close` shuts down",
}
"""Module that may start threads -> the reason."""


def started_in(text: str) -> list[int]:
    tree = ast.parse(text)
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in HOMES
        for name in node.names
    }
    made = (called for node in ast.walk(tree) for called in _made_of(node))
    return [called.lineno for called in made if _starts(called, imported)]


def _made_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.ClassDef):
        return node.bases
    return [node.func] if isinstance(node, ast.Call) else []


def _starts(called: ast.expr, imported: set[str]) -> bool:
    if isinstance(called, ast.Attribute):
        return called.attr in STARTERS and ast.unparse(called.value) in HOMES
    return isinstance(called, ast.Name) and called.id in STARTERS & imported


def test_threads_are_started_in_one_place() -> None:
    paths = list((ROOT / "reference").rglob("*.py"))
    found = {path.relative_to(ROOT / "reference").as_posix() for path in paths if started_in(path.read_text("utf-8"))}
    assert found == set(ALLOWED)


SPAWNED = re.compile(r"""(?:\.spawn\(\s*f?|^    NAME = )["']([a-z-]+)""", re.MULTILINE)
SERVERS = ("longpoll_broker", "longpoll_observe", "longpoll_recorder")
"""Code that runs in the processes of `longpoll serve` and `longpoll observe`."""


def test_the_crash_of_any_thread_of_the_broker_ends_its_process() -> None:
    reference = ROOT / "reference"
    paths = [path for name in SERVERS for path in (reference / name).rglob("*.py")]
    names = set()
    for path in paths:
        names |= set(SPAWNED.findall(path.read_text("utf-8")))
    tried = {re.sub(r"\d+$", "", name) for name in THREADS}
    # The caller gives an I/O loop its name.
    assert names == tried - {"io-"}


def test_every_class_that_can_be_decoded_has_its_table() -> None:
    without = [kind for kind in struct_classes() if kind not in WITH_TABLE]
    assert [kind for kind in without if is_decodable(kind)] == []
    assert {kind.__name__ for kind in without} == NEVER_DECODED


BLOCK = "\n".join(f"value_{number} = {number}" for number in range(6))


def test_no_six_lines_are_written_twice() -> None:
    files = sources(ROOT)

    assert len(files) > 500
    assert [str(pair) for pair in pairs(files)] == []


def test_a_copy_is_reported_once() -> None:
    """A copy is reported once, whatever its length, blank lines and comments, and also within one file."""
    longer = f"{BLOCK}\n\n# why\nlast = 1\n"

    assert pairs({"a.py": f"x = 1\n{longer}", "b.py": longer.replace("\n\n", "\n")}) == [Pair("a.py", 2, "b.py", 1, 7)]
    assert pairs({"a.py": f"{BLOCK}\ny = 1\n{BLOCK}\n"}) == [Pair("a.py", 1, "a.py", 8, 6)]


page = cache(protocol_page.page)
sections = cache(protocol_page.sections)


def section_of(code: RequestCode, text: str) -> str:
    return text.partition(f"\n## {heading(code)}\n")[2].partition("\n## ")[0]


def test_every_code_is_listed_and_described() -> None:
    """The table at the top of the page links to the section of each request code, and each response code has a row."""
    found, text = sections(), page()

    assert len(found) > 35
    for section in found:
        assert f"](#{anchor(section.code)})" in contents(found)
        assert section_text(section).rstrip().endswith(section_of(section.code, text).strip())
        assert section_of(section.code, text).strip()
    assert all(f"| {code.value} | `{code.name}` |" in text for code in ResponseCode)
    assert section_of(RequestCode.PULL_MESSAGE, contents(found)) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (RequestCode.PULL_MESSAGE, "`suspendTimeoutMillis` | int64 | may be left out | With SUSPEND"),
        (RequestCode.PULL_MESSAGE, "`nextBeginOffset`"),
        (RequestCode.SEND_MESSAGE_V2, "`e` (queue_id) | int32 | required | The queue; if it is negative"),
        (RequestCode.HEART_BEAT, "list of `ConsumerData`"),
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "Sent to clients by the broker"),
        (RequestCode.REGISTER_BROKER, "Served by the name server"),
    ],
)
def test_a_section_has_the_docstrings_of_its_classes(code: RequestCode, words: str) -> None:
    assert words in section_of(code, page())
