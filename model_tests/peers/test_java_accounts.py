"""Java's own tool `mqadmin` 4.9.7 asks for accounts and changes them, at our broker and at the Java broker alike."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import JavaUnavailableError, resolve, running

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing import client_scenarios as stories

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

MqAdmin = Callable[..., str]
TOOL_S = 60.0
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
    """Of Java's broker and tools; skipped where they cannot be had."""
    try:
        return resolve(tmp_path_factory.mktemp("jars"), artifacts=("namesrv", "broker", "tools"))
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA TOOLS NOT TRIED: {error}")


def mqadmin(class_path: str, home: Path, name_server: str) -> MqAdmin:
    """The tool, with the administrator's key; what it prints."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(TOOLS)
    logging = home / "conf" / "logback_tools.xml"
    if not logging.exists():
        logging.write_text("<configuration/>")
    java = ("java", "-Xmx128m", f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", class_path)

    def run(*arguments: str) -> str:
        command = [*java, "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, "-n", name_server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, check=False)
        assert "Exception" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    return run


def changed(tool: MqAdmin, broker: str) -> tuple[str, str]:
    """What the tool lists after all changes, and which state it says that the accounts have."""
    for command, *options in CHANGES:
        tool(command, "-b", broker, *options)
    return tool("getAclConfig", "-b", broker), tool("clusterAclConfigVersion", "-b", broker)


def without_moments(text: str) -> str:
    """A text without the times of its changes."""
    return re.sub(r"timestamp: \d+", "timestamp", text)


def test_the_tools_leave_the_same_file_at_our_broker_as_at_the_java_broker(class_path: str, tmp_path: Path) -> None:
    """To the letter, but for the moment; what they list is the same too, and they say how often it was changed."""
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


def test_planted_another_layout_would_be_noticed() -> None:
    """Only moments are passed over."""
    text = "dataVersion:\n- counter: 1\n  timestamp: 123\n"
    assert without_moments(text) == without_moments(text.replace("123", "456"))
    assert without_moments(text) != without_moments(text.replace("counter: 1", "counter: 2"))
    assert without_moments(text) != without_moments(text.replace("- counter", "  - counter"))
