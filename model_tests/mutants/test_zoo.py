"""The zoo: each bug can still be planted, the table and its page agree, and what the table says is found again."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import model_tests.mutants.zoo.__main__ as script
import msgspec
import pytest
from click.testing import CliRunner
from model_tests.mutants.zoo import methods
from model_tests.mutants.zoo.catalogue import ENTRIES
from model_tests.mutants.zoo.entry import HOLD_SERVICE, Change, Entry
from model_tests.mutants.zoo.locks import MESSAGE_STORE
from model_tests.mutants.zoo.plant import ROOT, DoesNotApplyError, texts_of
from model_tests.mutants.zoo.run import Cell, decode
from model_tests.mutants.zoo.table import Row, pinned, problems

from longpoll.output import Exit

HANDFUL: Final = (
    "mended-the-count-of-held-pulls-has-no-guard",
    "kafka-checked-and-expired",
    "lock-channel-flush",
    "rocketmq-wakes-whatever-the-tag",
    "rocketmq-deadline-as-an-int",
    "pulsar-stale-completion",
    "redis-last-come-first-served",
    "lock-all-shards",
    "lock-append",
    "lock-dispatch",
    "lock-drop-channel",
    "lock-flush",
    "lock-hold",
    "lock-walk-start",
    "lock-dispatcher-reads",
    "rocketmq-cursor-skips-what-failed",
    "rocketmq-light-queues-are-not-told",
    "rocketmq-late-task-is-not-told",
)
"""Bugs that switches between bytecodes find in the first few runs: one or more for each thing that a stage looks at."""
OF_CLIENTS: Final = (
    "rocketmq-cached-size-drifts",
    "rocketmq-client-stops-at-an-error",
    "rocketmq-moved-offset-waits",
    "nats-client-waits-no-longer",
)
"""Bugs of the client that its simulated world finds in the first few runs."""
LOCK: Final = re.compile(r"_lock|shard\.lock")
"""Names of locks in the store and the hold service."""
ONE_READ: Final = {
    "assert_tidy": 1,  # only tests call it, when no thread is at work
    "_keep": 1,  # one bytecode makes the list, and a traversal that follows from it looks again
    "scan": 1,  # one bytecode makes the list of buckets
    "_sweep": 2,  # a look at one bucket that may be out of date when it is used; one bytecode removes one entry
    "_wake_all": 1,  # one bytecode makes the list of buckets
}
"""Function -> its locks around a single bytecode, without which nothing changes while bytecodes are atomic."""
CERTAIN_S: Final = 0.5
"""What was found in so much of its limit is found again on any machine."""


def looked(*words: str) -> list[Cell]:
    done = subprocess.run(
        [sys.executable, "-m", "model_tests.mutants.zoo.run", *words], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [decode(line) for line in done.stdout.splitlines()]


# -- the bugs --------------------------------------------------------------------------------------------------------


def test_each_bug_can_be_planted() -> None:
    for entry in ENTRIES:
        assert entry.changes, entry.id
        for file, text in texts_of(entry).items():
            assert text != (ROOT / file).read_text("utf-8"), entry.id


@pytest.mark.long
def test_each_bug_is_python_that_means_something_else() -> None:
    right = {file: ast.dump(ast.parse((ROOT / file).read_text("utf-8"))) for each in ENTRIES for file in each.files}
    for entry in ENTRIES:
        for file, text in texts_of(entry).items():
            assert ast.dump(ast.parse(text)) != right[file], entry.id


def sections_of(text: str) -> Counter[str]:
    """How many critical sections each function of a module has."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return Counter(
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.With) and any(LOCK.search(ast.unparse(item)) for item in node.items)
    )


@pytest.mark.parametrize(
    ("file", "count", "unneeded"), [(MESSAGE_STORE, 16, Counter[str]()), (HOLD_SERVICE, 21, Counter(ONE_READ))]
)
def test_each_lock_is_taken_away_by_one(file: str, count: int, unneeded: Counter[str]) -> None:
    """A new critical section comes with a bug of the zoo that has not got it, or protects one read."""
    whole = sections_of((ROOT / file).read_text("utf-8"))
    taken = [
        sections_of(texts_of(each)[file]) for each in ENTRIES if each.files == {file} and each.id.startswith("lock-")
    ]
    missing = sum((whole - left for left in taken), Counter[str]())

    assert missing + unneeded == whole
    assert whole.total() == count


def test_a_change_that_does_not_apply_is_seen() -> None:
    for before in ("no such text anywhere", "import"):
        planted = Entry("x", "ours", "", "", (Change("reference/longpoll/cli.py", before, "y"),))
        with pytest.raises(DoesNotApplyError, match="not once"):
            texts_of(planted)


def test_the_tests_that_are_named_are_there() -> None:
    for entry in ENTRIES:
        for named in methods.tests_of(entry):
            file, _, name = named.partition("::")
            assert f"def {name}" in (ROOT / "model_tests" / file).read_text("utf-8"), entry.id


# -- the table and its page ------------------------------------------------------------------------------------------


def test_every_bug_is_found() -> None:
    assert problems(pinned()) == []


# -- what is found ---------------------------------------------------------------------------------------------------


def test_bugs_of_the_client_are_found_again() -> None:
    """Each by the promises of a simulated run of clients that are as they are."""
    code, text = ran("run", *OF_CLIENTS, "--method", "simulated", "--json")
    found = [cell["entry"] for cell in json.loads(text)["looked"] if cell["outcome"] == "found"]
    assert (code, found) == (Exit.OK, list(OF_CLIENTS))


def test_a_handful_of_bugs_is_found_again() -> None:
    """Each in a separate process, as the table says. Injected: a table with a missed bug."""
    code, text = ran("run", *HANDFUL, "--method", "bytecodes", "--json")
    told = json.loads(text)
    cells = [msgspec.convert(cell, Cell) for cell in told["looked"]]
    assert (code, told["differs"]) == (Exit.OK, [])
    assert [(cell.entry, cell.outcome) for cell in cells] == [(name, "found") for name in HANDFUL]

    nobody = [Row(id=name, missed=["bytecodes"]) for name in HANDFUL]
    assert len(script._differences(cells, nobody)) == len(HANDFUL)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_code_as_it_is_has_none() -> None:
    cells = looked("-")

    assert {cell.method for cell in cells} == {method.name for method in methods.METHODS} - {"law", "proof"}
    assert [cell.method for cell in cells if cell.outcome == "found"] == []


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_every_bug_is_found_again() -> None:
    """Whatever was found well within its time; what was missed may be found by a longer look."""
    limits = {method.name: method.limit_s for method in methods.METHODS}
    known = {
        (row.id, name) for row in pinned() for name, seen in row.found.items() if seen.cpu_s < CERTAIN_S * limits[name]
    }
    found = {(cell.entry, cell.method) for cell in looked() if cell.outcome == "found"}

    assert known - found == set()


ENDED: Final = """
import os, signal
from model_tests.mutants.zoo import run

run.look = lambda *_words, **_more: os.kill(os.getpid(), signal.SIGTERM)
try:
    print(run.cell_of(None, "units", 1.0))
except run.ZooError as error:
    print("ZooError:", error)
"""


def test_a_process_that_somebody_ends_has_found_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("ZooError: units of the code as it is ended by itself (15)")


LOADED: Final = """
import sys
from model_tests.mutants.zoo import methods

try:
    print("seen:", methods._run_tests((sys.argv[1],)))
except AssertionError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("import nothing_of_this_name", "pytest ended with 2: a test that is named is not there, or cannot be loaded"),
        ("def test_it():\n    assert False", "seen: Seen("),
        ("def test_it():\n    assert True", "seen: None"),
    ],
)
def test_tests_that_cannot_be_loaded_have_found_nothing(content: str, told: str, tmp_path: Path) -> None:
    """The method `units` counts a bug as found by a test that ran and was red."""
    file = tmp_path / "test_it.py"
    file.write_text(content)
    name = os.path.relpath(file, ROOT / "model_tests")
    done = subprocess.run([sys.executable, "-c", LOADED, name], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1].startswith(told)


# -- the script ------------------------------------------------------------------------------------------------------


def ran(*words: str) -> tuple[int, str]:
    """The script's exit code and what it says."""
    done = CliRunner().invoke(script.zoo, words)
    return done.exit_code, done.output


def test_the_script_lists_and_shows() -> None:
    """All, those of one source, and one with its paragraph, its change and who finds it."""
    code, text = ran("--source", "kafka", "--json")
    listed = json.loads(text)["bugs"]
    assert (code, {bug["source"].split(",")[0] for bug in listed}) == (0, {"Apache Kafka"})
    assert len(listed) == sum("Kafka" in entry.source for entry in ENTRIES)

    code, text = ran("show", ENTRIES[0].id)
    assert code == 0
    assert ENTRIES[0].changes[0].after in text
    assert all(name in text for name in pinned()[0].found)


def test_a_name_that_is_not_there_is_told_the_nearest() -> None:
    for words, near in (
        (["show", "kafka-checked"], "kafka-checked-and-expired"),
        (["run", "kafka-checked"], "kafka-checked-and-expired"),
        (["run", "--method", "bytecode"], "bytecodes"),
    ):
        code, text = ran(*words)
        assert (code, near in text) == (Exit.USER, True), text
