"""Both engines say the same, whatever the order of the lines and the number of parts and partitions."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from longpoll_judge.contract.result import Result
from longpoll_judge.read.source import find
from longpoll_judge.run.job import judge_on
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.spark.engine import SparkEngine
from longpoll_judge.testing.generate import simulated_meta, write
from longpoll_judge.testing.plant import FAULTS
from longpoll_judge.testing.recording import load
from longpoll_spec.history import Event


def said(engine: SparkEngine | LocalEngine, *directories: Path) -> Result:
    """The result without what depends on the machine."""
    result = judge_on(engine, find(directories), wake_ms=100, late_ms=50, say=lambda _text: None)
    return msgspec.structs.replace(result, seconds=0.0)


def all_faults(clean: Path) -> list[Event]:
    """The clean history with several faults at once: each is planted in what the others left."""
    recording = load(clean)
    for name in ("answer_deleted", "wake_delayed", "answer_duplicated", "next_wrong", "wrong_tag", "end_too_low"):
        FAULTS[name].apply(recording)
    return recording.events


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_neither_order_nor_parts_matter(clean: Path, tmp_path: Path, seed: int) -> None:
    """A faulty history whose lines are shuffled over more parts gets the same findings."""
    events = all_faults(clean)
    write(tmp_path / "sorted", events, simulated_meta())
    random.Random(seed).shuffle(events)
    write(tmp_path / "shuffled", events, simulated_meta(), events_per_part=137 * seed)

    in_order, shuffled = (said(LocalEngine(), tmp_path / name) for name in ("sorted", "shuffled"))
    assert len(in_order.findings) >= 5
    assert in_order == shuffled, f"seed {seed}"


def test_two_histories_are_judged_as_one(clean: Path, tmp_path: Path) -> None:
    """The broker's inside in one directory and its outside in another make one history; one alone is not enough."""
    recording = load(clean)
    both = ("source_started", "source_stopped")
    alone = ("append", "make_visible", "hold", "expire")
    inside = [event for event in recording.events if event.event in (*alone, *both)]
    outside = [event for event in recording.events if event.event not in alone]
    for name, events in (("inside", inside), ("outside", outside)):
        numbered = [msgspec.structs.replace(event, sequence=place) for place, event in enumerate(events)]
        write(tmp_path / name, numbered, simulated_meta())
    together = said(LocalEngine(), tmp_path / "inside", tmp_path / "outside")

    assert (together.verdict, together.requests) == ("valid", said(LocalEngine(), clean).requests)
    assert said(LocalEngine(), tmp_path / "inside").requests == 0
