"""One client cannot fill a table so that other clients are refused. Each attack is tried on every such table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers
from model_tests.support.broker.raw_client import pull_fields, send_fields
from model_tests.support.broker.sockless import Peer, ThreadlessBroker
from msgspec.structs import replace

from longpoll_broker.broker import Broker
from longpoll_broker.hold import hold_service
from longpoll_broker.hold.hold_table import MISSED, HoldLimit, HoldTable, Pull
from longpoll_broker.io.channel import Outbox
from longpoll_broker.rocketmq import transactions
from longpoll_broker.rocketmq.admin import client_calls, client_processor
from longpoll_broker.rocketmq.name_server.name_server import KvSettings
from longpoll_broker.rocketmq.name_server.routes import OwnTopics, RegisteredBroker, Routes
from longpoll_broker.send import append, message_builder
from longpoll_broker.shared import timer_offsets
from longpoll_broker.shared.quota import SHARE_MIN, Quota
from longpoll_broker.shared.timer_offsets import TimerCounts
from longpoll_broker.shared.topics import TopicConfig, Topics
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, Serialisation, encode
from longpoll_runtime.real import RealRuntime

SIZE: Final = 400
SMALL_SIZE: Final = 200
"""The size of tables whose entries the broker writes to files.

Other tables have the larger `SIZE`, so that the quotas of twenty peers differ."""
Request = tuple[int, dict[str, str], bytes]


def heartbeat(number: int, *, consumer: bool, sql: bool = False) -> Request:
    expression = {"subString": "a = 'x'", "expressionType": "SQL92"} if sql else {"subString": "*"}
    consumers = [{"groupName": f"g{number}", "subscriptionDataSet": [{"topic": "T", "subVersion": 1} | expression]}]
    producers = [] if consumer else [{"groupName": f"g{number}"}]
    body = {"clientID": "c", "producerDataSet": producers, "consumerDataSet": consumers if consumer else []}
    return RequestCode.HEART_BEAT, {}, msgspec.json.encode(body)


def locked(number: int) -> Request:
    queue = {"topic": "T", "brokerName": "b", "queueId": number}
    return RequestCode.LOCK_BATCH_MQ, {}, msgspec.json.encode({"consumerGroup": "G", "clientId": "c", "mqSet": [queue]})


def commit(number: int) -> Request:
    fields = {"consumerGroup": f"g{number}", "topic": "TBW102", "queueId": "0", "commitOffset": "0"}
    return RequestCode.UPDATE_CONSUMER_OFFSET, fields, b""


def call(number: int) -> Request:
    fields = {"consumerGroup": f"g{number % 2}", "clientId": "c"}
    return RequestCode.GET_CONSUMER_RUNNING_INFO, fields, b""


def long_pull(number: int) -> Request:
    """A pull that waits and has a long subscription."""
    fields = pull_fields("TBW102", 1, timeout_ms=20_000) | {"subscription": f"t{number}" + "x" * 90}
    return RequestCode.PULL_MESSAGE, fields, b""


ATTACKS: Final[dict[str, Callable[[int], Request]]] = {
    "topics": lambda number: (RequestCode.SEND_MESSAGE_V2, send_fields(f"t{number}", 0), b"x"),
    "groups": lambda number: (RequestCode.PULL_MESSAGE, pull_fields("TBW102", 0, group=f"g{number}"), b""),
    "offsets": commit,
    "queues": lambda number: (RequestCode.SEND_MESSAGE_V2, send_fields("Wide", number), b"x"),
    "light queues": lambda number: (
        RequestCode.SEND_MESSAGE_V2,
        send_fields("TBW102", 0, f"INNER_MULTI_DISPATCH\x01%LMQ%{number}\x02"),
        b"x",
    ),
    "queue locks": locked,
    "producers": lambda number: heartbeat(number, consumer=False),
    "members of groups": lambda number: heartbeat(number, consumer=True),
    "characters of subscriptions": lambda number: heartbeat(number, consumer=True),
    "characters of filters": lambda number: heartbeat(number, consumer=True, sql=True),
    "waiting calls": call,
    "statistics": lambda number: (RequestCode.PULL_MESSAGE, pull_fields("TBW102", 0, group=f"g{number}"), b""),
    "characters of held pulls": long_pull,
}
"""Maps the name of each table's quota to a function that makes a request for one more entry."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = evolve(SMALL_STORE, multi_dispatch=True, light_queues=True)
    with ThreadlessBroker.start(RealRuntime(), str(tmp_path / "store"), store_config=config) as started:
        started.topics.put(TopicConfig("Wide", 1024, 1024))
        tell(Peer(started, 1), (RequestCode.SEND_MESSAGE_V2, send_fields("TBW102", 0), b"x"))
        yield started


def tell(peer: Peer, request: Request) -> bytes:
    code, fields, body = request
    return peer.tell(b"".join(map(bytes, encode(Command(code=code, opaque=1, ext_fields=fields, body=body)))))


def size_of(name: str) -> int:
    """The number of entries of a table that the test lets clients create."""
    return SMALL_SIZE if name in {"topics", "queues", "light queues"} else SIZE


def of(broker: Broker, name: str) -> Quota:
    (quota,) = (each for each in broker.handler.quotas if each.name == name)
    quota.size_max = quota.used + size_of(name) * (100 if name.startswith("characters") else 1)
    return quota


def test_a_deleted_topics_queues_are_not_counted(broker: Broker) -> None:
    """The queues of a deleted topic no longer count, even if `topics.json` had more queues than clients may create."""
    broker.topics.put(TopicConfig("Loaded", 2000, 2000))
    quota = of(broker, "queues")
    before = quota.used
    tell(Peer(broker, 1), (RequestCode.SEND_MESSAGE_V2, send_fields("Loaded", 1999), b"x"))
    assert quota.used == before + 1
    tell(Peer(broker, 1), (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Loaded"}, b""))
    assert quota.used == before


OF_CONNECTIONS: Final = {
    "producers",
    "members of groups",
    "characters of subscriptions",
    "characters of filters",
    "waiting calls",
    "characters of held pulls",
}
"""Tables whose entries are removed when their connection ends."""


def attacked(broker: Broker, name: str) -> tuple[Quota, int, Peer]:
    tell(Peer(broker, 1), heartbeat(0, consumer=True))
    tell(Peer(broker, 2), heartbeat(1, consumer=True))
    quota, attacker = of(broker, name), Peer(broker, 7)
    before = quota.used
    for number in range(2, size_of(name) + 2):
        tell(attacker, ATTACKS[name](number))
    return quota, before, attacker


@pytest.mark.parametrize("name", ATTACKS)
def test_one_connection_leaves_room_for_others(name: str, broker: Broker) -> None:
    """One connection cannot use up a table, and the connection's entries end with it."""
    quota, before, attacker = attacked(broker, name)
    assert quota.refused > 0
    used = quota.used
    assert quota.size_max - used > quota.size_max // 2
    assert used > before
    other = Peer(broker, 8)
    for number in range(SIZE + 2, SIZE + 12):
        used = quota.used
        tell(other, ATTACKS[name](number))
        assert quota.used > used
    broker.handler.closed(other.channel)
    broker.handler.closed(attacker.channel)
    assert (quota.used == before) == (name in OF_CONNECTIONS)


@pytest.mark.parametrize("lasts", [True, False], ids=["many connections at once", "one connection after the other"])
@pytest.mark.parametrize("name", ATTACKS)
def test_one_address_leaves_room_for_others(name: str, broker: Broker, *, lasts: bool) -> None:
    """One address cannot use up a table, neither with many connections at once nor with one after the other."""
    for number in range(2):
        tell(Peer(broker, 1 + number), heartbeat(number, consumer=True))
    quota, attackers = of(broker, name), [Peer(broker, 100 + number, "10.0.0.1") for number in range(20)]
    for number in range(2, size_of(name) + 2):
        tell(attackers[number % 20], ATTACKS[name](number))
        if not lasts and number % 10 == 0:
            broker.handler.closed(attackers[number % 20].channel)
            broker.handler.end_pass(Outbox())
            attackers[number % 20] = Peer(broker, 1_000 + number, "10.0.0.1")
    assert quota.refused > 0 or (name in OF_CONNECTIONS and not lasts)
    other = Peer(broker, 8, "10.0.0.9")
    for number in range(SIZE + 2, SIZE + 12):
        used = quota.used
        tell(other, ATTACKS[name](number))
        assert quota.used > used


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_new_client_of_a_full_tables_address_is_served(name: str, host: str, broker: Broker) -> None:
    """Each refusal has a code and an explanation, except in statistics, where clients cannot notice a refusal."""
    for number in range(2):
        tell(Peer(broker, 1 + number), heartbeat(number, consumer=True))
    quota, attackers = of(broker, name), [Peer(broker, 100 + number, host) for number in range(20)]
    for number in range(2, size_of(name) + 2):
        refused = quota.refused
        answered = tell(attackers[number % 20], ATTACKS[name](number))
        if quota.refused > refused and name != "statistics":
            assert code_and_remark(answered)[0] in {1, 2, 17, 26}
            assert len(code_and_remark(answered)[1]) > 20
    assert quota.refused > 0
    newcomer = Peer(broker, 8, host)
    for number, attack in enumerate((name, *ATTACKS)):
        used, answered = quota.used, tell(newcomer, ATTACKS[attack](SIZE + 2 + number))
        assert number or quota.used > used or attack == "statistics"
        if attack not in {"waiting calls", "characters of held pulls"}:
            assert code_and_remark(answered)[0] not in {1, 2, 17, 26}, attack


@pytest.mark.parametrize("count", [4, 16, 64])
@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1"])
def test_a_full_table_has_room_for_a_newcomers_ordinary_work(host: str, count: int, broker: Broker) -> None:
    """Many connections of one address fill each table of a real broker, first with large, then with small entries."""
    for known in (*broker.handler.quotas, *broker.name_server.quotas):
        quota, ordinary = Quota(known.name, known.size_max, known.unit), max(known.unit, 1)
        attackers, number = [Sender(each, host) for each in range(count)], 0
        size = quota.size_max
        while size:
            for attacker in attackers:
                while quota.take(number, attacker, size):
                    number += 1
            size //= 2
        assert quota.used >= quota.size_max // 2
        newcomer = Sender(count, host)
        got = [quota.take((newcomer.number, each), newcomer, ordinary) for each in range(SHARE_MIN)]
        wanted = SHARE_MIN if quota.size_max >= 10_000 * ordinary else 1
        assert got[:wanted] == [True] * wanted or not known.unit, known.name


def code_and_remark(answered: bytes) -> tuple[int, bytes]:
    code, remark = re.search(rb'"code":(\d+)', answered), re.search(rb'"remark":"([^"]*)"', answered)
    assert code is not None
    return int(code[1]), b"" if remark is None else remark[1]


@pytest.mark.parametrize(("queue_max", "held_max"), [(16_000, 1_000_000), (100_000, 12_800)])
def test_small_channels_find_room_in_a_full_hold_table(queue_max: int, held_max: int) -> None:
    """Every connection of an address may hold a share of all pulls, and a share of one queue's pulls."""
    limit = HoldLimit(held_max)
    table = HoldTable(hold_limit=limit, queue_limit=queue_max, channel_limit=1_000)
    held = {channel: sum(table.hold(waiting(channel)) for _ in range(1_000)) for channel in range(20)}
    room = min(queue_max, held_max)
    assert sum(held.values()) == len(table) <= room
    assert sum(table.hold(waiting(20)) for _ in range(1_000)) == SHARE_MIN


def waiting(channel: int) -> Pull:
    return Pull(channel, 1, "G", "T", 0, 0, 1, 0, phase=MISSED)


def test_deletions_release_quota(broker: Broker) -> None:
    offsets, topics, filters = (
        broker.handler.shared.offsets,
        broker.topics,
        broker.administering.clients.clients.filters,
    )
    tables = (offsets.quota, topics.quota, filters.quota)
    before = [quota.used for quota in tables]
    offsets.commit("T", "G", 0, 1)
    topics.put(TopicConfig("T"))
    filters.register("T", "G", "a = 'x'", "SQL92", 1)
    assert all(quota.used > used for quota, used in zip(tables, before, strict=True))
    offsets.forget_topic("T")
    topics.remove("T")
    filters.outlive_groups = False
    filters.group_gone("G", ["T"])
    assert [quota.used for quota in tables] == before


def test_send_backs_have_a_quota(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A send-back of 36 bytes may store a large message again, so send-backs have a quota."""
    back = {"offset": str(broker.store.log_end), "group": "G", "delayLevel": "0"}
    asked = (RequestCode.CONSUMER_SEND_MSG_BACK, back, b"")
    tell(Peer(broker, 1), (RequestCode.SEND_MESSAGE_V2, send_fields("T", 0), bytes(10_000)))
    monkeypatch.setattr(append, "COPIED_SIZE_MAX", 1_000_000)
    now_ns = broker.runtime.monotonic_ns()
    monkeypatch.setattr(broker.runtime, "monotonic_ns", lambda: now_ns)
    attacker, before = Peer(broker, 7), broker.store.log_end
    refused = [b'"code":2' in tell(attacker, asked) for _ in range(100)]
    assert refused == [False] * 19 + [True] * 81
    assert broker.store.log_end - before < 250_000
    assert b'"code":0' in tell(Peer(broker, 8), asked)
    dead = back | {"group": "Dead", "delayLevel": "-1"}
    tell(Peer(broker, 9), (RequestCode.CONSUMER_SEND_MSG_BACK, dead, b""))
    retried = send_fields("%RETRY%Sent") | {"j": "99"}
    tell(Peer(broker, 9), (RequestCode.SEND_MESSAGE_V2, retried, b"x"))
    entries = broker.topics.quota._entries | broker.groups.quota._entries
    for name in ("Dead", "%DLQ%Dead", "Sent", "%DLQ%Sent"):
        assert entries[name].connection == ("connection", 9)
    now_ns += append.COPIED_NS
    assert b'"code":0' in tell(attacker, asked)


def test_long_properties_are_refused_before_they_are_parsed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long properties are also refused after a send that was served at once, and in a reply."""
    monkeypatch.setattr(message_builder, "read_properties", lambda text: pytest.fail(str(len(text))) if text else {})
    monkeypatch.setattr(client_calls, "read_properties", lambda text: pytest.fail(str(len(text))))
    long, peer = "k\x01v\x02" * 20_000, Peer(broker)
    kind = Serialisation.ROCKETMQ
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2):
        commands = [Command(code, 1, ext_fields=send_fields("TBW102", 0, each)) for each in ("", long, long)]
        frames = [encode(replace(each, serialisation=kind, body=b"x")) for each in commands]
        parts = [peer.tell(b"".join(b"".join(map(bytes, frame)) for frame in frames[first:])) for first in (0, 1)]
        assert [part.count(b"the message is illegal: the properties have 80000") for part in parts] == [2, 2]
    assert not peer.channel.closed


@pytest.mark.parametrize("count", [1, 6], ids=["one message", "more messages than are remembered"])
def test_repeated_commits_have_a_quota(count: int, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit of each prepared message is free, and repeated commits have a quota."""
    monkeypatch.setattr(transactions, "COMMITTED_COUNT_MAX", 4)
    monkeypatch.setattr(append, "COPIED_SIZE_MAX", 1_000_000)
    monkeypatch.setattr(broker.runtime, "monotonic_ns", lambda: 0)
    properties, ends = "TRAN_MSG\x01true\x02PGROUP\x01P\x02", []
    for number in range(count):
        fields = {
            "producerGroup": "P", "tranStateTableOffset": str(number), "commitLogOffset": str(broker.store.log_end),
            "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "K",
        }  # fmt: skip
        ends.append((RequestCode.END_TRANSACTION, fields, b""))
        send = send_fields("T", 0, properties) | {"f": "4"}
        tell(Peer(broker, 1), (RequestCode.SEND_MESSAGE_V2, send, bytes(10_000)))
    attacker, before = Peer(broker, 7), broker.store.log_end
    refused = [b'"code":2' in tell(attacker, ends[number % count]) for number in range(100)]
    free = 19 + count
    assert refused == [False] * free + [True] * (100 - free)
    assert broker.store.log_end - before < 11_000 * free


def test_a_closed_connection_is_removed_from_groups_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_processor, "LEAVES_MAX", 40)
    clients, outbox = broker.administering.clients, Outbox()
    member, stayed = Peer(broker, 7), Peer(broker, 8)
    for number in range(100):
        tell(member, heartbeat(number, consumer=number % 2 == 0))
    tell(stayed, heartbeat(98, consumer=True))
    broker.handler.end_pass(outbox)
    broker.handler.closed(member.channel)
    left = []
    while broker.handler.has_more:
        left.append(clients.producers.quota.used + clients.clients.members_quota.used)
        broker.handler.end_pass(outbox)
    assert (left, clients.producers.quota.used) == ([61, 21], 0)
    assert clients.clients.channels("g98") == [stayed.channel]
    assert list(clients.programs) == [stayed.channel]


def test_held_pulls_of_a_closed_connection_are_removed_in_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a connection with many held pulls ends, its pulls are removed in several steps, and other pulls stay."""
    monkeypatch.setattr(hold_service, "DROPPED_COUNT", 4)
    leaving, stayed = Peer(broker, 7), Peer(broker, 8)
    for peer in (leaving, stayed):
        for number in range(10):
            tell(peer, long_pull(number))
    broker.handler.closed(leaving.channel)
    held = []
    while broker.handler.has_more:
        held.append(len(broker.hold_service))
        broker.handler.end_pass(Outbox())
    assert held == [16, 12]
    assert len(broker.hold_service) == 10


def test_held_pulls_of_a_deleted_topic_are_answered_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_service, "EXPIRED_COUNT", 4)
    peer, held = Peer(broker, 7), []
    broker.topics.put(TopicConfig("Other", 1, 1))
    for number in range(10):
        code, fields, body = long_pull(number)
        tell(peer, (code, fields, body))
        tell(peer, (code, fields | {"topic": "Other", "queueOffset": "0"}, body))
    broker.topics.remove("TBW102")
    broker.pulling.topic_deleted("TBW102", Outbox())
    while broker.handler.has_more:
        held.append(len(broker.hold_service))
        broker.handler.end_pass(Outbox())
    assert held == [16, 12]
    assert len(broker.hold_service) == 10


@pytest.mark.parametrize(("code", "notice"), [(222, b'"code":220'), (223, b'"code":221')])
def test_many_members_are_notified_in_turns(
    code: int, notice: bytes, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_calls, "NOTICES_MAX", 2)
    members = [Peer(broker, 20 + number) for number in range(5)]
    for member in members:
        tell(member, heartbeat(0, consumer=True))
    broker.offsets.commit("TBW102", "g0", 0, 1)
    broker.topics.put(TopicConfig("TBW102", 1, 1))
    asker = Peer(broker, 7)
    for member in members:
        member.heard()
    tell(asker, (code, {"topic": "TBW102", "group": "g0", "timestamp": "0"}, b""))
    told = []
    while asker.channel.rest is not None:
        told.append([notice in member.heard() for member in members].count(True))
        rest, asker.channel.rest = asker.channel.rest, None
        outbox = Outbox()
        rest(outbox)
        outbox.flush()
    assert told == [2, 2]
    assert [notice in member.heard() for member in members].count(True) == 1


def test_a_refused_call_keeps_waiting_calls(broker: Broker) -> None:
    """A query of the consumer status (223) calls each member. Above the quota, only the new calls are dropped."""
    for number in range(2):
        tell(Peer(broker, 20 + number), heartbeat(0, consumer=True))
    asked = (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "TBW102", "group": "g0"}, b"")
    calls = broker.administering.calls
    assert tell(Peer(broker, 7), asked) == b""
    waiting = list(calls._waiting)
    calls.quota.size_max = 3
    assert b'"code":2' in tell(Peer(broker, 8), asked)
    assert (list(calls._waiting), calls.quota.used) == (waiting, 2)


def test_names_in_a_heartbeat_have_a_maximum_length(broker: Broker) -> None:
    """A heartbeat that contains a too long name is refused with an error about this name, and nothing is stored."""
    used = [quota.used for quota in broker.handler.quotas]
    for client_id, group, topic, named in (
        ("c" * 256, "g", "T", "clientID"),
        ("c", "g" * 256, "T", "groupName"),
        ("c", "g", "T" * 300, "topic"),
    ):
        consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
        body = msgspec.json.encode({"clientID": client_id, "consumerDataSet": [consumer]})
        answered = tell(Peer(broker), (RequestCode.HEART_BEAT, {}, body))
        assert b"shorten it" in answered
        assert named.encode() in answered
    assert [quota.used for quota in broker.handler.quotas] == used
    assert broker.administering.clients.programs == {}


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("named", ["clientId", "consumerGroup", "topic", "brokerName"])
def test_names_in_lock_requests_have_a_maximum_length(named: str, code: int, broker: Broker) -> None:
    told: dict[str, Any] = {"consumerGroup": "G", "clientId": "c"}
    queue = {"topic": "T", "brokerName": "b", "queueId": 0}
    (queue if named in queue else told)[named] = "n" * 300
    answered = tell(Peer(broker), (code, {}, msgspec.json.encode({**told, "mqSet": [queue]})))
    assert b"shorten it" in answered
    assert named.encode() in answered
    assert of(broker, "queue locks").used == 0


def test_one_connection_may_create_only_a_share_of_settings() -> None:
    settings = KvSettings()
    attacker, other = Sender(1, "10.0.0.1"), Sender(2, "10.0.0.2")
    refused = [settings.put("n", f"k{number:04}", "v", attacker) is not None for number in range(10_000)]
    assert sum(refused) // 10 == 804
    assert settings.put("n", "mine", "v", other) is None
    assert settings.put("n", "k0000", "w", attacker) is None
    for number in range(10_000):
        settings.remove("n", f"k{number:04}")
    assert settings.quota.used == 106


def test_every_quota_has_an_attack_and_a_line_in_the_docs(broker: Broker) -> None:
    names = [quota.name for quota in broker.handler.quotas]
    assert sorted(names) == sorted(ATTACKS)
    page = (Path(__file__).parents[2] / "docs/safety.md").read_text()
    for quota in (*broker.handler.quotas, *broker.name_server.quotas):
        assert f"| {quota.name} | {quota.size_max:,} |" in page


def test_deleted_topics_leave_no_rows_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic leaves no row in any table, whether requests or the timer made the rows."""
    monkeypatch.setattr(timer_offsets, "TOPIC_COUNT_MAX", 3)
    topics, counts = Topics(), TimerCounts()
    told = OwnTopics(topics, outlive=True)
    for number in range(10):
        topics.put(TopicConfig(f"t{number}"))
        told.forget(f"t{number}")
        topics.remove(f"t{number}")
        counts.add(f"t{number}", 1, 0)
        counts.add(f"t{number}", -1, 0)
    assert len(told._forgotten) <= 1
    assert len(counts.by_topic) <= 3


class Sender:
    """A connection with only the attributes that a quota uses."""

    def __init__(self, number: int, owner: str) -> None:
        self.number = number
        self.owner = owner


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 9), st.booleans())))
def test_a_quota_equals_a_plain_count(steps: list[tuple[int, int, int, bool]]) -> None:
    quota = Quota("table", 40)
    senders = [Sender(number, "ab"[number % 2]) for number in range(6)]
    plain: dict[int, int] = {}
    for number, key, size, takes in steps:
        if takes and quota.take(key, senders[number], size):
            plain[key] = max(size, plain.get(key, 0))
        elif not takes:
            quota.release(key)
            plain.pop(key, None)
        assert quota.used == sum(plain.values()) <= 40
    for key in list(plain):
        quota.release(key)
    assert not quota._counts


def test_one_address_cannot_use_up_a_quota() -> None:
    quota = Quota("table", 10_000)
    for number in range(200):
        for each in range(60):
            quota.take((number, each), Sender(number, "10.0.0.1"))
    assert 5_000 <= quota.used <= 7_500
    assert [quota._counts["connection", number] for number in (0, 199)] == [60, 10]
    for number in range(200):
        for each in range(60):
            quota.take((number, each, 2), Sender(1000 + number, "10.0.0.2"))
    assert quota.used <= 9_375
    assert quota.take("late", Sender(5000, "10.0.0.3"))
    known = Routes()
    attacker, other = Sender(1, "10.0.0.1"), Sender(2, "10.0.0.2")

    def register(number: int, sender: Sender, topic_count: int) -> bool:
        topics = {f"t{each}": TopicConfig(f"t{each}") for each in range(topic_count)}
        broker = RegisteredBroker("C", f"b{number}", 0, f"a:{number}", sender, (1, 1), 0, topics)
        return known.has_room(broker) and known.register(broker)

    taken = [register(number, attacker, 0) for number in range(1000)]
    assert sum(taken) == 200
    known.topics_quota.size_max = 500
    assert [register(number, attacker, 50) for number in range(3)] == [True, True, False]
    assert register(2000, other, 50)
    again = Sender(3, "10.0.0.2")
    assert register(2000, again, 50)
    assert known.topics_quota.used == 150
    known.closed(other)
    known.closed(attacker)
    assert [broker.channel for broker in known] == [again]
    assert [quota.used for quota in known.quotas] == [1, 50]


@pytest.mark.parametrize("name", ["topics", "groups", "offsets", "queue locks", "producers", "waiting calls"])
def test_a_quota_changes_under_its_tables_lock(name: str, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads serve clients, so a quota changes only under the lock of its table."""
    broker, client = brokers.served()
    for number in range(2):
        body = heartbeat(number, consumer=True)
        assert client.call(*body).code == 0
    administering = broker.administering
    guard = {
        "topics": broker.topics.guard,
        "groups": broker.groups.guard,
        "offsets": broker.offsets.guard,
        "queue locks": administering.locks.guard,
        "producers": administering.clients.lock,
        "waiting calls": administering.calls.lock,
    }[name]
    (quota,) = (each for each in broker.handler.quotas if each.name == name)
    seen = []
    monkeypatch.setattr(Quota, "_add", lambda own, *_entry: seen.append(own is not quota or is_held(guard)))
    client.send(*ATTACKS[name](9))
    client.call(RequestCode.HEART_BEAT, {}, b"{}")
    assert seen
    assert all(seen)


def is_held(guard: Any) -> bool:
    if guard.acquire(False):
        guard.release()
        return False
    return True
