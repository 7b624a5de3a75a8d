"""Mutants of the code: what the generator makes, what the runner sees, and which mutants of ours survive."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner
from model_tests.mutants.code import kept
from model_tests.mutants.code.__main__ import main, results_of
from model_tests.mutants.code.generate import HIT, instrumented, mutants_of
from model_tests.mutants.code.run import CannotTellError, tried
from model_tests.mutants.code.server import Result
from model_tests.mutants.tests_of import KNOWN, known_tests, quick_tests

HOLD_TABLE: Final = "longpoll_broker.hold.hold_table"
CERTAIN: Final = tuple(
    f"{HOLD_TABLE}:Deadlines.{name}"
    for name in (
        "add:turned:1",
        "add:deleted:1",
        "next_ms:none:1",
        "pop_due:turned:1",
        "pop_due:moved:1",
        "remove:turned:1",
    )
)
"""Mutants that the tests of the deadlines alone kill."""
SAMPLES: Final = (
    ("a < b", {"moved": "a <= b", "turned": "a >= b"}),
    ("a == b", {"turned": "a != b"}),
    ("a is b", {"turned": "a is not b"}),
    ("a in b", {"turned": "a not in b"}),
    ("a + b", {"sign": "a - b"}),
    ("a or b", {"joined": "a and b"}),
    ("not a", {"not": "a"}),
    ("a if b else c", {"true": "a if True else c", "false": "a if False else c"}),
    ("a[b:c]", {"slice": "a[None:c]"}),
    ("f(low_ms, high_ms)", {"swapped": "f(high_ms, low_ms)"}),
    ("f(7)", {"number": "f(8)"}),
    ("f(0)", {"number": "f(1)"}),
    ("f(True)", {"truth": "f(False)"}),
)
STATEMENTS: Final = (
    ("a.b = c", "deleted", "a.b = c -> dropped"),
    ("f()", "deleted", "f() -> dropped"),
    ("del a[b]", "deleted", "del a[b] -> dropped"),
    ("raise a", "deleted", "raise a -> dropped"),
    ("with a: f()", "with", "with a: ... -> dropped"),
    ("if a: return", "deleted", "return -> dropped"),
    ("while a: break", "deleted", "break -> dropped"),
    ("while a: f()", "false", "while a: ... -> while False: ..."),
    ("return a", "none", "return a -> return None"),
)
TELLING: Final = '''
LIMIT = 1 < 2
def f(a: int = 1 + 2) -> "b < c":
    """A text: 1 < 2."""
    assert a < 2, 1 + 2
    _LOG.warning("late", a + 1)
    raise ValueError(f"{a + 1}", 1 + 1)
class C:
    limit: int = 7
    def __repr__(self):
        return self.a + 1
'''
SUBJECT: Final = """
def least(numbers):
    best = None
    for number in numbers:
        if best is None or number < best:
            best = number
    return best

def never(a):
    return a + 1

def until(limit):
    count = 0
    while count < limit:
        count += 1
    return count
"""
SUBJECT_TESTS: Final = """
import subject

def test_least():
    assert subject.least([2, 1, 3]) == 1

def test_until():
    assert subject.until(3) == 3
"""


# -- the generator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "made"), SAMPLES, ids=[text for text, _ in SAMPLES])
def test_what_an_operator_makes_of_an_expression(text: str, made: dict[str, str]) -> None:
    mutants = mutants_of("m", "m.py", f"def f(a, b, c):\n    x = {text}\n").mutants
    changes = {each.id.split(":")[2]: each.change.partition(" -> ")[2] for each in reversed(mutants)}

    assert changes == {name: f"x = {after}" for name, after in made.items()}


@pytest.mark.parametrize(("text", "operator", "change"), STATEMENTS, ids=[text for text, _, _ in STATEMENTS])
def test_what_an_operator_makes_of_a_statement(text: str, operator: str, change: str) -> None:
    mutants = mutants_of("m", "m.py", f"def f(a, b, c):\n    {text}\n").mutants

    assert [each.change for each in mutants if each.id == f"m:f:{operator}:1"] == [change]


def test_what_only_tells_people_something_has_no_mutants() -> None:
    assert [each.change.partition(" -> ")[2] for each in mutants_of("m", "m.py", TELLING).mutants] == ["dropped"]


def test_each_mutant_is_another_program_and_its_id_stays_when_lines_move() -> None:
    """Each compiles to different code and has a unique id without a line number."""
    right = ast.dump(ast.parse(SUBJECT))
    mutants = mutants_of("m", "m.py", SUBJECT).mutants
    moved = mutants_of("m", "m.py", "# a line\n\n\n" + SUBJECT).mutants

    assert len({each.id for each in mutants}) == len(mutants) > 15
    assert [(each.id, each.change) for each in mutants] == [(each.id, each.change) for each in moved]
    for number in range(len(mutants)):
        fresh = mutants_of("m", "m.py", SUBJECT)
        fresh.mutants[number].plant()
        assert ast.dump(fresh.tree) != right
        compile(fresh.tree, "m.py", "exec")


def test_an_instrumented_function_says_which_statements_it_comes_to() -> None:
    module = mutants_of("m", "m.py", SUBJECT)
    hits: set[int] = set()
    names: dict[str, Any] = {HIT: hits.add}
    exec(compile(instrumented(module), "m.py", "exec"), names)  # noqa: S102 - the text above
    names["least"]([])
    reached = {each.id for each in module.mutants if each.statement in hits}

    assert "m:least:none:1" in reached
    assert not any("turned" in each for each in reached)


# -- the runner ------------------------------------------------------------------------------------------------------


def subject(directory: Path) -> tuple[Path, str]:
    """A module and its tests, as files."""
    path = directory / "subject.py"
    path.write_text(SUBJECT, "utf-8")
    tests = directory / "test_subject.py"
    tests.write_text(SUBJECT_TESTS, "utf-8")
    return path, str(tests)


def test_the_runner_sees_what_is_killed_what_survives_and_what_no_test_reaches(tmp_path: Path) -> None:
    """A turned comparison is killed, one moved by one equal number survives, a function that nothing calls too."""
    path, tests = subject(tmp_path)
    wanted = {
        "subject:least:turned:2": "killed",
        "subject:least:moved:1": "survived",
        "subject:never:sign:1": "unreached",
    }
    results = list(tried(path, "subject", [tests], frozenset(wanted)))

    assert {each.id: each.outcome for each in results} == wanted
    assert [each.test.partition("::")[2] for each in results if each.outcome == "killed"] == ["test_least"]


@pytest.mark.long
def test_a_mutant_that_goes_round_for_ever_is_ended(tmp_path: Path) -> None:
    """It is killed by the clock of the processor, and the test that ran is named."""
    path, tests = subject(tmp_path)
    (result,) = tried(path, "subject", [tests], frozenset({"subject:until:deleted:1"}))

    assert result.outcome == "stuck"
    assert result.test.endswith("::test_until")


def test_tests_that_are_red_without_a_change_tell_nothing(tmp_path: Path) -> None:
    path, tests = subject(tmp_path)
    Path(tests).write_text("import subject\n\ndef test_red():\n    assert subject.never(1) == 3\n", "utf-8")
    with pytest.raises(CannotTellError, match=r"red without any change: .*test_red"):
        list(tried(path, "subject", [tests]))


def test_tests_that_do_not_import_the_module_tell_nothing(tmp_path: Path) -> None:
    path, tests = subject(tmp_path)
    Path(tests).write_text("def test_green():\n    assert True\n", "utf-8")
    with pytest.raises(CannotTellError, match="import none of its functions"):
        list(tried(path, "subject", [tests]))


def test_a_handful_of_mutants_of_ours_is_killed() -> None:
    tests = ["model_tests/core/test_hold.py"]
    results = list(tried(kept.modules()[HOLD_TABLE], HOLD_TABLE, tests, frozenset(CERTAIN)))

    assert {each.id: each.outcome for each in results} == dict.fromkeys(CERTAIN, "killed")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--module", "no.such"), 2, "no module fits 'no.such'"),
        (("--write", "--sample", "3"), 2, "leave out --sample"),
        (("--sample", "0"), 2, "0 is not in the range"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence(words: tuple[str, ...], code: int, said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == code
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_each_module_that_matters_has_tests_that_are_there() -> None:
    for path in kept.modules().values():
        assert known_tests(path.relative_to(kept.ROOT).as_posix()), path
    for known in KNOWN:
        for test in (*known.quick, *known.more):
            assert (kept.ROOT / "model_tests" / test).is_file(), test
    assert quick_tests("reference/longpoll_broker/hold/hold_table.py")[0] == "core/test_hold.py"


def test_each_survivor_is_a_mutant_with_a_reason() -> None:
    rows = kept.figures()
    accepted = kept.survivors()

    assert len({each.id for each in accepted}) == len(accepted)
    assert all(len(each.reason) > 12 for each in accepted)
    for row in rows:
        there = {(each.id, each.change) for each in kept.module_of(row.module).mutants}
        here = kept.of_module(row.module, accepted)
        assert {(each.id, each.change) for each in here} <= there
        assert row.explained == len(here)
        assert row.mutants == row.killed + row.explained + row.open
    assert {each.id.partition(":")[0] for each in accepted} <= {row.module for row in rows}
    assert kept.too_many(row for row in rows if not row.open) == ""


def test_a_module_that_has_changed_since_is_named() -> None:
    """Its row is of an older text; one that has as many mutants as then is not named."""
    rows = [
        kept.figures_of(name, [], []) for name in ("longpoll_broker.hold.hold_table", "longpoll_broker.hold.notifier")
    ]
    now = [len(kept.module_of(row.module).mutants) for row in rows]
    rows[1] = msgspec.structs.replace(rows[1], mutants=now[1])

    assert kept.changed_since(rows) == {rows[0].module: now[0]}
    assert f"`{rows[0].module}` ({now[0]} mutants now)" in kept.page_of(rows)


def test_planted_a_list_of_survivors_that_is_wrong_is_seen() -> None:
    """A survivor that is not listed, one listed that is killed, one that is gone, another change, and too many."""
    results = [Result(id=f"m:f:sign:{n}", change=str(n), outcome="killed") for n in range(60)]
    results[0] = msgspec.structs.replace(results[0], outcome="survived")
    right = kept.Survivor(id="m:f:sign:0", change="0", reason="equivalent, as a test")

    assert kept.problems("m", results, [right]) == []
    assert kept.problems("m", results, []) == ["m:f:sign:0 survives: 0"]
    for wrong, said in (("m:f:sign:1", "is killed"), ("m:f:sign:99", "no such mutant")):
        row = msgspec.structs.replace(right, id=wrong, change="1")
        assert [each for each in kept.problems("m", results, [right, row]) if said in each]
    assert len(kept.problems("m", results, [msgspec.structs.replace(right, change="another")])) == 2
    assert kept.too_many([kept.figures_of("m", results, [])]) == ""
    assert (
        kept.too_many([kept.figures_of("m", results[:20], [right])]) == "1 of 20 mutants survive, which is 5% or more"
    )


def test_a_result_holds_until_its_module_or_its_test_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed by a test: until that file changes. A line that was cut is passed over."""
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    result = Result(id=CERTAIN[0], change="x", outcome="killed", test="core/test_hold.py::test_x")
    stamp = kept.stamp_of(HOLD_TABLE)
    kept.keep(HOLD_TABLE, result, stamp)
    file = tmp_path / f"{HOLD_TABLE}.jsonl"
    text = file.read_bytes()
    file.write_bytes(text + text[:20])

    assert kept.still_hold(HOLD_TABLE, stamp) == {CERTAIN[0]: result}
    row = json.loads(text)
    for name in ("module", "tests"):
        file.write_text(json.dumps({**row, name: "of another text"}), "utf-8")
        assert kept.still_hold(HOLD_TABLE, stamp) == {}


@pytest.mark.long
@pytest.mark.parametrize("module", [row.module for row in kept.figures() if not row.open])
def test_every_mutant_of_a_module_is_killed_or_explained(module: str) -> None:
    results = list(results_of(module, kept.module_of(module).mutants, anew=True))

    assert kept.problems(module, results, kept.survivors()) == []
