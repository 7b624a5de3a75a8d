"""Name server and clients: what a real client asks before its first pull."""

from __future__ import annotations

import msgspec
import pytest

from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_message
from longpoll_protocol.codes import RequestCode

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
                "subscriptionDataSet": [
                    {"topic": "T", "subString": expression, "subVersion": "1" if ordinals else 1},
                ],
            }
        ],
    }
    return client.call(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body)).code


def test_a_route_names_the_broker_and_its_queues(start_broker: StartBroker, connect: Connect) -> None:
    """TBW102 is there from the start, another topic once it is made; integer keys are quoted."""
    broker = start_broker()
    names, client = connect(broker.name_server_address), connect(broker.address)
    unknown = names.call(ROUTE, {"topic": "T"})
    assert unknown.code == 17
    default = msgspec.json.decode(names.call(ROUTE, {"topic": "TBW102"}).body)
    assert default["queueDatas"][0]["perm"] == 7
    send_message(client, "T")
    route = msgspec.json.decode(names.call(ROUTE, {"topic": "T"}).body)
    assert route["brokerDatas"] == [
        {
            "cluster": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerAddrs": {"0": "{}:{}".format(*broker.address)},
        }
    ]
    assert [(data["readQueueNums"], data["perm"]) for data in route["queueDatas"]] == [(4, 6)]


def test_the_name_server_refuses_what_it_does_not_know(start_broker: StartBroker, connect: Connect) -> None:
    """With 3, a route of no topic with 17, and goes on."""
    names = connect(start_broker().name_server_address)
    assert names.call(9999, {}).code == 3
    assert names.call(ROUTE, {"topic": "TBW102"}).code == 0
    assert names.call(ROUTE, {}).code == 17


@pytest.mark.parametrize("ordinals", [False, True], ids=["java", "cpp"])
def test_members_of_a_group_are_listed_and_told(ordinals: bool, start_broker: StartBroker, connect: Connect) -> None:
    """The first heartbeat pushes 40 to the sender, the second client's to both; a leaver's to the rest."""
    broker = start_broker()
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


def test_a_heartbeat_makes_the_retry_topic_and_gives_the_subscription(
    start_broker: StartBroker, connect: Connect
) -> None:
    """A pull without a subscription of its own uses the heartbeat's, tag and all."""
    broker = start_broker()
    client = connect(broker.address)
    send_message(client, "T", properties="TAGS\x01a\x02")
    own = pull_fields("T", 0) | {"sysFlag": "0"}
    assert client.call(RequestCode.PULL_MESSAGE, own).code == 24
    assert heartbeat(client, "c1", expression="b") == 0
    assert client.call(RequestCode.PULL_MESSAGE, own).code == 20
    assert client.call(RequestCode.PULL_MESSAGE, own | {"subVersion": "2"}).code == 25
    retry = client.call(RequestCode.PULL_MESSAGE, pull_fields("%RETRY%G", 0))
    assert retry.code == 19


def test_a_client_that_vanishes_leaves_its_group(start_broker: StartBroker, connect: Connect) -> None:
    """Its channel's end is noticed without a word from it."""
    broker = start_broker()
    client = connect(broker.address)
    heartbeat(client, "c1")
    assert broker.shared.clients.group("G") is not None
    client.close()
    wait_until(lambda: broker.shared.clients.group("G") is None)


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
    """46 says before the first pull what the pull would meet."""
    broker = start_broker(config=BrokerConfig(property_filter=property_filter))
    client = connect(broker.address)
    wanted = {"topic": "T", "subString": expression, "expressionType": kind}
    asked = {"clientId": "me", "group": "G", "subscriptionData": wanted}
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, {}, msgspec.json.encode(asked)).code == code
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, {}, b"{}").code == 0
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, {}).code == 0
