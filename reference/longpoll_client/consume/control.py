"""What a broker asks of a group's member: its offsets (221), what it does (307), to consume one message (309), 220.

Pure apart from what it is given: reads the member's state and makes the bodies that `mqadmin` shows. Leaves out going
on from other offsets (220: only its reading is here), and who answers (`consumer`).

Source: `ClientRemotingProcessor.java`, `DefaultMQPushConsumerImpl.consumerRunningInfo`, `ConsumerRunningInfo.java`,
`ConsumeMessageDirectlyResult.java`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from attrs import frozen

from longpoll_client.consume.puller import Puller
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_client.settings import ConsumerConfig
from longpoll_protocol.bodies import ConsumeType, MessageQueue, SubscriptionData
from longpoll_protocol.codes import VERSION
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import ResetOffsetRequestHeader
from longpoll_protocol.queue_table import decode_by_queue, encode_by_queue
from longpoll_protocol.sizes import MIB

DIRECT_COUNT_MAX: Final = 16
"""Most messages that are consumed directly at one time; one more is answered 2."""


@frozen
class MemberState:
    """A member at one moment."""

    config: ConsumerConfig
    name_server: str
    consume_type: ConsumeType
    is_orderly: bool
    started_ms: int
    """By the wall clock."""
    now_ms: int
    subscriptions: Mapping[str, SubscriptionData]
    pullers: Mapping[MessageQueue, Puller]
    statistics: Mapping[str, TopicStatistics]


def read_reset(command: Command, group: str) -> dict[MessageQueue, int]:
    """The offsets that a member is to go on from (220), those of its topic; raises HeaderError."""
    header = ResetOffsetRequestHeader.decode(command.ext_fields)
    if header.group != group:
        raise HeaderError("ResetOffsetRequestHeader", "group", f"is {header.group[:60]!r}, and this is {group!r}")
    table = decode_by_queue(command.body, "offsetTable")
    for queue, offset in table.items():
        if not isinstance(offset, int) or not 0 <= offset < 2**63:
            place = f"{queue.topic[:127]} queue {queue.queue_id}"
            raise HeaderError("ResetOffsetBody", "offsetTable", f"has {str(offset)[:40]!r} for {place}, no offset")
    return {queue: offset for queue, offset in table.items() if queue.topic == header.topic}


def offsets_body(pullers: Mapping[MessageQueue, Puller], topic: str) -> bytes:
    """The answer to 221: the offset of each queue of a topic that this member has."""
    table = {queue: puller.offset_done for queue, puller in pullers.items() if queue.topic == topic}
    return msgspec.json.encode({"consumerTable": {}, "messageQueueTable": encode_by_queue(table)})


def running_body(state: MemberState) -> bytes:
    """The answer to 307. Rates are of the time since the start, where Java's are of the last minute."""
    seconds = max((state.now_ms - state.started_ms) / 1000, 0.001)
    body = {
        "jstack": None,
        "mqTable": encode_by_queue({queue: _queue_row(puller) for queue, puller in sorted(state.pullers.items())}),
        "properties": {
            "PROP_CLIENT_VERSION": "V4_9_7",
            "PROP_CONSUMEORDERLY": str(state.is_orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(state.started_ms),
            "PROP_CONSUME_TYPE": state.consume_type.value,
            "PROP_NAMESERVER_ADDR": state.name_server,
            "PROP_THREADPOOL_CORE_SIZE": str(state.config.thread_count),
            "consumerGroup": state.config.group,
            "messageModel": "BROADCASTING" if state.config.is_broadcasting else "CLUSTERING",
            "pullBatchSize": str(state.config.batch_count_max),
            "version": str(VERSION),
        },
        "statusTable": {topic: _status_row(counts, seconds) for topic, counts in state.statistics.items()},
        "subscriptionSet": list(state.subscriptions.values()),
    }
    return msgspec.json.encode(body)


def direct_body(*, is_consumed: bool, is_orderly: bool, took_ms: float) -> bytes:
    """The answer to 309. A listener that raises has put the message off."""
    result = "CR_SUCCESS" if is_consumed else "CR_LATER"
    return msgspec.json.encode(
        {
            "autoCommit": True,
            "consumeResult": result,
            "order": is_orderly,
            "remark": None,
            "spentTimeMills": int(took_ms),
        }
    )


def _queue_row(puller: Puller) -> dict[str, object]:
    """What is known of one queue (`ProcessQueueInfo`); the names are Java's, `droped` too."""
    return {
        "cachedMsgCount": puller.cached_count,
        "cachedMsgSizeInMiB": puller.cached_size // MIB,
        "commitOffset": puller.offset_done,
        "droped": puller.is_dropped,
        "locked": puller.locked_until_ns > 0,
    }


def _status_row(counts: TopicStatistics, seconds: float) -> dict[str, float]:
    """One topic (`ConsumeStatus`): milliseconds a pull and a message, and messages a second."""
    told_count = counts.consumed_count + counts.later_count
    return {
        "consumeFailedMsgs": counts.later_count,
        "consumeFailedTPS": counts.later_count / seconds,
        "consumeOKTPS": counts.consumed_count / seconds,
        "consumeRT": counts.consume_ms / told_count if told_count else 0.0,
        "pullRT": counts.pull_ms / counts.found_count if counts.found_count else 0.0,
        "pullTPS": counts.message_count / seconds,
    }
