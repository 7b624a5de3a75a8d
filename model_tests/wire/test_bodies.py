"""JSON bodies as Java, C++ and fastjson write them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_protocol import bodies
from longpoll_protocol.bodies import (
    BODY_SIZE_MAX,
    ITEM_COUNT_MAX,
    VALUE_COUNT_MAX,
    ConsumeFromWhere,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageModel,
    MessageQueue,
    RegisterBody,
    TopicRouteData,
    load_json,
)
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Buffer

JAVA_HEARTBEAT = b"""{"clientID":"127.0.0.1@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",
"consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING","subscriptionDataSet":[
{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1700000000000,
"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"producerDataSet":[{"groupName":"P"}]}"""
CPP_HEARTBEAT = b"""{"clientID":"127.0.0.1@1","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"G",
"messageModel":1,"subscriptionDataSet":[{"subString":"TagA","subVersion":"1700000000000","topic":"T","codeSet":null}]}],
"producerDataSet":[{"groupName":"P"}]}"""


def test_names_and_ordinals_mean_the_same() -> None:
    """A Java and a C++ heartbeat of the same consumer differ only in fields that C++ leaves out."""
    java, cpp = (HeartbeatData.decode(raw).consumer_data_set[0] for raw in (JAVA_HEARTBEAT, CPP_HEARTBEAT))
    assert java.consume_type is cpp.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert java.message_model is cpp.message_model is MessageModel.CLUSTERING
    assert java.consume_from_where is cpp.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert java.subscription_data_set[0].sub_version == cpp.subscription_data_set[0].sub_version == 1_700_000_000_000
    assert java.subscription_data_set[0].tags_set == {"TagA"}
    assert cpp.subscription_data_set[0].tags_set == frozenset()


def test_bodies_are_read_back() -> None:
    heartbeat = HeartbeatData.decode(JAVA_HEARTBEAT)
    assert HeartbeatData.decode(heartbeat.encode()) == heartbeat
    queue = MessageQueue(topic="T", broker_name="b", queue_id=3)
    locked = LockBatchResponse(lock_ok_mq_set=[queue])
    assert json.loads(locked.encode()) == {"lockOKMQSet": [{"topic": "T", "brokerName": "b", "queueId": 3}]}
    assert LockBatchResponse.decode(locked.encode()) == locked
    request = LockBatchRequest(consumer_group="g", client_id="c", mq_set=[queue])
    assert LockBatchRequest.decode(request.encode()) == request


def test_a_route_with_bare_keys() -> None:
    """Integer keys of fastjson have no quotes. Braces and digits within strings stay unchanged."""
    raw = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911", 1 :"{5:6},7:\\"8:"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":8,"topicSynFlag":0,'
        b'"writeQueueNums":8}],"orderTopicConf":null}'
    )
    route = TopicRouteData.decode(raw)
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911", 1: '{5:6},7:"8:'}
    assert json.loads(route.encode())["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911", "1": '{5:6},7:"8:'}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["{1:2}", '"3:', "\\"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_proper_json_is_untouched(value: Any) -> None:
    """Text inside a string that looks like a bare key is not changed."""
    found = load_json(json.dumps(value).encode())
    assert found == value


@given(st.dictionaries(st.integers(-(2**60), 2**60), st.text(), min_size=1))
def test_bare_keys_become_quoted_ones(table: dict[int, str]) -> None:
    raw = "{" + ",".join(f"{key}:{json.dumps(value)}" for key, value in table.items()) + "}"
    assert load_json(raw.encode()) == {str(key): value for key, value in table.items()}


@given(st.sampled_from([HeartbeatData, TopicRouteData, ConsumerList, LockBatchRequest]), st.binary(max_size=100))
def test_any_bytes_are_a_body_or_a_header_error(cls: type[bodies.Body], raw: bytes) -> None:
    try:
        found = cls.decode(raw)
    except HeaderError:
        return
    assert isinstance(found, cls)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"consumerDataSet":[{"groupName":"g","consumeType":9}]}',
        b'{"consumerDataSet":[{"groupName":"g","consumeType":"EAT"}]}',
        b'{"consumerDataSet":[{}]}',
        b'{"consumerDataSet":7}',
        b'{"clientID":"\xff"}',
        b'{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","expressionType":"%s"}]}]}'
        % (b"x" * 256),
        # Numbers beyond Java's int that differ by 2**61 - 1 have equal hashes, so a set of them is slow.
        b'{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","codeSet":[%d]}]}]}' % (2**61 - 1),
    ],
)
def test_a_wrong_body_is_a_header_error(raw: bytes) -> None:
    with pytest.raises(HeaderError, match="cannot be read"):
        HeartbeatData.decode(raw)


def test_the_limits_of_a_body() -> None:
    """A body at the limit of items or size is read, and a body above the limit is refused."""
    item = '{"groupName":"g"}'
    for count in (ITEM_COUNT_MAX, ITEM_COUNT_MAX + 1):
        raw = f'{{"producerDataSet":[{",".join([item] * count)}]}}'.encode()
        if count == ITEM_COUNT_MAX:
            assert len(HeartbeatData.decode(raw).producer_data_set) == count
        else:
            with pytest.raises(HeaderError):
                HeartbeatData.decode(raw)
    values = b'{"x":[1%s]}'
    assert HeartbeatData.decode(values % (b",1" * VALUE_COUNT_MAX)) == HeartbeatData()
    with pytest.raises(HeaderError, match="over 100000 values"):
        HeartbeatData.decode(values % (b",1" * (VALUE_COUNT_MAX + 1)))
    empty = b"{}"
    assert HeartbeatData.decode(empty + b" " * (BODY_SIZE_MAX - 2)) == HeartbeatData()
    with pytest.raises(HeaderError, match="over the limit"):
        HeartbeatData.decode(empty + b" " * (BODY_SIZE_MAX - 1))


@pytest.mark.parametrize("pattern", [bodies._STRING_OR_BARE_KEY, bodies._STRING_OR_KEY])
@pytest.mark.parametrize("end", [b"", b"\\", b'\\"', b" {1:2}"])
def test_an_unterminated_string_is_parsed_once(pattern: re.Pattern[bytes], end: bytes) -> None:
    """The first match covers the whole text, so the later quotes are not tried as beginnings of strings."""
    text = b'"' + b'\\"' * 1000 + end
    assert [found.span() for found in pattern.finditer(text)] == [(0, len(text))]


def test_a_large_body_is_read_unchanged_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking each value of 4 MiB takes half a second, so only small bodies are repaired."""
    looked: list[Buffer] = []
    load = bodies.load_json

    def noted(body: Buffer) -> Any:
        looked.append(body)
        return load(body)

    monkeypatch.setattr(bodies, "load_json", noted)
    plain, null = b'{"clientID":"c"}', b'{"clientID":"c","consumerDataSet":null}'
    ordinal = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1}]}'
    assert (HeartbeatData.decode(plain).client_id, looked) == ("c", [])
    for body in (null, ordinal):
        assert HeartbeatData.decode(body).client_id == "c"
    assert len(looked) == 2
    rows = b'{"T":{"perm":null,"order":true}}'
    within = RegisterBody.decode(b'{"topicConfigSerializeWrapper":{"topicConfigTable":' + rows + b"}}")
    assert within.topic_config_serialize_wrapper.topic_config_table == {"T": {"order": True}}
    looked.pop()
    monkeypatch.setattr(bodies, "KIND_SIZE_MAX", len(plain) - 1)
    assert HeartbeatData.decode(plain).client_id == "c"
    for body in (null, ordinal, b"{" * 100, b'{"clientID":1}' + b" " * 10):
        with pytest.raises(HeaderError, match="cannot be read"):
            HeartbeatData.decode(body)
    assert len(looked) == 2
