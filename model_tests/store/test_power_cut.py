"""Power cuts: of the pages that were not synced any subset is on the disk, and every flushed message is found."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.plain.plain_store import read_record
from model_tests.support.broker.simulated.store import SimulatedStore
from model_tests.support.broker.stores import SMALL, message, open_store, read_all
from model_tests.support.examples import fewer

from longpoll_broker.store import recovery
from longpoll_broker.store.checkpoint import Checkpoint
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queues.consume_queue import ConsumeQueue
from longpoll_broker.store.recovery import Recovered
from longpoll_broker.store.verify import verify
from longpoll_runtime.files import RealFiles, RealMappedFile
from longpoll_runtime.real import RealRuntime
from longpoll_simulation.files import SimulatedFiles

SECTOR = 512
CONFIG = evolve(SMALL, index_slot_count=300, index_entry_count=40)
"""Index files of several sectors."""


class Disk:
    """What would be left: `durable` holds each mapped file as its syncs made it. Invariant: equal lengths."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.durable: dict[str, bytearray] = {}
        map_file, sync, clear = RealFiles._map, RealMappedFile.sync, RealMappedFile.clear_from

        def mapped(files: RealFiles, path: str, size: int, *, writable: bool, create: bool) -> RealMappedFile:
            made = map_file(files, path, size, writable=writable, create=create)
            self.durable.setdefault(path, bytearray(made.view))
            return made

        def synced(file: RealMappedFile, start: int, stop: int) -> None:
            sync(file, start, stop)
            begin, end = start // SECTOR * SECTOR, min(len(file.view), -(-stop // SECTOR) * SECTOR)
            self.durable[file._path][begin:end] = file.view[begin:end]

        def cleared(file: RealMappedFile, start: int) -> None:
            clear(file, start)
            self.durable[file._path][start:] = bytes(len(file.view) - start)

        patch.setattr(RealFiles, "_map", mapped)
        patch.setattr(RealMappedFile, "sync", synced)
        patch.setattr(RealMappedFile, "clear_from", cleared)

    def cut(self, directory: Path, target: Path, chance: random.Random) -> None:
        """Write what a power cut at this moment leaves."""
        for path in directory.rglob("*"):
            if path.is_file():
                content = bytearray(path.read_bytes())
                old = self.durable.get(str(path), content)
                for start in range(0, len(content), SECTOR):
                    if chance.random() < 0.5:
                        content[start : start + SECTOR] = old[start : start + SECTOR]
                copy = target / path.relative_to(directory)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)


def run_and_cut(root: Path, seed: int) -> None:
    """Append singly and in bursts, dispatch and flush at random, cut the power, open, look for what was promised."""
    chance = random.Random(seed)
    sent: list[tuple[str, str]] = []
    promised = 0
    clock = itertools.accumulate(chance.choice((0, 1, 2500)) for _ in itertools.count())
    with pytest.MonkeyPatch.context() as patch:
        # Seconds pass between messages, so that the checkpoint proves something.
        patch.setattr(RealRuntime, "unix_ms", lambda _: 1_800_000_000_000 + next(clock))
        disk = Disk(patch)
        store = open_store(root / "store", CONFIG)
        for _ in range(chance.randrange(40)):
            made = []
            for _ in range(chance.randrange(4)):
                name = f"{len(sent)}"
                long = chance.choice(("p" * 5, "p" * 700, "p\0p", "\0" * 400 + "p" * 300))
                properties = {"NAME": name, "LONG": long, "KEYS": f"k{name} odd" if len(sent) % 2 else f"k{name}"}
                made.append(message("T", 0, b"b" * chance.choice((0, 10, 400)), tag="t", properties=properties))
                sent.append((name, long))
            in_burst = len(store.put_burst(made)) if chance.random() < 0.5 else 0
            for each in made[in_burst:]:
                store.put(each)
            if chance.random() < 0.5:
                store.dispatch(chance.randrange(1, 6))
            if chance.random() < 0.3:
                store.index(chance.randrange(1, 9))
            if chance.random() < 0.3:
                store.flush()
                promised = len(sent)
            if chance.random() < 0.2:
                store.flush_queues()
                promised = len(sent)
        disk.cut(root / "store", root / "cut", chance)
        store.abandon()
    store = open_store(root / "cut", CONFIG)
    kept = [read_record(content)["properties"] for content in read_all(store, "T", 0)]
    found = [(each["NAME"], each["LONG"]) for each in kept]
    assert found == sent[: len(kept)], f"seed {seed}: not a prefix of what was sent, or a torn record taken for whole"
    assert len(kept) >= promised, f"seed {seed}: {promised} were flushed, {len(kept)} are left"
    for index, (name, _long) in enumerate(found):
        assert keyed(store, f"k{name}") == [index], f"seed {seed}: message {name} is not found by its key, or twice"
    assert keyed(store, "odd") == list(range(1, len(kept), 2))[-64:], f"seed {seed}: a key finds other messages"
    store.close()
    verdict = verify(RealFiles(), str(root / "cut"))
    assert (verdict.problems, verdict.messages) == ([], len(kept)), f"seed {seed}"


def keyed(store: MessageStore, key: str) -> list[int]:
    """Queue offsets of the messages with a key."""
    return [int.from_bytes(view[20:28]) for view in store.query("T", key, 64, 0, 2**60).records]


@pytest.mark.long
def test_a_thousand_power_cuts(tmp_path: Path) -> None:
    """A thousand fixed seeds: every flushed message is there, whole, in order, and is found by its key."""
    for seed in range(1000):
        run_and_cut(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))


@fewer(2)
@given(seed=st.integers(0, 2**32))
def test_what_was_flushed_survives(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Whatever pages a power cut loses: every flushed message is there, and only whole ones, in their order."""
    run_and_cut(tmp_path_factory.mktemp("power"), seed)


@pytest.mark.parametrize(
    "planted", ["no sync", "queues believed", pytest.param("zeros believed", marks=pytest.mark.long), "index believed"]
)
def test_planted_faults_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """A flush that syncs nothing, or a recovery that believes too much, is found within two hundred power cuts."""
    if planted == "no sync":
        monkeypatch.setattr("longpoll_broker.store.segment.SegmentList.flush", lambda *_: None)
    elif planted == "queues believed":
        monkeypatch.setattr(
            "longpoll_broker.store.recovery.safe_start", lambda log, _checkpoint: log.segments.segments[-1].start
        )
    elif planted == "index believed":
        monkeypatch.setattr("longpoll_broker.store.index.index.Index.forget_unsure", lambda *_: None)
    else:
        monkeypatch.setattr("longpoll_protocol.log_record.Record.lacks_sector", lambda *_: False)
    for seed in range(200):
        try:
            run_and_cut(tmp_path / str(seed), seed)
        except (AssertionError, ValueError):
            return
    pytest.fail(f"not seen: {planted}")


QUICK_COUNT = 110
FOUND_WITHIN = 2000


def test_some_hundred_seeds() -> None:
    """Nothing is lost, and every kind of fault came up."""
    runs = [SimulatedStore(seed).run() for seed in range(QUICK_COUNT)]
    assert sum(run.messages for run in runs) > 5 * QUICK_COUNT
    assert (
        min(sum(run.cuts for run in runs), sum(run.ended_inside for run in runs), sum(run.errors for run in runs)) > 25
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


def one_queue_only(patch: pytest.MonkeyPatch) -> None:
    """A recovery walks the first queue and leaves the others as they are."""
    recover_crashed = recovery.recover_crashed

    def skips(log: CommitLog, queues: Iterable[ConsumeQueue], checkpoint: Checkpoint) -> Recovered:
        return recover_crashed(log, list(queues)[:1], checkpoint)

    patch.setattr(recovery, "recover_crashed", skips)


def no_note(patch: pytest.MonkeyPatch) -> None:
    """A deletion is not noted before files are removed."""
    patch.setattr("longpoll_broker.store.log.deletions.Deletions._write", lambda *_: None)


def early_mark(patch: pytest.MonkeyPatch) -> None:
    """A flush promises what comes after it as well."""
    flush = MessageStore.flush
    patch.setattr(MessageStore, "flush", lambda self: max(flush(self), self.log_end + 200))


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [lost_sync, lost_names, one_queue_only, no_note, early_mark]


def first_found(planted: Callable[[pytest.MonkeyPatch], None], count: int) -> str | None:
    """What the first seed that turns red says."""
    for seed in range(count):
        try:
            SimulatedStore(seed).run()
        except AssertionError as error:
            return str(error).partition("\n")[0]
    return None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_planted_faults_are_red(monkeypatch: pytest.MonkeyPatch, planted: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Each is found in fewer than two thousand seeds."""
    planted(monkeypatch)
    found = first_found(planted, FOUND_WITHIN)
    assert found is not None, planted.__doc__
    assert found.startswith(("AssertionError", "StoreUserError", "StoreDamageError")), found
