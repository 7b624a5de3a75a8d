"""The methods that may find a bug of the zoo: each is a function that searches in the process with the bug.

To add one: write a function `NAME(entry, deadline_s)` that returns its finding (`Seen`) or None, and put a `Method`
with it into `METHODS`. Import everything of the project inside it, after the bug was applied. A test checks that each
method finds nothing in the unchanged code. Applying and time limits: `plant`, `run`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import count
from pathlib import Path
from typing import Any, Final

from attrs import define, frozen
from model_tests.mutants.tests_of import quick_tests
from model_tests.mutants.zoo.entry import (
    BROKER,
    CHANNEL,
    CLIENT,
    HOLD_SERVICE,
    POLICY,
    PULL_PROCESSOR,
    STORE,
    TABLE,
    Entry,
)

WORLDS: Final[tuple[tuple[float, str, tuple[str, ...], Any, str], ...]] = (
    (0.3, "strict", (), "operation", ""),
    (0.15, "strict-clone", (), "operation", "is_crowded"),
    (0.1, "strict", ("notify=dispatcher_poll",), "operation", ""),
    (0.35, "strict", (), "operation", "is_deleted"),
    (0.1, "strict", (), "line", ""),
)
"""Worlds of the whole broker: the share of the time that each has, its policy with its knobs, its grain, and which of a
plan's features its seeds must have: none, a crowd of which some leave as a message comes, or a deleted topic."""
RACE_S: Final = 10.0
"""How long messages race their pulls."""
VAIN_S: Final = 30.0
"""Many bugs make a test wait in vain: it is red after this time."""
FAILED: Final = 1
"""pytest's exit code when tests ran and some failed."""
GUARDED: Final = (
    f"{BROKER}/shared/offsets.py",
    f"{BROKER}/shared/statistics.py",
    f"{STORE}/consume_queue.py",
    "reference/longpoll_broker/rocketmq/admin/lock_processor.py",
)
"""What `simulate/test_preempted.py` drives besides the hold table."""
STORED: Final = tuple(f"{STORE}/{name}.py" for name in ("message_store", "dispatch", "burst_append", "commit_log"))
STRESSED: Final[tuple[tuple[frozenset[str], str, str], ...]] = (
    (frozenset({*TABLE, HOLD_SERVICE}), "test_preempted", "Stage"),
    (frozenset({CHANNEL}), "test_stress", "ChannelStage"),
    (frozenset(STORED), "test_stress", "StoreStage"),
    (frozenset({PULL_PROCESSOR}), "test_stress", "PoolStage"),
)
"""Files, and the stress that switches between any two of their bytecodes (`model_tests/simulate/*_stress.py`)."""
"""What `simulate/store_stress.py` drives."""


@frozen
class Seen:
    """A method's finding about a bug."""

    what: str
    schedules: int | None = None
    """Runs, cases or states up to the first that shows it; None where nobody counts."""


Find = Callable[[Entry, float], Seen | None]


@frozen
class Method:
    """One way to look. `limit_s` is processor time, after which nothing was found."""

    name: str
    says: str
    limit_s: float
    applies: Callable[[Entry], bool]
    find: Find
    patience: int = 1
    """How many times its limit a removed lock is given: what it was for comes seldom."""
    is_dear: bool = False
    """Not every bug need have been shown to it."""

    def limit_of(self, entry: Entry) -> float:
        return self.limit_s * (self.patience if entry.kind == "lock" else 1)


def _left(deadline_s: float) -> bool:
    return time.process_time() < deadline_s


def _said(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text if len(text) <= 160 else text[:157] + "..."


# -- the law ---------------------------------------------------------------------------------------------------------


def law(entry: Entry, deadline_s: float) -> Seen | None:
    """Explore the law with the knob or the slip, in the worlds of the slips' table, smallest first."""
    from model_tests.support.spec.slip_table import LIMIT_STATES, explored, found_by_exploring, name_of, slips_in

    from longpoll_spec.engines import explore
    from longpoll_spec.policy import preset, with_knob
    from longpoll_spec.specification import properties_of, specification_of

    policy = preset(entry.policy)
    if entry.slip:
        slip = next(slip for slip in slips_in(policy) if name_of(slip) == entry.slip)
        found = found_by_exploring(slip, policy, thoroughly=False)
        return None if found.bounds is None else Seen(f"{found.broken} ({found.bounds.name})", found.steps)
    changed = reduce(with_knob, entry.knob.split("+"), policy)
    for bounds in explored(changed):
        model = specification_of(changed, bounds)
        judged = [item for item in properties_of(model) if item.kind == "always"]
        told = explore(model, judged, limit_states=LIMIT_STATES)
        broken = [each for each in told.verdicts if each.verdict == "violated"]
        if broken:
            first = min(broken, key=lambda each: each.depth or 0)
            return Seen(f"{first.name} ({bounds.name})", first.depth)
        if not _left(deadline_s):
            return None
    return None


def proof(entry: Entry, deadline_s: float) -> Seen | None:
    """Prove the spec with the knob or the mutant; return what is no longer proved, by configuration."""
    import attrs
    from model_tests.support.spec.slip_table import name_of, slips_in

    from longpoll_spec.engines.smt.configurations import WORLDS
    from longpoll_spec.engines.smt.proof import prove_model
    from longpoll_spec.policy import preset, with_knob
    from longpoll_spec.specification import specification_of

    policy = preset(entry.policy)
    slip = next((slip for slip in slips_in(policy) if name_of(slip) == entry.slip), None)
    for name, world in WORLDS.items():
        bounds = attrs.evolve(world, requests=2)
        if slip is not None and not slip.is_in(policy, bounds):
            continue
        changed = policy if slip is not None else reduce(with_knob, entry.knob.split("+"), policy)
        model = specification_of(changed, bounds) if slip is None else slip.planted(policy, bounds)
        told = prove_model(model, timeout_s=30.0, depth_max=0)
        gone = [each for each in told.needed if told.verdict(each) != "proved"]
        if gone:
            return Seen(f"{gone[0]} ({name})")
        if not _left(deadline_s):
            return None
    return None


# -- tests -----------------------------------------------------------------------------------------------------------


def tests_of(entry: Entry) -> tuple[str, ...]:
    """The tests that an entry names, or those of the files that it changes."""
    if entry.units:
        return entry.units
    return tuple(dict.fromkeys(test for file in sorted(entry.files) for test in quick_tests(file)))


def units(entry: Entry, _deadline_s: float) -> Seen | None:
    """Run the tests that are named, or those of the rooms that are changed."""
    return _run_tests(tests_of(entry))


def machines(entry: Entry, _deadline_s: float) -> Seen | None:
    """Run Hypothesis's machine against the spec, or against the model of the store."""
    if any(file.startswith(STORE) for file in entry.files):
        return _run_tests(("machines/test_store.py",), "not planted")
    return _run_tests(("machines/test_core.py::test_the_hold_table_does_what_the_law_says",))


class Reds:
    """A plugin that notes which test was red first, and how many ran before."""

    def __init__(self) -> None:
        self.first = ""
        self.ran = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.first:
            self.first = report.nodeid.removeprefix("model_tests/")


def _run_tests(tests: tuple[str, ...], keyword: str = "") -> Seen | None:
    import pytest

    reds = Reds()
    words = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "-k", keyword]
    words.append(f"--timeout={VAIN_S:g}")
    code = pytest.main([*words, *(f"model_tests/{test}" for test in tests)], plugins=[reds])
    # Tests that cannot be loaded have found nothing, whether the fault or the naming of them is the cause.
    assert code in {0, FAILED}, f"pytest ended with {code}: a test that is named is not there, or cannot be loaded"
    return None if code == 0 else Seen(reds.first, reds.ran)


# -- schedules -------------------------------------------------------------------------------------------------------


def bytecodes(entry: Entry, deadline_s: float) -> Seen | None:
    """Switch between any two bytecodes of the hold service, a channel, the store, or a shared table: the first seed."""
    for files, module, stage in STRESSED:
        if entry.files & files:
            return _first_fault(f"model_tests.simulate.{module}", stage, deadline_s)
    from model_tests.simulate import test_preempted

    from longpoll_broker.store.consume_queue import ConsumeQueue

    with tempfile.TemporaryDirectory() as directory:
        keeps: dict[str, Callable[[int], bool]] = {
            GUARDED[0]: lambda seed: (
                test_preempted.commits_forward(guarded=True, seed=seed) and test_preempted.forgets_one_topic(seed=seed)
            ),
            GUARDED[1]: lambda seed: test_preempted.counts_all(guarded=True, seed=seed),
            GUARDED[2]: lambda seed: test_preempted.reads_what_is_shown(ConsumeQueue, Path(directory), seed),
            GUARDED[3]: lambda seed: test_preempted.locks_for_one(guarded=True, seed=seed),
        }
        chosen = next(keep for file, keep in keeps.items() if file in entry.files)
        for seed in _until(deadline_s):
            if not chosen(seed):
                return Seen("what two threads share is wrong", seed + 1)
    return None


def _first_fault(module: str, run: str, deadline_s: float) -> Seen | None:
    """Let `run` of `module` be made from seed after seed until one goes wrong."""
    from model_tests.simulate.stress import first_fault

    found = first_fault(_until(deadline_s), getattr(importlib.import_module(module), run))
    return None if found is None else Seen(_said(found[1]), found[0] + 1)


def _until(deadline_s: float) -> Iterator[int]:
    for number in count():
        if not _left(deadline_s):
            return
        yield number


class _TimeIsOverError(Exception):
    """Nothing was found in the time that there is."""


@define
class _Counted:
    """Counts the worlds that are begun, and begins none when the time is over."""

    run: Callable[..., Any]
    deadline_s: float
    begun: int = 0

    def __call__(self, *words: Any, **more: Any) -> Any:
        if not _left(self.deadline_s):
            raise _TimeIsOverError
        self.begun += 1
        return self.run(*words, **more)


def steps(entry: Entry, deadline_s: float) -> Seen | None:
    """Drive the hold service step by step against the spec: tiny scopes completely, larger ones randomly."""
    from model_tests.simulate import exploration as tried
    from model_tests.simulate.stress import RAISED
    from model_tests.simulate.test_refinement import LARGER, TINIEST

    from longpoll_spec.policy import STRICT, STRICT_CLONE

    counted = _Counted(getattr(tried, "run"), deadline_s)  # noqa: B009 - the same
    setattr(tried, "run", counted)  # noqa: B010 - a module's own name, which it calls
    tries: list[Callable[[], Any]] = []
    for policy in (STRICT, STRICT_CLONE):
        tries += [
            partial(tried.explore, policy, TINIEST),
            partial(tried.wander, policy, LARGER, seed=11, runs=25, moves=70),
            partial(tried.explore, policy, TINIEST, rejects=True),
        ]
    for attempt in tries:
        try:
            found = attempt()
        except _TimeIsOverError:
            return None
        except (*RAISED, StopIteration) as error:
            return Seen(_said(error), counted.begun)
        if found.lost:
            return Seen(f"a wakeup is lost {' and '.join(sorted(found.lost))}", counted.begun)
        if found.late_ms:
            return Seen(f"a pull is {found.late_ms} ticks late", counted.begun)
        if found.dropped is not None:
            return Seen("a pull is dropped", counted.begun)
    return None


def pulls(_entry: Entry, deadline_s: float) -> Seen | None:
    """Race two pulls of one queue and a message for both, switched at operations by chance."""
    from model_tests.simulate.test_two_pulls import race
    from model_tests.support.simulation.strategies import RandomWalk

    from longpoll_simulation.world import StuckError

    for seed in _until(deadline_s):
        try:
            race(RandomWalk(seed))
        except (AssertionError, StuckError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            return Seen(_said(error), seed + 1)
    return None


def locksets(_entry: Entry, deadline_s: float) -> Seen | None:
    """Look at each call of what threads share whether its lock is held: by the hold table, a store, a broker."""
    from model_tests.simulate.test_locksets import of_broker, of_stages, of_store, watching

    with watching() as seen:
        stages = of_stages(seen, lambda: _left(deadline_s - 2.0))
        if not seen:
            of_store()
        if not seen:
            of_broker()
    return Seen(seen[0], stages) if seen else None


def simulated(entry: Entry, deadline_s: float) -> Seen | None:
    """Run the whole broker, or the client, in a simulated world, seed after seed: as strict, with a pool, by lines."""
    if any(file.startswith(CLIENT) for file in entry.files):
        return _first_fault("model_tests.simulate.test_clients", "ClientRun", deadline_s)
    from model_tests.support.simulation.plan import plan_of
    from model_tests.support.simulation.search import Settings, search

    runs = count(1)
    begun_s = until_s = time.process_time()
    for share, policy, knobs, grain, needed in WORLDS:
        until_s += share * (deadline_s - begun_s)
        seeds = (seed for seed in _until(until_s) if not needed or getattr(plan_of(seed), needed))
        found = search(Settings(policy, knobs, grain=grain), seeds, lambda _seed, _outcome: next(runs) > 0)
        if found is not None:
            return Seen(str(found[1].failure)[:160], next(runs))
    return None


# -- the served broker -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _served(directory: str, *, recorded: bool) -> Iterator[Any]:
    from model_tests.support.suite import EmbeddedBroker

    from longpoll_runtime.real import RealRuntime

    history = str(Path(directory, "history")) if recorded else None
    with EmbeddedBroker(
        RealRuntime(), str(Path(directory, "store")), can_restart=False, record_directory=history
    ) as subject:
        yield subject


def wire(_entry: Entry, _deadline_s: float) -> Seen | None:
    """Run the property suite against a broker that serves: 20 examples from one seed."""
    from model_tests.support.suite import run_suite

    with tempfile.TemporaryDirectory() as directory, _served(directory, recorded=False) as subject:
        report = run_suite(subject.runtime, subject, max_examples=20, step_count=40, seed=7, shrink=False)
        return Seen(report.why.splitlines()[0][:160], report.examples) if report.verdict == "invalid" else None


@contextlib.contextmanager
def _forked() -> Iterator[tuple[tuple[str, int], int]]:
    """A broker with the bug in a separate process, whose two I/O threads race: its address and pid."""
    import attrs

    from longpoll_broker.broker import Broker
    from longpoll_broker.config import BrokerConfig
    from longpoll_runtime.interpreter import short_switch_interval
    from longpoll_runtime.real import RealRuntime

    told, tells = os.pipe()
    waits, lets = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(lets)
        try:
            config = attrs.evolve(BrokerConfig(), io_thread_count=2)
            with (
                short_switch_interval(),
                tempfile.TemporaryDirectory() as directory,
                Broker.start(RealRuntime(), str(Path(directory, "store")), config=config) as broker,
            ):
                os.write(tells, b"%s %d" % (broker.address[0].encode(), broker.address[1]))
                os.read(waits, 1)
        finally:
            os._exit(0)
    try:
        os.close(tells)
        host, _, port = os.read(told, 100).decode().partition(" ")
        yield (host, int(port)), child
    finally:
        os.close(lets)
        os.waitpid(child, 0)


def races(_entry: Entry, _deadline_s: float) -> Seen | None:
    """Race messages against the pulls that wait for them, as `longpoll verify` does, for ten seconds."""
    from longpoll.verification import races as raced
    from longpoll.verification.limits import Declared, limits_of
    from longpoll_runtime.real import RealRuntime
    from longpoll_spec.policy import STRICT

    limits = limits_of(0, wake_ms=1_000, late_ms=1_000)
    with _forked() as (address, child):
        row = raced.races(
            RealRuntime(), address, "T", RACE_S, lambda _done, _all: None, known=Declared(STRICT, {}, 0),
            limits=lambda: limits, process_id=child,
        )  # fmt: skip
    said = row.detail.partition("later than promised, the first: ")[2]
    return Seen(f"pulls answered too late: {said}"[:160]) if row.outcome == "violated" else None


def judge(_entry: Entry, _deadline_s: float) -> Seen | None:
    """Record what the broker does with the suite's requests, and judge the history; what the suite says counts not."""
    from model_tests.support.suite import run_suite

    from longpoll_judge.run.pipeline import judge as judged

    with tempfile.TemporaryDirectory() as directory:
        with _served(directory, recorded=True) as subject:
            report = run_suite(subject.runtime, subject, max_examples=12, step_count=40, seed=7, shrink=False)
        result = judged([Path(directory, "history", "1")], engine="local", wake_ms=5_000, late_ms=2_000)
    found = next(iter(result.findings), None)
    return None if found is None else Seen(str(found.property)[:160], report.examples)


def conform(_entry: Entry, _deadline_s: float) -> Seen | None:
    """Play the recorded conversations of the clauses with a broker that serves: the first clause that fails."""
    from longpoll_broker.broker import Broker
    from longpoll_conform.play import Place
    from longpoll_conform.suite import Suite
    from longpoll_conform.vectors import recorded
    from longpoll_runtime.real import RealRuntime

    with (
        tempfile.TemporaryDirectory() as directory,
        Broker.start(RealRuntime(), directory) as broker,
    ):
        place = Place(broker.address, broker.name_server_address)
        suite = Suite(place, "strict", "zoo", makes_smaller=False)
        suite.find()
        results = suite.run(recorded("4.9.7"))
    failed = [place for place, result in enumerate(results) if result.outcome == "FAIL"]
    if not failed:
        return None
    first = results[failed[0]]
    return Seen(f"{first.clause.id} {first.vector.id}: {first.why}"[:160], failed[0] + 1)


# -- all of them -----------------------------------------------------------------------------------------------------


def _in_the_law(entry: Entry) -> bool:
    return bool(entry.knob or entry.slip)


def _in_the_table(entry: Entry) -> bool:
    return bool(entry.files & set(TABLE))


def _is_served(entry: Entry) -> bool:
    return any(file.startswith((f"{BROKER}/", POLICY, "reference/longpoll_runtime")) for file in entry.files)


METHODS: Final = (
    Method("law", "the law with the knob or the slip, explored", 20, _in_the_law, law),
    Method("proof", "the law with the knob or the slip, proved", 40, _in_the_law, proof),
    Method("units", "quick tests of what is changed", 40, lambda _entry: True, units),
    Method(
        "machines",
        "Hypothesis's machines, beside the law or a model",
        20,
        lambda entry: _in_the_table(entry) or any(file.startswith(STORE) for file in entry.files),
        machines,
        is_dear=True,
    ),
    Method(
        "bytecodes",
        "switches between any two bytecodes",
        3,
        lambda entry: bool(entry.files & {*TABLE, *GUARDED, *STORED, CHANNEL, HOLD_SERVICE, PULL_PROCESSOR}),
        bytecodes,
        patience=8,
        is_dear=True,
    ),
    Method("steps", "switches at step points, beside the law", 5, _in_the_table, steps, is_dear=True),
    Method("pulls", "two pulls and a message, switched at operations", 3, _in_the_table, pulls, is_dear=True),
    Method(
        "locksets",
        "each call of what threads share, with its lock or without",
        4,
        lambda entry: entry.kind == "lock" and _is_served(entry),
        locksets,
        is_dear=True,
    ),
    Method(
        "simulated",
        "the whole broker, or a client of it, in a simulated world",
        25,
        lambda entry: _is_served(entry) or any(file.startswith(CLIENT) for file in entry.files),
        simulated,
        patience=2,
        is_dear=True,
    ),
    Method("wire", "the property suite over sockets", 20, _is_served, wire, is_dear=True),
    Method("conform", "the clauses' recorded conversations over sockets", 20, _is_served, conform, is_dear=True),
    Method("races", "messages that race their pulls over sockets", 60, _is_served, races, is_dear=True),
    Method("judge", "the judge, of a recorded run", 30, _is_served, judge, is_dear=True),
)
