"""Clients at name server and broker: routes, heartbeats, members of a group, and what a broker passes on to them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
import pytest
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields, send_message
from model_tests.support.present import present
from model_tests.support.service import served

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Parts
from longpoll_broker.rocketmq.admin import client_calls, client_processor, lock_processor
from longpoll_broker.rocketmq.admin.client_processor import MemberNotifications
from longpoll_broker.shared.subscription import Clients
from longpoll_client import Listener, PullConsumer, PushConsumer, Retry
from longpoll_client.consume.broker_requests import read_reset
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import MessageQueue, decode_by_queue
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command, encode
from longpoll_protocol.message import message_id
from longpoll_protocol.properties import encode_properties
from longpoll_runtime.real import RealRuntime

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def heartbeat(client: RawClient, client_id: str, *, expression: str = "*", ordinals: bool = False) -> int:
    """A heartbeat as Java (names) or C++ (ordinals, versions as text) sends it; the reply's code."""
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "PG"}],
        "consumerDataSet": [
            {
                "groupName": "G",
                "consumeType": 1 if ordinals else "CONSUME_PASSIVELY",
                "messageModel": 1 if ordinals else "CLUSTERING",
                "consumeFromWhere": 0 if ordinals else "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [{"topic": "T", "subString": expression, "subVersion": "1" if ordinals else 1}],
            }
        ],
    }
    return client.call(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body)).code


def test_a_route_names_the_broker_and_its_queues(broker: Broker, connect: Connect) -> None:
    """TBW102 is there from the start, another topic once it is made; integer keys are quoted."""
    names, client = connect(broker.name_server_address), connect(broker.address)
    assert names.call(ROUTE, {"topic": "T"}).code == 17
    default = msgspec.json.decode(names.call(ROUTE, {"topic": "TBW102"}).body)
    assert default["queueDatas"][0]["perm"] == 7
    send_message(client, "T")
    route = msgspec.json.decode(names.call(ROUTE, {"topic": "T"}).body)
    assert route["brokerDatas"] == [
        {
            "cluster": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerAddrs": {"0": "{}:{}".format(*broker.address)},
            "enableActingMaster": False,
        }
    ]
    assert [(data["readQueueNums"], data["perm"]) for data in route["queueDatas"]] == [(4, 6)]


def test_the_name_server_refuses_what_it_does_not_know(start_broker: StartBroker, connect: Connect) -> None:
    names = connect(start_broker().name_server_address)
    assert (names.call(9999, {}).code, names.call(ROUTE, {"topic": "TBW102"}).code) == (3, 0)
    assert names.call(ROUTE, {}).code == 17


@pytest.mark.parametrize("ordinals", [False, True], ids=["java", "cpp"])
def test_members_of_a_group_are_listed_and_told(ordinals: bool, broker: Broker, connect: Connect) -> None:
    """Request 40 goes to all members after each join and leave."""
    first, second = connect(broker.address), connect(broker.address)
    members = {"consumerGroup": "G"}
    assert first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members).code == 1
    assert heartbeat(first, "c1", ordinals=ordinals) == 0
    assert first.wait_push().ext_fields == {"consumerGroup": "G"}
    assert heartbeat(second, "c2", ordinals=ordinals) == 0
    for client in (first, second):
        assert client.wait_push().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    listed = first.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)
    assert msgspec.json.decode(listed.body) == {"consumerIdList": ["c1", "c2"]}
    second.close()
    assert first.wait_push().code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert first.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "G"}).code == 0
    assert broker.shared.clients.group("G") is None


def test_a_heartbeat_makes_the_retry_topic_and_gives_the_subscription(client: RawClient) -> None:
    send_message(client, "T", properties="TAGS\x01a\x02")
    own = pull_fields("T", 0) | {"sysFlag": "0"}
    assert client.call(RequestCode.PULL_MESSAGE, own).code == 24
    assert heartbeat(client, "c1", expression="b") == 0
    assert client.call(RequestCode.PULL_MESSAGE, own).code == 20
    assert client.call(RequestCode.PULL_MESSAGE, own | {"subVersion": "2"}).code == 25
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("%RETRY%G", 0)).code == 19


@pytest.mark.parametrize(
    ("property_filter", "kind", "expression", "code"),
    [
        (True, "SQL92", "a > 3", 0),
        (True, "SQL92", "a >", 23),
        (True, "FOO", "a > 3", 23),
        (True, "TAG", "a >", 0),
        (False, "TAG", "a", 0),
        (False, "SQL92", "a > 3", 1),
    ],
)
def test_a_client_may_ask_whether_its_filter_will_do(
    *, property_filter: bool, kind: str, expression: str, code: int, start_broker: StartBroker, connect: Connect
) -> None:
    _broker, client = served(start_broker, connect, config=BrokerConfig(property_filter=property_filter))
    wanted = {"topic": "T", "subString": expression, "expressionType": kind}
    asked = {"clientId": "me", "group": "G", "subscriptionData": wanted}
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, {}, msgspec.json.encode(asked)).code == code
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, {}, b"{}").code == 0
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, {}).code == 0


NOTICES_MAX = 8
GROUPS = ("A", "B", "C")


class Told:
    """An outbox that counts what is written, and remembers when each connection was last told of each group."""

    def __init__(self) -> None:
        self.count = 0
        self.moment = 0
        self.last: dict[tuple[Hashable, str], int] = {}

    def write(self, channel: Channel, parts: Parts) -> None:
        self.count += 1
        content = b"".join(bytes(part) for part in parts)
        group = next(name for name in GROUPS if b'"%b"' % name.encode() in content)
        self.last[channel, group] = self.moment


def member() -> Channel:
    return Channel.__new__(Channel)


def join(clients: Clients, channel: Channel, group: str) -> None:
    """Have a connection be a member of a group."""
    clients.heartbeat(
        channel, "c", group, message_model="CLUSTERING", consume_type="CONSUME_PASSIVELY", subscriptions=None
    )


def churn(seed: int) -> None:
    """Let members come and go through many passes; fails when a pass writes too much or a member is not told."""
    draw, clients, told = random.Random(seed), Clients(), Told()
    outbox: Any = told
    notices = MemberNotifications(clients, RealRuntime().lock())
    changed_at: dict[str, int] = {}
    crowd = [member() for _ in range(40)]
    for _pass in range(60):
        before = told.count
        for _ in range(draw.randrange(12)):
            channel, group = draw.choice(crowd), draw.choice(GROUPS)
            live = clients.group(group)
            if live is not None and channel in live.members and draw.random() < 0.5:
                clients.unregister(channel, group)
            else:
                join(clients, channel, group)
            told.moment += 1
            changed_at[group] = told.moment
            notices.changed(group, outbox)
        notices.turn(outbox)
        assert told.count - before <= 2 * NOTICES_MAX, "a pass writes no more at once, and as many in rounds"
    while notices.has_more:
        notices.turn(outbox)
    for group, moment in changed_at.items():
        live = clients.group(group)
        for each in () if live is None else live.members:
            assert told.last[each, group] >= moment, f"seed {seed}: a member does not know of the last change"


@pytest.fixture
def few_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_processor, "NOTICES_MAX", NOTICES_MAX)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("few_notices")
def test_every_member_is_told_of_the_last_change(seed: int) -> None:
    churn(seed)


def changes(group: str, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    body = {"clientID": "x", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}]}
    joins: tuple[int, dict[str, str], bytes] = (RequestCode.HEART_BEAT.value, {}, msgspec.json.encode(body))
    leaves = (RequestCode.UNREGISTER_CLIENT.value, {"clientID": "x", "consumerGroup": group}, b"")
    return [joins, leaves] * count


def notices_of_a_burst(start_broker: StartBroker, connect: Connect) -> int:
    """How many notices a member gets of 100 joins and leaves that come in one piece."""
    runtime = RealRuntime()
    # No turn ends early because the machine is busy.
    runtime.monotonic_ns = lambda: 0
    broker = start_broker(runtime=runtime)
    members, restless = [connect(broker.address) for _ in range(NOTICES_MAX + 1)], connect(broker.address)
    for number, each in enumerate(members):
        body = {"clientID": f"c{number}", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
        assert each.call(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body)).code == 0
        each.wait_push()
    watched = members[0]
    wait_until(lambda: not broker.administering.clients.notices.has_more)
    watched.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    watched.pushes.clear()
    restless.send_bytes(b"".join(restless._request(*request)[1] for request in changes("G", 100)))
    assert restless.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}).code == 0
    wait_until(lambda: not broker.administering.clients.notices.has_more)
    listed = watched.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert len(msgspec.json.decode(listed.body)["consumerIdList"]) == len(members)
    return len(watched.pushes)


@pytest.mark.usefixtures("few_notices")
def test_a_burst_of_changes_is_told_together(start_broker: StartBroker, connect: Connect) -> None:
    """A large group gets a few notices for 200 changes."""
    assert 1 <= notices_of_a_burst(start_broker, connect) <= 20


def test_a_small_group_is_told_of_each_change_as_java_does(start_broker: StartBroker, connect: Connect) -> None:
    """Shows what merging notices saves."""
    assert notices_of_a_burst(start_broker, connect) > 20


QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
RESET = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
ASKED = {"consumerGroup": "G", "clientId": "here@1"}


def joined(client: RawClient, client_id: str = "here@1") -> RawClient:
    """The client as a member of group G."""
    consumer = {"groupName": "G", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
    assert client.call(RequestCode.HEART_BEAT, body=body).code == 0
    client.pushes.clear()
    return client


def one_queue(broker: Broker, client: RawClient, count: int) -> None:
    """Make topic T with one queue and so many messages."""
    made = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == 0
    for _ in range(count):
        send_message(client, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == count)


def commit(client: RawClient, offset: int) -> None:
    fields = {"topic": "T", "consumerGroup": "G", "queueId": "0", "commitOffset": str(offset)}
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def pushed(client: RawClient, code: int) -> Command:
    wait_until(lambda: bool(client.call(RequestCode.GET_BROKER_RUNTIME_INFO)) and bool(of_code(client, code)))
    return of_code(client, code)[0]


def of_code(client: RawClient, code: int) -> list[Command]:
    return [push for push in client.pushes if push.code == code]


def reply_to(client: RawClient, request: Command, body: bytes) -> None:
    command = Command(0, request.opaque, CommandFlag.RESPONSE.value, {"a": "b"}, body)
    client.send_bytes(b"".join(encode(command)))


def test_a_reply_goes_to_a_producer_and_to_no_consumer_of_the_same_name(broker: Broker, connect: Connect) -> None:
    replier, asker = connect(broker.address), connect(broker.address)
    joined(connect(broker.address))
    one_queue(broker, replier, 1)
    fields = send_fields("T", properties=encode_properties({"REPLY_TO_CLIENT": "here@1"}))
    refused = replier.call(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
    assert (refused.code, refused.remark) == (1, "push reply message fail, channel of <here@1> not found.")
    body = json.dumps({"clientID": "here@1", "producerDataSet": [{"groupName": "P"}]}).encode()
    assert asker.call(RequestCode.HEART_BEAT, body=body).code == 0
    opaque = replier.send(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"reply")
    request = pushed(asker, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert bytes(request.body) == b"reply"
    reply_to(asker, request, b"")
    assert replier.answer(opaque).code == 0


def test_a_member_is_asked_and_its_answer_passed_on(broker: Broker, connect: Connect) -> None:
    """The member does not see the caller's access key."""
    member, client = joined(connect(broker.address)), connect(broker.address)
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED | {"AccessKey": "secret", "Signature": "x"})
    request = pushed(member, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert request.ext_fields == ASKED | {"jstackEnable": "false"}
    reply_to(member, request, b"{}")
    reply_to(member, request, b"again")
    answer = client.answer(opaque)
    assert (answer.code, bytes(answer.body), answer.ext_fields) == (0, b"{}", {"a": "b"})
    assert client.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0


def test_a_message_is_taken_to_a_member(broker: Broker, connect: Connect) -> None:
    member, client = joined(connect(broker.address)), connect(broker.address)
    one_queue(broker, client, 1)
    opaque = client.send(RequestCode.CONSUME_MESSAGE_DIRECTLY, ASKED | {"msgId": message_id("127.0.0.1", 1, 0)})
    request = pushed(member, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    record = present(broker.store.record_at(0))
    assert bytes(request.body) == bytes(record)
    assert request.ext_fields is not None
    assert request.ext_fields["brokerName"] == "broker-a"
    reply_to(member, request, b"done")
    answer = client.answer(opaque)
    assert bytes(answer.body) == b"done"
    for msg_id in (message_id("127.0.0.1", 1, 7), "xyz"):
        assert client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, ASKED | {"msgId": msg_id}).code == 1


def test_who_cannot_be_asked_is_told_of(
    broker: Broker, client: RawClient, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member is absent, gone or silent, or too many calls wait."""
    absent = client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
    assert (absent.code, absent.remark) == (1, "The Consumer <G> <here@1> not online")
    member = joined(connect(broker.address))
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
    pushed(member, RequestCode.GET_CONSUMER_RUNNING_INFO)
    member.close()
    gone = client.answer(opaque)
    assert (gone.code, "closed the connection" in str(gone.remark)) == (1, True)
    joined(connect(broker.address))
    monkeypatch.setattr(client_calls, "CALL_MS_MAX", 0)
    late = client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
    assert (late.code, "no answer" in str(late.remark)) == (207, True)
    broker.administering.calls.quota.size_max = 0
    assert client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED).code == 2


def test_an_asker_that_goes_is_forgotten(broker: Broker, connect: Connect) -> None:
    member, asker = joined(connect(broker.address)), connect(broker.address)
    asker.send(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
    request = pushed(member, RequestCode.GET_CONSUMER_RUNNING_INFO)
    asker.close()
    calls = broker.handler.administering.calls
    wait_until(lambda: not calls.quota.used)
    reply_to(member, request, b"{}")
    assert member.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0


STATUS: Final = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
OF_GROUP: Final = {"topic": "T", "group": "G"}


def at(offset: object) -> bytes:
    """A member's answer to 221: it is at this offset of the one queue."""
    return b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:%s}}' % json.dumps(offset).encode()


def by_client(answer: Command | None) -> dict[str, object]:
    """The offset of the one queue by client, from the answer to 223."""
    assert answer is not None
    assert answer.code == 0, answer.remark
    head, tail = b'{"consumerTable":', b',"messageQueueTable":{}}'
    body = bytes(answer.body)
    assert body.startswith(head)
    assert body.endswith(tail)
    # The tables inside are no JSON: each by itself is.
    found = re.findall(rb'"([^"]+)":(\{(?:\{[^{}]*\}:\d+)?\})', body[len(head) : -len(tail)])
    tables = {name.decode(): decode_by_queue(b'{"t":' + table + b"}", "t") for name, table in found}
    return {name: table.get(QUEUE) for name, table in tables.items()}


def test_members_say_where_they_are(broker: Broker, client: RawClient, connect: Connect) -> None:
    """Request 223 asks all members, or the named one."""
    absent = client.call(STATUS, OF_GROUP)
    assert (absent.code, absent.remark) == (1, "No Any Consumer online in the consumer group: [G]")
    one, other = joined(connect(broker.address)), joined(connect(broker.address), "there@2")
    opaque = client.send(STATUS, OF_GROUP | {"AccessKey": "secret"})
    asked = [pushed(each, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT) for each in (one, other)]
    assert [each.ext_fields for each in asked] == [OF_GROUP, OF_GROUP]
    reply_to(one, asked[0], at(5))
    assert client.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    assert client.reply(opaque, 0) is None
    reply_to(other, asked[1], at(7))
    assert by_client(client.reply(opaque)) == {"here@1": 5, "there@2": 7}
    for each in (one, other):
        each.pushes.clear()
    opaque = client.send(STATUS, OF_GROUP | {"clientAddr": "there@2"})
    reply_to(other, pushed(other, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT), at(8))
    assert by_client(client.reply(opaque)) == {"there@2": 8}
    assert (one.call(RequestCode.GET_BROKER_RUNTIME_INFO).code, one.pushes) == (0, [])
    assert by_client(client.call(STATUS, OF_GROUP | {"clientAddr": "nobody"})) == {}


@pytest.mark.parametrize("how", ["gone", "silent", "not read", "no offset", "refused"])
def test_one_that_does_not_say_where_it_is_keeps_nobody_waiting(
    broker: Broker, client: RawClient, connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one, other = joined(connect(broker.address)), joined(connect(broker.address), "there@2")
    if how == "silent":
        monkeypatch.setattr(client_calls, "STATUS_MS_MAX", 0)
    opaque = client.send(STATUS, OF_GROUP)
    asked = [pushed(each, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT) for each in (one, other)]
    if how != "silent":
        reply_to(one, asked[0], at(5))
    if how == "gone":
        other.close()
    elif how == "not read":
        reply_to(other, asked[1], b"{")
    elif how == "no offset":
        reply_to(other, asked[1], at("five"))
    elif how == "refused":
        refused = Command(1, asked[1].opaque, CommandFlag.RESPONSE.value, {}, at(7))
        other.send_bytes(b"".join(encode(refused)))
    expected: dict[str, object] = {} if how == "silent" else {"here@1": 5}
    if how == "no offset":
        expected["there@2"] = None
    assert by_client(client.reply(opaque)) == expected
    assert not broker.handler.administering.calls.quota.used


def test_members_that_say_too_much_of_where_they_are(
    broker: Broker, client: RawClient, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error asks the caller to name one client."""
    one, other = joined(connect(broker.address)), joined(connect(broker.address), "there@2")
    monkeypatch.setattr(client_calls, "STATUS_SIZE_MAX", 2 * len(at(5)) - 1)
    opaque = client.send(STATUS, OF_GROUP)
    for each in (one, other):
        reply_to(each, pushed(each, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT), at(5))
    answer = client.answer(opaque)
    assert (answer.code, "ask one by its clientAddr" in str(answer.remark)) == (1, True)
    broker.administering.calls.quota.size_max = 1
    assert client.call(STATUS, OF_GROUP).code == 2
    assert not broker.handler.administering.calls.quota.used


def test_a_group_is_told_to_go_on_elsewhere(broker: Broker, client: RawClient, connect: Connect) -> None:
    """Request 222 sends 220 to each member; without force no offset moves forward."""
    assert client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"topic": "none"}).code == 1
    one_queue(broker, client, 3)
    assert client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 1
    commit(client, 2)
    assert client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 206
    member = joined(connect(broker.address))

    def offset(**fields: str) -> int:
        answer = client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET | fields)
        assert answer.code == 0
        notice = pushed(member, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        member.pushes.clear()
        assert notice.is_one_way
        assert decode_by_queue(notice.body, "offsetTable") == decode_by_queue(answer.body, "offsetTable")
        found: int = decode_by_queue(notice.body, "offsetTable")[QUEUE]
        return found

    assert (offset(), offset(timestamp="-1"), offset(timestamp="-1", isForce="false")) == (0, 3, 2)
    assert broker.offsets.query("T", "G", 0) == 2


def test_queues_are_assigned_to_members(
    broker: Broker, client: RawClient, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request 400, for 5.x clients that do not rebalance themselves."""
    queues = {"topic": "T", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, queues).code == 0
    names, members = connect(broker.name_server_address), [connect(broker.address) for _ in range(2)]
    table = {"topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}}
    other = {"brokerName": "other", "brokerAddr": "10.0.0.9:1", "clusterName": "C", "brokerId": "0", "haServerAddr": ""}
    body = json.dumps({"topicConfigSerializeWrapper": table}).encode()
    assert names.call(RequestCode.REGISTER_BROKER, other, body).code == 0
    for number, member in enumerate(members):
        joined(member, f"c@{number}")

    def assigned(client_id: str, **fields: str) -> list[tuple[str, int]] | int:
        asked = {"topic": "T", "consumerGroup": "G", "clientId": client_id, "strategyName": "AVG"}
        asked |= {"messageModel": "CLUSTERING"} | fields
        answer = client.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(asked).encode())
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
def test_one_queue_of_a_group_is_reset(broker: Broker, client: RawClient, connect: Connect, *, is_online: bool) -> None:
    """By `queueId`, as `resetOffsetByQueueId` of 5.x does; the others stay."""
    queues = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, queues).code == 0
    for queue_id in (0, 1):
        for _ in range(3):
            send_message(client, "T", queue_id=queue_id)
        broker.offsets.commit("T", "G", queue_id, 3)
    member = joined(connect(broker.address)) if is_online else None
    for fields, expected in (
        ({"queueId": "1"}, 0),
        ({"queueId": "1", "offset": "2"}, 2),
        ({"queueId": "1", "offset": "-1", "timestamp": "-1"}, 3),
        ({"queueId": "1", "offset": "4"}, None),
        ({"queueId": "2"}, None),
    ):
        answer = client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET | fields)
        assert answer.code == (1 if expected is None else 0), answer.remark
        if expected is None:
            continue
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
        assert decode_by_queue(answer.body, "offsetTable") == {queue: expected}
        if member is not None:
            notice = pushed(member, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
            member.pushes.clear()
            assert decode_by_queue(notice.body, "offsetTable") == {queue: expected}
        else:
            assert [broker.offsets.query("T", "G", queue_id) for queue_id in (0, 1)] == [3, expected]


def running(broker: Broker, listen: Listener, *, is_orderly: bool = False) -> PushConsumer:
    """A consumer of topic T in group G; `with` starts it."""
    config = MemberConfig(group="G", start_at="first", persist_s=0.05)
    return PushConsumer(
        "{}:{}".format(*broker.name_server_address),
        topics="T",
        listener=listen,
        **member_options(config),
        orderly=is_orderly,
    )


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_running_group_goes_on_from_where_it_is_told(broker: Broker, client: RawClient, is_orderly: bool) -> None:
    """The consumed messages come once more."""
    one_queue(broker, client, 5)
    got: list[int] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        got.extend(message.queue_offset for message in messages)
        return None

    with running(broker, listen, is_orderly=is_orderly):
        wait_until(lambda: len(got) == 5 and broker.offsets.query("T", "G", 0) == 5)
        assert client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 0
        wait_until(lambda: len(got) == 10 and broker.offsets.query("T", "G", 0) == 5)
        assert sorted(got) == sorted([*range(5), *range(5)])
        send_message(client, "T")
        wait_until(lambda: len(got) == 11)
        wait_until(lambda: list(by_client(client.call(STATUS, OF_GROUP)).values()) == [6])


def test_a_running_member_answers_for_itself(broker: Broker, client: RawClient) -> None:
    one_queue(broker, client, 2)
    got: list[int] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        got.extend(message.queue_offset for message in messages)
        return Retry() if len(got) > 3 else None

    with running(broker, listen):
        wait_until(lambda: len(got) == 2)
        asked = {"consumerGroup": "G", "clientId": broker.shared.clients.client_ids("G")[0]}
        info = client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
        assert info.code == 0
        assert decode_by_queue(info.body, "mqTable")[QUEUE]["droped"] is False
        fields = asked | {"msgId": message_id("127.0.0.1", 1, 0)}
        results = [client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields) for _ in range(2)]
        told = [json.loads(bytes(result.body))["consumeResult"] for result in results]
        assert (told, got[2:]) == (["CR_SUCCESS", "CR_LATER"], [0, 0])


def test_a_pull_consumer_goes_on_elsewhere_and_has_no_listener(broker: Broker, client: RawClient) -> None:
    one_queue(broker, client, 2)
    name_server = "{}:{}".format(*broker.name_server_address)
    with PullConsumer(name_server, group="G", topics="T") as consumer:
        got: list[int] = []

        def has(count: int) -> bool:
            got.extend(message.queue_offset for message in consumer.poll(0.1))
            return len(got) >= count

        wait_until(lambda: has(2))
        consumer.commit()
        asked = {"consumerGroup": "G", "clientId": broker.shared.clients.client_ids("G")[0]}
        refused = client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked | {"msgId": message_id("127.0.0.1", 1, 0)})
        assert (refused.code, "no listener" in str(refused.remark)) == (1, True)
        assert client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == 0
        wait_until(lambda: has(4))
        assert got == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("fields", "body", "words"),
    [
        ({"group": "other"}, b"", "is 'other', and this is 'G'"),
        ({}, b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-1}}', "no offset"),
        ({}, b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"5"}}', "no offset"),
        ({}, b"{", "cannot be read"),
    ],
)
def test_offsets_that_are_none_are_refused(fields: dict[str, str], body: bytes, words: str) -> None:
    with pytest.raises(HeaderError, match=words):
        read_reset(Command(220, 1, 2, RESET | fields, body), "G")
    right = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":0,"topic":"U"}:6}}'
    )
    assert list(read_reset(Command(220, 1, 2, RESET, right), "G").values()) == [5]
