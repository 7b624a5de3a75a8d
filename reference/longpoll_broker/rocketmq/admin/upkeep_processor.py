"""Serves tools' maintenance requests: codes 305, 306, 316, 329.

Here a topic's queues are deleted with the topic, and queue files with their part of the log, so 306 and 316 have
nothing to do. Which log files expire: see `store.retention`.

Source: `AdminBrokerProcessor.java` 4.9.7: `getSystemTopicListFromBroker`, `cleanExpiredConsumeQueue`,
`cleanUnusedTopic`; `DefaultMessageStore.executeDeleteFilesManually`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.shared.topics import Topics
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command


@define(slots=True, eq=False)
class UpkeepProcessor(Serving):
    """The processors."""

    topics: Topics
    clean_soon: Callable[[], None]
    """Makes the next round remove expired log files, whatever the hour."""

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """305: return the topics that clients may not create, change or delete."""
        return answer(
            command, ResponseCode.SUCCESS, body=msgspec.json.encode({"topicList": self.topics.system_names()})
        )

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC)
    def nothing_to_clean(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """306, 316: success, because leftover queues do not exist."""
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.CLEAN_EXPIRED_COMMITLOG)
    def clean_log(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """329: remove expired log files soon; success at once."""
        self.clean_soon()
        return answer(command, ResponseCode.SUCCESS)
