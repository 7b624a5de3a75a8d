"""Properties, hashes, ids and batches."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.plain import plain_store
from model_tests.support.broker.wire_strategies import filled_texts, int32, texts

from longpoll_protocol import tags
from longpoll_protocol.errors import HeaderError, LocalProtocolError, MessageRefusedError
from longpoll_protocol.message import (
    BATCH_COUNT_MAX,
    PROPERTIES_SIZE_MAX,
    BatchMessage,
    decode_batch,
    encode_batch,
    message_id,
    message_id_position,
)
from longpoll_protocol.properties import encode_properties, read_properties
from longpoll_protocol.tags import java_hash, java_hashes, tags_code

plain_texts = filled_texts.map(lambda text: text.replace("\x01", "").replace("\x02", "")).filter(bool)


@given(st.dictionaries(plain_texts, plain_texts))
def test_properties_are_read_back(properties: dict[str, str]) -> None:
    """With the last mark or, as old producers write it, without."""
    text = encode_properties(properties)
    assert read_properties(text) == properties
    assert read_properties(text.removesuffix("\x02")) == properties


@pytest.mark.parametrize("wrong", ["a\x01", "\x02"])
def test_a_mark_in_a_property_is_our_own_error(wrong: str) -> None:
    """It would make two properties out of one."""
    for properties in ({wrong: "v"}, {"n": wrong}):
        with pytest.raises(LocalProtocolError, match="separate"):
            encode_properties(properties)


def test_odd_property_text() -> None:
    """As Java: a part without a mark or with an empty side is skipped, a second mark belongs to the value."""
    assert read_properties("a\x01\x02\x01b\x02") == {}
    assert read_properties("a\x01b\x02junk\x02c\x01d\x01e") == {"a": "b", "c": "d\x01e"}
    assert read_properties(None) == read_properties("") == {}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("AaAa", 2031744),
        ("BBBB", 2031744),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, code: int) -> None:
    """`String.hashCode` of known strings: collisions, the smallest number, and two UTF-16 units."""
    assert java_hash(text) == code
    assert tags_code(text) == code


@given(texts)
def test_java_hash_is_an_int32_and_goes_unit_by_unit(text: str) -> None:
    """One more unit is 31 times the hash before, plus the unit, wrapped."""
    assert -(2**31) <= java_hash(text) < 2**31
    assert java_hash(text + "x") == ((31 * java_hash(text) + ord("x") + 2**31) & 0xFFFFFFFF) - 2**31


@given(st.lists(texts | st.text("\0 ~\x7f", min_size=60, max_size=70), max_size=70))
@example(["longer than the others"] * 65)
def test_hashes_made_together_are_those_made_alone(many: list[str]) -> None:
    """Of few or many, short or long, whatever characters they have, or a single one of them."""
    assert list(java_hashes(many)) == [plain_store.java_hash(text) for text in many]
    assert [java_hash(text) for text in many] == [plain_store.java_hash(text) for text in many]


def test_short_texts_are_hashed_together_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """None by itself: messages of three keys fill no round number."""
    many = [f"T#{number}" for number in range(66)]
    alone = [java_hash(text) for text in many]
    monkeypatch.setattr(tags, "java_hash", lambda _text: pytest.fail("one was hashed by itself"))
    assert java_hashes(many) == alone


@given(st.ip_addresses(), st.integers(0, 65_535), st.integers(0, 2**63 - 1))
def test_message_ids_are_read_back(host: object, port: int, offset: int) -> None:
    """Both lengths of id, IPv4 and IPv6."""
    text = message_id(str(host), port, offset)
    assert text == text.upper()
    assert len(text) in {32, 56}
    assert message_id_position(text) == (str(host), port, offset)


@pytest.mark.parametrize("text", ["", "xyz", "7F000001", "7F00000100002A9F000000000000000500"])
def test_a_wrong_message_id_is_a_header_error(text: str) -> None:
    """Neither 32 nor 56 hexadecimal digits."""
    with pytest.raises(HeaderError, match="msgId"):
        message_id_position(text)


batches = st.lists(st.builds(BatchMessage, body=st.binary(max_size=50), properties=texts, flag=int32), max_size=10)


@given(batches)
def test_batches_are_read_back(messages: list[BatchMessage]) -> None:
    """Flag, body and properties of every message, in order."""
    found = decode_batch(encode_batch(messages))
    assert [(bytes(message.body), message.properties, message.flag) for message in found] == [
        (message.body, message.properties, message.flag) for message in messages
    ]


def test_the_bytes_of_a_batch() -> None:
    """The layout of `MessageDecoder.encodeMessage`, written out by hand."""
    raw = encode_batch([BatchMessage(b"ab", "k\x01v\x02", 7)])
    assert raw == struct.pack(">iiiii2sh4s", 28, 0, 0, 7, 2, b"ab", 4, b"k\x01v\x02")


def check_any_bytes(raw: bytes) -> None:
    """The bytes are a batch that can be written again in the same size, or a HeaderError."""
    try:
        messages = decode_batch(raw)
    except HeaderError:
        return
    assert len(encode_batch(messages)) == len(raw)


@given(batches.filter(bool), st.data())
def test_a_damaged_batch_is_a_header_error(messages: list[BatchMessage], data: st.DataObject) -> None:
    """A batch cut within a message is refused, and any byte changed is refused or read, never a crash."""
    raw = encode_batch(messages)
    ends = {len(encode_batch(messages[:count])) for count in range(len(messages) + 1)}
    cut = data.draw(st.integers(1, len(raw) - 1))
    if cut not in ends:
        with pytest.raises(HeaderError):
            decode_batch(raw[:cut])
    at = data.draw(st.integers(0, len(raw) - 1))
    changed = bytes([*raw[:at], data.draw(st.integers(0, 255)), *raw[at + 1 :]])
    check_any_bytes(changed)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_a_header_error(raw: bytes) -> None:
    check_any_bytes(raw)


def test_the_limits_of_a_batch() -> None:
    """Properties and count hold at their limit and break over it."""
    assert len(decode_batch(encode_batch([BatchMessage(b"", "x" * PROPERTIES_SIZE_MAX)]))) == 1
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode_batch([BatchMessage(b"", "x" * (PROPERTIES_SIZE_MAX + 1))])
    one = encode_batch([BatchMessage(b"", "")])
    assert len(decode_batch(one * BATCH_COUNT_MAX)) == BATCH_COUNT_MAX
    with pytest.raises(MessageRefusedError, match="more than"):
        decode_batch(one * (BATCH_COUNT_MAX + 1))
