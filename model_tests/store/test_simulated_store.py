"""The real store on a simulated disk, from seeds: what was promised is there after every kill, power cut and error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from longpoll_broker.store import recovery, segment
from longpoll_broker.store.checkpoint import Checkpoint
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queues.consume_queue import ConsumeQueue
from longpoll_broker.store.recovery import Recovered
from longpoll_broker.store.segment import Segment
from longpoll_broker.testing.simulated.store import SimulatedStore, draw_swarm
from longpoll_simulation.files import SimulatedFiles, SimulatedMappedFile

QUICK_COUNT = 200
FOUND_WITHIN = 2000


def test_some_hundred_seeds() -> None:
    """Nothing is lost, and every kind of fault came up."""
    runs = [SimulatedStore(seed).run() for seed in range(QUICK_COUNT)]
    assert sum(run.messages for run in runs) > 5 * QUICK_COUNT
    assert (
        min(sum(run.cuts for run in runs), sum(run.ended_inside for run in runs), sum(run.errors for run in runs)) > 50
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_seeds() -> None:
    """The same, with other seeds and many."""
    for seed in range(QUICK_COUNT, 12_000):
        assert SimulatedStore(seed).run().openings > 1


def test_a_seed_is_a_run() -> None:
    """The same seed tells the same story, line by line; others tell others."""
    stories = [[tuple(SimulatedStore(seed).run().story) for seed in range(20)] for _ in range(2)]
    assert stories[0] == stories[1]
    assert len(set(stories[0])) == len(stories[0])


def lost_sync(patch: pytest.MonkeyPatch) -> None:
    """A flush says that it synced, and did not."""

    def flush(self: CommitLog) -> int:
        self.flushed_end = self.end
        return self.end

    patch.setattr(CommitLog, "flush", flush)


def lost_names(patch: pytest.MonkeyPatch) -> None:
    """The log's directory is never synced."""
    sync_directory = SimulatedFiles.sync_directory

    def skips(self: SimulatedFiles, path: str) -> None:
        if not path.endswith("/commitlog"):
            sync_directory(self, path)

    patch.setattr(SimulatedFiles, "sync_directory", skips)


def swapped(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written before the units that it speaks of are durable; they are so with the next one."""
    flush_queues, flush = MessageStore.flush_queues, ConsumeQueue.flush
    waiting: list[ConsumeQueue] = []

    def wait(self: ConsumeQueue) -> None:
        waiting.append(self)

    def checkpoint_first(self: MessageStore) -> None:
        before = waiting.copy()
        waiting.clear()
        flush_queues(self)
        for queue in before:
            flush(queue)

    patch.setattr(ConsumeQueue, "flush", wait)
    patch.setattr(MessageStore, "flush_queues", checkpoint_first)


def one_queue_only(patch: pytest.MonkeyPatch) -> None:
    """A recovery walks the first queue and leaves the others as they are."""
    recover_crashed = recovery.recover_crashed

    def skips(log: CommitLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint) -> Recovered:
        return recover_crashed(log, list(queues)[:1], checkpoint)

    patch.setattr(recovery, "recover_crashed", skips)


def nothing_cleared(patch: pytest.MonkeyPatch) -> None:
    """What follows the last whole record or unit stays where it is."""
    patch.setattr(SimulatedMappedFile, "clear_from", lambda *_: None)


def no_note(patch: pytest.MonkeyPatch) -> None:
    """A deletion is not noted before files are removed."""
    patch.setattr("longpoll_broker.store.log.deletions.Deletions._write", lambda *_: None)


def early_mark(patch: pytest.MonkeyPatch) -> None:
    """A flush promises what comes after it as well."""
    flush = MessageStore.flush
    patch.setattr(MessageStore, "flush", lambda self: max(flush(self), self.log_end + 200))


def unordered(patch: pytest.MonkeyPatch) -> None:
    """A file is taken for durable as soon as it is made, so the next one is made while a power cut may take it."""

    class Taken(Segment):
        is_durable = property(lambda _: True, lambda _self, _value: None)

    patch.setattr(segment, "Segment", Taken)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    lost_sync, lost_names, swapped, one_queue_only, nothing_cleared, no_note, early_mark, unordered,
]  # fmt: skip


def may_show(planted: Callable[[pytest.MonkeyPatch], None], seed: int) -> bool:
    """Whether the fault can come up at all in a seed's run: most cannot show the last one, and are not waited for."""
    swarm = draw_swarm(random.Random(seed))
    has_many_files = swarm.config.commit_log_file_size == 2048
    return planted is not unordered or (swarm.order == "none" and "cut" in swarm.operations and has_many_files)


def first_found(planted: Callable[[pytest.MonkeyPatch], None], count: int) -> str | None:
    """What the first seed that turns red says."""
    for seed in range(count):
        if not may_show(planted, seed):
            continue
        try:
            SimulatedStore(seed).run()
        except AssertionError as error:
            return str(error).partition("\n")[0]
    return None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_planted_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, planted: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Each is found in fewer than two thousand seeds."""
    planted(monkeypatch)
    found = first_found(planted, FOUND_WITHIN)
    assert found is not None, planted.__doc__
    assert found.startswith(("AssertionError", "StoreUserError", "StoreDamageError")), found
