"""The recording proxy's events of pops: requests, answers, and received messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.service.test_observe_tap import Scene, record

from longpoll_observe.events import id_of
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.pop_headers import PopCode, normal_topic, read_handle
from longpoll_spec.history import Event

POP, NOTIFICATION, ACK, CHANGE = (int(code) for code in PopCode)
BATCH: Final = 200_151
ANSWER: Final = {"popTime": "7", "invisibleTime": "9000", "reviveQid": "0", "restNum": "0"}
HANDLE: Final = "3 7 9000 0 {} b 2 5"
RETRIED: Final = f"TAGS\x01red\x02UNIQ_KEY\x01k7\x02POP_CK\x01{HANDLE.format(1)}\x02"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "history")
    yield made
    made.stop()


def pop(**fields: str) -> dict[str, str]:
    asked = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "8", "invisibleTime": "9000"}
    return asked | {"pollTime": "500", "bornTime": "0", "initMode": "0"} | fields


def about(code: int, retry: int, **fields: str) -> tuple[int, dict[str, str]]:
    topic = ("T", "%RETRY%G_T", "%RETRY%G+T")[retry]
    asked = {"consumerGroup": "G", "topic": topic, "queueId": "2", "offset": "5", "extraInfo": HANDLE.format(retry)}
    return code, asked | fields


def of(told: Event, **expected: Any) -> None:
    assert {name: getattr(told, name) for name in expected} == expected


def test_a_pop_and_its_messages_are_recorded(scene: Scene) -> None:
    """A message from the retry topic is recorded with the pop's topic and without a `message_seen` event."""
    scene.asks(POP, 1, pop())
    body = record(5, b"seven", "TAGS\x01red\x02UNIQ_KEY\x01k7\x02") + record(6, b"seven", RETRIED)
    scene.answers(0, 1, ANSWER, body=body)
    asked, answered, plain, seen, retried = scene.events()
    of(asked, code=POP, topic="T", queue=-1, group="G", count_max=8, delay_ms=9_000, may_hold=True, timeout_ms=500)
    of(asked, expression_type="TAG", expression="*", cause="")
    of(answered, event="answer_sent", code=0, request=asked.request, topic="T", queue=-1, offsets=[])
    for event, offset, cause in ((plain, 5, ""), (retried, 6, "retry")):
        of(event, event="message_popped", topic="T", queue=0, queue_offset=offset, group="G", request=asked.request)
        of(event, ids=[id_of("k7")], tag="red", delay_ms=9_000, cause=cause)
        assert (event.after_ns, event.before_ns) == (answered.after_ns, answered.before_ns)
    of(seen, event="message_seen", queue=0, queue_offset=5, tag="red")


@pytest.mark.parametrize(
    ("off_ms", "more", "told"),
    [
        (0, {}, (True, 500)),
        (-200, {}, (True, 300)),
        (200, {}, (True, 700)),
        (-5_000, {}, (None, 0)),
        (5_000, {}, (None, 5_500)),
        (0, {"pollTime": "0"}, (False, 0)),
        (0, {"order": "true"}, (None, 500)),
    ],
)
@pytest.mark.parametrize("code", [POP, NOTIFICATION])
def test_the_deadline_of_a_pop_uses_the_clients_clock(
    scene: Scene, code: int, off_ms: int, more: dict[str, str], told: tuple[bool | None, int]
) -> None:
    """If a clock is wrong or the pop is orderly, the event leaves open whether the broker may hold the pop."""
    scene.asks(code, 1, pop(bornTime=str(scene.unix_ms() + off_ms), **more))
    (asked,) = scene.events()
    of(asked, may_hold=told[0], timeout_ms=told[1], cause="orderly" if "order" in more else "")


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"hasMsg": "true"}, "woken"),
        ({"hasMsg": "false"}, "expired"),
        ({"hasMsg": "false", "pollingFull": "true"}, "busy"),
    ],
)
def test_the_cause_of_a_notifications_answer_is_recorded(scene: Scene, fields: dict[str, str], cause: str) -> None:
    scene.asks(NOTIFICATION, 1, pop(expType="TAG", exp="red || blue"))
    scene.answers(0, 1, fields)
    asked, answered = scene.events()
    of(asked, code=NOTIFICATION, count_max=-1, delay_ms=-1, expression="red || blue")
    of(answered, code=0, cause=cause)


@pytest.mark.parametrize("retry", [0, 1, 2])
@pytest.mark.parametrize("code", [ACK, CHANGE])
def test_a_request_about_a_popped_message_names_the_pops_topic(scene: Scene, code: int, retry: int) -> None:
    """The event names the pop's topic, whether the request uses the old or the new name of the retry topic."""
    scene.asks(*about(code, retry, invisibleTime="70")[:1], 1, about(code, retry, invisibleTime="70")[1])
    scene.answers(0, 1, {"popTime": "7", "invisibleTime": "70", "reviveQid": "0"} if code == CHANGE else {})
    asked, answered = scene.events()
    of(asked, code=code, topic="T", queue=2, queue_offset=5, group="G", cause="retry" if retry else "")
    of(asked, delay_ms=70 if code == CHANGE else -1)
    of(answered, event="answer_sent", code=0, request=asked.request)


@pytest.mark.parametrize(
    ("code", "fields", "answer"),
    [
        pytest.param(POP, {"topic": "T"}, None, id="a pop without a group"),
        pytest.param(ACK, about(ACK, 0)[1] | {"extraInfo": "3 7"}, None, id="a short handle"),
        pytest.param(BATCH, {}, None, id="a batch of acknowledgements"),
        pytest.param(POP, pop(), record(5, b"seven", "")[:-1], id="a torn body"),
        pytest.param(POP, pop(), b"x" * 20, id="a body that is no record"),
        pytest.param(POP, pop(), record(5, b"seven", "POP_CK\x013 7\x02"), id="a handle in a message"),
    ],
)
def test_an_unreadable_pop_is_recorded_as_lost(
    scene: Scene, code: int, fields: dict[str, str], answer: bytes | None
) -> None:
    scene.asks(code, 1, fields)
    if answer is not None:
        scene.answers(0, 1, ANSWER, body=answer)
    scene.asks(NOTIFICATION, 2, pop())
    told = [event.event for event in scene.events()]
    assert told == [*(["request_received"] if answer else []), "lost", "request_received"]


def test_topics_and_handles_of_pops_are_parsed() -> None:
    assert normal_topic("%RETRY%G", "G") == "%RETRY%G"
    assert read_handle(HANDLE.format(2)).is_retry
    with pytest.raises(HeaderError, match="eight fields"):
        read_handle("3 7 9000 0 1 b two 5")
