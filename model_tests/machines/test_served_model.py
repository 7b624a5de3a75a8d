"""The model of the suite over the wire, by hand: what a read gives, and which answers are let through."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll.wire.suite.model import (
    FOUND,
    NOT_FOUND,
    OFFSET_MOVED,
    RETRY_IMMEDIATELY,
    Answer,
    Message,
    Pull,
    Queue,
    Read,
    Stored,
    ViolationError,
    Wanted,
    tag_hash,
)
from longpoll.wire.suite.requests import Form
from longpoll.wire.suite.sends import Sends
from longpoll_protocol.frames import Serialisation
from longpoll_protocol.properties import word_hash

ALL = Wanted("*")
SECOND = 10**9


def queue_of(*tags: str, file_units: int = 1_000) -> Queue:
    """A queue of messages with these tags, the n-th acknowledged at second n."""
    messages = [
        Message(b"body %d" % number, {"TAGS": tag} if tag else {}, number * SECOND, 100 * number)
        for number, tag in enumerate(tags)
    ]
    return Queue("T", 0, file_units, messages)


def pull_of(queue: Queue, offset: int, wanted: Wanted = ALL, *, timeout_ms: int = 0, end: int | None = None) -> Pull:
    """A pull asked at second 0."""
    end_at_ask = queue.end if end is None else end
    return Pull(queue, 1, 1, offset, wanted, 32, timeout_ms, Serialisation.JSON, end_at_ask, 0)


def answer_of(queue: Queue, read: Read, end: int) -> Answer:
    """The answer that a good broker makes of a read."""
    stored = [
        Stored(
            queue.topic, queue.queue_id, offset, 100 * offset, queue.messages[offset].body,
            {**queue.messages[offset].properties, "CLUSTER": "c"},
        )
        for offset in read.offsets
    ]  # fmt: skip
    return Answer(read.code, read.offset_next, 0, end, stored)


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
    pull = pull_of(queue, data.draw(st.integers(0, queue.end)), wanted, end=asked)
    answer = answer_of(queue, queue.read(pull.offset, wanted, 32, seen), seen)
    if seen >= asked:
        pull.judge(answer, 0)
    else:
        with pytest.raises(ViolationError, match="maxOffset"):
            pull.judge(answer, 0)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"offset_next": 4}, "expected Read"),
        ({"offset_min": 1}, "minOffset is 1"),
        ({"offset_max": 9}, "maxOffset is 9"),
        ({"code": NOT_FOUND, "stored": ()}, "expected Read"),
        ({"stored": ()}, "expected Read"),
    ],
)
def test_a_wrong_answer_is_refused(change: dict[str, Any], finding: str) -> None:
    """One number of an otherwise right answer changed is one violation."""
    queue = queue_of("a", "b", "a")
    pull = pull_of(queue, 0)
    right = answer_of(queue, queue.read(0, ALL, 32, 3), 3)
    pull.judge(right, 0)
    with pytest.raises(ViolationError, match=finding):
        pull.judge(attrs.evolve(right, **change), 0)


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
    pull = pull_of(queue, 0)
    right = answer_of(queue, queue.read(0, ALL, 32, 1), 1)
    with pytest.raises(ViolationError, match=finding):
        pull.judge(attrs.evolve(right, stored=[attrs.evolve(right.stored[0], **change)]), 0)


def test_nothing_is_an_answer_only_after_the_deadline() -> None:
    """A held pull answered with nothing 100 ms early is a violation, and at its deadline it is right."""
    queue = queue_of()
    pull = pull_of(queue, 0, timeout_ms=400)
    nothing = Answer(NOT_FOUND, 0, 0, 0)
    with pytest.raises(ViolationError, match="before its deadline"):
        pull.judge(nothing, 300_000_000)
    pull.judge(nothing, 400_000_000)


def test_nothing_is_no_answer_when_a_message_was_there_before_the_deadline() -> None:
    """A pull that expires empty must have had nothing to read until its deadline."""
    queue = queue_of("a")
    nothing = Answer(NOT_FOUND, 0, 0, 0)
    with pytest.raises(ViolationError, match="was there to wake it"):
        pull_of(queue, 0, timeout_ms=400, end=0).judge(nothing, SECOND)
    queue.messages[0] = attrs.evolve(queue.messages[0], acknowledged_ns=SECOND)
    pull_of(queue, 0, timeout_ms=400, end=0).judge(nothing, SECOND)


def test_a_stopping_broker_may_say_nothing_early() -> None:
    """At a stop a held pull is sent back to its own offset, whatever its deadline."""
    queue = queue_of("b")
    pull = pull_of(queue, 0, Wanted("a"), timeout_ms=10_000, end=0)
    nothing = Answer(NOT_FOUND, 0, 0, 1)
    pull.judge(nothing, 1, stopping=True)
    with pytest.raises(ViolationError, match="expected Read"):
        pull.judge(nothing, 1)


def test_an_answer_is_due_when_there_is_something_to_read() -> None:
    """A pull may wait while nothing matches at or after its offset, and no longer."""
    queue = queue_of("b")
    held = pull_of(queue, 1, Wanted("a"), timeout_ms=10_000)
    assert not held.must_be_answered()
    queue.messages.append(Message(b"", {"TAGS": "b"}, 0, None))
    assert not held.must_be_answered()
    queue.messages.append(Message(b"", {"TAGS": "a"}, 0, None))
    assert held.must_be_answered()
    assert pull_of(queue, 3).must_be_answered()


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
def test_an_unacknowledged_send_appears_once(
    monkeypatch: pytest.MonkeyPatch, came: list[int], end: int, said: str
) -> None:
    """A slow copy comes with the next one and is noted; a further one is a violation."""
    sent: list[bool] = []
    link = SimpleNamespace(ask=lambda *_request, one_way, **_options: sent.append(one_way))
    example: Any = SimpleNamespace(
        links=SimpleNamespace(get=lambda _number: link), runtime=SimpleNamespace(monotonic_ns=lambda: 7)
    )
    pulls: Any = SimpleNamespace(await_wakes=lambda _queue: None)
    queue, left = Queue("T", 0, 10), list(came)
    monkeypatch.setattr(Sends, "_end_in_time", lambda _sends, _queue, _end: left.pop(0))
    with pytest.raises(ViolationError, match=said) if said else nullcontext():
        Sends(example, pulls).send_one_way(0, queue, b"one way", {"TAGS": "a"}, Form())

    assert (queue.end, sent, left) == (end, [True] * len(came), [])
    assert {message.body for message in queue.messages} <= {b"one way"}
