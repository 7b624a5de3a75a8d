"""Accounts for each message of a schedule (lost, stuck, repeated or out of order) and for the recovery of sends.

The functions take plain values, which `play` produces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import field, frozen
from model_tests.client.failing.members import Delivery, Share
from model_tests.client.failing.sending import Sent

BACK_S: Final = 10.0
"""Sends must succeed again within this time after they have become possible, in seconds."""
LINGERS_S: Final = 45.0
"""How long after its end a fault may still have effects, in seconds: a pull on a dead connection ends after 10 s (30 s
in Java), queues are rebalanced every 5 s, and offsets are stored every second.
"""
S: Final = 1_000_000_000


@frozen
class Happening:
    """An injected fault or a change of members, with its begin and end."""

    kind: str
    begun_ns: int
    ended_ns: int
    member: str = field(default="")


@frozen
class Possible:
    """A time in which sends can succeed: the broker runs, and its network passes new data."""

    begun_ns: int
    ended_ns: int


@frozen
class Facts:
    """The facts at the end of a schedule."""

    acknowledged: Sequence[Sent]
    deliveries: Sequence[Delivery]
    shares: Sequence[Share]
    happenings: Sequence[Happening]
    possible: Sequence[Possible]
    stored: dict[tuple[int, int], int]
    """(Queue id, offset) -> number, for all messages that the broker has at the end."""
    is_orderly: bool


@frozen
class Report:
    acknowledged: int
    lost: tuple[int, ...]
    """Acknowledged messages that the broker does not have at the end."""
    stuck: tuple[tuple[int, int], ...]
    """(Queue id, offset) of each message that the broker has at the end and that was never delivered."""
    unexplained: tuple[str, ...]
    """Repeated copies of a message and repeated deliveries of an offset that no fault explains."""
    out_of_order: tuple[str, ...]
    """Messages whose first delivery came after the delivery of a later message."""
    back_s: float
    """The longest time in seconds that a sender had no success after sends had become possible."""
    not_back: tuple[str, ...]


def account(facts: Facts) -> Report:
    back_s, not_back = _back(facts)
    there = set(facts.stored.values())
    given = {(delivery.queue_id, delivery.queue_offset) for delivery in facts.deliveries}
    return Report(
        acknowledged=len(facts.acknowledged),
        lost=tuple(sorted(sent.number for sent in facts.acknowledged if sent.number not in there)),
        stuck=tuple(sorted(facts.stored.keys() - given)),
        unexplained=(*_copies(facts), *_repeats(facts)),
        out_of_order=_out_of_order(facts) if facts.is_orderly else (),
        back_s=back_s,
        not_back=not_back,
    )


def _has_cause(happenings: Iterable[Happening], begun_ns: int, ended_ns: int) -> bool:
    """Whether one of these faults may have had an effect between two times."""
    return any(each.begun_ns <= ended_ns and begun_ns <= each.ended_ns + LINGERS_S * S for each in happenings)


def _copies(facts: Facts) -> list[str]:
    """Return the copies of messages that neither a fault during the send nor an earlier failed send explains.

    After a lost answer or a timeout the sender sends the message again.
    """
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place, number in facts.stored.items():
        places[number].append(place)
    faults = [happening for happening in facts.happenings if not happening.member]
    return [
        f"message {sent.number} is stored {len(stored)} times, at {stored}"
        for sent in sorted(facts.acknowledged, key=lambda sent: sent.number)
        if len(stored := places[sent.number]) > 1
        and not sent.failures
        and not _has_cause(faults, sent.begun_ns, sent.acknowledged_ns)
    ]


def _repeats(facts: Facts) -> list[str]:
    """Return the repeated deliveries that neither a fault nor a change of members explains.

    A member that reports its queues must not get a message twice while it keeps the message's queue.
    """
    begins: dict[tuple[str, int], list[int]] = defaultdict(list)
    for share in facts.shares:
        if share.is_ours:
            begins[share.member, share.queue_id].append(share.moment_ns)
    tells = {share.member for share in facts.shares}
    last: dict[tuple[int, int], Delivery] = {}
    strange = []
    for delivery in sorted(facts.deliveries, key=lambda one: one.moment_ns):
        place = delivery.queue_id, delivery.queue_offset
        before, last[place] = last.get(place), delivery
        if before is None:
            continue
        is_kept = before.member == delivery.member in tells and not any(
            before.moment_ns < begun_ns <= delivery.moment_ns for begun_ns in begins[delivery.member, delivery.queue_id]
        )
        if is_kept or not _has_cause(facts.happenings, before.moment_ns, delivery.moment_ns):
            strange.append(f"{delivery} after {before}")
    return strange


def _out_of_order(facts: Facts) -> tuple[str, ...]:
    """Return violations of the order in the first deliveries of each queue and of each key."""
    keys = {one.number: one.key for one in facts.acknowledged}
    seen: set[tuple[int, int]] = set()
    offsets: dict[int, int] = {}
    numbers: dict[str, int] = {}
    heard: set[int] = set()
    found = []
    for delivery in sorted(facts.deliveries, key=lambda one: one.moment_ns):
        place = delivery.queue_id, delivery.queue_offset
        if place not in seen:
            seen.add(place)
            if delivery.queue_offset < offsets.get(delivery.queue_id, -1):
                found.append(f"{delivery} after offset {offsets[delivery.queue_id]}")
            offsets[delivery.queue_id] = max(delivery.queue_offset, offsets.get(delivery.queue_id, -1))
        if delivery.number not in heard:
            heard.add(delivery.number)
            key = keys.get(delivery.number)
            if key is not None:
                if delivery.number < numbers.get(key, -1):
                    found.append(f"{delivery} after message {numbers[key]} of key {key}")
                numbers[key] = max(delivery.number, numbers.get(key, -1))
    return tuple(found)


def _back(facts: Facts) -> tuple[float, tuple[str, ...]]:
    """Return the longest recovery of a sender in seconds, and the senders that did not recover within `BACK_S`."""
    acknowledged: dict[str, list[int]] = defaultdict(list)
    for sent in facts.acknowledged:
        acknowledged[sent.sender].append(sent.acknowledged_ns)
    worst_s, late = 0.0, []
    for time in facts.possible:
        for sender, moments in acknowledged.items():
            after = [moment for moment in moments if moment >= time.begun_ns]
            took_s = ((min(after) if after else time.ended_ns) - time.begun_ns) / S
            if took_s > BACK_S and time.ended_ns - time.begun_ns > BACK_S * S:
                late.append(f"{sender} was back after {took_s:.1f} s")
            elif after and min(after) <= time.ended_ns:
                worst_s = max(worst_s, took_s)
    return worst_s, tuple(late)
