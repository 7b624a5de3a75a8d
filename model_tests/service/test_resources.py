"""Accounts read and change only what their rights allow, whichever request code they use."""

from __future__ import annotations

import base64
import hmac
import json
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest
from attrs import evolve
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import RawClient, heartbeat_of, pull_fields, records_of, send_fields
from model_tests.support.present import present
from model_tests.support.service import fields_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel
from longpoll_broker.rocketmq.accounts.access import ADMIN_CODES
from longpoll_broker.rocketmq.accounts.resources import FOR_EVERY_ACCOUNT, NAMED, wanted_by
from longpoll_broker.send.message_builder import NAME_COUNT_MAX
from longpoll_protocol import admin_headers, headers
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import Header
from longpoll_protocol.log_record import FIXED_SIZE, HEAD, MAGIC_V1
from longpoll_protocol.message import BatchMessage, encode_batch, message_id
from longpoll_protocol.properties import java_hash
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign
from longpoll_runtime.real import RealRuntime

BOTH: Final = "PUB|SUB"
OPEN: Final = {"defaultTopicPerm": BOTH, "defaultGroupPerm": BOTH}
RIGHTS: Final[dict[str, dict[str, Any]]] = {
    "stranger": OPEN | {"defaultTopicPerm": "DENY", "topicPerms": [f"open={BOTH}"], "groupPerms": ["theirs=DENY"]},
    "trusted": OPEN | {"topicPerms": ["secret=DENY"]},
    "curious": OPEN | {"groupPerms": ["theirs=DENY"]},
    "readers": {"topicPerms": ["open=SUB"], "groupPerms": ["mine=SUB"]},
    "writers": {"topicPerms": ["open=PUB"], "groupPerms": ["mine=PUB"]},
    "administrator": {"admin": True},
}
SECRETS: Final = {name: name * 2 for name in RIGHTS}
PREPARED: Final = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01u\x02"
FURTHER: Final = "INNER_MULTI_DISPATCH\x01open,secret\x02"


@contextmanager
def opened(tmp_path: Path, config: BrokerConfig) -> Iterator[Broker]:
    accounts = tmp_path / "plain_acl.yml"
    rows = [{"accessKey": name, "secretKey": SECRETS[name]} | rights for name, rights in RIGHTS.items()]
    accounts.write_text(json.dumps({"accounts": rows}))
    config = evolve(config, acl_file=str(accounts))
    store = evolve(SMALL_STORE, flush_interval_ms=20)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=config, store_config=store) as started:
        yield started


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with accounts, and a topic for which the restricted account has no rights."""
    with opened(tmp_path, BrokerConfig()) as started:
        yield started


def call(
    client: RawClient, code: int, fields: dict[str, str] | None = None, body: bytes = b"", account: str = "stranger"
) -> Command:
    signed = {**(fields or {}), ACCESS_KEY: account}
    return client.call(code, signed | {SIGNATURE: sign(signed, body, SECRETS[account])}, body)


@pytest.mark.parametrize("version", [317, 399, 401, 407, 500])
def test_a_signatures_fields_depend_on_the_clients_version(broker: Broker, version: int) -> None:
    """Clients before 4.9.4 do not sign the field for a unique key."""
    fields = {"topic": "open", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}
    fields |= {"_UNIQUE_KEY_QUERY": "true", ACCESS_KEY: "administrator"}
    signed = {name: value for name, value in fields.items() if version > 399 or name != "_UNIQUE_KEY_QUERY"}
    texts = "".join(value for _name, value in sorted(signed.items())).encode()
    code = hmac.new(SECRETS["administrator"].encode(), texts, "sha1").digest()
    signature = {SIGNATURE: base64.b64encode(code).decode()}
    command = Command(RequestCode.QUERY_MESSAGE, 1, version=version, ext_fields=fields | signature)
    access = present(broker.handler.access)
    assert access.refusal(cast("Channel", SimpleNamespace(peer_host=("10.0.0.1", 1))), command) is None


def place_of(client: RawClient, topic: str, properties: str = "", flag: str = "0") -> tuple[str, str]:
    fields = send_fields(topic, properties=properties) | {"f": flag}
    sent = fields_of(call(client, RequestCode.SEND_MESSAGE_V2, fields, b"secret", "administrator"))
    return str(int(sent["msgId"][16:], 16)), sent["queueOffset"]


def is_refused(answer: Command, resource: str) -> bool:
    return answer.code == 1 and f"No default permission for {resource}" in (answer.remark or "")


def heartbeat(producer: str = "", **consumers: list[str]) -> bytes:
    """Returns the body of a heartbeat (34) with a producer group, and with topics by consumer group."""
    return heartbeat_of("c", [producer] if producer else [], consumers)


def locked(group: str) -> bytes:
    queues = [{"topic": "T", "brokerName": "b", "queueId": 0}]
    return msgspec.json.encode({"consumerGroup": group, "clientId": "c", "mqSet": queues})


def back(place: str, group: str) -> dict[str, str]:
    return {"offset": place, "group": group, "delayLevel": "0", "originTopic": "open"}


SECRET_PLACE, OPEN_PLACE = "place of secret", "place of open"
"""Placeholders for the log offsets of two messages, one in topic `secret` and one in topic `open`."""
SEND, BATCH, BACK = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK
VIEW, BEAT = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.HEART_BEAT
TRACE, PLAIN, LISTED = "RMQ_SYS_TRACE_TOPIC", encode_batch([BatchMessage(b"x", "")]), BatchMessage(b"x", FURTHER)
MANY: Final = {"m": "true"}
ASKED: Final = {"queueId": "0", "timestamp": "0"}


def without(name: str) -> dict[str, str]:
    return {each: value for each, value in send_fields("open").items() if each != name}


def assignment(topic: str, group: str) -> bytes:
    asked = {"topic": topic, "consumerGroup": group, "clientId": "c"}
    return msgspec.json.encode(asked | {"strategyName": "AVG", "messageModel": "CLUSTERING"})


ATTEMPTS: Final[tuple[tuple[int, dict[str, str], bytes, str | None], ...]] = (
    (VIEW, {"offset": SECRET_PLACE}, b"", "topic:secret"),
    (VIEW, {"offset": OPEN_PLACE}, b"", None),
    (VIEW, {"offset": str(2**40)}, b"", None),
    (BACK, back(SECRET_PLACE, "mine"), b"", "topic:secret"),
    (BACK, back(OPEN_PLACE, "mine"), b"", None),
    (BACK, back(OPEN_PLACE, "theirs"), b"", "group:theirs"),
    (SEND, send_fields("%RETRY%theirs"), b"x", "group:theirs"),
    (BEAT, {}, heartbeat("theirs"), "group:theirs"),
    (BEAT, {}, heartbeat("mine"), None),
    (BEAT, {}, heartbeat(mine=["open"], theirs=["open"]), "group:theirs"),
    (BEAT, {}, heartbeat(mine=["open"], other=["open", "secret"]), "topic:secret"),
    (BEAT, {}, heartbeat(mine=["open"], other=["open", "%RETRY%other"]), None),
    *((code, {}, locked("theirs"), "group:theirs") for code in (41, 42)),
    *((code, {}, locked("mine"), None) for code in (41, 42)),
    (RequestCode.QUERY_ASSIGNMENT, {}, assignment("secret", "mine"), "topic:secret"),
    (RequestCode.QUERY_ASSIGNMENT, {}, assignment("open", "theirs"), "group:theirs"),
    *((code, ASKED | {"topic": "secret"}, b"", "topic:secret") for code in (29, 30, 31, 32)),
    *((code, ASKED | {"topic": "open"}, b"", None) for code in (29, 30, 31, 32)),
    (SEND, send_fields("open", properties=FURTHER), b"x", "topic:secret"),
    (BATCH, send_fields("open") | MANY, encode_batch([BatchMessage(b"x", ""), LISTED]), "topic:secret"),
    (SEND, send_fields("open") | {"m": "TRUE"}, encode_batch([LISTED]), "topic:secret"),
    (SEND, send_fields("open") | {"m": "1"}, encode_batch([LISTED]), "topic:secret"),
    (RequestCode.SEND_MESSAGE, {"topic": "open", "batch": "true"}, encode_batch([LISTED]), "topic:secret"),
    *(
        (RequestCode.QUERY_ASSIGNMENT, {}, b'{"topic":"%s","consumerGroup":"%s"}' % asked, refused)
        for asked, refused in (
            ((b"open", b"mine"), None),
            ((b"secret", b"mine"), "topic:secret"),
            ((b"open", b"theirs"), "group:theirs"),
        )
    ),
    (BATCH, send_fields("open") | MANY, PLAIN, None),
    (SEND, send_fields("open") | {"m": "TRUE"}, PLAIN, None),
    (SEND, without("i"), b"x", None),
    (SEND, without("b"), b"x", None),
    (SEND, send_fields("open"), FURTHER.encode(), None),
    (SEND, send_fields(TRACE, properties=FURTHER), b"x", "topic:secret"),
    (BATCH, send_fields(TRACE) | MANY, encode_batch([LISTED]), "topic:secret"),
    (SEND, send_fields(TRACE), b"x", None),
)
"""Requests of the restricted account, each with the resource named in the refusal (None if the request is allowed)."""


def test_a_request_needs_a_right_to_its_resource(broker: Broker, brokers: Brokers) -> None:
    """A refusal names the denied topic or group, from the request's header, its body or the record it refers to."""
    client = brokers.connect(broker)
    places = {SECRET_PLACE: place_of(client, "secret")[0], OPEN_PLACE: place_of(client, "open")[0]}
    for code, fields, body, resource in ATTEMPTS:
        before = broker.store.log_end
        answer = call(client, code, {name: places.get(value, value) for name, value in fields.items()}, body)
        if resource is None:
            assert "No default permission" not in (answer.remark or ""), (code, fields)
        else:
            assert is_refused(answer, resource), (code, fields, answer.remark)
            assert broker.store.log_end == before
            assert broker.administering.clients.producers.channels("theirs") == []


def test_another_accounts_transaction_cannot_be_ended(broker: Broker, brokers: Brokers) -> None:
    """END_TRANSACTION (37) needs a right to the prepared message's topic."""
    client = brokers.connect(broker)
    place_of(client, "secret")
    for topic, account, refusal in (
        ("secret", "stranger", "topic:secret"),
        ("secret", "administrator", None),
        ("open", "stranger", None),
    ):
        place, offset = place_of(client, topic, PREPARED, flag="4")
        end = {"producerGroup": "P", "tranStateTableOffset": offset, "commitLogOffset": place, "commitOrRollback": "8"}
        answer = call(client, RequestCode.END_TRANSACTION, end, b"", account)
        assert is_refused(answer, refusal) if refusal else answer.code == 0
        assert broker.store.visible_end("secret", 0) == (1 if refusal else 2)


def test_a_consumer_may_send_to_its_retry_topic(broker: Broker, brokers: Brokers) -> None:
    """RocketMQ's clients send to the retry topic themselves if CONSUMER_SEND_MSG_BACK (36) fails."""
    client = brokers.connect(broker)
    for account, refusal in (("readers", False), ("writers", True)):
        assert is_refused(call(client, SEND, send_fields("%RETRY%mine"), b"x", account), "group:mine") == refusal


@pytest.mark.parametrize(
    ("topic", "properties"),
    [("SCHEDULE_TOPIC_XXXX", "DELAY\x0118\x02KEYS\x01k\x02"), ("RMQ_SYS_TRANS_HALF_TOPIC", PREPARED)],
)
def test_only_administrators_may_read_system_topics(
    topic: str, properties: str, broker: Broker, brokers: Brokers
) -> None:
    client = brokers.connect(broker)
    sent = send_fields(topic, properties="REAL_TOPIC\x01secret\x02REAL_QID\x010\x02")
    assert is_refused(call(client, SEND, sent, b"x"), f"topic:{topic}")
    assert call(client, SEND, sent, b"x", "administrator").code != 0
    assert broker.store.visible_end(topic, 0) == 0
    is_prepared = topic.endswith("HALF_TOPIC")
    place_of(client, "secret", properties, "4" if is_prepared else "0")
    queue_id = 0 if is_prepared else 17
    wait_visible(broker, topic, 1, queue_id)
    pull = pull_fields(topic, 0, queue_id=queue_id)
    for account, is_read in (("trusted", False), ("stranger", False), ("administrator", True)):
        answer = call(client, RequestCode.PULL_MESSAGE, pull, account=account)
        assert (answer.code == 0, is_refused(answer, f"topic:{topic}")) == (is_read, not is_read)
    asked = {"topic": topic, "key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    assert is_refused(call(client, RequestCode.QUERY_MESSAGE, asked, account="trusted"), f"topic:{topic}")


def colliding(text: str, prefix: str) -> str:
    """Returns seven characters that give `prefix` plus these characters the Java hash of `text`."""
    target, begun = java_hash(text), java_hash(prefix)
    base = sum(ord("0") * 31**place for place in range(7))
    left = (target - begun * 31**7 - base) % 2**32
    return "".join(chr(ord("0") + left // 31**place % 31) for place in reversed(range(7)))


def test_a_key_with_equal_hash_shows_no_other_topic(broker: Broker, brokers: Brokers) -> None:
    """A message of the denied topic whose key has the same hash does not count towards the query's limit."""
    client = brokers.connect(broker)
    key = colliding("secret#hidden", "open#")
    assert java_hash(f"open#{key}") == java_hash("secret#hidden")
    place_of(client, "open", f"KEYS\x01{key}\x02")
    place_of(client, "secret", "KEYS\x01hidden\x02")
    asked = {"topic": "open", "key": key, "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    found = call(client, RequestCode.QUERY_MESSAGE, asked)
    assert [record.topic for record in records_of(found)] == ["open"]
    missed = call(
        client, RequestCode.QUERY_MESSAGE, asked | {"key": "other-" + colliding("secret#hidden", "open#other-")}
    )
    assert (missed.code, bytes(missed.body)) == (22, b"")


def member(brokers: Brokers, broker: Broker, account: str, body: bytes) -> RawClient:
    client = brokers.connect(broker)
    assert call(client, BEAT, body=body, account=account).code == 0
    return client


BODY_AT: Final = FIXED_SIZE - 3
"""The offset of the body in a record; topic and properties follow it."""
BODY: Final = b"seen by nobody"
WITH_BODY: Final = "NAME\x01value\x02KEYS\x01k\x02"


def aimed_at(topic: str, place: str, group: str = "mine") -> dict[str, str]:
    """Returns every field that names a topic, a group or a log offset in any request."""
    message = {"offset": place, "msgId": message_id("127.0.0.1", 1, int(place)), "commitLogOffset": place}
    query = {"key": "k", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(2**62), "index": "0", "count": "9"}
    back_to = {"group": group, "delayLevel": "-1", "originTopic": topic, "clientId": "c", "timestamp": "0"}
    return pull_fields(topic, 0, group=group) | message | query | back_to


def ask(client: RawClient, code: int, fields: dict[str, str], account: str, body: bytes = b"") -> int:
    signed = fields | {ACCESS_KEY: account}
    return client.send(code, signed | {SIGNATURE: sign(signed, body, SECRETS[account])}, body)


def seen(client: RawClient, codes: set[int], aims: list[tuple[str, str]], account: str) -> set[int]:
    asked = [(code, ask(client, code, aimed_at(*aim), account)) for code in codes for aim in aims]
    assert call(client, RequestCode.GET_BROKER_RUNTIME_INFO, account=account).code == 0
    answers = ((code, client.reply(opaque, 0.0)) for code, opaque in asked)
    return {code for code, answer in answers if answer is not None and BODY in bytes(answer.body)}


def pushed_codes(client: RawClient, account: str) -> set[int]:
    assert call(client, RequestCode.GET_BROKER_RUNTIME_INFO, account=account).code == 0
    return {push.code for push in client.pushes if BODY in bytes(push.body)}


def test_no_request_returns_a_body_without_a_right(tmp_path: Path, brokers: Brokers) -> None:
    quick = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=3_600_000)
    with opened(tmp_path, quick) as broker:
        stranger = member(brokers, broker, "stranger", heartbeat("P", mine=["open"]))
        allowed = member(brokers, broker, "curious", heartbeat("P", mine=["secret"]))
        admin, handler = brokers.connect(broker), broker.handler
        aims = []
        for topic, properties, flag in (
            ("secret", WITH_BODY, "0"),
            ("SCHEDULE_TOPIC_XXXX", "DELAY\x0118\x02", "0"),
            ("RMQ_SYS_TRANS_HALF_TOPIC", PREPARED, "4"),
        ):
            aims += [(topic, str(broker.store.log_end)), ("open", str(broker.store.log_end))]
            fields = send_fields("secret", properties=properties) | {"f": flag, "g": str(RealRuntime().unix_ms())}
            assert call(admin, SEND, fields, BODY, "administrator").code == 0
        aims += [("%DLQ%theirs", str(broker.store.log_end)), ("%RETRY%mine", "0"), ("%DLQ%mine", "0")]
        assert call(admin, BACK, back(aims[0][1], "theirs") | {"delayLevel": "-1"}, b"", "administrator").code == 0
        wait_visible(broker, "SCHEDULE_TOPIC_XXXX", 1, 17)
        codes = {*handler.pulling.processors, *handler.sending.processors, *handler.administering.processors}
        assert seen(stranger, codes, aims, "stranger") == set()
        handler.sending.checks._due_ns = 0
        wait_until(lambda: RequestCode.CHECK_TRANSACTION_STATE in pushed_codes(allowed, "curious"))
        replied = send_fields("secret", properties="REPLY_TO_CLIENT\x01c\x02")
        for code, fields in (
            (RequestCode.SEND_REPLY_MESSAGE_V2, replied),
            (RequestCode.CONSUME_MESSAGE_DIRECTLY, aimed_at("secret", aims[0][1])),
        ):
            ask(admin, code, fields, "administrator", BODY)
        assert call(admin, RequestCode.GET_BROKER_RUNTIME_INFO, account="administrator").code == 0
        assert pushed_codes(stranger, "stranger") == set()
        # The same requests show the body to an account with rights.
        assert pushed_codes(allowed, "curious") == {39, 309, 326}
        assert seen(admin, codes - ADMIN_CODES, aims, "administrator") >= {11, 12, 33}


def test_a_held_pull_is_refused_when_its_right_ends(broker: Broker, brokers: Brokers) -> None:
    client, admin = brokers.connect(broker), brokers.connect(broker)
    place_of(admin, "open")
    opaque = ask(client, RequestCode.PULL_MESSAGE, pull_fields("open", 1, timeout_ms=60_000, group="mine"), "stranger")
    assert call(client, RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    changed = {"accessKey": "stranger", "secretKey": SECRETS["stranger"], "topicPerms": "open=DENY"}
    assert call(admin, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, changed, account="administrator").code == 0
    assert call(admin, SEND, send_fields("open"), BODY, "administrator").code == 0
    answer = client.answer(opaque)
    assert (answer.code, BODY in bytes(answer.body)) == (16, False)


def test_damaged_properties_do_not_show_the_next_message(broker: Broker, brokers: Brokers) -> None:
    """No checksum covers the properties, and damaged ones can extend into the next message."""
    client = brokers.connect(broker)
    size, place = 1_000, broker.store.log_end + BODY_AT
    head = HEAD.pack(size, MAGIC_V1, 0, 0, 0, 0, place, 0, 0)
    rest = struct.pack(">24xiqib4s", 0, 0, 0, 4, b"open")
    forged = head + rest + struct.pack(">h", size - len(head + rest) - 2)
    assert call(client, SEND, send_fields("open"), forged).code == 0
    for _ in range(9):
        assert call(client, SEND, send_fields("secret"), BODY, "administrator").code == 0
    # A direct read from the store takes the forged body for a record.
    shown = present(broker.store.record_at(place))
    assert BODY in bytes(shown)
    answer = call(client, VIEW, {"offset": str(place)})
    assert (answer.code, BODY in bytes(answer.body)) == (1, False)
    assert "no message begins" in (answer.remark or "")


def test_every_request_code_has_one_access_rule(broker: Broker) -> None:
    count, handler = Counter([*NAMED, *FOR_EVERY_ACCOUNT, *ADMIN_CODES]), broker.handler
    rooms = (handler.pulling.processors, handler.sending.processors, handler.administering.processors)
    assert {code for room in rooms for code in room if count[code] != 1} == set()
    assert all(FOR_EVERY_ACCOUNT.values())


BY_THEIR_OWN: Final = frozenset({VIEW, BACK, BEAT, RequestCode.QUERY_ASSIGNMENT, RequestCode.END_TRANSACTION, 41, 42})
"""Codes whose resource is in the request's body or in the log. Each of these codes has its own test."""
DENIED: Final = {
    "topic": ("secret", "topic:secret"),
    "group": ("theirs", "group:theirs"),
    "consumer_group": ("theirs", "group:theirs"),
    "producer_group": ("theirs", "group:theirs"),
}
"""Maps each header field to a denied value and the text of the refusal."""
CODES: Final = re.compile(r"\b(\d+) [A-Z][A-Z_0-9]+")
"""A pattern for the request codes that a header's docstring names."""


def named_fields() -> Iterator[tuple[int, str, str]]:
    """Yields (code, header field, wire name) for each request field that names a topic or group.

    The producer group of a send, a leave or an end of a transaction is left out, because it gives no access.
    """
    values = (vars(headers) | vars(admin_headers)).values()
    for header in {each for each in values if isinstance(each, type) and issubclass(each, Header)}:
        told = "".join((header.__doc__ or "").partition(":")[:2])
        for code in map(int, CODES.findall(told)) if "Response" not in header.__name__ else ():
            for name, wire in zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True):
                is_told_of = name != "producer_group" or code == RequestCode.GET_PRODUCER_CONNECTION_LIST
                if name in DENIED and is_told_of and code in NAMED and code not in BY_THEIR_OWN:
                    yield code, name, wire


def test_every_field_that_names_a_topic_or_group_is_checked(broker: Broker, brokers: Brokers) -> None:
    client = brokers.connect(broker)
    for code, name, wire in named_fields():
        value, told = DENIED[name]
        for account in ("stranger",) if name == "topic" else ("stranger", "curious"):
            assert is_refused(call(client, code, {wire: value}, account=account), told), (code, name)
    replies = {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
    assert {code for code, _name, _wire in named_fields()} | BY_THEIR_OWN | replies == set(NAMED)


WRITING: Final = frozenset({RequestCode.SEND_MESSAGE, SEND, BATCH, RequestCode.RECALL_MESSAGE})
"""Codes that need the right to publish."""
MEASURING: Final = frozenset({29, 30, 31, 32, RequestCode.GET_TOPIC_CONFIG})
"""Codes that need the right to publish or the right to consume."""


def test_separate_rights_to_read_and_to_write(broker: Broker, brokers: Brokers) -> None:
    client = brokers.connect(broker)
    for code, name, wire in named_fields():
        if name == "topic":
            for account, denied in (("readers", code in WRITING), ("writers", code not in WRITING | MEASURING)):
                answered = call(client, code, {wire: "open"}, account=account)
                assert is_refused(answered, "topic:open") == denied, (RequestCode(code).name, account)


def test_the_number_of_queues_that_a_message_names_is_limited() -> None:
    """Queue names beyond the limit of a send do not count as topics, because checking them would take half a second."""
    for count, is_taken in ((NAME_COUNT_MAX, True), (NAME_COUNT_MAX + 1, False)):
        names = ",".join(f"t{number}" for number in range(count))
        fields = send_fields("open", properties=f"INNER_MULTI_DISPATCH\x01{names}\x02")
        with nullcontext() if is_taken else pytest.raises(HeaderError, match="has over 128 queues"):
            wanted_by(Command(SEND, 1, ext_fields=fields), lambda _offset: None)
