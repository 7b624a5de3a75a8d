"""Shares of queues as Java's client gives them: a mixed group must neither leave one out nor have one twice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_client import (
    ConsumerConfig,
    MessageQueue,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_near,
    rebalance,
)
from longpoll_client.rebalance import Allocate
from longpoll_spec.errors import ConfigError

ROWS: Final[list[dict[str, Any]]] = json.loads((Path(__file__).parent / "java_allocations.json").read_text())
"""What the classes of rocketmq-client 4.9.7 gave; those of 5.5.0 gave the same. A queue is its place in order."""
ROOMS: Final = ("east", "west", "north")


def room(name: str) -> str:
    """What comes before the @ of a broker's name, or of a client's id."""
    return name.partition("@")[0]


def near(within: Allocate) -> Allocate:
    """As the rows have it."""
    return allocate_near(lambda queue: room(queue.broker_name), room, within)


ALLOCATES: Final[dict[str, Allocate]] = {
    "averagely": allocate_averagely,
    "circle": allocate_by_circle,
    "hash": allocate_by_consistent_hash,
    "room": allocate_by_machine_room(["east", "west"]),
    "near": near(allocate_averagely),
    "near hash": near(allocate_by_consistent_hash),
}


def queues_of(topic: str, brokers: int, queues: int) -> list[MessageQueue]:
    """As many of each broker."""
    names = [f"{ROOMS[number % 3]}@broker-{number}" for number in range(brokers)]
    return sorted(
        MessageQueue(topic=topic, broker_name=name, queue_id=each) for name in names for each in range(queues)
    )


def differing(allocates: dict[str, Allocate]) -> set[str]:
    """The ways that give other shares than Java's client."""
    found = set()
    for row in ROWS:
        every = queues_of(row["topic"], row["brokers"], row["queues"])
        for client_id, places in row["shares"].items():
            share = allocates[row["how"]](client_id, list(row["shares"]), reversed(every))
            if sorted(share) != [every[place] for place in places]:
                found.add(row["how"])
    return found


def test_every_share_is_the_one_that_java_s_client_has() -> None:
    """Of all six ways, for 14 groups of up to seven clients and four brokers."""
    assert {row["how"] for row in ROWS} == set(ALLOCATES)
    assert len(ROWS) == 14 * len(ALLOCATES)
    assert differing(ALLOCATES) == set()


def test_planted_another_ring_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine places a client instead of ten; and rooms that are shared as neighbours, the first ones getting more."""
    monkeypatch.setattr(rebalance, "REPLICA_COUNT", 9)

    def neighbours(
        client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
    ) -> tuple[MessageQueue, ...]:
        inside = [queue for queue in queues if room(queue.broker_name) in {"east", "west"}]
        return allocate_averagely(client_id, client_ids, inside)

    assert differing({**ALLOCATES, "room": neighbours}) == {"hash", "near hash", "room"}


@given(
    st.sets(st.builds("{}@{}".format, st.sampled_from(ROOMS), st.integers(0, 99)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 12),
    st.sampled_from(sorted(ALLOCATES)),
)
def test_each_queue_is_had_exactly_once(names: set[str], brokers: int, queues: int, how: str) -> None:
    """By one member of all; only the rooms that nobody asked for have queues of nobody."""
    every = queues_of("T", brokers, queues)
    shares = [queue for name in names for queue in ALLOCATES[how](name, names, every)]
    due = [queue for queue in every if how != "room" or room(queue.broker_name) != "north"]
    assert sorted(shares) == due
    assert ALLOCATES[how]("a stranger@1", names, every) == ()


@pytest.mark.parametrize("name", ["east", "east@", "@b", "east@b@c"])
def test_a_broker_whose_name_has_no_room_is_in_none(name: str) -> None:
    """As Java splits names."""
    queue = MessageQueue(topic="T", broker_name=name, queue_id=0)
    assert allocate_by_machine_room(["east"])("me", ["me"], [queue]) == ()


def test_a_member_s_name_is_looked_at() -> None:
    """An empty one would be nobody's."""
    assert ConsumerConfig("G", client_id="east@1").client_id == "east@1"
    for name in ("", "x" * 256):
        with pytest.raises(ConfigError, match="client_id"):
            ConsumerConfig("G", client_id=name)
