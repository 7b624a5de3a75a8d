"""Two hundred histories get the same verdicts and findings wherever the judge runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_tests.judge.second.corpus import calm, troubled
from model_tests.judge.second.faults import apply, operations
from model_tests.judge.second.observer import observe, write
from model_tests.judge.standalone import connect_server, standalone
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.histories import simulated, without_time, written
from model_tests.support.judge.recording import NoVictimError, Recording

from longpoll_judge.contract.result import Result
from longpoll_judge.run.pipeline import judge
from longpoll_judge.run.spark import session

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

COUNT = int(os.environ.get("LONGPOLL_HISTORIES", "200"))
OF_THE_SECOND = 3
EVENTS = 120
ASKING = """
import sys, msgspec
from pathlib import Path
from longpoll_judge.read.source import find
from longpoll_judge.run.pipeline import judge_on
from longpoll_judge.run.spark.engine import open_engine

conf = dict(word.split("=", 1) for word in sys.argv[3:])
with open_engine(sys.argv[2], conf) as engine:
    for directory in sorted(Path(sys.argv[1]).iterdir()):
        result = judge_on(engine, find([directory]), wake_ms=100, late_ms=50, say=lambda _stage: None)
        print(msgspec.json.encode([directory.name, result]).decode(), flush=True)
"""
Results = dict[str, Any]


def generated(number: int) -> Recording:
    recording = simulated(number, 600)
    if number % 2:
        try:
            FAULTS[sorted(FAULTS)[(number // 2) % len(FAULTS)]].apply(recording)
        except NoVictimError:
            return simulated(number, 600)
    return recording


def made(number: int, directory: Path) -> None:
    if number % OF_THE_SECOND:
        written(generated(number), directory)
        return
    history = observe(*(calm if number % 4 else troubled)(number, EVENTS))
    if number % 2:
        dice = random.Random(number)
        place = dice.randrange(len(history.events))
        events = apply(list(history.events), place, dice.choice(list(operations(history.events[place]))), dice)
        history = history.with_events(events)
    write(history, directory)


def said(result: Result) -> Any:
    return msgspec.to_builtins(without_time(result))


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("everywhere")
    for number in range(COUNT):
        made(number, directory / f"{number:03}")
    return directory


@pytest.fixture(scope="module")
def here(histories: Path) -> Results:
    return {each.name: said(judge([each], engine="local")) for each in sorted(histories.iterdir())}


def differing(here: Results, there: Results) -> list[str]:
    assert there.keys() == here.keys()
    return [name for name, result in here.items() if there[name] != result]


def judged_on(histories: Path, master: str, *conf: str, disturb: Callable[[], None] = lambda: None) -> Results:
    environment = {name: value for name, value in os.environ.items() if name != session.REMOTE}
    with subprocess.Popen(
        [sys.executable, "-c", ASKING, str(histories), master, *conf],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as asking:  # fmt: skip
        disturb()
        told, complained = asking.communicate(timeout=3_000)
    assert asking.returncode == 0, complained
    lines = (msgspec.json.decode(line, type=tuple[str, Result]) for line in told.splitlines())
    return {name: said(result) for name, result in lines}


def test_the_histories_are_of_every_kind(here: Results) -> None:
    verdicts = Counter(result["verdict"] for result in here.values())
    clauses = {finding["clause"] for result in here.values() for finding in result["findings"]}
    first = next(iter(here))

    assert min(verdicts["valid"], verdicts["invalid"]) > len(here) // 5, verdicts
    assert len(clauses) > len(here) // 10
    assert differing(here, here | {first: here[first] | {"requests": -1}}) == [first]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_gives_the_same_results(histories: Path, here: Results) -> None:
    assert differing(here, judged_on(histories, "local[2]")) == []


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_cluster_with_a_killed_worker_gives_the_same_results(histories: Path, here: Results, tmp_path: Path) -> None:
    with standalone(tmp_path, 2) as found:
        conf = [f"{name}={value}" for name, value in found.conf().items()]
        there = judged_on(histories, found.master, *conf, disturb=lambda: found.kill_worker_at_work(seen=0))

    assert differing(here, there) == []


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_connect_gives_the_same_results(histories: Path, here: Results, tmp_path: Path) -> None:
    with connect_server(tmp_path) as url:
        assert differing(here, judged_on(histories, url)) == []
