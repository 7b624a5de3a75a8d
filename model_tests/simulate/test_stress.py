"""A channel, a pool, a store and a client under switches between any two accesses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Final

import pytest
from model_tests.simulate import io_stress, store_stress
from model_tests.simulate.client_world import ClientRun
from model_tests.simulate.stress import Run, first_fault

from longpoll_broker.store.log.commit_log import CommitLog

STAGES: Final[dict[str, tuple[Callable[[int], Run], int, int]]] = {
    "channel": (io_stress.ChannelStage, 60, 6_000),
    "pool": (io_stress.PoolStage, 120, 30_000),
    "store": (store_stress.Stage, 70, 20_000),
    "client": (ClientRun, 15, 3_000),
}
"""For each kind: how to create a run from a seed, and the seeds of a quick and of a long test."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Suppress thousands of log lines of recovering stores and refusing pools."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", STAGES)
def test_every_interleaving_is_right(name: str) -> None:
    """The checks of each kind hold in every run."""
    make, seeds, _seeds_long = STAGES[name]
    assert first_fault(range(seeds), make) is None


@pytest.mark.long
@pytest.mark.parametrize("name", STAGES)
def test_many_interleavings_are_right(name: str) -> None:
    """The same checks hold for many more seeds."""
    make, seeds, seeds_long = STAGES[name]
    assert first_fault(range(seeds, seeds_long), make) is None


def test_planted_a_connection_without_its_lock_does_not() -> None:
    """A run fails if two threads send at once."""

    class Unlocked(io_stress.ChannelStage):
        def __attrs_post_init__(self) -> None:
            super().__attrs_post_init__()
            self.channel._lock = nullcontext()  # type: ignore[assignment]

    assert first_fault(range(120), Unlocked) is not None


def test_planted_a_flush_that_syncs_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves less of the log than the flush returned."""
    monkeypatch.setattr(CommitLog, "flush", lambda log: log.end)
    found = first_fault(range(150), store_stress.Stage)

    assert found is not None
    assert "what was flushed" in str(found[1])


def test_the_stages_reach_what_they_are_for() -> None:
    """Stores flush during puts, delete topics and remove files; pools run, refuse and reject tasks."""
    stores = [store_stress.Stage(seed) for seed in range(60)]
    pools = [io_stress.PoolStage(seed) for seed in range(60)]
    runs: list[Run] = [*stores, *pools]
    for run in runs:
        run.play()

    assert any(stage.is_pair for stage in stores)
    assert any(len(stage.flushed) > 1 for stage in stores)
    assert any(topic.startswith("%LMQ%") for stage in stores for topic, _queue_id in stage.store.queues())
    assert any(stage.preemption.switches > 10 for stage in stores)
    assert any(stage.deletes for stage in stores)
    assert any(stage.store.log_start > 0 for stage in stores)
    assert sum(stage.ran.total() for stage in pools) > 60
    assert any(stage.refused for stage in pools)
    assert any(not taken for stage in pools for taken in stage.taken.values())
