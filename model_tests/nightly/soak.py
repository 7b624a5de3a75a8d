"""Runs the load of simulated runs against a real broker process, which is killed, stopped and restarted.

A round draws its plan from its seed like `model_tests.support.simulation`, with the faults of a real machine: SIGKILL,
SIGTERM and broken connections. Holds are shorter, because time is real. The simulation's checker checks the answers and
subtracts host pauses. After each stop of the broker, its store is verified and its history judged. The verdict on a
killed broker may be `unknown` because the record has no end.

The seed determines requests and faults, but not the thread schedule, so the same seed may not fail again. Power cuts,
disk errors and clock steps exist only in the simulation.
"""

from __future__ import annotations

import random
import select
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
from attrs import define, field
from model_tests.support.simulation.checker import OUTCOMES, Checker, checker_of
from model_tests.support.simulation.client import SimulatedClient
from model_tests.support.simulation.plan import Act, InjectedFault, Plan, Pull, plan_of

from longpoll.verification.broker_process import ServedBroker
from longpoll_broker.store.verify import verify
from longpoll_client.errors import ClientError
from longpoll_client.remoting import RemotingClient
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.admin_headers import CreateTopicRequestHeader
from longpoll_protocol.codes import RequestCode
from longpoll_runtime import Address, Buffer, Thread
from longpoll_runtime.files import RealFiles
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import Policy

CONNECT_S: Final = 10.0


class RealConnection:
    """A blocking connection; `cut` may be called from any thread. Raises OSError if nothing listens."""

    def __init__(self, address: Address) -> None:
        with ExitStack() as undo:
            # Setting the option fails on a connection that the peer resets at once.
            self._socket = undo.enter_context(socket.create_connection(address, CONNECT_S))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            undo.pop_all()
        self.recv_into = self._socket.recv_into
        self.close = self._socket.close

    def wait_readable(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(ready)

    def send(self, content: Buffer, /) -> int:
        self._socket.sendall(content)
        return len(content)

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def cut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


QUEUE_COUNT: Final = 64
DELAY_MS: Final = 250.0
"""The longest transit time in either direction, on a machine that does not pause."""
HOLD_MS_MAX: Final = 2_000
MISHAPS: Final = {"kill": "kill", "power": "kill", "stop": "stop", "cut": "cut"}
"""Simulated fault -> the corresponding fault of a real machine."""
TRIES_MAX: Final = 3_000
"""A broker on a busy machine starts more slowly than a simulated one, so clients try more often."""
JUDGED_MS: Final = 1_000.0
"""The lateness that the judge permits, in ms, in addition to host pauses."""


def is_idle(gaps: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the verdict is unknown only because the broker ended before any pull."""
    return {gap["clause"] for gap in gaps} == {"evidence.nothing_judged"}


class BrokenPromiseError(AssertionError):
    """The broker broke a promise. The message gives the promise and the evidence."""


class _EndedError(Exception):
    """Raised to end the client threads when the soak is over."""


def real_plan_of(seed: int) -> Plan:
    plan = plan_of(seed)
    peers = tuple(tuple(_shorter(act) for act in acts) for acts in plan.peers)
    mishaps = [InjectedFault(each.at_ms, MISHAPS[each.kind]) for each in plan.mishaps if each.kind in MISHAPS]  # type: ignore[arg-type] # troubles, all
    return attrs.evolve(plan, peers=peers, mishaps=tuple(mishaps))


def _shorter(act: Act) -> Act:
    return attrs.evolve(act, hold_ms=min(act.hold_ms, HOLD_MS_MAX)) if isinstance(act, Pull) else act


@define
class Counts:
    rounds: int = 0
    answers: int = 0
    mishaps: Counter[str] = field(factory=Counter)
    judged: Counter[str] = field(factory=Counter)
    unknown_stopped: int = 0
    """The number of broker processes that stopped cleanly and got the verdict unknown, although clients pulled from
    them."""
    stored: int = 0


@define(eq=False)
class Soak:
    """A broker and its rounds. Invariant: in the `with` block `_broker` serves, except during `end_life` and `_start`.

    The clients are threads. Each thread appends its own answers by a single bytecode, so no lock is needed.
    """

    directory: Path
    policy: Policy
    options: Sequence[str]
    store: Path
    counts: Counts = field(factory=Counts)
    _runtime: RealRuntime = field(factory=RealRuntime)
    _watch: HostPauseWatch | None = None
    """The watch for host pauses in the current round."""
    _broker: ServedBroker | None = None
    _life: int = 0
    _stalled_ms: float = 0.0
    """The total of host pauses in the finished rounds of this broker process, in ms."""
    _round_begun_ns: int = 0
    _ways: list[RealConnection] = field(factory=list)
    _is_over: bool = False

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._close_ways()
        if self._broker is not None:
            self._broker.kill()

    # -- rounds of the soak test -------------------------------------------------------------------------------------

    def round(self, seed: int) -> None:
        """Run one round; after an exception no more rounds may follow. Raises BrokenPromiseError."""
        assert self._broker is not None
        failures: list[BaseException] = []
        with HostPauseWatch(self._broker.process_id) as watch:
            self._watch, self._round_begun_ns = watch, self._runtime.monotonic_ns()
            self._attempt(lambda: self._round(seed, failures), failures)
            self._stalled_ms += self._spent_ms()
            self._watch = None
        self.counts.rounds += 1
        if failures:
            first = failures[0]
            said = str(first) if isinstance(first, AssertionError) else f"{type(first).__name__}: {first}"
            raise BrokenPromiseError(f"seed {seed}: {said}") from first

    def _round(self, seed: int, failures: list[BaseException]) -> None:
        assert self._broker is not None
        plan, topic = real_plan_of(seed), f"soak-{seed}-{self.counts.rounds}"
        self._make_topic(self._broker.address, topic)
        may_cut = any(mishap.kind == "cut" for mishap in plan.mishaps)
        account = checker_of(self.policy, DELAY_MS, may_cut=may_cut)
        account.spent_ms = self._spent_ms
        threads = [
            self._peer(f"peer-{number}", account, topic, acts, failures) for number, acts in enumerate(plan.peers)
        ]
        self._attempt(lambda: self._fate(plan, topic, account), failures)
        for thread in threads:
            thread.join()
        self._close_ways()
        if not failures:
            self._read_whole(account, topic, failures)
        self._close_ways()
        self.counts.answers += account.answered

    def _close_ways(self) -> None:
        """Close all connections, because a client that saw a broken promise leaves its connection open."""
        for way in self._ways:
            way.close()
        self._ways.clear()

    def _spent_ms(self) -> float:
        if self._watch is None:
            return 0.0
        return self._watch.stalled_ms(self._round_begun_ns, self._runtime.monotonic_ns())

    def _peer(
        self, name: str, account: Checker, topic: str, acts: tuple[Act, ...], failures: list[BaseException]
    ) -> Thread:
        peer = SimulatedClient(name, self._runtime, self._connect, account, topic, TRIES_MAX)
        return self._runtime.spawn(name, partial(self._attempt, peer.live(acts), failures))

    def _attempt(self, work: Callable[[], None], failures: list[BaseException]) -> None:
        try:
            work()
        except _EndedError:
            return
        except OUTCOMES as error:
            failures.append(error)
            self._is_over = True

    def _read_whole(self, account: Checker, topic: str, failures: list[BaseException]) -> None:
        self._runtime.sleep(account.lag_ms / 1e3)
        reader = SimulatedClient("reader", self._runtime, self._connect, account, topic, TRIES_MAX)
        queues = sorted({queue for queue, _offset in account.by_offset})
        self._attempt(lambda: reader.read_whole(queues), failures)

    def _connect(self) -> RealConnection:
        if self._is_over:
            raise _EndedError
        broker = self._broker
        if broker is None:
            raise ConnectionRefusedError("the broker is being started")
        way = RealConnection(broker.address)
        self._ways.append(way)
        return way

    def _make_topic(self, address: Address, topic: str) -> None:
        header = CreateTopicRequestHeader(
            topic=topic, default_topic="TBW102", read_queue_nums=QUEUE_COUNT, write_queue_nums=QUEUE_COUNT
        )
        with closing(RemotingClient(self._runtime, *address)) as client:
            answer = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_s=30.0)
        if answer.code:
            raise ClientError(f"topic {topic} cannot be made: code {answer.code} {answer.remark}")

    # -- injected faults of the machine ------------------------------------------------------------------------------

    def _fate(self, plan: Plan, topic: str, account: Checker) -> None:
        draw = random.Random(plan.seed ^ 0x50AC)
        begun_ns = self._runtime.monotonic_ns()
        for mishap in plan.mishaps:
            left_s = mishap.at_ms / 1e3 - (self._runtime.monotonic_ns() - begun_ns) / 1e9
            if left_s > 0:
                self._runtime.sleep(left_s)
            self.counts.mishaps[mishap.kind] += 1
            if mishap.kind == "cut":
                self._cut(draw)
            else:
                self._live_again(mishap.kind, topic, account)

    def _cut(self, draw: random.Random) -> None:
        whole = [way for way in self._ways if way.is_open]
        if whole:
            draw.choice(whole).cut()

    def _live_again(self, how: str, topic: str, account: Checker) -> None:
        answers = how == "stop" and self.policy.on_stop == "answer"
        account.stopping(self._runtime.monotonic_ns() / 1e6, answers=answers)
        self.end_life(is_killed=how == "kill")
        account.ended()
        self._start(topic)
        account.started()

    # -- runs of the broker process ----------------------------------------------------------------------------------

    @property
    def _history(self) -> Path:
        return self.directory / f"history-{self._life}"

    def _start(self, topic: str | None = None) -> None:
        """Start a broker process, and create the topic again.

        The topic must be created again, because a kill may come before the flush thread writes the topic's settings to
        disk.
        """
        self._life += 1
        self._stalled_ms = 0.0
        broker = ServedBroker(self.store, self._history, *self.options)
        if self._watch is not None:
            self._watch.add(broker.process_id)
        with ExitStack() as undo:
            undo.callback(broker.kill)
            if topic is not None:
                self._make_topic(broker.address, topic)
            undo.pop_all()
        self._broker = broker

    def end_life(self, *, is_killed: bool) -> None:
        """End the broker, and check its store and history.

        Raises BrokenPromiseError, and ServeError if the broker does not stop.
        """
        broker, self._broker = self._broker, None
        assert broker is not None
        if is_killed:
            broker.kill()
        else:
            with broker:
                code = broker.stop()
            if code:
                raise BrokenPromiseError(f"the broker ended with exit code {code} when it was stopped")
        self._look_at_store()
        self._judge(is_killed=is_killed)

    def _look_at_store(self) -> None:
        verdict = verify(RealFiles(), str(self.store))
        self.counts.stored = verdict.messages
        if verdict.is_damaged:
            first = next(one for one in verdict.problems if one.kind == "damage")
            where = f"{first.file} at {first.offset}: found {first.found}, expected {first.expected}"
            raise BrokenPromiseError(f"the store is damaged: {where}")

    def _judge(self, *, is_killed: bool) -> None:
        limit_ms = JUDGED_MS + self._stalled_ms + self._spent_ms()
        result = judge([self._history], engine="local", wake_ms=limit_ms, late_ms=limit_ms)
        self.counts.judged[result.verdict] += 1
        if result.verdict == "invalid":
            first = result.findings[0]
            raise BrokenPromiseError(f"the judge finds {first.property} violated in {self._history.name}: {first.why}")
        self.counts.unknown_stopped += result.verdict == "unknown" and not is_killed and not is_idle(result.gaps)
        shutil.rmtree(self._history)
