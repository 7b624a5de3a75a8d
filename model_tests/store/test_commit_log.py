"""The commit log and its records (bytes, bounds, damage), compared with an independent reader."""

from __future__ import annotations

import errno
import itertools
import re
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.plain import plain_store
from model_tests.support.broker.stores import HOST, HOST_V6, SMALL, message, open_store, put_and_dispatch
from model_tests.support.present import present
from msgspec import structs

from longpoll_broker.errors import SyncFailedError
from longpoll_broker.store import segment
from longpoll_broker.store.commit_log import HOST_BITS, CommitLog, encode_record, size_of
from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.store.verify import verify
from longpoll_protocol import log_record
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import (
    FIXED_SIZE,
    SCHEDULE_TOPIC,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
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
from longpoll_runtime.files import RealFiles, RealMappedFile

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.dictionaries(names, names))
def test_properties_equal_their_decoded_encoding(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties).encode()
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded.removesuffix(b"\x02")) == properties
    for name, value in properties.items():
        assert property_of(encoded, name) == value


@given(st.binary(max_size=60), names)
def test_looking_up_one_property_equals_decoding_all(encoded: bytes, name: str) -> None:
    mixed = encoded.replace(b"a", b"\x01").replace(b"b", b"\x02" + name.encode() + b"\x01")
    for each in (name, *decode_properties(mixed)):
        if "\ufffd" not in each:
            assert property_of(mixed, each) == decode_properties(mixed).get(each)


def test_the_tags_code_of_a_delayed_message_is_its_due_time() -> None:
    """In the schedule topic the tags code of a message is its store time plus the delay of its level."""
    level3 = encode_properties({"DELAY": "3", "TAGS": "a"}).encode()
    assert tags_code_of(SCHEDULE_TOPIC, level3, 1000) == 11_000
    assert tags_code_of(SCHEDULE_TOPIC, encode_properties({"DELAY": "99"}).encode(), 0) == 7_200_000
    assert tags_code_of(SCHEDULE_TOPIC, encode_properties({"DELAY": "x", "TAGS": "a"}).encode(), 0) == 97
    assert tags_code_of(SCHEDULE_TOPIC, encode_properties({"DELAY": "9" * 9000, "TAGS": "a"}).encode(), 0) == 97
    assert tags_code_of("T", level3, 1000) == 97
    level3 = encode_properties({"DELAY": "3", "TAGS": "a"}).encode()
    assert tags_code_of(SCHEDULE_TOPIC, level3, 1000, (7, 8, 90, 1000)) == 1090
    assert tags_code_of(SCHEDULE_TOPIC, level3, 1000, (7, 8)) == 1008
    assert tags_code_of("T", level3, 1000, (7, 8, 90)) == 97


@pytest.mark.parametrize(("address", "text"), [("127.0.0.1", "127.0.0.1:10911"), ("2001:db8::7", "2001:db8::7:10911")])
def test_hosts(address: str, text: str) -> None:
    """A host field holds an address and a four-byte port, so it is 8 or 20 bytes long."""
    host = host_bytes(address, 10911)
    assert (len(host), host_text(host)) == (8 if "." in address else 20, text)


def one_record(directory: object, **fields: object) -> bytes:
    log = CommitLog(RealFiles(), str(directory), 4096)
    made = message("Orders", 3, b"some body", tag="a", **fields)  # type: ignore[arg-type]
    start = log.append(made, b"\x06Orders", 42, 1_800_000_000_000)
    written = present(log.slice(start, log.end - start))
    content = bytes(written)
    del written
    log.segments.close()
    return content


def test_records_and_the_second_reader_agree(tmp_path: Path) -> None:
    """An independent reader finds the same fields in records of magic V1 and V2."""
    content = one_record(tmp_path, born_host=HOST_V6, sys_flag=1)
    fields = plain_store.read_record(content)
    assert fields == {
        "totalSize": FIXED_SIZE + 12 + 9 + 6 + 7, "magic": "DAA320A7", "bodyCRC": fields["bodyCRC"], "queueId": 3,
        "flag": 7, "queueOffset": 42, "physicalOffset": 0, "sysFlag": 0x11, "bornTimestamp": 1_700_000_000_000,
        "bornHost": "2001:db8::7:10911", "storeTimestamp": 1_800_000_000_000, "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": 0, "preparedTransactionOffset": 0, "topic": "Orders", "bodyLength": 9, "body": "c29tZSBib2R5",
        "propertiesRaw": "TAGS\x01a\x02", "properties": {"TAGS": "a"},
    }  # fmt: skip
    (tmp_path := tmp_path / "next").mkdir()
    content = one_record(tmp_path)
    at = content.index(b"\x06Orders")
    wide = bytearray(content[:at] + b"\x00" + content[at:])
    wide[0:8] = len(wide).to_bytes(4) + bytes.fromhex("DAA320AB")
    found = decode(memoryview(wide), 0, len(wide), 0)
    assert isinstance(found, Record)
    assert (found.topic, bytes(found.body), found.queue_offset) == ("Orders", b"some body", 42)
    assert plain_store.read_record(bytes(wide))["topic"] == "Orders"


def test_many_fields_are_searched_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter expression may look up a thousand properties, and the record is decoded only once."""
    searched: list[str] = []
    original = log_record.property_of

    def property_of(encoded: bytes, name: str) -> str | None:
        searched.append(name)
        return original(encoded, name)

    monkeypatch.setattr(log_record, "property_of", property_of)
    lookup = lookup_in(memoryview(one_record(f"{tmp_path}/a")))
    names = ["TAGS", *(f"n{number}" for number in range(9)), "TAGS"]
    assert [lookup(name) for name in names * 2] == ["a", *[None] * 9, "a"] * 2
    assert searched == names[: log_record.SEARCHED_COUNT_MAX]


def test_fields_are_found_without_decoding(tmp_path: Path) -> None:
    """A truncated or changed record gives fewer properties and raises nothing."""
    narrow, wide_host = one_record(f"{tmp_path}/a"), one_record(f"{tmp_path}/b", born_host=HOST_V6)
    at = narrow.index(b"\x06Orders")
    wide_topic = bytearray(narrow[:at] + b"\x00" + narrow[at:])
    wide_topic[0:8] = len(wide_topic).to_bytes(4) + bytes.fromhex("DAA320AB")
    for content in (narrow, wide_host, bytes(wide_topic)):
        lookup = lookup_in(memoryview(content))
        assert (lookup("TAGS"), lookup("TAG"), lookup("AGS")) == ("a", None, None)
        assert not any(lookup_in(memoryview(content)[:size])("TAGS") for size in range(len(content) - 2))
    (tmp_path := tmp_path / "next").mkdir()
    content, wide_host = one_record(f"{tmp_path}/a", sys_flag=8), one_record(f"{tmp_path}/b", store_host=HOST_V6)
    found = decode(memoryview(content), 0, len(content), 0)
    assert isinstance(found, Record)
    assert keyed_part(content) == (8, found.store_ms, found.topic, found.properties)
    assert keyed_part(wide_host) is None
    for index in range(len(content)):
        keyed_part(content[:index])
        for bit in range(8):
            keyed_part(content[:index] + bytes((content[index] ^ 1 << bit,)) + content[index + 1 :])


def test_every_cut_and_flip_is_damage(tmp_path: Path) -> None:
    """Truncated records and flipped bits are damage, never an exception."""
    content = one_record(tmp_path)
    for size in range(len(content)):
        assert isinstance(decode(memoryview(content)[:size], 0, size, 0), Damage), size
    assert isinstance(decode(memoryview(content), 0, len(content), 0), Record)
    (tmp_path := tmp_path / "next").mkdir()
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


def any_numbers() -> list[MessageToStore]:
    """Messages with every flag that a sender may set, with IPv4 or IPv6 hosts, and with extreme numbers."""
    flags = [*(1 << bit for bit in range(31)), -(2**31), -1, 0x30, 0]
    numbers = [(-(2**31), -(2**63)), (2**31 - 1, 2**63 - 1)]
    return [
        structs.replace(
            message("Orders", 0, b"body", born_host=hosts[0], store_host=hosts[1]),
            sys_flag=sys_flag,
            flag=small,
            reconsume_times=small,
            born_ms=large,
            prepared_offset=large,
        )
        for sys_flag in flags
        for hosts in itertools.product((HOST, HOST_V6), repeat=2)
        for small, large in numbers
    ]


def found_by_verify(directory: Path) -> list[str]:
    store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
    put_and_dispatch(store, any_numbers())
    store.close()
    return [problem.found for problem in verify(RealFiles(), str(directory)).problems]


def test_no_number_of_a_sender_makes_a_record_unreadable(tmp_path: Path) -> None:
    """The store itself sets the flags for the sizes of the hosts and ignores the sender's flags for them."""
    assert found_by_verify(tmp_path) == []


def test_no_slice_reaches_past_the_end(tmp_path: Path) -> None:
    """A read ends at the end of the written bytes and of the file, although the memory map continues with zeros."""
    store = open_store(tmp_path)
    put = [store.put(message(body=b"b" * 300)) for _ in range(8)]
    log = store._log
    assert len(log.segments.segments) > 1, "the log must have rolled over"
    for result in put:
        found = present(log.slice(result.physical_offset, result.size))
        assert len(found) == result.size
    end, last = log.end, put[-1]
    assert log.slice(last.physical_offset, last.size + 1) is None
    assert log.slice(end, 1) is None
    assert log.slice(end - 1, 1) is not None
    assert log.slice(last.physical_offset, 0) is None
    first_stop = log.segments.segments[0].stop
    assert log.slice(first_stop - 10, 10) is not None
    assert log.slice(first_stop - 10, 11) is None


def test_a_record_equals_its_message(tmp_path: Path) -> None:
    store = open_store(tmp_path, evolve(SMALL, commit_log_file_size=65_536))
    for each in any_numbers():
        result = store.put(each)
        found = store._log.read(result.physical_offset)
        assert isinstance(found, Record)
        assert found.size == result.size == size_of(each), "one call makes room for several records"
        assert (found.born_host, found.store_host) == (each.born_host, each.store_host)
        assert found.sys_flag & HOST_BITS == host_bits(each)
        assert found.sys_flag & ~HOST_BITS == each.sys_flag & ~HOST_BITS
        assert (found.flag, found.reconsume_times) == (each.flag, each.reconsume_times)
        assert (found.born_ms, found.prepared_offset) == (each.born_ms, each.prepared_offset)
        assert (bytes(found.body), found.topic, found.properties) == (each.body, each.topic, each.properties)


def host_bits(told: MessageToStore) -> int:
    born = SYS_FLAG_BORN_HOST_V6 if told.born_host == HOST_V6 else 0
    return born | (SYS_FLAG_STORE_HOST_V6 if told.store_host == HOST_V6 else 0)


FILE_SIZE: Final = 4_096
TOPIC: Final = b"\x01T"


def empty_log(directory: Path) -> tuple[CommitLog, int]:
    return CommitLog(RealFiles(), str(directory), FILE_SIZE), size_of(message(body=b""))


@pytest.mark.parametrize("left", [0, 7, 8, 9])
def test_a_record_leaves_room_for_the_blank_of_its_file(tmp_path: Path, left: int) -> None:
    """A blank record needs eight bytes, so a record that would leave fewer bytes begins the next file."""
    log, size = empty_log(tmp_path)
    assert log.append(message(body=b""), TOPIC, 0, 1) == 0
    start = log.append(message(body=bytes(FILE_SIZE - 2 * size - left)), TOPIC, 1, 2)
    fits = left >= 8
    assert (start, log.end) == ((size, FILE_SIZE - left) if fits else (FILE_SIZE, 2 * FILE_SIZE - size - left))
    following = log.append(message(body=b""), TOPIC, 2, 3)
    assert following == (FILE_SIZE if fits else 2 * FILE_SIZE)
    assert log.read(FILE_SIZE - left if fits else size) == FILE_SIZE
    assert isinstance(log.read(start), Record)
    assert isinstance(log.read(following), Record)
    assert log.read(log.end) is None


def test_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A record that is too large leaves the log unchanged, and the largest possible record gets its own file."""
    log, size = empty_log(tmp_path)
    log.append(message(body=b""), TOPIC, 0, 1)
    largest = FILE_SIZE - size - 8
    with pytest.raises(MessageRefusedError, match="cannot hold it"):
        log.append(message(body=bytes(largest + 1)), TOPIC, 1, 2)
    assert (log.end, len(log.segments.segments)) == (size, 1)
    assert log.append(message(body=bytes(largest)), TOPIC, 1, 2) == FILE_SIZE
    assert (log.end, log.sure_end) == (2 * FILE_SIZE - 8, 2 * FILE_SIZE - 8)
    (tmp_path := tmp_path / "next").mkdir()
    log, _ = empty_log(tmp_path)
    with pytest.raises(MessageRefusedError, match="a number of the message does not fit the record"):
        log.append(message(queue_id=1 << 32), TOPIC, 0, 1)
    assert log.append(message(), TOPIC, 0, 1) == 0


def test_appends_continue_at_the_right_place(tmp_path: Path) -> None:
    """After a recovery or a reservation for several records, the next append begins at the end of the log."""
    log, size = empty_log(tmp_path)
    for number in range(3):
        log.append(message(body=bytes(900)), TOPIC, number, 1)
    log.append(message(body=bytes(2_000)), TOPIC, 3, 1)
    assert len(log.segments.segments) == 2
    log.stand_at(size + 900)
    assert log.sure_end == log.end == size + 900
    # The record fills its file exactly, except for the blank record.
    assert log.append(message(body=bytes(FILE_SIZE - 8 - (size + 900) - size)), TOPIC, 1, 1) == size + 900
    assert isinstance(log.read(size + 900), Record)
    assert (log.end, len(log.segments.segments)) == (FILE_SIZE - 8, 1)
    (tmp_path := tmp_path / "next").mkdir()
    log, size = empty_log(tmp_path)
    log.append(message(body=bytes(FILE_SIZE - 3 * size - 8)), TOPIC, 0, 1)
    end = log.end
    log.make_room(2 * size)
    assert log.end == end
    assert log.sure_end >= end + 2 * size
    log.make_room(2 * size + 1)
    assert log.end == FILE_SIZE
    log.append_records([encode_record(message(body=b""), TOPIC, n, FILE_SIZE + n * size, 2) for n in range(2)])
    assert log.end == FILE_SIZE + 2 * size
    assert all(isinstance(log.read(FILE_SIZE + n * size), Record) for n in range(2))


def test_damaged_ends_of_files(tmp_path: Path) -> None:
    """A blank record of a wrong size is damage, and so is a file's end that has no room for a blank record."""
    log, size = empty_log(tmp_path)
    log.append(message(body=b""), TOPIC, 0, 1)
    log.append(message(body=bytes(FILE_SIZE - size - 8)), TOPIC, 1, 2)
    assert log.read(size) == FILE_SIZE
    log.segments.segments[0].view[size : size + 4] = (FILE_SIZE - size - 1).to_bytes(4, "big")
    rest = FILE_SIZE - size
    assert log.read(size) == Damage(0, f"blank of {rest - 1} bytes", f"a blank of {rest} bytes")
    (tmp_path := tmp_path / "next").mkdir()
    log, size = empty_log(tmp_path)
    for number in range(2):
        log.append(message(body=bytes(FILE_SIZE - size - 8)), TOPIC, number, 1)
    assert [isinstance(log.read(FILE_SIZE - left), Damage) for left in (1, 4, 7)] == [True] * 3
    assert log.read(FILE_SIZE - 8) == FILE_SIZE


def test_flushed_bytes_are_not_flushed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, size = empty_log(tmp_path)
    flushed: list[tuple[int, int]] = []
    monkeypatch.setattr(SegmentList, "flush", lambda _segments, start, end: flushed.append((start, end)))
    assert log.flush() == 0
    for number in range(2):
        log.append(message(body=b""), TOPIC, number, 1)
        assert (log.flush(), log.flush()) == ((number + 1) * size, (number + 1) * size)
    assert flushed == [(0, size), (size, 2 * size)]
    log.stand_at(size)
    assert (log.end, log.flushed_end, log.flush()) == (size, size, size)
    assert log.append(message(body=b""), TOPIC, 1, 1) == size


def test_a_blank_record_is_written_if_the_disk_has_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, the append raises an error and the broker's process continues."""
    monkeypatch.setattr(segment, "RESERVE_SIZE", 0)
    log, size = empty_log(tmp_path)
    log.append(message(body=b""), TOPIC, 0, 1)
    first = log.segments.segments[0]
    log.append(message(body=bytes(FILE_SIZE - size - 8)), TOPIC, 1, 2)
    assert first.reserved_end == size + 8


def test_where_the_next_file_begins(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    size = SMALL.commit_log_file_size
    assert [store._log.next_file(each) for each in (0, 1, size - 1, size, size + 1)] == [size] * 3 + [2 * size] * 2


def filled(directory: Path) -> CommitLog:
    log, size = empty_log(directory)
    for number in range(2):
        log.append(message(body=bytes([number + 1]) * (FILE_SIZE - size - 40)), TOPIC, number, 1)
    log.append(message(body=b"3"), TOPIC, 2, 1)
    assert (len(log.segments.segments), log.end) == (3, 2 * FILE_SIZE + size + 1)
    return log


@pytest.mark.parametrize(
    ("start", "end", "written"),
    [
        (0, None, [(0, FILE_SIZE), (0, FILE_SIZE), (0, -1)]),
        (FILE_SIZE - 1, None, [(FILE_SIZE - 1, FILE_SIZE), (0, FILE_SIZE), (0, -1)]),
        (FILE_SIZE, None, [(0, FILE_SIZE), (0, -1)]),
        (2 * FILE_SIZE + 9, None, [(9, -1)]),
        (FILE_SIZE + 9, 2 * FILE_SIZE, [(9, FILE_SIZE)]),
        (0, FILE_SIZE + 1, [(0, FILE_SIZE), (0, 1)]),
    ],
)
def test_unsynced_bytes_of_another_process_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, end: int | None, written: list[tuple[int, int]]
) -> None:
    log = filled(tmp_path)
    last = log.end - 2 * FILE_SIZE
    log.end = log.end if end is None else end
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(RealMappedFile, "write_anew", lambda _file, *part: seen.append(part))
    log.write_anew(start)
    assert seen == [(first, last if stop < 0 else stop) for first, stop in written]


def test_appends_are_refused_if_the_last_file_is_missing(tmp_path: Path) -> None:
    """Appends are refused if the log's last file is missing or its sync has failed; earlier files do not matter."""
    CommitLog(RealFiles(), str(tmp_path / "none"), FILE_SIZE).check_names()
    log = filled(tmp_path)
    log.check_names()
    first, *_rest, last = (Path(each.path) for each in log.segments.segments)
    first.rename(tmp_path / "first")
    log.check_names()
    last.rename(tmp_path / "last")
    with pytest.raises(FileNotFoundError):
        log.check_names()
    (tmp_path / "last").rename(last)
    log.check_names()
    log.segments.segments[0].failed = OSError(errno.EIO, "Input/output error")
    with pytest.raises(SyncFailedError, match=re.escape("an earlier sync failed (Input/output error)")) as raised:
        log.check_names()
    assert raised.value.filename == str(tmp_path)
