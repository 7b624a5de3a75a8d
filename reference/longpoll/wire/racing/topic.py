"""Creates the topic of a race on any broker, or uses the queues that a send creates.

Before the race, each queue gets its first message, for which a broker creates files, and is read up to it.

Source: `TopicConfigManager.createTopicInSendMessageMethod`. A topic that a send creates has at most as many queues as
the default topic: 8, unless configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final

from attrs import frozen

from longpoll_client.errors import ClientError
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from longpoll_runtime import Address, Runtime

BODY: Final = bytes(128)
"""5.5.0 fails on an empty one."""
BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY.value, ResponseCode.FLOW_CONTROL.value})
BUSY_PAUSE_S: Final = 0.02
BUSY_TRIES: Final = 200
LOOKS: Final = 10
LOOK_MS: Final = 500
"""How often, and for how long each time, to wait for a queue's first message."""
ANSWER_S: Final = 10.0
DIGITS_MAX: Final = 19
REMARK_MAX: Final = 120
"""The most characters shown of a broker's remark."""


@frozen
class RaceTopic:
    """The queues available for the race."""

    name: str
    first_offsets: Mapping[int, int]
    """Queue id -> the offset that its next message gets."""
    refused: Mapping[int, str]
    """Queue id -> the broker's rejection of a message for it."""

    def __str__(self) -> str:
        return f"{len(self.first_offsets)} queues{self._left_out()}"

    def _left_out(self) -> str:
        if not self.refused:
            return ""
        ids = ", ".join(map(str, self.refused))
        return f" (not {ids}, which the broker rejects: {next(iter(self.refused.values()))})"


def send_header(topic: str, queue: int) -> SendMessageRequestHeaderV2:
    """The header of a message of a race."""
    return SendMessageRequestHeaderV2(
        producer_group="race",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=8,
        queue_id=queue,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties="",
        reconsume_times=0,
    )


def pull_header(topic: str, queue: int, offset: int, hold_ms: int) -> PullMessageRequestHeader:
    """A pull that may be held."""
    return PullMessageRequestHeader(
        consumer_group="race",
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


def prepare(
    runtime: Runtime, address: Address, topic: str, queue_ids: Sequence[int], tell: Callable[[], None] = lambda: None
) -> RaceTopic:
    """Create the topic if the broker allows it, and find out which of these queues it has.

    A broker that was just started may reject topics; then sends create it, with fewer queues. `tell` gets each queue.
    Raises ClientError if the broker does not answer, or its answer is unreadable.
    """
    count = max(queue_ids) + 1
    made = CreateTopicRequestHeader(topic=topic, default_topic="TBW102", read_queue_nums=count, write_queue_nums=count)
    offsets: dict[int, int] = {}
    refused: dict[int, str] = {}
    with closing(RemotingClient(runtime, *address)) as client:
        _patiently(runtime, client, RequestCode.UPDATE_AND_CREATE_TOPIC, made)
        for queue in queue_ids:
            answer = _patiently(runtime, client, RequestCode.SEND_MESSAGE_V2, send_header(topic, queue), BODY)
            if answer.code != ResponseCode.SUCCESS:
                refused[queue] = f"code {answer.code} {(answer.remark or '')[:REMARK_MAX]}".strip()
                continue
            offset = _offset_of(answer)
            _read(client, topic, queue, offset)
            offsets[queue] = offset + 1
            tell()
    if not offsets:
        raise ClientError(f"no message can be sent to {topic}: {next(iter(refused.values()))}")
    return RaceTopic(topic, offsets, refused)


def _patiently(
    runtime: Runtime,
    client: RemotingClient,
    code: int,
    header: CreateTopicRequestHeader | SendMessageRequestHeaderV2,
    body: bytes = b"",
) -> Command:
    """Send a request, and again while the broker has no room."""
    answer = client.call(code, header, body, timeout_s=ANSWER_S)
    for _ in range(BUSY_TRIES):
        if answer.code not in BUSY:
            break
        runtime.sleep(BUSY_PAUSE_S)
        answer = client.call(code, header, body, timeout_s=ANSWER_S)
    return answer


def _read(client: RemotingClient, topic: str, queue: int, offset: int) -> None:
    """Wait until the first message is visible; a pull that is not woken for it checks again at its end."""
    for _ in range(LOOKS):
        header = pull_header(topic, queue, offset, LOOK_MS)
        answer = client.call(RequestCode.PULL_MESSAGE, header, timeout_s=ANSWER_S)
        if answer.code == ResponseCode.SUCCESS:
            return
    raise ClientError(f"queue {queue} of {topic}: its first message, offset {offset}, cannot be read")


def _offset_of(answer: Command) -> int:
    """The offset of a sent message; raises ClientError. An answer needs no other field."""
    told = (answer.ext_fields or {}).get("queueOffset", "")
    if not (told.isascii() and told.isdigit() and len(told) <= DIGITS_MAX):
        raise ClientError(f"acknowledgement has no valid queueOffset: {told[:40]!r}")
    return int(told)
