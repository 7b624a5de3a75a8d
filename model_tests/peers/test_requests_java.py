"""Requests, replies and the message trace between our client and Java's 4.9.7 and 5.5.0, over our broker and Java's."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen
from model_tests.client.test_hooks import lines_of
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve, running

from longpoll_broker.broker import Broker
from longpoll_broker.testing.client_scenarios import new_topic, wait_for
from longpoll_client import (
    Admin,
    ConsumerConfig,
    ConsumeStatus,
    OutgoingMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
    Tracing,
)
from longpoll_runtime.real import RealRuntime

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
RUNTIME: Final = RealRuntime()
SOURCE: Final = Path(__file__).parent / "java" / "Requests.java"
COUNT: Final = 20
PATIENCE_S: Final = 90.0
FIRST: Final = StartAt.FIRST
TELLS: Final = "= "
"""What a line of `Requests.java` begins with; others are of the client's log."""


@frozen
class JavaClient:
    """Java's client of one version."""

    broker_class_path: str
    command: tuple[str, ...]

    def run(self, *arguments: str, given: str = "") -> list[str]:
        """What it tells, line by line."""
        done = subprocess.run(
            [*self.command, *arguments], input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [line.removeprefix(TELLS) for line in done.stdout.splitlines() if line.startswith(TELLS)]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[str]:
        """Run it within the block, until its standard input ends; the first thing that it tells."""
        process = subprocess.Popen(
            [*self.command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if line.startswith(TELLS)).strip().removeprefix(TELLS)
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.fixture(scope="module", params=VERSIONS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """Compiled; skipped where Java or its jars cannot be had."""
    directory = tmp_path_factory.mktemp("requests")
    try:
        class_path = resolve(directory, str(request.param))
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA CLIENT NOT TRIED: {error}")
    command = ["javac", "-cp", class_path, "-d", str(directory), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    options = (f"-Duser.home={directory}", f"-Drocketmq.client.logRoot={directory}", "-XX:TieredStopAtLevel=1")
    return JavaClient(class_path, ("java", *options, "-cp", f"{class_path}:{directory}", "Requests"))


@pytest.fixture(scope="module", params=[pytest.param("ours", marks=pytest.mark.long), "java's"])
def name_server(
    request: pytest.FixtureRequest, client: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """That of our broker, or of a Java broker of the client's version."""
    home = tmp_path_factory.mktemp("broker")
    if request.param == "ours":
        with Broker.start(RUNTIME, str(home / "store")) as broker:
            yield "{}:{}".format(*broker.name_server_address)
        return
    with running(client.broker_class_path, home / "home") as java:
        address = "{}:{}".format(*java.name_server)
        with Admin(RUNTIME, address) as admin:
            wait_for(lambda: bool(admin.masters()), "the broker is registered")
        yield address


def test_we_reply_to_java(client: JavaClient, name_server: str) -> None:
    """Each question that Java's producer asks has the reply that our consumer sends."""
    with new_topic(name_server, 2) as topic, ExitStack() as stack:
        replier = stack.enter_context(Producer(RUNTIME, name_server, "we-reply"))

        def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            for message in messages:
                replier.reply(message, b"ours: " + message.body)
            return ConsumeStatus.SUCCESS

        config = ConsumerConfig(f"ours-{topic}", start_at=FIRST)
        consumer = stack.enter_context(PushConsumer(RUNTIME, name_server, config, listen))
        consumer.subscribe(topic)
        consumer.start()
        assert client.run("ask", name_server, topic, str(COUNT)) == [f"ours: question {n}" for n in range(COUNT)]


def test_java_replies_to_us(client: JavaClient, name_server: str) -> None:
    """Each question of ours has the reply that Java's consumer sends, also when all are asked at once."""
    with (
        new_topic(name_server, 2) as topic,
        client.running("reply", name_server, topic),
        Producer(RUNTIME, name_server, "we-ask") as producer,
    ):
        for number in range(COUNT):
            reply = producer.request(topic, b"question %d" % number, timeout_s=30.0)
            assert reply.body == b"java: question %d" % number
        bodies: list[bytes] = []
        done = threading.Event()

        def replied(outcome: object) -> None:
            assert isinstance(outcome, ReceivedMessage)
            bodies.append(outcome.body)
            if len(bodies) == COUNT:
                done.set()

        for number in range(COUNT):
            producer.request_async(topic, OutgoingMessage(b"%d" % number), replied, timeout_s=30.0)
        assert done.wait(PATIENCE_S)
    assert sorted(bodies) == sorted(b"java: %d" % number for number in range(COUNT))


def test_java_decodes_our_trace(client: JavaClient, name_server: str) -> None:
    """Its decoder finds in our lines what was sent, to whom, and how its consumption began and ended."""
    with (
        new_topic(name_server, 1) as topic,
        new_topic(name_server, 1) as trace_topic,
        Tracing(RUNTIME, name_server, trace_topic) as tracing,
    ):
        heard = threading.Event()

        def listen(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            heard.set()
            return ConsumeStatus.SUCCESS

        config = ConsumerConfig(f"traced-{topic}", start_at=FIRST, hooks=[tracing])
        with (
            Producer(RUNTIME, name_server, "we-trace", hooks=[tracing]) as producer,
            PushConsumer(RUNTIME, name_server, config, listen) as consumer,
        ):
            sent = producer.send(topic, b"traced", tags="red", keys="key-1")
            consumer.subscribe(topic)
            consumer.start()
            assert heard.wait(PATIENCE_S)
        lines = ["\x01".join(fields) for fields, _keys in lines_of(name_server, trace_topic, 3)]
    decoded = [line.split("\t") for line in client.run("decode", given="".join(f"{line}\x02" for line in lines))]
    told = {row[0]: row[1:] for row in decoded}
    assert set(told) == {"Pub", "SubBefore", "SubAfter"}
    assert all(row[:2] == [sent.msg_id, "key-1"] for row in told.values())
    broker = told["Pub"][4]
    assert told["Pub"][2:] == [topic, "red", broker, "6", "Normal_Msg", "true", "we-trace"]
    assert broker.startswith("127.0.0.1:")
    assert told["SubBefore"][-1] == f"traced-{topic}"
    assert told["SubAfter"][-2:] == ["true", ""]


def test_java_s_trace_has_the_fields_of_ours(client: JavaClient, name_server: str) -> None:
    """A line that Java writes of a send, beside the one that we write of the same message: place by place."""
    with (
        new_topic(name_server, 1) as topic,
        new_topic(name_server, 1) as theirs_at,
        new_topic(name_server, 1) as ours_at,
    ):
        with client.running("send", name_server, topic, theirs_at) as msg_id:
            ((theirs, _keys),) = lines_of(name_server, theirs_at, 1)
        with (
            Tracing(RUNTIME, name_server, ours_at) as tracing,
            Producer(RUNTIME, name_server, "java-traced", hooks=[tracing]) as producer,
        ):
            sent = producer.send(topic, b"traced", tags="red", keys="key-1")
        ((ours, _keys),) = lines_of(name_server, ours_at, 1)
    assert (theirs[5], ours[5]) == (msg_id, sent.msg_id)
    different = {1, 5, 10, 12}  # the time, the id, how long it took, and the broker's id
    assert {
        place: (theirs[place], ours[place])
        for place in range(len(ours))
        if place not in different and theirs[place] != ours[place]
    } == {}
