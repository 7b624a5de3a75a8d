"""Clients at name server and broker: routes, heartbeats, groups, and requests that the broker forwards."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Hashable
from typing import Any, Final

import pytest
from model_tests.support.broker.brokers import Brokers, wait_until, wait_visible
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import RawClient, heartbeat_of, send_fields, send_message
from model_tests.support.present import present

from longpoll_broker.broker import Broker
from longpoll_broker.io.channel import Channel, Parts
from longpoll_broker.rocketmq.admin import client_calls, client_processor, lock_processor
from longpoll_broker.rocketmq.admin.client_processor import MemberNotifications
from longpoll_broker.shared.subscription import Clients
from longpoll_client import Listener, PushConsumer
from longpoll_client.consume.broker_requests import read_reset
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import MessageQueue, decode_by_queue
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.message import message_id
from longpoll_protocol.properties import encode_properties
from longpoll_runtime.real import RealRuntime

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


NOTICES_MAX = 8
GROUPS = ("A", "B", "C")


class Told:
    def __init__(self) -> None:
        self.count = 0
        self.moment = 0
        self.last: dict[tuple[Hashable, str], int] = {}

    def write(self, channel: Channel, parts: Parts) -> None:
        self.count += 1
        content = b"".join(bytes(part) for part in parts)
        group = next(name for name in GROUPS if b'"%b"' % name.encode() in content)
        self.last[channel, group] = self.moment


@pytest.fixture
def few_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_processor, "NOTICES_MAX", NOTICES_MAX)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("few_notices")
def test_every_member_is_notified_of_the_last_change(seed: int) -> None:
    """After members join and leave, each member was notified of the last change, a few at a time."""
    draw, clients, told = random.Random(seed), Clients(), Told()
    outbox: Any = told
    notices = MemberNotifications(clients, RealRuntime().lock())
    changed_at: dict[str, int] = {}
    crowd = [Channel.__new__(Channel) for _ in range(40)]
    for _pass in range(60):
        before = told.count
        for _ in range(draw.randrange(12)):
            channel, group = draw.choice(crowd), draw.choice(GROUPS)
            live = clients.group(group)
            if live is not None and channel in live.members and draw.random() < 0.5:
                clients.unregister(channel, group)
            else:
                kind = {"message_model": "CLUSTERING", "consume_type": "CONSUME_PASSIVELY"}
                clients.heartbeat(channel, "c", group, **kind, subscriptions=None)
            told.moment += 1
            changed_at[group] = told.moment
            notices.changed(group, outbox)
        notices.turn(outbox)
        assert told.count - before <= 2 * NOTICES_MAX, "a pass writes a limited number of notices, in rounds"
    while notices.has_more:
        notices.turn(outbox)
    for group, moment in changed_at.items():
        live = clients.group(group)
        for each in () if live is None else live.members:
            assert told.last[each, group] >= moment


def notices_of_a_burst(brokers: Brokers) -> int:
    runtime = RealRuntime()
    # With a clock that stands still, no work exceeds its time limit, so a busy machine does not change the result.
    runtime.monotonic_ns = lambda: 0
    broker = brokers.start(runtime=runtime)
    members, restless = [brokers.connect(broker) for _ in range(NOTICES_MAX + 1)], brokers.connect(broker)
    for number, each in enumerate(members):
        assert each.beat(f"c{number}", consumers={"G": []}).code == 0
        each.wait_push()
    watched = members[0]
    wait_until(lambda: not broker.administering.clients.notices.has_more)
    watched.told(MEMBERS, consumerGroup="G")
    watched.pushes.clear()
    joins = restless._request(RequestCode.HEART_BEAT, {}, heartbeat_of("x", (), {"G": []}))
    leaves = restless._request(RequestCode.UNREGISTER_CLIENT, {"clientID": "x", "consumerGroup": "G"}, b"")
    restless.send_bytes((joins[1] + leaves[1]) * 100)
    restless.told(MEMBERS, consumerGroup="G")
    wait_until(lambda: not broker.administering.clients.notices.has_more)
    assert len(watched.told(MEMBERS, consumerGroup="G")["consumerIdList"]) == len(members)
    return len(watched.pushes)


@pytest.mark.usefixtures("few_notices")
def test_many_changes_cause_few_notices(brokers: Brokers) -> None:
    """A large group gets only a few notifications for 200 membership changes."""
    assert 1 <= notices_of_a_burst(brokers) <= 20


QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
RESET = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
ASKED = {"consumerGroup": "G", "clientId": "here@1"}


INFO, DIRECTLY = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY


@pytest.fixture
def member(broker: Broker, brokers: Brokers) -> RawClient:
    return joined(brokers.connect(broker))


def joined(client: RawClient, client_id: str = "here@1") -> RawClient:
    assert client.beat(client_id, consumers={"G": ["T"]}).code == 0
    client.pushes.clear()
    return client


def one_queue(broker: Broker, client: RawClient, count: int) -> None:
    client.create_topic("T")
    for _ in range(count):
        send_message(client, "T")
    wait_visible(broker, "T", count)


def test_a_reply_goes_to_a_producer_and_to_no_consumer_of_the_same_name(
    broker: Broker, member: RawClient, brokers: Brokers
) -> None:
    replier, asker = brokers.connect(broker), brokers.connect(broker)
    one_queue(broker, replier, 1)
    fields = send_fields("T", properties=encode_properties({"REPLY_TO_CLIENT": "here@1"}))
    refused = replier.call(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
    assert (refused.code, refused.remark) == (1, "push reply message fail, channel of <here@1> not found.")
    assert asker.beat("here@1", producers=["P"]).code == 0
    opaque = replier.send(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
    request = asker.pushed(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert bytes(request.body) == b"reply"
    asker.reply_to(request)
    assert replier.answer(opaque).code == 0


def test_a_message_is_forwarded_to_a_member(broker: Broker, client: RawClient, member: RawClient) -> None:
    one_queue(broker, client, 1)
    opaque = client.send(DIRECTLY, ASKED | {"msgId": message_id("127.0.0.1", 1, 0)})
    request = member.pushed(DIRECTLY)
    assert bytes(request.body) == bytes(present(broker.store.record_at(0)))
    assert present(request.ext_fields)["brokerName"] == "broker-a"
    member.reply_to(request, b"done")
    assert bytes(client.answer(opaque).body) == b"done"
    for msg_id in (message_id("127.0.0.1", 1, 7), "xyz"):
        assert client.call(DIRECTLY, ASKED | {"msgId": msg_id}).code == 1


def test_an_unreachable_member_is_reported(
    broker: Broker, client: RawClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that the member is absent, disconnected or does not answer, or that too many calls wait."""
    absent = client.call(INFO, ASKED)
    assert (absent.code, absent.remark) == (1, "The Consumer <G> <here@1> not online")
    member = joined(brokers.connect(broker))
    opaque = client.send(INFO, ASKED)
    member.pushed(INFO)
    member.close()
    gone = client.answer(opaque)
    assert (gone.code, "closed the connection" in str(gone.remark)) == (1, True)
    joined(brokers.connect(broker))
    monkeypatch.setattr(client_calls, "CALL_MS_MAX", 0)
    late = client.call(INFO, ASKED)
    assert (late.code, "no answer" in str(late.remark)) == (207, True)
    broker.administering.calls.quota.size_max = 0
    assert client.call(INFO, ASKED).code == 2


STATUS, WHERE = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
SET: Final = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
OF_GROUP: Final = {"topic": "T", "group": "G"}


def at(offset: object) -> bytes:
    return b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:%s}}' % json.dumps(offset).encode()


def by_client(answer: Command) -> dict[str, object]:
    """Maps each client to its offset of the single queue, from the answer to a status request (223)."""
    assert answer.code == 0, answer.remark
    head, tail = b'{"consumerTable":', b',"messageQueueTable":{}}'
    body = bytes(answer.body)
    assert body.startswith(head)
    assert body.endswith(tail)
    # The nested tables as a whole are not valid JSON, but each table alone is.
    found = re.findall(rb'"([^"]+)":(\{(?:\{[^{}]*\}:\d+)?\})', body[len(head) : -len(tail)])
    tables = {name.decode(): decode_by_queue(b'{"t":' + table + b"}", "t") for name, table in found}
    return {name: table.get(QUEUE) for name, table in tables.items()}


@pytest.fixture
def other(broker: Broker, member: RawClient, brokers: Brokers) -> RawClient:
    return joined(brokers.connect(broker), "there@2")


def test_a_group_without_members_has_no_status(client: RawClient) -> None:
    absent = client.call(STATUS, OF_GROUP)
    assert (absent.code, absent.remark) == (1, "No Any Consumer online in the consumer group: [G]")


def test_members_report_their_offsets(client: RawClient, member: RawClient, other: RawClient) -> None:
    """A query of the consumer status (223) is sent to all members of the group, or only to the member that it names."""
    opaque = client.send(STATUS, OF_GROUP | {"AccessKey": "secret"})
    asked = [each.pushed(WHERE) for each in (member, other)]
    assert [each.ext_fields for each in asked] == [OF_GROUP, OF_GROUP]
    member.reply_to(asked[0], at(5))
    assert client.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    assert client.reply(opaque, 0) is None
    other.reply_to(asked[1], at(7))
    assert by_client(client.answer(opaque)) == {"here@1": 5, "there@2": 7}
    for each in (member, other):
        each.pushes.clear()
    opaque = client.send(STATUS, OF_GROUP | {"clientAddr": "there@2"})
    other.reply_to(other.pushed(WHERE), at(8))
    assert by_client(client.answer(opaque)) == {"there@2": 8}
    assert (member.call(RequestCode.GET_BROKER_RUNTIME_INFO).code, member.pushes) == (0, [])
    assert by_client(client.call(STATUS, OF_GROUP | {"clientAddr": "nobody"})) == {}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("gone", {"here@1": 5}),
        ("silent", {}),
        ("not read", {"here@1": 5}),
        ("no offset", {"here@1": 5, "there@2": None}),
        ("refused", {"here@1": 5}),
    ],
)
def test_a_silent_member_does_not_delay_the_answer(
    client: RawClient,
    member: RawClient,
    other: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    *,
    how: str,
    expected: object,
) -> None:
    if how == "silent":
        monkeypatch.setattr(client_calls, "STATUS_MS_MAX", 0)
    opaque = client.send(STATUS, OF_GROUP)
    asked = [each.pushed(WHERE) for each in (member, other)]
    if how != "silent":
        member.reply_to(asked[0], at(5))
    if how == "gone":
        other.close()
    elif how == "refused":
        other.reply_to(asked[1], at(7), code=1)
    elif how != "silent":
        other.reply_to(asked[1], b"{" if how == "not read" else at("five"))
    assert by_client(client.answer(opaque)) == expected


def test_too_large_answers_of_members_are_an_error(
    broker: Broker, client: RawClient, member: RawClient, other: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the members' answers are too large together, the error asks the caller to name one client."""
    monkeypatch.setattr(client_calls, "STATUS_SIZE_MAX", 2 * len(at(5)) - 1)
    opaque = client.send(STATUS, OF_GROUP)
    for each in (member, other):
        each.reply_to(each.pushed(WHERE), at(5))
    answer = client.answer(opaque)
    assert (answer.code, "ask one by its clientAddr" in str(answer.remark)) == (1, True)
    broker.administering.calls.quota.size_max = 1
    assert client.call(STATUS, OF_GROUP).code == 2
    assert not broker.administering.calls.quota.used


def test_a_groups_members_are_reset_to_other_offsets(broker: Broker, client: RawClient, brokers: Brokers) -> None:
    """A reset (222) sends RESET_CONSUMER_CLIENT_OFFSET (220) to each member; without force no offset moves forward."""
    assert client.call(SET, RESET | {"topic": "none"}).code == 1
    one_queue(broker, client, 3)
    assert client.call(SET, RESET).code == 1
    client.commit("T", "G", 2)
    assert client.call(SET, RESET).code == 206
    member = joined(brokers.connect(broker))

    def offset(**fields: str) -> int:
        answer = client.call(SET, RESET | fields)
        assert answer.code == 0
        notice = member.pushed(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        assert notice.is_one_way
        assert decode_by_queue(notice.body, "offsetTable") == decode_by_queue(answer.body, "offsetTable")
        found: int = decode_by_queue(notice.body, "offsetTable")[QUEUE]
        return found

    assert (offset(), offset(timestamp="-1"), offset(timestamp="-1", isForce="false")) == (0, 3, 2)
    assert broker.offsets.query("T", "G", 0) == 2


def test_queues_are_assigned_to_members(
    broker: Broker, client: RawClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QUERY_ASSIGNMENT (400) assigns queues to 5.x clients that do not rebalance themselves."""
    client.create_topic("T", 3)
    table = {"topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}}
    other = {"brokerName": "other", "brokerAddr": "10.0.0.9:1", "clusterName": "C", "brokerId": "0", "haServerAddr": ""}
    body = json.dumps({"topicConfigSerializeWrapper": table}).encode()
    assert brokers.names(broker).call(RequestCode.REGISTER_BROKER, other, body).code == 0
    for number in range(2):
        joined(brokers.connect(broker), f"c@{number}")

    def assigned(client_id: str, **fields: str) -> list[tuple[str, int]] | int:
        asked = {"topic": "T", "consumerGroup": "G", "clientId": client_id, "strategyName": "AVG"}
        asked |= {"messageModel": "CLUSTERING"} | fields
        answer = client.ask(RequestCode.QUERY_ASSIGNMENT, json.dumps(asked).encode())
        if answer.code != 0:
            return answer.code
        rows = json.loads(bytes(answer.body))["messageQueueAssignments"]
        assert {row["mode"] for row in rows} <= {"PULL"}
        return [(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"]) for row in rows]

    everything = [("broker-a", 0), ("broker-a", 1), ("broker-a", 2), ("other", 0), ("other", 1)]
    assert [assigned("c@0"), assigned("c@1"), assigned("unknown")] == [everything[:3], everything[3:], []]
    assert [assigned("c@1", strategyName="AVG_BY_CIRCLE")] == [everything[1::2]]
    assert assigned("unknown", messageModel="BROADCASTING") == everything
    assert (assigned("c@0", topic="none"), assigned("c@0", strategyName="odd")) == ([], 1)
    monkeypatch.setattr(lock_processor, "TOLD_QUEUE_COUNT_MAX", 4)
    assert assigned("c@0") == 1


@pytest.mark.parametrize("is_online", [True, False])
def test_one_queue_of_a_group_is_reset(broker: Broker, client: RawClient, brokers: Brokers, *, is_online: bool) -> None:
    """If the request has a `queueId`, as in 5.x's `resetOffsetByQueueId`, only the offset of this queue is reset."""
    client.create_topic("T", 2)
    for queue_id in (0, 0, 0, 1, 1, 1):
        send_message(client, "T", queue_id=queue_id)
        broker.offsets.commit("T", "G", queue_id, 3)
    member = joined(brokers.connect(broker)) if is_online else None
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
    for fields, expected in (
        ({"queueId": "1"}, 0),
        ({"queueId": "1", "offset": "2"}, 2),
        ({"queueId": "1", "offset": "-1", "timestamp": "-1"}, 3),
        ({"queueId": "1", "offset": "4"}, None),
        ({"queueId": "2"}, None),
    ):
        answer = client.call(SET, RESET | fields)
        assert answer.code == (1 if expected is None else 0), answer.remark
        if expected is None:
            continue
        assert decode_by_queue(answer.body, "offsetTable") == {queue: expected}
        if member is not None:
            notice = member.pushed(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
            assert decode_by_queue(notice.body, "offsetTable") == {queue: expected}
        else:
            assert [broker.offsets.query("T", "G", queue_id) for queue_id in (0, 1)] == [3, expected]


def running(broker: Broker, listen: Listener, *, is_orderly: bool = False) -> PushConsumer:
    config = MemberConfig(group="G", start_at="first", persist_s=0.05)
    return PushConsumer(
        "{}:{}".format(*broker.name_server_address),
        topics="T",
        listener=listen,
        **member_options(config),
        orderly=is_orderly,
    )


@pytest.mark.parametrize(
    ("fields", "body", "words"),
    [
        ({"group": "other"}, b"", "is 'other', and this is 'G'"),
        ({}, b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-1}}', "no offset"),
        ({}, b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"5"}}', "no offset"),
        ({}, b"{", "cannot be read"),
    ],
)
def test_invalid_reset_offsets_are_refused(fields: dict[str, str], body: bytes, words: str) -> None:
    with pytest.raises(HeaderError, match=words):
        read_reset(Command(220, 1, 2, RESET | fields, body), "G")
    right = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":0,"topic":"U"}:6}}'
    )
    assert list(read_reset(Command(220, 1, 2, RESET, right), "G").values()) == [5]
