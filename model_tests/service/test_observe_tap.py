"""What the proxy's tap makes of commands: events, their moments, and what it must not guess."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_tests.service.observed import events_of
from model_tests.support.broker.raw_client import pull_fields, send_fields

from longpoll_observe.events import Places, Subscriptions, id_of
from longpoll_observe.tap import ConnectionTap, TapTotals
from longpoll_protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from longpoll_protocol.codes import CommandFlag, MessageSysFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.frames.frame import Serialisation
from longpoll_protocol.headers import EndTransactionRequestHeader
from longpoll_protocol.log_record import HEAD, HEAD_SIZE, MAGIC_V1
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_protocol.tags import java_hash
from longpoll_recorder.offsets import NUMBER_MAX
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import ABSENT, Event

PULL, SEND = RequestCode.PULL_MESSAGE.value, RequestCode.SEND_MESSAGE_V2.value
EMPTY_19 = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}


class Scene:
    """A tap with a history of its own, and a clock that the test turns: every piece takes 1 ns."""

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
        """What was recorded, without the source's own start and stop."""
        self.stop()
        return events_of(self._directory)[1:-1]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "history")
    yield made
    made.stop()


def kinds(events: list[Event]) -> list[str]:
    """The names of the events, in order."""
    return [event.event for event in events]


@pytest.mark.parametrize("serialisation", list(Serialisation))
def test_a_pull_and_its_answer_are_told_with_their_moments(scene: Scene, serialisation: Serialisation) -> None:
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
    """Two answers of which the second begins in the piece that ends the first: it is dated by that piece."""
    for opaque in (1, 2):
        scene.asks(PULL, opaque, pull_fields("T", 7, timeout_ms=500))
    one, two = (b"".join(encode(Command(19, opaque, CommandFlag.RESPONSE, ext_fields=EMPTY_19))) for opaque in (1, 2))
    scene.says(one[:9])
    scene.says(one[9:] + two)
    answers = [event for event in scene.events() if event.event == "answer_sent"]
    assert [(event.after_ns, event.before_ns) for event in answers] == [(30, 41), (40, 41)]


def test_a_send_is_told_when_it_is_acknowledged(scene: Scene) -> None:
    scene.asks(SEND, 1, send_fields("T", -1, "TAGS\x01red\x02"))
    scene.answers(0, 1, {"msgId": "x", "queueId": "2", "queueOffset": "9"})
    scene.asks(SEND, 2, send_fields("T"))
    scene.answers(14, 2)
    asked, acknowledged, _again, refused = scene.events()
    assert asked.request == acknowledged.request != ""
    assert (acknowledged.event, acknowledged.queue, acknowledged.queue_offset) == ("message_acknowledged", 2, 9)
    assert acknowledged.tag == "red"
    assert (refused.event, refused.code) == ("answer_sent", 14)


def test_a_batch_is_told_message_by_message(scene: Scene) -> None:
    body = encode_batch([BatchMessage(b"a", "TAGS\x01red\x02"), BatchMessage(b"b", "")])
    scene.asks(RequestCode.SEND_BATCH_MESSAGE, 1, send_fields("T") | {"m": "true"}, body=body)
    scene.answers(0, 1, {"msgId": "x,y", "queueId": "0", "queueOffset": "4"})
    told = [(event.queue_offset, event.tag) for event in scene.events() if event.event == "message_acknowledged"]
    assert told == [(4, "red"), (5, "")]


def record(offset: int, body: bytes, properties: str, wide: bool = False) -> bytes:
    """A message as a pull's answer holds it, stored between hosts with IPv4 addresses, or IPv6 ones."""
    text = properties.encode()
    hosts = (bytes(20), bytes(20)) if wide else (bytes(8), bytes(8))
    parts = hosts[0], bytes(8), hosts[1], bytes(12), struct.pack(">i", len(body)), body, b"\x01T"
    rest = b"".join((*parts, struct.pack(">h", len(text)), text))
    flags = 0x30 if wide else 0
    return HEAD.pack(HEAD_SIZE + len(rest), MAGIC_V1, 0, 0, 0, offset, 0, flags, 0) + rest


FOUND = {"suggestWhichBrokerId": "0", "nextBeginOffset": "9", "minOffset": "0", "maxOffset": "9"}


@pytest.mark.parametrize("wide", [False, True])
def test_a_message_is_known_again_where_it_is_delivered(scene: Scene, wide: bool) -> None:
    """Send, acknowledgement and delivery tell one id and body; a place that no acknowledgement told is told once."""
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


def test_a_record_whose_lengths_do_not_fit_has_no_identity(scene: Scene) -> None:
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
def test_a_send_tells_when_its_message_may_be_delivered(
    scene: Scene, fields: dict[str, str], told: tuple[int, int, str]
) -> None:
    scene.asks(SEND, 1, fields)
    (sent,) = scene.events()
    assert (sent.delay_ms, sent.delay_level, sent.transaction) == told


@pytest.mark.parametrize(("flag", "end"), [(8, "commit"), (12, "rollback"), (0, "unknown")])
def test_the_end_of_a_transaction_names_its_message(scene: Scene, flag: int, end: str) -> None:
    header = EndTransactionRequestHeader(
        producer_group="P", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=flag, msg_id="k"
    )
    scene.asks(RequestCode.END_TRANSACTION, 1, header.encode(), flag=int(CommandFlag.ONE_WAY))
    (ended,) = scene.events()
    assert (ended.code, ended.ids, ended.transaction, ended.request) == (37, [id_of("k")], end, "")


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [1, 3, 0, 2]])
def test_places_are_new_once(order: list[int]) -> None:
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
def test_what_a_broker_stores_elsewhere_is_no_message_of_the_queue(scene: Scene, fields: dict[str, str]) -> None:
    scene.asks(SEND, 1, fields)
    scene.answers(0, 1, {"msgId": "x", "queueId": "0", "queueOffset": "0"})
    asked, answered = scene.events()
    assert (asked.event, answered.event, answered.code) == ("request_received", "answer_sent", 0)
    assert (answered.request, answered.topic, answered.queue) == (asked.request, asked.topic, asked.queue)
    assert (answered.queue_offset, answered.offset_min) == (-1, ABSENT)


def test_one_way_requests_and_the_brokers_own_leave_nothing(scene: Scene) -> None:
    scene.asks(PULL, 1, pull_fields("T", 0, timeout_ms=500), flag=int(CommandFlag.ONE_WAY))
    scene.asks(PULL, 2, pull_fields("T", 0, timeout_ms=500))
    scene.says(b"".join(encode(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 2, ext_fields={"consumerGroup": "G"}))))
    scene.asks(0, 2, None, flag=int(CommandFlag.RESPONSE))
    scene.answers(0, 77)
    scene.answers(19, 2, EMPTY_19)
    assert kinds(scene.events()) == ["request_received", "answer_sent"]


def test_a_second_answer_is_told_as_one(scene: Scene) -> None:
    scene.asks(PULL, 1, pull_fields("T", 7, timeout_ms=500))
    scene.answers(19, 1, EMPTY_19)
    scene.answers(19, 1, EMPTY_19)
    asked, one, two = scene.events()
    assert (one.event, one.request, two.request) == ("answer_sent", asked.request, asked.request)


def test_an_opaque_may_come_again_after_its_answer(scene: Scene) -> None:
    for _ in range(2):
        scene.asks(PULL, 1, pull_fields("T", 7, timeout_ms=500))
        scene.answers(19, 1, EMPTY_19)
    events = scene.events()
    assert kinds(events) == ["request_received", "answer_sent"] * 2
    assert events[0].request == events[1].request != events[2].request == events[3].request


def test_a_request_that_is_not_told_may_use_an_opaque_again(scene: Scene) -> None:
    scene.asks(PULL, 5, pull_fields("T", 0))
    scene.answers(19, 5, EMPTY_19)
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.HEART_BEAT, RequestCode.DELETE_TOPIC_IN_BROKER):
        scene.asks(code, 5, {"topic": "T", "queueId": "0"}, body=b'{"clientID":"c"}')
        scene.answers(0, 5, {"offset": "0"})
    assert kinds(scene.events()).count("answer_sent") == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["after it", "before it"])
def test_the_answer_of_a_request_that_is_not_told_is_no_answer_of_a_pull(scene: Scene, order: tuple[int, ...]) -> None:
    asks = [
        lambda: scene.asks(PULL, 5, pull_fields("T", 0)),
        lambda: scene.asks(RequestCode.GET_MAX_OFFSET, 5, {"topic": "T", "queueId": "0"}),
    ]
    for number in order:
        asks[number]()
    scene.answers(0, 5, {"offset": "0"})
    told = kinds(scene.events())
    assert "answer_sent" not in told
    assert "lost" in told


def test_two_open_requests_with_one_opaque_are_not_guessed_apart(scene: Scene) -> None:
    for offset in (7, 8):
        scene.asks(PULL, 1, pull_fields("T", offset, timeout_ms=500))
    scene.answers(19, 1, EMPTY_19)
    scene.answers(19, 1, EMPTY_19)
    scene.asks(PULL, 2, pull_fields("T", 7))
    events = scene.events()
    assert kinds(events) == ["request_received", "lost", "request_received"]
    assert events[1].lost_count == 3


def heartbeat(*subscriptions: SubscriptionData) -> bytes:
    """The body of a heartbeat of group G."""
    consumer = ConsumerData(group_name="G", subscription_data_set=list(subscriptions))
    return HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()


def told_expression(scene: Scene, version: int) -> tuple[str, str]:
    """What a pull without a subscription of its own is told to want."""
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
def test_a_pull_without_subscription_has_its_groups(
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
    ids=["other hashes", "no hashes", "a filter server", "nothing", "no tag"],
)
def test_what_a_broker_may_match_otherwise_is_no_subscription(scene: Scene, wanted: SubscriptionData) -> None:
    scene.asks(RequestCode.HEART_BEAT, 1, None, body=heartbeat(wanted))
    assert told_expression(scene, 1) == ("", "")


def test_an_empty_type_is_no_subscription(scene: Scene) -> None:
    scene.asks(PULL, 1, pull_fields("T", 0) | {"expressionType": ""})
    (asked,) = scene.events()
    assert (asked.expression_type, asked.expression) == ("", "")


def test_a_batch_with_tags_on_both_sides_is_no_message_of_the_queue(scene: Scene) -> None:
    body = encode_batch([BatchMessage(b"a", "TAGS\x01red\x02"), BatchMessage(b"b", "TAGS\x01blue\x02")])
    scene.asks(RequestCode.SEND_BATCH_MESSAGE, 1, send_fields("T", 0, "TAGS\x01red\x02") | {"m": "true"}, body=body)
    scene.answers(0, 1, {"msgId": "x,y", "queueId": "0", "queueOffset": "4"})
    assert kinds(scene.events()) == ["request_received", "answer_sent"]


def test_a_request_that_cannot_be_read_is_declared(scene: Scene) -> None:
    scene.asks(PULL, 1, {"topic": "T"})
    scene.asks(PULL, 2, pull_fields("T", 0))
    scene.answers(0, 2, EMPTY_19, body=b"x" * 50)
    scene.asks(PULL, 3, pull_fields("T", 0))
    events = scene.events()
    assert kinds(events) == ["lost", "request_received", "lost", "request_received"]


def test_numbers_beyond_the_schema_are_cut(scene: Scene) -> None:
    group = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    scene.asks(PULL, 1, pull_fields("T", 1 << 62))
    scene.asks(RequestCode.UPDATE_CONSUMER_OFFSET, 2, group | {"commitOffset": str(1 << 62)})
    scene.asks(RequestCode.QUERY_CONSUMER_OFFSET, 3, group)
    scene.answers(0, 3, {"offset": str(1 << 62)})
    pulled, committed, _asked, told = scene.events()
    assert [pulled.offset, committed.commit_offset, told.offset] == [NUMBER_MAX] * 3
