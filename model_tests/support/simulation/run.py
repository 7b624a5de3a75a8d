"""Runs one simulation with a broker, a disk, clients and faults, and checks that every promise was kept.

Each error that the broker logs is a failure, even if the broker survives it. Warnings do not count, because policies
and limits cause them as intended. `plan` draws the runs, and `search` searches among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs
from attrs import define, field
from model_tests.support.broker.brokers import one_by_one
from model_tests.support.simulation.checker import OUTCOMES, RETRY_MS, BrokenError, Checker, checker_of
from model_tests.support.simulation.client import SimulatedClient
from model_tests.support.simulation.disk import Disk
from model_tests.support.simulation.files import DiskFaults, SimulatedFiles
from model_tests.support.simulation.network import Network, SimulatedSocket, Weather
from model_tests.support.simulation.plan import LONGEST_MS, Act, Grain, InjectedFault, Plan, Pull, Wait
from model_tests.support.simulation.runtime import SimulatedRuntime

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.shared.topics import TopicConfig
from longpoll_runtime import Thread
from longpoll_simulation.refinement import collected_errors
from longpoll_simulation.world import LineTracing, Strategy, Turn, World
from longpoll_spec.errors import LongpollError
from longpoll_spec.policy import Policy

ADDRESS: Final = ("127.0.0.1", 10911)
NAME_SERVER: Final = ("127.0.0.1", 9876)
DIRECTORY: Final = "/store"
STORE: Final = StoreConfig(
    commit_log_file_size=16_384,
    consume_queue_file_size=20 * 64,
    index_slot_count=13,
    index_entry_count=64,
    message_size_max=1024,
    memory_size=1 << 30,
)
CONFIG: Final = BrokerConfig(auto_create_topic=False)
NARROW: Final = attrs.evolve(CONFIG, pull_thread_count=1, pull_queue_capacity=1, pull_wait_ms_max=2)
QUEUE_COUNT: Final = 64
STEPS_MAX: Final = 400_000
"""The maximum number of scheduling points of a run. Only an endless loop reaches it."""
BEHIND_CALLS_MAX: Final = 50
"""The number of slow disk calls by which a polling dispatcher may lag behind."""
QUIET_MS: Final = 5.0
"""How many ms pass before a killed or stopped broker is started again."""
FAILING: Final = ("", "/commitlog/", "/consumequeue/")
"""Texts in the paths whose calls fail in a disk error: any path, the log, or the queues."""
JUMP_MS: Final = 3_600_000


def weather_of(plan: Plan) -> Weather:
    return Weather(int(plan.delay_ms_max * 1e6), plan.is_pieced, random.Random(plan.seed ^ 0x5EA))


@define(eq=False)
class Run:
    """One run. Invariant: unless `account` is told that the broker stops, `broker` serves."""

    plan: Plan
    policy: Policy
    world: World
    record_directory: str | None = None
    network: Network = field(init=False)
    account: Checker = field(init=False)
    disk: Disk = field(factory=Disk)
    ahead_ms: int = 0
    """How many ms the machine's wall clock is ahead."""
    runtime: SimulatedRuntime = field(init=False)
    broker: Broker = field(init=False)
    bad_disk: DiskFaults = field(init=False)
    _troubled_ms: float = field(default=float("-inf"), init=False)
    _random: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.network = Network(self.world, weather_of(self.plan))
        cuts = any(mishap.kind == "cut" for mishap in self.plan.mishaps)
        self.account = checker_of(self.policy, self.plan.delay_ms_max, may_cut=cuts)
        self.bad_disk = DiskFaults(self.world, random.Random(self.plan.seed ^ 0xBAD2), self.plan.slow_ms_max)
        self.account.spent_ms = self._spent_ms
        self.account.disk_failed_ms = self._disk_failed_ms
        self.account.is_narrow = self.plan.is_narrow and self.policy.notify == "dispatcher_poll"
        self._random = random.Random(self.plan.seed ^ 0xD15C)

    def main(self) -> None:
        """The function of the first actor. Raises BrokenError, and any exception of the code under test."""
        self.start()
        peers = SimulatedRuntime(self.network)
        connect = partial(self.network.connect, peers.process, *ADDRESS)
        threads: list[Thread] = []
        for number, acts in enumerate(self.plan.peers):
            peer = SimulatedClient(f"peer-{number}", peers, connect, self.account, self.plan.topic)
            threads.append(peers.spawn(peer.name, peer.live(acts)))
        fate = peers.spawn("fate", self.fate)
        for thread in threads:
            thread.join()
        fate.join()
        self.runtime.sleep(self.account.lag_ms / 1e3)
        if self.account.lag_ms:
            self.runtime.sleep(BEHIND_CALLS_MAX * self.plan.slow_ms_max / 1e3)
        if self.bad_disk.error_count:
            self.runtime.sleep(RETRY_MS / 1e3)
        if self.broker.store.troubles:
            # The test stops the broker, as an operator would do when the broker reports a disk error.
            self.stop()
            self._start_again()
        reader = SimulatedClient("reader", peers, connect, self.account, self.plan.topic)
        reader.read_whole(sorted({queue for queue, _offset in self.account.by_offset}))
        # All clients have left, so after this time the broker must hold no pull.
        self.runtime.sleep((QUIET_MS + self.account.slack_ms) / 1e3)
        if len(self.broker.hold_service):
            raise BrokenError("left behind", f"{len(self.broker.hold_service)} pulls are held without a connection")
        if self.plan.is_deleted and self.policy.on_truncate == "wake" and not self.bad_disk.error_count:
            self.delete_topic(peers, connect)
        self.stop()

    def delete_topic(self, peers: SimulatedRuntime, connect: Callable[[], SimulatedSocket]) -> None:
        """Delete the topic while two clients begin to wait for its messages, before or after the deletion."""
        queues = sorted({act.queue for acts in self.plan.peers for act in acts if isinstance(act, Pull)})[:1] or [0]
        acts: tuple[Act, ...] = (*(Pull(queue, LONGEST_MS, from_end=True) for queue in queues), Wait())
        waits = [
            SimulatedClient(f"last-{number}", peers, connect, self.account, self.plan.topic) for number in range(2)
        ]
        admin = SimulatedClient("admin", peers, connect, self.account, self.plan.topic)
        threads = [peers.spawn(peer.name, peer.live(acts)) for peer in waits]
        threads.append(peers.spawn(admin.name, admin.delete_topic))
        for thread in threads:
            thread.join()

    # -- starts and stops of the broker ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker on its disk, again and again while disk errors prevent it."""
        while not self._succeeds(self._start, "start"):
            pass

    def _succeeds(self, do: Callable[[], None], what: str) -> bool:
        """Start or stop the broker; returns whether this succeeded. Raises unless a disk error explains the failure.

        A failure must leave no thread. An earlier error also explains a failed stop, because a store cannot be closed
        cleanly after a failed sync.
        """
        error_count = self.bad_disk.error_count
        try:
            do()
        except (OSError, LongpollError):
            is_known = what == "stop" and self.broker.store.troubles
            if error_count == self.bad_disk.error_count and not is_known:
                raise
            left = [str(actor) for actor in self.runtime.actors if not actor.done]
            assert not left, f"a {what} that failed leaves {', '.join(left)}"
            return False
        return True

    def _start(self) -> None:
        life = self.account.life
        name = f"broker-{life}" if life else "broker"
        files = SimulatedFiles(self.disk, before=self.bad_disk.before, now_ms=self._unix_ms)
        self.runtime = SimulatedRuntime(self.network, files, name, self.ahead_ms)
        plan = self.plan
        self.broker = Broker.start(
            self.runtime,
            DIRECTORY,
            policy=self.policy,
            config=attrs.evolve(NARROW if plan.is_narrow else CONFIG, io_thread_count=plan.io_thread_count),
            store_config=attrs.evolve(STORE, flush_disk_sync=plan.syncs),
            listen=ADDRESS,
            name_server=NAME_SERVER,
            record_directory=None if self.record_directory is None else f"{self.record_directory}/{life}",
        )
        if not plan.is_fast:
            one_by_one(self.broker)
        # Create the topic before any client connects. A restarted broker must find the topic in the store.
        if not life:
            self.broker.topics.put(TopicConfig(plan.topic, QUEUE_COUNT, QUEUE_COUNT))
            self.broker.keeping.saves.config_files.save_names()

    def _spent_ms(self) -> float:
        return self.world.paused_ms + self.bad_disk.spent_ms + self.world.step * self.world.step_ns / 1e6

    def _disk_failed_ms(self) -> float:
        """Returns the last time at which the disk failed a call, or the store reported an earlier error."""
        if self.broker.store.troubles:
            self._troubled_ms = self.world.now_ns / 1e6
        return max(self.bad_disk.last_ms, self._troubled_ms)

    def _unix_ms(self) -> int:
        return self.runtime.unix_ms()

    def stop(self) -> None:
        """Stop the broker cleanly."""
        answers = self.policy.on_stop == "answer"
        self.account.stopping(self.runtime.monotonic_ns() / 1e6, answers=answers)
        # Even a stop that fails has closed the broker.
        self._succeeds(self.broker.stop, "stop")

    def fate(self) -> None:
        """The function of the actor that injects the faults."""
        begin_ns = self.world.now_ns
        for mishap in self.plan.mishaps:
            left_s = mishap.at_ms / 1e3 - (self.world.now_ns - begin_ns) / 1e9
            if left_s > 0:
                self.runtime.sleep(left_s)
            self._suffer(mishap)

    def _suffer(self, mishap: InjectedFault) -> None:
        if mishap.kind == "clock":
            self.ahead_ms += self._random.choice((-JUMP_MS, JUMP_MS))
            self.runtime.unix_ahead_ms = self.ahead_ms
        elif mishap.kind == "disk":
            self.bad_disk.fail(self._random.choice((1, 1, 2, 5)), self._random.choice(FAILING))
        elif mishap.kind == "cut":
            whole = [sock for sock in self.network.sockets if sock.fileno() >= 0]
            if whole:
                self._random.choice(whole).cut()
        else:
            self._end(mishap)
            self._start_again()

    def _start_again(self) -> None:
        self.account.ended()
        self.runtime.sleep(QUIET_MS / 1e3)
        self.start()
        self.account.started()

    def _end(self, mishap: InjectedFault) -> None:
        if mishap.kind == "stop":
            self.stop()
            return
        self.account.stopping(self.world.now_ns / 1e6)
        # Copy the disk first, because the actors may still write while the simulation ends them.
        left = self.disk.cut(self._random) if mishap.kind == "power" else self.disk.kill()
        if mishap.kind == "power":
            # A disk keeps unsynced bytes in any order, so the next start may cut off complete records and log this.
            self.bad_disk.told.add("whole records follow from")
        self.runtime.kill()
        self.disk = left


@attrs.frozen
class Outcome:
    failure: str | None
    """The error of the run, or None if every promise was kept."""
    kind: str | None
    turns: tuple[Turn, ...]
    step_count: int
    virtual_ms: float
    answered_count: int


def play(
    plan: Plan,
    policy: Policy,
    strategy: Strategy,
    *,
    grain: Grain = "operation",
    files: Sequence[str] = (),
    prepare: Callable[[Run], None] = lambda _run: None,
) -> Outcome:
    """Run a plan under a strategy, with scheduling points at each operation or also at lines or accesses of `files`."""
    world = World(strategy, steps_max=STEPS_MAX)
    if grain != "operation":
        LineTracing.of(world, files, grain)
    run = Run(plan, policy, world)
    prepare(run)
    begin_ns = world.now_ns
    failure, kind = None, None
    with collected_errors() as loud:
        try:
            world.run(run.main)
        except OUTCOMES as error:
            failure, kind = f"{type(error).__name__}: {error}", kind_of(error)
    said = [each for each in loud.said if not any(told in each for told in run.bad_disk.told)]
    if failure is None and said:
        failure, kind = f"an error was logged: {said[0]}", "logged"
    virtual_ms = (world.now_ns - begin_ns) / 1e6
    return Outcome(failure, kind, tuple(world.turns), world.step, virtual_ms, run.account.answered)


def kind_of(error: BaseException) -> str:
    """Returns the kind of a failure. A shortened run must fail with the same kind."""
    return error.kind if isinstance(error, BrokenError) else type(error).__name__
