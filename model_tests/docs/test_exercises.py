"""The exercises of the lessons: each has a solution on its page, and a wrong answer gets a hint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from click.testing import CliRunner, Result
from model_tests.support.spec.cases import quick_if

from longpoll.cli import main
from longpoll.commands.lesson import schedules
from longpoll.commands.lesson.command import LESSONS
from longpoll.commands.lesson.exercise import ANSWER_MAX, FILE_MAX

ROOT: Final = Path(__file__).parents[2]
LOST: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9ob2xkzhApc3qWAAIEAQgGiskZ0w"
KEPT: Final = "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKsbG9zdF9ieV9rZWVwzhApc3qbABISAgQGDA0BCA_s_R2J"
MUTANT: Final = "docs/lessons/mutant.py"
INVARIANT: Final = "docs/lessons/invariant.py"
POLL: Final = "docs/lessons/poll.py"
NOT_YET: Final = {
    ("0.1", POLL): "in 9 of 387 orders",
    ("0.2", "0"): "no order with 0 switches",
    ("0.2", "2"): "fewer than 2 switches",
    ("0.3", POLL): "poll-1 slept its whole second",
    ("1.1", LOST): "loses request 0; let it be request 1",
    ("1.1", KEPT): "nothing is lost",
    ("1.2", "none"): "with recheck_after_hold=none lost_by_hold is violated; see longpoll check --policy rocketmq-4.9 "
    "--knob recheck_after_hold=none --bounds tiny --property lost_by_hold --explain",
    ("1.2", "after_insert"): "and there are more: 1 other",
    ("1.3", LOST): "after step 6 it still waits",
    ("1.3", KEPT): "no hold of this run loses a wakeup",
    ("2.1", "expiry=own_deadline"): "no_lost_wakeup is violated, in 12 steps",
    ("2.1", "expiry=own_deadline take=in_place"): "one is enough",
    ("2.2", "recheck_after_keep=false"): "lost_by_hold holds and lost_by_keep is violated",
    ("2.3", LOST): "no put-back of this run loses a wakeup",
    ("2.3", KEPT): "loses request 0 only",
    ("3.1", "2"): "more than 2 tick(s)",
    ("3.1", "4"): "in no run is it 4 ticks",
    ("3.2", "expiry=own_deadline"): "still violated, in 6 steps",
    ("3.2", "expiry=own_deadline on_stop=answer take=in_place"): "but also without take=in_place",
    ("4.1", "if_empty_unsafe"): "no_orphan is violated",
    ("4.1", "never"): "and there are more",
    ("4.2", "bucket_removal=never"): "buckets_are_swept is violated",
    ("4.2", "bucket_removal=if_empty_unsafe"): "no_orphan is violated",
    ("5.1", "take=clone_and_clear"): "no_lost_wakeup is violated",
    ("5.1", "notify_grain=message"): "must announce batches",
    ("5.1", "take=in_place notify_only_if_tag_matches=false"): "one is enough",
    ("5.2", "before_hold"): "commit_never_regresses is violated",
    ("6.1", INVARIANT): "answered_once is not inductive: the step",
    ("6.2", INVARIANT): "true, but also inductive alone",
    ("7.1", "1"): "the limit is kept",
    ("7.1", "3"): "fewer than 3 are enough",
    ("7.1", "0"): "between 1 and",
    ("7.2", "3"): "too small",
    ("8.1", "tick"): "takes no step at all",
    ("8.1", "nothing"): "never answers the pull",
    ("8.2", "2"): "more than 2 tick(s)",
    ("8.2", "4"): "in no run is it 4 ticks",
    ("9.1", "3-17"): "the judge finds no violation for 3-17",
    ("9.1", "3-711"): "there is 1 more",
    ("9.2", "100"): "still found too late",
    ("9.2", "3000"): "with 2999 neither",
    ("10.1", "hold"): "lost_by_hold holds with the second look",
    ("10.1", "none"): "in another way",
    ("10.2", LOST): "no put-back",
    ("11.1", POLL): "speaks_the_protocol",
    ("11.2", "answered_once"): "think of the second",
    ("12.1", MUTANT): "nothing breaks",
    ("12.2", MUTANT): "are unchanged",
}
"""(Exercise, wrong answer) -> the hint."""


def ask(*words: str) -> Result:
    done = CliRunner().invoke(main, ["lesson", *words], env={"COLUMNS": "140"})
    assert done.exit_code in {0, 1, 2}, done.output
    return done


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def without_solution(number: int, page: str) -> list[str]:
    """Return the exercises of a lesson whose page section lacks a hint or a right answer."""
    (lesson,) = [each for each in LESSONS if each.number == number]
    parts = dict(re.findall(r"^\*\*([\d.]+)\*\*(.*?)(?=^\*\*[\d.]+\*\*|\Z)", page, re.MULTILINE | re.DOTALL))
    names = [f"{number}.{place}" for place in range(1, len(lesson.exercises) + 1)]
    assert list(parts) == names, number
    return [
        name
        for name in names
        if "<summary>Hint</summary>" not in parts[name]
        or not re.search(rf"\$ longpoll lesson {name} --check .*\nright: ", parts[name])
    ]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: str(lesson.number))
def test_each_exercise_has_a_hint_and_a_solution(lesson: Any) -> None:
    page = (ROOT / lesson.page).read_text("utf-8")

    assert page.startswith(f"# {lesson.number}. {lesson.title}\n")
    names = [f"{lesson.number}.{place}" for place, _ in enumerate(lesson.exercises, start=1)]
    assert 2 <= len(names) <= 4
    assert without_solution(lesson.number, page) == []
    assert without_solution(lesson.number, page.replace("\nright: ", "\n: ")) == names


SLOW: Final = {
    ("7.2", "3"),
    ("9.1", "3-17"),
    ("9.2", "100"),
    ("9.2", "3000"),
    ("11.1", POLL),
    ("11.2", "answered_once"),
}


@pytest.mark.parametrize("case", quick_if(NOT_YET, lambda case: case not in SLOW), ids="-".join)
def test_a_wrong_answer_gets_a_hint(case: tuple[str, str]) -> None:
    exercise, answer = case
    done = ask(exercise, "--check", answer, "--json")
    told = msgspec.json.decode(done.stdout)

    assert (done.exit_code, told["right"], told["exercise"]) == (1, False, exercise)
    assert NOT_YET[case] in told["why"]


def test_every_exercise_has_a_tested_wrong_answer() -> None:
    names = {f"{each.number}.{place}" for each in LESSONS for place in range(1, len(each.exercises) + 1)}

    assert {exercise for exercise, _ in NOT_YET} == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["13"], "unknown lesson '13'"),
        (["1.9"], "unknown exercise '1.9'"),
        (["1", "--check", "x"], "name one of 1.1, 1.2, 1.3"),
        (["--check", "x"], "--check needs the number of an exercise"),
        (["1.1", "--check", "x"], "not a token of this version"),
        (["1.1", "--check", f"{LOST} {KEPT}"], "the answer must be one token"),
        (["1.1", "--check", "x" * (ANSWER_MAX + 1)], "at most"),
        (["1.2", "--check", " , "], "the answer is empty"),
        (["1.2", "--check", "sometimes"], "unknown value of recheck_after_hold 'sometimes'"),
        (["2.1", "--check", "in_place"], "is not NAME=VALUE"),
        (["2.1", "--check", "tack=in_place"], "tack"),
        (["3.1", "--check", "-1"], "a whole number"),
        (["3.1", "--check", "1" * 20], "a whole number"),
        (["12.1", "--check", "no/such/file.py"], "no file"),
        (["12.1", "--check", "docs"], "no file"),
    ],
)
def test_an_invalid_answer_is_a_usage_error(words: list[str], said: str) -> None:
    done = ask(*words)

    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("exercise", "text", "said"),
    [
        ("12.1", "1 / 0\n", "mine.py:1: ZeroDivisionError"),
        ("12.1", "import sys; sys.exit(3)\n", "mine.py:1: SystemExit"),
        ("12.1", "x =\n", "mine.py:1: invalid syntax"),
        ("12.1", "hold = 3\n", "must define one Specification"),
        ("12.1", "#" * (FILE_MAX + 1), "at most"),
        ("6.1", "statements = 3\n", "has no function statements"),
        ("6.1", "def statements(state):\n    return []\n", "1 to 40 statements"),
        ("6.1", "def statements(state):\n    return [state]\n", "each statement must be a pair"),
        (
            "6.1",
            "def statements(state):\n    yield 'answered_once', state.running\n",
            "give your statements other names",
        ),
        ("6.1", "def statements(state):\n    yield 'x', state.requests[0].open == 1\n", "line 2: TypeError"),
        ("6.1", "def statements(state):\n    while True:\n        yield 'x', state.running\n", "must have 1 to"),
    ],
)
def test_a_failing_program_is_reported_as_the_readers(tmp_path: Path, exercise: str, text: str, said: str) -> None:
    program = tmp_path / "mine.py"
    program.write_text(text)
    done = ask(exercise, "--check", str(program))

    assert done.exit_code == 2
    assert said in done.stderr


def test_a_false_statement_is_reported(tmp_path: Path) -> None:
    """The report distinguishes a statement that is false in the first state from one that becomes false later."""
    program = tmp_path / "mine.py"
    program.write_text("def statements(state):\n    yield 'nobody', state.requests[0].is_('idle')\n")
    assert "nobody is not true: a run of 1 steps" in ask("6.2", "--check", str(program)).stdout

    program.write_text("def statements(state):\n    yield 'somebody', state.requests[0].open\n")
    assert "somebody is false in the first state" in ask("6.1", "--check", str(program)).stdout


MAILBOX: Final = """
{first}
class Mailbox:
    def __init__(self):
        self.lock = threading.Lock()
    def put(self, message):
        {put}
    def poll(self, timeout_s):
        {poll}
"""


@pytest.mark.parametrize(
    ("first", "put", "poll", "code", "said"),
    [
        ("import threading", "pass", "return 'message 1'", 0, "nothing goes wrong"),
        ("import threading", "pass", "return 'another'", 1, "the polls were given another"),
        ("import threading", "pass", "return", 1, "returned None at once"),
        ("import threading", "pass", "self.lock.acquire(); self.lock.acquire()", 1, "a thread waits forever"),
        ("import threading", "pass", "\n        while True:\n            pass", 1, "no end after 500 steps"),
        ("import threading, time as now", "pass", "now.sleep(1); return 'message 1'", 1, "slept its whole second"),
        (
            "import threading",
            "pass",
            "threading.RLock()",
            2,
            "threading.RLock is not available here; use Lock, Event, Condition",
        ),
        ("import threading", "pass", "threading.Condition(self.lock)", 2, "write threading.Condition()"),
        ("import threading", "1 / 0", "return", 2, "line 7: ZeroDivisionError"),
        ("import threading, queue", "pass", "return", 2, "cannot import queue; this program may import only"),
        ("import threading, sys; sys.exit()", "pass", "return", 2, "SystemExit"),
    ],
)
def test_mailboxes_of_all_kinds(tmp_path: Path, *, first: str, put: str, poll: str, code: int, said: str) -> None:
    program = tmp_path / "mine.py"
    program.write_text(MAILBOX.format(first=first, put=put, poll=poll))
    done = ask("0.1", "--check", str(program))

    assert done.exit_code == code
    assert said in done.output


def test_a_program_of_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "POINTS_IN_ALL_MAX", 5_000)
    program = tmp_path / "mine.py"
    lines = "\n        ".join(["self.lock = 0"] * 90)
    program.write_text(MAILBOX.format(first="import threading", put=lines, poll=lines))
    assert "write it with fewer lines" in ask("0.1", "--check", str(program)).stderr

    program.write_text("class Postbox: pass")
    assert "has no class Mailbox" in ask("0.1", "--check", str(program)).stderr


def test_the_address_of_the_explorer_is_an_answer_too() -> None:
    assert ask("1.1", "--check", f"file:///explorer.html#{LOST}").stdout == ask("1.1", "--check", LOST).stdout


def test_the_lists_are_complete() -> None:
    listed = msgspec.json.decode(ask("--json").stdout)["lessons"]

    assert [each["lesson"] for each in listed] == [each.number for each in LESSONS]
    assert all(each.title in ask().stdout for each in LESSONS)
    assert msgspec.json.decode(ask("1", "--json").stdout)["exercises"] == listed[1]["exercises"]
    assert "1.2" in ask("1.2").stdout
    assert "1.3" not in ask("1.2").stdout
