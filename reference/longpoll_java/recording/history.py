"""Convert a trace and a load's observations to a history of steps: one source per queue.

A step lies between two lines of one thread, so its interval is certain: it began after the first line and ended before
the second.

Source: docs/history.md, "Histories of steps".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field, frozen

from longpoll_java.recording.load import CONSUMERS, HELD_SCANS, Seen
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Law, Meta, Source

UNKNOWN: Final = "-"
SCAN_TICKS: Final = 2
HOLD_TICKS: Final = SCAN_TICKS * HELD_SCANS
"""A pull's deadline in ticks: its hold in scan periods."""
PART: Final = "part-0.ndjson"
WORDS: Final = 7


@frozen
class Line:
    """One line of the trace (`trace_rules`)."""

    gate: str
    thread: str
    at_ns: int
    queue: int
    request: int
    suspends: bool | None


@frozen
class Step:
    """One step of the specification, in one queue."""

    name: str
    actors: str
    after_ns: int
    before_ns: int
    queue_offset: int = -1
    visible_end: int = -1
    offset: int = -1


def lines_of(trace: Path, topic: str) -> Iterator[Line]:
    """The lines of a trace about the topic, or about pulls. Raises OSError."""
    with trace.open(encoding="utf-8", errors="replace") as text:
        for words in map(str.split, text):
            if len(words) == WORDS and words[3] in {topic, UNKNOWN}:
                queue = -1 if words[4] == UNKNOWN else int(words[4])
                request = -1 if words[5] == UNKNOWN else int(words[5])
                suspends = {"true": True, "false": False}.get(words[6])
                yield Line(words[0], words[1], int(words[2]), queue, request, suspends)


@define(eq=False)
class _Maker:
    """Makes steps from lines. Invariant: `before` has each thread's last line, if a step may begin there."""

    seen: Seen
    steps: dict[int, list[Step]] = field(init=False)
    before: dict[str, Line] = field(factory=dict)
    dispatched: list[int] = field(init=False)
    """Queue -> messages dispatched so far."""
    dispatched_ns: dict[tuple[int, int], int] = field(factory=dict)
    """(queue, offset) -> when its dispatch began."""
    read_ns: dict[int, int] = field(factory=dict)
    """Opaque -> when its first read began."""

    def __attrs_post_init__(self) -> None:
        self.steps = {queue: [] for queue in range(self.seen.queues)}
        self.dispatched = [0] * self.seen.queues

    def take(self, line: Line) -> None:
        """Process a line, and record the step that it ends, if any."""
        if line.request >= 0 and line.request not in self.seen.pulls:
            return
        first = self.before.pop(line.thread, None)
        if first is not None:
            self._between(first, line)
        if line.gate not in {"held", "served", "done"}:
            self.before[line.thread] = line
        if line.gate == "read" and line.suspends:
            self.read_ns.setdefault(line.request, line.at_ns)

    def _between(self, first: Line, last: Line) -> None:
        match first.gate:
            case "dispatch" if last.gate == "notify":
                self._shown(first, last)
            case "notify" | "taken" | "each" | "keep":
                self._walked(first, last)
            case "read":
                name = "pull_read" if first.suspends else "run"
                self._of_pull(name, first, last, self._offset(first.request) if last.gate == "served" else -1)
            case "hold" if last.gate == "held":
                self._of_pull("hold", first, last)
            case _:
                pass

    def _offset(self, request: int) -> int:
        return self.seen.pulls[request].offset_next

    def _shown(self, first: Line, last: Line) -> None:
        offset = self.dispatched[first.queue]
        self.dispatched[first.queue] += 1
        self.dispatched_ns[first.queue, offset] = first.at_ns
        self._add(first.queue, Step("make_visible", "", first.at_ns, last.at_ns, visible_end=offset + 1))

    def _walked(self, first: Line, last: Line) -> None:
        kind = "scan" if first.thread.endswith("s") else "notify"
        if first.gate == "notify":
            self._add(first.queue, Step(f"{kind}_start", "", first.at_ns, last.at_ns))
        elif first.gate == "each":
            self._of_pull(f"{kind}_each", first, last)
        if last.gate == "done":
            self._add(last.queue, Step(f"{kind}_end", "", first.at_ns, last.at_ns))

    def _of_pull(self, name: str, first: Line, last: Line, offset: int = -1) -> None:
        pull = self.seen.pulls[first.request]
        self._add(pull.queue, Step(name, str(pull.slot), first.at_ns, last.at_ns, offset=offset))

    def _add(self, queue: int, step: Step) -> None:
        self.steps[queue].append(step)

    def from_outside(self) -> None:
        """Sends and pulls, as far as the broker is known to have received them."""
        for sent in self.seen.sends:
            shown_ns = self.dispatched_ns.get((sent.queue, sent.queue_offset))
            if sent.queue_offset >= 0:
                before_ns = min(sent.acknowledged_ns, shown_ns) if shown_ns is not None else sent.acknowledged_ns
                step = Step("append", "", sent.sent_ns, before_ns, queue_offset=sent.queue_offset)
                self._add(sent.queue, step)
        for opaque, pull in self.seen.pulls.items():
            if opaque in self.read_ns:
                step = Step("next_pull", str(pull.slot), pull.sent_ns, self.read_ns[opaque], offset=pull.offset)
                self._add(pull.queue, step)


def steps_of(lines: Iterable[Line], seen: Seen) -> dict[int, list[Step]]:
    """Queue -> its steps, unordered."""
    maker = _Maker(seen)
    for line in lines:
        maker.take(line)
    maker.from_outside()
    return maker.steps


def write_history(directory: Path, steps: dict[int, list[Step]], topic: str, policy: str) -> int:
    """Write a history of steps into a new directory; returns the number of steps. Raises OSError."""
    directory.mkdir(parents=True)
    encode = msgspec.json.Encoder().encode
    count = 0
    with (directory / PART).open("wb") as part:
        for queue, mine in sorted(steps.items()):
            for event in _events(f"queue-{queue}", topic, mine):
                part.write(encode(event) + b"\n")
            count += len(mine)
    sources = [Source(name=f"queue-{queue}", clock="monotonic") for queue in sorted(steps)]
    law = Law(requests=CONSUMERS, hold_ticks=HOLD_TICKS, scan_ticks=SCAN_TICKS, hidden=["tick"])
    meta = Meta(format_version=FORMAT_VERSION, sources=sources, policy=policy, law=law)
    (directory / META_FILE).write_bytes(encode(meta))
    return count


def _events(source: str, topic: str, steps: list[Step]) -> Iterator[Event]:
    ordered = sorted(steps, key=lambda step: (step.before_ns, step.after_ns))
    first_ns, last_ns = (ordered[0].after_ns, ordered[-1].before_ns) if ordered else (0, 0)
    first_ns = min([first_ns, *(step.after_ns for step in ordered)])
    yield Event(event="source_started", after_ns=first_ns, before_ns=first_ns, source=source, sequence=0)
    for number, step in enumerate(ordered, 1):
        yield Event(
            event=step.name, after_ns=step.after_ns, before_ns=step.before_ns, source=source, sequence=number,
            topic=topic, actors=step.actors, queue_offset=step.queue_offset,
            visible_end=step.visible_end, offset=step.offset,
        )  # fmt: skip
    yield Event(event="source_stopped", after_ns=last_ns, before_ns=last_ns, source=source, sequence=len(ordered) + 1)
