"""Answers a broker's requests to a member: its offsets (221), its state (307), and one message to consume (309).

A broker's request can also start a rebalance (40) or a reset of offsets (220), which `rebalance` carries out. The
answers have bodies that `mqadmin` can show.

Source: `ClientRemotingProcessor.java`, `DefaultMQPushConsumerImpl.consumerRunningInfo`, `ConsumerRunningInfo.java`,
`ConsumeMessageDirectlyResult.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from longpoll_client.consume.group_member import GiveDirectly, GroupMember
from longpoll_client.consume.puller import Puller
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_client.instance import InstanceCore
from longpoll_client.messages import as_first_sent, decode_messages
from longpoll_protocol.bodies import MessageQueue, decode_by_queue, encode_by_queue
from longpoll_protocol.codes import VERSION, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, ProtocolError, RemoteProtocolError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_protocol.sizes import MIB

log: logging.Logger = logging.getLogger(__name__)

Reply: TypeAlias = Callable[..., None]
"""Sends the answer to a request. The arguments of this function are code, remark and body."""

DIRECT_COUNT_MAX: Final = 16
"""Maximum number of messages that are consumed at a broker's request (CONSUME_MESSAGE_DIRECTLY, 309) at the same time.
A further request gets SYSTEM_BUSY (2)."""


class BrokerRequests:
    """Answers brokers' requests to one member, on reader threads. Invariant: `_direct_count` changes under `_lock`."""

    def __init__(self, instance: InstanceCore, member: GroupMember, direct: GiveDirectly | None) -> None:
        """Handle the requests that `instance` receives from brokers."""
        self._instance = instance
        self._member = member
        self._direct = direct
        self._lock = instance.runtime.lock()
        self._direct_count = 0
        instance.on_request = self.requested

    def requested(self, command: Command, address: str) -> bool:
        """Handle a broker's request on a reader thread; returns false if the request code is unknown."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._member.rebalance_soon()
            return True
        answers: dict[int, Callable[[Command, Reply], None]] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._tell_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._tell_running,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        found = answers.get(command.code)
        if found is None:
            return False
        try:
            found(command, partial(self._instance.reply, address, command))
        except ProtocolError as error:
            log.warning("request %d of %s: %s", command.code, address, error)
            self._instance.reply(address, command, ResponseCode.SYSTEM_ERROR, str(error))
        return True

    def _reset(self, command: Command, _reply: Reply) -> None:
        """Handle RESET_CONSUMER_CLIENT_OFFSET (220): continue at the request's offsets in the member's queues.

        Raises HeaderError.
        """
        group = self._member.config.group
        offsets = read_reset(command, group)
        log.warning("group %s is told by a broker to go on elsewhere in %d queues", group, len(offsets))
        self._member.reset_soon(offsets)

    def _tell_offsets(self, command: Command, reply: Reply) -> None:
        """Answer GET_CONSUMER_STATUS_FROM_CLIENT (221) with the member's offsets; raises HeaderError."""
        topic = GetConsumerStatusRequestHeader.decode(command.ext_fields).topic
        pullers = self._member.assigned_queues.pullers().items()
        table = encode_by_queue({queue: puller.offset_done for queue, puller in pullers if queue.topic == topic})
        reply(ResponseCode.SUCCESS, None, msgspec.json.encode({"consumerTable": {}, "messageQueueTable": table}))

    def _tell_running(self, command: Command, reply: Reply) -> None:
        """Answer GET_CONSUMER_RUNNING_INFO (307) with the member's state; raises HeaderError."""
        group = GetConsumerRunningInfoRequestHeader.decode(command.ext_fields).consumer_group
        if group != self._member.config.group:
            reply(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group[:255]}> not exist in this consumer")
            return
        reply(ResponseCode.SUCCESS, None, running_body(self._member, self._instance.runtime.unix_ms()))

    def _consume_directly(self, command: Command, reply: Reply) -> None:
        """Let a listener's thread consume the message of CONSUME_MESSAGE_DIRECTLY (309), then answer.

        Raises a ProtocolError.
        """
        group = self._member.config.group
        messages = decode_messages(command.body)
        if len(messages) != 1:
            raise RemoteProtocolError(f"the body must have one message to consume, not {len(messages)}")
        if self._direct is None:
            reply(ResponseCode.SYSTEM_ERROR, f"group {group} is no push consumer here: it has no listener")
            return
        with self._lock:
            is_much = self._direct_count >= DIRECT_COUNT_MAX
            self._direct_count += not is_much
        if is_much:
            reply(ResponseCode.SYSTEM_BUSY, f"{DIRECT_COUNT_MAX} messages are being consumed directly already")
            return
        runtime = self._instance.runtime
        began_ns = runtime.monotonic_ns()

        def told(is_consumed: bool) -> None:
            with self._lock:
                self._direct_count -= 1
            took_ms = (runtime.monotonic_ns() - began_ns) / 1e6
            # The broker gets the same result ("later") whether the listener raises an error or returns `Retry`.
            body = {
                "autoCommit": True,
                "consumeResult": "CR_SUCCESS" if is_consumed else "CR_LATER",
                "order": self._member.is_orderly,
                "remark": None,
                "spentTimeMills": int(took_ms),
            }
            reply(ResponseCode.SUCCESS, None, msgspec.json.encode(body))

        self._direct(as_first_sent(messages[0], RETRY_PREFIX + group), told)


def read_reset(command: Command, group: str) -> dict[MessageQueue, int]:
    """Return each queue's offset in a broker's reset request (220); raises HeaderError for another group."""
    header = ResetOffsetRequestHeader.decode(command.ext_fields)
    if header.group != group:
        raise HeaderError("ResetOffsetRequestHeader", "group", f"is {header.group[:60]!r}, and this is {group!r}")
    table = decode_by_queue(command.body, "offsetTable")
    for queue, offset in table.items():
        if not isinstance(offset, int) or not 0 <= offset < 2**63:
            place = f"{queue.topic[:127]} queue {queue.queue_id}"
            raise HeaderError("ResetOffsetBody", "offsetTable", f"has {str(offset)[:40]!r} for {place}, no offset")
    return {queue: offset for queue, offset in table.items() if queue.topic == header.topic}


def running_body(member: GroupMember, now_ms: int) -> bytes:
    """Return the body of the answer to GET_CONSUMER_RUNNING_INFO (307).

    Rates cover the time since the start of the member, while in Java they cover the last minute.
    """
    seconds = max((now_ms - member.started_ms) / 1000, 0.001)
    body = {
        "jstack": None,
        "mqTable": encode_by_queue(
            {queue: _queue_row(puller) for queue, puller in sorted(member.assigned_queues.pullers().items())}
        ),
        "properties": {
            "PROP_CLIENT_VERSION": "V4_9_7",
            "PROP_CONSUMEORDERLY": str(member.is_orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(member.started_ms),
            "PROP_CONSUME_TYPE": member.consume_type.value,
            "PROP_NAMESERVER_ADDR": member.name_server,
            "PROP_THREADPOOL_CORE_SIZE": str(member.config.thread_count),
            "consumerGroup": member.config.group,
            "messageModel": "BROADCASTING" if member.config.is_broadcasting else "CLUSTERING",
            "pullBatchSize": str(member.config.batch_count_max),
            "version": str(VERSION),
        },
        "statusTable": {topic: _status_row(counts, seconds) for topic, counts in member.statistics.snapshot().items()},
        "subscriptionSet": list(member.membership.subscriptions.values()),
    }
    return msgspec.json.encode(body)


def _queue_row(puller: Puller) -> dict[str, object]:
    """Returns the state of one queue (`ProcessQueueInfo`), with Java's names, including `droped`."""
    return {
        "cachedMsgCount": puller.cached_count,
        "cachedMsgSizeInMiB": puller.cached_size // MIB,
        "commitOffset": puller.offset_done,
        "droped": puller.is_dropped,
        "locked": puller.locked_until_ns is not None and puller.is_locked,
    }


def _status_row(counts: TopicStatistics, seconds: float) -> dict[str, float]:
    """Returns one topic's counts (`ConsumeStatus`): milliseconds per pull and per message, and messages per second."""
    told_count = counts.consumed_count + counts.later_count
    return {
        "consumeFailedMsgs": counts.later_count,
        "consumeFailedTPS": counts.later_count / seconds,
        "consumeOKTPS": counts.consumed_count / seconds,
        "consumeRT": counts.consume_ms / told_count if told_count else 0.0,
        "pullRT": counts.pull_ms / counts.found_count if counts.found_count else 0.0,
        "pullTPS": counts.message_count / seconds,
    }
