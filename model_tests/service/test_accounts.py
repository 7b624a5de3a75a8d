"""The account file and its re-reading, requests that change accounts (50 to 54), and access control of requests."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import yaml
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers
from model_tests.support.broker.raw_client import RawClient, send_fields
from model_tests.support.present import present
from model_tests.support.service import HeldLock

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel
from longpoll_broker.rocketmq.accounts import access_control
from longpoll_broker.rocketmq.accounts.access import Right, Rules
from longpoll_broker.rocketmq.accounts.access_control import LOOK_S, AccessControl, AccountFile, read_rules
from longpoll_broker.shared.topics import TopicConfig
from longpoll_client import Credentials
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.files import RealFiles
from longpoll_runtime.logs import event
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError


def written(text: str) -> str:
    return AccountFile.parse(text.encode()).text().decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ä\n", "a: ä\n"),
        ("a: ~\nb: [~, c]\n", "a: null\nb:\n- null\n- c\n"),
        ("a: {b: 'c', d: \"e\"}\n", "a:\n  b: c\n  d: e\n"),
        ('a: "ä\\x85"\n', 'a: "\\xE4\\N"\n'),
        ('a: "ä\\u2028"\n', 'a: "\\xE4\\L"\n'),
        ('a: "ä\\u2029"\n', 'a: "\\xE4\\P"\n'),
    ],
)
def test_an_account_file_is_written_as_by_java(text: str, words: str) -> None:
    """As in Java, null is written as the word `null`, and only characters that need it are escaped."""
    assert (written(text), written(words)) == (words, words)


def test_texts_of_the_file() -> None:
    assert written("a: &a [*a]\n") == "a: &id001\n- *id001\n"
    assert written("a: &a {b: c}\nd: *a\n") == "a: &id001\n  b: c\nd: *id001\n"
    assert AccountFile.parse(b"a: [~, b, null]\nc: ~\nd: {e: ~, f: 'null'}\n").values() == {
        "a": ["b"],
        "d": {"f": "null"},
    }
    with pytest.raises(ConfigError, match="a key in it is not text"):
        AccountFile.parse(b"? [a]\n: b\n").values()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("dataVersion: [{counter: 3, timestamp: 17}]", (3, 17)),
        ("dataVersion: [{counter: three, timestamp: 17}]", None),
        ("dataVersion: [{counter: 3, timestamp: late}]", None),
        ("dataVersion: [{counter: 3}]", None),
        ("dataVersion: [three]", None),
        ("dataVersion: []", None),
        ("dataVersion: 3", None),
        ("accounts: []", None),
    ],
)
def test_an_invalid_version_of_an_account_file_is_ignored(text: str, version: tuple[int, int] | None) -> None:
    file = AccountFile.parse(text.encode())
    assert file.version == version
    file.count_change(99)
    assert file.version == ((version or (0, 0))[0] + 1, 99)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a:\n  b: [\n", ": look at line 3, column 1, and before"),
        ("a: @b", ": look at line 1, column 4, and before"),
        ("a: 'secret", ": look at line 1, column 11, and before"),
        ("a: b\0", ": look at character 5"),
        ("[" * 500, ""),
    ],
)
def test_the_place_of_a_yaml_error_is_reported(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AccountFile.parse(text.encode())
    assert str(caught.value) == f"it is not YAML{place}"


FIELDS: Final = next(iter(event("")))
LOOK_NS: Final = int(LOOK_S * 1e9)
GOOD: Final = b"accounts:\n- {accessKey: somebody, secretKey: 12345678}\n"
OTHER: Final = GOOD + b"- {accessKey: another, secretKey: 12345678}\n"
BAD: Final = b"accounts: 7\n"
CHANNEL: Final = cast("Channel", SimpleNamespace(peer_host=("10.0.0.1", 1), peer="10.0.0.1:1"))
PULL: Final = Command(code=RequestCode.PULL_MESSAGE, ext_fields={"AccessKey": "another", "Signature": ""})


@define(eq=False)
class World:
    path: Path
    control: AccessControl
    now_ns: int = 0
    held: list[bool] = field(factory=list)

    def look(self, content: bytes | None, after_ns: int = LOOK_NS) -> str | None:
        """Let `after_ns` pass and write or remove the account file; returns "known" or "unknown" for the account."""
        self.now_ns += after_ns
        if content is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_bytes(content)
        refused = present(self.control.refusal(CHANNEL, PULL))
        return "unknown" if b"No acl config" in b"".join(map(bytes, refused)) else "known"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(GOOD)
    guard = HeldLock()
    read = RealFiles.read

    def noted(files: RealFiles, name: str) -> bytes:
        made.held.append(guard.is_held)
        return read(files, name)

    runtime = RealRuntime()
    runtime.monotonic_ns = lambda: 0
    made = World(path, AccessControl(runtime, str(path)))
    runtime.monotonic_ns = lambda: made.now_ns
    made.control._guard = cast("Any", guard)
    monkeypatch.setattr(RealFiles, "read", noted)
    yield made
    assert all(made.held)


def told(caplog: pytest.LogCaptureFixture, name: str) -> int:
    names = [getattr(record, FIELDS)["event"] for record in caplog.records if hasattr(record, FIELDS)]
    caplog.clear()
    return names.count(name)


def test_the_account_file_is_checked_at_most_twice_a_second(world: World) -> None:
    for after_ns, count in ((LOOK_NS, 1), (0, 1), (LOOK_NS - 1, 1), (1, 2), (LOOK_NS - 1, 2), (1, 3), (9 * LOOK_NS, 4)):
        world.look(GOOD, after_ns)
        assert len(world.held) == count


def test_a_changed_account_file_takes_effect_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert (world.look(GOOD), told(caplog, "accounts_read")) == ("unknown", 0)
    assert [world.look(OTHER) for _ in range(3)] == ["known"] * 3
    assert told(caplog, "accounts_read") == 1


def test_an_invalid_account_file_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []

    def noted(content: bytes, path: str) -> Rules:
        tried.append(content)
        return read_rules(content, path)

    monkeypatch.setattr(access_control, "read_rules", noted)
    world.look(OTHER)
    for content, lines in ((BAD, 1), (BAD, 0), (None, 1), (None, 0), (None, 0), (OTHER, 0), (None, 1), (None, 0)):
        told(caplog, "accounts_unusable")
        assert (world.look(content), told(caplog, "accounts_unusable")) == ("known", lines)
    assert tried == [OTHER, BAD, OTHER]


def test_a_file_that_is_too_long_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", len(OTHER))
    assert world.look(OTHER) == "known"
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", len(OTHER) - 1)
    with pytest.raises(ConfigError, match=f"have {len(OTHER)} bytes, over the limit of {len(OTHER) - 1}"):
        AccessControl(RealRuntime(), str(world.path))
    world.held.clear()

    def edit(file: AccountFile) -> bool:
        file.put_white_addresses(["10.0.0.9"])
        return True

    world.look(GOOD)
    monkeypatch.setattr(RealRuntime, "unix_ms", lambda _: 1)
    changed = AccountFile.parse(GOOD)
    edit(changed)
    changed.count_change(1)
    size = len(changed.text())
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", size - 1)
    with pytest.raises(ConfigError, match=f"would have {size} bytes, over the limit of {size - 1}"):
        world.control.change(edit)
    assert world.path.read_bytes() == GOOD
    monkeypatch.setattr(access_control, "FILE_SIZE_MAX", size)
    assert world.control.change(edit)
    assert len(world.path.read_bytes()) == size


def test_empty_entries_of_an_account_file_are_ignored() -> None:
    text = b"globalWhiteRemoteAddresses: ''\naccounts:\n- accessKey: somebody\n  secretKey: '12345678'\n"
    empty = b"".join(
        b"  %s: ''\n" % name
        for name in (b"whiteRemoteAddress", b"admin", b"defaultTopicPerm", b"defaultGroupPerm", b"groupPerms")
    )
    rules = read_rules(text + empty + b"  topicPerms: [T=PUB]\n", "plain_acl.yml")
    account = rules.accounts["somebody"]
    assert (rules.white, account.is_admin, account.rights) == ((), False, {"T": Right.PUB})
    assert (account.default_topic, account.default_group) == (Right.DENY, Right.DENY)
    assert not account.is_white("10.0.0.1")


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
    (50, {"accessKey": "newcomer", "secretKey": "12345678", "topicPerms": "T"}, (209, "Resource format error for T")),
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
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return path


@pytest.fixture
def broker(tmp_path: Path, accounts: Path) -> Iterator[Broker]:
    config = BrokerConfig(acl_file=str(accounts))
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as started:
        yield started


def ask(broker: Broker, code: int, fields: Mapping[str, str], who: Credentials = ADMIN) -> Command:
    with RawClient(broker.address) as client:
        return client.call(code, who.signed(dict(fields), b""))


def put(broker: Broker, **fields: str) -> Command:
    return ask(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields)


def may_send(broker: Broker, topic: str, who: Credentials) -> bool:
    with RawClient(broker.address) as client:
        return client.call(RequestCode.SEND_MESSAGE_V2, who.signed(send_fields(topic, 0), b"x"), b"x").code == 0


def test_changing_an_account_keeps_all_other_text(broker: Broker, accounts: Path) -> None:
    """As in Java, a changed account is written last. All other text stays, and only the owner can read the file."""
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


def test_accounts_and_their_version_can_be_queried(broker: Broker, accounts: Path) -> None:
    before = ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {}).ext_fields or {}
    assert json.loads(before["version"])["counter"] == 0
    put(broker, accessKey="newcomer", secretKey="12345678", topicPerms="T=DENY")
    after = ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {}).ext_fields or {}
    assert json.loads(after["version"])["counter"] == 1
    assert list(json.loads(after["allAclFileVersion"])) == [str(accounts)]
    assert after["brokerAddr"] == "{}:{}".format(*broker.address)
    listed = json.loads(bytes(ask(broker, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, {}).body))
    assert listed["globalWhiteAddrs"] == []
    keys = [account["accessKey"] for account in listed["plainAccessConfigs"]]
    assert keys == ["RocketMQ", "administrator", "newcomer"]
    made = {"accessKey": "newcomer", "secretKey": "12345678", "admin": False, "topicPerms": ["T=DENY"]}
    assert listed["plainAccessConfigs"][2] == made


def test_an_invalid_account_change_has_no_effect(broker: Broker, accounts: Path) -> None:
    for code, fields, (answer, words) in REFUSED:
        told = ask(broker, code, fields)
        assert told.code == answer, fields
        assert words in str(told.remark)
        assert accounts.read_text() == ACCOUNTS


def test_an_account_with_the_shortest_key_is_created(broker: Broker, accounts: Path) -> None:
    """An account whose access key has only seven characters, the minimum, can be created with every right."""
    key = {"accessKey": "seven77", "secretKey": "1234567", "admin": "true"}
    assert put(broker, **key, defaultTopicPerm="PUB", topicPerms="T=PUB,,").code == 0
    assert put(broker, **key, defaultTopicPerm="", groupPerms="G=SUB,").code == 0
    rights = {"defaultTopicPerm": "PUB", "topicPerms": ["T=PUB"], "groupPerms": ["G=SUB"]}
    assert yaml.safe_load(accounts.read_text())["accounts"][-1] == key | {"admin": True} | rights
    for short in ({"accessKey": "six666", "secretKey": "1234567"}, {"accessKey": "seven77", "secretKey": "123456"}):
        assert put(broker, **short).code == 209


def test_accounts_are_for_administrators(broker: Broker, accounts: Path) -> None:
    """Only an administrator may change accounts. RocketMQ 4.9.7 lets any user do so, and become an administrator."""
    for code in range(50, 55):
        told = ask(broker, code, {"accessKey": "newcomer", "secretKey": "12345678", "globalWhiteAddrs": "*"}, USER)
        assert told.code == 1
        assert f"Need admin permission for request code={code}" in str(told.remark)
    assert accounts.read_text() == ACCOUNTS


def test_without_accounts_there_is_nothing_to_change(tmp_path: Path) -> None:
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        assert {ask(broker, code, {}).code for code in range(50, 55)} == {3}


def test_an_unwritable_account_file_is_reported(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: str, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(RUNTIME.files, "write_atomic", full, raising=True)
        told = put(broker, accessKey="RocketMQ", secretKey="other-secret")
    assert told.code == 209
    assert "No space left" in str(told.remark)
    assert may_send(broker, "open", USER)


def test_an_account_change_keeps_edits_of_other_programs(broker: Broker, accounts: Path) -> None:
    """Each account change reads the file again and so keeps other programs' edits. An unreadable file stays."""
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
def test_an_unknown_kind_of_account_file_is_not_changed(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AccountFile.parse(text.encode()).put_account("newcomer", {})


TEXTS = st.text(max_size=12) | st.sampled_from(
    ["null", "~", "true", "0123", "1e3", "2026-01-01", "- a", "a: b", "#", "\ud800", "a\x85", "ä"]
)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | TEXTS, st.none() | st.lists(TEXTS, max_size=3))))
def test_the_account_file_equals_a_plain_table(steps: list[tuple[str, str | None, list[str] | None]]) -> None:
    file = AccountFile.parse(b"")
    table: dict[str, dict[str, str | list[str]]] = {}
    for key, secret, rights in steps:
        if secret is None and rights is None:
            assert file.remove_account(key) is (table.pop(key, None) is not None)
        else:
            given_values = {"secretKey": secret, "topicPerms": rights}
            values = {name: value for name, value in given_values.items() if value is not None}
            file.put_account(key, values)
            table[key] = table.pop(key, {"accessKey": key}) | values
        file = AccountFile.parse(file.text())
        assert file.values().get("accounts", []) == list(table.values())


def test_a_signature_covers_every_field_and_the_body(broker: Broker) -> None:
    """A signature covers every field and the body, and an unreadable heartbeat is refused too."""
    broker.topics.put(TopicConfig("open", 1, 1))
    fields = USER.signed(send_fields("open", 0), b"x")
    with RawClient(broker.address) as client:
        assert client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x").code == 0
        replayed = client.call(RequestCode.SEND_MESSAGE_V2, fields | {"b": "writable"}, b"x")
        changed = client.call(RequestCode.SEND_MESSAGE_V2, fields, b"y")
        unread = client.call(RequestCode.HEART_BEAT, USER.signed({}, b"{"), b"{")
    assert [answer.code for answer in (replayed, changed, unread)] == [1, 1, 1]
    assert all("Check signature failed" in str(answer.remark) for answer in (replayed, changed))
    assert "AclException" in str(unread.remark)


@pytest.mark.parametrize("white", ["globalWhiteRemoteAddresses: [127.0.0.*]", "whiteRemoteAddress: 127.0.0.1"])
def test_an_allow_listed_address_needs_no_signature(tmp_path: Path, brokers: Brokers, white: str) -> None:
    path = tmp_path / "plain_acl.yml"
    for inside in (True, False):
        text = ACCOUNTS.replace(white[: white.index(" ")], white)
        path.write_text(text if inside else text.replace("127.0.0", "10.0.0"))
        client = brokers.client(config=BrokerConfig(acl_file=str(path)), directory=tmp_path / f"store-{inside}")
        answer = client.pull("open", AccessKey="RocketMQ")
        assert (answer.code == 17) is inside, answer.remark


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: [", "cannot be used"),
        ("- a\n- b", "cannot be used"),
        ("accounts:\n  - accessKey: short\n    secretKey: 12345678", "length >= 7"),
        ("accounts:\n  - accessKey: RocketMQ", "secretKey"),
        ("accounts:\n  - {accessKey: RocketMQ, secretKey: 12345678, topicPerms: [open]}", "is not NAME=RIGHT"),
        ("accounts:\n  - {accessKey: RocketMQ, secretKey: 12345678, groupPerms: [g=ALL]}", "is not NAME=RIGHT"),
        ("accounts:\n" + "  - {accessKey: RocketMQ, secretKey: 12345678}\n" * 2, "occurs twice"),
        ("globalWhiteRemoteAddresses: [here]", "is not an IP address"),
    ],
)
def test_an_invalid_account_file_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_rules(text.encode(), "plain_acl.yml")
    assert "\n" not in str(caught.value)


def test_a_missing_account_file_is_a_usage_error(tmp_path: Path) -> None:
    for config, words in (
        (BrokerConfig(acl_file=str(tmp_path / "none.yml")), "cannot be read"),
        (BrokerConfig(acl_enable=True), "--acl FILE"),
    ):
        with pytest.raises(ConfigError, match=words):
            Broker.start(RUNTIME, str(tmp_path / "store"), config=config)


@pytest.mark.parametrize(
    "content",
    [b"a: " + b"[" * 1_100, b"- " * 1_100, b"?\n" * 9 + b"{" * 1_100],
    ids=["nested brackets", "nested dashes", "nested braces"],
)
def test_only_flat_files_are_read_in_c(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C parser would recurse until the process crashes on a deeply nested file, so it reads only flat files."""
    monkeypatch.setattr(access_control, "_QUICK_LOADER", None)
    with pytest.raises(TypeError):
        AccountFile.parse(b"accounts: []")
    with pytest.raises(ConfigError, match="it is not YAML"):
        AccountFile.parse(content)
