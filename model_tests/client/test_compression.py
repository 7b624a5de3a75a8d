"""Bodies packed by zlib, LZ4 and Zstandard: sent, received, and refused where they are not what they say."""

from __future__ import annotations

import importlib.util
import os
import sys
import tracemalloc
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    Compression,
    ConsumerConfig,
    OutgoingMessage,
    Producer,
    PullConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.produce.outgoing import Packing, batch_parcel, single_parcel
from longpoll_protocol import compression
from longpoll_protocol.codes import MessageSysFlag
from longpoll_protocol.compression import LZ4_PIECE_SIZE, PIECE_SIZE, pack, unpack
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
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
def test_what_is_packed_is_unpacked(kind: Compression, body: bytes, times: int) -> None:
    """Exactly up to the limit and not beyond; cut short anywhere it is refused."""
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
def test_any_other_bytes_are_refused_and_nothing_else(kind: Compression, body: bytes) -> None:
    """By the one error that makes a message unreadable."""
    for content in (body, pack(kind, b"x" * 100)[:7] + body):
        with pytest.raises(RemoteProtocolError, match=r"it is (not|cut)"):
            unpack(kind.sys_flag, content, LIMIT)


@each_kind
def test_a_bomb_is_refused_and_costs_no_more_memory_than_the_limit_allows(kind: Compression) -> None:
    """100 MiB of zeros, packed into at most 1 MiB, where 1 MiB may come out."""
    packed = pack(kind, bytes(100 << 20))
    assert len(packed) < 1 << 20
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError, match="unpacks to over"):
        unpack(kind.sys_flag, packed, LIMIT)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def test_zlib_is_also_what_does_not_say_by_what_it_is_packed() -> None:
    """As old clients send it; a type that nobody has is refused, and what is not packed goes through."""
    assert unpack(MessageSysFlag.COMPRESSED, zlib.compress(b"old"), LIMIT) == b"old"
    assert unpack(0x300, b"not packed", LIMIT) == b"not packed"
    with pytest.raises(RemoteProtocolError, match="compression type is unknown: 5"):
        unpack(MessageSysFlag.COMPRESSED | 5 << 8, b"x", LIMIT)


def test_the_flags_are_javas() -> None:
    """`COMPRESSED_FLAG` and the bits of `CompressionType`."""
    assert {kind.name: kind.sys_flag for kind in Compression} == {"LZ4": 0x101, "ZSTD": 0x201, "ZLIB": 0x301}


@pytest.mark.parametrize("kind", list(PACKAGES))
def test_without_its_package_it_says_what_to_install(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a message comes, and when a producer is made."""
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LocalProtocolError, match=f"pip install {PACKAGES[kind]}"):
        unpack(kind.sys_flag, b"x", LIMIT)
    with pytest.raises(ConfigError, match="extra 'compression'"):
        Producer(RUNTIME, "127.0.0.1:1", compression=kind)


def test_only_long_bodies_that_become_shorter_are_packed() -> None:
    """From the limit on, as in Java; random bytes and batches go as they are."""

    def flag(packing: Packing, body: bytes) -> int:
        return single_parcel("G", "T", OutgoingMessage(body), "0" * 32, 0, packing=packing).sys_flag

    packing = Packing(Compression.ZLIB, 100)
    assert flag(packing, b"x" * 99) == 0
    assert flag(packing, b"x" * 100) == Compression.ZLIB.sys_flag
    assert flag(packing, os.urandom(200)) == 0
    assert flag(Packing(None, 100), b"x" * 200) == 0
    assert batch_parcel("G", "T", [OutgoingMessage(b"x" * 9999)], ["0" * 32], 0).sys_flag == 0


def test_they_come_through_a_broker_as_they_were_sent(tmp_path: Path) -> None:
    """Packed by each that is installed, by zlib unless told otherwise; one-way too; the broker keeps them packed."""
    body = b"0123456789" * 1000
    kinds = [None, *(kind for kind in Compression if kind not in MISSING)]
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        with new_topic(name_server, 1) as topic:
            with Producer(RUNTIME, name_server) as producer:
                producer.send(topic, body)
                producer.send_one_way(topic, body)
            for kind in kinds:
                with Producer(RUNTIME, name_server, compression=kind) as producer:
                    producer.send(topic, body)
            with PullConsumer(RUNTIME, name_server, ConsumerConfig("G", start_at=StartAt.FIRST)) as consumer:
                consumer.subscribe(topic)
                consumer.start()
                found: list[ReceivedMessage] = []
                while len(found) < 2 + len(kinds):
                    messages = consumer.poll(PATIENCE_S)
                    assert messages
                    found += messages
    wanted = [Compression.ZLIB, Compression.ZLIB, *kinds]
    assert [message.body for message in found] == [body] * len(wanted)
    assert [message.sys_flag for message in found] == [kind.sys_flag if kind else 0 for kind in wanted]


@pytest.mark.skipif(Compression.LZ4 in MISSING, reason="LZ4 NOT TRIED: no package")
@pytest.mark.parametrize("size", [10, 64 << 10, 65 << 10, 4 << 20])
def test_no_block_of_lz4_goes_on_from_the_one_before(size: int) -> None:
    """Java's `LZ4FrameInputStream` refuses a frame whose flags (its fifth byte) lack the bit of independent blocks.

    Its client then never gets the message: a body of over 64 KiB, which is more than one block, had been packed so.
    """
    assert pack(Compression.LZ4, bytes(size))[4] & 0x20


@pytest.mark.skipif(Compression.LZ4 in MISSING, reason="LZ4 NOT TRIED: no package")
@pytest.mark.parametrize("frames", [1, 3])
def test_a_few_bytes_of_lz4_may_be_many_pieces(frames: int) -> None:
    """What does not come out at once is asked for again, also before the next frame."""
    whole = bytes(3 * PIECE_SIZE + 7)
    packed = pack(Compression.LZ4, whole)
    assert len(packed) < LZ4_PIECE_SIZE
    assert unpack(Compression.LZ4.sys_flag, packed * frames, len(whole) * frames) == whole * frames


@pytest.mark.skipif(Compression.LZ4 in MISSING, reason="LZ4 NOT TRIED: no package")
def test_many_small_frames_of_lz4_take_no_longer_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind a frame was copied for each: 3 MB of empty ones kept a consumer busy for half a minute."""
    package = importlib.import_module("lz4.frame")
    copied: list[int] = []

    class Counting:
        """One frame, and how much stood behind it."""

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
