"""Creates topics for measurements and counts the topics' messages afterwards."""

from __future__ import annotations

import time
from typing import Final

from model_tests.support.broker.raw_client import RawClient, send_message

from longpoll_client.errors import ClientError
from longpoll_protocol.admin_headers import CreateTopicRequestHeader
from longpoll_protocol.codes import RequestCode
from longpoll_runtime import Address

VISIBLE_S: Final = 10.0
"""Time limit in seconds within which a broker's dispatcher must make messages visible."""


def make_topic(address: Address, topic: str, queue_count: int) -> None:
    """Create a topic with `queue_count` queues; raises ClientError."""
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=queue_count, write_queue_nums=queue_count
    )
    with RawClient(address) as client:
        answer = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
    if answer.code:
        raise ClientError(f"making topic {topic} was answered with code {answer.code} {answer.remark}")


def send_each(address: Address, topic: str, queue_count: int) -> None:
    """Send a first message to every queue, so that the queue's files are created, and wait until all are visible."""
    with RawClient(address) as client:
        for queue in range(queue_count):
            send_message(client, topic, b"x", queue_id=queue)
    check_stored(address, topic, queue_count, queue_count)


def check_stored(address: Address, topic: str, queue_count: int, message_count: int) -> None:
    """Check that the topic's queues have exactly `message_count` visible messages; raises ClientError.

    The load counts answers without reading them, so only a missing message shows that a send was refused.
    """
    deadline_s = time.monotonic() + VISIBLE_S
    with RawClient(address) as client:
        while (stored := sum(_end(client, topic, queue) for queue in range(queue_count))) != message_count:
            if stored > message_count or time.monotonic() > deadline_s:
                raise ClientError(f"{message_count} sends to {topic} were answered, but it holds {stored} messages")


def _end(client: RawClient, topic: str, queue: int) -> int:
    fields = {"topic": topic, "queueId": str(queue)}
    return int((client.call(RequestCode.GET_MAX_OFFSET, fields).ext_fields or {}).get("offset", 0))
