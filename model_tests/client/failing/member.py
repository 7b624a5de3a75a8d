"""One member of a group as a process: consumes until its standard input ends, and prints a line for each message.

Arguments: name server, topic, group, and kind (`push`, `loop` or `orderly`). The member prints a line of JSON for each
message before the message counts as consumed: [time in ns, queue id, queue offset, body]. When the member gets or gives
up a queue, it prints [time in ns, queue id, whether it is assigned]. `Member.java` does the same.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from model_tests.support.broker.client_scenarios import member_options, share_options
from model_tests.support.client import Loop, OnLoop

from longpoll_client import AsyncPushConsumer, ClientError, MessageQueue, PushConsumer, ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_runtime.log_stream import logging_to

LOCK: Final = threading.Lock()
STARTS_MAX: Final = 60
START_AGAIN_S: Final = 1.0
"""A start fails while no server answers, and is retried after this time in seconds."""


def tell(*row: object) -> None:
    """Print one line, as a whole or not at all."""
    with LOCK:
        sys.stdout.write(json.dumps([time.monotonic_ns(), *row]) + "\n")
        sys.stdout.flush()


def tell_messages(messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        tell(message.queue_id, message.queue_offset, message.body.decode())


def tell_share(topic: str) -> Callable[[MessageQueue, bool], None]:
    def share(queue: MessageQueue, is_ours: bool) -> None:
        if queue.topic == topic:
            tell(queue.queue_id, is_ours)

    return share


def listen(messages: Sequence[ReceivedMessage]) -> None:
    tell_messages(messages)


def consume(name_server: str, topic: str, config: MemberConfig, kind: str) -> None:
    """Consume on threads or on an event loop until standard input ends."""
    options = {"topics": topic, "listener": listen, **member_options(config), **share_options(tell_share(topic))}
    with ExitStack() as stack:
        consumer: Any
        if kind == "loop":
            loop = stack.enter_context(Loop())
            consumer = stack.enter_context(OnLoop(loop, loop.call(AsyncPushConsumer, name_server, **options)))
        else:
            options["orderly"] = kind == "orderly"
            consumer = stack.enter_context(closing(PushConsumer(name_server, **options)))
        for _number in range(STARTS_MAX):
            try:
                consumer.start()
            except ClientError as error:
                sys.stderr.write(f"start: {error}\n")
                threading.Event().wait(START_AGAIN_S)  # A supervisor of a service would also retry.
            else:
                break
        sys.stdin.read()


def main() -> None:
    name_server, topic, group, kind = sys.argv[1:]
    config = MemberConfig(
        group=group, start_at="first", rebalance_s=5.0, heartbeat_s=5.0, persist_s=1.0, hold_s=5, pull_timeout_s=10.0
    )
    with logging_to(sys.stderr, "text", "warning"):
        consume(name_server, topic, config, kind)


if __name__ == "__main__":
    main()
