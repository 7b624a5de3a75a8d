"""What becomes of messages that cannot be read, on an event loop.

Leaves out how they are found (`consume.puller`).
"""

from __future__ import annotations

import logging

from longpoll_client.aio.group import GroupCalls, LoopReach
from longpoll_client.consume.statistics import Statistics
from longpoll_client.errors import ClientError, RefusedError
from longpoll_client.messages import UnreadableMessage
from longpoll_client.settings import DEAD_LEVEL, MemberConfig, Unreadable
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_runtime.recoverable import KeepGoing

log = logging.getLogger(__name__)


class Burials:
    """Invariant: `_buried` says what became of messages that cannot be read, until their pullers have gone past."""

    def __init__(self, reach: LoopReach, calls: GroupCalls, config: MemberConfig, statistics: Statistics) -> None:
        self._reach = reach
        self._calls = calls
        self._config = config
        self._statistics = statistics
        self._buried: dict[tuple[MessageQueue, int], str] = {}

    def pass_over(self, message: UnreadableMessage, queue: MessageQueue) -> None:
        """Do with a message that cannot be read what the config says, and tell of it.

        Raises a LongpollError when it is to be asked for again: a dead letter is made meanwhile, which waits.
        """
        place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        if self._config.unreadable is Unreadable.STOP:
            raise RemoteProtocolError(f"{place} cannot be read, so its queue waits: {message.why}")
        became = "passed over"
        is_buried = self._config.unreadable is Unreadable.DEAD_LETTER and not self._config.is_broadcasting
        if is_buried and message.physical_offset is not None:
            known = self._buried.pop((queue, message.queue_offset), None)
            if known is None:
                self._reach.begin(self._bury(message, queue, message.physical_offset))
                raise RemoteProtocolError(f"{place} cannot be read and becomes a dead letter: {message.why}")
            became = known
        log.warning("%s is unreadable, so it is %s: %s", place, became, message.why)
        self._statistics.add(message.topic, unreadable_count=1)
        if self._config.on_unreadable is not None:
            with KeepGoing(log, f"on_unreadable of group {self._config.group} failed"):
                self._config.on_unreadable(message)

    async def _bury(self, message: UnreadableMessage, queue: MessageQueue, physical_offset: int) -> None:
        became = "a dead letter"
        try:
            await self._calls.send_back(physical_offset, "", queue, DEAD_LEVEL)
        except RefusedError as error:
            became = f"passed over, for as a dead letter it is refused ({error})"
        except ClientError as error:
            log.warning("a dead letter of group %s could not be sent: %s", self._config.group, error)
            return
        self._buried[queue, message.queue_offset] = became
