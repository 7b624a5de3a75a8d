"""The components of a simulated broker: plans, queues, pulls, broker runs, and filters by tag."""

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
    seed: int
    events: int = 120
    """The approximate number of events, after which no new request begins."""
    brokers: int = 1
    lives: int = 1
    """The number of runs of each broker; each run except the last ends by a stop or a kill."""
    kills: float = 0.6
    """The probability that a run, except the last one, ends by a kill instead of an orderly stop."""
    deletions: float = 0.0
    """The probability of a deletion of the topic, per message."""
    retention: float = 0.0
    """The probability that messages expire, per message."""
    closes: float = 0.0
    """The probability that a client closes its connection, per pull."""
    blocks: float = 0.0
    """The probability that the client stops reading its connection for a while, per pull."""
    commits: float = 0.3
    """The probability that a consumer commits or queries, per pull."""
    jumps: float = 0.05
    """The probability that a consumer jumps to another offset, per pull."""
    refusals: float = 0.0
    """The probability that a send or a pull is one that must be refused."""
    hidden: float = 0.0
    """The share of sends that no observer sees, so that their tags are unknown from outside."""
    undecided: float = 0.0
    """The share of consumers that name no subscription, so that their filters are unknown."""
    lossy_kills: bool = False
    """Whether a kill loses the last messages and commits."""
    answers_on_stop: bool = True
    policy: str = "strict"

    def of(self, seed: int, events: int) -> Plan:
        return attrs.evolve(self, seed=seed, events=events)


@define
class Queue:
    """A queue whose offsets `start` to `start + len(tags) - 1` are visible; expired messages are before `start`."""

    tags: list[str] = field(factory=list)
    ids: list[int] = field(factory=list)
    start: int = 0
    held: list[Pull] = field(factory=list)

    @property
    def end(self) -> int:
        return len(self.tags)


@define(eq=False)
class Pull:
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
    """A consumer of one group that reads one queue."""

    topic: str
    queue: int
    group: str
    expression: str
    connection: str
    offset: int = 0
    pulls: int = 0


@define
class Life:
    broker: str
    number: int
    is_over: bool = False
    is_stopping: bool = False
    ended_by: str = ""
    open: set[str] = field(factory=set)
    held_most: int = 0
    blocked_until: dict[str, int] = field(factory=dict)
    """Connection -> the time until which its client does not read."""


@define
class Disk:
    topics: dict[str, dict[int, Queue]] = field(factory=dict)
    committed: dict[tuple[str, str, int], int] = field(factory=dict)


def matches(expression: str, tag: str) -> bool:
    """Whether a broker delivers a message with this tag. The broker compares hashes of tags."""
    if expression in {"", "*"}:
        return True
    return java_hash(tag) in {java_hash(part.strip()) for part in expression.split("||")}
