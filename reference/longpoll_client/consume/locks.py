"""Has the brokers keep queues for this client alone, so that their messages are consumed in order: 41 and 42.

Leaves out how long a lock is good for and when it is asked for again (`consumer`).

Source: `RebalanceImpl.lockAll`, `RebalanceImpl.unlock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from longpoll_client.instance import ClientInstance
from longpoll_client.offsets import ask
from longpoll_protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from longpoll_protocol.codes import RequestCode
from longpoll_spec.errors import LongpollError

LOCK_LIVE_S: Final = 30.0
"""`REBALANCE_LOCK_MAX_LIVE_TIME`: half of what the broker grants, so that a client gives up before the broker does."""
LOCK_RENEWAL_S: Final = 20.0
"""`REBALANCE_LOCK_INTERVAL`."""


class BrokerLocks:
    """Asks for the locks of one member of a group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    def lock(
        self, queues: Iterable[MessageQueue], failed: Callable[[str, LongpollError], None]
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """The queues that this client has for itself now, and those that others have.

        A queue whose broker did not answer is in neither set; `failed` is called with
        the broker's name and the error.
        """
        got: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()
        for broker_name, wanted in by_broker(queues).items():
            try:
                answer = self._ask(RequestCode.LOCK_BATCH_MQ, broker_name, wanted)
            except LongpollError as error:
                failed(broker_name, error)
                continue
            locked = set(answer.lock_ok_mq_set)
            got |= locked & set(wanted)
            refused |= set(wanted) - locked
        return got, refused

    def unlock(self, queues: Iterable[MessageQueue], failed: Callable[[str, LongpollError], None]) -> None:
        """Let others have the queues; what fails ends by itself after 60 s."""
        for broker_name, wanted in by_broker(queues).items():
            try:
                self._ask(RequestCode.UNLOCK_BATCH_MQ, broker_name, wanted)
            except LongpollError as error:
                failed(broker_name, error)

    def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> LockBatchResponse:
        client = self._instance.client(self._instance.broker_address(broker_name))
        request = LockBatchRequest(consumer_group=self._group, client_id=self._instance.client_id, mq_set=queues)
        body = ask(client, code, body=request.encode()).body
        return LockBatchResponse.decode(body) if len(body) else LockBatchResponse()


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """The queues of each broker."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.broker_name, []).append(queue)
    return found
