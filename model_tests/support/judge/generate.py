"""Creates histories of any size by simulating a correct broker in virtual time.

Every queue has a producer and a few consumers, which pull in a loop. A pull is answered at once if a message matches;
otherwise it is held until a message wakes it or it expires. The times come from a seeded generator, so a history is a
function of its `Load`. `faults.plant` injects faults afterwards. Histories of other policies, such as `rocketmq-4.9`,
come from a broker.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_judge.columns.expression import Expression, parse
from longpoll_protocol.properties import java_hash
from longpoll_spec.history import FORMAT_VERSION, Event, Meta, Source

US: Final = 1_000
MS: Final = 1_000_000
PULL_MESSAGE: Final = 11
QUERY_CONSUMER_OFFSET: Final = 14
SEND_MESSAGE_V2: Final = 310
PULLS_PER_QUERY: Final = 50
"""The number of pulls after which a consumer queries its committed offset, if the whole recording is simulated."""
SOURCE: Final = "broker-a#1"
BROKER: Final = "broker-a"
TOPIC: Final = "orders"
START_NS: Final = 10**12
"""The simulated clock's time at the start. No result depends on it."""
UNIX_OFFSET_NS: Final = 1_700_000_000 * 10**9


@frozen
class Load:
    events: int = 10_000
    """The simulation stops sending after this number of events, and ends when all held pulls are answered."""
    queues: int = 4
    consumers: tuple[str, ...] = ("*", "a", "a || b")
    """The tag expressions; each queue has one consumer for each expression."""
    tags: tuple[str, ...] = ("a", "b", "c", "")
    send_interval_ms: float = 20.0
    """The mean time between two messages of a queue."""
    timeout_ms: int = 150
    """The timeout with which each pull is sent."""
    count_max: int = 32
    is_whole: bool = False
    """Whether the history contains sends, acknowledgements, message ids and committed offsets, as `observe` records."""
    seed: int = 1


@define
class _Pull:
    queue: int
    expression: Expression
    text: str
    connection: str
    offset: int
    request: str
    is_held: bool = False
    pulls: int = 0


@define
class _Queue:
    """A queue whose offsets 0 to len(tags) - 1 are visible."""

    tags: list[str] = field(factory=list)
    codes: list[int] = field(factory=list)
    ids: list[int] = field(factory=list)
    held: list[_Pull] = field(factory=list)


class Simulator:
    """Simulates a broker, its producers and its consumers in virtual time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._random = random.Random(load.seed)
        self._queues = [_Queue() for _ in range(load.queues)]
        self._agenda: list[tuple[int, int, Callable[[int], Iterable[dict[str, Any]]]]] = []
        self._order = itertools.count()
        self._requests = itertools.count(1)
        self._is_ending = False

    def events(self) -> Iterator[Event]:
        """Iterate over the whole history in order of time."""
        now, count = START_NS, 0
        yield self._event(now, count, {"event": "source_started"})
        self._open_all(now)
        while self._agenda:
            now, _order, act = heapq.heappop(self._agenda)
            for fields in act(now):
                count += 1
                yield self._event(now, count, fields)
            self._is_ending = self._is_ending or count >= self._load.events
        yield self._event(now + MS, count + 1, {"event": "source_stopped"})

    def _event(self, now: int, sequence: int, fields: dict[str, Any]) -> Event:
        begin = now + fields.pop("delay_ns", 0)
        return Event(
            after_ns=begin, before_ns=begin + 5 * US, source=SOURCE, sequence=sequence, broker=BROKER, **fields
        )

    def _at(self, moment: int, act: Callable[[int], Iterable[dict[str, Any]]]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), act))

    def _open_all(self, now: int) -> None:
        for number in range(self._load.queues):
            self._at(now + self._pause(self._load.send_interval_ms), partial(self._send, number=number))
            for place, text in enumerate(self._load.consumers):
                expression = parse("TAG", text)
                assert expression is not None, "a tag expression is decidable"
                pull = _Pull(number, expression, text, f"c{number}-{place}", 0, "")
                self._at(now + self._pause(1.0), partial(self._receive, pull=pull))

    def _pause(self, mean_ms: float) -> int:
        return int(self._random.expovariate(1 / (mean_ms * MS))) + 20 * US

    def _place(self, number: int) -> dict[str, Any]:
        return {"topic": TOPIC, "queue": number}

    def _send(self, now: int, number: int) -> Iterator[dict[str, Any]]:
        tag = self._random.choice(self._load.tags)
        if self._load.is_whole:
            message = next(self._requests)
            sent = {"request": f"s{message}", "connection": f"p{number}", **_identities([message])}
            yield {"event": "request_received", **self._place(number), **sent, "code": SEND_MESSAGE_V2, "tag": tag}
            self._at(now + 30 * US, partial(self._acknowledge, number=number, tag=tag, sent=sent))
            self._at(now + 6 * US, partial(self._append, number=number, tag=tag, message=message))
        else:
            yield from self._append(now, number, tag, 0)
        if not self._is_ending:
            self._at(now + self._pause(self._load.send_interval_ms), partial(self._send, number=number))

    def _append(self, now: int, number: int, tag: str, message: int) -> Iterator[dict[str, Any]]:
        yield {"event": "append", **self._place(number), "queue_offset": len(self._queues[number].tags), "tag": tag}
        self._at(now + 6 * US, partial(self._make_visible, number=number, tag=tag, message=message))

    def _acknowledge(self, _now: int, number: int, tag: str, sent: dict[str, Any]) -> Iterator[dict[str, Any]]:
        # The queue's newest message is the acknowledged one, because its next send comes after this time.
        offset = len(self._queues[number].tags) - 1
        yield {"event": "message_acknowledged", **self._place(number), **sent, "queue_offset": offset, "tag": tag}

    def _make_visible(self, now: int, number: int, tag: str, message: int) -> Iterator[dict[str, Any]]:
        queue = self._queues[number]
        offset = len(queue.tags)
        queue.tags.append(tag)
        queue.ids.append(message)
        queue.codes.append(java_hash(tag))
        yield {"event": "make_visible", **self._place(number), "visible_end": offset + 1}
        woken = [pull for pull in queue.held if self._takes(pull, offset)]
        queue.held = [pull for pull in queue.held if not self._takes(pull, offset)]
        for pull in woken:
            pull.is_held = False
            self._answer_at(now + self._pause(0.3), pull, "woken")

    def _takes(self, pull: _Pull, offset: int) -> bool:
        return pull.expression.takes_everything or self._queues[pull.queue].codes[offset] in pull.expression.tag_codes

    def _receive(self, now: int, pull: _Pull) -> Iterator[dict[str, Any]]:
        pull.request = f"r{next(self._requests)}"
        yield {
            "event": "request_received",
            **self._place(pull.queue),
            "request": pull.request,
            "connection": pull.connection,
            "code": PULL_MESSAGE,
            "group": f"group of {pull.text}",
            "offset": pull.offset,
            "count_max": self._load.count_max,
            "may_hold": True,
            "timeout_ms": self._load.timeout_ms,
            "expression_type": "TAG",
            "expression": pull.text,
            **({"commit_offset": pull.offset} if self._load.is_whole else {}),
        }
        pull.pulls += 1
        queue = self._queues[pull.queue]
        if pull.offset < len(queue.tags):
            self._answer_at(now + self._pause(0.1), pull, "immediate")
            return
        yield {
            "event": "hold",
            **self._place(pull.queue),
            "request": pull.request,
            "visible_end": len(queue.tags),
            "delay_ns": 6 * US,
        }
        pull.is_held = True
        queue.held.append(pull)
        request = pull.request
        self._at(now + self._load.timeout_ms * MS, lambda at: self._expire(at, pull, request))

    def _expire(self, now: int, pull: _Pull, request: str) -> Iterator[dict[str, Any]]:
        if pull.is_held and pull.request == request:
            pull.is_held = False
            self._queues[pull.queue].held.remove(pull)
            yield {"event": "expire", **self._place(pull.queue), "request": request}
            self._answer_at(now + self._pause(0.2), pull, "expired")

    def _answer_at(self, moment: int, pull: _Pull, cause: str) -> None:
        self._at(moment, lambda at: self._answer(at, pull, cause))

    def _answer(self, now: int, pull: _Pull, cause: str) -> Iterator[dict[str, Any]]:
        end = len(self._queues[pull.queue].tags)
        taken: list[int] = []
        offset = pull.offset
        while offset < end and len(taken) < self._load.count_max:
            if self._takes(pull, offset):
                taken.append(offset)
            offset += 1
        code = 0 if taken else 20 if offset > pull.offset else 19
        yield {
            "event": "answer_sent",
            **self._place(pull.queue),
            "request": pull.request,
            "connection": pull.connection,
            "code": code,
            "offset_next": offset,
            "offset_min": 0,
            "offset_max": end,
            "offsets": taken,
            **(_identities([self._queues[pull.queue].ids[at] for at in taken]) if self._load.is_whole else {}),
            "cause": cause,
        }
        committed, pull.offset = pull.offset, offset
        if self._load.is_whole and pull.pulls % PULLS_PER_QUERY == 0:
            yield from self._query(pull, committed)
        if not self._is_ending:
            self._at(now + self._pause(0.5), lambda at: self._receive(at, pull))

    def _query(self, pull: _Pull, committed: int) -> Iterator[dict[str, Any]]:
        """Let a consumer query the offset that its last pull committed."""
        asked = {"request": f"r{next(self._requests)}", "connection": pull.connection, "group": f"group of {pull.text}"}
        exchange = {**self._place(pull.queue), **asked}
        yield {"event": "request_received", **exchange, "code": QUERY_CONSUMER_OFFSET, "delay_ns": 6 * US}
        yield {"event": "answer_sent", **exchange, "code": 0, "offset": committed, "delay_ns": 18 * US}


def _identities(messages: list[int]) -> dict[str, list[int]]:
    """Returns the unique ids and the body hashes of the messages with these numbers."""
    return {"ids": messages, "bodies": [number * 0x9E3779B1 % (1 << 32) for number in messages]}


def simulate(load: Load) -> Iterator[Event]:
    """Returns the events of a valid history."""
    return Simulator(load).events()


def simulated_meta() -> Meta:
    """Returns the meta file of a simulated history."""
    source = Source(name=SOURCE, clock="monotonic", offset_ns=UNIX_OFFSET_NS, uncertainty_ns=0)
    return Meta(format_version=FORMAT_VERSION, sources=[source], policy="strict")
