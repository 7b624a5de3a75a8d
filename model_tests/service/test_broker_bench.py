"""The comparison's own logic: figures, ratios and bars, and that a missed bar is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from model_tests.bench import broker_bench, leaving
from model_tests.bench.broker_figures import FIGURES, JAVA, OURS, Bar, Figure, Value, value_of
from model_tests.bench.broker_measures import Scale, measure
from model_tests.bench.broker_shown import missed
from model_tests.bench.broker_sides import Side, ours
from rich.progress import Progress

from longpoll_broker.testing.brokers import wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("bar", "ours_value", "met"),
    [
        (Bar("ratio", 0.6), 6.0, True),
        (Bar("ratio", 0.6), 6.1, False),
        (Bar("ratio", 1.0, "least"), 10.0, True),
        (Bar("ratio", 1.0, "least"), 9.9, False),
        (Bar("ours", 10.0), 10.0, True),
        (Bar("ours", 10.0), 10.1, False),
        (None, 1.0, None),
    ],
)
def test_a_bar_is_met_or_missed(bar: Bar | None, ours_value: float, met: bool | None) -> None:
    """On ours or on the ratio, at most or at least; what is missed is listed by name."""
    value = value_of(Figure("a figure", "ms", bar), {OURS: [ours_value], JAVA: [10.0]})

    assert (value.ratio, value.met) == (ours_value / 10, met)
    assert missed([value]) == (["a figure"] if met is False else [])


@pytest.mark.long
def test_the_whole_comparison_runs(tmp_path: Path) -> None:
    """Every figure of ours comes out, on a short scale; a broker that scans for deadlines misses the bar on them."""
    options = ("--knob", "expiry=scan")
    with ours(OURS, tmp_path / "a") as side, ours("other", tmp_path / "b", options) as other:
        values = measure([side], [other], Scale(0.4, 1), Progress(disable=True))
        faulty: Side = attrs.evolve(other, name=OURS)
        planted = measure([faulty], [], Scale(1, 1), Progress(disable=True), only={"overshoot"})

    assert len(values) == len(FIGURES)
    assert missed(planted) == [FIGURES["overshoot_p99"].name]


def test_the_command_tells_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the machine, the figures and what was missed; exit code 1 when something was."""
    value = value_of(FIGURES["overshoot_p99"], {OURS: [48.4]})
    asked: list[list[str] | None] = []

    def measured(*_told: Any, only: list[str] | None) -> list[Value]:
        asked.append(only)
        return [value]

    monkeypatch.setattr(broker_bench, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["broker_bench", "--json", "--without-java", "--only", "overshoot"])
    code = broker_bench.main()
    assert asked == [["overshoot"]]
    told = json.loads(capsys.readouterr().out)

    assert code == 1
    assert told["missed"] == ["answer after the deadline, p99"]
    assert told["figures"][0]["sides"] == {OURS: 48.4}
    assert told["machine"]["cores"]


STARTED: Final = """
import sys, tempfile, threading
from model_tests.bench import leaving

def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("ready", flush=True)
        threading.Event().wait()

leaving.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_bench_that_is_stopped_leaves_nothing(tmp_path: Path, number: int) -> None:
    """It says so in a sentence, and its exit code is neither success nor a missed bar."""
    command = [sys.executable, "-c", STARTED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        bench.send_signal(number)
        _out, told = bench.communicate()
    assert (bench.returncode, list(tmp_path.iterdir())) == (leaving.STOPPED, [])
    assert told == "stopped before everything was measured; what was made for it is removed\n"


def test_every_bench_can_be_stopped() -> None:
    scripts = [*(ROOT / "model_tests/bench").glob("*_bench.py"), ROOT / "model_tests/bench/__main__.py"]
    assert len(scripts) > 10
    assert [path.name for path in scripts if "\n    leaving.run(" not in path.read_text()] == []


@pytest.mark.long
@pytest.mark.parametrize("words", [["attacks"], ["broker"], ["opening"], ["polling"]], ids=str)
def test_a_part_of_the_benches_that_is_stopped_leaves_nothing(tmp_path: Path, words: list[str]) -> None:
    """`make bench` passes SIGTERM on: the script's stores are removed, and its brokers end."""
    command = [sys.executable, "-m", "model_tests.bench", *words]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as bench:
        wait_until(lambda: bench.poll() is not None or bool(list(tmp_path.glob("**/commitlog"))), 60.0)
        assert bench.poll() is None
        bench.terminate()
        code = bench.wait()
    assert (code, list(tmp_path.iterdir())) == (leaving.STOPPED, [])
    assert [words for words in _command_lines() if str(tmp_path) in words] == []


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace")
