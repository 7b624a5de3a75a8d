"""Under SYNC_FLUSH nobody sees a message before it is durable: 5.x and strict; 4.9 shows what is appended."""

from __future__ import annotations

import threading

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker, wait_until
from model_tests.support.broker.harness.topics import make_topic
from model_tests.support.broker.raw_client import PATIENCE_S, pull_fields, send_fields
from model_tests.support.service import answer_of, served, served_two

from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

SYNC = attrs.evolve(SMALL_STORE, flush_disk_sync=True)
LONG_MS = 30_000
SHORT_S = 0.2


class Disk:
    """A disk whose next syncs wait until they may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        flush = MessageStore.flush

        def waits(store: MessageStore) -> int:
            self.begun.set()
            assert self.may_end.wait(3 * PATIENCE_S)
            return flush(store)

        monkeypatch.setattr(MessageStore, "flush", waits)


@pytest.mark.parametrize(
    ("policy", "seen"), [(STRICT, False), (ROCKETMQ_5, False), (ROCKETMQ_4_9, True)], ids=["strict", "5", "4.9"]
)
def test_who_sees_a_message_that_is_not_durable(
    policy: Policy, seen: bool, start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held pull is answered before the sync ends, or after it."""
    disk = Disk(monkeypatch)
    broker, puller, sender = served_two(start_broker, connect, policy=policy, store_config=SYNC)
    make_topic(broker.address, "T", 1)
    opaque = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 0, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    acknowledged = sender.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"m")
    assert disk.begun.wait(PATIENCE_S)
    early = puller.reply(opaque, PATIENCE_S if seen else SHORT_S)
    disk.may_end.set()
    assert (early is not None) == seen
    assert (early or answer_of(puller, opaque)).code == 0
    assert answer_of(sender, acknowledged).code == 0


def test_async_flush_never_waits(start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start_broker(policy=STRICT)
    disk = Disk(monkeypatch)
    client = connect(broker.address)
    client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"m")
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0)).code == 0
    disk.may_end.set()


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_a_delayed_message_is_seen_too(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    # Where no thread polls the schedule syncs itself, so the flush thread's first round need not come.
    interval_ms = SYNC.flush_interval_ms if policy.notify == "dispatcher_poll" else 1_000_000
    broker, client = served(
        start_broker, connect, policy=policy, store_config=attrs.evolve(SYNC, flush_interval_ms=interval_ms)
    )
    client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", properties="DELAY\x011\x02"), b"m")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0)).code == 0
