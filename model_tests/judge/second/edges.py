"""What the smallest histories are made of, on either side of where an interval, a kind or a name decides.

Leaves out these histories (`edges_offsets`, `edges_queues`), and what is done with them (`test_second_edges`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen
from model_tests.judge.second.observer import History
from model_tests.judge.second.parts import MS, Told

MONOTONIC, SETTABLE = "monotonic", "unix"
BEGIN_MS, END_MS = 10, 30_000
QUEUE: Final[Told] = {"topic": "T", "queue": 0}
LOST: Final[Told] = {"event": "lost", "lost_count": 2}


def history(
    *sources: Sequence[Told], name: str = "b", clock: str = MONOTONIC, policy: str = "", declared: Told | None = None
) -> History:
    """A history of the sources `b#0`, `b#1`, ... of the broker `b`; an event's `at` is its moment in ms."""
    headers: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for number, told in enumerate(sources):
        source = f"{name}#{number}"
        headers.append({"name": source, "clock": clock, "offset_ns": 0, "uncertainty_ns": 0, **(declared or {})})
        for sequence, one in enumerate(told):
            moment = {"after_ns": int(one["at"] * MS), "before_ns": int(one["at"] * MS) + 1}
            fields = {key: value for key, value in one.items() if key != "at"}
            events.append({"source": source, "broker": name, "sequence": sequence, **moment, **fields})
    return History({"format_version": 1, "policy": policy, "sources": headers}, tuple(events))


@frozen
class Edge:
    """What some events come to."""

    says: str
    """The clauses that they break; with a `?` after one if only perhaps, and empty for none."""
    told: tuple[tuple[Told, ...], ...]
    """By observer what it tells between its beginning and its end."""
    clock: str = MONOTONIC
    end_ms: float = END_MS
    hold_limit: int = -1

    def history(self, name: str) -> History:
        """As a history of one broker."""
        begin, end = {"at": BEGIN_MS, "event": "source_started"}, {"at": self.end_ms, "event": "source_stopped"}
        limit: Told = {"hold_limit": self.hold_limit} if self.hold_limit >= 0 else {}
        return history(*((begin, *told, end) for told in self.told), name=name, clock=self.clock, declared=limit)


def edge(says: str, *told: list[Told], clock: str = MONOTONIC, end_ms: float = END_MS) -> Edge:
    """What one observer tells, in this order."""
    return Edge(says, (tuple(one for several in told for one in several),), clock, end_ms)


def wide(one: Told, width_ms: float) -> Told:
    """The event, of which nobody knows more than that it happened within so long."""
    return one | {"before_ns": int((one["at"] + width_ms) * MS)}


def widened(told: list[Told], place: int, width_ms: float) -> list[Told]:
    """The events, one of which happened within so long."""
    return [wide(one, width_ms) if at == place else one for at, one in enumerate(told)]


def lost(at: float) -> list[Told]:
    """Two events are missing here."""
    return [LOST | {"at": at}]


def gone(at: float, code: int = 215, width_ms: float = 0) -> list[Told]:
    """A request to delete a topic, or with another code a group."""
    return [wide({"at": at, "event": "request_received", "code": code, "topic": "T", "connection": "9"}, width_ms)]


def closed(at: float, width_ms: float = 0, connection: str = "1") -> list[Told]:
    """A connection is closed."""
    return [wide({"at": at, "event": "connection_closed", "connection": connection}, width_ms)]


def unread(begin: float, end: float, direction: str) -> list[Told]:
    """A direction of a connection is not read for a while."""
    place = {"connection": "1", "direction": direction}
    return [{"at": begin, "event": "blocked", **place}, {"at": end, "event": "unblocked", **place}]


def shown(at: float, end: int, width_ms: float = 0) -> list[Told]:
    """A visible end is told."""
    return [wide({"at": at, "event": "make_visible", **QUEUE, "visible_end": end}, width_ms)]


def appended(at: float, offset: int, width_ms: float = 0, **fields: object) -> list[Told]:
    """A message is appended."""
    return [wide({"at": at, "event": "append", **QUEUE, "queue_offset": offset, **fields}, width_ms)]


def asked_to_keep(at: float, name: str, width_ms: float = 0, **fields: object) -> list[Told]:
    """A send."""
    about = {"request": name, "connection": "1", "code": 10, **QUEUE, **fields}
    return [wide({"at": at, "event": "request_received", **about}, width_ms)]


def kept(at: float, offset: int, name: str = "", width_ms: float = 0, **fields: object) -> list[Told]:
    """A message is acknowledged; to the send of this name."""
    about = {**QUEUE, "queue_offset": offset, **({"request": name, "connection": "1"} if name else {}), **fields}
    return [wide({"at": at, "event": "message_acknowledged", **about}, width_ms)]


def pull(at: float, name: str, offset: int, code: int, *, end: int, took: float = 1, **fields: object) -> list[Told]:
    """A pull that may not be held, unless `fields` say so, and its answer."""
    place = {**QUEUE, "request": name, "connection": "1"}
    offsets = {"offsets": list(range(offset, end))} if code == 0 else {}
    asked = {"code": 11, "offset": offset, "count_max": 32, "expression_type": "TAG", "expression": "*", "group": "g"}
    answer = {"code": code, "offset_next": end, "offset_min": 0, "offset_max": end, **offsets}
    return [
        {"at": at, "event": "request_received", **place, **asked, **fields},
        {"at": at + took, "event": "answer_sent", **place, **answer},
    ]


def held(at: float, name: str, width_ms: float = 0) -> list[Told]:
    """A pull is held."""
    return [wide({"at": at, "event": "hold", **QUEUE, "request": name}, width_ms)]
