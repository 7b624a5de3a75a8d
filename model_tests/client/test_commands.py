"""`longpoll send` and `consume` against an embedded broker, signed and with TLS, and the methods of `Admin`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.client import name_server_of
from model_tests.support.ports import closed_port

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import Admin
from longpoll_runtime.real import RealRuntime, server_context
from longpoll_spec.errors import LongpollError


@pytest.fixture
def name_server(broker: Broker) -> str:
    """Start a broker for this test alone, because every test uses the same group; returns its name server."""
    return name_server_of(broker)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda admin: admin.create_topic("../x", 1), "topic '../x' is not allowed"),
        (lambda admin: admin.topic("T"), "unknown to the name server"),
        (lambda admin: admin.delete_topic("T"), "unknown to the name server"),
        (lambda admin: admin.offsets("G", "T"), "unknown to the name server"),
    ],
    ids=["create_topic", "topic", "delete_topic", "offsets"],
)
def test_a_mistake_of_an_administrator_is_an_error(
    name_server: str, call: Callable[[Admin], object], words: str
) -> None:
    with Admin(name_server) as admin, pytest.raises(LongpollError, match=words):
        call(admin)


def test_no_server_is_one_clear_line() -> None:
    """The error is one line with the address that was tried."""
    with closed_port() as (host, port):
        address = f"{host}:{port}"
        result = CliRunner().invoke(main, ["send", "T", "x", "--name-server", address])
    assert result.exit_code == 2
    assert address in result.stderr


ACCOUNT = "accounts: [{accessKey: administrator, secretKey: the-secret, admin: true}]"
KEYS = {"LONGPOLL_ACCESS_KEY": "administrator", "LONGPOLL_SECRET_KEY": "the-secret"}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    """The name server of a broker with accounts and TLS; `authority.pem` is next to its store."""
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
    """Run a command with access keys in its environment."""
    return CliRunner().invoke(main, [*arguments, "--name-server", secured], env=KEYS if keys is None else keys)


def test_commands_pass_with_keys_and_over_tls(secured: str, tmp_path: Path) -> None:
    """Every command of the client works with keys from the environment and from options."""
    secure = ("--tls-authority", str(tmp_path / "authority.pem"))
    for arguments in (
        ("send", "T", "hello", *secure),
        ("consume", "T", "--group", "G", "--from", "first", "--count", "1", *secure),
    ):
        result = run_signed(secured, *arguments)
        assert result.exit_code == 0, result.output
    given = ("--access-key", "administrator", "--secret-key", "the-secret")
    assert run_signed(secured, "send", "T", "hello", *given, keys={}).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "keys", "words"),
    [
        (["send", "T", "x"], {}, "No accessKey is configured"),
        (["send", "T", "x"], KEYS | {"LONGPOLL_SECRET_KEY": "another"}, "Check signature failed"),
        (["send", "T", "x", "--access-key", "administrator"], {}, "belong together"),
        (["send", "T", "x", "--tls-authority", "/none.pem"], KEYS, "use a file in PEM format"),
    ],
)
def test_a_wrong_key_is_one_clear_line(secured: str, arguments: list[str], keys: dict[str, str], words: str) -> None:
    result = run_signed(secured, *arguments, keys=keys)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "the-secret" not in result.output
