"""The recording proxy's events and routes, and real recordings with injected faults."""

from __future__ import annotations

import json
import logging
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import Brokers, wait_until
from model_tests.support.broker.observed import events_of, observing
from model_tests.support.broker.raw_client import PATIENCE_S, pull_fields, send_fields, send_message
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.present import present

from longpoll_judge.run.pipeline import judge
from longpoll_observe import Observer
from longpoll_observe.events import Places, Subscriptions, id_of
from longpoll_observe.observer import UNCERTAINTY_NS_MIN, UNCERTAINTY_NS_UNMEASURED
from longpoll_observe.routes import RouteTap
from longpoll_observe.tap import ConnectionTap, TapTotals
from longpoll_protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, TopicRouteData
from longpoll_protocol.codes import CommandFlag, MessageSysFlag, RequestCode
from longpoll_protocol.frames import HEAD, LENGTH_SIZE, Command, FrameReader, Serialisation, decode_frame, encode
from longpoll_protocol.headers import EndTransactionRequestHeader
from longpoll_protocol.log_record import CRC_MASK, HEAD_SIZE, MAGIC_V1
from longpoll_protocol.log_record import HEAD as RECORD_HEAD
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_protocol.properties import java_hash
from longpoll_recorder.recorder import NUMBER_MAX, HistoryRecorder
from longpoll_runtime import Socket
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import ABSENT, META_FILE, Event, Meta

PULL, SEND = RequestCode.PULL_MESSAGE.value, RequestCode.SEND_MESSAGE_V2.value
EMPTY_19 = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}


class Scene:
    """A tap with its own history and a manual clock, which advances by 1 ns at every chunk of bytes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recorder = HistoryRecorder(RealRuntime(), str(directory), broker="b:1", policy="")
        self.tap = ConnectionTap(self._recorder, Subscriptions.none(), "1", TapTotals())
        self._now_ns = 0
        self._is_read = False

    def asks(self, code: int, opaque: int, fields: dict[str, str] | None, **more: Any) -> None:
        self.forwards(b"".join(encode(Command(code, opaque, ext_fields=fields, **more))))

    def answers(self, code: int, opaque: int, fields: dict[str, str] | None = None, **more: Any) -> None:
        self.says(b"".join(encode(Command(code, opaque, CommandFlag.RESPONSE, ext_fields=fields, **more))))

    def unix_ms(self) -> int:
        """The Unix time in ms at which the next chunk of bytes arrives."""
        return self._recorder.unix_ms(self._now_ns + 10)

    def forwards(self, content: bytes) -> None:
        self._now_ns += 10
        self.tap.forwarded(content, self._now_ns, self._now_ns + 1)

    def says(self, content: bytes) -> None:
        self._now_ns += 10
        self.tap.answered(content, self._now_ns, self._now_ns + 1)

    def stop(self) -> None:
        if not self._is_read:
            self._recorder.stop()
        self._is_read = True

    def events(self) -> list[Event]:
        self.stop()
        return events_of(self._directory)[1:-1]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "history")
    yield made
    made.stop()


def kinds(events: list[Event]) -> list[str]:
    return [event.event for event in events]


@pytest.mark.parametrize("serialisation", list(Serialisation))
def test_a_pull_and_its_answer_are_recorded_with_times(scene: Scene, serialisation: Serialisation) -> None:
    request = b"".join(
        encode(
            Command(PULL, 5, ext_fields=pull_fields("T", 7, queue_id=3, timeout_ms=500), serialisation=serialisation)
        )
    )
    scene.forwards(request[:20])
    scene.forwards(request[20:])
    answer = b"".join(encode(Command(19, 5, CommandFlag.RESPONSE, ext_fields=EMPTY_19, serialisation=serialisation)))
    scene.says(answer[:3])
    scene.says(answer[3:])
    asked, answered = scene.events()
    assert (asked.event, asked.after_ns, asked.before_ns) == ("request_received", 20, 21)
    assert (answered.event, answered.after_ns, answered.before_ns) == ("answer_sent", 30, 41)
    assert (asked.topic, asked.queue, asked.offset, asked.count_max) == ("T", 3, 7, 32)
    assert (asked.may_hold, asked.timeout_ms, asked.expression_type, asked.expression) == (True, 500, "TAG", "*")
    assert (answered.code, answered.offset_next, answered.offset_min, answered.offset_max) == (19, 7, 0, 7)
    assert asked.request == answered.request != ""
    assert (answered.topic, answered.queue, answered.broker) == ("T", 3, "b:1")


def test_pieces_of_an_earlier_frame_do_not_date_the_next(scene: Scene) -> None:
    for opaque in (1, 2):
        scene.asks(PULL, opaque, pull_fields("T", 7, timeout_ms=500))
    one, two = (b"".join(encode(Command(19, opaque, CommandFlag.RESPONSE, ext_fields=EMPTY_19))) for opaque in (1, 2))
    scene.says(one[:9])
    scene.says(one[9:] + two)
    answers = [event for event in scene.events() if event.event == "answer_sent"]
    assert [(event.after_ns, event.before_ns) for event in answers] == [(30, 41), (40, 41)]


def test_an_acknowledged_send_is_recorded(scene: Scene) -> None:
    scene.asks(SEND, 1, send_fields("T", -1, "TAGS\x01red\x02"))
    scene.answers(0, 1, {"msgId": "x", "queueId": "2", "queueOffset": "9"})
    scene.asks(SEND, 2, send_fields("T"))
    scene.answers(14, 2)
    asked, acknowledged, _again, refused = scene.events()
    assert asked.request == acknowledged.request != ""
    assert (acknowledged.event, acknowledged.queue, acknowledged.queue_offset) == ("message_acknowledged", 2, 9)
    assert acknowledged.tag == "red"
    assert (refused.event, refused.code) == ("answer_sent", 14)


def test_each_message_of_a_batch_is_recorded(scene: Scene) -> None:
    body = encode_batch([BatchMessage(b"a", "TAGS\x01red\x02"), BatchMessage(b"b", "")])
    scene.asks(RequestCode.SEND_BATCH_MESSAGE, 1, send_fields("T") | {"m": "true"}, body=body)
    scene.answers(0, 1, {"msgId": "x,y", "queueId": "0", "queueOffset": "4"})
    told = [(event.queue_offset, event.tag) for event in scene.events() if event.event == "message_acknowledged"]
    assert told == [(4, "red"), (5, "")]


def record(offset: int, body: bytes, properties: str, wide: bool = False) -> bytes:
    """A message as a pull's answer encodes it; `wide` chooses IPv6 addresses of its hosts instead of IPv4."""
    text = properties.encode()
    hosts = (bytes(20), bytes(20)) if wide else (bytes(8), bytes(8))
    parts = hosts[0], bytes(8), hosts[1], bytes(12), struct.pack(">i", len(body)), body, b"\x01T"
    rest = b"".join((*parts, struct.pack(">h", len(text)), text))
    flags = 0x30 if wide else 0
    return (
        RECORD_HEAD.pack(HEAD_SIZE + len(rest), MAGIC_V1, zlib.crc32(body) & CRC_MASK, 0, 0, offset, 0, flags, 0) + rest
    )


FOUND = {"suggestWhichBrokerId": "0", "nextBeginOffset": "9", "minOffset": "0", "maxOffset": "9"}


@pytest.mark.parametrize("wide", [False, True])
def test_a_message_has_the_same_id_at_its_delivery(scene: Scene, wide: bool) -> None:
    """The events of a message's send, acknowledgement and delivery contain the same id."""
    scene.asks(SEND, 1, send_fields("T", 0, "UNIQ_KEY\x01k7\x02TAGS\x01red\x02"), body=b"seven")
    scene.answers(0, 1, {"msgId": "x", "queueId": "0", "queueOffset": "7"})
    body = record(7, b"seven", "TAGS\x01red\x02UNIQ_KEY\x01k7\x02", wide) + record(8, b"", "TAGS\x01blue\x02", wide)
    for opaque in (2, 3):
        scene.asks(PULL, opaque, pull_fields("T", 7))
        scene.answers(0, opaque, FOUND, body=body)
    sent, acknowledged, _asked, found, seen, _again, *rest = scene.events()
    assert sent.ids == acknowledged.ids == found.ids[:1] == [id_of("k7")] != [0]
    assert sent.bodies == acknowledged.bodies == found.bodies[:1] == [zlib.crc32(b"seven")]
    assert (found.offsets, found.ids[1], found.bodies[1]) == ([7, 8], 0, zlib.crc32(b""))
    assert (seen.event, seen.queue_offset, seen.tag) == ("message_seen", 8, "blue")
    assert kinds(rest) == ["answer_sent"]


def test_a_record_with_wrong_lengths_has_no_identity(scene: Scene) -> None:
    body = bytearray(record(7, b"seven", "UNIQ_KEY\x01k\x02"))
    body[HEAD_SIZE + 39] += 1
    scene.asks(PULL, 1, pull_fields("T", 7))
    scene.answers(0, 1, FOUND, body=bytes(body))
    _asked, found, _seen = scene.events()
    assert (found.offsets, found.ids, found.bodies) == ([7], [0], [-1])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (send_fields("T", 0, "DELAY\x013\x02"), (-1, 3, "")),
        (send_fields("T", 0, "TIMER_DELAY_SEC\x015\x02"), (5_000, -1, "")),
        (send_fields("T", 0, "TRAN_MSG\x01true\x02"), (-1, -1, "prepared")),
        (send_fields("T", 0, "DELAY\x01soon\x02"), (-1, -1, "")),
    ],
)
def test_a_sends_delay_and_transaction_are_recorded(
    scene: Scene, fields: dict[str, str], told: tuple[int, int, str]
) -> None:
    scene.asks(SEND, 1, fields)
    (sent,) = scene.events()
    assert (sent.delay_ms, sent.delay_level, sent.transaction) == told


@pytest.mark.parametrize(("flag", "end"), [(8, "commit"), (12, "rollback"), (0, "unknown")])
def test_the_end_of_a_transaction_has_its_messages_id(scene: Scene, flag: int, end: str) -> None:
    header = EndTransactionRequestHeader(
        producer_group="P", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=flag, msg_id="k"
    )
    scene.asks(RequestCode.END_TRANSACTION, 1, header.encode(), flag=int(CommandFlag.ONE_WAY))
    (ended,) = scene.events()
    assert (ended.code, ended.ids, ended.transaction, ended.request) == (37, [id_of("k")], end, "")


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [1, 3, 0, 2]])
def test_a_place_is_new_only_once(order: list[int]) -> None:
    places = Places()
    assert all(places.add("T", 0, offset) for offset in order)
    assert not any(places.add("T", 0, offset) for offset in order)
    assert places.add("T", 1, 0)


@pytest.mark.parametrize(
    "fields",
    [
        send_fields("T", 0, "DELAY\x013\x02"),
        send_fields("T", 0, "TRAN_MSG\x01true\x02"),
        send_fields("T", 0, "TIMER_DELAY_SEC\x015\x02"),
        send_fields("T") | {"f": str(int(MessageSysFlag.TRANSACTION_PREPARED))},
        send_fields("%RETRY%G"),
    ],
)
def test_a_delayed_or_prepared_send_has_no_place_in_its_queue(scene: Scene, fields: dict[str, str]) -> None:
    scene.asks(SEND, 1, fields)
    scene.answers(0, 1, {"msgId": "x", "queueId": "0", "queueOffset": "0"})
    asked, answered = scene.events()
    assert (asked.event, answered.event, answered.code) == ("request_received", "answer_sent", 0)
    assert (answered.request, answered.topic, answered.queue) == (asked.request, asked.topic, asked.queue)
    assert (answered.queue_offset, answered.offset_min) == (-1, ABSENT)


Step = tuple[str, int, int, dict[str, str] | None, dict[str, Any]]
"""(whether the client sends the command, code, opaque, header fields, other attributes of the command)"""
GROUP: Final = {"topic": "T", "queueId": "0", "consumerGroup": "G"}
RESPONSE, ONE_WAY = int(CommandFlag.RESPONSE), int(CommandFlag.ONE_WAY)
BOTH: Final = send_fields("T", 0, "TAGS\x01red\x02") | {"m": "true"}
BOTH_TAGS: Final = encode_batch([BatchMessage(b"a", "TAGS\x01red\x02"), BatchMessage(b"b", "TAGS\x01blue\x02")])


def asks(opaque: int, code: int = PULL, fields: dict[str, str] | None = None, **more: Any) -> Step:
    return "asks", code, opaque, fields or pull_fields("T", 7, timeout_ms=500), more


def answers(opaque: int, code: int = 19, fields: dict[str, str] | None = None, **more: Any) -> Step:
    return "answers", code, opaque, fields or EMPTY_19, more


OFFSET: Final = answers(5, 0, {"offset": "0"})
MAX: Final = asks(5, RequestCode.GET_MAX_OFFSET, GROUP)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        pytest.param(
            [asks(1, flag=ONE_WAY), asks(2), asks(2, 0, {}, flag=RESPONSE), answers(77, 0), answers(2)],
            "request_received 0, answer_sent 0",
            id="one-way requests and stray answers give no events",
        ),
        pytest.param(
            [asks(1), answers(1), answers(1)],
            "request_received 0, answer_sent 0, answer_sent 0",
            id="a second answer is recorded too",
        ),
        pytest.param(
            [asks(1), answers(1), asks(1), answers(1)],
            "request_received 0, answer_sent 0, request_received 1, answer_sent 1",
            id="an opaque may be used again after its answer",
        ),
        pytest.param(
            [asks(5), answers(5), MAX, OFFSET, asks(5, RequestCode.DELETE_TOPIC_IN_BROKER, GROUP), OFFSET],
            "request_received 0, answer_sent 0, request_received",
            id="a request that is not recorded may use the opaque again",
        ),
        pytest.param(
            [asks(5), MAX, OFFSET], "request_received 0, lost 1", id="an answer to a request that is not recorded"
        ),
        pytest.param([MAX, asks(5), OFFSET], "lost 2", id="an answer to an earlier request that is not recorded"),
        pytest.param(
            [asks(1), asks(1), answers(1), answers(1), asks(2)],
            "request_received 0, lost 3, request_received 1",
            id="two open requests with one opaque are lost",
        ),
        pytest.param(
            [
                asks(1, RequestCode.SEND_BATCH_MESSAGE, BOTH, body=BOTH_TAGS),
                answers(1, 0, {"msgId": "x,y", "queueId": "0", "queueOffset": "4"}),
            ],
            "request_received 0, answer_sent 0",
            id="a batch with tags in request and messages gives no message",
        ),
        pytest.param(
            [asks(1, PULL, {"topic": "T"}), asks(2), answers(2, 0, body=b"x" * 50), asks(3)],
            "lost 1, request_received 0, lost 1, request_received 1",
            id="unreadable requests and answers are reported as lost",
        ),
    ],
)
def test_the_events_of_each_conversation(scene: Scene, steps: list[Step], told: str) -> None:
    """Each event of a conversation has the number of its request, or states how many requests were lost."""
    for step, code, opaque, fields, more in steps:
        getattr(scene, step)(code, opaque, fields, **more)
    events = scene.events()
    numbers = {
        name: str(number) for number, name in enumerate(dict.fromkeys(each.request for each in events if each.request))
    }
    found = [f"{each.event} {each.lost_count or numbers.get(each.request, '')}".strip() for each in events]
    assert ", ".join(found) == told


def test_requests_of_the_broker_are_not_recorded(scene: Scene) -> None:
    scene.says(b"".join(encode(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 2, ext_fields={"consumerGroup": "G"}))))
    assert scene.events() == []


def heartbeat(*subscriptions: SubscriptionData) -> bytes:
    consumer = ConsumerData(group_name="G", subscription_data_set=list(subscriptions))
    return HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()


def told_expression(scene: Scene, version: int) -> tuple[str, str]:
    """Returns the recorded type and text of the expression of a pull that has no subscription."""
    fields = pull_fields("T", 0) | {"sysFlag": "2", "subVersion": str(version)}
    scene.asks(PULL, 9, {name: value for name, value in fields.items() if name != "subscription"})
    event = scene.events()[-1]
    return event.expression_type, event.expression


@pytest.mark.parametrize(
    ("expressions", "version", "expected"),
    [
        ([], 1, ("", "")),
        ([("a || b", 1)], 1, ("TAG", "a || b")),
        ([("a || b", 2)], 1, ("TAG", "a || b")),
        ([("a", 1), ("b", 2)], 2, ("TAG", "b")),
        ([("a", 1), ("b", 2)], 1, ("", "")),
        ([("a", 1), ("b", 1)], 1, ("", "")),
        ([("a", 1), ("b", 1), ("a", 1)], 1, ("", "")),
        ([("a", 1), ("b", 1), ("c", 2)], 2, ("TAG", "c")),
    ],
)
def test_a_pull_without_subscription_gets_its_groups_one(
    scene: Scene, expressions: list[tuple[str, int]], version: int, expected: tuple[str, str]
) -> None:
    for opaque, (expression, said_version) in enumerate(expressions):
        codes = frozenset(java_hash(tag) for tag in expression.split(" || "))
        wanted = SubscriptionData(topic="T", sub_string=expression, sub_version=said_version, code_set=codes)
        scene.asks(RequestCode.HEART_BEAT, opaque, None, body=heartbeat(wanted))
    assert told_expression(scene, version) == expected


@pytest.mark.parametrize(
    "wanted",
    [
        SubscriptionData(topic="T", sub_string="a", sub_version=1, code_set=frozenset({java_hash("b")})),
        SubscriptionData(topic="T", sub_string="a", sub_version=1),
        SubscriptionData(topic="T", sub_string="*", sub_version=1, class_filter_mode=True),
        SubscriptionData(topic="T", sub_string="", sub_version=1),
        SubscriptionData(topic="T", sub_string=" || ", sub_version=1),
    ],
    ids=["wrong hashes", "no hashes", "class filter", "empty expression", "no tag in the expression"],
)
def test_an_ambiguous_subscription_is_not_recorded(scene: Scene, wanted: SubscriptionData) -> None:
    scene.asks(RequestCode.HEART_BEAT, 1, None, body=heartbeat(wanted))
    assert told_expression(scene, 1) == ("", "")


def test_an_empty_expression_type_is_not_recorded(scene: Scene) -> None:
    scene.asks(PULL, 1, pull_fields("T", 0) | {"expressionType": ""})
    (asked,) = scene.events()
    assert (asked.expression_type, asked.expression) == ("", "")


def test_numbers_beyond_the_schema_become_its_maximum(scene: Scene) -> None:
    group = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    scene.asks(PULL, 1, pull_fields("T", 1 << 62))
    scene.asks(RequestCode.UPDATE_CONSUMER_OFFSET, 2, group | {"commitOffset": str(1 << 62)})
    scene.asks(RequestCode.QUERY_CONSUMER_OFFSET, 3, group)
    scene.answers(0, 3, {"offset": str(1 << 62)})
    pulled, committed, _asked, told = scene.events()
    assert [pulled.offset, committed.commit_offset, told.offset] == [NUMBER_MAX] * 3


ALLOWED_MS: Final = 3_600_000.0
"""A tolerance in ms, so large that no event of a recording counts as late, even on a busy machine."""


def test_a_recording_of_each_kind_of_message_is_valid(brokers: Brokers, tmp_path: Path) -> None:
    """The recording has two plain messages, a committed, a rolled-back and a delayed one."""
    with observing(brokers.start().address, tmp_path / "history") as proxy:
        (door,) = proxy.doors.values()
        client = brokers.connect(door)

        def sent(unique: str, properties: str = "", flag: str = "0") -> dict[str, str]:
            answer = client.put("T", unique.encode(), properties=f"UNIQ_KEY\x01{unique}\x02{properties}", f=flag)
            return present(answer.ext_fields)

        def pulled(offset: int) -> str:
            return present(client.pull("T", offset, timeout_ms=60_000).ext_fields)["nextBeginOffset"]

        sent("a")
        sent("b")
        assert pulled(0) == "2"
        for unique, outcome in (("c", 8), ("e", 12)):
            stored = sent(unique, "TRAN_MSG\x01true\x02PGROUP\x01P\x02", "4")
            place = {"commitLogOffset": int(stored["msgId"][-16:], 16), "tranStateTableOffset": stored["queueOffset"]}
            end = {"producerGroup": "P", "msgId": unique, "commitOrRollback": outcome}
            assert client.ask(RequestCode.END_TRANSACTION, **end, **place).code == 0
        assert pulled(2) == "3"
        sent("d", "DELAY\x011\x02")
        assert pulled(3) == "4"
    events = events_of(tmp_path / "history")
    assert {id_of(name) for name in "abcd"} <= {each for one in events for each in one.ids if one.offsets}
    found = judge([tmp_path / "history"], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)
    assert (found.verdict, found.findings, found.gaps, found.observations) == ("valid", [], [], [])


ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC.value
# fastjson writes integer keys without quotes.
FASTJSON = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'
)


def answer(opaque: int, body: bytes = b"", code: int = 0) -> bytes:
    return b"".join(encode(Command(code, opaque, CommandFlag.RESPONSE, body=body)))


def asked(tap: RouteTap, opaque: int, code: int = ROUTE) -> None:
    tap.forwarded(b"".join(encode(Command(code, opaque, ext_fields={"topic": "T"}))), 0, 1)


def command_of(content: bytes) -> Command:
    reader = FrameReader()
    reader.feed(content)
    frame = present(reader.next_frame())
    return decode_frame(frame)


@given(st.data())
def test_only_addresses_of_route_answers_change(data: st.DataObject) -> None:
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    asked(tap, 2, RequestCode.HEART_BEAT)
    asked(tap, 3)
    before, after = answer(2, FASTJSON), answer(3, code=17)
    stream = before + answer(1, FASTJSON) + after + answer(1, FASTJSON)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    told = b"".join(tap.rewrite(piece) for piece in pieces if piece)
    # The last response has no open request, so the proxy leaves its addresses unchanged.
    assert told.startswith(before)
    assert told.endswith(after + answer(1, FASTJSON))
    changed = command_of(told[len(before) : -len(after + answer(1, FASTJSON))])
    route = TopicRouteData.decode(changed.body)
    assert route.broker_datas[0].broker_addrs == {0: "proxy/10.0.0.1:10911", 1: "proxy/10.0.0.2:10911"}
    assert route.queue_datas[0].read_queue_nums == 4
    assert (changed.opaque, changed.code) == (1, 0)


@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\0\0\0\1aaaa"], ids=["length too large", "length too small"])
def test_an_undecodable_stream_passes_unchanged(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    assert (tap.rewrite(garbage), tap.rewrite(b"abc")) == (garbage, b"abc")
    assert (tap.rewrite(answer(1, FASTJSON)), len(caplog.records)) == (answer(1, FASTJSON), 1)


def test_a_route_body_that_is_no_json_passes_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    asked(tap, 2)
    assert tap.rewrite(answer(1, b"{nothing")) == answer(1, b"{nothing")
    assert b"proxy/10.0.0.1" in tap.rewrite(answer(2, FASTJSON))
    assert ["unchanged" in record.message for record in caplog.records] == [True]


def test_several_brokers_are_observed_through_one_name_server(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each observed broker gets its own port and its own source in the history."""
    caplog.set_level(logging.WARNING)
    named = brokers.start(directory=str(tmp_path / "a"))
    routed = brokers.start(directory=str(tmp_path / "b"))
    history = tmp_path / "history"
    with Observer.start(
        RealRuntime(), brokers=[named.address], name_server=routed.name_server_address, record_directory=str(history)
    ) as proxy:
        assert proxy.name_server_address is not None
        send_message(brokers.connect(proxy.doors["{}:{}".format(*named.address)]), "T")
        send_message(brokers.connect(routed), "T")
        asking = brokers.connect(proxy.name_server_address)
        found = [asking.call(ROUTE, {"topic": "T"}) for _ in range(2)]
        cluster = asking.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        addresses = {TopicRouteData.decode(reply.body).broker_datas[0].broker_addrs[0] for reply in found}
        door = proxy.doors["{}:{}".format(*routed.address)]
        assert addresses == {"{}:{}".format(*door)}
        assert "{}:{}".format(*door) in str(msgspec.json.decode(cluster.body))
        assert send_message(brokers.connect(door), "T") == 1
    told = [event for event in events_of(history) if event.event == "message_acknowledged"]
    assert {(event.broker, event.queue_offset) for event in told} == {
        ("{}:{}".format(*named.address), 0),
        ("{}:{}".format(*routed.address), 1),
    }
    assert len({event.source for event in told}) == 2
    assert ["is observed at" in record.message for record in caplog.records] == [True]


ODD_BODY = (
    b' {"brokerDatas" : [ {"z":1.10,"brokerAddrs":{ 0 : "10.0.0.1:10911" , "1":"10.0.0.2:10911"},"a":"\\u00e9\\/",'
    b'"e":[],"brokerName":"\\"brokerAddrs\\":{\\"0\\":\\"10.0.0.1:1\\"}"}],\n\t"orderTopicConf":null,'
    b'"more":{"brokerAddrs":"10.0.0.1:10911","x":{"\\u0062rokerAddrs":{"0":"10.0.0.1:\\u00310911"}}} } '
)
JSON_HEADER = (
    b'{ "version":397,"zzz":[1.10,"\\u00e9", null],"flag":1,"code":0 ,"opaque":7,"extFields":{"b":"1","a":"\\/"},'
    b'"language":"JAVA","serializeTypeCurrentRPC":"JSON"}'
)


def framed(mark: int, header: bytes, body: bytes) -> bytes:
    return HEAD.pack(LENGTH_SIZE + len(header) + len(body), mark << 24 | len(header)) + header + body


def rocketmq_header() -> bytes:
    """Returns a command in RocketMQ's own encoding, with an empty field that our reader drops."""
    fields = b"\0\1b\0\0\0\0" + b"\0\1a\0\0\0\x012"
    return struct.pack(">hbhiii", 0, 0, 397, 7, 1, 0) + struct.pack(">i", len(fields)) + fields


@pytest.mark.parametrize(
    ("mark", "header"), [(0, JSON_HEADER), (1, rocketmq_header())], ids=["JSON header", "ROCKETMQ header"]
)
def test_only_addresses_of_a_route_are_changed(mark: int, header: bytes) -> None:
    tap = RouteTap(lambda address: "[::1]:4" if address == "10.0.0.1:10911" else address)
    asked(tap, 7)
    told = tap.rewrite(framed(mark, header, ODD_BODY))
    expected = ODD_BODY.replace(b'0 : "10.0.0.1:10911"', b'0 : "[::1]:4"')
    expected = expected.replace(b'"10.0.0.1:\\u00310911"', b'"[::1]:4"')
    assert told == framed(mark, header, expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.just("h:1"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["brokerAddrs", "0"]), inner, max_size=4)
    ),
    max_leaves=20,
)


def replaced(value: Any, *, here: bool = False) -> Any:
    """A simple reference implementation: returns the JSON value with each address in its strings replaced."""
    if isinstance(value, list):
        return [replaced(item) for item in value]
    if isinstance(value, dict):
        return {
            key: "door:2" if here and isinstance(item, str) else replaced(item, here=key == "brokerAddrs")
            for key, item in value.items()
        }
    return value


@given(json_values, st.booleans())
def test_replaced_addresses_are_those_json_decodes(value: Any, spaced: bool) -> None:
    body = json.dumps(value, ensure_ascii=spaced, indent=1 if spaced else None).encode("utf-8", "surrogatepass")
    tap = RouteTap(lambda _address: "door:2")
    asked(tap, 7)
    told = tap.rewrite(framed(0, JSON_HEADER, body))
    assert json.loads(told[8 + len(JSON_HEADER) :]) == replaced(value)


class Unreachable(RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.refuses = threading.Event()

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        self.refuses.wait(PATIENCE_S)
        raise TimeoutError(f"{host}:{port} does not answer within {timeout_s} s")


def test_unresponsive_brokers_do_not_delay_a_route(brokers: Brokers, tmp_path: Path) -> None:
    addresses = b",".join(b'"%d":"10.0.0.1:%d"' % (number, 9000 + number) for number in range(5))
    runtime = Unreachable()

    def say(peer: Peer, command: Command) -> None:
        peer.answer(command, 0, body=b'{"brokerDatas":[{"brokerAddrs":{%s}}]}' % addresses)

    with (
        ScriptedServer(say) as server,
        Observer.start(
            runtime, brokers=[], name_server=(server.host, server.port), record_directory=str(tmp_path / "history")
        ) as proxy,
    ):
        assert proxy.name_server_address is not None
        reply = brokers.connect(proxy.name_server_address).call(ROUTE, {"topic": "T"})
        assert not runtime.refuses.is_set()
        assert len(proxy.doors) == 5
        assert b"10.0.0.1" not in bytes(reply.body)
        runtime.refuses.set()


def test_the_clock_of_a_broker_in_a_route_is_measured(brokers: Brokers, tmp_path: Path) -> None:
    broker, history = brokers.start(), tmp_path / "history"
    with Observer.start(
        RealRuntime(), brokers=[], name_server=broker.name_server_address, record_directory=str(history)
    ) as proxy:
        assert proxy.name_server_address is not None
        send_message(brokers.connect(broker), "T")
        brokers.connect(proxy.name_server_address).call(ROUTE, {"topic": "T"})

        def uncertainty_ns() -> int:
            return msgspec.json.decode((history / META_FILE).read_bytes(), type=Meta).sources[0].uncertainty_ns

        wait_until(lambda: uncertainty_ns() != UNCERTAINTY_NS_UNMEASURED)
        assert uncertainty_ns() >= UNCERTAINTY_NS_MIN
