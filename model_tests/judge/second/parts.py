"""The parts of a simulated broker: plans, queues, pulls, runs, and filters by tag."""

from __future__ import annotations

from typing import Any, Final

import attrs
from attrs import define, field, frozen

US: Final = 1_000
MS: Final = 1_000_000
START_NS: Final = 1_700_000_000 * 10**9
PULL, SEND, QUERY, UPDATE, DELETE_TOPIC = 11, 10, 14, 15, 215
TAGS: Final = ("a", "b", "Aa", "BB", "")
"""`Aa` and `BB` have the same hash."""
EXPRESSIONS: Final = (*("*",) * 8, *("a", "b || Aa", "BB") * 4)
Told = dict[str, Any]


def java_hash(text: str) -> int:
    """`String.hashCode`, without its sign."""
    code = 0
    for letter in text:
        code = (code * 31 + ord(letter)) % 2**32
    return code


@frozen
class Plan:
    """The random plan of a world."""

    seed: int
    events: int = 120
    """About how many events: nothing new begins after them."""
    brokers: int = 1
    lives: int = 1
    """How often each broker is started."""
    kills: float = 0.6
    """How often a life that is not the last is ended by a kill, and not in order."""
    deletions: float = 0.0
    """How often a topic is deleted, per message."""
    retention: float = 0.0
    """How often messages expire, per message."""
    closes: float = 0.0
    """How often a client closes its connection, per pull."""
    blocks: float = 0.0
    """How often the client stops reading its connection for a while, per pull."""
    commits: float = 0.3
    """How often a consumer commits or asks, per pull."""
    jumps: float = 0.05
    """How often a consumer asks for some other offset, per pull."""
    refusals: float = 0.0
    """How often a send or a pull is one that must be refused."""
    hidden: float = 0.0
    """The share of sends that no observer sees, so that their tags are unknown from outside."""
    undecided: float = 0.0
    """The share of consumers that name no subscription, so that their filters are unknown."""
    lossy_kills: bool = False
    """Whether a kill takes the last messages and commits along."""
    answers_on_stop: bool = True
    policy: str = "strict"

    def of(self, seed: int, events: int) -> Plan:
        """The same for another seed and size."""
        return attrs.evolve(self, seed=seed, events=events)


@define
class Queue:
    """Offsets `start` to `start + len(tags) - 1` are visible; what expired is before `start`."""

    tags: list[str] = field(factory=list)
    ids: list[int] = field(factory=list)
    """Who these messages are."""
    start: int = 0
    held: list[Pull] = field(factory=list)

    @property
    def end(self) -> int:
        """The visible end."""
        return len(self.tags)


@define(eq=False)
class Pull:
    """A pull that is under way."""

    consumer: Consumer
    request: str
    connection: str
    offset: int
    count_max: int
    may_hold: bool
    timeout_ms: int
    received_ns: int
    queue: int


@define(eq=False)
class Consumer:
    """One group's reader of one queue."""

    topic: str
    queue: int
    group: str
    expression: str
    connection: str
    offset: int = 0
    pulls: int = 0


@define
class Life:
    """One life of one broker; its connections are those of its clients."""

    broker: str
    number: int
    is_over: bool = False
    is_stopping: bool = False
    ended_by: str = ""
    open: set[str] = field(factory=set)
    held_most: int = 0
    blocked_until: dict[str, int] = field(factory=dict)
    """Connections whose client does not read, until when."""


@define
class Disk:
    """The broker's data that outlives its runs."""

    topics: dict[str, dict[int, Queue]] = field(factory=dict)
    committed: dict[tuple[str, str, int], int] = field(factory=dict)


def matches(expression: str, tag: str) -> bool:
    """Whether a broker delivers a message of this tag: it compares hashes."""
    if expression in {"", "*"}:
        return True
    return java_hash(tag) in {java_hash(part.strip()) for part in expression.split("||")}
