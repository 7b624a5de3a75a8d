"""The client commands with a broker that asks for accounts and speaks TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.tls import server_context

ACCOUNT = "accounts: [{accessKey: administrator, secretKey: the-secret, admin: true}]"
KEYS = {"LONGPOLL_ACCESS_KEY": "administrator", "LONGPOLL_SECRET_KEY": "the-secret"}


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of such a broker; `authority.pem` is beside its store."""
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


def run(name_server: str, *arguments: str, keys: dict[str, str] | None = None) -> Result:
    """Run a command with keys in its environment."""
    return CliRunner().invoke(main, [*arguments, "--name-server", name_server], env=KEYS if keys is None else keys)


def test_commands_pass_with_keys_and_over_tls(name_server: str, tmp_path: Path) -> None:
    """By the environment and by options; every command of the client's."""
    secure = ("--tls-authority", str(tmp_path / "authority.pem"))
    for arguments in (
        ("topics", "T", "--create"),
        ("send", "T", "hello", *secure),
        ("consume", "T", "--group", "G", "--from", "first", "--count", "1", *secure),
        ("groups",),
        ("offsets", "--group", "G"),
    ):
        result = run(name_server, *arguments)
        assert result.exit_code == 0, result.output
    given = ("--access-key", "administrator", "--secret-key", "the-secret")
    assert run(name_server, "topics", *given, keys={}).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "keys", "words"),
    [
        (["send", "T", "x"], {}, "No accessKey is configured"),
        (["send", "T", "x"], KEYS | {"LONGPOLL_SECRET_KEY": "another"}, "Check signature failed"),
        (["send", "T", "x", "--access-key", "administrator"], {}, "belong together"),
        (["topics", "--tls-authority", "/none.pem"], KEYS, "use a file in PEM format"),
    ],
)
def test_a_wrong_key_is_one_clear_line(
    name_server: str, arguments: list[str], keys: dict[str, str], words: str
) -> None:
    """And exit 2."""
    result = run(name_server, *arguments, keys=keys)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "the-secret" not in result.output
