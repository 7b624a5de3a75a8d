"""Helpers of the judge's tests: write histories, split them, and follow them piece by piece."""

from __future__ import annotations

import os
import random
import re
import select
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pytest
from attrs import frozen
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.recording import Recording, change, write

from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.run.follow import follow
from longpoll_judge.run.pipeline import judge
from longpoll_judge.run.sliding import Limits
from longpoll_spec.history import META_FILE, Event, Meta

PAGE: Final = Path(__file__).parents[3] / "docs" / "judge.md"
RECORDINGS: Final = Path(__file__).parents[2] / "judge" / "recordings"
"""The directory of short recordings of real brokers, which `longpoll observe` made."""
ENCODE: Final = msgspec.json.Encoder().encode
LIMITS: Final = Limits(100.0, 50.0)


def shown_on_page(name: str) -> tuple[str, str]:
    """Returns a program of docs/judge.md by name, and the output that the page shows below the program."""
    found = re.search(rf"```python {name}\n(.*?)```\n.*?```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None, name
    return found[1], found[2]


def on_spark(test: Any) -> Any:
    """Mark a test that uses the shared Spark session."""
    return pytest.mark.spark(pytest.mark.xdist_group("spark")(test))


# -- histories as files ------------------------------------------------------------------------------------------------


def lines_of(events: Iterable[Event]) -> bytes:
    return b"".join(ENCODE(event) + b"\n" for event in events)


def simulated(seed: int, events: int = 1_200) -> Recording:
    """Returns the recorded history of a simulated correct broker."""
    return Recording(list(simulate(Load(events=events, seed=seed, timeout_ms=60))), simulated_meta())


def numbered(events: Iterable[Event]) -> list[Event]:
    return [change(event, sequence=number) for number, event in enumerate(events)]


def written(recording: Recording, directory: Path) -> Path:
    """Write a history as one part; returns its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if recording.meta is not None:
        (directory / META_FILE).write_bytes(ENCODE(recording.meta))
    (directory / "part-0.ndjson").write_bytes(lines_of(recording.events) + recording.damaged_tail)
    return directory


def judged(directory: Path, events: Iterable[Event], meta: Meta | None = None) -> Result:
    """Write the events and judge them without Spark. The default for `meta` is that of the simulated broker."""
    write(directory, events, simulated_meta() if meta is None else meta)
    return judge([directory], engine="local")


def without_time(result: Result) -> Result:
    """Returns the result without the fields whose values differ between runs."""
    return msgspec.structs.replace(result, seconds=0.0, start_seconds=0.0, engine="")


def violated(result: Result) -> list[tuple[str, str]]:
    """Returns the clause and the reason of each violation that is certain."""
    return [(one.clause, one.why) for one in result.findings if one.verdict == "violated"]


def gap_kinds(result: Result) -> set[str]:
    """Returns the kinds of missing evidence that a result reports."""
    return {gap["kind"] for gap in result.gaps}


# -- results while a history grows -------------------------------------------------------------------------------------


def certain(result: Result) -> dict[str, Finding]:
    """Maps the id of each certain violation to its finding."""
    return {finding.id: finding for finding in result.findings if finding.verdict == "violated"}


def are_found(told: dict[str, Finding], whole: Result) -> bool:
    """Whether `whole` contains all findings in `told`, possibly as consequences of other findings."""
    known = certain(whole)
    parts = {(part.clause, part.topic, part.queue) for one in known.values() for part in one.follows}
    return all(name in known or (one.clause, one.topic, one.queue) in parts for name, one in told.items())


def shown(result: Result) -> object:
    """Returns everything in a result except its times and its evidence."""
    findings = sorted((one.id, one.clause, one.verdict, one.why, one.request) for one in result.findings)
    numbers = (result.judged, result.shares, result.latency, result.rates, result.requests, result.queues)
    return result.verdict, findings, sorted(map(str, result.gaps)), result.findings_left_out, numbers


@frozen
class Followed:
    """The results of judging a history that grows piece by piece."""

    results: list[Result]
    """The results after each piece, and at last the result of judging the whole history at once."""

    @property
    def last(self) -> Result:
        return self.results[-2]

    @property
    def whole(self) -> Result:
        return self.results[-1]

    @property
    def told(self) -> dict[str, Finding]:
        """Maps the id of each finding that was certain at any time before the end to the finding."""
        return {name: finding for result in self.results[:-1] for name, finding in certain(result).items()}


def follow_pieces(
    directory: Path,
    pieces: int,
    seed: int | None = None,
    *,
    whole_events: int = 0,
    limits: Mapping[str, float] = MappingProxyType({"wake_ms": LIMITS.wake_ms, "late_ms": LIMITS.late_ms}),
) -> Followed:
    """Follow a history whose only part grows by equal pieces or, with a seed, by random pieces.

    With the default `whole_events`, each round judges only the new events, as for a long history.
    """
    (part,) = directory.glob("part-*.ndjson")
    lines, dice = part.read_bytes().splitlines(keepends=True), random.Random(seed)
    size = max(-(-len(lines) // pieces), 1)
    equal, places = range(size, len(lines), size), range(1, len(lines))
    cuts = equal if seed is None else sorted(dice.sample(places, min(pieces - 1, len(places))))
    waiting = [b"".join(lines[start:end]) for start, end in pairwise([0, *cuts, len(lines)])]
    part.write_bytes(waiting.pop(0))
    results = list[Result]()
    # The last piece is judged one round later, because each round reads a part up to its size in the previous round.
    looks = iter([False] * (len(waiting) + 3))

    def grow(_seconds: float) -> bool:
        if waiting:
            with part.open("ab") as file:
                file.write(waiting.pop(0))
        return next(looks, True)

    whole = follow(
        [directory],
        engine="local",
        master=None,
        wake_ms=limits["wake_ms"],
        late_ms=limits["late_ms"],
        tell=results.append,
        stops=grow,
        whole_events=whole_events,
    )
    return Followed([*results, whole])


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Read from a descriptor until `wanted` has arrived; fails after `PATIENCE_S`."""
    deadline_s, said = time.monotonic() + PATIENCE_S, b""
    while wanted not in said:
        ready, _, _ = select.select([descriptor], [], [], max(deadline_s - time.monotonic(), 0))
        assert ready, f"the output lacks {wanted!r}: {said!r}"
        said += os.read(descriptor, 4096)
    return said
