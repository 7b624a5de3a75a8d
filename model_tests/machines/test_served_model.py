"""The model of the suite over the wire, by hand: what a read gives, and which answers are let through."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll.wire.suite.machine import RocketMQExample
from longpoll.wire.suite.model import (
    FOUND,
    NOT_FOUND,
    OFFSET_MOVED,
    RETRY_IMMEDIATELY,
    Answer,
    Read,
    Stored,
    WireQueue,
)
from longpoll.wire.suite.requests import Draft, PullTerms, Wanted, tag_hash
from longpoll_kit.errors import ViolationError
from longpoll_kit.model import Allowances, Ask
from longpoll_protocol.properties import word_hash

ALL = Wanted("*")
SECOND = 10**9
LATER = 100 * SECOND


def queue_of(*tags: str, file_units: int = 1_000) -> WireQueue:
    """A queue of messages with these tags, the n-th acknowledged just after second n."""
    queue = WireQueue("T@0", Allowances(), topic="T", queue_id=0, file_units=file_units)
    for number, tag in enumerate(tags):
        queue.sent(Draft(b"body %d" % number, tag), number * SECOND, number * SECOND + 1, 100 * number)
    return queue


def pull_of(offset: int, wanted: Wanted = ALL, *, timeout_ms: int = 0, begun_ns: int = LATER) -> Ask:
    """A pull from an offset on; begun when all messages were there, unless said otherwise."""
    return Ask(1, "T@0", max(offset, 0), PullTerms(wanted=wanted, offset=offset), timeout_ms, begun_ns)


def judge(queue: WireQueue, pull: Ask, answer: Answer, ended_ns: int = LATER, cancelled_ns: int | None = None) -> None:
    """Let the model judge an answer that came at a time."""
    pull.answer, pull.ended_ns, pull.cancelled_ns = answer, ended_ns, cancelled_ns
    queue.judge(pull)


def answer_of(queue: WireQueue, read: Read, end: int) -> Answer:
    """The answer that a good broker makes of a read."""
    stored = [
        Stored(
            queue.topic, queue.queue_id, offset, 100 * offset, queue.messages[offset].body,
            {**queue.known[offset].properties, "CLUSTER": "c"},
        )
        for offset in read.offsets
    ]  # fmt: skip
    bodies = [each.body for each in stored]
    return Answer(bodies, position_next=read.offset_next, code=read.code, offset_min=0, offset_max=end, stored=stored)


def nothing_at(offset: int, end: int) -> Answer:
    """No message was found."""
    return Answer(position_next=offset, code=NOT_FOUND, offset_min=0, offset_max=end)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_the_models_hash_is_javas(tag: str) -> None:
    """The plain hash of the model and the broker's agree on every text."""
    assert tag_hash(tag) == word_hash(tag)


def test_tags_of_one_hash_are_not_told_apart() -> None:
    """AaAa and BBBB have the same hash, so either is delivered to who asks for the other."""
    assert tag_hash("AaAa") == tag_hash("BBBB") == 2_031_744
    assert Wanted("c||AaAa").matches("BBBB")
    assert not Wanted("c||AaAa").matches("")


@pytest.mark.parametrize(
    ("tags", "offset", "wanted", "expected"),
    [
        ((), 0, "*", Read(NOT_FOUND, 0)),
        ((), 3, "*", Read(OFFSET_MOVED, 0)),
        (("a", "b"), -1, "*", Read(OFFSET_MOVED, 0)),
        (("a", "b"), 2, "*", Read(NOT_FOUND, 2)),
        (("a", "b"), 5, "*", Read(OFFSET_MOVED, 2)),
        (("a", "b", "a"), 0, "*", Read(FOUND, 2, (0, 1))),
        (("a", "b", "a"), 1, "a", Read(FOUND, 3, (2,))),
        (("a", "b", "a", "c"), 0, "a", Read(FOUND, 3, (0, 2))),
        (("a", "b"), 0, "x || y", Read(RETRY_IMMEDIATELY, 2)),
    ],
)
def test_a_read_gives_what_4_9_gives(tags: tuple[str, ...], offset: int, wanted: str, expected: Read) -> None:
    """Codes and next offsets of a read of up to two messages, by place and filter."""
    queue = queue_of(*tags)
    assert queue.read(offset, Wanted(wanted), 2, queue.end) == expected


def test_a_read_stops_at_the_end_of_a_queue_file() -> None:
    """With files of four messages a read from 2 goes to 4, found or not."""
    queue = queue_of(*"aabbaa", file_units=4)
    assert queue.read(1, ALL, 32, 6) == Read(FOUND, 4, (1, 2, 3))
    assert queue.read(2, Wanted("a"), 32, 6) == Read(RETRY_IMMEDIATELY, 4)


@given(st.lists(st.sampled_from(["a", "b", ""]), max_size=8), st.data())
def test_the_answer_of_any_end_that_the_broker_may_have_seen_is_right(tags: list[str], data: st.DataObject) -> None:
    """An answer is let through for every end between the request and now, and refused for ends before the request."""
    queue = queue_of(*tags)
    asked = data.draw(st.integers(0, queue.end))
    seen = data.draw(st.integers(0, queue.end))
    wanted = data.draw(st.sampled_from([ALL, Wanted("a")]))
    pull = pull_of(data.draw(st.integers(0, queue.end)), wanted, begun_ns=asked * SECOND)
    answer = answer_of(queue, queue.read(pull.position.offset, wanted, 32, seen), seen)
    with nullcontext() if seen >= asked else pytest.raises(ViolationError, match="maxOffset"):
        judge(queue, pull, answer)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"position_next": 4}, "expected Read"),
        ({"offset_min": 1}, "minOffset is 1"),
        ({"offset_max": 9}, "maxOffset is 9"),
        ({"code": NOT_FOUND, "stored": ()}, "expected Read"),
        ({"stored": ()}, "expected Read"),
    ],
)
def test_a_wrong_answer_is_refused(change: dict[str, Any], finding: str) -> None:
    """One number of an otherwise right answer changed is one violation."""
    queue = queue_of("a", "b", "a")
    right = answer_of(queue, queue.read(0, ALL, 32, 3), 3)
    judge(queue, pull_of(0), right)
    with pytest.raises(ViolationError, match=finding):
        judge(queue, pull_of(0), attrs.evolve(right, **change))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"body": b"other"}, "has body"),
        ({"topic": "U"}, "claims to be in U@0"),
        ({"queue_id": 1}, "claims to be in T@1"),
        ({"physical_offset": 7}, "has log offset 7"),
        ({"properties": {"TAGS": "b"}}, "has properties"),
        ({"properties": {"TAGS": "a", "KEYS": "k"}}, "has properties"),
        ({"properties": {}}, "has properties"),
    ],
)
def test_a_wrong_message_is_refused(change: dict[str, Any], finding: str) -> None:
    """One part of an otherwise right message changed is one violation."""
    queue = queue_of("a")
    right = answer_of(queue, queue.read(0, ALL, 32, 1), 1)
    with pytest.raises(ViolationError, match=finding):
        judge(queue, pull_of(0), attrs.evolve(right, stored=[attrs.evolve(right.stored[0], **change)]))


def test_nothing_is_an_answer_only_after_the_deadline() -> None:
    """A held pull answered with nothing 100 ms early is a violation, and at its deadline it is right."""
    queue = queue_of()
    pull = pull_of(0, timeout_ms=400, begun_ns=0)
    with pytest.raises(ViolationError, match="too early"):
        judge(queue, pull, nothing_at(0, 0), 300_000_000)
    judge(queue, pull, nothing_at(0, 0), 400_000_000)


@pytest.mark.parametrize(("acked_ns", "is_lost"), [(1, True), (SECOND, False)])
def test_nothing_is_no_answer_when_a_message_was_there_before_the_deadline(acked_ns: int, is_lost: bool) -> None:
    """A pull that expires empty must have had nothing to read until its deadline."""
    queue = queue_of("a")
    queue.messages[0].acked_ns = acked_ns
    with pytest.raises(ViolationError, match="no_lost_wakeup: ") if is_lost else nullcontext():
        judge(queue, pull_of(0, timeout_ms=400, begun_ns=0), nothing_at(0, 0), SECOND)


def test_a_stopping_broker_may_say_nothing_early() -> None:
    """At a stop a held pull is sent back to its own offset, whatever its deadline."""
    queue = queue_of("b")
    pull = pull_of(0, Wanted("a"), timeout_ms=10_000, begun_ns=0)
    judge(queue, pull, nothing_at(0, 1), 1, cancelled_ns=1)
    with pytest.raises(ViolationError, match="expected Read"):
        judge(queue, pull, nothing_at(0, 1), 1)


def test_an_answer_is_due_when_there_is_something_to_read() -> None:
    """A pull may wait while nothing matches at or after its offset, and no longer."""
    queue = queue_of("b")
    held = pull_of(1, Wanted("a"), timeout_ms=10_000)
    assert queue.owed(held) is None
    for tag, is_owed in (("b", False), ("a", True)):
        queue.sent(Draft(b"", tag), LATER, LATER + 1)
        assert (queue.owed(held) is not None) == is_owed
    assert queue.owed(pull_of(0, Wanted("c"), timeout_ms=10_000)) is queue.messages[0]


@pytest.mark.parametrize(
    ("came", "end", "said"),
    [
        ([1], 1, ""),
        ([0, 1], 1, ""),
        ([0, 2], 2, ""),
        ([0, 0, 3], 3, ""),
        ([2], 0, "got 2 more messages, although one was sent 1 times"),
        ([0, 3], 0, "got 3 more messages, although one was sent 2 times"),
        ([0, 0, 0], 0, "though message 0 was sent 3 times"),
    ],
)
def test_an_unacknowledged_send_appears_once(came: list[int], end: int, said: str) -> None:
    """A slow copy comes with the next one and is noted; a further one is a violation."""
    sent: list[bool] = []
    queue, left = queue_of(), list(came)
    link = SimpleNamespace(ask=lambda *_request, one_way, **_options: sent.append(one_way))
    broker = SimpleNamespace(link=lambda _number: link, wait_end=lambda _queue, _end: left.pop(0))
    example: Any = SimpleNamespace(broker=broker, runtime=SimpleNamespace(monotonic_ns=lambda: 7), settle=lambda: None)
    with pytest.raises(ViolationError, match=said) if said else nullcontext():
        RocketMQExample.send_one_way(example, queue, Draft(b"one way", "a"))

    assert (queue.end, sent, left) == (end, [True] * len(came), [])
    assert {message.body for message in queue.messages} <= {b"one way"}
