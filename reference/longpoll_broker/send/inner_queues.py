"""Checks the additional queues that a message names in its property `INNER_MULTI_DISPATCH`.

Retry, delayed and prepared messages name none. Listing the message there: see `store.queues.inner_queues`.

Source: `MultiDispatch.java`, `LmqConsumeQueue` limits of `DefaultMessageStore.java` 4.9.
"""

from __future__ import annotations

from typing import Final, Self

from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import BrokerError
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.queues.inner_queues import SEPARATOR, inner_queue_id
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.names import LMQ_PREFIX, RETRY_PREFIX, queue_name_problem
from longpoll_protocol.properties import INNER_QUEUES

NAME_COUNT_MAX: Final = 128
"""Maximum additional queues of one message; Java is limited only by the size of the properties."""


class SendRefusedError(BrokerError):
    """A check before the store refuses a send; `code` is the answer's.

    The answer names the region, except where Java raises an exception instead (`tells_region`).
    """

    def __init__(self, code: int, remark: str, *, tells_region: bool = True) -> None:
        super().__init__(remark)
        self.code = code
        self.tells_region = tells_region


@define(slots=True, eq=False)
class InnerQueues:
    """Checks the names; callable from any thread. Invariant: `_light` are the light topics ever written to."""

    store: MessageStore
    light: bool
    """`enableLmq`: a topic whose name begins with `%LMQ%` has one queue."""
    light_count_max: int
    _light: set[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._light = {topic for topic, _queue_id in self.store.queues() if topic.startswith(LMQ_PREFIX)}

    @classmethod
    def of(cls, store: MessageStore, config: StoreConfig) -> Self | None:
        """Create the service for these settings; None when multi-dispatch is off."""
        return cls(store, config.light_queues, config.light_queue_count_max) if config.multi_dispatch else None

    def named(self, message: MessageToStore, properties: dict[str, str]) -> MessageToStore:
        """Returns the message with its additional queues; raises SendRefusedError for an illegal one."""
        if message.topic.startswith(RETRY_PREFIX):
            return message
        names = properties[INNER_QUEUES].split(SEPARATOR)
        if len(names) > NAME_COUNT_MAX or len(set(names)) < len(names):
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(names)} inner queues: up to {NAME_COUNT_MAX} different ones are allowed",
            )
        for name in names:
            problem = queue_name_problem(name)
            if problem is not None:
                raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"inner queue {name[:128]!r}: {problem}")
        places = tuple((name, inner_queue_id(name, message.queue_id, light=self.light)) for name in names)
        if (message.topic, message.queue_id) in places:
            # RocketMQ would list it twice at one offset and leave the next offset empty.
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"inner queue {message.topic} is the message's own topic; name only other queues",
            )
        self._count({name for name in names if name.startswith(LMQ_PREFIX)})
        return replace(message, inner_queues=places)

    def _count(self, light: set[str]) -> None:
        new = light - self._light
        if self.light and new and len(self._light) + len(new) > self.light_count_max:
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED] there are too many light queues; maxLmqConsumeQueueNum is "
                f"{self.light_count_max}",
            )
        self._light |= new
