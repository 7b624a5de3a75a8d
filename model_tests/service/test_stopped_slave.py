"""A SYNC_MASTER whose slave is stopped by SIGSTOP: sends are answered in time as Java does, and others are served."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from model_tests.conformance.java_broker import free_port

from longpoll.verification.served import ServedBroker
from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields
from longpoll_protocol.codes import RequestCode, ResponseCode

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TIMEOUT_MS: Final = 300
IDLE_MS: Final = 3_000
OTHERS: Final = 100


def send(client: RawClient, properties: str = "") -> int:
    """Send a message; the answer's code."""
    return client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, properties), b"x").code


@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9", "rocketmq-5"])
def test_a_stopped_slave_costs_its_masters_senders_their_timeout_and_others_nothing(
    policy: str, tmp_path: Path
) -> None:
    port = free_port((-2, 1))
    settings = tmp_path / "master.conf"
    settings.write_text(
        f"brokerRole=SYNC_MASTER\ninSyncReplicas=2\nslaveTimeout={TIMEOUT_MS}\nhaListenPort={port + 1}\n"
        f"haHousekeepingInterval={IDLE_MS}\n"
    )
    following = tmp_path / "slave.conf"
    following.write_text(f"brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=127.0.0.1:{port + 1}\n")
    with ExitStack() as stack:
        options = ("--policy", policy)
        master = ServedBroker(tmp_path / "master", None, "--config", str(settings), *options)
        stack.enter_context(master)
        slave = ServedBroker(tmp_path / "slave", None, "--config", str(following), *options)
        stack.enter_context(slave)
        sender, other = (stack.enter_context(RawClient(master.address)) for _ in range(2))
        wait_until(lambda: send(sender) == ResponseCode.SUCCESS, 30.0)
        os.kill(slave.process_id, signal.SIGSTOP)
        try:
            offset = _late(sender, other)
            while policy != "rocketmq-5" and (code := send(sender)) != ResponseCode.SLAVE_NOT_AVAILABLE:
                assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        finally:
            os.kill(slave.process_id, signal.SIGCONT)
        wait_until(lambda: send(sender) == ResponseCode.SUCCESS, 60.0)
        # Nothing that was answered 11 or 12 is lost.
        found = other.call(RequestCode.PULL_MESSAGE, pull_fields("T", offset))
        assert found.code == ResponseCode.SUCCESS


def _late(sender: RawClient, other: RawClient) -> int:
    """One send waits for the slave, and meanwhile another client's are answered; the offset after all of them."""
    begun_s = time.monotonic()
    opaque = sender.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")
    offset = -1
    for _ in range(OTHERS):
        # They wait for no slave, and each is seen by who pulls.
        stored = other.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, "WAIT\x01false"), b"x")
        assert stored.code == ResponseCode.SUCCESS
        assert stored.ext_fields is not None
        offset = int(stored.ext_fields["queueOffset"])
        found = other.call(RequestCode.PULL_MESSAGE, pull_fields("T", offset, timeout_ms=20_000))
        assert found.code == ResponseCode.SUCCESS
    answer = sender.reply(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert time.monotonic() - begun_s >= TIMEOUT_MS / 1000
    return offset
