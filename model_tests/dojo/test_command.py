"""`longpoll dojo` on the command line: its output, its exit codes, and the effect of Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from model_tests.support.broker.brokers import wait_until

from longpoll.cli import main
from longpoll.output import Exit
from longpoll_kit.programs.starters import starters

SOURCES = {program.name: program.source for program in starters("python")}
SMALL = ("--moves=2", "--interleaved=2")
LONGPOLL = [sys.executable, "-m", "longpoll"]


def program(name: str, directory: Path, source: str | None = None) -> list[str]:
    path = directory / f"{name}.py"
    path.write_text(SOURCES[name] if source is None else source)
    return [sys.executable, "-S", str(path)]


def dojo(*words: str) -> Result:
    return CliRunner().invoke(main, ["dojo", *words])


def test_the_report_of_a_correct_program_has_its_coverage(tmp_path: Path) -> None:
    words = program("right", tmp_path)
    done = dojo(*SMALL, *words)
    told = json.loads(dojo(*SMALL, "--json", *words).stdout)

    assert done.exit_code == Exit.OK, done.output
    assert done.stdout.startswith("right: ")
    assert f"all schedules of up to 2 steps: {sum(told['plain'].values())}" in done.stdout
    assert "between_check_and_hold" in done.stdout
    assert (told["verdict"], told["finding"], told["exit_code"]) == ("right", None, 0)
    assert set(told["step_points"]) == {"between_check_and_hold", "between_hold_and_recheck", "between_append_and_wake"}
    assert told["played"] >= sum(told["plain"].values()) + sum(told["interleaved"].values())


def test_the_report_of_a_wrong_program_can_be_replayed(tmp_path: Path) -> None:
    """The token in the report replays the failing schedule, and a correct program passes the same schedule."""
    words = program("lost_wakeup", tmp_path)
    done = dojo(*words)
    told = json.loads(dojo("--json", *words).stdout)
    token = told["finding"]["token"]

    assert (done.exit_code, told["exit_code"], told["verdict"]) == (Exit.VIOLATED, 1, "wrong")
    assert "no_lost_wakeup: poll 1 of a (up to 2070 ms) still waits" in done.stdout
    assert "message 0 (b'a0') is published to a" in done.stdout
    assert f"--replay {token}" in done.stdout
    again = dojo("--replay", token, *words)
    assert (again.exit_code, "no_lost_wakeup" in again.stdout) == (Exit.VIOLATED, True)
    right = dojo(
        "--replay", token, *program("right", tmp_path, SOURCES["right"].replace('yield "between_hold_and_recheck"', ""))
    )
    assert right.exit_code == Exit.OK, right.output


@pytest.mark.long
def test_random_schedules_beyond_the_bound_are_shrunk(tmp_path: Path) -> None:
    """The fault needs a second close, which no schedule within the bound has, so only a random schedule finds it."""
    marked = 'pull["deadline_ms"] = self.now_ms + pull["wait_ms"]'
    words = program("late", tmp_path, SOURCES["right"].replace(marked, f"{marked} + (len(self.closed) == 2)"))
    bounded = dojo(*SMALL, *words)
    told = json.loads(dojo(*SMALL, "--seed=1", "--minutes=1", "--json", *words).stdout)

    assert bounded.exit_code == Exit.OK, bounded.output
    assert told["finding"]["property"] == "answered_by_deadline"
    assert told["drawn"] > 0
    steps = [step for step in told["finding"]["token"].split(".")[1:] if not step.startswith("g")]
    assert sorted(step[0] for step in steps) == ["c", "c", "p", "p", "p"], steps


def test_the_output_of_a_program_is_escaped(tmp_path: Path) -> None:
    for plant in (
        'say({"at": "a\\x1b[2J\\u202e\\nFORGED", "id": number}); continue',
        'print("\\x1b[2J\\u202e[red]", flush=True)',
        'sys.exit("\\x1b[2J\\u202e\\nFORGED")',
        'say({"answer": 1, "messages": ["\\x1b[2J\\nFORGED"], "offset_next": 1})',
    ):
        place = '    table.now_ms = message["now_ms"]\n'
        odd = SOURCES["right"].replace(place, f'{place}    if kind == "tick":\n        {plant}\n')
        for options in ((), ("--json",)):
            done = dojo("--moves=1", "--interleaved=1", *options, *program("odd", tmp_path, odd))
            assert done.exit_code == Exit.VIOLATED, done.output
            assert "\x1b" not in done.output
            assert "\u202e" not in done.output
            assert "Traceback" not in done.output


@pytest.mark.parametrize("words", [["true"], ["cat"], ["echo", "hello"], ["sh", "-c", "echo odd >&2; exit 7"]])
def test_a_command_that_is_not_a_program_is_a_usage_error(words: Sequence[str]) -> None:
    done = dojo(*words)

    assert done.exit_code == Exit.USER
    assert "must answer the first message" in done.stderr
    assert done.stderr.count("\n") == 1
    assert words[0] != "sh" or "its last error output: odd" in done.stderr


def test_starter_programs_are_written_and_listed(tmp_path: Path) -> None:
    done = dojo("--starter", "rust", str(tmp_path / "new"))
    told = json.loads(dojo("--json", "--starter", "python", str(tmp_path / "other")).stdout)

    assert (done.exit_code, "rustc -O -o right right.rs && longpoll dojo ./right" in done.stdout) == (Exit.OK, True)
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == sorted(
        each["file"] for each in told["programs"]
    )
    assert dojo("--starter", "python", str(tmp_path), "more").exit_code == Exit.USER


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reports_the_progress_and_ends_the_program(number: int, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    place = '    table.now_ms = message["now_ms"]\n'
    tells = (
        f"    if kind == 'tick' and not os.path.exists({str(pid)!r}): open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    )
    source = "import os\n" + SOURCES["right"].replace(place, place + tells)
    words = [*LONGPOLL, "dojo", "--moves=9", "--interleaved=0", "--json", *program("right", tmp_path, source)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: pid.exists() and bool(pid.read_text()))
        process.send_signal(number)
        out, err = process.communicate(timeout=30)

    told = json.loads(out)
    assert (process.returncode, told["exit_code"], told["verdict"]) == (Exit.UNKNOWN, 3, "unknown"), err
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
