"""A packet capture gives the same history as the proxy records; an incomplete capture is never `valid`."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from attrs import define, field, frozen
from click.testing import CliRunner
from model_tests.support.broker.observed import events_of
from model_tests.support.broker.raw_client import pull_fields, send_fields

from longpoll.cli import main
from longpoll_judge.contract.result import Result
from longpoll_judge.run.pipeline import judge
from longpoll_observe.capture import CaptureReport, read_captures
from longpoll_observe.capture.conversation import PENDING_MAX, TcpStream
from longpoll_observe.events import Subscriptions
from longpoll_observe.tap import ConnectionTap, TapTotals
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames import Command, encode
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event

CLIENT: Final = (b"\x7f\0\0\1", 40_000)
BROKER: Final = (b"\x7f\0\0\1", 10_911)
BROKER_NAME: Final = "127.0.0.1:10911"
BEGUN_NS: Final = 1_700_000_000_000_000_000
MS: Final = 1_000_000
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
SCALE: Final = 7
WINDOW: Final = 502
"""A TCP window that is 64 KiB after scaling, which is Linux's initial value."""


@frozen
class Sent:
    time_ns: int
    is_of_client: bool
    sequence: int
    acknowledged: int
    flags: int
    content: bytes
    stamp: int | None
    window: int = WINDOW

    def tcp(self) -> bytes:
        options = (
            b""
            if self.stamp is None
            else struct.pack(">2xBBII", 8, 10, self.stamp & 0xFFFF_FFFF, 1).replace(b"\0\0", b"\1\1", 1)
        )
        if self.flags & SYN:
            options += bytes((1, 3, 3, SCALE))
        source, target = (CLIENT, BROKER) if self.is_of_client else (BROKER, CLIENT)
        offset = (20 + len(options)) // 4
        return (
            struct.pack(
                ">HHIIBBHHH", source[1], target[1], self.sequence & 0xFFFF_FFFF, self.acknowledged & 0xFFFF_FFFF,
                offset << 4, self.flags, self.window, 0, 0,
            )
            + options
            + self.content
        )  # fmt: skip

    def ip(self, version: int = 4) -> bytes:
        tcp = self.tcp()
        source, target = (CLIENT[0], BROKER[0]) if self.is_of_client else (BROKER[0], CLIENT[0])
        if version == 4:
            return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + target + tcp
        mapped = [b"\0" * 10 + b"\xff\xff" + each for each in (source, target)]
        return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + b"".join(mapped) + tcp


@define
class Wire:
    """A TCP connection in a test; every segment takes 1 ms and is acknowledged 1 ms later.

    Invariant: `sent` has the segments in the order of their timestamps.
    """

    now_ns: int = BEGUN_NS
    stamped: bool = True
    sent: list[Sent] = field(factory=list)
    positions: dict[bool, int] = field(factory=lambda: {True: 0xFFFF_FF00, False: 77})
    """Maps `True` (client) and `False` (broker) to the next sequence number. The client's number passes 2**32."""

    def opens(self) -> None:
        self._put(True, SYN)
        self.positions[True] += 1
        self._put(False, SYN | ACK)
        self.positions[False] += 1
        self._put(True, ACK)

    def says(self, content: bytes, *, is_of_client: bool, piece: int = 1_400) -> None:
        for start in range(0, len(content), piece):
            part = content[start : start + piece]
            self._put(is_of_client, PSH | ACK, part)
            self.positions[is_of_client] += len(part)
            self._put(not is_of_client, ACK)

    def closes(self) -> None:
        for is_of_client in (True, False):
            self._put(is_of_client, FIN | ACK)
            self.positions[is_of_client] += 1
        self._put(True, ACK)

    def waits(self, ms: int) -> None:
        self.now_ns += ms * MS

    def _put(self, is_of_client: bool, flags: int, content: bytes = b"") -> None:
        self.now_ns += MS
        stamp = self.now_ns // MS + 5 * is_of_client if self.stamped else None
        own, other = self.positions[is_of_client], self.positions[not is_of_client]
        window = WINDOW if not flags & SYN else 65_535
        self.sent.append(Sent(self.now_ns, is_of_client, own, other, flags, content, stamp, window))


LINKS: Final[dict[str, tuple[int, Callable[[Sent], bytes]]]] = {
    "Ethernet": (1, lambda sent: b"\0" * 12 + b"\x08\0" + sent.ip()),
    "Ethernet with a VLAN": (1, lambda sent: b"\0" * 12 + b"\x81\0\0\7\x08\0" + sent.ip()),
    "Ethernet, padded": (1, lambda sent: (b"\0" * 12 + b"\x08\0" + sent.ip()).ljust(90, b"\0")),
    "cooked": (113, lambda sent: b"\0\0\3\4\0\6" + b"\0" * 8 + b"\x08\0" + sent.ip()),
    "cooked, second version": (276, lambda sent: b"\x08\0\0\0\0\0\0\1\3\4\0\6" + b"\0" * 8 + sent.ip()),
    "NULL": (0, lambda sent: b"\2\0\0\0" + sent.ip()),
    "loopback": (108, lambda sent: b"\0\0\0\2" + sent.ip()),
    "raw": (101, lambda sent: sent.ip()),
    "raw, IPv6": (101, lambda sent: sent.ip(6)),
    "Ethernet, IPv6": (1, lambda sent: b"\0" * 12 + b"\x86\xdd" + sent.ip(6)),
}


def pcap(
    sent: Sequence[Sent], link: str = "raw", *, order: str = "<", nanoseconds: bool = True, snap: int = 65_535
) -> bytes:
    number, framed = LINKS[link]
    magic, unit = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1_000)
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snap, number)]
    for each in sent:
        packet = framed(each)
        seconds, rest = divmod(each.time_ns, 1_000_000_000)
        parts += [struct.pack(f"{order}4I", seconds, rest // unit, len(packet[:snap]), len(packet)), packet[:snap]]
    return b"".join(parts)


def pcapng(sent: Sequence[Sent], link: str = "raw", *, order: str = "<", dropped: int = 0) -> bytes:
    number, framed = LINKS[link]

    def block(kind: int, body: bytes) -> bytes:
        body = body.ljust(-(-len(body) // 4) * 4, b"\0")
        size = struct.pack(f"{order}I", 12 + len(body))
        return struct.pack(f"{order}I", kind) + size + body + size

    parts = [
        block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack(f"{order}HHIHHB3xHH", number, 0, 0, 9, 1, 9, 0, 0)),
    ]
    for each in sent:
        packet = framed(each)
        head = struct.pack(f"{order}5I", 0, each.time_ns >> 32, each.time_ns & 0xFFFF_FFFF, len(packet), len(packet))
        parts.append(block(6, head + packet))
    parts.append(block(5, struct.pack(f"{order}IIIHHQHH", 0, 0, 0, 5, 8, dropped, 0, 0)))
    return b"".join(parts)


def written(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / "port.pcap"
    file.write_bytes(content)
    return file


def later(sent: Sent, by_ns: int) -> Sent:
    return attrs.evolve(sent, time_ns=sent.time_ns + by_ns)


PULL, SEND = RequestCode.PULL_MESSAGE.value, RequestCode.SEND_MESSAGE_V2.value
ADDRESS: Final = ("127.0.0.1", 10_911)
HELD_MS: Final = 500
MOMENTS: Final = ("after_ns", "before_ns", "source", "sequence", "broker")


def request(code: int, opaque: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    return b"".join(encode(Command(code, opaque, ext_fields=fields, body=body)))


def answer(code: int, opaque: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    return b"".join(encode(Command(code, opaque, CommandFlag.RESPONSE, ext_fields=fields, body=body)))


def told(end: int, *offsets: int) -> tuple[dict[str, str], bytes]:
    body = b"".join(struct.pack(">i16xq", 2_000, offset).ljust(2_000, b"x") for offset in offsets)
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(end), "minOffset": "0", "maxOffset": str(end)}
    return fields, body


def spoken(*, late_ms: int = 0, body_end: int = 1) -> list[tuple[bool, bytes, int]]:
    """Returns a conversation of two sends, a pull that finds them and a held pull, with times in ms."""
    stored = [{"msgId": "x", "queueId": "0", "queueOffset": str(offset)} for offset in range(2)]
    found, held = told(2, *range(body_end + 1)), told(2)
    return [
        (True, request(SEND, 1, send_fields("T"), b"m"), 0),
        (False, answer(0, 1, stored[0]), 2),
        (True, request(SEND, 2, send_fields("T"), b"m"), 0),
        (False, answer(0, 2, stored[1]), 2),
        (True, request(PULL, 3, pull_fields("T", 0, timeout_ms=HELD_MS)), 5),
        (False, answer(0, 3, found[0], found[1]), 2),
        (True, request(PULL, 4, pull_fields("T", 2, timeout_ms=HELD_MS)), 5),
        (False, answer(19, 4, held[0]), HELD_MS + late_ms),
    ]


def captured(script: list[tuple[bool, bytes, int]], *, opens: bool = True, **of_wire: Any) -> list[Sent]:
    wire = Wire(**of_wire)
    if opens:
        wire.opens()
    for is_of_client, content, after_ms in script:
        wire.waits(after_ms)
        wire.says(content, is_of_client=is_of_client)
    wire.closes()
    return wire.sent


def read(directory: Path, content: bytes, broker: tuple[str, int] = ADDRESS) -> CaptureReport:
    return read_captures(
        RealRuntime(), [written(directory, content)], brokers=[broker], record_directory=str(directory / "history")
    )


def judged(directory: Path) -> Result:
    return judge([directory / "history"], engine="local")


def bare(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__ if name not in MOMENTS}


def by_tap(directory: Path, script: list[tuple[bool, bytes, int]]) -> list[dict[str, Any]]:
    recorder = HistoryRecorder(RealRuntime(), str(directory), broker=BROKER_NAME, policy="")
    tap = ConnectionTap(recorder, Subscriptions.none(), "1", TapTotals())
    tap.opened(1, 2)
    for number, (is_of_client, content, _after_ms) in enumerate(script):
        (tap.forwarded if is_of_client else tap.answered)(content, 10 * number + 3, 10 * number + 4)
    tap.closed(1_000, 1_001)
    recorder.stop()
    return [bare(event) for event in events_of(directory)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return by_tap(tmp_path_factory.mktemp("tap"), spoken())


@pytest.mark.parametrize("link", LINKS)
def test_every_link_type_gives_the_proxys_history(link: str, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    broker = ("::ffff:127.0.0.1", 10_911) if "IPv6" in link else ADDRESS
    report = read(tmp_path, pcap(captured(spoken()), link), broker)
    assert [bare(event) for event in events_of(tmp_path / "history")] == expected
    assert (report.requests, report.answers, report.gaps, report.clock) == (4, 4, 0, "monotonic")
    result = judged(tmp_path)
    assert (result.verdict, result.requests, result.gaps) == ("valid", 2, [])


def test_capture_times_contain_the_real_times(tmp_path: Path) -> None:
    sent = captured(spoken())
    read(tmp_path, pcap(sent))
    events = events_of(tmp_path / "history")
    pulls = [each for each in sent if each.is_of_client and each.content]
    held = [event for event in events if event.event == "request_received"][-1]
    assert (held.after_ns, held.before_ns) == (pulls[-1].time_ns, pulls[-1].time_ns + MS)
    last = [event for event in events if event.event == "answer_sent"][-1]
    seen_ns = [each for each in sent if not each.is_of_client and each.content][-1].time_ns
    assert seen_ns - MS <= last.after_ns <= last.before_ns == seen_ns
    assert (events[0].before_ns, events[-1].after_ns) == (sent[0].time_ns, sent[-1].time_ns)


@pytest.mark.parametrize("seed", range(4))
def test_order_copies_and_overlaps_change_nothing(seed: int, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    rng = random.Random(seed)
    sent = captured(spoken())
    more: list[Sent] = []
    for each in sent:
        if not each.content:
            continue
        if rng.random() < 0.3:
            more.append(later(each, rng.randrange(40) * MS))
        if rng.random() < 0.3 and len(each.content) > 20:
            cut = rng.randrange(1, len(each.content))
            more.append(attrs.evolve(later(each, -1), content=each.content[:cut]))
    content = [each for each in sent if each.content]
    for each in rng.sample(content, 2):
        sent[sent.index(each)] = later(each, rng.randrange(1, 20) * MS)
    mixed = sorted([*sent, *more], key=lambda each: each.time_ns)
    report = read(tmp_path, pcap(mixed))
    assert report.gaps == 0
    # A late answer may arrive after the next request, and then nothing shows that the queue was empty at its end.
    found = [bare(event) for event in events_of(tmp_path / "history") if event.event != "blocked"]
    assert sorted(map(str, found)) == sorted(map(str, expected))


CONTENTS: Final = [number for number, each in enumerate(captured(spoken())) if each.content]


@pytest.mark.parametrize("number", CONTENTS)
def test_a_lost_packet_makes_the_verdict_unknown(number: int, tmp_path: Path) -> None:
    sent = captured(spoken())
    del sent[number]
    report = read(tmp_path, pcap(sent))
    assert report.gaps == 1
    assert [event.event for event in events_of(tmp_path / "history")].count("lost") >= 1
    assert judged(tmp_path).verdict == "unknown"


def leapt() -> list[Sent]:
    """Returns segments of a held pull between which the capture's clock leaps 400 ms but the TCP timestamps do not."""
    sent = captured(spoken())
    at = max(number for number, each in enumerate(sent) if each.content)
    return [*sent[:at], *(later(each, 400 * MS) for each in sent[at:])]


@pytest.mark.parametrize(
    ("content", "clock", "verdict"),
    [
        (pcap(captured(spoken(late_ms=400))), "monotonic", "invalid"),
        (pcap(captured(spoken(body_end=0))), "monotonic", "invalid"),
        (pcap(captured(spoken(late_ms=400), stamped=False)), "unix", "unknown"),
        (pcap(captured(spoken(body_end=0), stamped=False)), "unix", "invalid"),
        (pcap(leapt()), "unix", "unknown"),
        (pcap(captured(spoken()), snap=200), None, "unknown"),
        (pcapng(captured(spoken()), dropped=3), None, "unknown"),
    ],
    ids=[
        "late answer",
        "skipped message",
        "late answer, no TCP timestamps",
        "skipped message, no TCP timestamps",
        "capture's clock set",
        "truncated packets",
        "dropped packets",
    ],
)
def test_captures_get_the_right_verdict(content: bytes, clock: str | None, verdict: str, tmp_path: Path) -> None:
    report = read(tmp_path, content)
    result = judged(tmp_path)
    assert (clock or report.clock, result.verdict) == (report.clock, verdict)
    lost = sum(event.lost_count for event in events_of(tmp_path / "history") if event.event == "lost")
    assert (lost > 0) == (clock is None) == bool(report.gaps or report.dropped)


def test_a_closed_receive_window_is_recorded(tmp_path: Path) -> None:
    wire = Wire()
    wire.opens()
    wire.says(request(PULL, 1, pull_fields("T", 0, timeout_ms=HELD_MS)), is_of_client=True)
    for window, after_ms in ((0, 1), (502, 300)):
        wire.waits(after_ms)
        wire.says(b"", is_of_client=True)
        wire._put(True, ACK)
        wire.sent[-1] = attrs.evolve(wire.sent[-1], window=window)
    wire.waits(300)
    wire.says(answer(19, 1, told(0)[0]), is_of_client=False)
    wire.closes()
    read(tmp_path, pcap(wire.sent))
    events = [event for event in events_of(tmp_path / "history") if "blocked" in event.event]
    assert [event.event for event in events] == ["blocked", "unblocked"]
    assert events[1].before_ns - events[0].before_ns >= 300 * MS


def test_connections_without_a_regular_end(tmp_path: Path) -> None:
    sent = captured(spoken())[:-3]
    read(tmp_path, pcap(sent))
    assert "connection_closed" not in [event.event for event in events_of(tmp_path / "history")]
    assert judged(tmp_path).verdict == "valid"
    (tmp_path / "reset").mkdir()
    read(tmp_path / "reset", pcap([*sent, attrs.evolve(sent[-1], flags=RST, content=b"", stamp=None)]))
    assert "connection_closed" in [event.event for event in events_of(tmp_path / "reset" / "history")]
    assert judged(tmp_path / "reset").verdict == "valid"


def test_reused_ports_are_a_new_connection(tmp_path: Path) -> None:
    sent = captured(spoken())
    again = captured(spoken(), now_ns=sent[-1].time_ns, positions={True: 9, False: 8})
    assert read(tmp_path, pcap([*sent, *again])).connections == 2
    (tmp_path / "unseen").mkdir()
    assert read(tmp_path / "unseen", pcap([*sent[:-3], *again])).connections == 2


def command(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["observe", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_a_truncated_capture_is_read_to_its_end(tmp_path: Path) -> None:
    content = pcap(captured(spoken()))
    file = written(tmp_path, content[:-30])
    code, _out, err = command("--capture", file, "--broker", BROKER_NAME, "--record", tmp_path / "history")
    assert (code, "ends in the middle of a packet" in err) == (3, True)
    assert judged(tmp_path).verdict == "unknown"


@pytest.mark.parametrize("content", [b"", b"\xd4", b"garbage " * 100, b"{}", pcap([])[:20], pcap([]), pcapng([])])
def test_an_invalid_capture_is_reported_in_one_line(content: bytes, tmp_path: Path) -> None:
    file = written(tmp_path, content)
    code, out, err = command("--capture", file, "--broker", BROKER_NAME, "--record", tmp_path / "history")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "history").exists()


def test_a_capture_without_the_broker_names_the_addresses(tmp_path: Path) -> None:
    file = written(tmp_path, pcap(captured(spoken())))
    code, _out, err = command("--capture", file, "--broker", "10.0.0.1:10911", "--record", tmp_path / "history")
    assert (code, BROKER_NAME in err) == (2, True)


@pytest.mark.parametrize("make", [pcap, pcapng])
def test_damaged_files_end_in_no_traceback(make: Any, tmp_path: Path) -> None:
    content = make(captured(spoken()), "Ethernet")
    for seed in range(15):
        rng = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(damaged))
            if rng.random() < 0.7:
                damaged[at] = rng.randrange(256)
            else:
                del damaged[at : at + rng.randrange(1, 40)]
        where = tmp_path / str(seed)
        file = written(where, bytes(damaged))
        code, _out, err = command("--capture", file, "--broker", BROKER_NAME, "--record", where / "history")
        assert code in {0, 2, 3}, (seed, err)
        assert err.count("\n") <= 1, (seed, err)


def test_pending_bytes_of_a_stream_are_bounded() -> None:
    half = TcpStream()
    half.begin(0)
    half.put(10, 1, b"x" * PENDING_MAX, PENDING_MAX)
    assert not half.is_full
    half.put(10 + PENDING_MAX, 1, b"y", 1)
    assert half.is_full
    half.skip(0)
    assert (sum(len(content) for _, content in half.take()), half.is_full) == (PENDING_MAX + 1, False)


def test_a_single_syn_is_not_a_connection(tmp_path: Path) -> None:
    sent = [each for each in captured(spoken()) if each.flags & SYN][:1]
    report = read(tmp_path, pcap(sent))
    assert (report.connections, report.requests) == (1, 0)
    assert [event.event for event in events_of(tmp_path / "history")] == ["source_started", "source_stopped"]
