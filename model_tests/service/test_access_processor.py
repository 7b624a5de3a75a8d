"""Accounts changed over the wire (50 to 54): what counts at once, what the file holds then, and what is refused."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.access import access_processor
from longpoll_broker.service.access.access_control import AccessControl, read_rules
from longpoll_broker.service.access.account_file import AccountFile
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.raw_client import RawClient, send_fields
from longpoll_client import Credentials
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
ACCOUNTS = """
# for the tests
globalWhiteRemoteAddresses:
accounts:
  - accessKey: RocketMQ
    secretKey: 01234567   # an octal number to whoever reads it so
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    topicPerms: [ "open=PUB|SUB" ]
  - {accessKey: administrator, secretKey: 'quoted: secret', admin: true}
"""
USER = Credentials("RocketMQ", "01234567")
ADMIN = Credentials("administrator", "quoted: secret")
REFUSED: Final[list[tuple[int, dict[str, str], tuple[int, str]]]] = [
    (50, {"accessKey": "short", "secretKey": "12345678"}, (209, "must be longer than 6")),
    (50, {"accessKey": "newcomer"}, (209, "must be longer than 6")),
    (
        50,
        {"accessKey": "newcomer", "secretKey": "12345678", "topicPerms": "T"},
        (209, "Resource format error for T"),
    ),
    (50, {"accessKey": "newcomer", "secretKey": "12345678", "groupPerms": ""}, (209, "Resource format error for ")),
    (50, {"accessKey": "newcomer", "secretKey": "12345678", "groupPerms": "G=ALL"}, (209, "error for G=ALL")),
    (50, {"accessKey": "newcomer", "secretKey": "12345678", "whiteRemoteAddress": "here"}, (209, "not an IP address")),
    (50, {"secretKey": "12345678"}, (1, "accessKey")),
    (51, {"accessKey": "nobody!"}, (210, "has been deleted failed")),
    (53, {"globalWhiteAddrs": "10.1.1.1,here"}, (211, "not an IP address")),
    (53, {"globalWhiteAddrs": "10.1.1.1", "aclFileFullPath": "/etc/passwd"}, (211, "Only ")),
]


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    """A file as a person writes it."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return path


@pytest.fixture
def broker(tmp_path: Path, accounts: Path) -> Iterator[Broker]:
    """A broker with these accounts."""
    config = BrokerConfig(acl_file=str(accounts))
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as started:
        yield started


def ask(broker: Broker, code: int, fields: Mapping[str, str], who: Credentials = ADMIN) -> Command:
    """A signed request's answer."""
    with RawClient(broker.address) as client:
        return client.call(code, who.signed(dict(fields), b""))


def put(broker: Broker, **fields: str) -> Command:
    """The answer to 50 with these fields."""
    return ask(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields)


def may_send(broker: Broker, topic: str, who: Credentials) -> bool:
    """Whether an account's message is taken."""
    with RawClient(broker.address) as client:
        return client.call(RequestCode.SEND_MESSAGE_V2, who.signed(send_fields(topic, 0), b"x"), b"x").code == 0


def test_an_account_that_is_made_counts_at_once_and_so_does_its_change_and_its_end(broker: Broker) -> None:
    """Without waiting for anybody to look at the file."""
    new = Credentials("newcomer", "new-secret")
    assert not may_send(broker, "T", new)
    made = put(broker, accessKey="newcomer", secretKey="new-secret", topicPerms="T=PUB,U=PUB|SUB")
    assert made.code == 0, made.remark
    assert may_send(broker, "T", new)
    put(broker, accessKey="newcomer", secretKey="new-secret", topicPerms="U=PUB")
    assert not may_send(broker, "T", new)
    assert ask(broker, RequestCode.DELETE_ACL_CONFIG, {"accessKey": "newcomer"}).code == 0
    assert not may_send(broker, "U", new)
    assert may_send(broker, "open", USER)


def test_the_file_holds_what_was_changed_and_everything_else_to_the_letter(broker: Broker, accounts: Path) -> None:
    """In Java's layout: a changed account last, a version at the end; nobody else may read the file now either."""
    put(broker, accessKey="RocketMQ", secretKey="01234567", admin="false", defaultGroupPerm="SUB", whiteRemoteAddress="10.0.0.*")  # noqa: E501  # fmt: skip
    put(broker, accessKey="newcomer", secretKey="12345678", groupPerms="G=SUB")
    ask(broker, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.1.1.1,10.2.*.*"})
    *lines, version = accounts.read_text().splitlines()
    assert lines == [
        "globalWhiteRemoteAddresses:",
        "- 10.1.1.1",
        "- 10.2.*.*",
        "accounts:",
        "- accessKey: administrator",
        "  secretKey: 'quoted: secret'",
        "  admin: true",
        "- accessKey: RocketMQ",
        "  secretKey: '01234567'",
        "  whiteRemoteAddress: 10.0.0.*",
        "  admin: false",
        "  defaultTopicPerm: DENY",
        "  topicPerms:",
        "  - open=PUB|SUB",
        "  defaultGroupPerm: SUB",
        "- accessKey: newcomer",
        "  secretKey: '12345678'",
        "  admin: false",
        "  groupPerms:",
        "  - G=SUB",
        "dataVersion:",
        "- counter: 3",
    ]
    assert version.startswith("  timestamp: 1")
    assert stat.S_IMODE(accounts.stat().st_mode) == 0o600


def test_what_there_is_can_be_asked(broker: Broker, accounts: Path) -> None:
    """The version before and after a change, and every account as it stands in the file."""
    before = ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {}).ext_fields or {}
    assert json.loads(before["version"])["counter"] == 0
    put(broker, accessKey="newcomer", secretKey="12345678", topicPerms="T=DENY")
    after = ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {}).ext_fields or {}
    assert json.loads(after["version"])["counter"] == 1
    assert list(json.loads(after["allAclFileVersion"])) == [str(accounts)]
    assert after["brokerAddr"] == "{}:{}".format(*broker.address)
    listed = json.loads(bytes(ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, {}).body))
    assert listed["globalWhiteAddrs"] == []
    assert [account["accessKey"] for account in listed["plainAccessConfigs"]] == [
        "RocketMQ",
        "administrator",
        "newcomer",
    ]
    assert listed["plainAccessConfigs"][2] == {
        "accessKey": "newcomer",
        "secretKey": "12345678",
        "admin": False,
        "topicPerms": ["T=DENY"],
    }


def test_what_cannot_be_is_refused_and_changes_nothing(broker: Broker, accounts: Path) -> None:
    """With RocketMQ's code and a line that says why; the file is as it was."""
    for code, fields, (answer, words) in REFUSED:
        told = ask(broker, code, fields)
        assert told.code == answer, fields
        assert words in str(told.remark)
        assert accounts.read_text() == ACCOUNTS


def test_an_account_of_the_shortest_key_is_made_with_all_that_it_may(broker: Broker, accounts: Path) -> None:
    """Seven characters; what is empty at the end of a list is not there, and an empty default changes none."""
    made = put(
        broker, accessKey="seven77", secretKey="1234567", admin="true", defaultTopicPerm="PUB", topicPerms="T=PUB,,"
    )
    assert made.code == 0, made.remark
    again = put(
        broker, accessKey="seven77", secretKey="1234567", admin="true", defaultTopicPerm="", groupPerms="G=SUB,"
    )
    assert again.code == 0, again.remark
    assert yaml.safe_load(accounts.read_text())["accounts"][-1] == {
        "accessKey": "seven77",
        "secretKey": "1234567",
        "admin": True,
        "defaultTopicPerm": "PUB",
        "topicPerms": ["T=PUB"],
        "groupPerms": ["G=SUB"],
    }
    for short in ({"accessKey": "six666", "secretKey": "1234567"}, {"accessKey": "seven77", "secretKey": "123456"}):
        assert put(broker, **short).code == 209


def test_accounts_are_for_administrators(broker: Broker, accounts: Path) -> None:
    """A user's right signature is not enough, although 4.9.7 takes it: else a user could become an administrator."""
    for code in range(50, 55):
        told = ask(broker, code, {"accessKey": "newcomer", "secretKey": "12345678", "globalWhiteAddrs": "*"}, USER)
        assert told.code == 1
        assert f"Need admin permission for request code={code}" in str(told.remark)
    assert accounts.read_text() == ACCOUNTS


def test_without_accounts_there_is_nothing_to_change(tmp_path: Path) -> None:
    """The codes are not served then."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        assert {ask(broker, code, {}).code for code in range(50, 55)} == {3}


def test_a_file_that_cannot_be_written_is_told_of(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounts are then as they were in every respect."""

    def full(_path: str, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RUNTIME.files, "write_atomic", full, raising=True)
    told = put(broker, accessKey="RocketMQ", secretKey="other-secret")
    assert told.code == 209
    assert "No space left" in str(told.remark)
    assert may_send(broker, "open", USER)


def test_a_change_keeps_what_somebody_else_wrote_meanwhile(broker: Broker, accounts: Path) -> None:
    """The file is read anew for each change; while it cannot be used, none is made."""
    accounts.write_text(ACCOUNTS + "  - {accessKey: by-hand, secretKey: 87654321}\n")
    assert put(broker, accessKey="newcomer", secretKey="12345678").code == 0
    keys = [account["accessKey"] for account in yaml.safe_load(accounts.read_text())["accounts"]]
    assert keys == ["RocketMQ", "administrator", "by-hand", "newcomer"]
    assert "  secretKey: 01234567\n" in accounts.read_text()
    accounts.write_text("accounts: [")
    told = put(broker, accessKey="newcomer", secretKey="12345678")
    assert (told.code, accounts.read_text()) == (209, "accounts: [")


@pytest.mark.parametrize(
    ("text", "words"), [("- a", "it has no accounts"), ("accounts: 7", "must be a list"), ("a: [", "not YAML")]
)
def test_a_file_of_another_kind_is_left_alone(text: str, words: str) -> None:
    """With one line that says what it lacks."""
    with pytest.raises(ConfigError, match=words):
        AccountFile.parse(text.encode()).put_account("newcomer", {})


def test_an_empty_file_gets_its_first_account() -> None:
    """And an account that stands there twice by an anchor is changed once."""
    file = AccountFile.parse(b"")
    file.put_account("newcomer", {"secretKey": "12345678", "topicPerms": []})
    assert file.text() == b"accounts:\n- accessKey: newcomer\n  secretKey: '12345678'\n  topicPerms: []\n"
    assert file.version is None


TEXTS = st.text(max_size=12) | st.sampled_from(
    ["null", "~", "true", "0123", "1e3", "2026-01-01", "- a", "a: b", "#", "\ud800", "a\x85", "ä"]
)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | TEXTS, st.none() | st.lists(TEXTS, max_size=3))))
def test_the_file_holds_what_a_plain_table_holds(steps: list[tuple[str, str | None, list[str] | None]]) -> None:
    """Written and read again after each change, whatever the texts are, and however they look to YAML."""
    content = b""
    table: dict[str, dict[str, str | list[str]]] = {}
    for key, secret, rights in steps:
        file = AccountFile.parse(content)
        if secret is None and rights is None:
            assert file.remove_account(key) is (table.pop(key, None) is not None)
        else:
            given_values = {"secretKey": secret, "topicPerms": rights}
            values = {name: value for name, value in given_values.items() if value is not None}
            file.put_account(key, values)
            table[key] = table.pop(key, {"accessKey": key}) | values
        content = file.text()
        assert AccountFile.parse(content).values().get("accounts", []) == list(table.values())


def test_planted_a_change_that_is_not_checked_first_is_noticed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at what the file would be, one that cannot be used would be written."""
    monkeypatch.setattr(access_processor, "_rights_problem", lambda _texts: None)
    told = put(broker, accessKey="newcomer", secretKey="12345678", topicPerms="T=ALL")
    assert "is not NAME=RIGHT" in str(told.remark)
    monkeypatch.setattr(AccessControl, "change", lambda self, edit: edit(AccountFile.parse(self._read())))
    assert put(broker, accessKey="newcomer", secretKey="12345678", topicPerms="T=ALL").code == 0


def test_what_java_wrote_is_read() -> None:
    """It writes out the nulls of what has no value; a scalar is its text, whatever else it could be."""
    text = b"accounts:\n- accessKey: 0123456\n  secretKey: '12345678'\n  whiteRemoteAddress: null\n  topicPerms: ~\n"
    (account,) = AccountFile.parse(text).values()["accounts"]
    assert account == {"accessKey": "0123456", "secretKey": "12345678"}
    rules = read_rules(text, "plain_acl.yml")
    assert list(rules.accounts) == ["0123456"]


@pytest.mark.parametrize("text", ["a: &a [*a]", "? [a]\n: b"])
def test_a_file_that_is_in_itself_or_has_strange_keys_is_told_of(text: str) -> None:
    """In one line, and without end to it nowhere."""
    with pytest.raises(ConfigError, match="cannot be used"):
        read_rules(text.encode(), "plain_acl.yml")
