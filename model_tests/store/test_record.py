"""The bytes of one record, against a second reader and against every flipped bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.testing.plain import plain_store
from longpoll_broker.testing.stores import HOST_V6, message
from longpoll_protocol.log_record import (
    FIXED_SIZE,
    SCHEDULE_TOPIC,
    Damage,
    Record,
    decode,
    host_bytes,
    host_text,
    keyed_part,
    lookup_in,
    property_of,
    tags_code_of,
)
from longpoll_protocol.properties import decode_properties, encode_properties
from longpoll_protocol.tags import tags_code
from longpoll_runtime.files import RealFiles

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tags_code_is_javas_hash(text: str) -> None:
    """The tags code is `String.hashCode` as its definition gives it; no tag is 0."""
    assert tags_code(text) == plain_store.java_hash(text)
    assert tags_code(None) == 0


def test_tags_codes_known_from_java() -> None:
    """Three tags of equal hash, and one beyond the basic plane, as Java computes them."""
    assert tags_code("AaAa") == tags_code("BBBB") == tags_code("AaBB") == 2031744
    assert tags_code("TagA") == 2598919
    assert tags_code("polygenelubricants") == -(2**31)


@given(st.dictionaries(names, names))
def test_properties_survive(properties: dict[str, str]) -> None:
    """Properties come back as they went in, and each one is found without decoding the others."""
    encoded = encode_properties(properties).encode()
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded.removesuffix(b"\x02")) == properties
    for name, value in properties.items():
        assert property_of(encoded, name) == value


@given(st.binary(max_size=60), names)
def test_one_property_is_as_all_say(encoded: bytes, name: str) -> None:
    """Looking one property up gives what decoding all gives, whatever the bytes."""
    mixed = encoded.replace(b"a", b"\x01").replace(b"b", b"\x02" + name.encode() + b"\x01")
    for each in (name, *decode_properties(mixed)):
        if "\ufffd" not in each:
            assert property_of(mixed, each) == decode_properties(mixed).get(each)


def test_a_delayed_message_carries_when_it_is_due() -> None:
    """In the schedule topic the tags code is the store time plus the delay of the level, capped at the last level."""
    level3 = encode_properties({"DELAY": "3", "TAGS": "a"}).encode()
    assert tags_code_of(SCHEDULE_TOPIC, level3, 1000) == 11_000
    assert tags_code_of(SCHEDULE_TOPIC, encode_properties({"DELAY": "99"}).encode(), 0) == 7_200_000
    assert tags_code_of(SCHEDULE_TOPIC, encode_properties({"DELAY": "x", "TAGS": "a"}).encode(), 0) == 97
    assert tags_code_of(SCHEDULE_TOPIC, encode_properties({"DELAY": "9" * 9000, "TAGS": "a"}).encode(), 0) == 97
    assert tags_code_of("T", level3, 1000) == 97


def test_levels_of_ones_own_say_when_a_message_is_due() -> None:
    """A level beyond the last of them is the last; other topics have none."""
    level3 = encode_properties({"DELAY": "3", "TAGS": "a"}).encode()
    assert tags_code_of(SCHEDULE_TOPIC, level3, 1000, (7, 8, 90, 1000)) == 1090
    assert tags_code_of(SCHEDULE_TOPIC, level3, 1000, (7, 8)) == 1008
    assert tags_code_of("T", level3, 1000, (7, 8, 90)) == 97


@pytest.mark.parametrize(("address", "text"), [("127.0.0.1", "127.0.0.1:10911"), ("2001:db8::7", "2001:db8::7:10911")])
def test_hosts(address: str, text: str) -> None:
    """A host is its address and a four-byte port, 8 or 20 bytes long."""
    host = host_bytes(address, 10911)
    assert len(host) == (8 if "." in address else 20)
    assert host_text(host) == text


def one_record(directory: object, **fields: object) -> bytes:
    """The bytes of one record as the commit log writes it."""
    log = CommitLog(RealFiles(), str(directory), 4096)
    made = message("Orders", 3, b"some body", tag="a", **fields)  # type: ignore[arg-type]
    start = log.append(made, b"\x06Orders", 42, 1_800_000_000_000)
    written = log.slice(start, log.end - start)
    assert written is not None
    content = bytes(written)
    del written
    log.segments.close()
    return content


def test_the_second_reader_agrees(tmp_path: object) -> None:
    """A record we write is read field by field by a reader that shares no code."""
    content = one_record(tmp_path, born_host=HOST_V6, sys_flag=1)
    fields = plain_store.read_record(content)
    assert fields == {
        "totalSize": FIXED_SIZE + 12 + 9 + 6 + 7, "magic": "DAA320A7", "bodyCRC": fields["bodyCRC"], "queueId": 3,
        "flag": 7, "queueOffset": 42, "physicalOffset": 0, "sysFlag": 0x11, "bornTimestamp": 1_700_000_000_000,
        "bornHost": "2001:db8::7:10911", "storeTimestamp": 1_800_000_000_000, "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": 0, "preparedTransactionOffset": 0, "topic": "Orders", "bodyLength": 9, "body": "c29tZSBib2R5",
        "propertiesRaw": "TAGS\x01a\x02", "properties": {"TAGS": "a"},
    }  # fmt: skip


def test_the_wide_topic_of_5x_is_read(tmp_path: object) -> None:
    """A record of magic V2, with two bytes for the topic's length, is decoded to the same fields."""
    content = one_record(tmp_path)
    at = content.index(b"\x06Orders")
    wide = bytearray(content[:at] + b"\x00" + content[at:])
    wide[0:8] = len(wide).to_bytes(4) + bytes.fromhex("DAA320AB")
    found = decode(memoryview(wide), 0, len(wide), 0)
    assert isinstance(found, Record)
    assert (found.topic, bytes(found.body), found.queue_offset) == ("Orders", b"some body", 42)
    assert plain_store.read_record(bytes(wide))["topic"] == "Orders"


def test_a_lookup_finds_properties_without_decoding(tmp_path: object) -> None:
    """Between hosts of both kinds, in V1 and V2; of a record cut anywhere fewer are found, or none."""
    narrow, wide_host = one_record(f"{tmp_path}/a"), one_record(f"{tmp_path}/b", born_host=HOST_V6)
    at = narrow.index(b"\x06Orders")
    wide_topic = bytearray(narrow[:at] + b"\x00" + narrow[at:])
    wide_topic[0:8] = len(wide_topic).to_bytes(4) + bytes.fromhex("DAA320AB")
    for content in (narrow, wide_host, bytes(wide_topic)):
        lookup = lookup_in(memoryview(content))
        assert (lookup("TAGS"), lookup("TAG"), lookup("AGS")) == ("a", None, None)
        assert not any(lookup_in(memoryview(content)[:size])("TAGS") for size in range(len(content) - 2))


def test_what_the_index_needs_is_read_without_decoding(tmp_path: object) -> None:
    """As decoding gives it; of a record with an IPv6 host not at all; one that is cut or changed raises nothing."""
    content, wide_host = one_record(f"{tmp_path}/a", sys_flag=8), one_record(f"{tmp_path}/b", store_host=HOST_V6)
    found = decode(memoryview(content), 0, len(content), 0)
    assert isinstance(found, Record)
    assert keyed_part(content) == (8, found.store_ms, found.topic, found.properties)
    assert keyed_part(wide_host) is None
    for index in range(len(content)):
        keyed_part(content[:index])
        for bit in range(8):
            keyed_part(content[:index] + bytes((content[index] ^ 1 << bit,)) + content[index + 1 :])


def test_every_cut_is_damage(tmp_path: object) -> None:
    """A record cut short at any byte is damage, never a record and never an exception."""
    content = one_record(tmp_path)
    for size in range(len(content)):
        assert isinstance(decode(memoryview(content)[:size], 0, size, 0), Damage), size
    assert isinstance(decode(memoryview(content), 0, len(content), 0), Record)


def test_every_flip_that_can_be_seen_is_seen(tmp_path: object) -> None:
    """Any flipped bit of size, magic, CRC, physical offset, inner lengths or body is damage; no flip ever raises."""
    content = one_record(tmp_path)
    body_at, topic_at = content.index(b"some body"), content.index(b"\x06Orders")
    properties_at = topic_at + 7
    seen = {*range(12), *range(28, 36), *range(body_at - 4, body_at + 9), topic_at, properties_at, properties_at + 1}
    for index in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[index] ^= 1 << bit
            found = decode(memoryview(flipped), 0, len(flipped), 0)
            assert isinstance(found, Damage) or index not in seen, (index, bit)
