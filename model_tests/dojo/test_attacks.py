"""Hostile programs: each has a clear end, and leaves no process behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from longpoll_dojo.errors import ProgramError, StartError
from longpoll_dojo.explore import Bounds, Finding, Search
from longpoll_dojo.model import Allowances
from longpoll_dojo.program import Program
from longpoll_dojo.starters import starters
from longpoll_dojo.trace import lines_of

BOUNDS = Bounds(moves=2, interleaved=1)
ANSWER_S = 0.6
RESET = b'{"type": "reset", "id": 0, "now_ms": 0, "wall_ms": 0}'
PLACE = '    table.now_ms = message["now_ms"]\n'
RIGHT = next(starters("python")).source.replace(
    "import json\n", "import json\nimport os\nimport signal\nimport subprocess\n"
)


def odd(does: str) -> str:
    """The right program, which does something else first when a message has come."""
    assert RIGHT.count(PLACE) == 1
    return RIGHT.replace(PLACE, PLACE + does + "\n")


PROTOCOL = {
    "garbage": ("print('Starting up...', flush=True)", "'Starting up...', which is not valid"),
    "a huge line": ("print('x' * 10_000_000, flush=True)", "a line of more than 65536 bytes"),
    "no end of line": (
        """sys.stdout.write('{"done"'); sys.stdout.flush(); signal.pause()""",
        "without a line end",
    ),
    "the end with 0": ("sys.exit(0)", "exited with code 0"),
    "the end on half a line": ("""sys.stdout.write('{"done"'); sys.exit(0)""", "without a line end"),
    "a signal": ("os.kill(os.getpid(), 9)", "ended by signal 9"),
    "a flood": (
        """while True: print('{"answer": 1, "messages": [], "offset_next": 0}')""",
        "1000 answers to one message",
    ),
    "silence": ("signal.pause()", "did not end the message within 0.6 s"),
    "a child that keeps the pipe": (
        "subprocess.Popen(['sleep', '1000']); os._exit(3)",
        "did not end the message within 0.6 s",
    ),
    "another's end": ("number = 77", "with the id 77"),
    "twice done": ("""os.write(1, b'{"done": %d}\\n{"done": %d}\\n' % (number, number)); continue""", "after it had"),
    "stops for ever": ("""say({"at": "here", "id": number}); continue""", "must not stop"),
    "no UTF-8": (r"os.write(1, b'\xff\xfe{}\n')", "is not valid"),
    "deep JSON": ("print('[' * 60_000, flush=True)", "is not valid"),
    "a number without end": ("""print('{"done": ' + '9' * 400 + '}', flush=True)""", "is not valid"),
    "an unknown key": ("""say({"done": 1, "x": 2})""", "unknown field"),
    "what steers a terminal": (r"print('\x1b[2J\x1b[31m', flush=True)", r"\\u001b[2J"),
    "a closed output": ("os.close(1); signal.pause()", "closed its standard output"),
}  # fmt: skip
"""What a program does when a tick comes, or its work goes on -> what is said of that."""


def found_in(source: str, directory: Path, *, bounds: Bounds = BOUNDS, answer_s: float = ANSWER_S) -> Finding:
    """The dojo's findings about a program."""
    (directory / "program.py").write_text(source)
    words = [sys.executable, "-S", str(directory / "program.py")]
    search = Search(bounds, Allowances())
    search.run(lambda: Program(words, answer_s=answer_s), seed=None, seconds=0)
    assert search.finding is not None
    return search.finding


@pytest.mark.parametrize("name", PROTOCOL)
def test_what_is_not_of_the_protocol_is_told(name: str, tmp_path: Path) -> None:
    """By the order in which it comes about, and never by a traceback."""
    does, said = PROTOCOL[name]
    finding = found_in(odd(f"    if kind in ('tick', 'go'):\n        {does}"), tmp_path)

    assert finding.violation.property == "speaks_the_protocol"
    assert said in str(finding.violation)
    assert not any("\x1b" in line for line in (*lines_of(finding.played), str(finding.violation)))


def test_a_complaint_is_kept(tmp_path: Path) -> None:
    """The end of a program's standard error is shown."""
    does = "    if kind == 'tick': sys.stderr.write('x' * 300_000); raise ValueError('odd tick')"
    finding = found_in(odd(does), tmp_path)

    assert "ValueError: odd tick" in finding.complaint
    assert len(finding.complaint) <= 1_000


def test_a_program_that_remembers_is_told_so(tmp_path: Path) -> None:
    """One whose answers depend on what came before the reset, in the same order played twice."""
    does = """    count = globals().setdefault('count', []); count.append(1)
    if kind == 'tick' and len(count) > 9: say({"done": number}); continue"""
    finding = found_in(odd(does), tmp_path)

    assert finding.violation.property == "forgets_at_reset"
    assert "run twice with a reset in between: to message 2" in str(finding.violation)


def test_what_is_left_of_another_order_is_told(tmp_path: Path) -> None:
    """Messages that are there before any has arrived, in an order that has none itself."""
    finding = found_in(odd("    table.logs = globals().setdefault('logs', {})"), tmp_path)

    assert finding.violation.property == "forgets_at_reset"
    assert "after other schedules" in str(finding.violation)
    assert "messages=('a0',)" in str(finding.violation)


def test_a_program_that_differs_from_itself_is_told_so(tmp_path: Path) -> None:
    """By its process number, for instance."""
    source = RIGHT.replace('yield "between_append_and_wake"', 'yield f"process_{os.getpid()}"')
    finding = found_in(source, tmp_path, bounds=Bounds(moves=2, interleaved=1, closes=0, set_backs=0))

    assert finding.violation.property == "same_again"
    assert "process_" in str(finding.violation)


def test_nothing_is_left_of_a_program(tmp_path: Path) -> None:
    """Neither it nor what it started: their pipe has no writer any more."""
    (tmp_path / "program.py").write_text(odd("    subprocess.Popen(['sleep', '1000'])"))
    with Program([sys.executable, "-S", str(tmp_path / "program.py")]) as program:
        program.turn(RESET)
        output = os.dup(program._out.fileno())

    assert os.read(output, 1) == b""
    os.close(output)


@pytest.mark.parametrize("words", [["/nowhere/program"], ["/"], ["\0"]])
def test_what_cannot_be_run_is_a_mistake(words: list[str]) -> None:
    with pytest.raises(StartError, match="cannot be run"):
        Program(words)


def test_a_program_may_start_slowly(tmp_path: Path) -> None:
    """The limit of a step does not apply to the first one."""
    (tmp_path / "program.py").write_text("import select\nselect.select([], [], [], 0.5)\n" + RIGHT)
    words = [sys.executable, "-S", str(tmp_path / "program.py")]
    with Program(words, answer_s=0.4, start_s=20) as program:
        assert len(program.turn(RESET)) == 1
    with Program(words, answer_s=0.4, start_s=0.4) as program, pytest.raises(ProgramError, match=r"within 0\.4 s"):
        program.turn(RESET)
