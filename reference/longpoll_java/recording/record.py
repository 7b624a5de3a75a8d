"""Run a Java broker under a load, and record its own steps as a history of steps.

Rules: `trace_rules`. Load: `load`. Meaning of lines: `history`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from attrs import frozen

from longpoll_java.breakpoints import Breakpoints
from longpoll_java.broker import JavaBroker
from longpoll_java.byteman_rules import SCAN_MS, scanning_each
from longpoll_java.jars import Jars
from longpoll_java.recording.history import lines_of, steps_of, write_history
from longpoll_java.recording.load import HELD_SCANS, Load, Seen
from longpoll_java.recording.trace_rules import FILE_PROPERTY, OPTIONS, tracing_of
from longpoll_spec.render.java_breakpoints import presets_of

TOPIC: Final = "steps"
NO_RULES: Final = "# no rules\n"


@frozen
class Recorded:
    """The result of a recorded load."""

    policy: str
    steps: int
    messages: int
    pulls: int
    seconds: float
    send_us: float
    """Median time from a send to its acknowledgement."""


@frozen
class Size:
    """The size of a load."""

    queues: int
    """Each becomes a source of the history, with two consumers."""
    messages: int
    """To all queues together."""
    seed: int
    """The seed of the pauses between sends."""
    rest_s: float
    """How long nothing is sent after half of the messages, seconds."""
    delayed_percent: int = 0
    """The percentage of a thread's arrivals at a gate that wait some milliseconds."""
    scan_ms: int = SCAN_MS
    """The scan's period; pulls are held for three times that."""


def record(jars: Jars, directory: Path, size: Size, on_progress: Callable[[int], None]) -> Recorded:
    """Send messages to a newly started broker, and write its steps into a new directory.

    Args:
        jars: The broker's jars.
        directory: The directory of the history.
        size: The size of the load.
        on_progress: Gets the number of acknowledged messages.

    Raises JavaUnavailableError, and OSError.
    """
    with tempfile.TemporaryDirectory(prefix="longpoll-inside-") as folder:
        trace = Path(folder) / "trace.txt"
        options = (*OPTIONS, f"-D{FILE_PROPERTY}={trace}")
        seen, seconds = loaded(jars, _script(jars.version, size), options, size, on_progress)
        policy = presets_of(jars.version)[0]
        count = write_history(directory, steps_of(lines_of(trace, TOPIC), seen), TOPIC, policy)
    return Recorded(policy, count, size.messages, len(seen.pulls), seconds, send_us(seen))


def _script(version: str, size: Size) -> str:
    traced = tracing_of(version, delayed_percent=size.delayed_percent, seed=size.seed)
    return traced + (scanning_each(size.scan_ms) if size.scan_ms != SCAN_MS else "")


def loaded(
    jars: Jars, script: str, options: tuple[str, ...], size: Size, on_progress: Callable[[int], None]
) -> tuple[Seen, float]:
    """A load's observations of a broker under these rules, and its seconds."""
    with Breakpoints() as stage, JavaBroker(jars, stage, script=script, options=options) as broker:
        begun_s = time.monotonic()
        hold_ms = HELD_SCANS * size.scan_ms
        load = Load(broker.address, TOPIC, size.queues, size.messages, size.seed, size.rest_s, hold_ms, on_progress)
        seen = load.run()
        return seen, time.monotonic() - begun_s


def send_us(seen: Seen) -> float:
    """Median time from a send to its acknowledgement, microseconds."""
    return median((sent.acknowledged_ns - sent.sent_ns) / 1e3 for sent in seen.sends if sent.queue_offset >= 0)
