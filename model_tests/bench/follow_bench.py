"""How far a follower lags: a history grows at a fixed rate, with occasional faults, under `judge --follow`.

    python -m model_tests.bench.follow_bench [--rates 20000 200000] [--seconds 60] [--fault-s 10]
    python -m model_tests.bench.follow_bench --engine spark --rates 20000

The history is simulated and written beforehand, which is not timed. Then Parquet parts of half a second each
(`--part-s`) are moved into the history when their last event is due. Every `--fault-s` seconds one answer is wrong.
`longpoll judge --follow --findings FILE` runs meanwhile. Its findings must be those of the whole history, judged once.

Prints the delay from each fault's due time until it is in the file, the follower's peak memory, and its processor time
an event, which includes reading, judging and reporting. The delay includes the wait for a complete part. Exits with 1
if a fault is not reported `--wait` seconds after the last event, or if half of them came more than 5 s late.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import define, evolve, frozen
from model_tests.bench import leaving
from model_tests.bench.served import family, processor_s, status_kib
from model_tests.support.judge.tiles import Tile, moved, plan, simulated_tile, write_meta

from longpoll_judge.generate import Load
from longpoll_judge.read.parquet import write_part
from longpoll_judge.rules.cross_queue import rows_where
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import META_FILE, PARQUET_SUFFIX

LOAD: Final = Load(queues=32, send_interval_ms=1.0, is_whole=True)
"""About 170,000 events per second of the broker's own clock, so as many are in memory as for a real one."""
TILE_S: Final = 2.0
"""How long one simulated piece lasts at most, which is repeated; one of them has a fault at most."""
TICK_S: Final = 0.05
"""The interval of writes, and of checks for reported findings."""
BEHIND_MAX_S: Final = 5.0
"""The longest acceptable delay of half of the faults."""
CLOCK: Final = threading.Event()
"""Is never set: what waits for it waits for the time that it says."""
KIB: Final = 1024
START_S: Final = 300.0
"""How long the follower may take to start; a JVM starts slowly on a busy machine."""
JUDGED: Final = re.compile(rb"up to event (\d+)")
WRONG: Final = 1_000_000
"""Added to the next offset of an answer; beyond any log here."""
REQUEST: Final = re.compile(rb'"request":"([^"]*)"')


@define
class Planted:
    """A wrong answer: when it is due, after how many events, and when it was reported."""

    request: str
    events: int
    due_s: float
    told_s: float | None = None


@frozen
class Piece:
    """A part that is added to a history when the last of its events is due."""

    path: Path
    events: int
    due_s: float


@frozen
class Shape:
    """The shape of a history."""

    rate: int
    """Events in a second."""
    seconds: float
    fault_s: float
    part_s: float


@frozen
class Made:
    """A history that is still to be written: its pieces in their order, and what is wrong in it."""

    pieces: list[Piece]
    planted: list[Planted]


def make(directory: Path, shape: Shape) -> Made:
    """Simulate a history, cut into pieces."""
    write_meta(directory)
    tile = simulated_tile(evolve(LOAD, events=round(shape.rate * min(TILE_S, shape.fault_s))))
    faulty, request = _with_fault(tile)
    length = len(tile.table)
    count = max(round(shape.rate * shape.seconds / length), 1)
    every = max(round(shape.fault_s * shape.rate / length), 1)
    changed = dict.fromkeys(range(every - 1, count, every), 1)
    pieces: list[Piece] = []
    planted: list[Planted] = []
    done = 0
    for place in plan([tile, faulty], count, changed=changed):
        table = moved((tile, faulty)[place.tile], place).sort_by("sequence")
        if place.tile:
            row = int(np.flatnonzero(_of_request(table, f"{place.number}.{request}"))[-1])
            planted.append(Planted(f"{place.number}.{request}", done + row, (done + row) / shape.rate))
        pieces += _cut(directory, table, done, shape)
        done += len(table)
    return Made(pieces, planted)


def _with_fault(tile: Tile) -> tuple[Tile, str]:
    """The tile with a wrong answer in its middle, and that request."""
    answers = np.flatnonzero(rows_where(tile.table, "answer_sent"))
    row = int(answers[len(answers) // 2])
    told = tile.table["offset_next"].to_numpy().copy()
    told[row] += WRONG
    at = tile.table.schema.get_field_index("offset_next")
    table = tile.table.set_column(at, "offset_next", pa.array(told, pa.int64()))
    return evolve(tile, table=table), str(tile.table["request"][row])


def _of_request(table: pa.Table, request: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    column = table["request"].unify_dictionaries().combine_chunks()
    chunk = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = chunk.indices.to_numpy() == chunk.dictionary.to_pylist().index(
        request
    )
    return found


def _cut(directory: Path, table: pa.Table, done: int, shape: Shape) -> Iterator[Piece]:
    """The parts of some events, written to files that no history has yet."""
    size = max(round(shape.rate * shape.part_s), 1)
    for first in range(0, len(table), size):
        events = table.slice(first, size)
        path = directory / f"made-{done + first:012}{PARQUET_SUFFIX}"
        write_part(path, [events])
        yield Piece(path, len(events), (done + first + len(events)) / shape.rate)


def grow(made: Made, history: Path, begun_s: float, look: Callable[[], None]) -> None:
    """Add each part when it is due, and look in between."""
    for number, piece in enumerate(made.pieces):
        while (left_s := begun_s + piece.due_s - time.monotonic()) > 0:
            CLOCK.wait(min(left_s, TICK_S))
            look()
        piece.path.rename(history / f"part-{number:06}{PARQUET_SUFFIX}")


@define(eq=False)
class Follower:
    """The command that follows, with the processes that it starts."""

    process: subprocess.Popen[bytes]

    def processor_s(self) -> float:
        """The processor time of all processes so far."""
        return sum(self._each(processor_s))

    def memory(self) -> int:
        """The memory of all processes, in bytes."""
        return KIB * int(sum(self._each(partial(status_kib, name="VmRSS"))))

    def _each(self, look: Callable[[int], float]) -> Iterator[float]:
        for pid in family(self.process.pid):
            with suppress(OSError, AssertionError):  # it has ended meanwhile
                yield look(pid)

    def kill(self) -> None:
        """Kill all processes."""
        for pid in family(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@define
class Watch:
    """Looks at the file of findings, and at the process that writes it."""

    findings: Path
    follower: Follower
    planted: list[Planted]
    begun_s: float
    memory: int = 0
    """The most that the processes held, in bytes."""
    _at: int = 0

    def look(self) -> None:
        """Record the faults reported so far, and the memory in use."""
        now_s = time.monotonic() - self.begun_s
        self.memory = max(self.memory, self.follower.memory())
        if not self.findings.exists():
            return
        with self.findings.open("rb") as file:
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        told = {found[1].decode() for line in whole.splitlines() if (found := REQUEST.search(line))}
        for each in self.planted:
            if each.told_s is None and each.request in told:
                each.told_s = now_s


def measure(made: Made, source: Path, options: argparse.Namespace, rate: int) -> bool:
    """Follow one history while it grows, and print what was measured; whether it is as it should be."""
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-", dir=source.parent) as directory:
        history, findings = Path(directory) / "history", Path(directory) / "found.ndjson"
        history.mkdir()
        shutil.copy(source / META_FILE, history)
        told = ["--findings", str(findings)]
        call = [sys.executable, "-m", "longpoll", "judge", str(history), "--engine", options.engine, "--follow", *told]
        said = Path(directory) / "said"
        with said.open("ab") as errors:
            follower = Follower(subprocess.Popen(call, stdout=errors, stderr=errors))
        try:
            await_start(follower.process, said)
            begun_s, before_s = time.monotonic(), follower.processor_s()
            watch = Watch(findings, follower, made.planted, begun_s)
            grow(made, history, begun_s, watch.look)
            end_s = time.monotonic() + options.wait
            while any(each.told_s is None for each in made.planted) and time.monotonic() < end_s:
                watch.look()
                CLOCK.wait(TICK_S)
            used_s, judged = follower.processor_s() - before_s, judged_events(said)
        finally:
            # Not asked for the verdict on the whole, which would judge all of it once more.
            follower.kill()
        differ = differing(findings, history)
    show(made, rate, watch)
    cost = f"{judged:,} events judged, {used_s / max(judged, 1) * 1e6:.2f} us of processor time each"
    print(f"{rate:>9,} events/s   {cost}, load of the machine {os.getloadavg()[0]:.1f}", flush=True)  # noqa: T201
    wrong = shortcoming(made.planted) or differ
    print(f"{rate:>9,} events/s   {wrong or f'all told, half of them within {BEHIND_MAX_S:.0f} s'}", flush=True)  # noqa: T201
    return not wrong


def differing(findings: Path, history: Path) -> str:
    """How the findings that were reported differ from those of the whole; empty if they do not."""
    lines = (msgspec.json.decode(line) for line in findings.read_bytes().splitlines())
    told = {(line["clause"], line["request"]) for line in lines if line.get("verdict") == "violated"}
    whole = judge([history], engine="local").findings
    expected = {(one.clause, one.request) for one in whole if one.verdict == "violated"}
    return "" if told == expected else f"NOT AS IT SHOULD BE: findings differ: {sorted(told ^ expected)[:3]}"


def shortcoming(planted: Sequence[Planted]) -> str:
    """The shortcomings of the result; empty if there are none."""
    behind = [each.told_s - each.due_s for each in planted if each.told_s is not None]
    if len(behind) < len(planted):
        return f"NOT AS IT SHOULD BE: {len(planted) - len(behind)} of {len(planted)} faults were not told"
    if not behind:
        return "NOT AS IT SHOULD BE: no fault was planted; give more --seconds"
    p50_s = statistics.median(behind)
    return (
        f"NOT AS IT SHOULD BE: {p50_s:.2f} s behind at p50, over {BEHIND_MAX_S:.0f} s" if p50_s > BEHIND_MAX_S else ""
    )


def await_start(follower: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until the follower has judged what there is, which is nothing."""
    end_s = time.monotonic() + START_S
    while b"up to event" not in said.read_bytes():
        if follower.poll() is not None or time.monotonic() > end_s:
            raise SystemExit(f"the follower did not begin: {said.read_text()}")
        CLOCK.wait(TICK_S)


def judged_events(said: Path) -> int:
    """Up to which event the follower has judged, as it says last."""
    found = JUDGED.findall(said.read_bytes())
    return int(found[-1]) if found else 0


def show(made: Made, rate: int, watch: Watch) -> None:
    """Print one line a fault, and those that sum up."""
    behind: list[float] = []
    for each in made.planted:
        told = "not told"
        if each.told_s is not None:
            behind.append(each.told_s - each.due_s)
            told = f"{behind[-1]:8.2f} s behind"
        print(f"{rate:>9,} events/s   {each.events:>12,} events   {told}", flush=True)  # noqa: T201
    count = sum(piece.events for piece in made.pieces)
    lines = [f"{count:,} events in {made.pieces[-1].due_s:.0f} s"]
    if behind:
        lines.append(f"{len(behind)} of {len(made.planted)} faults told, p50 {statistics.median(behind):.2f} s behind")
        lines[-1] += f", max {max(behind):.2f} s"
    lines.append(f"memory at most {watch.memory / KIB**2:.0f} MiB")
    for line in lines:
        print(f"{rate:>9,} events/s   {line}", flush=True)  # noqa: T201


def main(arguments: Sequence[str]) -> int:
    """Simulate and measure at each rate; 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(description="How far behind a follower is.")
    parser.add_argument("--rates", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--fault-s", type=float, default=10.0)
    parser.add_argument("--part-s", type=float, default=0.5)
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    options = parser.parse_args(arguments)
    are_right: list[bool] = []
    for rate in options.rates:
        with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
            source = Path(directory) / "made"
            shape = Shape(rate, options.seconds, options.fault_s, options.part_s)
            made = make(source, shape)
            are_right.append(measure(made, source, options, rate))
    return 0 if all(are_right) else 1


if __name__ == "__main__":
    leaving.run(lambda: main(sys.argv[1:]))
