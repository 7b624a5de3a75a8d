"""The cost of recording a Java broker's steps: the same load with and without the rules, alternately.

    python -m model_tests.bench.java_steps_bench [MESSAGES]

One queue with two consumers. It needs a Java runtime and Maven.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path
from statistics import median

from model_tests.bench import leaving

from longpoll_java.byteman_rules import FILE_PROPERTY, OPTIONS, tracing_of
from longpoll_java.jars import VERSIONS, resolved
from longpoll_java.recording import NO_RULES, TOPIC, Seen, Size, lines_of, loaded, send_us, steps_of

MESSAGES = 3_000
TURNS = 3


def wake_us(seen: Seen) -> float:
    """Median time from a send to the answer of a pull that waited for its message, microseconds."""
    sent_ns = {sent.queue_offset: sent.sent_ns for sent in seen.sends}
    waited = [
        (pull.answered_ns - sent_ns[pull.offset]) / 1e3
        for pull in seen.pulls.values()
        if pull.offset in sent_ns and pull.sent_ns < sent_ns[pull.offset] < pull.answered_ns
    ]
    return median(waited)


def say(line: str) -> None:
    """A line of the figures."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print a row for each version: medians with and without, and the difference for each step."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES
    say(f"{platform.machine()}, Python {platform.python_version()}; {messages} messages, best median of {TURNS} turns")
    say("version  send us: plain  recorded   wake us: plain  recorded   steps  us a step of a send and its wakes")
    for version in VERSIONS:
        jars = resolved(version)
        plain: list[tuple[float, float]] = []
        recorded: list[tuple[float, float]] = []
        steps = 0
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(TURNS):
                trace = Path(folder) / f"trace-{turn}.txt"
                options = (*OPTIONS, f"-D{FILE_PROPERTY}={trace}")
                for script, words, into in ((NO_RULES, (), plain), (tracing_of(version), options, recorded)):
                    seen, _ = loaded(jars, script, words, Size(1, messages, turn, 0), lambda _count: None)
                    into.append((send_us(seen), wake_us(seen)))
                steps = sum(map(len, steps_of(lines_of(trace, TOPIC), seen).values()))
        send, wake = ([min(row[place] for row in rows) for rows in (plain, recorded)] for place in (0, 1))
        each = steps / messages
        cost = (wake[1] - wake[0]) / each
        say(f"{version:7}  {send[0]:14.0f}  {send[1]:8.0f}   {wake[0]:14.0f}  {wake[1]:8.0f}   {steps:5}  {cost:.1f}")


if __name__ == "__main__":
    leaving.run(main)
