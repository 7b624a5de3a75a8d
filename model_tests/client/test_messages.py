"""The messages of a pull's answer: the quick way to read a record against the plain one."""

from __future__ import annotations

import zlib
from itertools import cycle
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_broker.store.log.commit_log import encode_record
from longpoll_broker.store.messages import MessageToStore
from longpoll_client import messages
from longpoll_client.messages import ReceivedMessage, decode_readable, read_plain
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.properties import decode_properties

HOSTS = st.sampled_from([host_bytes("127.0.0.1", 10911), host_bytes("::1", 70)])
INT32 = st.integers(-(2**31), 2**31 - 1)
PROPERTIES = st.sampled_from(
    [b"", b"UNIQ_KEY\x01AB\x02", b"TAGS\x01t\x02KEYS\x01k", b"\xff\x01\x02", b"UNIQ_KEY\x01\x02"]
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record of any kind."""
    message = MessageToStore(
        "T",
        draw(INT32),
        draw(st.binary(max_size=9)),
        draw(PROPERTIES),
        0,
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(HOSTS),
        draw(HOSTS),
        draw(INT32),
        draw(st.sampled_from([0, 1, 4, 8])),
        draw(INT32),
    )
    topic = draw(st.sampled_from([b"T", "\u00e9\u4e2d".encode(), b"\xff", b"", b"t" * 127]))
    return encode_record(
        message, bytes((len(topic),)) + topic, draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40)), 7
    )


def told(body: bytes) -> tuple[object, str]:
    """The messages before the first that cannot be read, and what is wrong with that one."""
    found, error = decode_readable(body)
    return found, str(error)


def plainly(body: bytes) -> tuple[object, str]:
    """The same without the quick way."""
    with patch.object(messages, "read_plain", lambda _data, at, *_rest: at):
        return told(body)


WHOLE = encode_record(
    MessageToStore(
        "T", 1, b"body", b"UNIQ_KEY\x01AB\x02", 0, 5, host_bytes("127.0.0.1", 1), host_bytes("127.0.0.1", 2)
    ),
    b"\x01T",
    41,
    1000,
    6,
)


@given(st.lists(records(), max_size=3), st.integers(0, 400), st.binary(max_size=3), st.integers(0, 2))
@example([WHOLE], 84, b"\xff\xff\xff", 3)
@example([WHOLE], 0, b"\xff", 1)
@example([WHOLE], len(WHOLE) - 11, b"\x7f", 1)
def test_both_ways_read_the_same(bodies: list[bytes], at: int, content: bytes, size: int) -> None:
    """Whatever the records, and wherever they are damaged or cut."""
    whole = b"".join(bodies)
    spoiled = whole[:at] + content + whole[at + size :]

    assert told(whole) == plainly(whole)
    assert told(spoiled) == plainly(spoiled)


def test_what_nearly_every_record_is_goes_the_quick_way() -> None:
    """And a damaged body, a packed one, and half a record do not."""
    twice = WHOLE * 2

    assert quickly(twice) == (["AB", "AB"], len(twice))
    assert quickly(twice, len(WHOLE)) == (["AB"], len(twice))
    assert quickly(WHOLE + WHOLE.replace(b"body", b"bodY")) == (["AB"], len(WHOLE))
    assert quickly(twice[:-1]) == (["AB"], len(WHOLE))


def quickly(body: bytes, at: int = 0) -> tuple[list[str], int]:
    """The ids of the messages that are read the quick way, and where that ends."""
    found: list[ReceivedMessage] = []
    end = read_plain(body, at, found)
    return [message.msg_id for message in found], end


KEYS = st.sampled_from([b"0A", b"0B", b"0C", b"\x020", b"\xc3\xa9", b"", b"\x011"])
BEFORE = st.sampled_from([b"", b"A\x01b\x02", b"X", b"\x02", b"UNIQ_KEY\x010\x02"])
AFTER = st.sampled_from([b"", b"\x02", b"\x02C\x01d", b"\x02UNIQ_KEY\x01Z", b"\x01Z"])


@given(st.lists(st.tuples(BEFORE, st.lists(KEYS, max_size=3), AFTER), max_size=3), st.integers(0, 9))
@example([(b"X", [b"0A", b"0B"], b"")], 9)
@example([(b"A\x01b\x02", [b"0A", b"0B"], b"\x02C\x01d")], 9)
def test_properties_that_are_like_the_last_ones_are_read_as_by_themselves(
    groups: list[tuple[bytes, list[bytes], bytes]], most: int
) -> None:
    """In the same order, and each in a dict of its own."""
    encoded = [b"%sUNIQ_KEY\x01%s%s" % (before, key, after) for before, keys, after in groups for key in keys]
    with patch.object(messages, "MISSED_COUNT_MAX", most):
        found = [message.properties for message in read_with(encoded)]
    assert [list(each.items()) for each in found] == [list(decode_properties(each).items()) for each in encoded]
    assert len({id(each) for each in found}) == len(found)


def read_with(encoded: list[bytes], topics: str = "T") -> list[ReceivedMessage]:
    """Messages with these properties, of these topics in turn, as they are read the quick way."""
    written = [
        encode_record(
            MessageToStore(topic, 1, b"body", each, 0, 5, host_bytes("127.0.0.1", 1), host_bytes("127.0.0.1", 2)),
            bytes([len(topic)]) + topic.encode(),
            number,
            1000,
            6,
        )
        for number, (each, topic) in enumerate(zip(encoded, cycle(topics), strict=False))
    ]
    body, found = b"".join(written), list[ReceivedMessage]()
    assert read_plain(body, 0, found) == len(body)
    return found


def test_properties_like_the_last_ones_are_not_decoded() -> None:
    """And where they differ each time nobody looks for what is alike any more."""
    alike = [b"TAGS\x01t\x02UNIQ_KEY\x01" + key for key in (b"A", b"B", b"C")]
    unlike = [b"KEYS\x01" + b"k" * size + b"\x02UNIQ_KEY\x01A" for size in range(1, 9)]
    with patch.object(messages, "decode_properties", wraps=decode_properties) as decode:
        assert [message.msg_id for message in read_with(alike)] == ["A", "B", "C"]
        assert decode.call_count == 1
        read_with([*alike, *unlike, b"KEYS\x01kkkkkkkk\x02UNIQ_KEY\x01B"])
        assert decode.call_count == 11


def test_messages_that_differ_in_their_topic_alone_keep_it() -> None:
    """A tail is that of the last one only with its topic."""
    encoded = [b"UNIQ_KEY\x01" + key for key in (b"A", b"B", b"C", b"D")]
    found = read_with(encoded, "TTUU")
    assert [(message.topic, message.msg_id) for message in found] == [("T", "A"), ("T", "B"), ("U", "C"), ("U", "D")]


def test_a_message_like_one_of_long_before_keeps_its_topic() -> None:
    """Also after others that nobody has learned from: a queue of a light topic has messages of several."""
    encoded = [b"", b"A\x01b", b"UNIQ_KEY\x01A0", b"C\x01d", b"UNIQ_KEY\x01B1"]
    assert len(encoded) == messages.MISSED_COUNT_MAX + 3
    topics = "TTTUT"
    assert [message.topic for message in read_with(encoded, topics)] == list(topics)


def test_planted_a_body_that_nobody_checks_is_seen() -> None:
    """With the checksum of any body taken for right, the two ways differ."""
    spoiled = WHOLE.replace(b"body", b"bodY")
    expected = plainly(spoiled)
    right = zlib.crc32(b"body")
    with patch.object(messages, "_crc32", lambda _body: right):
        assert told(spoiled) != expected


def test_planted_properties_that_keep_the_last_key_are_seen() -> None:
    """A copy whose key is the last one's gives two messages one id."""
    with patch.object(messages, "UNIQUE_KEY", "TAGS"), pytest.raises(AssertionError):
        test_properties_that_are_like_the_last_ones_are_read_as_by_themselves()
