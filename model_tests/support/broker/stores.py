"""Helpers for tests of the store: small file sizes, messages and filled stores."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Final, TypeVar

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore, PutResult
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.properties import TAGS, encode_properties, tags_code
from longpoll_runtime.real import RealRuntime

T = TypeVar("T")
SMALL: Final = StoreConfig(
    commit_log_file_size=2048,
    consume_queue_file_size=10 * 20,
    index_slot_count=13,
    index_entry_count=20,
    message_size_max=1024,
    memory_size=1024 * 1024,
)
"""File sizes so small that a few dozen messages fill several files of the log, the queues and the index."""
HOST: Final = host_bytes("127.0.0.1", 10911)
HOST_V6: Final = host_bytes("2001:db8::7", 10911)


def message(
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"body",
    *,
    tag: str | None = None,
    properties: dict[str, str] | None = None,
    born_host: bytes = HOST,
    store_host: bytes = HOST,
    sys_flag: int = 0,
) -> MessageToStore:
    """Create a message to store; `tag` is added to the properties."""
    everything = dict(properties or {})
    if tag is not None:
        everything[TAGS] = tag
    encoded = encode_properties(everything).encode()
    return MessageToStore(
        topic, queue_id, body, encoded, tags_code(tag), 1_700_000_000_000, born_host, store_host,
        flag=7, sys_flag=sys_flag,
    )  # fmt: skip


class StillRuntime(RealRuntime):
    """A runtime whose clock stands still, so that two stores of the same messages have equal bytes."""

    def unix_ms(self) -> int:
        return 1_700_000_000_000


def open_store(directory: str | os.PathLike[str], config: StoreConfig = SMALL) -> MessageStore:
    return MessageStore.open(RealRuntime(), os.fspath(directory), config)


def put_and_dispatch(store: MessageStore, messages: list[MessageToStore]) -> tuple[list[PutResult], list[Arrival]]:
    put = [store.put(each) for each in messages]
    arrivals: list[Arrival] = []
    while store.dispatched_end < store.log_end:
        arrivals.extend(store.dispatch(7))
    return put, arrivals


def mixed_messages(count: int) -> list[MessageToStore]:
    """Create messages for two topics and three queues, with and without tags, with bodies of up to 300 bytes."""
    return [
        message(
            "Orders" if index % 3 else "%RETRY%group",
            index % 3,
            bytes([index % 251]) * (index * 37 % 301),
            tag=None if index % 4 == 0 else f"tag{index % 5}",
            properties={"KEYS": f"key{index}", "Ö": "ü€😀"} if index % 2 else None,
            born_host=HOST_V6 if index % 5 == 1 else HOST,
            store_host=HOST_V6 if index % 7 == 2 else HOST,
        )
        for index in range(count)
    ]


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Returns every readable record of a queue, in the way in which a consumer follows the next offsets."""
    records: list[bytes] = []
    offset = store.visible_start(topic, queue_id)
    while offset < store.visible_end(topic, queue_id):
        found = store.get(topic, queue_id, offset, 32)
        joined = b"".join(found.records)
        position = 0
        for _ in found.offsets:
            size = int.from_bytes(joined[position : position + 4])
            records.append(joined[position : position + size])
            position += size
        assert position == found.size_bytes
        assert found.offset_next > offset
        offset = found.offset_next
    return records


def result_of(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Run a generator to its end; returns its result and the number of times it yielded."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result, turns
        turns += 1
