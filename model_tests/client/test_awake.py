"""Whether one that waits for answers waits awake: on machines that are made of numbers, and beside the real one."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from attrs import define, field

from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client.aio.connection import AsyncConnection
from longpoll_client.link.awake import (
    ASLEEP_BLOCKS_MAX,
    AWAKE_NS_MAX,
    BLOCK_NS_MIN,
    LEFT_MIN,
    REFUSED_NS,
    REFUSED_NS_MAX,
    TRY_BLOCKS,
    Awake,
)
from longpoll_client.link.calls import Answer
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime

PATIENCE_S = 10.0
US, MS, S = 1_000, 1_000_000, 1_000_000_000
OWN_NS = 60 * US
"""What a caller does between two waits."""


@define
class Machine:
    """Two cores on which a caller, and the broker that it asks, have so much to do."""

    asleep_ns: int = 150 * US
    """How long an answer takes one that sleeps."""
    awake_ns: int = 80 * US
    others: float = 0.0
    """Cores that other work has."""
    served_ns: int = 70 * US
    """What the broker does for a call, on the same machine."""
    tells: bool = True
    now_ns: int = 0
    used_ns: float = 0.0
    awake_count: int = 0
    calls: list[bool] = field(factory=list)
    """Whether each call waited awake."""

    def idle_ns(self) -> int | None:
        """As the system counts it."""
        return int((2 * self.now_ns - self.used_ns) / 1e7) * 10**7 if self.tells else None

    def call(self, awake: Awake) -> None:
        """Ask once, as this machine is now."""
        is_awake = awake.awake_ns > 0
        took_ns = self.awake_ns if is_awake and self.awake_ns <= AWAKE_NS_MAX else self.asleep_ns
        passed_ns = OWN_NS + took_ns
        mine_ns = OWN_NS + (min(took_ns, awake.awake_ns) if is_awake else 0)
        self.used_ns += min(2 * passed_ns, mine_ns + self.served_ns + self.others * passed_ns)
        self.now_ns += passed_ns
        self.calls.append(is_awake)
        awake.ended(self.now_ns, took_ns)

    def run(self, awake: Awake, time_ns: int) -> float:
        """Call for so long; the share of calls that waited awake."""
        self.calls.clear()
        until_ns = self.now_ns + time_ns
        while self.now_ns < until_ns:
            self.call(awake)
        return sum(self.calls) / len(self.calls)


def test_one_that_has_the_machine_alone_waits_awake() -> None:
    """Soon, and nearly always from then on: one block in 32 asks whether sleeping would do."""
    machine = Machine()
    awake = Awake(machine.idle_ns)
    machine.run(awake, S)
    assert 0.95 < machine.run(awake, 10 * S) < 1.0


@pytest.mark.parametrize(
    "machine",
    [
        Machine(others=2.0),
        Machine(others=1.0),
        Machine(asleep_ns=2 * AWAKE_NS_MAX),
        Machine(tells=False),
    ],
    ids=["others have both cores", "others have one", "answers take long", "nobody tells"],
)
def test_one_whose_waiting_would_cost_others_sleeps(machine: Machine) -> None:
    """Always: a core that others could use, or one that does nothing for long."""
    awake = Awake(machine.idle_ns)
    assert machine.run(awake, 20 * S) == 0.0


@pytest.mark.parametrize("awake_ns", [150 * US, 145 * US, 290 * US])
def test_one_that_gains_nothing_sleeps(awake_ns: int) -> None:
    """But for the blocks that show it: here the cores that are idle are not for this process, say."""
    machine = Machine(awake_ns=awake_ns)
    awake = Awake(machine.idle_ns)
    machine.run(awake, S)
    assert 0.0 < machine.run(awake, 60 * S) < 0.04
    assert machine.run(awake, 60 * S) <= 3 * TRY_BLOCKS / ASLEEP_BLOCKS_MAX


def test_the_first_blocks_that_are_awake_count_for_nothing() -> None:
    """Cores that have slept for long are slow at first."""
    machine = Machine()
    awake = Awake(machine.idle_ns)
    while not awake.awake_ns:
        machine.call(awake)
    machine.awake_ns = 2 * machine.asleep_ns
    machine.run(awake, (TRY_BLOCKS - 3) * BLOCK_NS_MIN)
    machine.awake_ns = machine.asleep_ns // 2
    assert machine.run(awake, 5 * S) > 0.95


def test_it_gives_way_as_soon_as_others_come() -> None:
    """And does not try them again and again; when they are gone it waits awake as before."""
    machine = Machine()
    awake = Awake(machine.idle_ns)
    machine.run(awake, 2 * S)
    machine.others = 1.5
    machine.run(awake, S // 2)
    assert machine.run(awake, REFUSED_NS) == 0.0
    machine.others = 0.0
    machine.run(awake, REFUSED_NS + S)
    assert machine.run(awake, 5 * S) > 0.85


def test_one_that_leaves_too_little_tries_it_ever_more_seldom() -> None:
    """Two of them on two cores would else take turns at taking them from each other."""
    machine = Machine()
    awake = Awake(machine.idle_ns)
    machine.run(awake, S)
    for _round in range(8):
        while awake.awake_ns == 0:
            machine.call(awake)
        machine.others = 2.0
        machine.run(awake, S // 2)
        machine.others = 0.0
    begun_ns = machine.now_ns
    while awake.awake_ns == 0:
        machine.call(awake)
    assert REFUSED_NS_MAX / 2 < machine.now_ns - begun_ns <= REFUSED_NS_MAX + S


def test_it_sleeps_again_where_awake_has_become_no_better() -> None:
    """Whatever it was before."""
    machine = Machine()
    awake = Awake(machine.idle_ns)
    assert machine.run(awake, 5 * S) > 0.7
    machine.awake_ns = machine.asleep_ns
    machine.run(awake, 3 * S)
    assert machine.run(awake, 5 * S) < 0.2


def test_after_one_late_answer_the_next_is_waited_for_asleep() -> None:
    """A broker that stands still would keep a core busy for each call."""
    machine = Machine()
    awake = Awake(machine.idle_ns)
    machine.run(awake, 2 * S)
    while not awake.awake_ns:
        machine.call(awake)
    awake.ended(machine.now_ns, 2 * AWAKE_NS_MAX)
    assert awake.awake_ns == 0
    awake.ended(machine.now_ns, 80 * US)
    assert awake.awake_ns == AWAKE_NS_MAX


def test_what_is_idle_is_looked_at_a_few_times_a_second() -> None:
    """However many calls there are; and never by one that makes none."""
    machine, looks = Machine(), list[int]()

    def idle_ns() -> int | None:
        looks.append(machine.now_ns)
        return machine.idle_ns()

    machine.run(Awake(idle_ns), 10 * S)
    assert 10 <= len(looks) <= 51


def test_the_machine_is_one() -> None:
    """What is idle is never more than there is, and what is spare is less than the cores have left."""
    machine = Machine()
    machine.run(Awake(machine.idle_ns), S)
    idle_ns = machine.idle_ns()
    assert idle_ns is not None
    assert LEFT_MIN * S < idle_ns < 2 * S + 10 * MS
    assert BLOCK_NS_MIN < S


class Ticking(RealRuntime):
    """A clock that goes on by 50 us whenever somebody looks at it."""

    def __init__(self) -> None:
        super().__init__()
        ticks = itertools.count(1)
        self.monotonic_ns = lambda: next(ticks) * 50 * US


def test_a_loop_stays_awake_for_a_call_and_serves_others_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again and again until the time is over, and then sleeps until the answer is there."""
    looks: list[int] = []
    honest = AsyncConnection._stay_awake
    let_go = threading.Event()

    def look(connection: AsyncConnection, future: asyncio.Future[Answer], until_ns: int) -> None:
        looks.append(until_ns)
        honest(connection, future, until_ns)

    def answer(peer: Peer, command: Command) -> None:
        if command.code == 11:
            assert let_go.wait(PATIENCE_S)
        peer.answer(command)

    async def story(server: ScriptedServer) -> None:
        connection = await AsyncConnection.open(Ticking(), server.host, server.port)
        await connection.call(10, timeout_s=3600.0)
        looks.clear()
        calling = asyncio.create_task(connection.call(11, timeout_s=3600.0))
        for _turn in range(100):
            await asyncio.sleep(0)
        assert 1 < len(looks) < 2 + AWAKE_NS_MAX // (50 * US)
        let_go.set()
        assert (await calling).code == 0
        await connection.close()

    monkeypatch.setattr(AsyncConnection, "_stay_awake", look)
    monkeypatch.setattr(Awake, "awake_ns", property(lambda _awake: AWAKE_NS_MAX))
    with ScriptedServer(answer) as server:
        asyncio.run(story(server))


def test_a_loop_tells_how_long_its_calls_took_that_were_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beside others says nothing of how a single one is waited for."""
    took: list[int] = []
    monkeypatch.setattr(Awake, "ended", lambda _awake, _now_ns, took_ns: took.append(took_ns))

    async def story(server: ScriptedServer) -> None:
        connection = await AsyncConnection.open(RealRuntime(), server.host, server.port)
        await connection.call(10, timeout_s=PATIENCE_S)
        assert len(took) == 1
        await asyncio.gather(*(connection.call(10, timeout_s=PATIENCE_S) for _number in range(5)))
        await connection.close()

    with ScriptedServer(lambda peer, command: peer.answer(command)) as server:
        asyncio.run(story(server))
    assert len(took) == 2
    assert all(took_ns > 0 for took_ns in took)


def test_who_wants_nobody_to_wait_awake_says_so() -> None:
    """Nothing is idle then; and what is idle only grows."""
    first, again = RealRuntime().idle_ns(), RealRuntime().idle_ns()
    assert RealRuntime(uses_idle=False).idle_ns() is None
    assert first is not None
    assert again is not None
    assert 0 <= first <= again
