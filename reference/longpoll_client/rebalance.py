"""Which queues of a topic belong to which client of a group: the same answer on every client, without asking anybody.

Leaves out allocation by machine room and by hash.

Source: `AllocateMessageQueueAveragely.java`, `AllocateMessageQueueAveragelyByCircle.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from longpoll_protocol.bodies import MessageQueue

Allocate: TypeAlias = Callable[[str, Iterable[str], Iterable[MessageQueue]], tuple[MessageQueue, ...]]
"""A client's share by its id, the ids of all members and all queues; every member must use the same."""


def allocate_averagely(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """This client's share: a run of neighbours, the first clients getting one more when it does not come out even.

    Every client sorts the same lists, so the shares are disjoint and leave no queue out. A client that the group does
    not know yet gets nothing.
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

    A client that the group does not know yet gets nothing.
    """
    clients = sorted(set(client_ids))
    if client_id not in clients:
        return ()
    return tuple(sorted(queues)[clients.index(client_id) :: len(clients)])
