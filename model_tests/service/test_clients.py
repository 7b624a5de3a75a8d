"""What a client asks name server and broker first, and how members hear of changes in their group."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import msgspec
import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.tables.subscription import Clients
from longpoll_broker.service.admin import member_notices
from longpoll_broker.service.admin.member_notices import MemberNotices
from longpoll_broker.service.io.channel import Channel, Parts
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_message
from longpoll_protocol.codes import RequestCode
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
        {"cluster": "DefaultCluster", "brokerName": "broker-a", "brokerAddrs": {"0": "{}:{}".format(*broker.address)}}
    ]
    assert [(data["readQueueNums"], data["perm"]) for data in route["queueDatas"]] == [(4, 6)]


def test_the_name_server_refuses_what_it_does_not_know(start_broker: StartBroker, connect: Connect) -> None:
    names = connect(start_broker().name_server_address)
    assert names.call(9999, {}).code == 3
    assert names.call(ROUTE, {"topic": "TBW102"}).code == 0
    assert names.call(ROUTE, {}).code == 17


@pytest.mark.parametrize("ordinals", [False, True], ids=["java", "cpp"])
def test_members_of_a_group_are_listed_and_told(ordinals: bool, broker: Broker, connect: Connect) -> None:
    """The first heartbeat pushes 40 to the sender, the second client's to both; a leaver's to the rest."""
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
    """A pull without a subscription of its own uses the heartbeat's, tag and all."""
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
    broker = start_broker(config=BrokerConfig(property_filter=property_filter))
    client = connect(broker.address)
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
    notices = MemberNotices(clients, RealRuntime().lock())
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
    monkeypatch.setattr(member_notices, "NOTICES_MAX", NOTICES_MAX)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("few_notices")
def test_every_member_is_told_of_the_last_change(seed: int) -> None:
    """However its groups change during the rounds, and no pass writes more than its part."""
    churn(seed)


def changes(group: str, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    body = {"clientID": "x", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}]}
    joins: tuple[int, dict[str, str], bytes] = (RequestCode.HEART_BEAT.value, {}, msgspec.json.encode(body))
    leaves = (RequestCode.UNREGISTER_CLIENT.value, {"clientID": "x", "consumerGroup": group}, b"")
    return [joins, leaves] * count


def notices_of_a_burst(start_broker: StartBroker, connect: Connect) -> int:
    """How many notices a member gets of 100 joins and leaves that come in one piece."""
    broker = start_broker()
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
    """200 changes of a group that is too large to be told at once are a few notices a member, and at least one."""
    assert 1 <= notices_of_a_burst(start_broker, connect) <= 20


def test_a_small_group_is_told_of_each_change_as_java_does(start_broker: StartBroker, connect: Connect) -> None:
    """Which is also what the merging saves: each of the changes that a pass can tell is a notice."""
    assert notices_of_a_burst(start_broker, connect) > 20
