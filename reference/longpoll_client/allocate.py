"""Computes which member of a group gets which queues. Every member computes the same result without communication.

`consume/rebalance.py` calls these functions when the members or the queues of a group may have changed. Each function
gives the result of the Java class that its docstring names, so a group may have Java and Python members.

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
"""Computes a client's share from its id, the ids of all members and all queues. All members must use the same function.
"""

REPLICA_COUNT: Final = 10
"""The number of positions of each client on the ring (`virtualNodeCnt`)."""


def allocate_averagely(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """Return this client's share: consecutive queues, equally many for each client, or one more for the first clients.

    Every client sorts the same lists, so each queue is in exactly one share. A client that the group does not know yet
    gets nothing. Java's class is `AllocateMessageQueueAveragely`.
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
    """Return this client's share: clients take the queues in turn, so each client gets queues of every broker.

    A client that the group does not know yet gets nothing. Java's class is `AllocateMessageQueueAveragelyByCircle`.
    """
    clients = sorted(set(client_ids))
    if client_id not in clients:
        return ()
    return tuple(sorted(queues)[clients.index(client_id) :: len(clients)])


def allocate_by_consistent_hash(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """Return this client's share: the queues whose hashes precede the client's hashes on a ring of 2^32 positions.

    When a member joins or leaves, few queues move to another member. The shares are uneven and may be empty. A client
    that the group does not know yet gets nothing. Java's class is `AllocateMessageQueueConsistentHash`.
    """
    clients = sorted(set(client_ids))
    if client_id not in clients:
        return ()
    # If two clients have the same position, the last client gets it, as in Java's map.
    ring = {_place(f"{name}-{number}"): name for name in clients for number in range(REPLICA_COUNT)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[places[bisect_left(places, _place(text)) % len(places)]]

    return tuple(queue for queue in sorted(queues) if owner(queue) == client_id)


def allocate_by_machine_room(rooms: Iterable[str]) -> Allocate:
    """Return a function that shares only the queues of brokers in these machine rooms, evenly.

    A broker's name must have the form `room@name`. No member gets the queues of other brokers. All members of the group
    must name the same rooms. Java's class is `AllocateMessageQueueByMachineRoom`.
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
    """Return a function that shares a machine room's queues among the room's clients, or all clients if it has none.

    `broker_room` returns the room of a queue, and `client_room` the room of a client by its id
    (`MemberConfig.client_id`). Both functions must know every queue and client, and must return the same rooms on every
    member. Java's class is `AllocateMachineRoomNearby`.
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
    room, *rest = broker_name.split("@")
    return room if len(rest) == 1 and rest[0] else None


def _place(key: str) -> int:
    """Return the position of a key on the ring: the first four bytes of its MD5 (`ConsistentHashRouter.MD5Hash`)."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
