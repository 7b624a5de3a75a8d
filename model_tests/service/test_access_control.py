"""Access control over the wire: who is refused, with which words, and that a changed file counts at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.rocketmq.accounts.access_control import read_rules
from longpoll_client import Admin, Credentials, OutgoingMessage, Producer, PullConsumer
from longpoll_client.errors import RefusedError
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
ACCOUNTS = """
globalWhiteRemoteAddresses:
{white}
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress: {own}
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - open=PUB|SUB
      - readable=SUB
      - writable=PUB
    groupPerms:
      # the group should convert to retry topic
      - closed=DENY
  - accessKey: administrator
    secretKey: 87654321
    admin: true
"""
USER = Credentials("RocketMQ", "12345678")
ADMIN = Credentials("administrator", "87654321")


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    """A file with an account of a user and one of an administrator."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS.format(white="", own=""))
    return path


@pytest.fixture
def broker(tmp_path: Path, accounts: Path) -> Iterator[Broker]:
    """A broker that asks for accounts and has the topics."""
    config = BrokerConfig(acl_file=str(accounts))
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as started:
        with Admin(name_server(started), credentials=ADMIN) as admin:
            for topic in ("open", "readable", "writable", "secret"):
                admin.create_topic(topic, 1)
        yield started


def name_server(broker: Broker) -> str:
    return "{}:{}".format(*broker.name_server_address)


def send(broker: Broker, credentials: Credentials | None, topic: str = "open") -> None:
    with Producer(name_server(broker), credentials=credentials) as producer:
        producer.send(topic, b"x")


def consume(broker: Broker, credentials: Credentials | None, topic: str = "open", group: str = "G") -> bytes:
    config = MemberConfig(group=group, start_at="first")
    with PullConsumer(name_server(broker), topics=topic, **member_options(config), credentials=credentials) as consumer:
        return consumer.poll(PATIENCE_S)[0].body


def send_batch(broker: Broker, topic: str) -> int:
    with Producer(name_server(broker), credentials=USER) as producer:
        return len(producer.send_batch(topic, [OutgoingMessage(b"y")] * 3))


def make_topic(broker: Broker) -> None:
    with Admin(name_server(broker), credentials=USER) as admin:
        admin.create_topic("new", 1)


def test_the_right_key_is_let_in(broker: Broker) -> None:
    send(broker, USER)
    assert consume(broker, USER) == b"x"
    assert send_batch(broker, "open") == 3
    send(broker, USER, "writable")
    send(broker, ADMIN, "secret")
    assert consume(broker, ADMIN, "secret", "closed") == b"x"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda broker: send(broker, None), "No accessKey is configured"),
        (lambda broker: send(broker, Credentials("stranger", "12345678")), "No acl config for stranger"),
        (lambda broker: send(broker, Credentials("RocketMQ", "12345679")), "Check signature failed for accessKey="),
        (lambda broker: send(broker, USER, "secret"), "No default permission for topic:secret"),
        (lambda broker: send(broker, USER, "readable"), "No default permission for topic:readable"),
        (lambda broker: consume(broker, USER, "writable"), "No default permission for topic:writable"),
        (lambda broker: consume(broker, USER, "open", "closed"), "No default permission for group:closed"),
        (lambda broker: send_batch(broker, "secret"), "permission for topic:secret"),
        (make_topic, "Need admin permission for request code=17"),
    ],
)  # fmt: skip
def test_everyone_else_is_refused_in_rocketmqs_words(broker: Broker, act: Callable[[Broker], None], words: str) -> None:
    with pytest.raises(RefusedError, match=words) as caught:
        act(broker)
    assert caught.value.code == 1
    assert caught.value.remark is not None
    assert caught.value.remark.startswith("org.apache.rocketmq.acl.common.AclException: ")


def test_a_request_replayed_on_another_topic_is_refused(broker: Broker) -> None:
    """The signature is over the fields: what was signed for one topic is worth nothing for another."""
    fields = USER.signed(send_fields("open", 0), b"x")
    with RawClient(broker.address) as client:
        assert client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x").code == 0
        replayed = client.call(RequestCode.SEND_MESSAGE_V2, fields | {"b": "writable"}, b"x")
        changed = client.call(RequestCode.SEND_MESSAGE_V2, fields, b"y")
    for answer in (replayed, changed):
        assert answer.code == 1
        assert "Check signature failed" in str(answer.remark)


@pytest.mark.parametrize(("white", "own"), [("  - 127.0.0.*", ""), ("", "127.0.0.1")])
def test_a_white_address_needs_no_signature(tmp_path: Path, white: str, own: str) -> None:
    path = tmp_path / "plain_acl.yml"
    for inside in (True, False):
        text = ACCOUNTS.format(white=white, own=own)
        path.write_text(text if inside else text.replace("127.0.0", "10.0.0"))
        config = BrokerConfig(acl_file=str(path))
        store = str(tmp_path / f"store-{inside}")
        with (
            Broker.start(RUNTIME, store, config=config, store_config=SMALL_STORE) as broker,
            RawClient(broker.address) as client,
        ):
            fields = pull_fields("open", 0) | {"AccessKey": "RocketMQ"}
            answer = client.call(RequestCode.PULL_MESSAGE, fields)
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
def test_a_file_that_cannot_be_used_is_told_of(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_rules(text.encode(), "plain_acl.yml")
    assert "\n" not in str(caught.value)


def test_no_file_and_no_name_of_one_are_the_users_mistakes(tmp_path: Path) -> None:
    for config, words in (
        (BrokerConfig(acl_file=str(tmp_path / "none.yml")), "cannot be read"),
        (BrokerConfig(acl_enable=True), "--acl FILE"),
    ):
        with pytest.raises(ConfigError, match=words):
            Broker.start(RUNTIME, str(tmp_path / "store"), config=config)


def test_a_heartbeat_that_cannot_be_read_is_refused(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        answer: Command = client.call(RequestCode.HEART_BEAT, USER.signed({}, b"{"), b"{")
    assert answer.code == 1
    assert "AclException" in str(answer.remark)
