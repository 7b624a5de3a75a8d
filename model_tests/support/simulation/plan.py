"""Draws the plan of a simulated run from its seed: the clients' requests and the faults.

Each seed first draws the possible kinds of faults, so that some runs have one kind and some have many (swarm testing,
Groce et al., ISSTA 2012). The module `run` performs the plan.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import attrs
from attrs import frozen

TOPIC: Final = "T"
RETRIED: Final = "%RETRY%G"
"""The retry topic of group G."""
QUEUES: Final = (0, 1, 8, 9, 63)
"""Queue ids, some of which are larger than the number of shards of the hold table."""
Grain = Literal["operation", "line", "access"]
LONGEST_MS: Final = 60_000
"""The longest hold in ms that the policy strict grants."""
PAUSE_MS_MAX: Final = 1_500
"""The longest pause in ms. A client that sends nothing for two minutes is closed as idle, even with held pulls."""
LONG_SHARE: Final = 0.6
"""The share of runs whose pulls may be held for `LONGEST_MS`."""
BAD_SHARE: Final = 0.1
"""The share of runs with disk errors, which is also the share of runs with a slow disk."""
RACE_SHARE: Final = 0.5
"""The share of runs that mainly send messages while pulls wait for them."""
CROWD_SHARE: Final = 0.08
"""The share of runs with many pulls at one queue, some of which end with their connection when a message arrives."""
CROWDS: Final = (2, 10)
"""The number of pulls of each client in a run with many pulls: a few, or enough for a large thundering herd."""
RETRIED_SHARE: Final = 0.1
GREEDY_SHARE: Final = 0.1
"""The share of runs with pulls that request a longer hold than the broker grants."""
GREEDY_MS: Final = 10 * LONGEST_MS
DELETED_SHARE: Final = 0.2
"""The share of runs that delete the topic at the end, while clients wait for it."""
NARROW_SHARE: Final = 0.3
"""The share of runs whose thread pool, if the policy has one, has one thread and a tiny queue."""
GRAINS: Final[tuple[Grain, ...]] = ("operation", "line", "access")
"""Where actors may be interrupted: only at operations of the runtime, or also at lines or accesses of the broker's
code."""


@frozen
class Send:
    """Send messages to one queue in one write, and wait until all are acknowledged."""

    queue: int
    count: int


@frozen
class Pull:
    """Pull from the client's offset in one queue, or from the queue's end, without waiting for the answer."""

    queue: int
    hold_ms: int
    from_end: bool = False


@frozen
class Wait:
    """Wait until every request of the client is answered."""


@frozen
class Pause:
    """Let time pass."""

    ms: int


@frozen
class Leave:
    """Close the connection, even with held pulls; the next request opens another one."""


Act = Send | Pull | Wait | Pause | Leave
Trouble = Literal["kill", "power", "cut", "clock", "stop", "disk"]
"""Kinds of faults: kill of the broker, power cut, cut connection, clock step, stop, or a disk whose next calls fail.

After a kill, a power cut or a stop the broker is started again."""


@frozen
class InjectedFault:
    at_ms: float
    kind: Trouble


@frozen
class Plan:
    seed: int
    peers: tuple[tuple[Act, ...], ...]
    mishaps: tuple[InjectedFault, ...]
    io_thread_count: int
    syncs: bool
    """Whether the broker uses `SYNC_FLUSH`, so that acknowledged messages survive a power cut."""
    is_fast: bool
    delay_ms_max: float
    """The longest transit time of a chunk in ms."""
    is_pieced: bool
    slow_ms_max: float = 0.0
    """The longest duration of a disk call in ms."""
    topic: str = TOPIC
    is_crowded: bool = False
    is_deleted: bool = False
    is_narrow: bool = False
    """Whether the thread pool has one thread and room for one more pull, which is soon refused as late."""

    @property
    def part_count(self) -> int:
        """The number of actions and faults that `without` may leave out."""
        return sum(map(len, self.peers)) + len(self.mishaps)

    def without(self, left_out: Iterable[int]) -> Plan:
        """Returns the plan without some of its actions and faults. Actions are numbered from 0, and faults follow."""
        gone, number = set(left_out), itertools.count()
        peers = tuple(tuple(act for act in acts if next(number) not in gone) for acts in self.peers)
        mishaps = tuple(mishap for mishap in self.mishaps if next(number) not in gone)
        return attrs.evolve(self, peers=peers, mishaps=mishaps)

    def __str__(self) -> str:
        peers = [f"peer-{number}: {', '.join(map(_shown, acts))}" for number, acts in enumerate(self.peers) if acts]
        fate = ", ".join(f"{mishap.kind} after {mishap.at_ms:.3g} ms" for mishap in self.mishaps)
        return "\n".join([*peers, f"what goes wrong: {fate}"] if fate else peers)


def plan_of(seed: int) -> Plan:
    draw = random.Random(seed)
    kinds: list[Trouble] = [kind for kind in ("kill", "power", "cut", "clock", "stop") if draw.random() < 0.2]
    queues = draw.sample(QUEUES, draw.choice((1, 1, 1, 2, 3)))
    hold_ms = LONGEST_MS if draw.random() < LONG_SHARE else draw.choice((20, 200, 1500))
    one = _racer if draw.random() < RACE_SHARE else _peer
    peers = [one(draw, queues, hold_ms) for _ in range(draw.randint(2, 4))]
    mishaps = [InjectedFault(draw.choice((0.5, 5.0, 50.0, 500.0)) * draw.random(), kind) for kind in kinds]
    # A separate generator draws the disk faults, so that adding them did not change the runs without a bad disk.
    bad = random.Random(seed ^ 0xBAD)
    if bad.random() < BAD_SHARE:
        mishaps += _bad_disk(bad)
        kinds.extend(mishap.kind for mishap in mishaps)
    # A separate generator draws these numbers, so that adding them did not change the other runs.
    more = random.Random(seed ^ 0xC07)
    is_crowded = more.random() < CROWD_SHARE
    if is_crowded:
        peers = _crowd(more, more.choice(QUEUES), hold_ms)
    if more.random() < GREEDY_SHARE:
        peers = [tuple(map(_greedy, acts)) for acts in peers]
    return Plan(
        seed,
        tuple(peers),
        tuple(sorted(mishaps, key=lambda one: one.at_ms)),
        io_thread_count=draw.choice((1, 2, 2)),
        syncs="power" in kinds or draw.random() < 0.3,
        is_fast=draw.random() < 0.7,
        delay_ms_max=draw.choice((0, 0, 0.3, 5.0)),
        is_pieced=draw.random() < 0.25,
        slow_ms_max=bad.choice((0.5, 20.0)) if bad.random() < BAD_SHARE else 0.0,
        topic=RETRIED if more.random() < RETRIED_SHARE else TOPIC,
        is_crowded=is_crowded,
        is_deleted=more.random() < DELETED_SHARE,
        is_narrow=more.random() < NARROW_SHARE,
    )


def _bad_disk(draw: random.Random) -> list[InjectedFault]:
    """Draw disk errors, and perhaps a power cut soon after one of them, which loses unwritten data for good."""
    found = [
        InjectedFault(draw.choice((0.5, 0.5, 5.0, 500.0)) * draw.random(), "disk") for _ in range(draw.randint(1, 3))
    ]
    if draw.random() < 0.5:
        found.append(InjectedFault(found[-1].at_ms + draw.choice((0.2, 2.0)) * draw.random(), "power"))
    return found


def _shown(act: Act) -> str:
    if isinstance(act, Send):
        return f"send {act.count} to queue {act.queue}"
    if isinstance(act, Pull):
        where = f"pull queue {act.queue}{' from its end' if act.from_end else ''}"
        return f"{where} for {act.hold_ms} ms" if act.hold_ms else where
    if isinstance(act, Pause):
        return f"pause {act.ms} ms"
    return "wait" if isinstance(act, Wait) else "leave"


def _crowd(draw: random.Random, queue: int, hold_ms: int) -> list[tuple[Act, ...]]:
    """Draw two clients with pulls at the end of one queue, one of which may disconnect, and a client that sends."""
    pulls = (Pull(queue, hold_ms, from_end=True),) * draw.choice(CROWDS)
    ends: tuple[Act, ...] = (Pause(1), Leave()) if draw.random() < 0.5 else (Wait(),)
    return [(*pulls, *ends), (*pulls, Wait()), (Pause(1), Send(queue, 1), Wait())]


def _greedy(act: Act) -> Act:
    return attrs.evolve(act, hold_ms=GREEDY_MS) if isinstance(act, Pull) and act.hold_ms == LONGEST_MS else act


def _racer(draw: random.Random, queues: Sequence[int], hold_ms: int) -> tuple[Act, ...]:
    """Draw pulls from the end of a queue and sends to it, without pauses between them."""
    acts: list[Act] = []
    for _ in range(draw.randint(1, 3)):
        queue = draw.choice(queues)
        act: Act = Pull(queue, hold_ms, from_end=True) if draw.random() < 0.6 else Send(queue, draw.choice((1, 1, 2)))
        acts.append(act)
    return (*acts, Wait())


def _peer(draw: random.Random, queues: Sequence[int], hold_ms: int) -> tuple[Act, ...]:
    leaves = draw.random() < 0.25
    acts: list[Act] = []
    for _ in range(draw.randint(2, 6)):
        kind = draw.random()
        if kind < 0.4:
            acts.append(Pull(draw.choice(queues), draw.choice((hold_ms, hold_ms, 0))))
        elif kind < 0.75:
            acts.append(Send(draw.choice(queues), draw.choice((1, 1, 2, 5))))
        elif kind < 0.85:
            acts.append(Wait())
        elif kind < 0.95 or not leaves:
            acts.append(Pause(draw.choice((1, 10, min(hold_ms, PAUSE_MS_MAX)))))
        else:
            acts.append(Leave())
    return (*acts, Wait())
