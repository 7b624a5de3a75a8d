"""A member of ours and one of Java's that want different messages in one group, at our broker and at Java's."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from model_tests.client.failing.members import LEAVE_S, Java, Member, Told, java_command
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, running
from model_tests.peers.test_schedules_java import compiled

from longpoll_broker.broker import Broker
from longpoll_broker.testing.client_scenarios import RUNTIME, new_topic, wait_for
from longpoll_client import (
    Admin,
    ConsumerConfig,
    ConsumeStatus,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
)

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
QUEUES, COUNT = 4, 40
TAGS = ("red", "blue")


@pytest.fixture(scope="module", params=VERSIONS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Java]:
    """The class path of a version's broker, and its client; skipped where Java or its jars cannot be had."""
    try:
        return compiled(str(request.param), tmp_path_factory.mktemp("member"))
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")


@pytest.fixture(params=[pytest.param("ours", marks=pytest.mark.long), "java's"])
def name_server(request: pytest.FixtureRequest, client: tuple[str, Java], tmp_path: Path) -> Iterator[str]:
    """That of our broker, or of a Java broker of the client's version."""
    if request.param == "ours":
        with Broker.start(RUNTIME, str(tmp_path / "store")) as broker:
            yield "{}:{}".format(*broker.name_server_address)
        return
    with running(client[0], tmp_path / "home") as java:
        address = "{}:{}".format(*java.name_server)
        with Admin(RUNTIME, address) as admin:
            wait_for(lambda: bool(admin.masters()), "the broker is registered")
        yield address


@contextmanager
def java_member(java: Java, name_server: str, topic: str, group: str, home: Path) -> Iterator[Told]:
    """A member that wants everything, and what it is given."""
    told = Told()
    member = Member("java", java_command(java, name_server, topic, group, "threads"), told, home)
    try:
        yield told
    finally:
        member.leave()
        wrong = member.ended(time.monotonic() + LEAVE_S)
    assert wrong == ""


def test_ours_says_so_and_nobody_is_stuck(
    client: tuple[str, Java], name_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each gets what both want of its queues; what only one wants may be lost, and the group goes on to the end."""
    ours: set[int] = set()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        ours.update(int(message.body) for message in messages)
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, QUEUES) as topic:
        group = f"G-{topic}"
        config = ConsumerConfig(group, start_at=StartAt.FIRST, rebalance_s=1.0, heartbeat_s=0.5, persist_s=0.5)
        with PushConsumer(RUNTIME, name_server, config, listen) as consumer, Admin(RUNTIME, name_server) as admin:
            consumer.subscribe(topic, "red")
            with caplog.at_level(logging.WARNING, "longpoll_client.consume.membership"):
                consumer.start()
                # Of two wishes brokers keep the newer one, so the member that came first finds out.
                with java_member(client[1], name_server, topic, group, tmp_path) as told:
                    wait_for(
                        lambda: topic in consumer.statistics and consumer.statistics[topic].differing_count > 0,
                        "what the other one wants",
                    )
                    with Producer(RUNTIME, name_server) as producer:
                        for number in range(COUNT):
                            producer.send(topic, b"%d" % number, tags=TAGS[number % len(TAGS)])
                    wait_for(lambda: set(range(0, COUNT, 2)) <= ours | told.numbers, "all that both want")

                    def left() -> int:
                        rows = admin.offsets(group, [topic])
                        return sum(row.lag for row in rows) if len(rows) == QUEUES else COUNT

                    wait_for(lambda: left() == 0, "every queue is read to its end")
    assert f"members of group {group} want different messages, and lose some: {topic}: red here, everything there" in (
        caplog.messages
    )
    assert all(number % 2 == 0 for number in ours)
