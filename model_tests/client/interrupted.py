"""A process whose main thread is interrupted (Ctrl-C) at thousands of random moments while it uses a client.

    python -m model_tests.client.interrupted send|poll|subscribe NAME_SERVER TOPIC SEED

The process prints one line of JSON: the number of interrupts, and which calls of the client still work afterwards. The
caller ends a process that hangs.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from model_tests.support.broker.client_scenarios import member_options

from longpoll_client import ClientError, Producer, PullConsumer
from longpoll_client.settings import MemberConfig

COUNT: Final = 200
WITHIN_S: Final = 1.2e-3
"""The longest wait before an interrupt; most sends take less."""


def interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt as Ctrl-C does, but only in `repeated`, because elsewhere it would end the test."""
    while frame is not None:
        if frame.f_code is repeated.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back


def repeated(work: Callable[[], object]) -> None:
    for _number in range(4):
        work()


def interrupted(work: Callable[[], object], chance: random.Random) -> int:
    """Repeat the work until it was interrupted often enough; returns the number of interrupts."""
    count = 0
    while count < COUNT:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, WITHIN_S))
        try:
            repeated(work)
        except (KeyboardInterrupt, ClientError):
            # Python's own start of a thread sometimes turns an interrupt into an error.
            count += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    return count


def main(arguments: Sequence[str]) -> None:
    what, name_server, topic, seed = arguments
    signal.signal(signal.SIGALRM, interrupt)
    chance = random.Random(int(seed))
    with Producer(name_server) as producer:
        producer.send(topic, b"first")
        if what == "send":
            count = interrupted(lambda: producer.send(topic, b"again", timeout_s=2.0), chance)
            after = producer.send(topic, b"last").queue.topic
        else:
            config = MemberConfig(group="interrupted", start_at="first")
            with PullConsumer(name_server, topics=topic, **member_options(config)) as consumer:
                work = (lambda: consumer.poll(0.0005)) if what == "poll" else (lambda: consumer.subscribe(topic, "*"))
                count = interrupted(work, chance)
                producer.send(topic, b"last")
                after = ""
                while after not in {"last", "nothing came"}:
                    after = next((message.body.decode() for message in consumer.poll(10.0)), "nothing came")
    sys.stdout.write(json.dumps({"interrupted": count, "after": after}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
