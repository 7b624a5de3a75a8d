"""Other brokers at our name server: how they register, appear in routes, are refused and expire."""

from __future__ import annotations

import json
import socket
import tracemalloc
import zlib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from attrs import evolve
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until
from model_tests.support.broker.raw_client import RawClient, send_fields, send_message
from model_tests.support.broker.stores import result_of
from model_tests.support.present import present
from model_tests.support.service import Box, decoded, reasons

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.rocketmq.accounts.access import NAME_SERVER_ADMIN_CODES
from longpoll_broker.rocketmq.name_server import name_server, routes
from longpoll_broker.rocketmq.name_server.name_server import NameServer, OwnBroker, topic_names
from longpoll_broker.rocketmq.name_server.routes import RegisteredBroker, Routes
from longpoll_broker.shared.topics import TopicConfig, Topics
from longpoll_client import Credentials
from longpoll_protocol.bodies import BODY_SIZE_MAX, ConsumerData, HeartbeatData, SubscriptionData, TopicList
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime import Address
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

ADDRESS = "10.0.0.9:10911"


def header(name: str = "other", broker_id: int = 0, address: str = ADDRESS, **more: str) -> dict[str, str]:
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": "C", "haServerAddr": "10.0.0.9:10912"}
    return fields | {"brokerId": str(broker_id)} | more


def table(*topics: str, counter: int = 1) -> bytes:
    rows = {name: {"topicName": name, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6} for name in topics}
    version = {"counter": counter, "timestamp": 7, "stateVersion": 0}
    return json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": rows, "dataVersion": version}}).encode()


def register(client: RawClient, body: bytes, **fields: Any) -> int:
    return client.call(RequestCode.REGISTER_BROKER, header(**fields), body).code


def route(client: RawClient, topic: str) -> dict[str, Any]:
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return dict(json.loads(bytes(answer.body))) if answer.code == 0 else {}


def test_a_broker_is_registered_and_unregistered(broker: Broker, brokers: Brokers) -> None:
    client = brokers.names(broker)
    registrar = brokers.names(broker)
    body = table("T", "../x")
    # CRC-32 without its top bit, as Java computes it.
    assert register(registrar, body, bodyCrc32=str(zlib.crc32(body) & 0x7FFFFFFF)) == 0
    found = route(client, "T")
    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": ADDRESS}
    assert (found["queueDatas"][0]["readQueueNums"], found["queueDatas"][0]["writeQueueNums"]) == (3, 2)
    listed = json.loads(bytes(client.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body))["topicList"]
    assert "T" in listed
    assert "../x" not in listed
    cluster = json.loads(bytes(client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body))
    assert cluster["clusterAddrTable"]["C"] == ["other"]
    assert client.call(RequestCode.UNREGISTER_BROKER, header()).code == 0
    assert (route(client, "T"), register(registrar, table("T"))) == ({}, 0)
    registrar.close()
    wait_until(lambda: route(client, "T") == {})


WHOLE = ("SELF_TEST_TOPIC", "A")
"""The topics of a complete registration; every broker has SELF_TEST_TOPIC."""


@pytest.mark.parametrize(
    ("told", "asked", "changed"),
    [
        ([], 1, "true"),
        ([(WHOLE, 1)], 1, "false"),
        ([(("other", "A"), 1)], 1, "false"),
        ([(WHOLE, 1)], 2, "true"),
        # The name server has lost the table in a restart, and the broker sends only the table's changes.
        ([(("D",), 7)], 7, "true"),
        ([(("D",), 7), (("E",), 8)], 8, "true"),
        ([(("D", "E"), 7)], 7, "true"),
        ([(("D",), 7), (WHOLE, 7)], 7, "false"),
        ([(WHOLE, 7), (("D",), 8)], 8, "false"),
        # The broker did not send the change with version 8.
        ([(WHOLE, 7), (("E",), 9)], 9, "true"),
        ([(WHOLE, 7), (("E",), 9), (WHOLE, 9)], 9, "false"),
    ],
)
def test_a_broker_registers_again_until_its_table_is_complete(
    told: list[tuple[tuple[str, ...], int]], asked: int, changed: str
) -> None:
    known = NameServer(now_ms=lambda: 0)

    def call(serve: Any, fields: dict[str, str], body: bytes) -> Command:
        return decoded(serve(cast("Channel", object()), Command(1, ext_fields=fields, body=body), cast("Outbox", None)))

    for topics, counter in told:
        assert call(known.register, header(), table(*topics, counter=counter)).code == 0
    body = json.dumps({"counter": asked, "timestamp": 7}).encode()
    assert call(known.data_version, header(), body).ext_fields == {"changed": changed}
    for topic in {name for topics, _counter in told for name in topics}:
        assert call(known.route, {"topic": topic}, b"").code == 0


def test_a_registered_slave_gets_its_masters_address(brokers: Brokers) -> None:
    client = brokers.names(brokers.start())
    assert register(client, table("T")) == 0
    answer = client.call(
        RequestCode.REGISTER_BROKER, header(broker_id=1, address="10.0.0.8:10911"), table("T", "of the slave")
    )
    assert answer.ext_fields is not None
    assert answer.ext_fields["masterAddr"] == ADDRESS
    assert route(client, "T")["brokerDatas"][0]["brokerAddrs"] == {"0": ADDRESS, "1": "10.0.0.8:10911"}


def test_a_slave_gets_the_registered_master() -> None:
    """The name server's own broker is a slave of the same name, so the name server must not return it as the master."""
    own = OwnBroker(BrokerConfig(broker_name="other", role="SLAVE", broker_id=1), Topics(), "10.0.0.7:10911")
    known: Any = NameServer(own, now_ms=lambda: 0)

    def master(**fields: Any) -> str | None:
        command = Command(RequestCode.REGISTER_BROKER, 1, ext_fields=header(**fields), body=table("T"))
        answer = decoded(known.register(cast("Channel", object()), command, cast("Outbox", None)))
        assert answer.code == 0
        return (answer.ext_fields or {}).get("masterAddr")

    slave = {"broker_id": 2, "address": "10.0.0.8:10911"}
    assert [master(**slave), master(), master(**slave)] == [None, None, ADDRESS]


@pytest.mark.parametrize(
    ("fields", "body", "words"),
    [
        ({"bodyCrc32": "7"}, table("T"), "crc32 not match"),
        ({"compressed": "true"}, zlib.compress(table("T")), "compressedRegister=false"),
        ({"name": "broker-a"}, table("T"), "own: give the broker another"),
        ({}, b"{", "cannot be read"),
        ({}, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":7}}}', "topicConfigTable"),
    ],
)
def test_an_invalid_registration_is_refused(brokers: Brokers, fields: dict[str, Any], body: bytes, words: str) -> None:
    client = brokers.names(brokers.start())
    answer = client.call(RequestCode.REGISTER_BROKER, header(**fields), body)
    assert answer.code == 1
    assert words in str(answer.remark)
    assert route(client, "T") == {}


def registered(address: str, name: str = "b", broker_id: int = 0, heard_ms: int = 0) -> RegisteredBroker:
    topics = {"T": TopicConfig("T")}
    return RegisteredBroker("C", name, broker_id, address, None, (1, 1), heard_ms, topics)


def test_silent_moved_and_too_many_brokers() -> None:
    """A silent broker expires after two minutes, a moved broker replaces its old entry, and the number is limited."""
    known = Routes()
    known.register(registered("a:1"))
    known.register(registered("a:2"))
    assert [broker.address for broker in known] == ["a:2"]
    known.register(registered("a:3", "c", heard_ms=60_000))
    known.expire(120_001)
    assert [broker.address for broker in known] == ["a:3"]
    known.quota.size_max = 1
    assert not known.register(registered("a:4", "d"))
    assert known.register(registered("a:3", "c"))


def test_only_administrators_change_a_name_server_with_accounts(tmp_path: Path, brokers: Brokers) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n  - {accessKey: administrator, secretKey: 87654321, admin: true}\n"
        "  - {accessKey: ordinary, secretKey: 12345678, defaultTopicPerm: PUB|SUB}\n"
    )
    broker = brokers.start(config=BrokerConfig(acl_file=str(accounts)))
    broker.topics.put(TopicConfig("T", 1, 1))
    client = brokers.names(broker)

    def named() -> list[str]:
        return [each["brokerName"] for each in route(client, "T")["queueDatas"]]

    def call(code: int, account: Credentials | None) -> Command:
        fields, body = header(brokerAddr=ADDRESS), table("T") if code == RequestCode.REGISTER_BROKER else b""
        fields |= {"topic": "T", "namespace": "n", "key": "k", "value": "v"}
        return client.call(code, fields if account is None else account.signed(fields, body), body)

    for code in sorted(NAME_SERVER_ADMIN_CODES):
        for account, words in ((None, "No accessKey"), (Credentials("ordinary", "12345678"), "Need admin permission")):
            refused = call(code, account)
            assert (refused.code, words in str(refused.remark)) == (1, True), code
    assert named() == ["broker-a"]
    assert call(RequestCode.REGISTER_BROKER, Credentials("administrator", "87654321")).code == 0
    assert named() == ["broker-a", "other"]
    assert call(RequestCode.UNREGISTER_BROKER, Credentials("administrator", "87654321")).code == 0
    assert named() == ["broker-a"]


def test_topics_are_limited_in_one_registration_and_of_all_brokers(
    monkeypatch: pytest.MonkeyPatch, brokers: Brokers
) -> None:
    monkeypatch.setattr(name_server, "REGISTERED_COUNT_MAX", 3)
    monkeypatch.setattr(routes, "TOPIC_TOTAL_MAX", 5)
    client = brokers.names(brokers.start())
    assert register(client, table("A", "B", "C", "D")) == 1
    assert register(client, table("A", "B", "C")) == 0
    assert register(client, table("A", "B", "C", counter=2)) == 0
    assert register(client, table("A", "B", "C"), name="second", address="10.0.0.8:1") == 1
    assert register(client, table("A", "X"), name="second", address="10.0.0.8:1") == 0
    assert register(client, table("Y"), name="second", address="10.0.0.8:1") == 1
    assert [len(route(client, topic).get("queueDatas", ())) for topic in ("A", "X", "Y", "D")] == [2, 1, 0, 0]


def filled(row: str, size: int = BODY_SIZE_MAX) -> bytes:
    """A registration of almost `size` bytes, whose topics all have the same row."""
    begin, end = '{"topicConfigSerializeWrapper":{"topicConfigTable":{', "}}}"
    one = f'"t000000":{row},'
    count = (size - len(begin) - len(end)) // len(one)
    rows = ",".join(f'"t{number:06}":{row}' for number in range(count))
    return f"{begin}{rows}{end}".encode()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"topicName":"t"}', "has over 50000 topics"),
        (json.dumps({"perm": 6, "topicFilterType": "t" * 80}), "missing required field"),
        ("1", "Expected `object`, got `int`"),
        ('{"topicName":"t","perm":"x"}', "has over 50000 topics"),
        (json.dumps({"topicName": "t" * 80, "perm": "x"}), "Expected `int`, got `str`"),
    ],
)
def test_a_refused_registration_creates_nothing(row: str, words: str) -> None:
    told = NameServer(now_ms=lambda: 0)
    command = Command(code=RequestCode.REGISTER_BROKER, ext_fields=header(), body=filled(row))
    made = []
    for _ in range(3):
        tracemalloc.start()
        try:
            with pytest.raises(HeaderError, match=f"of RegisterBrokerBody .*{words}"):
                told.register(cast("Channel", object()), command, cast("Outbox", None))
            made.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # Only the smallest value counts, because `tracemalloc` also counts the memory of all other threads.
    assert min(made) < BODY_SIZE_MAX // 100
    assert list(told.routes) == []


def test_long_texts_of_a_registration_are_not_kept() -> None:
    """Texts that no route needs are not kept, because they would use memory."""
    told, text = NameServer(now_ms=lambda: 0), "x" * 1_000_000
    row = {"topicName": text, "topicFilterType": text, "attributes": {"a": text}, "readQueueNums": 3, "perm": 4}
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {"T": row}}}).encode()
    command = Command(code=RequestCode.REGISTER_BROKER, ext_fields=header(), body=body)
    told.register(cast("Channel", object()), command, cast("Outbox", None))
    (broker,) = told.routes
    assert broker.topics == {"T": TopicConfig("T", 3, perm=4)}


def test_permissions_end_with_their_broker(brokers: Brokers) -> None:
    server = brokers.start()
    client = brokers.names(server)
    for name in ("first", "broker-a", "second"):
        assert name == "broker-a" or register(client, table("T"), name=name) == 0
        client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
    assert server.name_server._permissions.keys() == {"broker-a", "second"}


def test_a_registration_with_the_maximum_of_topics_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "REGISTERED_COUNT_MAX", 3)
    told = NameServer(now_ms=lambda: 0)
    rows = [f'"{name}":{{"topicName":"{name}"}}' for name in "ABC"]
    odd = '"D":{"topic\\u004eame":"D"}'
    for given, is_taken in ((rows, True), ([*rows, odd], False), ([*rows[1:], odd], True)):
        body = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{",".join(given)}}}}}}}'.encode()
        command = Command(code=RequestCode.REGISTER_BROKER, ext_fields=header(), body=body)
        with nullcontext() if is_taken else pytest.raises(HeaderError, match="has over 3 topics"):
            told.register(cast("Channel", object()), command, cast("Outbox", None))
    (broker,) = told.routes
    assert set(broker.topics) == {"A", "B", "C", "D"}


def test_the_names_of_all_topics_are_put_together_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "TURN_COUNT", 4)
    brokers = [
        evolve(registered(f"10.0.0.{number}:1", f"b{number}"), topics=dict.fromkeys(topics, TopicConfig("T")))
        for number, topics in enumerate((("z", "y"), ("x", "z"), ("w", "v", "z"), ("u",)))
    ]
    parts, count = result_of(topic_names(Command(206, 1), ["own", "z"], brokers))
    assert TopicList.decode(decoded(present(parts)).body).topic_list == ["own", "z", "y", "x", "w", "v", "u"]
    assert count == 2


def test_registrations_and_permissions_of_many_topics_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "TURN_COUNT", 4)
    told: Any = NameServer(now_ms=lambda: 0)
    channel: Any = SimpleNamespace(rest=None, number=1)
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {
        name: {"topicName": name, "perm": 6} for name in "ABCDEFGHIJ"
    }}}).encode()  # fmt: skip
    command, turns = Command(code=RequestCode.REGISTER_BROKER, ext_fields=header(), body=body), 0
    parts = told.register(channel, command, None)
    while channel.rest is not None:
        rest, channel.rest, turns, box = channel.rest, None, turns + 1, Box()
        rest(box)
    assert (parts, turns, [each.code for each in box.replies]) == (None, 2, [0])
    (broker,) = told.routes
    for expected in (4, 6):
        wanted = {6: expected, 4: expected}
        assert result_of(told._permit(broker.name, wanted.__getitem__)) == (10, 2)
        assert {told._permission(broker.name, topic) for topic in broker.topics.values()} == {expected}
    told.routes.forget_topic("A", None)
    assert broker.topics.keys() == set("BCDEFGHIJ")


def at(address: Address) -> str:
    return "{}:{}".format(*address)


def heartbeat(group: str) -> bytes:
    consumer = ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic="made", sub_string="*")])
    return HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()


def queues(topic: str) -> dict[str, str]:
    return {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}


def batch(topic: str, count: int) -> tuple[int, dict[str, str], bytes]:
    return (
        RequestCode.SEND_BATCH_MESSAGE,
        send_fields(topic) | {"m": "true"},
        encode_batch([BatchMessage(b"x", "")] * count),
    )


LIST = b'{"topicConfigList":[{"topicName":"list","readQueueNums":4,"writeQueueNums":4,"perm":6}]}'
CHANGES: dict[str, tuple[int, dict[str, str], bytes]] = {
    "made": (RequestCode.UPDATE_AND_CREATE_TOPIC, queues("made"), b""),
    "list": (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, LIST),
    "sent": (RequestCode.SEND_MESSAGE_V2, send_fields("sent"), b"x"),
    "delayed": (RequestCode.SEND_MESSAGE_V2, send_fields("delayed", properties="DELAY\x011\x02"), b"x"),
    "hasty": (RequestCode.SEND_MESSAGE_V2, send_fields("hasty", properties="WAIT\x01false\x02"), b"x"),
    "batch": batch("batch", 2),
    "long": batch("long", 2000),
    "%RETRY%G": (RequestCode.HEART_BEAT, {}, heartbeat("G")),
}
"""Maps each topic to the request that creates it: code, fields and body."""


@pytest.mark.parametrize("flush_disk_sync", [False, True], ids=["async", "sync"])
def test_name_servers_know_a_topic_before_the_answer(
    brokers: Brokers, tmp_path: Path, *, flush_disk_sync: bool
) -> None:
    """One of three name servers is down, and only the request that creates the topic waits for it."""
    servers = [brokers.start(directory=str(tmp_path / name)) for name in ("first", "second")]
    names = ";".join([*(at(server.name_server_address) for server in servers), "127.0.0.1:1"])
    config = BrokerConfig(broker_name="other", name_servers=names)
    broker = brokers.start(config=config, store_config=evolve(SMALL_STORE, flush_disk_sync=flush_disk_sync))
    clients = [brokers.names(server) for server in servers]
    registrar = present(broker.registrar)
    # The next periodic registration is half a minute away.
    wait_until(lambda: registrar.registered_count >= 2)
    for topic, (code, fields, body) in CHANGES.items():
        answered = brokers.connect(broker).call(code, fields, body)
        assert answered.code == 0, (topic, answered.remark)
        for client in clients:
            assert [each["brokerName"] for each in route(client, topic).get("queueDatas", ())] == ["other"], topic


def test_an_unresponsive_name_server_delays_only_its_request(brokers: Brokers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as name_server:
        broker = brokers.start(config=BrokerConfig(name_servers=at(name_server.getsockname()[:2])))
        client, other = brokers.connect(broker), brokers.connect(broker)
        opaque = client.send(RequestCode.SEND_MESSAGE_V2, send_fields("made"), b"x")
        connection, _address = name_server.accept()
        send_message(other, "TBW102")
        # If the answer did not wait, it would come before the answer to the next request.
        assert client.call(RequestCode.GET_MAX_OFFSET, {"topic": "made", "queueId": "0"}).code == 0
        assert client.reply(opaque, 0.0) is None
        connection.close()
        assert client.answer(opaque).code == 0
    client.create_topic("later", 4)


ACCOUNTS: Final = "accounts:\n  - {accessKey: administrator, secretKey: 87654321, admin: true}\n"


def test_a_slave_registers_with_its_account_until_it_stops(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    master = brokers.start(directory=str(tmp_path / "master"), config=BrokerConfig(acl_file=str(accounts)))
    client = brokers.names(master)

    def addresses() -> dict[str, str]:
        told = json.loads(bytes(client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body))
        return dict(told["brokerAddrTable"]["broker-a"]["brokerAddrs"])

    slave = BrokerConfig(
        role="SLAVE", broker_id=1, name_servers=at(master.name_server_address), access_key="administrator"
    )
    refused = brokers.start(directory=str(tmp_path / "refused"), config=evolve(slave, secret_key="12345678"))  # noqa: S106
    wait_until(lambda: bool(reasons(caplog, "not_registered")))
    assert "12345678" not in caplog.text
    refused.stop()
    broker = brokers.start(directory=str(tmp_path / "slave"), config=evolve(slave, secret_key="87654321"))  # noqa: S106
    wait_until(lambda: addresses() == {"0": at(master.address), "1": at(broker.address)})
    broker.stop()
    wait_until(lambda: list(addresses()) == ["0"])


def permissions(client: RawClient, topic: str) -> dict[str, int]:
    answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    queues: list[dict[str, Any]] = json.loads(bytes(answer.body))["queueDatas"] if answer.code == 0 else []
    return {queue["brokerName"]: queue["perm"] for queue in queues}


def listed(answer: Command) -> list[str]:
    found: list[str] = json.loads(bytes(answer.body))["topicList"]
    return found


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_an_unknown_code_is_answered_at_once(brokers: Brokers, policy: Policy) -> None:
    """The name server of 4.9 does not answer an unknown code. The last code is too large for a binary header."""
    broker = brokers.start(policy=policy)
    for client, is_silent in ((brokers.connect(broker), False), (brokers.names(broker), policy is ROCKETMQ_4_9)):
        opaques = {code: client.send(code) for code in (0, -1, 2, 210, 313, 9999, 70_000)}
        assert not is_silent or client.call(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
        for code, opaque in opaques.items():
            reply = client.reply(opaque, 0.0) if is_silent else client.answer(opaque)
            told = reply and (reply.code, reply.remark)
            assert told == (None if is_silent else (3, f" request type {code} not supported"))


def test_no_code_waits_for_a_time_out(broker: Broker, brokers: Brokers) -> None:
    for address in (broker.address, broker.name_server_address):
        client = brokers.connect(address)
        for code in RequestCode:
            assert client.reply(client.send(code)) is not None, code.name


def test_a_name_server_setting_is_stored(broker: Broker, brokers: Brokers) -> None:
    client = brokers.names(broker)
    place = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    put, get = partial(client.call, RequestCode.PUT_KV_CONFIG), partial(client.call, RequestCode.GET_KV_CONFIG)
    assert get(place).code == 22
    assert put(place | {"value": "a:4"}).code == 0
    assert get(place).ext_fields == {"value": "a:4"}
    assert get(place | {"namespace": "other"}).code == 22
    assert put(place | {"key": "V", "value": ""}).code == 0
    settings = client.told(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
    assert settings == {"table": {"T": "a:4", "V": ""}}
    assert client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="none").code == 22
    broker.name_server.settings.quota.size_max = 2
    refused = put(place | {"key": "U", "value": ""})
    assert (refused.code, "delete one first" in str(refused.remark)) == (1, True)
    assert put(place | {"value": "b:4"}).code == 0
    assert [client.call(RequestCode.DELETE_KV_CONFIG, place).code for _ in range(2)] == [0, 0]
    assert get(place).code == 22


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"namespace": "n" * 256, "key": "k", "value": "v"}, "longer than 255"),
        ({"namespace": "n", "key": "k" * 256, "value": "v"}, "longer than 255"),
        ({"namespace": "n", "key": "k", "value": "v" * 4097}, "over the limit of 4096"),
        ({"namespace": "n", "key": "k"}, "value"),
    ],
)
def test_an_invalid_name_server_setting_is_refused(brokers: Brokers, fields: dict[str, str], words: str) -> None:
    answer = brokers.names(brokers.start()).call(RequestCode.PUT_KV_CONFIG, fields)
    assert (answer.code, words in str(answer.remark)) == (1, True)


def test_a_broker_can_be_made_unwritable_and_writable_again(broker: Broker, brokers: Brokers) -> None:
    client = brokers.names(broker)
    assert register(client, table("T", "U")) == 0
    made = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    admin = brokers.connect(broker)
    assert admin.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == 0
    for name in ("other", "broker-a"):
        before = permissions(client, "T")
        wiped = client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
        assert permissions(client, "T") == before | {name: 4}
        added = client.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": name})
        assert permissions(client, "T") == before
        topics = 2 if name == "other" else len(broker.topics.by_name)
        assert (wiped.ext_fields, added.ext_fields) == ({"wipeTopicCount": str(topics)}, {"addTopicCount": str(topics)})
    client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert admin.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made | {"readQueueNums": "5"}).code == 0
    assert permissions(client, "T")["broker-a"] == 6
    nobody = client.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"})
    assert (nobody.code, nobody.ext_fields) == (0, {"wipeTopicCount": "0"})


def test_a_deleted_topic_has_no_route_until_it_is_registered_again(brokers: Brokers) -> None:
    client = brokers.names(brokers.start())
    assert register(client, table("T", "U")) == 0
    elsewhere = {"topic": "T", "clusterName": "elsewhere"}
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, elsewhere).code == 0
    assert permissions(client, "T") == {"other": 6}
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "C"}).code == 0
    assert (permissions(client, "T"), permissions(client, "U")) == ({}, {"other": 6})
    assert (register(client, table("T", "U")), permissions(client, "T")) == (0, {"other": 6})
    assert client.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "TBW102"}).code == 0
    assert permissions(client, "TBW102") == {"broker-a": 7}


def test_the_number_of_topics_is_limited(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BROKER_TOPIC_COUNT_MAX", 3)
    client = brokers.names(brokers.start())
    for number in range(1, 8):
        assert register(client, table(f"T{number}", counter=number)) == 0
    assert permissions(client, "T7") == {"other": 6}
    assert sum(bool(permissions(client, f"T{number}")) for number in range(1, 8)) == 3
    assert register(client, table("T7", counter=8)) == 0
    assert permissions(client, "T7") == {"other": 6}
    assert sum(bool(permissions(client, f"T{number}")) for number in range(1, 8)) == 3


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_request_216_hides_a_live_topic(brokers: Brokers, policy: Policy) -> None:
    broker = brokers.start(policy=policy)
    client, admin = brokers.names(broker), brokers.connect(broker)
    hidden = {"broker-a": 6} if policy is STRICT else {}
    forget = partial(client.call, RequestCode.DELETE_TOPIC_IN_NAMESRV)
    admin.create_topic("T", 4)
    assert forget({"topic": "T", "clusterName": "elsewhere"}).code == forget({}).code == 0
    assert permissions(client, "T") == {"broker-a": 6}
    for again in (partial(admin.create_topic, "T", 4), partial(send_message, admin, "made-by-a-send")):
        assert (forget({"topic": "T"}).code, permissions(client, "T")) == (0, hidden)
        send_message(admin, "T")
        assert permissions(client, "T") == hidden
        again()
        assert permissions(client, "T") == {"broker-a": 6}


def test_topics_are_listed_by_cluster(brokers: Brokers) -> None:
    client = brokers.names(brokers.start())
    assert register(client, table("T", "U")) == 0
    assert listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"})) == ["T", "U"]
    assert "TBW102" in listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}))
    assert listed(client.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "none"})) == []
    system = client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert listed(system) == ["C", "DefaultCluster", "broker-a", "other"]
    assert json.loads(bytes(system.body))["brokerAddr"].startswith("127.0.0.1:")
