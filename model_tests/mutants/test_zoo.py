"""Each patch of the zoo applies and names tests that find its bug, and a patch removes each critical section."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Final

import attrs
import pytest
from model_tests.mutants import patches
from model_tests.mutants.patches import ROOT, Bug, PatchError

HOLD_SERVICE: Final = "reference/longpoll_broker/hold/hold_service.py"
MESSAGE_STORE: Final = "reference/longpoll_broker/store/message_store.py"
BUGS: Final = patches.bugs()
QUICK: Final = (
    "kafka-checked-and-expired",
    "lock-flush",
    "rocketmq-wakes-whatever-the-tag",
    "a-buffer-is-measured-in-items",
    "a-burst-s-store-time-goes-back-with-the-clock",
)
"""Bugs whose tests take only a few seconds, from the hold table, the store, a filter, the client and a batch."""
LOCK: Final = re.compile(r"_lock|shard\.lock")
ONE_READ: Final = {
    "assert_tidy": 1,  # Only tests call this function, and only when no other thread is running.
    "_keep": 1,  # One bytecode copies the list, and the traversal that follows checks each entry again.
    "scan": 1,  # One bytecode copies the list of buckets.
    "_sweep": 2,  # The result for one bucket may be out of date when it is used, and one bytecode removes an entry.
    "_wake_all": 1,  # One bytecode copies the list of buckets.
}
"""Function -> how many of its locks protect a single bytecode. Bytecodes are atomic, so no test detects their removal.
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tree")
    patches.copy_tree(path)
    return path


def test_each_patch_applies_and_names_tests_that_exist() -> None:
    for bug in BUGS:
        patches.apply(bug, ROOT, "--check")
        for named in bug.tests:
            file, *names = named.partition("[")[0].split("::")
            text = (ROOT / file).read_text("utf-8")
            assert all(re.search(rf"(?:def|class) {name}\b", text) for name in names), bug.name


def sections_of(text: str) -> Counter[str]:
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return Counter(
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.With) and any(LOCK.search(ast.unparse(item)) for item in node.items)
    )


@pytest.mark.parametrize(("file", "unneeded"), [(MESSAGE_STORE, Counter[str]()), (HOLD_SERVICE, Counter(ONE_READ))])
def test_each_lock_is_removed_by_a_patch(file: str, unneeded: Counter[str], tmp_path: Path) -> None:
    """Each critical section has a patch that removes it, or protects a single read."""
    copy = tmp_path / file
    copy.parent.mkdir(parents=True)
    copy.write_bytes((ROOT / file).read_bytes())
    whole, missing = sections_of(copy.read_text("utf-8")), Counter[str]()
    for bug in BUGS:
        if bug.name.startswith("lock-") and bug.files == {file}:
            patches.apply(bug, tmp_path)
            missing += whole - sections_of(copy.read_text("utf-8"))
            patches.apply(bug, tmp_path, "-R")

    assert missing + unneeded == whole


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in QUICK], ids=lambda bug: bug.name)
def test_quick_bugs_are_found(bug: Bug, tree: Path) -> None:
    assert patches.is_found(bug, tree)


def test_every_quick_bug_exists() -> None:
    assert {bug.name for bug in BUGS} >= set(QUICK)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name not in QUICK], ids=lambda bug: bug.name)
def test_each_bug_is_found(bug: Bug, tree: Path) -> None:
    assert patches.is_found(bug, tree)


HEAD: Final = "# title: T.\n# source: S\n# found by: {tests}\n"
COMMENT: Final = """--- a/reference/longpoll_broker/hold/__init__.py
+++ b/reference/longpoll_broker/hold/__init__.py
@@ -1 +1,2 @@
-{line}
+{line}
+# A comment changes nothing.
"""


def planted(path: Path, *, line: str, tests: str) -> Bug:
    """Return a patch that changes only a comment, so no test can find it."""
    path.write_text(HEAD.format(tests=tests) + COMMENT.format(line=line))
    return patches.read(path)


def test_a_bug_that_its_test_does_not_find_is_reported(tree: Path, tmp_path: Path) -> None:
    line = (ROOT / "reference/longpoll_broker/hold/__init__.py").read_text("utf-8").splitlines()[0]
    harmless = planted(tmp_path / "x.patch", line=line, tests="model_tests/core/test_hold.py")

    assert not patches.is_found(harmless, tree)
    with pytest.raises(PatchError, match="x: pytest ended with 4"):
        patches.is_found(attrs.evolve(harmless, tests=("model_tests/core/test_none.py",)), tree)


def test_a_patch_that_does_not_apply_is_reported(tmp_path: Path) -> None:
    stale = planted(tmp_path / "x.patch", line="no such line", tests="model_tests/core/test_hold.py")
    with pytest.raises(PatchError, match="x: error: patch failed"):
        patches.apply(stale, ROOT, "--check")

    (tmp_path / "y.patch").write_text("# title: T.\n# source: S\n")
    with pytest.raises(PatchError, match=r"y\.patch: no line # found by:"):
        patches.read(tmp_path / "y.patch")


def test_a_name_that_does_not_exist_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert patches.main(["no-such-bug"]) == 2
    assert "no bug no-such-bug" in capsys.readouterr().err
    assert patches.main(["--list", QUICK[0]]) == 0
    assert QUICK[0] in capsys.readouterr().out
