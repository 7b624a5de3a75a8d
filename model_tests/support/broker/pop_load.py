"""Runs a load of pops and concurrent sends on a broker that serves pops, together with a load of pulls."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from attrs import define
from model_tests.support.broker.pop_client import RUNTIME, Got, PopClient

from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import PullSysFlag, RequestCode
from longpoll_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader

POLL_MS: Final = 2_000
HIDDEN_MS: Final = 10_000
SHORT_MS: Final = 3_000
QUEUES: Final = 4


@define
class Load:
    end_ns: int
    sent: int = 0
    popped: int = 0
    again: int = 0
    """The number of messages that were popped from the retry topic."""
    pulled: int = 0

    @property
    def is_over(self) -> bool:
        """Whether members stop after their current request."""
        return RUNTIME.monotonic_ns() >= self.end_ns


def run_load(
    address: tuple[str, int], seconds: float, *, seed: int = 0, gap_s: float = 0.05, pulls: bool = True
) -> Load:
    """Run five members that pop `Pops`, four that pull `Pulls`, and a producer that sends at random times.

    Of twenty popped messages, one is not acknowledged the first time, and one gets another invisible time.
    """
    load = Load(RUNTIME.monotonic_ns() + round(seconds * 1e9))
    with ExitStack() as stack:
        works: list[Callable[[], None]] = []
        producers = [stack.enter_context(PopClient.of("P", topic, address)) for topic in ("Pops", "Pulls")]
        for producer in producers if pulls else producers[:1]:
            for queue in range(QUEUES):
                producer.send(f"first {queue}", queue=queue)
            works.append(_sender(load, producer, random.Random(f"{seed} {producer.topic}"), gap_s))
        for number in range(5):
            member = stack.enter_context(PopClient.of("G", "Pops", address))
            works.append(_member(load, member, number - 1, random.Random(f"{seed} {number}")))
        for queue in range(QUEUES if pulls else 0):
            connection = RemotingClient(RUNTIME, *address)
            stack.callback(connection.close)
            works.append(_puller(load, connection, queue))
        with ThreadPoolExecutor(len(works)) as pool:
            for done in [pool.submit(work) for work in works]:
                done.result()
    return load


def _sender(load: Load, producer: PopClient, chance: random.Random, gap_s: float) -> Callable[[], None]:
    paused = threading.Event()

    def work() -> None:
        number = 0
        # The producer stops before the end of the load, so that every message can still arrive.
        while RUNTIME.monotonic_ns() < load.end_ns - 3 * SHORT_MS * 1_000_000:
            number += 1
            producer.send(f"{producer.topic} {number}", queue=chance.randrange(QUEUES))
            load.sent += 1
            paused.wait(chance.expovariate(1 / gap_s))

    return work


def _member(load: Load, member: PopClient, queue: int, chance: random.Random) -> Callable[[], None]:
    def take(message: Got) -> None:
        load.popped += 1
        load.again += message.is_retry
        choice = chance.random() if not message.is_retry else 1.0
        if choice < 0.05:
            return
        if choice < 0.1:
            member.change(message, SHORT_MS)
        else:
            member.acknowledge(message)

    def work() -> None:
        while not load.is_over:
            if chance.random() < 0.05:
                member.notified(POLL_MS, queue)
            hidden_ms = chance.choice([SHORT_MS, HIDDEN_MS])
            for message in member.pop(POLL_MS, invisible_ms=hidden_ms, queue=queue, count=chance.choice([1, 8])):
                take(message)

    return work


def _puller(load: Load, connection: RemotingClient, queue: int) -> Callable[[], None]:
    def work() -> None:
        offset = 0
        while not load.is_over:
            header = PullMessageRequestHeader(
                consumer_group="GP",
                topic="Pulls",
                queue_id=queue,
                queue_offset=offset,
                max_msg_nums=8,
                sys_flag=int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
                suspend_timeout_millis=POLL_MS,
                sub_version=0,
                subscription="*",
                expression_type="TAG",
            )
            answer = connection.call(RequestCode.PULL_MESSAGE, header, timeout_s=60)
            following = PullMessageResponseHeader.decode(answer.ext_fields).next_begin_offset
            load.pulled += following - offset if answer.code == 0 else 0
            offset = following

    return work
