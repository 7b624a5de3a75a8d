"""Messages: how records are read, ids of producers, and compressed bodies."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle
from threading import Thread
from types import SimpleNamespace
from typing import Final, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.client import polled, polling

from longpoll_broker.store.commit_log import encode_record
from longpoll_broker.store.messages import MessageToStore
from longpoll_client import (
    Compression,
    ConfigError,
    LocalProtocolError,
    OutgoingMessage,
    Producer,
    ReceivedMessage,
    messages,
)
from longpoll_client.messages import decode_readable, read_plain
from longpoll_client.produce.outgoing import MessageIds, Packing, batch_parcel, month_of, single_parcel
from longpoll_protocol import compression
from longpoll_protocol.codes import MessageSysFlag
from longpoll_protocol.compression import LZ4_PIECE_SIZE, PIECE_SIZE, pack, unpack
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.properties import decode_properties
from longpoll_runtime.real import RealRuntime

HOSTS = st.sampled_from([host_bytes("127.0.0.1", 10911), host_bytes("::1", 70)])
INT32 = st.integers(-(2**31), 2**31 - 1)
PROPERTIES = st.sampled_from(
    [b"", b"UNIQ_KEY\x01AB\x02", b"TAGS\x01t\x02KEYS\x01k", b"\xff\x01\x02", b"UNIQ_KEY\x01\x02"]
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
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
    """Return the messages before the first unreadable one, and the reason why that one is unreadable."""
    found, error = decode_readable(body)
    return found, str(error)


def plainly(body: bytes) -> tuple[object, str]:
    """Return the messages of the same bytes, read without the fast path."""
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
def test_the_fast_and_the_plain_reader_agree(bodies: list[bytes], at: int, content: bytes, size: int) -> None:
    """The fast and the plain reader agree on any records, also damaged or truncated ones."""
    whole = b"".join(bodies)
    spoiled = whole[:at] + content + whole[at + size :]

    assert told(whole) == plainly(whole)
    assert told(spoiled) == plainly(spoiled)


def test_only_plain_records_are_read_on_the_fast_path() -> None:
    """The fast path leaves a damaged body, a compressed one, and half a record to the plain reader."""
    twice = WHOLE * 2

    assert quickly(twice) == (["AB", "AB"], len(twice))
    assert quickly(twice, len(WHOLE)) == (["AB"], len(twice))
    assert quickly(WHOLE + WHOLE.replace(b"body", b"bodY")) == (["AB"], len(WHOLE))
    assert quickly(twice[:-1]) == (["AB"], len(WHOLE))


def quickly(body: bytes, at: int = 0) -> tuple[list[str], int]:
    """Return the ids of the messages that the fast path reads, and the place where it stops."""
    found: list[ReceivedMessage] = []
    end = read_plain(body, at, found)
    return [message.msg_id for message in found], end


KEYS = st.sampled_from([b"0A", b"0B", b"0C", b"\x020", b"\xc3\xa9", b"", b"\x011"])
KEY_ROW = (b"0A", b"0A", b"0A", b"0A", b"0B")
BEFORE = st.sampled_from([b"", b"A\x01b\x02", b"X", b"\x02", b"UNIQ_KEY\x010\x02"])
AFTER = st.sampled_from([b"", b"\x02", b"\x02C\x01d", b"\x02UNIQ_KEY\x01Z", b"\x01Z"])


@given(
    st.lists(st.tuples(BEFORE, st.lists(KEYS, max_size=3), AFTER), max_size=3),
    st.integers(0, 9),
    st.sampled_from(["T", "TU", "TTUU", "TTTUT"]),
)
@example([(b"X", [b"0A", b"0B"], b"")], 9, "T")
@example([(b"A\x01b\x02", [b"0A", b"0B"], b"\x02C\x01d")], 9, "T")
@example([(b"", [b"0A", b"0B", b"0C"], b"")], 9, "TTU")
@example(
    [(before, [key], b"") for before, key in zip((b"X", b"A\x01b\x02", b"", b"X", b""), KEY_ROW, strict=True)],
    2,
    "TTTUT",
)
def test_messages_with_equal_properties_are_read_like_single_ones(
    groups: list[tuple[bytes, list[bytes], bytes]], most: int, topics: str
) -> None:
    """Messages that share bytes with earlier ones still get their own properties and topic."""
    encoded = [b"%sUNIQ_KEY\x01%s%s" % (before, key, after) for before, keys, after in groups for key in keys]
    with patch.object(messages, "MISSED_COUNT_MAX", most):
        messages_read = read_with(encoded, topics)
    found = [message.properties for message in messages_read]
    wanted = [decode_properties(each) for each in encoded]
    assert [list(each.items()) for each in found] == [list(each.items()) for each in wanted]
    assert len({id(each) for each in found}) == len(found)
    assert [each.topic for each in messages_read] == [topics[place % len(topics)] for place in range(len(encoded))]
    ids = [each.get("UNIQ_KEY") for each in wanted]
    assert all(expected in {None, each.msg_id} for each, expected in zip(messages_read, ids, strict=True))


def read_with(encoded: list[bytes], topics: str = "T") -> list[ReceivedMessage]:
    """Return messages as the fast path reads them, with these properties, and the letters of `topics` as topics."""
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


def test_equal_properties_are_not_decoded_again() -> None:
    alike = [b"TAGS\x01t\x02UNIQ_KEY\x01" + key for key in (b"A", b"B", b"C")]
    unlike = [b"KEYS\x01" + b"k" * size + b"\x02UNIQ_KEY\x01A" for size in range(1, 9)]
    with patch.object(messages, "decode_properties", wraps=decode_properties) as decode:
        assert [message.msg_id for message in read_with(alike)] == ["A", "B", "C"]
        assert decode.call_count == 1
        read_with([*alike, *unlike, b"KEYS\x01kkkkkkkk\x02UNIQ_KEY\x01B"])
        assert decode.call_count == 11


YEAR_MS = 366 * 86_400_000


class Decoded(NamedTuple):
    """The fields that Java's tools read from a message id."""

    ip: bytes
    process: int
    sent_ms: int


def decode(msg_id: str, now_ms: int) -> Decoded:
    """Decode a 16-byte id by the rules of `MessageClientIDSetter`."""
    content = bytes.fromhex(msg_id)
    assert len(content) == 16
    assert msg_id == content.hex().upper()
    span_ms = int.from_bytes(content[10:14], "big")
    month = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ006
    if month.timestamp() * 1000 + span_ms >= now_ms:
        month = month.replace(year=month.year - (month.month == 1), month=(month.month - 2) % 12 + 1)
    return Decoded(content[:4], int.from_bytes(content[4:6], "big"), int(month.timestamp() * 1000) + span_ms)


class Set(RealRuntime):
    """A clock, a process id and random bytes that are set by the test."""

    def __init__(self, unix_ms: int) -> None:
        super().__init__()
        self.now_ms = unix_ms
        self.process = 70_000
        self.drawn = 0

    def unix_ms(self) -> int:
        return self.now_ms

    def process_id(self) -> int:
        return self.process

    def identity(self) -> bytes:
        """Return an address and the number of the call, as random bytes."""
        self.drawn += 1
        return bytes([10, 1, 2, 3]) + self.drawn.to_bytes(4, "big")


@pytest.fixture(params=["UTC", "Asia/Shanghai", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone of this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_time_of_an_id_is_right_in_every_month_and_time_zone(zone: None) -> None:
    """An id is read correctly an hour, a day and 27 days later, also across a month or a change to summer time."""
    begin_ms = int(datetime(2027, 12, 30, 23, 59, tzinfo=UTC).timestamp()) * 1000
    runtime = Set(begin_ms)
    ids = MessageIds(runtime)
    for sent_ms in range(begin_ms, begin_ms + YEAR_MS, 7_654_321):
        runtime.now_ms = sent_ms
        (msg_id,) = ids.new(1)
        for later_ms in (1, 3_600_000, 86_400_000, 27 * 86_400_000):
            assert decode(msg_id, sent_ms + later_ms) == (bytes([10, 1, 2, 3]), 70_000 - 65_536, sent_ms)


@given(st.integers(0, 4_000_000_000_000))
def test_a_months_milliseconds_fit_in_four_bytes(unix_ms: int) -> None:
    """Four bytes of milliseconds can hold every time of a month."""
    begin_ms, end_ms = month_of(unix_ms)
    assert begin_ms <= unix_ms < end_ms
    assert 28 <= (end_ms - begin_ms) / 86_400_000 <= 31
    assert month_of(end_ms)[0] == end_ms


STEPS = st.one_of(
    st.tuples(st.just("count"), st.sampled_from([1, 2, 65_535, 65_536])),
    st.tuples(st.just("clock"), st.sampled_from([0, 1, 1000, -1, -1000, 31 * 86_400_000, -40 * 86_400_000])),
    st.tuples(st.just("fork"), st.just(0)),
)


@given(st.lists(STEPS, max_size=8))
@example([("clock", 1), ("count", 65_535), ("clock", -1)])
def test_ids_are_unique(steps: list[tuple[str, int]]) -> None:
    """Ids stay unique if the counter wraps, the clock is set, the month changes or the process forks."""
    runtime = Set(1_800_000_000_000)
    ids = MessageIds(runtime)
    made: list[str] = ids.new(1)
    for what, number in steps:
        if what == "count":
            made += ids.new(number)
        elif what == "clock":
            runtime.now_ms += number
        else:
            runtime.process += 65_536
    made += ids.new(1)
    assert len(set(made)) == len(made)


def test_threads_and_producers_make_unique_ids() -> None:
    """Four threads that share a producer, and another producer in the same process, make unique ids."""
    runtime = RealRuntime()
    shared, other = MessageIds(runtime), MessageIds(runtime)
    made: list[str] = []
    threads = [Thread(target=lambda: made.extend(shared.new(1)[0] for _ in range(5000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    made += [other.new(1)[0] for _ in range(5000)]
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 25_000


FORKS: Final = """
import ctypes, os, sys
from longpoll_client.produce.outgoing import MessageIds
from longpoll_runtime.real import RealRuntime

ids = MessageIds(RealRuntime())
ids.new(3)
child = FORK()
if child:
    os.waitpid(child, 0)
os.write(1, "".join(f"{child} {each}\\n" for each in ids.new(100)).encode())
os._exit(0)
"""
"""A script with one thread; a fork that Python does not see may leave a lock held in the child."""


@pytest.mark.parametrize("fork", ["os.fork", "ctypes.PyDLL(None).fork"])
def test_a_forked_process_makes_unique_ids(fork: str) -> None:
    script = FORKS.replace("FORK", fork)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    theirs, ours = done.stdout.splitlines()[:100], done.stdout.splitlines()[100:]
    child = int(ours[0].split()[0])
    now_ms = RealRuntime().unix_ms() + 1
    assert len({line.split()[1] for line in (*theirs, *ours)}) == 200
    assert {decode(line.split()[1], now_ms).process for line in theirs} == {child % 65_536}


LIMIT = 1 << 20
PACKAGES = {Compression.LZ4: "lz4", Compression.ZSTD: "zstandard"}
MISSING = {kind for kind, name in PACKAGES.items() if importlib.util.find_spec(name) is None}
each_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.skipif(kind in MISSING, reason=f"{kind.name} NOT TRIED: no package"))
        for kind in Compression
    ],
)


@each_kind
@given(body=st.binary(max_size=300), times=st.sampled_from([1, 7, 5000]))
def test_a_compressed_body_is_decompressed(kind: Compression, body: bytes, times: int) -> None:
    """Unpacking works exactly up to the limit, and a truncated body is refused."""
    whole = body * times
    packed = pack(kind, whole)

    assert unpack(kind.sys_flag, packed, len(whole)) == whole
    for end in {0, 1, len(packed) // 2, len(packed) - 1}:
        with pytest.raises(RemoteProtocolError, match=r"cut short|is not"):
            unpack(kind.sys_flag, memoryview(packed)[:end], LIMIT * 2)
    if whole:
        with pytest.raises(RemoteProtocolError, match="cut short or unpacks to over"):
            unpack(kind.sys_flag, packed, len(whole) - 1)


@each_kind
@given(body=st.binary(max_size=200))
def test_invalid_compressed_bytes_raise_the_documented_error(kind: Compression, body: bytes) -> None:
    """Any other bytes raise only the error for an unreadable message."""
    for content in (body, pack(kind, b"x" * 100)[:7] + body):
        with pytest.raises(RemoteProtocolError, match=r"it is (not|cut)"):
            unpack(kind.sys_flag, content, LIMIT)


@each_kind
def test_a_decompression_bomb_is_refused_within_the_memory_limit(kind: Compression) -> None:
    """100 MiB of zeros, packed into at most 1 MiB, are refused if the limit for the unpacked body is 1 MiB."""
    packed = pack(kind, bytes(100 << 20))
    assert len(packed) < 1 << 20
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="unpacks to over"):
        unpack(kind.sys_flag, packed, LIMIT)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_compressed_body_without_a_type_is_zlib() -> None:
    """Old clients send zlib without a type; an unknown type is refused, and an unpacked body is passed on."""
    assert unpack(MessageSysFlag.COMPRESSED, zlib.compress(b"old"), LIMIT) == b"old"
    assert unpack(0x300, b"not packed", LIMIT) == b"not packed"
    with pytest.raises(RemoteProtocolError, match="compression type is unknown: 5"):
        unpack(MessageSysFlag.COMPRESSED | 5 << 8, b"x", LIMIT)


def test_the_flags_are_javas() -> None:
    """The flags are Java's `COMPRESSED_FLAG` and the bits of `CompressionType`."""
    assert {kind.name: kind.sys_flag for kind in Compression} == {"LZ4": 0x101, "ZSTD": 0x201, "ZLIB": 0x301}


@pytest.mark.parametrize("kind", list(PACKAGES))
def test_a_missing_compression_package_is_named(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised when a message arrives or a producer is made, and names the package to install."""
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LocalProtocolError, match=f"pip install {PACKAGES[kind]}"):
        unpack(kind.sys_flag, b"x", LIMIT)
    with pytest.raises(ConfigError, match="extra 'compression'"):
        Producer("127.0.0.1:1", compression=kind)


def test_only_long_bodies_that_become_shorter_are_compressed() -> None:
    """As in Java, bodies above the limit are compressed; random bytes, which do not shrink, and batches are not."""

    def flag(packing: Packing, body: bytes) -> int:
        return single_parcel("G", "T", OutgoingMessage(body), "0" * 32, 0, packing=packing).sys_flag

    packing = Packing(Compression.ZLIB, 100)
    assert flag(packing, b"x" * 99) == 0
    assert flag(packing, b"x" * 100) == Compression.ZLIB.sys_flag
    assert flag(packing, os.urandom(200)) == 0
    assert flag(Packing(None, 100), b"x" * 200) == 0
    assert batch_parcel("G", "T", [OutgoingMessage(b"x" * 9999)], ["0" * 32], 0).sys_flag == 0


def test_compressed_bodies_arrive_as_they_were_sent(name_server: str, topic: str) -> None:
    """Bodies compressed with each package arrive unchanged, also if sent one-way; the broker keeps them compressed."""
    body = b"0123456789" * 1000
    kinds = [None, *(kind for kind in Compression if kind not in MISSING)]
    with Producer(name_server) as producer:
        producer.send(topic, body)
        producer.send_one_way(topic, body)
    for kind in kinds:
        with Producer(name_server, compression=kind) as producer:
            producer.send(topic, body)
    with polling(name_server, topic) as consumer:
        found = polled(consumer, 2 + len(kinds))
    wanted = [Compression.ZLIB, Compression.ZLIB, *kinds]
    assert [message.body for message in found] == [body] * len(wanted)
    assert [message.sys_flag for message in found] == [kind.sys_flag if kind else 0 for kind in wanted]


@pytest.mark.skipif(Compression.LZ4 in MISSING, reason="LZ4 NOT TRIED: no package")
@pytest.mark.parametrize("size", [10, 64 << 10, 65 << 10, 4 << 20])
def test_blocks_of_lz4_are_independent(size: int) -> None:
    """Java's `LZ4FrameInputStream` refuses frames without the flag of independent blocks (in the fifth byte).

    Java's client then never delivered a body of over 64 KiB, which has more than one block.
    """
    assert pack(Compression.LZ4, bytes(size))[4] & 0x20


@pytest.mark.skipif(Compression.LZ4 in MISSING, reason="LZ4 NOT TRIED: no package")
@pytest.mark.parametrize("frames", [1, 3])
def test_a_few_bytes_of_lz4_may_decompress_to_many_pieces(frames: int) -> None:
    whole = bytes(3 * PIECE_SIZE + 7)
    packed = pack(Compression.LZ4, whole)
    assert len(packed) < LZ4_PIECE_SIZE
    assert unpack(Compression.LZ4.sys_flag, packed * frames, len(whole) * frames) == whole * frames


@pytest.mark.skipif(Compression.LZ4 in MISSING, reason="LZ4 NOT TRIED: no package")
def test_many_small_frames_of_lz4_are_decompressed_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader once copied the remaining input for each frame, which took half a minute for 3 MB."""
    package = importlib.import_module("lz4.frame")
    copied: list[int] = []

    class Counting:
        """Decode one frame, and record the number of bytes behind it."""

        def __init__(self) -> None:
            self.frame = package.LZ4FrameDecompressor()

        def __getattr__(self, name: str) -> object:
            found = getattr(self.frame, name)
            if name == "unused_data":
                copied.append(len(found or b""))
            return found

    monkeypatch.setattr(compression, "_package", lambda _kind: SimpleNamespace(LZ4FrameDecompressor=Counting))
    frames = [package.compress(b""), package.compress(b"abc")] * 2000
    content = b"".join(frames)
    assert unpack(Compression.LZ4.sys_flag, content, 6000) == b"abc" * 2000
    assert sum(copied) <= len(frames) * LZ4_PIECE_SIZE
    with pytest.raises(RemoteProtocolError, match="unpacks to over 5999 bytes"):
        unpack(Compression.LZ4.sys_flag, content, 5999)
