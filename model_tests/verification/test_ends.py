"""Every command ends with one of the documented exit codes, and exit code 1 is always a verdict."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
import z3
from click.testing import CliRunner

from longpoll import exit_codes
from longpoll.cli import COMMANDS, main
from longpoll.options.values import AMOUNT_MAX, Amount
from longpoll.output import Exit
from longpoll_spec.engines.smt import terms as smt_check
from longpoll_spec.errors import UnknownPolicyError
from longpoll_spec.policy import policy_named

GIVEN = "/named/in/the/call"
AT_IMPORT = """
import os, signal, sys
mark, sys.argv = sys.argv[1], ["longpoll", *sys.argv[2:]]
def interrupt(event, arguments):
    if event == "import" and arguments[0] == mark:
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(interrupt)
from longpoll.entry import main
main()
"""
"""A script that sends Ctrl-C just before a module is imported."""
AT_CALL = """
import os, signal, sys
wanted, number, sys.argv = sys.argv[1], int(sys.argv[2]), ["longpoll", *sys.argv[3:]]
seen = 0
def count(frame, event, argument):
    global seen
    if event == "call" and frame.f_globals.get("__name__", "").startswith(wanted):
        seen += 1
        if seen == number:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)
sys.setprofile(count)
from longpoll.entry import main
main()
"""
"""A script that sends Ctrl-C at the n-th call of any function of a package."""


def python(script: str, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def raising(error: BaseException) -> Callable[[], object]:
    def command() -> object:
        raise error

    return command


@contextmanager
def faults_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), exit_codes.UNKNOWN, "Ctrl-C"),
        (click.Abort(), exit_codes.UNKNOWN, "Ctrl-C"),
        (EOFError(), exit_codes.UNKNOWN, "Ctrl-C"),
        (MemoryError(), exit_codes.UNKNOWN, "out of memory"),
        (click.FileError("x", "no"), exit_codes.USER, "Could not open file"),
        (OSError(errno.ENOSPC, "No space left on device", GIVEN), exit_codes.UNKNOWN, "free some disk space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), exit_codes.UNKNOWN, "free some disk space"),
        (OSError(errno.EFBIG, "File too large"), exit_codes.UNKNOWN, "free some disk space"),
        (OSError(errno.ENOENT, "No such file or directory", f"{GIVEN}/below"), exit_codes.USER, "cannot use"),
        (
            OSError(errno.ENOENT, "No such file or directory", "/another"),
            exit_codes.UNKNOWN,
            "internal error of longpoll",
        ),
        (OSError(errno.ECONNRESET, "Connection reset"), exit_codes.UNKNOWN, "internal error of longpoll"),
        (RecursionError("too deep"), exit_codes.UNKNOWN, "internal error of longpoll"),
        (ValueError("two\nlines \x1b[31m"), exit_codes.UNKNOWN, r"two\nlines \x1b[31m"),
        (SystemExit(1), exit_codes.UNKNOWN, "internal error of longpoll"),
        (SystemExit("words"), exit_codes.UNKNOWN, "internal error of longpoll"),
        (SystemExit(77), exit_codes.UNKNOWN, "internal error of longpoll"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), exit_codes.UNKNOWN, "internal error of longpoll"),
    ],
    ids=lambda value: ascii(value) if isinstance(value, BaseException) else None,
)
def test_every_fault_of_a_command_is_one_sentence_and_not_exit_code_1(  # noqa: PLR0917 - three of pytest's
    error: BaseException,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A fault of the caller's files exits with 2 and any other fault with 3. The traceback goes only to a file."""
    with faults_in(tmp_path, monkeypatch), pytest.raises(SystemExit) as left:
        exit_codes.ended(raising(error), ["judge", GIVEN])

    said = capsys.readouterr().err
    assert left.value.code == code
    assert words in said
    assert "Traceback" not in said
    assert said.count("\n") == 1
    kept = list(tmp_path.iterdir())
    assert len(kept) == ("internal error" in said or "two" in words)
    assert all(type(error).__name__ in file.read_text() for file in kept)


@pytest.mark.parametrize(
    ("file", "words", "is_theirs"),
    [
        ("/named/in/the/call", [GIVEN], True),
        ("/named/in/the/call/below", [GIVEN], True),
        ("/named/in/the/caller", [GIVEN], False),
        ("/named/in/the", [GIVEN], False),
        ("/named/in/the/call", [f"--store={GIVEN}"], True),
        ("/named/in/the/call", ["--store", ""], False),
        (str(Path.cwd() / "below"), ["", "--json"], False),
    ],
)
def test_a_fault_of_a_named_file_or_directory_is_the_callers(file: str, words: list[str], is_theirs: bool) -> None:
    assert exit_codes.is_named(file, words) == is_theirs


def test_ctrl_c_during_an_import_is_raised_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_codes._interrupts, "came", False)
    done: list[str] = []

    def imports() -> None:
        with exit_codes.whole_imports():
            exit_codes._interrupts.handle(signal.SIGINT, None)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        imports()
    assert done
    with pytest.raises(KeyboardInterrupt):
        exit_codes._interrupts.handle(signal.SIGINT, None)


def test_ctrl_c_that_a_library_converts_is_still_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exit_codes._interrupts, "came", True)
    with pytest.raises(SystemExit) as left:
        exit_codes.ended(raising(ValueError("half done")), [])
    assert (left.value.code, "Ctrl-C" in capsys.readouterr().err) == (exit_codes.UNKNOWN, True)


def test_a_long_error_message_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with faults_in(tmp_path, monkeypatch), pytest.raises(SystemExit):
        exit_codes.ended(raising(ValueError("x" * 10 * exit_codes.SENTENCE_MAX)), [])
    assert exit_codes.SENTENCE_MAX <= capsys.readouterr().err.count("x") < 2 * exit_codes.SENTENCE_MAX


def test_the_exit_code_of_a_verdict_is_kept() -> None:
    for code in Exit:
        with pytest.raises(SystemExit) as left:
            exit_codes.ended(raising(SystemExit(code)), [])
        assert left.value.code is code


def test_a_fault_prints_its_traceback_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(exit_codes.DEBUG, "1")
    with faults_in(tmp_path, monkeypatch), pytest.raises(SystemExit):
        exit_codes.ended(raising(ZeroDivisionError("here")), [])

    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_while_a_command_is_loaded_is_unknown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = importlib.import_module

    def interrupted(module: str) -> object:
        signal.raise_signal(signal.SIGINT)
        return honest(module)

    monkeypatch.setattr(importlib, "import_module", interrupted)
    done = CliRunner().invoke(main, [name])

    assert done.exit_code == Exit.UNKNOWN, done.output
    assert exit_codes.STOPPED in done.stderr


@pytest.mark.parametrize(
    ("mark", "words"),
    [("click", ["policies"]), ("rich.console", ["policies"]), ("longpoll_spec.engines.smt.any_number", ["prove"])],
)
def test_an_interrupt_during_start_up_is_unknown(mark: str, words: list[str]) -> None:
    done = python(AT_IMPORT, mark, *words)

    assert (done.returncode, done.stderr.strip()) == (Exit.UNKNOWN, f"longpoll: {exit_codes.STOPPED}")


SWALLOWED = """
import os, signal
from longpoll import exit_codes
class Leaves:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def command():
    Leaves()
    while True:
        pass
exit_codes.run(command)
"""


def test_an_interrupt_that_python_ignores_is_raised_again() -> None:
    """Python ignores exceptions in a destructor, so a Ctrl-C there is raised a second time."""
    done = python(SWALLOWED)

    assert (done.returncode, done.stderr) == (Exit.UNKNOWN, f"longpoll: {exit_codes.STOPPED}\n")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("package", "number", "words"),
    [
        (package, number, words.split())
        for words, package in (
            ("check --ablate", "longpoll_spec"),
            ("check --bounds small", "longpoll_spec"),
            ("prove --requests any", "longpoll_spec"),
            ("verify", "longpoll"),
            ("export --to tla {target}", "longpoll_spec"),
            ("explain --help", "click"),
        )
        for number in (40, 300, 5_000, 60_000, 400_000)
    ],
)
def test_an_interrupt_at_any_call_is_unknown_unless_the_command_has_ended(
    package: str, number: int, words: list[str], tmp_path: Path
) -> None:
    """Ctrl-C at any call prints no traceback and never exits with 1; a finished command keeps its exit code."""
    words = [str(tmp_path / "target") if word == "{target}" else word for word in words]
    done = python(AT_CALL, package, str(number), *words, cwd=tmp_path)

    assert "Traceback" not in done.stderr
    assert done.returncode in {Exit.OK, Exit.UNKNOWN}
    assert done.returncode == Exit.OK or "stopped" in done.stderr or "unknown" in done.stdout


def test_an_interrupt_that_z3_drops_is_raised_again() -> None:
    """z3 answers `unknown` to Ctrl-C and drops the interrupt, so the engine raises it again."""
    solver = z3.SolverFor("QF_NIA")
    numbers = [z3.Int(f"x{index}") for index in range(8)]
    solver.add(z3.Sum([number * number * number for number in numbers]) == 114, *[number > 9 for number in numbers[:4]])
    solver.add(z3.Product(numbers) == 7_777_777)
    solver.set("timeout", 60_000)
    done = threading.Event()

    def interrupt() -> None:
        while not done.wait(0.01):
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(
        signal.SIGINT, lambda _number, _frame: None
    )  # This handler does nothing, so only z3 handles the signal.
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            smt_check.check(solver)
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("redirected", "code", "said"), [(">/dev/full", Exit.UNKNOWN, "No space left"), (">&-", Exit.OK, "")]
)
def test_a_full_disk_for_output_is_exit_code_3(redirected: str, code: Exit, said: str) -> None:
    """A full disk gives exit code 3 and a message; a closed stdout is fine, because the caller wants no output."""
    script = f'"$0" -c "from longpoll.entry import main; main()" --help {redirected}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)


@pytest.mark.parametrize("words", [["--help"], ["policies", "--json"]], ids=" ".join)
def test_a_closed_pipe_ends_a_command_without_a_message(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from longpoll.entry import main; main()", *words]
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(write)

    assert (done.returncode, done.stderr) == (Exit.UNKNOWN, b"")


DEEP = 100_000


def test_a_history_of_nests_directories_and_dangling_links_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"format_version": 1, "sources": [], "more": ' + "[" * DEEP)
    (tmp_path / "part-deep.ndjson").write_text('{"event": "x", "more": ' + "[" * DEEP + "]" * DEEP + "}\n")
    for suffix in ("ndjson", "ndjson.zst", "parquet"):
        (tmp_path / f"part-directory.{suffix}").mkdir()
        (tmp_path / f"part-dangling.{suffix}").symlink_to(tmp_path / "nowhere")
    done = CliRunner().invoke(main, ["judge", str(tmp_path), "--engine", "local", "--json"])
    told = [gap["why"] for gap in json.loads(done.stdout)["gaps"]]

    assert done.exit_code == Exit.UNKNOWN, done.output
    assert sum("named like a part and is no file" in why for why in told) == 6
    assert any("part-deep.ndjson at byte 0: a damaged line" in why for why in told)
    assert any("meta.json: cannot be read" in why for why in told)


def test_a_policy_of_very_many_knobs_is_refused() -> None:
    with pytest.raises(UnknownPolicyError, match="at most 4096 are allowed"):
        policy_named("strict" + "+tick=free" * 100_000)


@pytest.mark.parametrize("where", ["file/below", "dangling", "dangling/below", "/proc/nothing"])
@pytest.mark.parametrize("words", ["verify --report", "judge {history} --report"])
def test_a_report_that_cannot_be_written_is_an_error_before_the_work(
    words: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("dangling", "dangling.html"):
        (tmp_path / name).symlink_to(tmp_path / "no" / "where")
    monkeypatch.setattr("longpoll.verification.stages._law", lambda _page: pytest.fail("it worked first"))
    monkeypatch.setattr("longpoll.commands.judge.judge_paths", lambda *_, **_more: pytest.fail("it worked first"))
    target = str(tmp_path / where) + (".html" if "judge" in words and "--report" in words else "")
    done = CliRunner().invoke(main, [*words.format(history=tmp_path).split(), target])

    assert done.exit_code == Exit.USER, done.output
    assert re.fullmatch(r"longpoll: cannot write [^\n]+\n|Usage: [^E]+Error: [^\n]+\n", done.stderr)


@pytest.mark.parametrize(("given", "above_zero"), [("0", False), ("0.5", True), ("1e9", True), ("1000000000", False)])
def test_a_valid_amount_is_converted(given: str, above_zero: bool) -> None:
    assert Amount(above_zero=above_zero).convert(given, None, None) == float(given)


@pytest.mark.parametrize(
    ("given", "above_zero", "why"),
    [
        ("0", True, "range"),
        ("-0.1", False, "range"),
        (str(AMOUNT_MAX + 1), False, "range"),
        ("nan", False, "not a finite number"),
        ("-inf", False, "not a finite number"),
        ("1e999", False, "not a finite number"),
        ("soon", False, "not a valid"),
    ],
)
def test_an_invalid_amount_is_a_usage_error(given: str, above_zero: bool, why: str) -> None:
    with pytest.raises(click.BadParameter, match=why):
        Amount(above_zero=above_zero).convert(given, None, None)
