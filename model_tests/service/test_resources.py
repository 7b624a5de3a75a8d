"""What an account may not read or write it gets by no side door; each attack fails, every code has an entry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.tables.access import ADMIN_CODES
from longpoll_broker.service.access.resources import FOR_EVERY_ACCOUNT, NAMED, codes_with_an_entry
from longpoll_broker.testing.brokers import SMALL_STORE, Connect, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields
from longpoll_protocol import headers
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers.base import Header
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_protocol.signature import ACCESS_KEY, SIGNATURE, sign
from longpoll_runtime.real import RealRuntime

ACCOUNTS: Final = """
accounts:
  - accessKey: stranger
    secretKey: 12345678
    defaultTopicPerm: DENY
    defaultGroupPerm: PUB|SUB
    topicPerms:
      - open=PUB|SUB
    groupPerms:
      - theirs=DENY
  - accessKey: trusted
    secretKey: 13572468
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: PUB|SUB
    topicPerms:
      - secret=DENY
  - accessKey: curious
    secretKey: 24681357
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: PUB|SUB
    groupPerms:
      - theirs=DENY
  - accessKey: readers
    secretKey: 22222222
    topicPerms:
      - open=SUB
    groupPerms:
      - mine=SUB
  - accessKey: writers
    secretKey: 33333333
    topicPerms:
      - open=PUB
    groupPerms:
      - mine=PUB
  - accessKey: administrator
    secretKey: 87654321
    admin: true
"""
SECRETS: Final = {
    "stranger": "12345678",
    "trusted": "13572468",
    "curious": "24681357",
    "readers": "22222222",
    "writers": "33333333",
    "administrator": "87654321",
}
PREPARED: Final = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01u\x02"
FURTHER: Final = "INNER_MULTI_DISPATCH\x01open,secret\x02"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with accounts, and a topic that the stranger has no right to."""
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    config = BrokerConfig(acl_file=str(accounts))
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=config, store_config=SMALL_STORE) as started:
        yield started


def call(
    client: RawClient, code: int, fields: dict[str, str] | None = None, body: bytes = b"", account: str = "stranger"
) -> Command:
    """The answer to a request that an account has signed."""
    signed = {**(fields or {}), ACCESS_KEY: account}
    return client.call(code, signed | {SIGNATURE: sign(signed, body, SECRETS[account])}, body)


def place_of(client: RawClient, topic: str, properties: str = "", flag: str = "0") -> tuple[str, str]:
    """Have the administrator send a message: its place in the log and its queue offset."""
    fields = send_fields(topic, properties=properties) | {"f": flag}
    sent = call(client, RequestCode.SEND_MESSAGE_V2, fields, b"secret", "administrator")
    assert sent.code == 0, sent.remark
    assert sent.ext_fields is not None
    return str(int(sent.ext_fields["msgId"][16:], 16)), sent.ext_fields["queueOffset"]


def refused(answer: Command, resource: str) -> bool:
    """Whether the accounts refused a request, for this topic or group."""
    return answer.code == 1 and f"No default permission for {resource}" in (answer.remark or "")


def end_fields(place: tuple[str, str]) -> dict[str, str]:
    return {
        "producerGroup": "P",
        "tranStateTableOffset": place[1],
        "commitLogOffset": place[0],
        "commitOrRollback": "8",
    }


# -- the attacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delayed", ["", "DELAY\x019\x02", "REAL_TOPIC\x01open\x02"])
def test_a_message_is_not_read_by_its_place(delayed: str, broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    place, _offset = place_of(client, "secret", delayed)
    assert refused(call(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place}), "topic:secret")
    own, _offset = place_of(client, "open")
    assert call(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": own}).code == 0
    nothing = call(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(2**40)})
    assert "can not find message" in (nothing.remark or "")


def test_a_message_is_not_copied_to_an_own_group(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    place, _offset = place_of(client, "secret")
    fields = {"offset": place, "group": "mine", "delayLevel": "0", "originTopic": "open"}
    assert refused(call(client, RequestCode.CONSUMER_SEND_MSG_BACK, fields), "topic:secret")
    assert broker.store.visible_end("%RETRY%mine", 0) == 0
    own, _offset = place_of(client, "open")
    assert call(client, RequestCode.CONSUMER_SEND_MSG_BACK, fields | {"offset": own}).code == 0


def test_a_transaction_of_others_is_not_ended(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    call(client, RequestCode.SEND_MESSAGE_V2, send_fields("secret"), b"x", "administrator")
    place = place_of(client, "secret", PREPARED, flag="4")
    assert refused(call(client, RequestCode.END_TRANSACTION, end_fields(place)), "topic:secret")
    assert broker.store.visible_end("secret", 0) == 1
    assert call(client, RequestCode.END_TRANSACTION, end_fields(place), b"", "administrator").code == 0
    assert broker.store.visible_end("secret", 0) == 2
    own = place_of(client, "open", PREPARED, flag="4")
    assert call(client, RequestCode.END_TRANSACTION, end_fields(own)).code == 0


def test_a_denied_group_of_producers_is_not_joined(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    for group, is_refused in (("theirs", True), ("mine", False)):
        body = msgspec.json.encode({"clientID": "c", "producerDataSet": [{"groupName": group}]})
        answered = call(client, RequestCode.HEART_BEAT, {}, body)
        assert refused(answered, "group:theirs") == is_refused
        assert (broker.sending.checks.producer_of(group) is None) == is_refused


def test_a_heartbeat_is_looked_at_whole(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)

    def beat(*groups: tuple[str, list[str]]) -> Command:
        consumers = [
            {"groupName": group, "subscriptionDataSet": [{"topic": topic} for topic in topics]}
            for group, topics in groups
        ]
        return call(
            client, RequestCode.HEART_BEAT, {}, msgspec.json.encode({"clientID": "c", "consumerDataSet": consumers})
        )

    assert refused(beat(("mine", ["open"]), ("theirs", ["open"])), "group:theirs")
    assert refused(beat(("mine", ["open"]), ("other", ["open", "secret"])), "topic:secret")
    assert beat(("mine", ["open"]), ("other", ["open", "%RETRY%other"])).code == 0


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_queues_of_a_denied_group_are_not_locked(code: int, broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    for group, is_refused in (("theirs", True), ("mine", False)):
        body = {"consumerGroup": group, "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}]}
        assert refused(call(client, code, {}, msgspec.json.encode(body)), "group:theirs") == is_refused


def test_a_message_is_not_sent_back_to_a_denied_group(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    own, _offset = place_of(client, "open")
    back = {"offset": own, "group": "theirs", "delayLevel": "0", "originTopic": "open"}
    assert refused(call(client, RequestCode.CONSUMER_SEND_MSG_BACK, back), "group:theirs")
    assert refused(call(client, RequestCode.SEND_MESSAGE_V2, send_fields("%RETRY%theirs"), b"x"), "group:theirs")


def test_who_consumes_for_a_group_sends_to_its_retry_topic(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    for account, is_refused in (("readers", False), ("writers", True)):
        answered = call(client, RequestCode.SEND_MESSAGE_V2, send_fields("%RETRY%mine"), b"x", account)
        assert refused(answered, "group:mine") == is_refused
    nameless = {name: value for name, value in send_fields("open").items() if name != "b"}
    assert "No default permission" not in (call(client, RequestCode.SEND_MESSAGE_V2, nameless, b"x").remark or "")


@pytest.mark.parametrize("delay_level", ["-1", "1"])
def test_what_a_denied_group_failed_on_is_not_read_by_its_place(
    delay_level: str, broker: Broker, connect: Connect
) -> None:
    client = connect(broker.address)
    place, _offset = place_of(client, "open")
    back = {"offset": place, "group": "theirs", "delayLevel": delay_level, "originTopic": "open"}
    # An own group's is read without a right to any topic.
    for account, group, is_refused in (
        ("curious", "theirs", True),
        ("curious", "others", False),
        ("stranger", "theirs", True),
        ("stranger", "mine", False),
        ("readers", "mine", False),
        ("readers", "others", True),
    ):
        place = str(broker.store.log_end)
        assert (
            call(client, RequestCode.CONSUMER_SEND_MSG_BACK, back | {"group": group}, account="administrator").code == 0
        )
        answered = call(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place}, account=account)
        assert (refused(answered, f"group:{group}"), answered.code == 0) == (is_refused, not is_refused)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ],
)
def test_a_queue_tells_nothing_of_itself(code: int, broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    fields = {"topic": "secret", "queueId": "0", "timestamp": "0"}
    assert refused(call(client, code, fields), "topic:secret")
    assert call(client, code, fields | {"topic": "open"}).code == 0


def test_a_message_is_listed_in_no_denied_queue(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    sent = call(client, RequestCode.SEND_MESSAGE_V2, send_fields("open", properties=FURTHER), b"x")
    assert refused(sent, "topic:secret")
    batch = encode_batch([BatchMessage(b"x", ""), BatchMessage(b"x", FURTHER)])
    for code, said in ((RequestCode.SEND_BATCH_MESSAGE, "true"), (RequestCode.SEND_MESSAGE_V2, "TRUE")):
        fields = send_fields("open") | {"m": said}
        assert refused(call(client, code, fields, batch), "topic:secret")
        assert call(client, code, fields, encode_batch([BatchMessage(b"x", "")])).code == 0
    # What is no batch is not read as one, and who says nothing of further queues names none.
    without = {name: value for name, value in send_fields("open").items() if name != "i"}
    assert call(client, RequestCode.SEND_MESSAGE_V2, without, b"x").code == 0
    assert call(client, RequestCode.SEND_MESSAGE_V2, send_fields("open"), FURTHER.encode()).code == 0


def test_traces_lead_to_no_denied_queue(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    fields = send_fields("RMQ_SYS_TRACE_TOPIC", properties=FURTHER)
    assert refused(call(client, RequestCode.SEND_MESSAGE_V2, fields, b"x"), "topic:secret")
    batch = encode_batch([BatchMessage(b"x", FURTHER)])
    fields = send_fields("RMQ_SYS_TRACE_TOPIC") | {"m": "true"}
    assert refused(call(client, RequestCode.SEND_BATCH_MESSAGE, fields, batch), "topic:secret")
    plain = call(client, RequestCode.SEND_MESSAGE_V2, send_fields("RMQ_SYS_TRACE_TOPIC"), b"x")
    assert "No default permission" not in (plain.remark or "")


DEAD: Final = {"topic": "%DLQ%theirs", "queueId": "0", "timestamp": "0"}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.PULL_MESSAGE, pull_fields("%DLQ%theirs", 0, group="mine")),
        (RequestCode.QUERY_MESSAGE, DEAD | {"key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": "9"}),
        (RequestCode.GET_MAX_OFFSET, DEAD),
        (RequestCode.SEND_MESSAGE_V2, send_fields("%DLQ%theirs")),
    ],
)
def test_dead_letters_of_a_denied_group_are_not_read(
    code: int, fields: dict[str, str], broker: Broker, connect: Connect
) -> None:
    """An account that may read every topic reads those of other groups."""
    client = connect(broker.address)
    place, _offset = place_of(client, "open")
    back = {"offset": place, "group": "theirs", "delayLevel": "-1", "originTopic": "open"}
    assert call(client, RequestCode.CONSUMER_SEND_MSG_BACK, back, account="administrator").code == 0
    assert refused(call(client, code, fields, account="curious"), "group:theirs")
    others = {name: value.replace("theirs", "others") for name, value in fields.items()}
    assert "No default permission" not in (call(client, code, others, account="curious").remark or "")


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_nothing_is_sent_by_way_of_the_brokers_own_topics(topic: str, broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    fields = send_fields(topic, properties="REAL_TOPIC\x01secret\x02REAL_QID\x010\x02")
    assert refused(call(client, RequestCode.SEND_MESSAGE_V2, fields, b"x"), f"topic:{topic}")
    assert call(client, RequestCode.SEND_MESSAGE_V2, fields, b"x", "administrator").code != 0
    assert broker.store.visible_end(topic, 0) == 0


@pytest.mark.parametrize(
    ("topic", "properties"),
    [("SCHEDULE_TOPIC_XXXX", "DELAY\x0118\x02KEYS\x01k\x02"), ("RMQ_SYS_TRANS_HALF_TOPIC", PREPARED)],
)
def test_what_waits_is_not_read_where_it_waits(topic: str, properties: str, broker: Broker, connect: Connect) -> None:
    """An account that may read every topic but one would read that one's messages among the others'."""
    client = connect(broker.address)
    prepared = "4" if topic.endswith("HALF_TOPIC") else "0"
    place_of(client, "secret", properties, prepared)
    queue_id = 0 if prepared == "4" else 17
    wait_until(lambda: broker.store.visible_end(topic, queue_id) == 1)
    pull = pull_fields(topic, 0, queue_id=queue_id)
    for account, is_read in (("trusted", False), ("stranger", False), ("administrator", True)):
        answer = call(client, RequestCode.PULL_MESSAGE, pull, account=account)
        assert (answer.code == 0, refused(answer, f"topic:{topic}")) == (is_read, not is_read)
    asked = {"topic": topic, "key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    assert refused(call(client, RequestCode.QUERY_MESSAGE, asked, account="trusted"), f"topic:{topic}")


# -- every code --------------------------------------------------------------------------------------------------------


def undecided(broker: Broker) -> set[int]:
    """The codes that the broker serves and that have not exactly one entry."""
    count = Counter(codes_with_an_entry(ADMIN_CODES))
    handler = broker.handler
    assert handler.access is not None
    rooms = (handler.pulling.processors, handler.sending.processors, handler.administering.processors)
    return {code for room in rooms for code in room if count[code] != 1}


def test_every_code_has_an_entry(broker: Broker) -> None:
    assert undecided(broker) == set()
    assert all(FOR_EVERY_ACCOUNT.values())


BY_THEIR_OWN: Final = frozenset(
    {
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)
"""What these use stands in a body or in the log; each has a test of its own above."""
DENIED: Final = {
    "topic": ("secret", "topic:secret"),
    "group": ("theirs", "group:theirs"),
    "consumer_group": ("theirs", "group:theirs"),
    "producer_group": ("theirs", "group:theirs"),
}
"""By the name of a header's field, what it may not be, and with which words it is refused."""
CODES: Final = re.compile(r"\b(\d+) [A-Z][A-Z_0-9]+")
"""The codes that a header says that it is of."""


def named_fields() -> Iterator[tuple[int, str, str]]:
    """(code, field of its header that names a topic or a group, the field's name on the wire) of every request.

    But for the producers' group that a send, a leave and an end of a transaction say that they are of: nothing of that
    group's is told or changed.
    """
    for header in {each for each in vars(headers).values() if isinstance(each, type) and issubclass(each, Header)}:
        told = "".join((header.__doc__ or "").partition(":")[:2])
        for code in map(int, CODES.findall(told)) if "Response" not in header.__name__ else ():
            for name, wire in zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True):
                is_told_of = name != "producer_group" or code == RequestCode.GET_PRODUCER_CONNECTION_LIST
                if name in DENIED and is_told_of and code in NAMED and code not in BY_THEIR_OWN:
                    yield code, name, wire


def let_in(client: RawClient) -> set[tuple[int, str]]:
    """The codes, with the field, by which an account uses what it is denied."""
    found = set()
    for code, name, wire in named_fields():
        value, told = DENIED[name]
        for account in ("stranger",) if name == "topic" else ("stranger", "curious"):
            if not refused(call(client, code, {wire: value}, account=account), told):
                found.add((code, name))
    return found


def test_every_field_that_names_a_topic_or_a_group_counts(broker: Broker, connect: Connect) -> None:
    assert let_in(connect(broker.address)) == set()
    replies = {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
    assert {code for code, _name, _wire in named_fields()} | BY_THEIR_OWN | replies == set(NAMED)


WRITING: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.RECALL_MESSAGE,
    }
)
"""What an account needs the right to publish for."""
MEASURING: Final = frozenset(
    {
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_TOPIC_CONFIG,
    }
)
"""What producers ask as well as consumers, so that either right is enough."""


def test_who_may_only_read_writes_nothing_and_who_may_only_write_reads_nothing(
    broker: Broker, connect: Connect
) -> None:
    client = connect(broker.address)
    for code, name, wire in named_fields():
        if name == "topic":
            for account, denied in (("readers", code in WRITING), ("writers", code not in WRITING | MEASURING)):
                answered = call(client, code, {wire: "open"}, account=account)
                assert refused(answered, "topic:open") == denied, (RequestCode(code).name, account)
