"""Java's clients and ours agree in answers, requests with replies, traces and failures."""

from __future__ import annotations

import base64
import ipaddress
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
from attrs import frozen
from model_tests.client.failing.members import Java, Member, Told, java_command
from model_tests.client.failing.play import JAVA_LATE_MS, LENGTH_S, Plan, Setting, at_once, draw, ours, said
from model_tests.client.failing.servers import JavaServer
from model_tests.client.test_hooks import lines_of
from model_tests.conformance.java_broker import VERSIONS, running
from model_tests.support.broker.client_scenarios import member_options, new_topic, wait_for
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields
from model_tests.support.java import class_path_of

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    Compression,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    Tracing,
)
from longpoll_client.produce.outgoing import MessageIds
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.compression import pack, unpack
from longpoll_protocol.frames import Command, Serialisation
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import preset

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

RUNTIME: Final = RealRuntime()
SOURCE: Final = Path(__file__).parent / "java" / "Requests.java"
COUNT: Final = 20
PATIENCE_S: Final = 600.0
"""The timeout of a request in seconds, so large that the time limit of the test ends first."""
FIRST: Final = "first"
TELLS: Final = "= "


@frozen
class JavaClient:
    broker_class_path: str
    command: tuple[str, ...]

    def run(self, *arguments: str, given: str = "") -> list[str]:
        done = subprocess.run([*self.command, *arguments], input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return [line.removeprefix(TELLS) for line in done.stdout.splitlines() if line.startswith(TELLS)]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[str]:
        process = subprocess.Popen(
            [*self.command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if line.startswith(TELLS)).strip().removeprefix(TELLS)
            process.stdin.close()
            assert process.wait() == 0
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.fixture(scope="module", params=VERSIONS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """A compiled Java client; skips the test if Java or its jars are missing."""
    directory = tmp_path_factory.mktemp("requests")
    class_path = class_path_of(directory, str(request.param))
    command = ["javac", "-cp", class_path, "-d", str(directory), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    options = (f"-Duser.home={directory}", f"-Drocketmq.client.logRoot={directory}", "-XX:TieredStopAtLevel=1")
    return JavaClient(class_path, ("java", *options, "-cp", f"{class_path}:{directory}", "Requests"))


@pytest.fixture(scope="module", params=[pytest.param("ours", marks=pytest.mark.long), "java's"])
def name_server(
    request: pytest.FixtureRequest, client: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    home = tmp_path_factory.mktemp("broker")
    if request.param == "ours":
        with Broker.start(RUNTIME, str(home / "store")) as broker:
            yield "{}:{}".format(*broker.name_server_address)
        return
    with running(client.broker_class_path, home / "home") as java:
        address = "{}:{}".format(*java.name_server)
        with Admin(address) as admin:
            wait_for(lambda: bool(admin.masters()), "the broker is registered")
        yield address


def test_we_reply_to_java(client: JavaClient, name_server: str) -> None:
    with new_topic(name_server, 2) as topic, ExitStack() as stack:
        replier = stack.enter_context(Producer(name_server, group="we-reply"))

        def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            for message in messages:
                replier.reply(message, b"ours: " + message.body)
            return None

        config = MemberConfig(group=f"ours-{topic}", start_at=FIRST)
        stack.enter_context(PushConsumer(name_server, topics=topic, listener=listen, **member_options(config)))
        assert client.run("ask", name_server, topic, str(COUNT)) == [f"ours: question {n}" for n in range(COUNT)]


def test_java_replies_to_us(client: JavaClient, name_server: str) -> None:
    with (
        new_topic(name_server, 2) as topic,
        client.running("reply", name_server, topic),
        Producer(name_server, group="we-ask") as producer,
    ):
        for number in range(COUNT):
            reply = producer.request(topic, b"question %d" % number, timeout_s=PATIENCE_S)
            assert reply.body == b"java: question %d" % number
        bodies: list[bytes] = []
        done = threading.Event()

        def replied(outcome: object) -> None:
            assert isinstance(outcome, ReceivedMessage)
            bodies.append(outcome.body)
            if len(bodies) == COUNT:
                done.set()

        for number in range(COUNT):
            producer.request_nowait(topic, b"%d" % number, callback=replied, timeout_s=PATIENCE_S)
        done.wait()
    assert sorted(bodies) == sorted(b"java: %d" % number for number in range(COUNT))


def test_java_decodes_our_trace(client: JavaClient, name_server: str) -> None:
    with (
        new_topic(name_server, 1) as topic,
        new_topic(name_server, 1) as trace_topic,
        Tracing(name_server, trace_topic) as tracing,
    ):
        heard = threading.Event()

        def listen(_messages: Sequence[ReceivedMessage]) -> Retry | None:
            heard.set()
            return None

        config = MemberConfig(group=f"traced-{topic}", start_at=FIRST, hooks=[tracing])
        with (
            Producer(name_server, group="we-trace", hooks=[tracing]) as producer,
            closing(PushConsumer(name_server, topics=(), listener=listen, **member_options(config))) as consumer,
        ):
            sent = producer.send(topic, b"traced", tag="red", keys="key-1")
            consumer.subscribe(topic)
            consumer.start()
            heard.wait()
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


def test_javas_trace_has_the_fields_of_our_trace(client: JavaClient, name_server: str) -> None:
    with (
        new_topic(name_server, 1) as topic,
        new_topic(name_server, 1) as theirs_at,
        new_topic(name_server, 1) as ours_at,
    ):
        with client.running("send", name_server, topic, theirs_at) as msg_id:
            ((theirs, _keys),) = lines_of(name_server, theirs_at, 1)
        with (
            Tracing(name_server, ours_at) as tracing,
            Producer(name_server, group="java-traced", hooks=[tracing]) as producer,
        ):
            sent = producer.send(topic, b"traced", tag="red", keys="key-1")
        ((ours, _keys),) = lines_of(name_server, ours_at, 1)
    assert (theirs[5], ours[5]) == (msg_id, sent.msg_id)
    different = {1, 5, 10, 12}  # The fields for time, id, duration and broker id differ.
    assert {
        place: (theirs[place], ours[place])
        for place in range(len(ours))
        if place not in different and theirs[place] != ours[place]
    } == {}


POLICIES: Final = {"4.9.7": "rocketmq-4.9", "5.5.0": "rocketmq-5"}
FLAGS: Final = (0, 4, 8, 1 << 30, -(2**31))
"""Flags of requests that get an answer: neither the response flag nor one-way."""
DELAYS: Final = ("x", "", " 1", "1.0", "9999999999", "-", "0", "+1", "01", "99")

PLACES: Final = {"msgId", "queueOffset", "transactionId", "offset", "nextBeginOffset", "maxOffset"}
"""Fields that depend on which messages are stored and visible."""

Answered = tuple[int, int, bool, dict[str, str] | None]


def told(reply: Command | None) -> Answered:
    assert reply is not None
    fields = reply.ext_fields
    if fields is not None:
        fields = {name: "" if name in PLACES else value for name, value in fields.items()}
    return reply.code, reply.flag, reply.remark is not None, fields


def flags_of(client: RawClient, topic: str) -> list[Answered]:
    asked: tuple[tuple[int, dict[str, str]], ...] = (
        (RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}),
        (RequestCode.PULL_MESSAGE, pull_fields(topic, 10_000)),
        (RequestCode.SEND_MESSAGE_V2, send_fields(topic)),
        (9_999, {}),
    )
    return [
        told(client.reply(client.send(code, fields, b"x", flag=flag, serialisation=kind)))
        for code, fields in asked
        for flag in FLAGS
        for kind in Serialisation
    ]


def delays_of(client: RawClient, topic: str) -> list[Answered]:
    batch = encode_batch([BatchMessage(b"x", "")])
    return [
        told(client.call(code, send_fields(topic, properties=f"DELAY\x01{level}\x02") | more, body))
        for code, more, body in (
            (RequestCode.SEND_MESSAGE_V2, {}, b"x"),
            (RequestCode.SEND_BATCH_MESSAGE, {"m": "true"}, batch),
        )
        for level in DELAYS
    ]


def answers_of(address: Address) -> dict[str, list[Answered]]:
    with RawClient(address) as client:
        client.call(RequestCode.SEND_MESSAGE_V2, send_fields("ODD"), b"x")
        return {"flags": flags_of(client, "ODD"), "delays": delays_of(client, "ODD")}


@pytest.mark.parametrize("version", VERSIONS)
def test_odd_requests_are_answered_alike(version: str, tmp_path: Path) -> None:
    """Every answer has flag 1. An error about a delay level that is not a number names no region."""
    class_path = class_path_of(tmp_path, version)
    with running(class_path, tmp_path / "home") as java:
        theirs = answers_of(java.address)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), policy=preset(POLICIES[version])) as broker:
        ours = answers_of(broker.address)
    assert ours == theirs
    assert {flag for _code, flag, _remark, _fields in theirs["flags"]} == {1}


QUEUES, DIFFERING_COUNT = 4, 40
TAGS = ("red", "blue")


@pytest.fixture(scope="module", params=VERSIONS)
def member_client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Java]:
    return compiled(str(request.param), tmp_path_factory.mktemp("member"))


@pytest.fixture(params=[pytest.param("ours", marks=pytest.mark.long), "java's"])
def group_name_server(request: pytest.FixtureRequest, member_client: tuple[str, Java], tmp_path: Path) -> Iterator[str]:
    if request.param == "ours":
        with Broker.start(RUNTIME, str(tmp_path / "store")) as broker:
            yield "{}:{}".format(*broker.name_server_address)
        return
    with running(member_client[0], tmp_path / "home") as java:
        address = "{}:{}".format(*java.name_server)
        with Admin(address) as admin:
            wait_for(lambda: bool(admin.masters()), "the broker is registered")
        yield address


@contextmanager
def java_member(java: Java, group_name_server: str, topic: str, group: str, home: Path) -> Iterator[Told]:
    told = Told()
    member = Member("java", java_command(java, group_name_server, topic, group, "threads"), told, home)
    try:
        yield told
    finally:
        member.leave()
        wrong = member.ended(time.monotonic() + PATIENCE_S)
    assert wrong == ""


def test_a_group_with_two_subscriptions_reaches_the_end(
    member_client: tuple[str, Java], group_name_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Members get the messages that both subscriptions match, and the group's offset reaches the end of each queue."""
    ours: set[int] = set()

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        ours.update(int(message.body) for message in messages)
        return None

    with new_topic(group_name_server, QUEUES) as topic:
        group = f"G-{topic}"
        config = MemberConfig(group=group, start_at="first", rebalance_s=1.0, heartbeat_s=0.5, persist_s=0.5)
        with (
            closing(
                PushConsumer(group_name_server, topics={topic: "red"}, listener=listen, **member_options(config))
            ) as consumer,
            Admin(group_name_server) as admin,
            caplog.at_level(logging.WARNING, "longpoll_client.consume.membership"),
        ):
            consumer.start()
            # Brokers keep the newer of two subscriptions, so the member that came first notices that its subscription
            # differs.
            with java_member(member_client[1], group_name_server, topic, group, tmp_path) as told:
                wait_for(
                    lambda: topic in consumer.statistics and consumer.statistics[topic].differing_count > 0,
                    "what the other one wants",
                )
                with Producer(group_name_server) as producer:
                    for number in range(DIFFERING_COUNT):
                        producer.send(topic, b"%d" % number, tag=TAGS[number % len(TAGS)])
                wait_for(lambda: set(range(0, DIFFERING_COUNT, 2)) <= ours | told.numbers, "all that both want")

                def left() -> int:
                    rows = admin.offsets(group, [topic])
                    return sum(row.lag for row in rows) if len(rows) == QUEUES else DIFFERING_COUNT

                wait_for(lambda: left() == 0, "every queue is read to its end")
    assert f"members of group {group} want different messages, and lose some: {topic}: red here, everything there" in (
        caplog.messages
    )
    assert all(number % 2 == 0 for number in ours)


HERE = Path(__file__).parent
BODIES = (b"0123456789" * 1000, b"0123456789" * 100_000)
"""The longer body has many LZ4 blocks of 64 KiB."""


@pytest.mark.parametrize("version", VERSIONS)
def test_java_reads_our_ids_and_bodies_and_we_read_its_bodies(version: str, tmp_path: Path) -> None:
    pytest.importorskip("lz4", reason="LZ4 NOT TRIED: the extra 'compression' is not installed")
    pytest.importorskip("zstandard", reason="ZSTANDARD NOT TRIED: the extra 'compression' is not installed")
    class_path = class_path_of(tmp_path, version)
    runtime = RealRuntime()
    before_ms = runtime.unix_ms()
    made = MessageIds(runtime).new(3)
    after_ms = runtime.unix_ms()
    given = [(kind, body) for kind in Compression for body in BODIES]
    packed = [f"{kind.name}:{base64.b64encode(pack(kind, body)).decode()}" for kind, body in given]

    command = ["java", "-Xmx128m", "-cp", class_path, str(HERE / "java" / "Reads.java"), *made, *packed]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ids = [line.split()[1:] for line in output.splitlines() if line.startswith("ID ")]
    bodies = [line.split()[1:] for line in output.splitlines() if line.startswith("BODY ")]

    assert len(ids) == 3
    for sent_ms, address, process in ids:
        assert before_ms <= int(sent_ms) <= after_ms
        assert ipaddress.ip_address(address).packed == runtime.identity()[:4]
        assert int(process) == os.getpid() % 65_536
    assert [name for name, _theirs, _again in bodies] == [kind.name for kind, _body in given]
    for (kind, body), (_name, unpacked, again) in zip(given, bodies, strict=True):
        assert base64.b64decode(unpacked) == body
        assert unpack(kind.sys_flag, base64.b64decode(again), len(body)) == body


JAVA_BROKERS, OUR_BROKERS = 6, 2
SEEDS: dict[str, int] = dict(zip(VERSIONS, (100, 200), strict=True))
KNOWN = frozenset({"commit.told.kept"})
"""The clause that Java's brokers violate in a run of some minutes with changing members."""
MEMBER = Path(__file__).parent / "java" / "Member.java"


def compiled(version: str, directory: Path) -> tuple[str, Java]:
    """Return the class path of a version's broker, and a way to start its group members; skips without Java."""
    class_path = class_path_of(directory, version)
    command = ["javac", "-cp", class_path, "-d", str(directory), str(MEMBER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return class_path, Java(f"{class_path}:{directory}", directory)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.whole_machine
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_or_stuck_whatever_fails(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "longpoll_client")
    class_path, java = compiled(version, tmp_path)
    first = SEEDS[version]

    def setting(plan: Plan, home: Path) -> Setting:
        made = attrs.evolve(ours(plan, home), java=java)
        if plan.seed < first + JAVA_BROKERS:
            made = attrs.evolve(made, server=JavaServer(home, class_path), late_ms=JAVA_LATE_MS, known=KNOWN)
        return made

    found = at_once([draw(first + number, LENGTH_S) for number in range(JAVA_BROKERS + OUR_BROKERS)], setting, tmp_path)
    for played in found:
        print(said(played))  # noqa: T201 - the figures that the test is run for
    assert {played.plan.seed: played.faults() for played in found} == {played.plan.seed: [] for played in found}
    assert all(played.report.acknowledged > 500 for played in found)
