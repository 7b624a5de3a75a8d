"""Sends that wait for the disk, in simulated threads and virtual time: each answered once, and none waited for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from attrs import define, field

from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.send import group_commit
from longpoll_broker.service.send.group_commit import GroupCommit
from longpoll_simulation.lines import Lines
from longpoll_simulation.network import Network
from longpoll_simulation.runtime import SimulatedRuntime
from longpoll_simulation.strategies import FewSwitches
from longpoll_simulation.world import World

SEEDS = 150
TIMEOUT_MS = 5_000


@define
class Disk:
    """A store whose sync takes a while. Invariant: all that was asked before a sync began is durable after it."""

    runtime: SimulatedRuntime
    sync_s: float
    asked_end: int = 0
    flushed_end: int = 0

    def flush(self) -> int:
        """Take the time."""
        end = self.asked_end
        self.runtime.world.wait([], "the disk", self.sync_s)
        self.flushed_end = max(self.flushed_end, end)
        return self.flushed_end


@define
class Played:
    """One run: how often each send was answered, and how long the stop took."""

    answers: Counter[int] = field(factory=Counter)
    stop_s: float = 0.0


def play(seed: int) -> Played:
    """Three producers, whose disk is fast, slow, or too slow; then the stop."""
    world = World(FewSwitches(seed), steps_max=200_000)
    Lines.of(world, [str(group_commit.__file__)], "access")
    no_files: Any = None
    runtime = SimulatedRuntime(Network(world), no_files)
    disk: Any = Disk(runtime, random.Random(seed).choice((0.0, 0.01, TIMEOUT_MS / 1000, 6.0)))
    played = Played()

    def produce(service: GroupCommit, number: int) -> None:
        disk.asked_end = max(disk.asked_end, number)
        count = played.answers.update
        service.submit(number, lambda _durable, _outbox: count([number]), Outbox(), wants_topics=False)

    def main() -> None:
        service = GroupCommit(runtime, disk, TIMEOUT_MS, lambda _outbox: None, lambda: None)
        service.start()
        threads = [runtime.spawn(f"producer {n}", lambda n=n: produce(service, n)) for n in (1, 2, 3)]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        begun_ns = world.now_ns
        service.stop()
        played.stop_s = (world.now_ns - begun_ns) / 1e9 - 2 * disk.sync_s

    world.run(main)
    return played


def wrong(seeds: int) -> str:
    """What the first run that goes wrong shows; empty where none does."""
    for seed in range(seeds):
        played = play(seed)
        if played.answers != Counter([1, 2, 3]):
            return f"seed {seed}: {dict(played.answers)}"
        if played.stop_s > 0.001:
            return f"seed {seed}: the stop takes {played.stop_s} s"
    return ""


def test_each_send_is_answered_once_and_the_stop_waits_for_no_clock() -> None:
    """Whoever comes between committer, watcher, producers and the stop."""
    assert wrong(SEEDS) == ""


def test_planted_a_send_that_is_answered_by_both_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher does not look whether the committer was first."""

    def careless(service: GroupCommit, request: Any, is_durable: bool, outbox: Outbox) -> None:
        request.done(is_durable, outbox)
        with service._changed:
            service._open.pop(request, None)
            service._changed.notify_all()

    monkeypatch.setattr(GroupCommit, "_answer", careless)
    assert "seed" in wrong(SEEDS)
