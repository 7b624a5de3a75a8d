"""RocketMQ's mqadmin and its accounts give the same results with our broker as with Java's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen
from model_tests.conformance.java_broker import JavaBroker, running
from model_tests.support.broker import client_scenarios as stories
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import RawClient
from model_tests.support.java import class_path_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import Producer, PushConsumer, Retry
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

SOURCES: Final = Path(__file__).parent / "java"
MASKS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[ #:T]\d\d:\d\d:\d\d(,\d+)?"), "TIME"),
    (re.compile(r"\b[0-9A-F]{32,}\b"), "ID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\S+@[\w@.-]+#?\S*"), "CLIENT"),
    (re.compile(r"\d+\.\d+(E-?\d+)?"), "NUMBER"),
    (re.compile(r"\b\d{12,}\b"), "MILLISECONDS"),
    # The number counts topics whose routes changed, and Java's broker creates some topics itself.
    (re.compile(r"(write perm of broker.* OK, )\d+"), r"\1COUNT"),
    # Offsets in the log differ, because Java's broker of 5.x stores some messages itself.
    (re.compile(r"(CommitLog Offset: |physicOffset=|commitLogOffset=|preparedTransactionOffset=)\d+"), r"\1PLACE"),
    (re.compile(r"bodyCRC=-?\d+|storeSize=\d+"), "SIZE"),
    (re.compile(r"\S+/(metadata|configs|metrics)\.json"), "FILE"),
    (re.compile(r"RT=\d+|\b\d+ms\b|rt=\d+"), "TOOK"),
    (re.compile(r"[ \t]+"), " "),
)
COMMITTED: Final = re.compile(r'"consumerOffset":\d+,"lastTimestamp":\w+|trackType=\w+')
Commands = tuple[tuple[str, ...], ...]
CLUSTER: Final = ("-c", "DefaultCluster")
ANY_TOPIC: Final = {"topic": "TBW102"}
ID: Final = "the first message's id"
MAKE: Final = (("updateTopic", *CLUSTER, "-t", "T", "-r", "2", "-w", "2"),)
ASK: Final[Commands] = (
    ("topicRoute", "-t", "T"),
    ("topicRoute", "-t", "T", "-l"),
    ("topicStatus", "-t", "T"),
    ("topicClusterList", "-t", "T"),
    ("queryMsgByKey", "-t", "T", "-k", "k1"),
    ("queryMsgByUniqueKey", "-t", "T", "-i", ID),
    ("queryMsgByOffset", "-b", "java-broker", "-t", "T", "-i", "0", "-o", "1"),
    ("printMsg", "-t", "T", "-d", "true"),
    ("printMsgByQueue", "-t", "T", "-a", "java-broker", "-i", "0", "-p", "true", "-d", "true"),
    ("consumeMessage", "-t", "T", "-g", "H", "-c", "2"),
    ("consumerProgress", "-g", "G"),
    ("consumerProgress", "-g", "G", "-s", "true"),
    ("consumerConnection", "-g", "G"),
    ("consumerStatus", "-g", "G"),
    ("brokerConsumeStats", "-b", "BROKER"),
    ("producer", "-b", "BROKER"),
    ("producerConnection", "-g", "nobody", "-t", "T"),
    ("getConsumerConfig", "-g", "nobody"),
    ("skipAccumulatedMessage", "-g", "G", "-t", "T", "-f", "true"),
    ("queryCq", "-t", "T", "-q", "0", "-i", "0", "-c", "2"),
    ("updateOrderConf", "-m", "put", "-t", "T", "-v", "java-broker:2"),
    ("updateOrderConf", "-m", "get", "-t", "T"),
    ("updateOrderConf", "-m", "delete", "-t", "T"),
    ("updateOrderConf", "-m", "get", "-t", "T"),
    ("updateKvConfig", "-s", "N", "-k", "K", "-v", "V"),
    ("deleteKvConfig", "-s", "N", "-k", "K"),
    ("updateNamesrvConfig", "-k", "clusterTest", "-v", "false"),
    ("cleanExpiredCQ", "-b", "BROKER"),
    ("cleanUnusedTopic", "-b", "BROKER"),
    ("deleteExpiredCommitLog", "-b", "BROKER"),
    ("exportMetadata", *CLUSTER, "-f", "FILES"),
    ("exportConfigs", *CLUSTER, "-f", "FILES"),
    ("exportMetrics", *CLUSTER, "-f", "FILES"),
    ("wipeWritePerm", "-b", "java-broker"),
    ("topicRoute", "-t", "T"),
    ("addWritePerm", "-b", "java-broker"),
    ("topicRoute", "-t", "T"),
    ("updateSubGroup", *CLUSTER, "-g", "H"),
    ("cloneGroupOffset", "-s", "G", "-d", "H", "-t", "T"),
    ("deleteSubGroup", *CLUSTER, "-g", "H"),
    ("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "0", "-f", "true"),
    ("resetOffsetByTime", "-g", "nobody", "-t", "T", "-s", "0", "-f", "true"),
    ("allocateMQ", "-t", "T", "-i", "10.0.0.1,10.0.0.2"),
)
"""mqadmin commands whose output must be the same for the two brokers."""
FAILING: Final = frozenset(
    {
        "producerConnection -g nobody -t T",
        "updateOrderConf -m get -t T",
        "topicRoute -t T",
        "resetOffsetByTime -g nobody -t T -s 0 -f true",
        "updateTopic -b BROKER -t T -r 4 -w 4 -o true",
    }
)
"""Commands that fail with each broker; the last one creates the topic before it fails."""
DASHBOARD_COUNT: Final = 37
END: Final[Commands] = (
    ("updateTopic", "-b", "BROKER", "-t", "T", "-r", "4", "-w", "4", "-o", "true"),
    ("topicStatus", "-t", "T"),
    ("updateTopicPerm", *CLUSTER, "-t", "T", "-p", "4"),
    ("topicRoute", "-t", "T"),
    ("deleteTopic", *CLUSTER, "-t", "T"),
    ("topicRoute", "-t", "T"),
)
READ: Final[Commands] = (
    ("clusterList",),
    ("clusterList", "-m"),
    ("topicList",),
    ("topicList", "-c"),
    ("brokerStatus", *CLUSTER),
    ("getBrokerConfig", *CLUSTER),
    ("getNamesrvConfig",),
    ("statsAll",),
    ("consumerProgress",),
    ("sendMsgStatus", "-b", "java-broker", "-s", "32", "-c", "2"),
    ("checkMsgSendRT", "-t", "sent", "-a", "3", "-s", "10"),
    ("sendMessage", "-t", "sent", "-p", "hello"),
    ("updateBrokerConfig", *CLUSTER, "-k", "autoCreateTopicEnable", "-v", "true"),
)
"""mqadmin commands whose output differs between brokers, and which must succeed without an exception."""


def resolved(directory: Path, version: str = "4.9.7") -> str:
    """Return the class path of Java's broker and tools; skips the test if they are missing."""
    return class_path_of(directory, version, ("namesrv", "broker", "tools"))


@frozen
class Place:
    class_path: str
    home: Path
    name_server: str
    broker: str

    def java(self, source: str, *arguments: str, told: str = "") -> str:
        (self.home / "conf").mkdir(parents=True, exist_ok=True)
        (self.home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        (self.home / "TOPICS").write_text('[{"topicName":"listed","readQueueNums":2,"writeQueueNums":2,"perm":6}]')
        (self.home / "GROUPS").write_text('[{"groupName":"listed"}]')
        options = [f"-Drocketmq.home.dir={self.home}", f"-Duser.home={self.home}", "-cp", self.class_path]
        java = ["java", "-Xmx256m", *options, str(SOURCES / source), *arguments]
        done = subprocess.run(java, input=told, capture_output=True, text=True, check=False, cwd=self.home)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    def mqadmin(self, commands: Commands, first_id: str = "") -> list[str]:
        names = {"BROKER": self.broker, ID: first_id}
        rows = [[*(names.get(word, word) for word in command), "-n", self.name_server] for command in commands]
        said = self.java("MqAdmin.java", told="".join("\t".join(row) + "\n" for row in rows))
        found = re.split(r"^=== \d+\n", said, flags=re.MULTILINE)[1:]
        assert len(found) == len(commands), said[-2000:]
        return found


def masked(text: str) -> list[str]:
    """Return the sorted lines of an output without texts that differ from run to run.

    A failure is shown without its stack trace.
    """
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    lines = [line.strip() for line in text.splitlines() if "|-INFO" not in line]
    return sorted(line for line in lines if line and not line.startswith(("at ", "... ")))


def has(got: Sequence[str], count: int) -> bool:
    return len(got) >= count


def wait_until_registered(java: JavaBroker) -> None:
    """Wait until the name server knows the broker, because the tools ask the name server."""
    with RawClient(java.name_server) as client:
        wait_until(lambda: not client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ANY_TOPIC).code)


@frozen
class Administered:
    asked: dict[str, list[str]]
    read: dict[str, str]
    """(Number and words of a command) -> its output, for commands whose output differs between brokers."""
    dashboard: list[str]
    got_count: int


def administered(place: Place) -> Administered:
    place.mqadmin(MAKE)
    got: list[str] = []
    said: list[str] = []
    dashboard = ""

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        got.extend(message.msg_id for message in messages)
        return None

    with Producer(place.name_server) as producer:
        sent = [producer.send("T", b"body", queue_id=number % 2, keys=f"k{number}") for number in range(4)]
    first_id = sent[0].msg_id
    # The first consumer stores the group's offset when it closes; the second runs during the reset.
    for count in (4, 8):
        config = MemberConfig(group="G", start_at="first")
        consumer = PushConsumer(place.name_server, topics="T", listener=listen, **member_options(config))
        with consumer:
            said = place.mqadmin((*READ, *ASK), first_id) if count > 4 else []
            wait_until(partial(has, got, count))
            if count > 4:
                # The reset delivers all four messages again, and the dashboard consumes one of them again.
                dashboard = place.java("Dashboard.java", place.name_server, place.broker, "T", "G", first_id)
                wait_until(partial(has, got, 13))
    said += place.mqadmin(END)
    numbered = enumerate((*ASK, *END))
    return Administered(
        {f"{number} {' '.join(command)}": masked(said[len(READ) + number]) for number, command in numbered},
        {" ".join(command): text for command, text in zip(READ, said, strict=False)},
        [COMMITTED.sub("COMMITTED", line) for line in masked(dashboard) if line.startswith("##")],
        len(got),
    )


def test_mqadmin_and_the_dashboard_print_the_same_for_our_broker_and_javas(tmp_path: Path) -> None:
    class_path = resolved(tmp_path)
    with running(class_path, tmp_path / "java", settings="defaultTopicQueueNums=8\n") as java:
        wait_until_registered(java)
        place = Place(class_path, tmp_path / "tools", "{}:{}".format(*java.name_server), "{}:{}".format(*java.address))
        theirs = administered(place)
    config = BrokerConfig(broker_name="java-broker")
    with Broker.start(RealRuntime(), str(tmp_path / "ours"), policy=ROCKETMQ_4_9, config=config) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        place = Place(class_path, tmp_path / "tools", name_server, "{}:{}".format(*broker.address))
        ours = administered(place)
    for command, text in ours.read.items():
        assert "Exception" not in text, (command, text)
        assert text.strip(), command
    differing = {command: (said, ours.asked[command]) for command, said in theirs.asked.items()}
    assert {command: pair for command, pair in differing.items() if pair[0] != pair[1]} == {}
    assert theirs.dashboard == ours.dashboard
    assert theirs.got_count == ours.got_count == 13
    failed = {command for command, said in ours.asked.items() if any("Exception" in line for line in said)}
    assert {command.split(" ", 1)[1] for command in failed} == FAILING
    assert len(ours.dashboard) == DASHBOARD_COUNT


def without_slaves(place: Place) -> list[str]:
    said = place.mqadmin((("haStatus", "-b", place.broker), ("haStatus", *CLUSTER)))
    lines = [line for text in said for line in masked(text) if "|-WARN" not in line]
    return [line if "SlaveNum" in line else re.sub(r"\b-?\d+\b", "NUMBER", line) for line in lines]


def test_ha_status_is_the_same_for_our_master_and_javas(tmp_path: Path) -> None:
    class_path = resolved(tmp_path, "5.5.0")

    def said(name_server: tuple[str, int], broker: tuple[str, int]) -> list[str]:
        return without_slaves(Place(class_path, tmp_path, "{}:{}".format(*name_server), "{}:{}".format(*broker)))

    with running(class_path, tmp_path / "java") as java:
        wait_until_registered(java)
        theirs = said(java.name_server, java.address)
    with Broker.start(RealRuntime(), str(tmp_path / "ours"), policy=ROCKETMQ_5) as broker:
        ours = said(broker.name_server_address, broker.address)
    assert "#SlaveNum 0" in ours
    assert ours == theirs


MqAdmin = Callable[..., str]
ACCOUNTS = """# as a person writes it
globalWhiteRemoteAddresses:
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    topicPerms: [ "open=PUB|SUB" ]
  - {accessKey: administrator, secretKey: 'quoted: secret', admin: true}
"""
TOOLS = "accessKey: administrator\nsecretKey: 'quoted: secret'\n"
CHANGES = (
    (
        "updateAclConfig",
        "-a",
        "RocketMQ",
        "-s",
        "another-secret",
        "-m",
        "false",
        "-u",
        "SUB",
        "-t",
        "open=SUB,more=PUB",
    ),
    ("updateAclConfig", "-a", "newcomer", "-s", "12345678", "-w", "10.0.0.*", "-i", "PUB|SUB", "-g", "G=DENY"),
    ("updateAclConfig", "-a", "leaver-key", "-s", "leaver-secret", "-m", "true"),
    ("deleteAclConfig", "-a", "leaver-key"),
    ("updateGlobalWhiteAddr", "-g", "10.1.1.1,10.2.*.*"),
)


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of Java's broker and tools; skips the test if they are missing."""
    return class_path_of(tmp_path_factory.mktemp("jars"), artifacts=("namesrv", "broker", "tools"))


def mqadmin(class_path: str, home: Path, name_server: str) -> MqAdmin:
    """Return a function that runs mqadmin with the administrator's key and returns its output."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(TOOLS)
    logging = home / "conf" / "logback_tools.xml"
    if not logging.exists():
        logging.write_text("<configuration/>")
    java = ("java", "-Xmx128m", f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", class_path)

    def run(*arguments: str) -> str:
        command = [*java, "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, "-n", name_server]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Exception" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    return run


def changed(tool: MqAdmin, broker: str) -> tuple[str, str]:
    for command, *options in CHANGES:
        tool(command, "-b", broker, *options)
    return tool("getAclConfig", "-b", broker), tool("clusterAclConfigVersion", "-b", broker)


def without_moments(text: str) -> str:
    return re.sub(r"timestamp: \d+", "timestamp", text)


@pytest.mark.long
def test_the_tools_leave_the_same_file_at_our_broker_as_at_the_java_broker(class_path: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "plain_acl.yml", tmp_path / "home" / "conf" / "plain_acl.yml"
    ours.write_text(ACCOUNTS)
    theirs.parent.mkdir(parents=True)
    theirs.write_text(ACCOUNTS)
    config = BrokerConfig(acl_file=str(ours))
    with Broker.start(stories.RUNTIME, str(tmp_path / "store"), config=config) as broker:
        tool = mqadmin(class_path, tmp_path / "tools", "{}:{}".format(*broker.name_server_address))
        our_list, our_version = changed(tool, "{}:{}".format(*broker.address))
    with running(class_path, tmp_path / "home", settings="aclEnable=true") as java:
        tool = mqadmin(class_path, tmp_path / "home", "{}:{}".format(*java.name_server))
        their_list, their_version = changed(tool, "{}:{}".format(*java.address))
    assert without_moments(ours.read_text()) == without_moments(theirs.read_text())
    assert "counter: 5" in ours.read_text()
    assert our_list == their_list
    assert "newcomer" in our_list
    for version, path in ((our_version, ours), (their_version, theirs)):
        assert str(path) in version, version
