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
from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write
from longpoll_judge.testing.plant import FAULTS, plant
from longpoll_judge.testing.recording import load
from longpoll_spec.history import Event

FAULTS_ON_SPARK = ("answer_deleted", "answer_delayed", "wake_delayed", "answer_duplicated", "next_wrong", "half_line")


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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("partitions", [1, 7])
def test_spark_and_local_say_the_same_of_many_faults(
    clean: Path, tmp_path: Path, spark_engine: SparkEngine, partitions: int
) -> None:
    """Findings, latencies and gaps are equal to the last byte, for any number of partitions."""
    write(tmp_path / "history", all_faults(clean), simulated_meta(), events_per_part=700)
    spark_engine.session.conf.set("spark.sql.shuffle.partitions", str(partitions))

    assert msgspec.json.encode(said(spark_engine, tmp_path / "history")) == msgspec.json.encode(
        said(LocalEngine(), tmp_path / "history")
    )


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_finds_the_faults_in_a_run_of_50_000_events(tmp_path: Path, spark_engine: SparkEngine) -> None:
    """The clean run is valid, and each planted fault is found under its name."""
    write(tmp_path / "clean", simulate(Load(events=50_000, queues=8)), simulated_meta(), events_per_part=20_000)
    result = said(spark_engine, tmp_path / "clean")

    assert result.events >= 50_000
    assert (result.verdict, result.queues) == ("valid", 8)
    for name in FAULTS_ON_SPARK:
        fault = plant(tmp_path / "clean", name, tmp_path / name)
        found = said(spark_engine, tmp_path / name)
        named = {finding.property for finding in found.findings}
        assert found.verdict == fault.verdict, name
        assert named <= fault.properties, name
        assert bool(named) == bool(fault.properties), name


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_answers_that_name_no_queue_find_their_requests(clean: Path, tmp_path: Path, spark_engine: SparkEngine) -> None:
    """Both engines place an answer by its request; without that every pull would be unanswered."""
    events = [
        msgspec.structs.replace(event, topic="", queue=-1, broker="") if event.event == "answer_sent" else event
        for event in load(clean).events
    ]
    write(tmp_path / "history", events, simulated_meta())

    for engine in (LocalEngine(), spark_engine):
        assert said(engine, tmp_path / "history") == said(LocalEngine(), clean)


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
