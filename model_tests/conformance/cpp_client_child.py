"""A script that drives the real C++-core client of PyPI `rocketmq` and prints the events as JSON.

It runs in its own process, because the library logs below HOME, keeps threads that never end, and must not share a
broker's interpreter during a latency measurement. It imports only the standard library and `rocketmq`, to start fast.
`cpp_client` checks the results.

Arguments: name server, topic, group, messages, single messages, seconds to wait for each part.
Output: lines {"progress": part, "done": n}, then one line with what was sent and received.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer  # type: ignore[import-untyped]

TAGS = ("red", "green", "blue")
PROPERTY = "number"
"""The name of a user property."""
PAUSE_S = 0.02
"""The pause between single messages: longer than a consumer needs to pull again, so its pull is held."""


class Inbox:
    """The received messages in their order. Invariant: changes under `_changed`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.received: list[tuple[str, str, int, int, int]] = []
        self.born_ms: list[int] = []

    def take(self, message: Any) -> None:
        """Record one message; called on the library's thread."""
        now_ns = time.perf_counter_ns()
        labels = " ".join(
            text.decode() for text in (message.tags, message.keys, message.get_property(PROPERTY)) if text
        )
        entry = (message.body.decode(), labels, message.queue_id, message.queue_offset, now_ns)
        with self._changed:
            self.received.append(entry)
            self.born_ms.append(message.born_timestamp)
            self._changed.notify_all()

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` messages have come; false after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.received) >= count, timeout_s)


def send(producer: Any, topic: str, number: int) -> tuple[str, str, int]:
    """Send one message with a tag, a key and a property; its body, those three, and when the send began."""
    body, tag, key = f"message-{number}", TAGS[number % len(TAGS)], f"key-{number}"
    message = Message(topic)
    message.set_tags(tag)
    message.set_keys(key)
    message.set_property(PROPERTY, str(number))
    message.set_body(body)
    begin_ns = time.perf_counter_ns()
    producer.send_sync(message)
    return body, f"{tag} {key} {number}", begin_ns


def report(value: dict[str, Any]) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def end_with_parent() -> None:
    """Standard input ends when the parent process does: then the report is not needed."""
    while os.read(0, 1024):
        pass
    os._exit(3)


def main() -> None:
    """Send many, consume them, then send single ones to the waiting consumer."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    name_server, topic, group = sys.argv[1:4]
    count, single_count = int(sys.argv[4]), int(sys.argv[5])
    wait_s = float(sys.argv[6])
    producer = Producer(f"{group}-producer")
    producer.set_namesrv_addr(name_server)
    producer.start()
    sent = []
    for number in range(count):
        sent.append(send(producer, topic, number))
        if number % 100 == 99:
            report({"progress": "send", "done": number + 1})
    inbox = Inbox()
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(name_server)
    # One thread: with more, the library itself reorders a queue's messages.
    consumer.set_thread_count(1)
    consumer.subscribe(topic, inbox.take)
    consumer.start()
    done = 0
    deadline = time.monotonic() + wait_s
    while done < count and time.monotonic() < deadline:
        inbox.wait_for(min(count, done + 100), max(0.0, deadline - time.monotonic()))
        done = len(inbox.received)
        report({"progress": "consume", "done": done})
    for number in range(count, count + single_count):
        time.sleep(PAUSE_S)
        before = len(inbox.received)
        sent.append(send(producer, topic, number))
        inbox.wait_for(before + 1, wait_s)
        report({"progress": "single", "done": number - count + 1})
    # A second copy of a message would come soon after the first.
    inbox.wait_for(count + single_count + 1, 0.5)
    report({"sent": sent, "received": inbox.received, "born_ms": inbox.born_ms})
    consumer.shutdown()
    producer.shutdown()
    sys.stdout.flush()
    # The library's own threads may still run and crash in its destructors.
    os._exit(0)


if __name__ == "__main__":
    main()
