"""How far a follower lags: a history grows at a fixed rate, with occasional faults, under `judge --follow`.

    python -m model_tests.bench.follow_bench [--rates 20000 200000] [--seconds 60] [--fault-s 10]
    python -m model_tests.bench.follow_bench --engine spark --rates 20000

The history is simulated and written beforehand, which is not timed. Then Parquet parts of half a second each are moved
into the history when their last event is due. Every `--fault-s` seconds one answer is wrong. `longpoll judge --follow
--findings FILE` runs meanwhile. Its findings must be those of the whole history, judged once.

Prints the delay from each fault's due time until it is in the file, which includes the wait for a complete part, the
most memory of the follower's processes together, and their processor time an event. Exits with 1 if a fault is not
reported `--wait` seconds after the last event, or if half of them came more than 5 s late.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import evolve, frozen
from model_tests.bench import leaving
from model_tests.bench.served import family, processor_s, status_kib
from model_tests.support.judge.generate import Load
from model_tests.support.judge.parquet_parts import write_part
from model_tests.support.judge.tiles import Tile, moved, plan, simulated_tile, write_meta

from longpoll_judge.kernel.gathered import rows_where
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import PARQUET_SUFFIX

LOAD: Final = Load(queues=32, send_interval_ms=1.0, is_whole=True)
"""About 170,000 events per second of the broker's own clock, so as many are in memory as for a real one."""
TILE_S: Final = 2.0
"""How long one simulated piece lasts at most, which is repeated; one of them has a fault at most."""
PART_S: Final = 0.5
TICK_S: Final = 0.05
"""The interval of writes, and of checks for reported findings."""
BEHIND_MAX_S: Final = 5.0
"""The longest acceptable delay of half of the faults."""
CLOCK: Final = threading.Event()
"""Is never set: what waits for it waits for the time that it says."""
START_S: Final = 300.0
"""How long the follower may take to start; a JVM starts slowly on a busy machine."""
WRONG: Final = 1_000_000
"""Added to the next offset of an answer; beyond any log here."""
JUDGED: Final = re.compile(rb"up to event (\d+)")
REQUEST: Final = re.compile(rb'"request":"([^"]*)"')


@frozen
class Made:
    """A history that is still to be written."""

    parts: list[tuple[Path, float]]
    """Each part, and when its last event is due, s."""
    faults: dict[str, float]
    """Wrong answers: the request, and when it is due, s."""


def make(directory: Path, rate: int, seconds: float, fault_s: float) -> Made:
    """Simulate a history of so many events a second, cut into parts."""
    write_meta(directory)
    tile = simulated_tile(evolve(LOAD, events=round(rate * min(TILE_S, fault_s))))
    faulty, request = _with_fault(tile)
    count = max(round(rate * seconds / len(tile.table)), 1)
    every = max(round(fault_s * rate / len(tile.table)), 1)
    size = max(round(rate * PART_S), 1)
    made, done = Made([], {}), 0
    for place in plan([tile, faulty], count, changed=dict.fromkeys(range(every - 1, count, every), 1)):
        table = moved((tile, faulty)[place.tile], place).sort_by("sequence")
        if place.tile:
            name = f"{place.number}.{request}"
            row = max(at for at, each in enumerate(table["request"].to_pylist()) if each == name)
            made.faults[name] = (done + row) / rate
        for first in range(0, len(table), size):
            events = table.slice(first, size)
            path = directory / f"made-{done + first:012}{PARQUET_SUFFIX}"
            write_part(path, [events])
            made.parts.append((path, (done + first + len(events)) / rate))
        done += len(table)
    return made


def _with_fault(tile: Tile) -> tuple[Tile, str]:
    """The tile with a wrong answer in its middle, and that request."""
    answers = np.flatnonzero(rows_where(tile.table, "answer_sent"))
    row = int(answers[len(answers) // 2])
    told = tile.table["offset_next"].to_numpy().copy()
    told[row] += WRONG
    at = tile.table.schema.get_field_index("offset_next")
    table = tile.table.set_column(at, "offset_next", pa.array(told, pa.int64()))
    return evolve(tile, table=table), str(tile.table["request"][row])


def grow(made: Made, history: Path, begun_s: float, look: Callable[[], None]) -> None:
    """Add each part when it is due, and look in between."""
    for number, (path, due_s) in enumerate(made.parts):
        while (left_s := begun_s + due_s - time.monotonic()) > 0:
            CLOCK.wait(min(left_s, TICK_S))
            look()
        path.rename(history / f"part-{number:06}{PARQUET_SUFFIX}")


@contextmanager
def following(history: Path, findings: Path, said: Path, engine: str) -> Iterator[int]:
    """The process id of the command that follows, once it has judged what there is, which is nothing."""
    call = [sys.executable, "-m", "longpoll", "judge", str(history), "--engine", engine, "--follow"]
    with said.open("ab") as errors:
        process = subprocess.Popen([*call, "--findings", str(findings)], stdout=errors, stderr=errors)
    try:
        end_s = time.monotonic() + START_S
        while b"up to event" not in said.read_bytes():
            if process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"the follower did not begin: {said.read_text()}")
            CLOCK.wait(TICK_S)
        yield process.pid
    finally:
        # Not asked for the verdict on the whole, which would judge all of it once more.
        for pid in family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def used_by(pid: int, look: Callable[[int], float]) -> float:
    """The sum over a process and all that it started."""
    used = 0.0
    for each in family(pid):
        with suppress(OSError, AssertionError):  # it has ended meanwhile
            used += look(each)
    return used


def measure(made: Made, history: Path, options: argparse.Namespace) -> str:
    """Follow one history while it grows, and print what was measured; what is not as it should be, or nothing."""
    findings, said = history.parent / "found.ndjson", history.parent / "said"
    told: dict[str, float] = {}
    with following(history, findings, said, options.engine) as pid:
        begun_s, before_s = time.monotonic(), used_by(pid, processor_s)

        def look() -> None:
            now_s = time.monotonic() - begun_s
            content = findings.read_bytes() if findings.exists() else b""
            for line in content[: content.rfind(b"\n") + 1].splitlines():
                if found := REQUEST.search(line):
                    told.setdefault(found[1].decode(), now_s)

        grow(made, history, begun_s, look)
        end_s = time.monotonic() + options.wait
        while not made.faults.keys() <= told.keys() and time.monotonic() < end_s:
            look()
            CLOCK.wait(TICK_S)
        used_s = used_by(pid, processor_s) - before_s
        memory_kib = used_by(pid, lambda each: status_kib(each, "VmHWM"))
    count = int((JUDGED.findall(said.read_bytes()) or [0])[-1])
    behind_s = [told[name] - due_s for name, due_s in made.faults.items() if name in told]
    p50_s = statistics.median(behind_s or [0.0])
    print(  # noqa: T201
        f"{len(behind_s)} of {len(made.faults)} faults told, p50 {p50_s:.2f} s behind, "
        f"max {max(behind_s or [0.0]):.2f} s; memory at most {memory_kib / 1024:.0f} MiB; {count:,} events judged, "
        f"{used_s / max(count, 1) * 1e6:.2f} us of processor time each, load of the machine {os.getloadavg()[0]:.1f}"
    )
    if not behind_s or len(behind_s) < len(made.faults):
        return "a fault was not told, or none was injected: give more --seconds"
    if p50_s > BEHIND_MAX_S:
        return f"half of the faults were told after more than {BEHIND_MAX_S:g} s"
    lines = (msgspec.json.decode(line) for line in findings.read_bytes().splitlines())
    followed = {(line["clause"], line["request"]) for line in lines if line.get("verdict") == "violated"}
    whole = judge([history], engine="local").findings
    differ = followed ^ {(one.clause, one.request) for one in whole if one.verdict == "violated"}
    return f"findings differ: {sorted(differ)[:3]}" if differ else ""


def main(arguments: Sequence[str]) -> int:
    """Simulate and measure at each rate; 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(description="How far behind a follower is.")
    parser.add_argument("--rates", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--fault-s", type=float, default=10.0)
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    options = parser.parse_args(arguments)
    wrong = []
    for rate in options.rates:
        with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
            made = make(Path(directory) / "made", rate, options.seconds, options.fault_s)
            history = Path(directory) / "history"
            write_meta(history)
            wrong.append(measure(made, history, options))
            print(f"{rate:>9,} events/s   {wrong[-1] or 'as it should be'}", flush=True)  # noqa: T201
    return int(any(wrong))


if __name__ == "__main__":
    leaving.run(lambda: main(sys.argv[1:]))
