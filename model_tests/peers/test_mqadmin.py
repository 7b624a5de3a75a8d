"""`mqadmin` 4.9.7 at our broker and at the Java broker: the same commands, the same topic and group, the same output.

Ports, times, ids and rates are masked, and lines are sorted, for hash maps have no order. All commands for one broker
run in one Java machine. `docs/mqadmin.md` tells what came of it, and which commands do not apply.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from model_tests.conformance.java_broker import JavaUnavailableError, resolve, running

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import wait_until
from longpoll_client import ConsumerConfig, Producer, PushConsumer, StartAt
from longpoll_client.consume.workers import ConsumeStatus
from longpoll_client.messages import ReceivedMessage
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

SOURCE: Final = Path(__file__).parent / "java" / "MqAdmin.java"
RUN_S: Final = 150.0
MASKS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[ #:T]\d\d:\d\d:\d\d(,\d+)?"), "TIME"),
    (re.compile(r"\b[0-9A-F]{32}\b"), "ID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\S+@[\w@.-]+#?\S*"), "CLIENT"),
    (re.compile(r"\d+\.\d+(E-?\d+)?"), "NUMBER"),
    (re.compile(r"\b\d{12,}\b"), "MILLISECONDS"),
    # Topics whose routes were changed: Java's broker makes some of its own as it goes.
    (re.compile(r"(write perm of broker.* OK, )\d+"), r"\1COUNT"),
    (re.compile(r"[ \t]+"), " "),
)
"""What differs from run to run, and what stands in its place."""
MAKE: Final = (("updateTopic", "-c", "DefaultCluster", "-t", "T", "-r", "2", "-w", "2"),)
ASK: Final[tuple[tuple[str, ...], ...]] = (
    ("topicRoute", "-t", "T"),
    ("topicStatus", "-t", "T"),
    ("topicClusterList", "-t", "T"),
    ("consumerProgress", "-g", "G"),
    ("consumerConnection", "-g", "G"),
    ("queryCq", "-t", "T", "-q", "0", "-i", "0", "-c", "2"),
    ("updateKvConfig", "-s", "N", "-k", "K", "-v", "V"),
    ("deleteKvConfig", "-s", "N", "-k", "K"),
    ("wipeWritePerm", "-b", "java-broker"),
    ("topicRoute", "-t", "T"),
    ("addWritePerm", "-b", "java-broker"),
    ("topicRoute", "-t", "T"),
    ("updateTopicPerm", "-c", "DefaultCluster", "-t", "T", "-p", "4"),
    ("updateSubGroup", "-c", "DefaultCluster", "-g", "H"),
    ("deleteSubGroup", "-c", "DefaultCluster", "-g", "H"),
    ("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0", "-f", "true"),
    ("resetOffsetByTime", "-g", "nobody", "-t", "T", "-s", "0", "-f", "true"),
    ("allocateMQ", "-t", "T", "-i", "10.0.0.1,10.0.0.2"),
    ("deleteTopic", "-c", "DefaultCluster", "-t", "T"),
    ("topicRoute", "-t", "T"),
)
READ: Final[tuple[tuple[str, ...], ...]] = (
    ("clusterList",),
    ("clusterList", "-m"),
    ("topicList", "-c"),
    ("brokerStatus", "-c", "DefaultCluster"),
    ("getBrokerConfig", "-c", "DefaultCluster"),
    ("getNamesrvConfig",),
    ("statsAll",),
    ("updateBrokerConfig", "-c", "DefaultCluster", "-k", "autoCreateTopicEnable", "-v", "true"),
)
"""Commands that print what no two brokers share: they must work, and say no exception."""


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of Java's broker and tools; skipped where they cannot be had."""
    try:
        return resolve(tmp_path_factory.mktemp("jars"), artifacts=("namesrv", "broker", "tools"))
    except JavaUnavailableError as error:
        pytest.skip(f"MQADMIN NOT TRIED: {error}")


def mqadmin(class_path: str, home: Path, name_server: str, commands: Sequence[Sequence[str]]) -> list[str]:
    """What each command prints."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    lines = "".join("\t".join([*command, "-n", name_server]) + "\n" for command in commands)
    java = ["java", "-Xmx256m", f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", class_path, str(SOURCE)]
    done = subprocess.run(java, input=lines, capture_output=True, text=True, timeout=RUN_S, check=False)
    told = re.split(r"^=== \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(told) == len(commands), done.stdout[-2000:] + done.stderr[-3000:]
    return told


def masked(text: str) -> list[str]:
    """The lines without what differs from run to run, sorted; of a failure what it says, and not where in the tool."""
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    lines = [line.strip() for line in text.splitlines()]
    return sorted(line for line in lines if line and not line.startswith(("at ", "... ")))


def has(got: Sequence[str], count: int) -> bool:
    """Whether so many messages came."""
    return len(got) >= count


def administered(class_path: str, home: Path, name_server: str) -> tuple[dict[str, list[str]], dict[str, str], int]:
    """What the commands print: masked, and as they are; and how many messages the running group got in all."""
    mqadmin(class_path, home, name_server, MAKE)
    told: list[str] = []
    got: list[str] = []

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        got.extend(message.msg_id for message in messages)
        return ConsumeStatus.SUCCESS

    with Producer(RealRuntime(), name_server) as producer:
        for number in range(4):
            producer.send("T", b"body", queue_id=number % 2)
    # The first one stores how far the group is when it closes; the second is running while the group is reset.
    for count in (4, 8):
        consumer = PushConsumer(RealRuntime(), name_server, ConsumerConfig(group="G", start_at=StartAt.FIRST), listen)
        consumer.subscribe("T")
        consumer.start()
        with consumer:
            told = mqadmin(class_path, home, name_server, (*READ, *ASK)) if count > 4 else []
            wait_until(partial(has, got, count))
    asked = told[len(READ) :]
    by_command = {f"{number} {' '.join(command)}": masked(asked[number]) for number, command in enumerate(ASK)}
    return by_command, {" ".join(command): text for command, text in zip(READ, told, strict=False)}, len(got)


def test_mqadmin_says_the_same_of_our_broker_as_of_javas(class_path: str, tmp_path: Path) -> None:
    """Each command's masked output is equal, and the running group got its four messages again after the reset."""
    with running(class_path, tmp_path / "java", settings="defaultTopicQueueNums=8\n") as java:
        theirs, _read, their_count = administered(class_path, tmp_path / "tools", "{}:{}".format(*java.name_server))
    config = BrokerConfig(broker_name="java-broker")
    with Broker.start(RealRuntime(), str(tmp_path / "ours"), policy=ROCKETMQ_4_9, config=config) as broker:
        ours, read, our_count = administered(
            class_path, tmp_path / "tools", "{}:{}".format(*broker.name_server_address)
        )
    assert (their_count, our_count) == (8, 8)
    for command, text in read.items():
        assert "Exception" not in text, (command, text)
        assert text.strip(), command
    differing = {command: (theirs[command], ours[command]) for command in theirs if theirs[command] != ours[command]}
    assert differing == {}


def test_a_planted_difference_is_seen() -> None:
    """The masks hide times, ids and rates, and no count, name or permission."""
    line = "T java-broker 0 2 2 2026-11-23 13:00:00,123 127.0.0.1:10911"
    assert masked(line) == masked(line.replace("13:00", "14:01").replace("10911", "9"))
    for other in (line.replace(" 0 2", " 0 3"), line.replace("java-broker", "broker"), line.replace("T ", "U ")):
        assert masked(other) != masked(line)
