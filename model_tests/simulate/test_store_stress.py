"""A message store under switches between any two accesses; `mutants/test_zoo.py` takes its locks away one at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from model_tests.simulate.seeds import first_fault
from model_tests.simulate.store_stress import Stage

from longpoll_broker.store.log.commit_log import CommitLog

SEEDS = 150
"""Runs of a quick test, a second."""
SEEDS_LONG = 20_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each stage opens its store once more after a cut of the power, which is logged."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_the_store_stands_every_interleaving() -> None:
    """Nothing is lost, visible twice or out of order, or forgotten by the checkpoint, whoever comes between whom."""
    assert first_fault(range(SEEDS), Stage) is None


@pytest.mark.long
def test_the_store_stands_many_interleavings() -> None:
    """The same for longer."""
    assert first_fault(range(SEEDS, SEEDS + SEEDS_LONG), Stage) is None


def test_planted_a_flush_that_syncs_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells the end of the log, of which a cut of the power leaves less."""
    monkeypatch.setattr(CommitLog, "flush", lambda log: log.end)
    found = first_fault(range(SEEDS), Stage)

    assert found is not None
    assert "what was flushed" in str(found[1])


def test_the_stages_reach_what_they_are_for() -> None:
    """Some dispatchers read the log, some flushes are beside puts, topics are deleted, and files of the log go."""
    stages = [Stage(seed) for seed in range(60)]
    for stage in stages:
        stage.play()

    assert any(stage.is_pair for stage in stages)
    assert any(len(stage.flushed) > 1 for stage in stages)
    assert any(topic.startswith("%LMQ%") for stage in stages for topic, _queue_id in stage.store.queues())
    assert any(stage.preemption.switches > 10 for stage in stages)
    assert any(stage.deletes for stage in stages)
    assert any(stage.store.log_start > 0 for stage in stages)
