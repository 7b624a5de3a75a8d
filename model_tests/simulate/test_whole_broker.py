"""The whole broker in a simulation keeps its promises for every seed; injected faults are found and reported."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from click.testing import CliRunner
from model_tests.support.faults import raising
from model_tests.support.simulation.__main__ import main as command
from model_tests.support.simulation.files import DiskFaults, SimulatedFiles, SimulatedMappedFile
from model_tests.support.simulation.plan import plan_of
from model_tests.support.simulation.run import Outcome, Run, play
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.search import (
    Settings,
    explain,
    one_run,
    replayed,
    schedule_of,
    search,
    strategy_of,
)
from model_tests.support.simulation.strategies import Replay
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll_broker.hold.hold_service import DispatchService, HoldService
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store import message_store
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.recovery import recover
from longpoll_protocol.frames import Connection, FrameReader
from longpoll_simulation.world import Strategy
from longpoll_spec.policy import STRICT

SEEDS: Final = range(50)
SEEDS_LONG: Final = range(1_000, 12_000)
DAY_MS: Final = 86_400_000
SEEDS_PLANTED: Final = range(400)
SEEDS_AGAIN: Final = range(10)
Plant = Callable[[], AbstractContextManager[Any]]


def test_the_brokers_promises_are_kept() -> None:
    """The runs include every kind of schedule, kills, power cuts, cut connections, stops, clock steps and pauses."""
    kinds = {mishap.kind for seed in SEEDS for mishap in plan_of(seed).mishaps}

    assert search(Settings(), SEEDS) is None
    assert kinds == {"kill", "power", "cut", "clock", "stop", "disk"}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["strict", "strict-clone"])
def test_the_brokers_promises_are_kept_for_a_day(policy: str) -> None:
    """Eleven thousand seeds per policy of ours take more than a day of the broker's virtual time."""
    lived_ms: list[float] = []

    def told(_seed: int, outcome: Outcome) -> bool:
        lived_ms.append(outcome.virtual_ms)
        return True

    assert search(Settings(policy), SEEDS_LONG, told) is None
    assert len(lived_ms) == len(SEEDS_LONG)
    assert sum(lived_ms) > DAY_MS


@pytest.mark.parametrize("grain", quick_if(("line", "access"), lambda grain: grain == "line"))
def test_the_brokers_promises_are_kept_with_switches_at_any_line(grain: Any) -> None:
    assert search(Settings(grain=grain), range(6)) is None


def without(kind: type, name: str, result: object = None) -> Plant:
    return lambda: mock.patch.object(kind, name, return_value=result)


def other_queue(service: HoldService, key: tuple[str, int], *rest: Any) -> None:
    _notify(service, (key[0], key[1] & 7), *rest)


def of_whole_frames() -> AbstractContextManager[Any]:
    """Inject a fault: if a frame arrives in parts, the broker loses all parts but the last."""

    def receives(connection: Connection, data: bytes) -> None:
        connection._frames = FrameReader(connection._size_max)
        connection._frames.feed(data)

    return mock.patch.object(Connection, "receive_data", receives)


def as_if_closed() -> AbstractContextManager[Any]:
    return mock.patch.object(
        message_store, "recover", lambda *parts, **named: recover(*parts, **(named | {"crashed": False}))
    )


_notify: Final = HoldService.notify
PLANTED: Final[dict[str, tuple[Plant, set[str], set[str]]]] = {
    "no deadline wakes the clock": (without(HoldService, "_tell_clock"), {"late"}, set()),
    "the wrong queue is woken": (lambda: mock.patch.object(HoldService, "notify", other_queue), {"lost wakeup"}, set()),
    "a stop answers nobody": (without(HoldService, "stop"), {"left without a word"}, {"stop"}),
    "a sync that is none": (
        without(SimulatedMappedFile, "sync"),
        # `moved` means that a queue lists a message that the log has lost. `wrong message` means that an offset is used
        # again.
        {"two at one offset", "told nothing", "lost", "moved", "wrong message"},
        {"power"},
    ),
    "half a frame is forgotten": (of_whole_frames, {"closed", "unacknowledged", "late", "lost wakeup"}, {"pieces"}),
    "a crash is recovered as a stop": (as_if_closed, {"told nothing", "lost", "two at one offset"}, {"kill", "power"}),
}
"""Maps each fault to (function that injects it, promises that it may break, disturbances that it needs)."""


def troubles(seed: int) -> set[str]:
    plan = plan_of(seed)
    return {mishap.kind for mishap in plan.mishaps} | ({"pieces"} if plan.is_pieced else set())


def test_a_killed_process_writes_nothing_more() -> None:
    """When the simulation ends a thread, its `finally` block runs, but no write reaches the killed process's disk."""
    spawn, start = SimulatedRuntime.spawn, Run.start
    wrote: list[str] = []
    seen: set[str] = set()

    def spawns(runtime: SimulatedRuntime, name: str, target: Callable[[], None]) -> Any:
        def leaves() -> None:
            try:
                target()
            finally:
                if runtime.process and runtime.world.over:
                    wrote.append(name)
                    runtime.files.write_atomic("/store/left", b"x")

        return spawn(runtime, name, leaves)

    def starts(run: Run) -> None:
        seen.update(run.disk.paths())
        start(run)

    with mock.patch.object(SimulatedRuntime, "spawn", spawns), mock.patch.object(Run, "start", starts):
        search(Settings(), (seed for seed in range(40) if {"kill", "power"} & troubles(seed)))

    assert wrote
    assert "/store/left" not in seen
    assert "/store/abort" in seen


SLOW = {"a crash is recovered as a stop", "a stop answers nobody"}


@pytest.mark.parametrize(
    ("plant", "kinds", "needed"),
    [pytest.param(*PLANTED[name], id=name, marks=[pytest.mark.long] if name in SLOW else []) for name in PLANTED],
)
def test_injected_faults_are_found(plant: Plant, kinds: set[str], needed: set[str]) -> None:
    with plant():
        found = search(Settings(), SEEDS_PLANTED)

    assert found is not None
    assert found[1].kind in kinds, found[1].failure
    assert not needed or needed & troubles(found[0])


def test_an_error_that_the_broker_survives_is_a_failure() -> None:
    """A logged error ends the search even if the broker breaks no promise."""
    with mock.patch.object(Statistics, "sample", raising(LookupError("planted"))):
        found = search(Settings(), SEEDS_PLANTED)

    assert found is not None
    assert found[1].kind == "logged"
    assert "planted" in str(found[1].failure)


def flush_that_lies() -> AbstractContextManager[Any]:
    flush = MessageStore.flush

    def flushes(store: MessageStore) -> int:
        with contextlib.suppress(OSError):
            return flush(store)
        return store.log_end

    return mock.patch.object(MessageStore, "flush", flushes)


def assert_woken(runtime: SimulatedRuntime) -> None:
    assert runtime.event().wait()


def start_that_leaves_a_thread() -> AbstractContextManager[Any]:
    opens = MessageStore.open

    def opened(runtime: SimulatedRuntime, *rest: Any) -> MessageStore:
        runtime.spawn("left", lambda: assert_woken(runtime))
        return opens(runtime, *rest)

    return mock.patch.object(MessageStore, "open", opened)


BAD_DISK: Final[dict[str, tuple[Plant, set[str]]]] = {
    "a flush that lies": (flush_that_lies, {"told nothing", "lost", "two at one offset", "moved"}),
    "a lock that a failed store keeps": (without(MessageStore, "_unmap"), {"StoreUserError"}),
    "a thread that a failed start leaves": (start_that_leaves_a_thread, {"AssertionError", "StuckError"}),
    "what failed is not tried again": (
        without(DispatchService, "show_waiting"),
        {"lost wakeup", "late", "told nothing"},
    ),
}


@pytest.mark.parametrize("name", quick_if(BAD_DISK, lambda name: name != "what failed is not tried again"))
def test_a_disk_with_errors_finds_injected_faults(name: str) -> None:
    plant, kinds = BAD_DISK[name]
    with plant():
        found = search(Settings(), (seed for seed in range(40_000) if "disk" in troubles(seed)))

    assert found is not None
    assert found[1].kind in kinds, found[1].failure


@pytest.mark.long
def test_errors_of_a_disk_reach_every_kind_of_call() -> None:
    met: list[tuple[str, str]] = []
    before = DiskFaults.before
    slow_ms: list[float] = []

    def meets(disk: DiskFaults, operation: str, path: str) -> None:
        try:
            before(disk, operation, path)
        except OSError:
            met.append((operation, f"{path}//".split("/")[2]))
            raise

    def prepare(run: Run) -> None:
        runs.append(run)

    with mock.patch.object(DiskFaults, "before", meets):
        for seed in range(300):
            plan = plan_of(seed)
            if "disk" in troubles(seed) or plan.slow_ms_max:
                runs: list[Run] = []
                outcome = play(plan, STRICT, schedule_of("mixed", seed), prepare=prepare)
                assert outcome.failure is None
                slow_ms += [runs[0].bad_disk.spent_ms] if plan.slow_ms_max else []

    assert {"sync", "create", "reserve"} <= {operation for operation, _where in met}
    assert {"commitlog", "consumequeue", "config"} <= {where for _operation, where in met}
    assert min(slow_ms) > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [Settings("strict", ("recheck_after_hold=none",)), Settings("rocketmq-4.9"), Settings("rocketmq-5")]
)
def test_a_wakeup_is_lost_where_the_specification_allows_it(settings: Settings) -> None:
    found = search(settings, range(8_000), promises=("lost wakeup",))

    assert found is not None
    assert found[1].kind == "lost wakeup"


def digest(seeds: range) -> str:
    found = hashlib.sha256()
    for seed in seeds:
        runs: list[Run] = []

        def prepare(run: Run, runs: list[Run] = runs) -> None:
            run.record_directory = "/record"
            runs.append(run)

        outcome = play(plan_of(seed), STRICT, schedule_of("mixed", seed), prepare=prepare)
        found.update(repr(outcome).encode())
        disk = runs[0].disk
        files = SimulatedFiles(disk)
        for path in sorted(disk.paths()):
            found.update(path.encode() + files.read(path))
    return found.hexdigest()


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """The store and the history have the same bytes in every process, whatever the process's hash seed is."""
    script = "from model_tests.simulate.test_whole_broker import digest; print(digest(range(3)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    own = digest(range(3))
    assert done.stdout.strip() == own
    assert own != digest(range(3, 6))


def test_the_recorded_turns_replay_a_run() -> None:
    """A replay of the recorded scheduling choices and pauses repeats the run's scheduling points, times and answers."""
    stalled = changed = 0
    for seed in SEEDS_AGAIN:
        outcome = one_run(Settings(), seed)
        stalled += any(turn.to < 0 for turn in outcome.turns)
        changed += play(plan_of(seed), STRICT, Strategy()) != outcome
        assert play(plan_of(seed), STRICT, Replay(outcome.turns)) == outcome

    assert stalled
    assert changed, "turns have no effect"


def test_the_judge_reports_no_violation_of_a_simulated_run() -> None:
    verdicts = []
    for seed in range(8):
        runs: list[Run] = []

        def prepare(run: Run, runs: list[Run] = runs) -> None:
            run.record_directory = "/record"
            runs.append(run)

        play(plan_of(seed), STRICT, strategy_of("mixed", seed), prepare=prepare)
        with tempfile.TemporaryDirectory() as scratch:
            verdicts += [str(longpoll.judge(life).verdict) for life in histories(runs[0], Path(scratch))]

    assert "invalid" not in verdicts
    assert verdicts.count("valid") > len(verdicts) / 4


def histories(run: Run, scratch: Path) -> list[Path]:
    files = SimulatedFiles(run.disk)
    for path in run.disk.paths():
        if path.startswith("/record/"):
            copy = scratch / path[1:]
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(files.read(path))
    return sorted((scratch / "record").iterdir())


def test_a_failure_is_shrunk_and_replayed() -> None:
    settings = Settings("strict", ("on_close=ignore",))
    found = search(settings, range(60, 400), promises=("left behind",))
    assert found is not None
    failure = explain(settings, *found)

    assert sum(map(len, failure.plan.peers)) <= 3
    assert len(failure.turns) <= 2
    assert "pull queue" in str(failure.plan)
    assert replayed(settings, failure.plan, failure.turns).failure == failure.said


def told(*words: str) -> Any:
    return CliRunner().invoke(command, list(words))


def test_the_command_reports_a_successful_run() -> None:
    done = told("--runs", "3", "--seed", "5")

    assert done.exit_code == 0, done.output
    assert "3 runs (" in done.stdout
    assert f" {sum(one_run(Settings(), seed).step_count for seed in (5, 6, 7)):,} steps" in done.stdout


def test_the_command_reports_a_failure() -> None:
    done = told("--knob", "on_close=ignore", "--promise", "left behind", "--runs", "400", "--seed", "60")

    assert done.exit_code == 1
    assert "held without a connection" in done.stdout
    assert "pull queue" in done.stdout


def test_a_start_after_a_power_cut_may_log_the_truncation() -> None:
    """With seed 1141 a complete record follows a torn record on the disk; truncating both breaks no promise."""
    done = told("--runs", "1", "--seed", "1141")

    assert done.exit_code == 0, done.stdout
