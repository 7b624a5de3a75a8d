"""Starter programs, variants, mutants and hostile programs each get the right result and leave no process behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from longpoll_kit.errors import HINTS
from longpoll_kit.programs.explore import Bounds, Finding, Search, examined
from longpoll_kit.programs.process import Program
from longpoll_kit.programs.protocol import ProgramError, StartError
from longpoll_kit.programs.schedule import STRICT, given, play, steps_of, token_of
from longpoll_kit.programs.starters import LANGUAGES, RIGHT, Starter, StarterError, faults, starters, write

QUICK = Bounds(moves=3, interleaved=2)
PYTHON = list(starters("python"))


def words_of(program: Starter, directory: Path) -> list[str]:
    if program.language.name == "python":
        return [sys.executable, "-S", str(directory / program.file)]
    words = program.words(program.language.run)
    return [str(directory / word) if (directory / word).exists() else word for word in words]


def searched(words: list[str], bounds: Bounds) -> Search:
    search = Search(bounds)
    search.run(lambda: Program(words))
    return search


def assert_judged(program: Starter, directory: Path, bounds: Bounds) -> None:
    """Assert that a correct program passes, and that a wrong program breaks its property in the run and in a replay."""
    words = words_of(program, directory)
    search = searched(words, bounds)
    if program.name == RIGHT:
        assert search.finding is None
        assert search.is_whole
        assert len(search.step_points) == 3
        return
    assert search.finding is not None, program.name
    assert search.finding.violation.property == program.breaks
    moves = steps_of(token_of(search.finding.played.steps))
    with Program(words) as partner:
        again = play(partner, STRICT, given(moves))
    assert again.violation is not None
    assert again.violation.property == program.breaks


@pytest.mark.parametrize("program", PYTHON, ids=lambda program: program.name)
def test_python_starters_have_the_right_results(program: Starter, tmp_path: Path) -> None:
    """The Python starters need no other toolchain, so they run in every test run."""
    (tmp_path / program.file).write_text(program.source)

    assert_judged(program, tmp_path, QUICK if program.name == RIGHT else Bounds())


@pytest.mark.peers
@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "python"])
def test_starters_in_other_languages_have_the_right_results(language: str, tmp_path: Path) -> None:
    """Each starter is built with the tools of its language; without the compiler an error names the missing tool."""
    programs = write(language, tmp_path)
    needed = programs[0].language.build or programs[0].language.run
    if shutil.which(needed[0]) is None:
        pytest.skip(f"no {needed[0]} on PATH: the starters in {language} were not tried")
    for program in programs:
        if program.language.build:
            subprocess.run(program.words(program.language.build), cwd=tmp_path, check=True)
        assert_judged(program, tmp_path, QUICK if program.name == RIGHT else Bounds())


def test_faults_are_in_every_language() -> None:
    assert len(faults()) == 8
    for name in LANGUAGES:
        programs = list(starters(name))
        assert [program.name for program in programs] == [RIGHT, *faults()]
        assert len({program.source for program in programs}) == len(programs)
        assert {program.breaks for program in programs[1:]} <= HINTS.keys()
    assert len(Counter(fault["breaks"] for fault in faults().values())) >= 5


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """The command leaves existing files unchanged and lists them in an error."""
    (tmp_path / "right.py").write_text("mine")

    with pytest.raises(StarterError, match=r"right\.py already exists"):
        write("python", tmp_path)
    assert (tmp_path / "right.py").read_text() == "mine"
    with pytest.raises(StarterError, match="choose another"):
        write("python", tmp_path / "right.py" / "below")


VARIED = next(starters("python")).source
SCAN = "        self.held = [pull for pull in self.held if not self.look(pull)]\n        yield from ()\n"
KEEP = """        taken, self.held = self.held, []
        kept = [pull for pull in taken if not self.look(pull)]
        yield "between_take_and_keep"
        self.held += [pull for pull in kept if pull["connection"] not in self.closed]
"""
RECHECK = """        yield "between_keep_and_recheck"
        for pull in kept:
            self.wake(pull["queue"])
"""
FIRST = "        while self.held and self.look(self.held[0]):\n            self.held.pop(0)\n        yield from ()\n"
LISTED = '[pull["offset"] :]'
DUE = 'self.now_ms < pull["deadline_ms"]'
RENEWED = 'self.wake(message["queue"])'
HOLD = "        self.held.append(pull)\n"
FULL = """        if len(self.held) >= 32:
            say({"answer": pull["id"], "messages": [], "offset_next": pull["offset"]})
            return
"""
WAKE = 'self.held = [pull for pull in self.held if pull["queue"] != queue or not self.look(pull)]'
APPEND = '        self.logs.setdefault(message["queue"], []).append(message["message"])\n'
SAYS = '"messages": messages,'
SHORT = Bounds(moves=2, interleaved=1)
FAULTY: dict[str, tuple[str, str, str, int]] = {
    "a notifier that keeps what it took, and does not look again": (SCAN, KEEP, "no_lost_wakeup", 5),
    "a queue of deadlines of which only the first is looked at": (SCAN, FIRST, "answered_by_deadline", 5),
    "a deadline that must have passed": (DUE, 'self.now_ms <= pull["deadline_ms"]', "answered_by_deadline", 5),
    "an offset that is passed over": (LISTED, "", "in_order", 5),
    "a deadline that is renewed by every wake": (
        RENEWED,
        RENEWED + '\n        for pull in self.held:\n            pull["deadline_ms"] = self.now_ms + pull["wait_ms"]',
        "answered_by_deadline",
        5,
    ),
    "an offset that is counted from the queue's end": (
        '"offset_next": pull["offset"] + len(messages)',
        '"offset_next": len(self.logs.get(pull["queue"], [])) + (not messages)',
        "offset_goes_on",
        5,
    ),
    "a wait of 1 ms that never ends": (DUE, f'({DUE} or pull["wait_ms"] == 1)', "answered_by_deadline", 1),
    "a wait of an hour that is none": (DUE, f'{DUE} and pull["wait_ms"] < 1_000_000', "not_early", 1),
    "room for 128 messages": (APPEND, f'        if message["offset"] < 128:\n    {APPEND}', "nothing_lost", 132),
    "an answer of at most 10,000 letters": (
        SAYS,
        '"messages": messages[: 10_000 // max(map(len, messages), default=1)],',
        "offset_goes_on",
        26,
    ),
    "room for 32 pulls, and none for more": (HOLD, FULL + HOLD, "not_early", 34),
    "more than 32 pulls are forgotten": (HOLD, f"        if len(self.held) < 32:\n    {HOLD}", "no_lost_wakeup", 34),
    "eight pulls are woken": (WAKE, f"{WAKE.replace('self.held if', 'self.held[:8] if')} + self.held[8:]",
                              "no_lost_wakeup", 10),
    "deadlines of 32 pulls": (
        SCAN, SCAN.replace("self.held if", "self.held[:32] if").replace("]\n", "] + self.held[32:]\n"),
        "answered_by_deadline", 34,
    ),
}  # fmt: skip
"""Name of the fault -> the line to replace, its replacement, the broken property, and the number of steps (`go` not
counted) within which the fault shows."""


def searched_source(source: str, directory: Path, bounds: Bounds) -> Search:
    (directory / "program.py").write_text(source)
    return searched([sys.executable, "-S", str(directory / "program.py")], bounds)


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_by_the_fewest_steps(name: str, tmp_path: Path) -> None:
    old, new, prop, steps_max = FAULTY[name]
    assert VARIED.count(old) == 1
    search = searched_source(VARIED.replace(old, new), tmp_path, Bounds() if steps_max == 5 else SHORT)
    assert search.finding is not None
    played = search.finding.played
    program = [sys.executable, "-S", str(tmp_path / "program.py")]
    found = examined(lambda: Program(program), STRICT, steps_of(token_of(played.steps)))

    assert found is not None
    assert (search.finding.violation.property, found.violation.property) == (prop, prop)
    assert sum(step.kind != "go" for step in played.steps) <= steps_max
    assert (found.played.story, len(str(found.violation)) < 1_000) == (played.story, True)
    assert len(played.story) <= 40
    assert max(map(len, played.story)) < 250


def test_a_notifier_that_checks_again_after_a_put_back_is_correct(tmp_path: Path) -> None:
    """A notifier may take pulls out of the table for a while, if it checks them again after it puts them back."""
    search = searched_source(VARIED.replace(SCAN, KEEP + RECHECK), tmp_path, Bounds(moves=3, interleaved=2))

    assert search.finding is None
    assert search.step_points["between_keep_and_recheck"] > 100


BOUNDS = Bounds(moves=2, interleaved=1)
ANSWER_S = 0.6
RESET = b'{"type": "reset", "id": 0, "now_ms": 0, "wall_ms": 0}'
PLACE = '    table.now_ms = message["now_ms"]\n'
RIGHT_PROGRAM = next(starters("python")).source.replace(
    "import json\n", "import json\nimport os\nimport signal\nimport subprocess\n"
)


def odd(does: str) -> str:
    assert RIGHT_PROGRAM.count(PLACE) == 1
    return RIGHT_PROGRAM.replace(PLACE, PLACE + does + "\n")


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
"""What a program does during a tick or while its work continues -> the finding that the dojo reports."""


def found_in(source: str, directory: Path, *, bounds: Bounds = BOUNDS, answer_s: float = ANSWER_S) -> Finding:
    (directory / "program.py").write_text(source)
    words = [sys.executable, "-S", str(directory / "program.py")]
    search = Search(bounds)
    search.run(lambda: Program(words, answer_s=answer_s))
    assert search.finding is not None
    return search.finding


@pytest.mark.parametrize("name", PROTOCOL)
def test_a_violation_of_the_protocol_is_reported(name: str, tmp_path: Path) -> None:
    """Each violation of the protocol is reported as a finding, in the schedule's order, and never as a traceback."""
    does, said = PROTOCOL[name]
    finding = found_in(odd(f"    if kind in ('tick', 'go'):\n        {does}"), tmp_path)

    assert finding.violation.property == "speaks_the_protocol"
    assert said in str(finding.violation)
    assert not any("\x1b" in line for line in (*finding.played.story, str(finding.violation)))


def test_the_standard_error_of_a_program_is_reported(tmp_path: Path) -> None:
    does = "    if kind == 'tick': sys.stderr.write('x' * 300_000); raise ValueError('odd tick')"
    finding = found_in(odd(does), tmp_path)

    assert "ValueError: odd tick" in finding.complaint
    assert len(finding.complaint) <= 1_000


def test_a_program_that_keeps_state_after_a_reset_is_reported(tmp_path: Path) -> None:
    does = """    count = globals().setdefault('count', []); count.append(1)
    if kind == 'tick' and len(count) > 9: say({"done": number}); continue"""
    finding = found_in(odd(does), tmp_path)

    assert finding.violation.property == "forgets_at_reset"
    assert "run twice with a reset in between: to message 2" in str(finding.violation)


def test_a_message_of_another_schedule_is_reported(tmp_path: Path) -> None:
    """If a message is delivered in a schedule that sends none, the finding says that another schedule left it."""
    finding = found_in(odd("    table.logs = globals().setdefault('logs', {})"), tmp_path)

    assert finding.violation.property == "forgets_at_reset"
    assert "after other schedules" in str(finding.violation)
    assert "messages=('a0',)" in str(finding.violation)


def test_a_program_that_is_not_repeatable_is_reported(tmp_path: Path) -> None:
    """A program whose answers depend on its process number, for instance, is reported as not repeatable."""
    source = RIGHT_PROGRAM.replace('yield "between_append_and_wake"', 'yield f"process_{os.getpid()}"')
    finding = found_in(source, tmp_path, bounds=Bounds(moves=2, interleaved=1, closes=0, set_backs=0))

    assert finding.violation.property == "same_again"
    assert "process_" in str(finding.violation)


def test_no_process_of_a_program_remains(tmp_path: Path) -> None:
    """The pipe's write end is closed, which shows that the program and its child processes have ended."""
    (tmp_path / "program.py").write_text(odd("    subprocess.Popen(['sleep', '1000'])"))
    with Program([sys.executable, "-S", str(tmp_path / "program.py")]) as program:
        program.turn(RESET)
        output = os.dup(program._out.fileno())

    assert os.read(output, 1) == b""
    os.close(output)


@pytest.mark.parametrize("words", [["/nowhere/program"], ["/"], ["\0"]])
def test_an_unusable_command_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(StartError, match="cannot be run"):
        Program(words)


def test_a_program_may_start_slowly(tmp_path: Path) -> None:
    """The time limit of a step does not apply to the first step of a program."""
    slow, mute = tmp_path / "slow.py", tmp_path / "mute.py"
    slow.write_text("import select\nselect.select([], [], [], 0.5)\n" + RIGHT_PROGRAM)
    mute.write_text("import select\nselect.select([], [], [])\n")
    with Program([sys.executable, "-S", str(slow)], answer_s=0.4, start_s=20) as program:
        assert len(program.turn(RESET)) == 1
    with (
        Program([sys.executable, "-S", str(mute)], answer_s=20, start_s=0.4) as program,
        pytest.raises(ProgramError, match=r"within 0\.4 s"),
    ):
        program.turn(RESET)
