"""How far behind a follower is: a history grows at a fixed rate, with a fault now and then, beside `judge --follow`.

    python model_tests/bench/follow_bench.py [--rates 20000 200000] [--seconds 60] [--fault-s 10]

One process writes simulated events as lines at the rate, and in every `--fault-s` seconds makes one answer wrong;
another runs `longpoll judge --follow --engine local --findings FILE`. Prints a line a fault: how many events there were
when its line was written, how long after that its finding was in the file, and how much memory the follower took then,
and at the end how often the writer was late itself. Faults that were not told `--wait` seconds after the last event are
named as missing. Making the events beforehand is not timed: 10^6 take 250 MB of disk and half a minute.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from attrs import define, field

from longpoll_judge.read.schema import event_dict
from longpoll_judge.testing.generate import Load
from longpoll_judge.testing.tiles import write_large
from longpoll_spec.history import META_FILE

LINES: Final = "lines"
"""The file of all lines, which are written again at each rate."""
TICK_S: Final = 0.05
"""How often lines are written."""
CLOCK: Final = threading.Event()
"""Is never set: what waits for it waits for the time that it says."""
KIB: Final = 1024
NEXT: Final = re.compile(rb'"offset_next":(\d+)')
REQUEST: Final = re.compile(rb'"request":"([^"]*)"')
WRONG: Final = 1_000_000
"""What is added to the next offset of an answer, and is past any log here."""


@define
class Planted:
    """A wrong answer: when it was written, after how many events, and when it was told."""

    request: str
    events: int
    written_s: float
    told_s: float | None = None
    resident_bytes: int = 0


@define
class Writer:
    """Writes lines at a rate. Invariant: `events` lines are in the history."""

    history: Path
    rate: int
    fault_s: float
    events: int = 0
    late_s: float = 0.0
    planted: list[Planted] = field(factory=list)

    def write(self, lines: Iterator[bytes], seconds: float, look: float, watch: Watch) -> None:
        """Write for so long, and let `watch` look every `look` seconds."""
        begun_s = time.monotonic()
        fault_s, looked_s = self.fault_s, 0.0
        with (self.history / "part-0.ndjson").open("ab", buffering=0) as part:
            while (passed_s := time.monotonic() - begun_s) < seconds:
                batch = [line for _number, line in zip(range(int(passed_s * self.rate) - self.events), lines)]  # noqa: B905 - as many as there are
                if passed_s >= fault_s and self._plant(batch):
                    fault_s += self.fault_s
                part.write(b"".join(batch))
                self.events += len(batch)
                for each in self.planted:
                    each.written_s = each.written_s or time.monotonic()
                self.late_s = max(self.late_s, time.monotonic() - begun_s - passed_s)
                if passed_s - looked_s >= look:
                    watch.look(self.planted)
                    looked_s = passed_s
                CLOCK.wait(max(TICK_S - (time.monotonic() - begun_s - passed_s), 0))

    def _plant(self, batch: list[bytes]) -> bool:
        """Make the first answer among the lines wrong; false where there is none."""
        for number, line in enumerate(batch):
            told = NEXT.search(line)
            request = REQUEST.search(line)
            if b'"answer_sent"' in line and told and request:
                batch[number] = line[: told.start(1)] + str(int(told[1]) + WRONG).encode() + line[told.end(1) :]
                self.planted.append(Planted(request[1].decode(), self.events + number, 0.0))
                return True
        return False


@define
class Watch:
    """Looks at the file of findings, and at the memory of the process that writes it."""

    findings: Path
    pid: int
    _at: int = 0

    def look(self, planted: Sequence[Planted]) -> None:
        """Note which of the faults are told now."""
        if not self.findings.exists():
            return
        with self.findings.open("rb") as file:
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        told = {msgspec.json.decode(line)["request"] for line in whole.splitlines()}
        for each in planted:
            if each.request in told:
                each.told_s, each.resident_bytes = time.monotonic(), resident_bytes(self.pid)


def resident_bytes(pid: int) -> int:
    """The memory that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * KIB


def write_lines(packed: Path, text: Path) -> None:
    """Write a history as lines in the order in which its observer numbered them, as recorders do."""
    encode = msgspec.json.Encoder().encode
    with text.open("wb") as file:
        for part in sorted(packed.glob("part-*")):
            table = pq.ParquetFile(part).read()
            for row in table.sort_by("sequence").to_pylist():
                file.write(encode(event_dict(row)) + b"\n")


def measure(source: Path, rate: int, seconds: float, fault_s: float, wait_s: float) -> None:
    """Follow one history while it grows, and print what was measured."""
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
        history, findings = Path(directory) / "history", Path(directory) / "found.ndjson"
        history.mkdir()
        shutil.copy(source / META_FILE, history)
        command = ["judge", str(history), "--engine", "local", "--follow", "--findings"]
        call = [sys.executable, "-m", "longpoll", *command, str(findings)]
        with subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as follower:
            watch, writer = Watch(findings, follower.pid), Writer(history, rate, fault_s)
            with (source / LINES).open("rb") as lines:
                writer.write(lines, seconds, 0.2, watch)
            end_s = time.monotonic() + wait_s
            while any(each.told_s is None for each in writer.planted) and time.monotonic() < end_s:
                watch.look(writer.planted)
                CLOCK.wait(TICK_S)
            follower.send_signal(signal.SIGINT)
    show(rate, seconds, writer)


def show(rate: int, seconds: float, writer: Writer) -> None:
    """Print one line a fault, and one of the writer."""
    for each in writer.planted:
        behind = "not told" if each.told_s is None else f"{each.told_s - each.written_s:8.2f} s behind"
        memory = f"{each.resident_bytes / KIB**2:8.0f} MiB"
        print(f"{rate:>9,} events/s   {each.events:>12,} events   {behind}   {memory}", flush=True)  # noqa: T201
    text = f"{rate:>9,} events/s   {writer.events / seconds:,.0f} were written, {writer.late_s:.2f} s late at most"
    print(text, flush=True)  # noqa: T201


def main(arguments: Sequence[str]) -> None:
    """Simulate once, then measure at each rate."""
    parser = argparse.ArgumentParser(description="How far behind a follower is.")
    parser.add_argument("--rates", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--fault-s", type=float, default=10.0)
    parser.add_argument("--wait", type=float, default=120.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
        packed = Path(directory) / "packed"
        write_large(packed, Load(events=round(max(options.rates) * options.seconds), queues=16))
        write_lines(packed, packed / LINES)
        for rate in options.rates:
            measure(packed, rate, options.seconds, options.fault_s, options.wait)


if __name__ == "__main__":
    main(sys.argv[1:])
