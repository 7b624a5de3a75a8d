"""Computes which member of a group gets which queues. Every member computes the same result without communication.

The consumer calls them in `consume/rebalance.py` when the members or the queues of its group may have changed.

Each function gives the result of the Java class that its docstring names, so a group may have members of both.

Source: `org.apache.rocketmq.client.consumer.rebalance`, `ConsistentHashRouter.java`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from longpoll_protocol.bodies import MessageQueue

T = TypeVar("T")
Allocate: TypeAlias = Callable[[str, Iterable[str], Iterable[MessageQueue]], tuple[MessageQueue, ...]]
"""Computes a client's share from its id, the ids of all members and all queues. Members must use the same one."""

REPLICA_COUNT: Final = 10
"""`virtualNodeCnt`: places of each client on the ring."""


def allocate_averagely(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """This client's share: a run of neighbours, the first clients getting one more when it does not come out even.

    Every client sorts the same lists, so the shares are disjoint and leave no queue out. A client that the group does
    not know yet gets nothing. Java's `AllocateMessageQueueAveragely`.
    """
    clients = sorted(set(client_ids))
    ordered = sorted(queues)
    if client_id not in clients:
        return ()
    position = clients.index(client_id)
    share, more = divmod(len(ordered), len(clients))
    start = position * share + min(position, more)
    return tuple(ordered[start : start + share + (position < more)])


def allocate_by_circle(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """This client's share: the queues dealt out one by one, so that each client gets some of every broker's.

    A client that the group does not know yet gets nothing. Java's `AllocateMessageQueueAveragelyByCircle`.
    """
    clients = sorted(set(client_ids))
    if client_id not in clients:
        return ()
    return tuple(sorted(queues)[clients.index(client_id) :: len(clients)])


def allocate_by_consistent_hash(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """This client's share by consistent hashing: the queues whose hashes precede one of its hashes on a ring of 2^32.

    When a member comes or goes, few queues change hands. The shares are uneven and may be empty. A client that the
    group does not know yet gets nothing. Java's `AllocateMessageQueueConsistentHash`.
    """
    clients = sorted(set(client_ids))
    if client_id not in clients:
        return ()
    # If two clients have the same position, the last one gets it, as in Java's map.
    ring = {_place(f"{name}-{number}"): name for name in clients for number in range(REPLICA_COUNT)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[places[bisect_left(places, _place(text)) % len(places)]]

    return tuple(queue for queue in sorted(queues) if owner(queue) == client_id)


def allocate_by_machine_room(rooms: Iterable[str]) -> Allocate:
    """Shares only the queues of brokers in these rooms, evenly; a broker's name is `room@name`.

    No member gets the queues of other brokers. Each member of the group must have the same rooms. Java's
    `AllocateMessageQueueByMachineRoom`.
    """
    wanted = frozenset(rooms)

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        clients = sorted(set(client_ids))
        inside = [queue for queue in sorted(queues) if _room_of(queue.broker_name) in wanted]
        if client_id not in clients:
            return ()
        position = clients.index(client_id)
        share, more = divmod(len(inside), len(clients))
        rest = inside[share * len(clients) :]
        return (*inside[position * share : (position + 1) * share], *(rest[position : position + 1] if more else ()))

    return allocate


def allocate_near(
    broker_room: Callable[[MessageQueue], str],
    client_room: Callable[[str], str],
    allocate_within: Allocate = allocate_averagely,
) -> Allocate:
    """Shares the queues of a machine room among the clients there, and those of a room without clients among all.

    `broker_room` says in which room a queue is, and `client_room` a client by its id (`MemberConfig.client_id`); for
    every queue and client, and alike on every member. Java's `AllocateMachineRoomNearby`.
    """

    def allocate(client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        clients = sorted(set(client_ids))
        if client_id not in clients:
            return ()
        clients_in = _by_room(clients, client_room)
        share: list[MessageQueue] = []
        for room, inside in sorted(_by_room(sorted(queues), broker_room).items()):
            if room == client_room(client_id) or room not in clients_in:
                share += allocate_within(client_id, clients_in.get(room, clients), inside)
        return tuple(share)

    return allocate


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> Mapping[str, list[T]]:
    found: dict[str, list[T]] = {}
    for thing in things:
        found.setdefault(room_of(thing), []).append(thing)
    return found


def _room_of(broker_name: str) -> str | None:
    """Return the room of a broker whose name has the form `room@name`."""
    room, *rest = broker_name.split("@")
    return room if len(rest) == 1 and rest[0] else None


def _place(key: str) -> int:
    """Return the first four bytes of the MD5 (`ConsistentHashRouter.MD5Hash`). This is not a security measure."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
