"""A real client with a C++ core (PyPI `rocketmq`) that plays one scenario; `real_clients` checks the result.

Arguments and output are those of `java/Peer.java`. The scenarios are "bulk", and "single", in which the consumer waits
for each message that is sent. The client runs in its own process because the library logs below HOME and keeps threads
that never end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Final

from rocketmq.client import Message, Producer, PushConsumer  # type: ignore[import-untyped]

TAGS: Final = ("red", "green", "blue")
TIMEOUT_MS: Final = 600_000
"""The library resends a message after this timeout, which must not happen on a busy machine."""
HELD_S: Final = 0.02
"""The client waits for this time in seconds, after which the consumer's next pull is certainly held."""
END_S: Final = 0.3
"""How long the client waits in seconds for a second copy of a message."""


class Peer:
    def __init__(self, name_server: str, topic: str, group: str) -> None:
        self.topic = topic
        self.came = threading.Semaphore(0)
        self.producer = Producer(f"{group}-producer", timeout=TIMEOUT_MS)
        self.producer.set_namesrv_addr(name_server)
        self.producer.start()
        self.consumer = PushConsumer(group)
        self.consumer.set_namesrv_addr(name_server)
        # The consumer has one thread, because with more threads the library itself reorders messages of a queue.
        self.consumer.set_thread_count(1)
        self.consumer.subscribe(topic, self.listen)

    def listen(self, message: Any) -> None:
        number = message.get_property("number")
        texts = [each.decode() for each in (message.body, message.tags, message.keys, number)]
        row = [*texts, message.queue_id, message.queue_offset, message.reconsume_times]
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        self.came.release()

    def send(self, number: int) -> None:
        message = Message(self.topic)
        message.set_tags(TAGS[number % len(TAGS)])
        message.set_keys(f"key-{number}")
        message.set_property("number", str(number))
        message.set_body(f"message-{number}")
        self.producer.send_sync(message)


def main() -> None:
    name_server, topic, group, story, count = sys.argv[1:6]
    peer = Peer(name_server, topic, group)
    if story == "single":
        peer.consumer.start()
    for number in range(int(count)):
        peer.send(number)
        if story == "single":
            peer.came.acquire(timeout=TIMEOUT_MS / 1000)
            threading.Event().wait(HELD_S)
    if story == "bulk":
        peer.consumer.start()
    sys.stdin.read()
    threading.Event().wait(END_S)
    peer.consumer.shutdown()
    peer.producer.shutdown()
    sys.stdout.flush()
    # The library's threads may still run, and crash in its destructors.
    os._exit(0)


if __name__ == "__main__":
    main()
