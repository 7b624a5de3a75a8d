"""The speed of the store alone, one thread, no sockets: append, dispatch, index, read, flush, open.

    python -m model_tests.bench.store_bench [--messages 300000] [--body 128] [--queues 4] [--profile]

Prints one line a figure. The broker around it and the comparison with Java: `make bench PART=broker`.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable
from functools import partial

from attrs import frozen
from model_tests.bench import leaving
from model_tests.support.broker.stores import message, open_store

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore


@frozen
class Load:
    """What is measured with."""

    messages: int
    body: int
    queues: int

    def made(self) -> list[MessageToStore]:
        """One message a queue, with a tag and the key that every client adds."""
        properties = {"UNIQ_KEY": "7F00000100002A9F000000000001E240", "WAIT": "true"}
        body = b"x" * self.body
        return [message("Bench", queue, body, tag="TagA", properties=properties) for queue in range(self.queues)]


def put(store: MessageStore, load: Load) -> int:
    """Append every message."""
    made = load.made()
    append = store.put
    for index in range(load.messages):
        append(made[index % load.queues])
    return load.messages


def dispatch(store: MessageStore, _load: Load) -> int:
    """Make every message visible, at most 256 at a time."""
    count = 0
    while store.dispatched_end < store.log_end:
        count += len(store.dispatch(256))
    return count


def put_and_dispatch(store: MessageStore, load: Load) -> int:
    """Append and dispatch in turns of 64, message by message."""
    made = load.made()
    for start in range(0, load.messages, 64):
        for index in range(start, min(load.messages, start + 64)):
            store.put(made[index % load.queues])
        store.dispatch(64)
    return load.messages


def put_bursts_and_dispatch(store: MessageStore, load: Load) -> int:
    """Append bursts of 64 and dispatch them, as the send path does when a producer sends side by side."""
    made = (load.made() * 64)[:64]
    left = load.messages
    while left:
        burst = made[: min(left, 64)]
        put_count = len(store.put_burst(burst))
        if put_count < len(burst):
            store.put(burst[put_count])
            put_count += 1
        store.dispatch(64)
        left -= put_count
    return load.messages


def read(store: MessageStore, load: Load) -> int:
    """Read every queue from its start, 32 messages at a time."""
    count = 0
    for queue in range(load.queues):
        offset = 0
        while offset < store.visible_end("Bench", queue):
            found = store.get("Bench", queue, offset, 32)
            count += len(found.offsets)
            offset = found.offset_next
    return count


def index(store: MessageStore, load: Load) -> int:
    """Index every message by its one key, as the flush thread does."""
    while not store.index(256):
        pass
    return load.messages * 3


def flush(store: MessageStore) -> int:
    """Make everything durable at once."""
    store.flush()
    return 1


def reopen(directory: str, messages: int) -> int:
    """Open the closed store, which walks its records, and close it."""
    open_store(directory, StoreConfig()).close()
    return messages


def measure(name: str, work: Callable[[], int], profile: bool) -> None:
    """Run it once and print its rate."""
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    start = time.perf_counter()
    count = work()
    seconds = time.perf_counter() - start
    profiler.disable()
    print(f"{name:24} {count / seconds:12,.0f} /s  {seconds / max(count, 1) * 1e6:7.2f} us each")  # noqa: T201
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


def main() -> None:
    """Measure everything on a temporary store."""
    parser = argparse.ArgumentParser(description="Measure the store by itself.")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--body", type=int, default=128, help="bytes")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    load = Load(options.messages, options.body, options.queues)
    with tempfile.TemporaryDirectory(prefix="longpoll-bench-") as directory:
        store = open_store(directory, StoreConfig())
        works = {
            "put": put,
            "dispatch": dispatch,
            "put + dispatch": put_and_dispatch,
            "put bursts + dispatch": put_bursts_and_dispatch,
            "index": index,
            "get, 32 a pull": read,
        }
        for name, work in works.items():
            measure(name, partial(work, store, load), options.profile)
        measure("flush (calls)", partial(flush, store), options.profile)
        store.close()
        measure("open, walked records", partial(reopen, directory, 3 * load.messages), options.profile)


if __name__ == "__main__":
    leaving.run(main)
