"""Names of groups have a length everywhere, and what else each version does with groups, as its Java broker does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from model_tests.support.broker.brokers import Connect, StartBroker
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields, send_message
from model_tests.support.service import served

from longpoll_protocol.codes import RequestCode
from longpoll_spec.policy import preset

STRICT, OLD, NEW = "strict", "rocketmq-4.9", "rocketmq-5"
LONG = {STRICT: 256, OLD: 1_025, NEW: 256}
"""A name that is one too long."""


@pytest.fixture(params=LONG)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client_of(version: str, start_broker: StartBroker, connect: Connect) -> RawClient:
    """A connection to a broker of this version that has a topic."""
    client = connect(start_broker(policy=preset(version)).address)
    send_message(client, "T")
    return client


def make_group(client: RawClient, name: str) -> Any:
    body = msgspec.json.encode({"groupName": name})
    return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def commit(client: RawClient, group: str, topic: str = "T") -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "7"}
    return client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (b"null", {STRICT: 1, OLD: 0, NEW: 0}),
        (b"", {STRICT: 1, OLD: 1, NEW: 0}),
        (b"{}", {STRICT: 1, OLD: 1, NEW: 29}),
        (b"{", {STRICT: 1, OLD: 1, NEW: 1}),
    ],
)
def test_what_is_no_group_changes_nothing(
    version: str, start_broker: StartBroker, connect: Connect, body: bytes, codes: dict[str, int]
) -> None:
    broker = start_broker(policy=preset(version))
    before = dict(broker.groups.by_name)
    client = connect(broker.address)
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == codes[version]
    assert broker.groups.by_name == before


def test_a_group_name_that_is_too_long_is_refused(version: str, start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect, policy=preset(version))
    send_message(client, "T")
    for size in (LONG[version], 900_000):
        name = "g" * size
        made = make_group(client, name)
        assert made.code == (29 if version == NEW else 1)
        assert made.remark is not None
        assert len(made.remark) < 500
        assert commit(client, name) != 0
        assert client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, group=name)).code == 26
        back = {"offset": "0", "group": name, "delayLevel": "0"}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 26
    if version != NEW:
        assert commit(client, "G", "t" * 900_000) == 1
    assert all(len(name) < 256 for name in broker.groups.by_name)
    assert all(len(pair) < 512 for pair in broker.offsets.by_pair)


def test_only_4_9_takes_a_group_of_300_characters(version: str, start_broker: StartBroker, connect: Connect) -> None:
    client = connect(start_broker(policy=preset(version)).address)
    send_message(client, "T")
    assert (make_group(client, "g" * 300).code == 0) == (version == OLD)
    pulled = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, group="h" * 300)).code
    assert pulled in ({0, 19} if version == OLD else {26})  # what was sent may not be visible yet
    assert (make_group(client, "g" * 121).code == 0) == (version != NEW)
    assert (make_group(client, "a b").code == 0) == (version != NEW)
    pulled = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0, group="c d")).code
    assert pulled in ({26} if version == NEW else {0, 19})


@pytest.mark.parametrize("field", ["removeOffset", "cleanOffset"])
def test_a_group_goes_with_its_offsets(field: str, version: str, start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect, policy=preset(version))
    send_message(client, "T")
    for name in ("G", "GG"):
        assert make_group(client, name).code == 0
        assert commit(client, name) == 0
    asked = {"groupName": "G", field: "true"}
    assert client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, asked).code == 0
    own = {OLD: "removeOffset", NEW: "cleanOffset", STRICT: field}[version]
    assert broker.offsets.query("T", "G", 0) == (None if field == own else 7)
    assert broker.offsets.query("T", "GG", 0) == 7
    assert client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "GG"}).code == 0
    assert broker.offsets.query("T", "GG", 0) == 7


def test_a_client_on_two_connections_is_listed(version: str, start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(policy=preset(version))
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
    for client in (connect(broker.address), connect(broker.address)):
        assert client.call(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body)).code == 0
    listed = client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert msgspec.json.decode(listed.body)["consumerIdList"] == ["c"] * (1 if version == STRICT else 2)


@pytest.mark.parametrize(("unit", "flags"), [("true", (1, 2)), ("false", (0, 0))])
def test_the_flag_of_a_unit(unit: str, flags: tuple[int, int], start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect)
    for topic, flag in zip(("New", "%RETRY%G"), flags, strict=True):
        assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic) | {"k": unit}, b"x").code == 0
        assert broker.topics.by_name[topic].topic_sys_flag == flag
