"""The pull pool: a full queue rejects, and what waited too long is told so instead of being run."""

from __future__ import annotations

import threading

import pytest

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.hold import Pull
from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.service.channel import Outbox
from longpoll_broker.service.executors import PoolExecutor
from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.raw_client import pull_fields, send_message
from longpoll_broker.wire.codes import RequestCode
from longpoll_spec.policy import ROCKETMQ_4_9


def pull() -> Pull:
    """Any pull."""
    return Pull("c", 1, "G", "T", 0, 0, 32, 2)


def test_a_full_queue_rejects_and_what_waited_too_long_is_refused() -> None:
    """One worker is busy: the second waits, the third finds no room; then time passes, and the second is too late."""
    runtime = RealRuntime()
    now_ns = [0]
    runtime.monotonic_ns = lambda: now_ns[0]
    begun, may_end = threading.Event(), threading.Event()
    ran: list[Pull] = []
    refused: list[tuple[Pull, str]] = []

    def run(each: Pull, _cause: str, _outbox: Outbox) -> None:
        ran.append(each)
        begun.set()
        assert may_end.wait(10)

    pool = PoolExecutor(runtime, run, lambda each, cause, _outbox: refused.append((each, cause)), 1, 1, 5000)
    pool.start()
    first, second, third = pull(), pull(), pull()
    assert pool.submit(first, "woken", Outbox())
    assert begun.wait(10)
    assert pool.submit(second, "woken", Outbox())
    assert not pool.submit(third, "woken", Outbox())
    now_ns[0] = 5_000_000_000
    may_end.set()
    pool.stop()
    assert (ran, refused) == ([first], [(second, "busy")])


@pytest.mark.parametrize(("wait_ms_max", "code"), [(5000, 0), (0, 2)])
def test_a_pull_that_waits_too_long_is_told_that_the_system_is_busy(
    wait_ms_max: int, code: int, start_broker: StartBroker, connect: Connect
) -> None:
    """With no patience at all every pull is."""
    broker = start_broker(policy=ROCKETMQ_4_9, config=BrokerConfig(pull_wait_ms_max=wait_ms_max))
    client = connect(broker.address)
    send_message(client, "T")
    reply = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=5000))
    assert reply.code == code
