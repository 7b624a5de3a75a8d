"""Sends that wait for the disk, in simulated threads and virtual time: syncs, answers and their times."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field
from model_tests.support.faults import raising
from model_tests.support.simulation.network import Network
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import FewSwitches

from longpoll_broker.io.channel import Outbox
from longpoll_broker.send import durability
from longpoll_broker.send.durability import GroupCommit
from longpoll_simulation.world import LineTracing, World

TIMEOUT_MS = 5_000
S = 1_000_000_000
"""The number of nanoseconds in a second."""


@define
class Disk:
    runtime: SimulatedRuntime
    sync_s: float = 0.0
    fails: bool = False
    log_end: int = 0
    flushed_end: int = 0
    syncs: int = 0

    def flush(self) -> int:
        self.syncs += 1
        end = self.log_end
        if self.sync_s:
            self.runtime.sleep(self.sync_s)
        if self.fails:
            raise OSError(errno.EIO, "the disk failed")
        self.flushed_end = end
        return end


@define
class Desk:
    runtime: SimulatedRuntime
    disk: Disk = field(init=False)
    service: GroupCommit = field(init=False)
    begun_ns: int = field(init=False)
    answered: dict[int, tuple[bool, int]] = field(factory=dict)
    own: set[int] = field(factory=set)
    left: list[int] = field(factory=list)
    shown: list[int] = field(factory=list)
    """Each time that durable messages became visible: the number of answers that had been sent by then."""

    def __attrs_post_init__(self) -> None:
        self.disk = Disk(self.runtime)
        disk: Any = self.disk
        self.service = GroupCommit(self.runtime, disk, TIMEOUT_MS, self.show, lambda: None)
        self.begun_ns = self.runtime.monotonic_ns()

    def show(self, _outbox: Outbox) -> None:
        self.shown.append(len(self.answered))

    @property
    def now_ns(self) -> int:
        return self.runtime.monotonic_ns() - self.begun_ns

    def append(self, number: int) -> None:
        """Submit a send from a thread with an outbox. The send's number also serves as the log's end."""
        outbox = Outbox()

        def done(is_durable: bool, used: Outbox) -> None:
            assert number not in self.answered
            self.answered[number] = (is_durable, self.now_ns)
            if used is outbox:
                self.own.add(number)
            used.after_flush(lambda: self.left.append(number))

        self.disk.log_end = max(self.disk.log_end, number)
        self.service.submit(number, done, outbox, wants_topics=False)


def played(play: Callable[[Desk], None]) -> Desk:
    """Run the scenario and return its desk. The run raises an error if a thread waits forever."""
    # Only waiting takes time in this simulation.
    world = World(FewSwitches(1), steps_max=20_000, step_ns=0)
    desk = Desk(SimulatedRuntime(Network(world)))
    world.run(lambda: play(desk))
    return desk


def test_a_send_before_the_start_and_after_the_stop_syncs_itself() -> None:
    """Before its start and after its stop, the committer does not run, so each send syncs and is answered at once."""

    def play(desk: Desk) -> None:
        desk.append(1)
        assert desk.answered == {1: (True, 0)}
        desk.service.start()
        desk.service.stop()
        desk.append(2)

    desk = played(play)
    assert desk.answered == {1: (True, 0), 2: (True, 0)}
    assert (desk.own, desk.disk.syncs) == ({1, 2}, 2)


def test_one_sync_answers_all_sends_that_came_during_the_previous_one() -> None:
    """Another thread makes the messages visible before it answers the sends, and it sends the answers at once."""

    def play(desk: Desk) -> None:
        desk.disk.sync_s = 1.0
        desk.service.start()
        desk.append(1)
        desk.runtime.sleep(0.5)
        desk.append(2)
        desk.append(3)
        assert desk.answered == {}
        desk.runtime.sleep(2.0)
        assert desk.left == [1, 2, 3]
        desk.service.stop()

    desk = played(play)
    assert desk.answered == {1: (True, S), 2: (True, 2 * S), 3: (True, 2 * S)}
    assert (desk.own, desk.disk.syncs, desk.shown) == (set(), 2, [0, 1])


def test_a_send_to_a_slow_disk_times_out_exactly_at_its_deadline() -> None:
    """The send times out at its deadline to the nanosecond, even after an early wake-up, and is answered only once."""

    def play(desk: Desk) -> None:
        desk.disk.sync_s = 6.0
        desk.service.start()
        desk.append(1)
        desk.runtime.sleep(4.0)
        desk.append(2)
        desk.runtime.sleep(0.999_999_999)
        assert desk.now_ns == 5 * S - 1
        desk.append(3)
        desk.runtime.sleep(0.5)
        assert desk.left == [1], "the send does not wait for the disk"
        desk.service.stop()

    desk = played(play)
    # The second sync begins at 6 s, too late for the second and third sends, which time out one after the other.
    assert desk.answered == {1: (False, 5 * S), 2: (False, 9 * S), 3: (False, 10 * S - 1)}
    assert (desk.left, desk.disk.syncs) == ([1, 2, 3], 2)


def test_only_sends_of_a_failed_sync_get_an_error() -> None:
    """Sends whose sync failed get an error, and data of an earlier sync stays durable."""

    def play(desk: Desk) -> None:
        desk.service.start()
        desk.append(5)
        desk.runtime.sleep(1.0)
        desk.disk.fails = True
        desk.append(4)
        desk.append(6)
        desk.runtime.sleep(1.0)
        desk.disk.fails = False
        desk.append(7)
        desk.service.stop()

    assert {number: durable for number, (durable, _) in played(play).answered.items()} == {
        5: True,
        4: True,
        6: False,
        7: True,
    }


def test_too_many_waiting_sends_are_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many sends wait, the next send syncs the log itself and so waits for the disk."""
    monkeypatch.setattr(durability, "WAITING_COUNT_MAX", 2)

    def play(desk: Desk) -> None:
        desk.disk.sync_s = 1.0
        desk.service.start()
        desk.append(1)
        desk.runtime.sleep(0.5)
        desk.append(2)
        assert (desk.now_ns, desk.answered) == (S // 2, {})
        desk.append(3)
        assert desk.now_ns == S + S // 2
        desk.service.stop()

    desk = played(play)
    assert desk.own == {3}
    assert desk.answered == {1: (True, S), 3: (True, S + S // 2), 2: (True, 2 * S)}


def test_an_error_of_one_send_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while messages become visible or answers are sent does not end the committer."""

    def no_answer(_durable: bool, _outbox: Outbox) -> None:
        raise ValueError("cannot be answered")

    monkeypatch.setattr(Desk, "show", raising(ValueError("cannot be shown")))

    def play(desk: Desk) -> None:
        desk.service.start()
        desk.service.submit(0, no_answer, Outbox(), wants_topics=False)
        desk.append(1)
        desk.runtime.sleep(1.0)
        desk.append(2)
        desk.service.stop()

    assert played(play).answered == {1: (True, 0), 2: (True, S)}


def test_a_stop_answers_waiting_sends_without_waiting_for_the_clock() -> None:
    def idle(desk: Desk) -> None:
        desk.service.start()
        desk.runtime.sleep(1.0)
        desk.service.stop()
        assert desk.now_ns == S

    def busy(desk: Desk) -> None:
        desk.disk.sync_s = 1.0
        desk.service.start()
        desk.append(1)
        desk.runtime.sleep(0.5)
        desk.append(2)
        desk.service.stop()
        assert desk.now_ns == 2 * S
        assert desk.answered == {1: (True, S), 2: (True, 2 * S)}
        assert desk.left == [1, 2]

    assert played(idle).disk.syncs == 0
    assert played(busy).disk.syncs == 2


SEEDS = 150


@define
class SlowDisk:
    """A store with a slow sync. Invariant: a sync makes durable what was appended before the sync began."""

    runtime: SimulatedRuntime
    sync_s: float
    asked_end: int = 0
    flushed_end: int = 0

    def flush(self) -> int:
        end = self.asked_end
        self.runtime.world.wait([], "the disk", self.sync_s)
        self.flushed_end = max(self.flushed_end, end)
        return self.flushed_end


@define
class Played:
    answers: Counter[int] = field(factory=Counter)
    stop_s: float = 0.0


def play_seed(seed: int) -> Played:
    world = World(FewSwitches(seed), steps_max=200_000)
    LineTracing.of(world, [str(durability.__file__)], "access")
    runtime = SimulatedRuntime(Network(world))
    disk: Any = SlowDisk(runtime, random.Random(seed).choice((0.0, 0.01, TIMEOUT_MS / 1000, 6.0)))
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
    """Returns the fault of the first failing run, or an empty text."""
    for seed in range(seeds):
        played = play_seed(seed)
        if played.answers != Counter([1, 2, 3]):
            return f"seed {seed}: {dict(played.answers)}"
        if played.stop_s > 0.001:
            return f"seed {seed}: the stop takes {played.stop_s} s"
    return ""


def test_each_send_is_answered_once_under_random_schedules() -> None:
    assert wrong(SEEDS) == ""
