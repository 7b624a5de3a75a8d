"""`longpoll topics|groups|offsets|send|consume` against an embedded broker, plain, signed and over TLS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.client import name_server_of
from model_tests.support.ports import closed_port

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import Producer, PullConsumer
from longpoll_runtime.real import RealRuntime, server_context

Run = Callable[..., Result]


@pytest.fixture
def name_server(broker: Broker) -> str:
    """That of a broker of the test's own: the group has one name in every test."""
    return name_server_of(broker)


@pytest.fixture
def run(name_server: str) -> Run:
    """Run a command against it."""
    return lambda *arguments: CliRunner().invoke(main, [*arguments, "--name-server", name_server])


def asked(run: Run, *arguments: str) -> Any:
    """A command's JSON."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_topic_is_made_listed_changed_and_removed(run: Run) -> None:
    """Its queues and permission are what was asked for; the system's topics are shown only on demand."""
    assert asked(run, "topics") == {"topics": []}
    assert asked(run, "topics", "T", "--create", "--queues", "3")["brokers"] == ["broker-a"]
    (topic,) = asked(run, "topics")["topics"]
    assert topic == {"topic": "T", "brokers": ["broker-a"], "permission": "RW", "read_queues": 3, "write_queues": 3}
    asked(run, "topics", "T", "--create", "--queues", "3", "--permission", "r")
    assert asked(run, "topics", "T")["topics"][0]["permission"] == "R"
    assert "TBW102" in run("topics", "--all").stdout
    assert asked(run, "topics", "T", "--delete") == {"topic": "T", "deleted": True}
    assert asked(run, "topics") == {"topics": []}


def test_groups_and_offsets_are_told_and_set(run: Run, name_server: str) -> None:
    """Members and offsets of a group; an offset is not moved while the group has members."""
    asked(run, "topics", "T", "--create", "--queues", "2")
    with Producer(name_server) as producer:
        for _number in range(5):
            producer.send("T", b"x", queue_id=1)
    with PullConsumer(name_server, group="G", topics="T"):
        (group,) = asked(run, "groups")["groups"]
        assert (group["group"], len(group["members"])) == ("G", 1)
        assert "G" in run("groups").stdout
        refused = run("offsets", "--group", "G", "--topic", "T", "--set", "last")
        assert refused.exit_code == 2
        assert "stop them first" in refused.stderr
    told = asked(run, "offsets", "--group", "G")
    assert (told["lag"], [row["end"] for row in told["queues"]]) == (5, [0, 5])
    assert asked(run, "offsets", "--group", "G", "--topic", "T", "--set", "last")["lag"] == 0
    assert [row["stored"] for row in asked(run, "offsets", "--group", "G")["queues"]] == [0, 5]
    assert asked(run, "offsets", "--group", "G", "--topic", "T", "--set", "0")["lag"] == 5
    assert "Offsets of group G" in run("offsets", "--group", "G").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "--create"], "the topic name is missing"),
        (["topics", "T", "--create", "--delete"], "cannot be used together"),
        (["topics", "../x", "--create"], "topic '../x' is not allowed"),
        (["topics", "T"], "unknown to the name server"),
        (["topics", "T", "--delete"], "unknown to the name server"),
        (["offsets", "--group", "G", "--set", "first"], "name each topic"),
        (["offsets", "--group", "G", "--topic", "T", "--set", "then"], "write first, last"),
        (["offsets", "--group", "G", "--topic", "T"], "unknown to the name server"),
    ],
)
def test_a_mistake_is_one_clear_line(run: Run, arguments: list[str], words: str) -> None:
    """And exit 2."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_no_server_is_one_clear_line() -> None:
    """With the address that was tried."""
    with closed_port() as (host, port):
        address = f"{host}:{port}"
        result = CliRunner().invoke(main, ["topics", "--name-server", address])
    assert result.exit_code == 2
    assert address in result.stderr


ACCOUNT = "accounts: [{accessKey: administrator, secretKey: the-secret, admin: true}]"
KEYS = {"LONGPOLL_ACCESS_KEY": "administrator", "LONGPOLL_SECRET_KEY": "the-secret"}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    """The name server of such a broker; `authority.pem` is next to its store."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    (tmp_path / "plain_acl.yml").write_text(ACCOUNT)
    runtime = RealRuntime(server_tls=server_context(str(tmp_path / "server.pem"), str(tmp_path / "server.key")))
    config = BrokerConfig(acl_file=str(tmp_path / "plain_acl.yml"))
    with Broker.start(runtime, str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


def run_signed(secured: str, *arguments: str, keys: dict[str, str] | None = None) -> Result:
    """Run a command with keys in its environment."""
    return CliRunner().invoke(main, [*arguments, "--name-server", secured], env=KEYS if keys is None else keys)


def test_commands_pass_with_keys_and_over_tls(secured: str, tmp_path: Path) -> None:
    """By the environment and by options; every command of the client's."""
    secure = ("--tls-authority", str(tmp_path / "authority.pem"))
    for arguments in (
        ("topics", "T", "--create"),
        ("send", "T", "hello", *secure),
        ("consume", "T", "--group", "G", "--from", "first", "--count", "1", *secure),
        ("groups",),
        ("offsets", "--group", "G"),
    ):
        result = run_signed(secured, *arguments)
        assert result.exit_code == 0, result.output
    given = ("--access-key", "administrator", "--secret-key", "the-secret")
    assert run_signed(secured, "topics", *given, keys={}).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "keys", "words"),
    [
        (["send", "T", "x"], {}, "No accessKey is configured"),
        (["send", "T", "x"], KEYS | {"LONGPOLL_SECRET_KEY": "another"}, "Check signature failed"),
        (["send", "T", "x", "--access-key", "administrator"], {}, "belong together"),
        (["topics", "--tls-authority", "/none.pem"], KEYS, "use a file in PEM format"),
    ],
)
def test_a_wrong_key_is_one_clear_line(secured: str, arguments: list[str], keys: dict[str, str], words: str) -> None:
    """And exit 2."""
    result = run_signed(secured, *arguments, keys=keys)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "the-secret" not in result.output
