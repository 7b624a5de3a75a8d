"""A pool of threads under switches between any two accesses; `mutants/test_zoo.py` loses a task of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from model_tests.simulate.pool_stress import Stage
from model_tests.simulate.seeds import first_fault

SEEDS = 250
"""Runs of a quick test, half a second."""
SEEDS_LONG = 30_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What a pool says of its tasks is not looked at."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_each_task_has_one_end() -> None:
    """Run, told that it came too late, or not taken."""
    assert first_fault(range(SEEDS), Stage) is None


@pytest.mark.long
def test_each_task_has_one_end_from_many_seeds() -> None:
    """The same for longer."""
    assert first_fault(range(SEEDS, SEEDS + SEEDS_LONG), Stage) is None


def test_there_are_tasks_of_each_end() -> None:
    """So the stages are not vacuous."""
    stages = [Stage(seed) for seed in range(60)]
    for stage in stages:
        stage.play()

    assert sum(stage.ran.total() for stage in stages) > 60
    assert any(stage.refused for stage in stages)
    assert any(not taken for stage in stages for taken in stage.taken.values())
