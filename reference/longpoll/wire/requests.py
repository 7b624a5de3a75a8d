"""The requests of the load and the race, and a call that is repeated while a broker is busy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from longpoll_client.remoting import RemotingClient
from longpoll_protocol.admin_headers import CreateTopicRequestHeader
from longpoll_protocol.codes import PullSysFlag, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import (
    Header,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from longpoll_protocol.names import DEFAULT_TOPIC
from longpoll_protocol.properties import encode_properties
from longpoll_runtime import Runtime

BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY.value, ResponseCode.FLOW_CONTROL.value})
"""The codes with which a busy broker rejects a request that it has not processed."""
BUSY_PAUSE_S: Final = 0.02
BUSY_TRIES: Final = 500
BORN_MS: Final = 1_700_000_000_000


def send_header(
    topic: str, queue_id: int, properties: Mapping[str, str] = MappingProxyType({}), *, batch: bool = False
) -> SendMessageRequestHeaderV2:
    """Build the header that sends a message or a batch."""
    return SendMessageRequestHeaderV2(
        producer_group="longpoll",
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=8,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=BORN_MS,
        flag=0,
        properties=encode_properties(properties) or None,
        batch=batch,
    )


def pull_header(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    hold_ms: int,
    *,
    expression: str = "*",
    count_max: int = 32,
    commit_offset: int | None = None,
) -> PullMessageRequestHeader:
    """Build a pull with its subscription, which the broker may hold for `hold_ms`. The pull may commit an offset."""
    sys_flag = PullSysFlag.SUBSCRIPTION
    if hold_ms:
        sys_flag |= PullSysFlag.SUSPEND
    if commit_offset is not None:
        sys_flag |= PullSysFlag.COMMIT_OFFSET
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count_max,
        sys_flag=sys_flag.value,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=hold_ms,
        sub_version=0,
        subscription=expression,
        expression_type="TAG",
    )


def topic_header(topic: str, queue_count: int) -> CreateTopicRequestHeader:
    """Build the request that creates a topic (code 17)."""
    return CreateTopicRequestHeader(
        topic=topic, default_topic=DEFAULT_TOPIC, read_queue_nums=queue_count, write_queue_nums=queue_count
    )


def call_patiently(
    runtime: Runtime, client: RemotingClient, code: int, header: Header, body: bytes = b"", *, timeout_s: float
) -> Command:
    """Send a request, and retry while the broker is busy, as real clients do; raises ClientError."""
    answer = client.call(code, header, body, timeout_s=timeout_s)
    for _ in range(BUSY_TRIES):
        if answer.code not in BUSY:
            break
        runtime.sleep(BUSY_PAUSE_S)
        answer = client.call(code, header, body, timeout_s=timeout_s)
    return answer
