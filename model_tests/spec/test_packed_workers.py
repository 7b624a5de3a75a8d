from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import connection
from multiprocessing.context import ForkProcess

import pytest

from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Progress
from longpoll_spec.engines.manifest import entry_of, pinned_entry
from longpoll_spec.engines.packed import part as packed_part
from longpoll_spec.engines.packed import workers as packed_workers
from longpoll_spec.engines.packed.words import first_head
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import EngineLimitError, MemoryShortError
from longpoll_spec.policy import PRESETS
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.models import model_named


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """Every test ends with the processes it began with."""
    yield
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "workers", [2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
@pytest.mark.parametrize("symmetry", [False, True], ids=["plain", "symmetry"])
def test_workers_find_the_pinned_numbers(policy: str, workers: int, symmetry: bool) -> None:
    """States, transitions, depth, verdicts and lengths are the same however many share the search."""
    result = explore(model_named(policy), workers=workers, symmetry=symmetry)

    assert entry_of(result) == pinned_entry(policy, "tiny")
    for verdict in result.verdicts:
        if verdict.token is not None:
            assert replay(verdict.token).depth == verdict.depth


@pytest.mark.long
@pytest.mark.parametrize("policy", PRESETS)
def test_two_workers_find_the_pinned_numbers_at_small(policy: str) -> None:
    """At small a level is split between the workers."""
    assert entry_of(explore(model_named(policy, "small"), workers=2)) == pinned_entry(policy, "small")


def test_many_stretches_a_level_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels that are expanded in several stretches, with trays that are used again and again, change nothing."""
    monkeypatch.setattr(packed_part, "CHUNK_STATES", 64)
    monkeypatch.setattr(packed_part, "STRETCH_STATES", 256)

    for workers in (1, 2):
        assert entry_of(explore(model_named("strict-clone"), workers=workers)) == pinned_entry("strict-clone", "tiny")


def test_owners_share_every_head() -> None:
    """The ranges of the owners follow one another from the least head to the greatest."""
    for workers in range(1, packed_workers.WORKERS_MAX + 1):
        firsts = [first_head(number, workers) for number in range(workers + 1)]
        assert firsts[0] == 0
        assert firsts[-1] == 2**64
        assert firsts == sorted(set(firsts))


def test_an_interrupt_ends_the_workers_and_keeps_what_is_known() -> None:
    """Ctrl-C, as a real signal in the middle, gives the counts so far; no process is left."""

    def interrupt(progress: Progress) -> None:
        if progress.depth == 5:
            signal.raise_signal(signal.SIGINT)

    result = explore(model_named("strict"), workers=2, report=interrupt)

    assert not result.complete
    assert result.depth == 5
    assert 0 < result.distinct_states < pinned_entry("strict", "tiny").distinct_states
    assert result.verdict("no_lost_wakeup").verdict == "unknown"
    assert result.verdict("some_pulling").verdict == "reached"


def test_an_interrupt_while_workers_work_counts_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that comes while the foreman waits lets the step end, and no answer is taken for another's."""
    asked: list[int] = []

    def interrupted(pipes: list[object]) -> object:
        asked.append(len(pipes))
        if len(asked) == 40:
            raise KeyboardInterrupt
        return connection.wait(pipes)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_workers, "wait", interrupted)
    result = explore(model_named("rocketmq-4.9"), workers=2)

    assert not result.complete
    assert 0 < result.distinct_states < pinned_entry("rocketmq-4.9", "tiny").distinct_states
    for verdict in result.verdicts:
        if verdict.token is not None:
            assert replay(verdict.token).depth == verdict.depth


def test_a_worker_that_is_killed_is_named() -> None:
    """A worker ended from outside is one clear error, and the others end too."""

    def kill(progress: Progress) -> None:
        if progress.depth == 4:
            victim = multiprocessing.active_children()[0].pid
            assert victim is not None
            os.kill(victim, signal.SIGKILL)

    with pytest.raises(MemoryShortError, match=r"worker [12] of 2 was ended by signal 9.* use --memory-mb"):
        explore(model_named("strict"), workers=2, report=kill)


def test_a_worker_without_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot get memory says so, and so does a search alone."""

    def full(_self: packed_part.Part, _words: object) -> None:
        raise MemoryError

    monkeypatch.setattr(packed_part.Part, "take", full)
    with pytest.raises(MemoryShortError, match=r"worker [12] of 2 ran out of memory; use --memory-mb"):
        explore(model_named("strict"), workers=2)
    with pytest.raises(MemoryShortError, match=r"this search ran out of memory"):
        explore(model_named("strict"))


@pytest.mark.parametrize("workers", [0, 65])
def test_impossible_numbers_of_workers_are_refused(workers: int) -> None:
    """The error says what is possible."""
    with pytest.raises(EngineLimitError, match=f"--workers must be from 1 to 64, not {workers}"):
        explore(model_named("strict"), workers=workers)


def test_only_the_packed_engine_has_workers() -> None:
    """Another engine says so instead of running alone."""
    with pytest.raises(EngineLimitError, match="python engine has no workers"):
        explore(model_named("strict"), engine="python", workers=2)


def test_workers_that_cannot_all_start_leave_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses the second process the first one ends too."""
    starts = packed_workers._start
    begun: list[object] = []

    def refused(process: ForkProcess) -> None:
        if begun:
            raise BlockingIOError("no more processes")
        begun.append(process)
        starts(process)

    monkeypatch.setattr(packed_workers, "_start", refused)
    with pytest.raises(EngineLimitError, match="cannot start worker 2 of 3: no more processes; use --workers 1"):
        explore(model_named("strict"), workers=3)
