"""Who pulls which queue: the same answer on every client of a group, with nobody to ask.

Leaves out allocation by circle, by machine room and by hash.

Source: `AllocateMessageQueueAveragely.java`.
"""

from __future__ import annotations

from collections.abc import Iterable

from longpoll_broker.wire.bodies import MessageQueue


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
