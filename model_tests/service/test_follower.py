"""A slave's thread, round by round: what it appends, what it reports and when, and what ends its connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from attrs import define
from model_tests.service.slaves import ScriptedSocket
from model_tests.support.service import Noting, reasons

from longpoll_broker.errors import BrokerError
from longpoll_broker.rocketmq.replication import follower
from longpoll_broker.rocketmq.replication.follower import CONNECT_S, LOOK_S, RECEIVE_SIZE, RETRY_MS, Follower
from longpoll_broker.rocketmq.replication.peer_client import MasterAddress
from longpoll_protocol.log_record import MAGIC_V1, SIZE_AND_MAGIC
from longpoll_protocol.replication import TRANSFER_SIZE_MAX, encode_head

MS: Final = 1_000_000
BEGUN_NS: Final = 5_000 * MS
AT: Final = ("10.0.0.9", 10_912)
HEARTBEAT_MS: Final = 100
IDLE_MS: Final = 300


class _OverError(BaseException):
    """The rounds that a test has given are over."""


def transfer(offset: int, content: bytes) -> bytes:
    return encode_head(offset, len(content)) + content


def record(size: int, letter: bytes = b"r") -> bytes:
    return SIZE_AND_MAGIC.pack(size, MAGIC_V1) + letter * (size - SIZE_AND_MAGIC.size)


@define(slots=True, eq=False)
class Sender(ScriptedSocket):
    """The socket to a master."""

    is_closed: bool = False

    def say(self, *content: bytes) -> Callable[[], None]:
        return lambda: self.said.extend(content)

    def recv_into(self, buffer: bytearray) -> int:
        if not self.said:
            raise BlockingIOError
        content = self.said.pop(0)
        size = min(len(content), len(buffer))
        buffer[:size] = content[:size]
        if size < len(content):
            self.said.insert(0, content[size:])
        return size

    def reports(self) -> list[int]:
        content, self.taken = bytes(self.taken), bytearray()
        assert len(content) % 8 == 0
        return [int.from_bytes(content[at : at + 8]) for at in range(0, len(content), 8)]

    def close(self) -> None:
        self.is_closed = True


class Bench(Noting):
    """Runtime, store and poller of one follower, whose rounds a test gives it."""

    def __init__(self, *, flushes: bool = False, log: bytes = b"", ha_address: Any = AT) -> None:
        super().__init__()
        self.log = bytearray(log)
        self.looked_at: list[int] = []
        self.now_ns = BEGUN_NS
        self.masters: list[Sender | OSError] = []
        """Who is there when it connects; with nobody left the test is over."""
        self.watched: dict[Any, tuple[bool, bool]] = {}
        self.is_stopping = False
        self._rounds: list[Callable[[], None]] = []
        self.master = MasterAddress(None, ha_address)
        bench: Any = self
        self.follower = Follower(bench, bench, self.master, self.show, flushes, HEARTBEAT_MS, IDLE_MS)

    # -- the runtime and its event -----------------------------------------------------------------------------------

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ms(self) -> int:
        return self.now_ns // MS + 1_000_000

    def event(self) -> Any:
        return self

    poller = event

    def set(self) -> None:
        self.is_stopping = True
        self.notes.append("stop")

    def is_set(self) -> bool:
        return self.is_stopping

    def wait(self, timeout: float) -> bool:
        self.notes.append(("wait", timeout))
        return self.is_stopping

    def connect(self, host: str, port: int, timeout_s: float) -> Sender:
        if not self.masters:
            raise _OverError
        self.notes.append(("connect", (host, port), timeout_s))
        master = self.masters.pop(0)
        if isinstance(master, OSError):
            raise master
        return master

    def spawn(self, name: str, target: Callable[[], None]) -> Any:
        assert target == self.follower._run
        self.notes.append(("spawn", name))
        return self

    # -- the poller --------------------------------------------------------------------------------------------------

    def register(self, key: Any, *, read: bool, write: bool, data: object) -> None:
        assert not self.watched, "there is one connection at a time"
        assert (read, write, data) == (True, False, None)
        self.watched[key] = (read, write)

    def modify(self, key: Any, *, read: bool, write: bool, data: object) -> None:
        assert (key in self.watched, data) == (True, None)
        self.watched[key] = (read, write)

    def unregister(self, key: Any) -> None:
        assert not key.is_closed
        del self.watched[key]

    def poll(self, timeout: float) -> None:
        assert timeout == LOOK_S
        if not self._rounds:
            raise _OverError
        self._rounds.pop(0)()

    # -- the store ---------------------------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        return len(self.log)

    def put_copied(self, start: int, content: memoryview) -> int:
        """Take the whole records; bytes of a file of zeros are refused."""
        self.looked_at.append(len(content))
        if not self.log:
            self.log += bytes(start)
        assert start == len(self.log)
        taken = 0
        while len(content) - taken >= SIZE_AND_MAGIC.size:
            size = SIZE_AND_MAGIC.unpack_from(content, taken)[0]
            if not size:
                raise BrokerError("no record")
            if len(content) - taken < size:
                break
            self.log += content[taken : taken + size]
            taken += size
        return taken

    def flush(self) -> None:
        self.notes.append(("flush", len(self.log)))

    def show(self) -> None:
        self.notes.append(("show", len(self.log)))

    # -- the test ----------------------------------------------------------------------------------------------------

    def follow(self, master: Sender, *rounds: Callable[[], None]) -> None:
        """Run the thread while a master says this, and then no more."""
        self.masters.append(master)
        self._rounds = list(rounds)
        with suppress(_OverError):
            self.follower._run()

    def left(self) -> int:
        return len(self._rounds)

    def pass_ms(self, ms: int, ns: int = 0) -> Callable[[], None]:
        return lambda: setattr(self, "now_ns", self.now_ns + ms * MS + ns)


TRIED: Final = [("wait", 0.0), ("connect", AT, CONNECT_S)]


@pytest.mark.parametrize("flushes", [False, True])
def test_what_comes_is_appended_shown_and_reported(flushes: bool) -> None:
    """With SYNC_FLUSH it is durable before it is reported."""
    bench, master = Bench(flushes=flushes, log=record(20)), Sender()
    first, second = record(30, b"a"), record(40, b"b")
    bench.follow(master, master.say(transfer(20, first), transfer(50, second)), master.say(transfer(90, record(20))))
    assert bench.log == record(20) + first + second + record(20)
    assert master.reports() == [20, 90, 110]
    shown = [[("flush", end), ("show", end)] if flushes else [("show", end)] for end in (90, 110)]
    assert bench.told() == [*TRIED, *shown[0], *shown[1], "forget_beginning"]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 19, 20, 21, 39, 60, 61])
def test_a_record_in_pieces_is_appended_when_it_is_whole(size: int) -> None:
    bench, master = Bench(), Sender()
    content = record(20, b"a") + record(40, b"b") + record(20, b"c")
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    bench.follow(master, *(master.say(transfer(n * size, piece)) for n, piece in enumerate(pieces)))
    assert bench.log == content
    ends = [note[1] for note in bench.told() if note[0] == "show"]
    assert [0, *ends] == master.reports()
    assert ends == sorted(set(ends)) == ends
    assert set(ends) <= {20, 60, 80}
    if size == 1:
        assert bench.looked_at == [*range(1, 9), 20, *range(1, 9), 40, *range(1, 9), 20]


def test_an_empty_log_begins_where_the_master_says() -> None:
    bench, master = Bench(), Sender()
    bench.follow(master, master.say(transfer(500, b"")), master.say(transfer(1_000, record(20))))
    assert (len(bench.log), master.reports()) == (1_020, [0, 1_020])
    bench, master = Bench(), Sender()
    bench.follow(master, master.say(transfer(0, record(20)[:3])), master.say(transfer(4, record(20)[4:])))
    assert (len(bench.log), master.is_closed) == (0, True)


@pytest.mark.parametrize("offset", [19, 21, 0])
@pytest.mark.parametrize("content", [b"", record(20)])
def test_what_is_not_next_ends_the_connection(caplog: pytest.LogCaptureFixture, offset: int, content: bytes) -> None:
    bench, master, other = Bench(log=record(20)), Sender(), Sender()
    bench.masters += [master]
    bench.follow(other, master.say(transfer(20, b"")), master.say(transfer(offset, content)), bench.pass_ms(0))
    assert reasons(caplog, "master_lost") == [f"it sends its log from {offset}, but 20 comes next here"]
    assert (master.is_closed, len(bench.log)) == (True, 20)
    again = [*TRIED, "forget_beginning", ("wait", RETRY_MS / 1_000), TRIED[1], "forget_beginning"]
    assert bench.told() == again


def test_half_a_record_is_forgotten_with_its_connection() -> None:
    bench, master, other = Bench(), Sender(), Sender()
    bench.masters += [master]
    bench.follow(
        other,
        master.say(transfer(0, record(20) + record(20)[:9])),
        master.say(b""),
        other.say(transfer(20, record(20))),
    )
    assert (bytes(bench.log), other.reports()) == (record(20) * 2, [20, 40])
    assert (master.is_closed, bench.watched) == (True, {})


def test_it_says_now_and_then_where_it_is() -> None:
    """A slave reports after its interval, also without new data."""
    for count, told in ((1, [0]), (5, [0, 0, 0])):
        bench, master = Bench(), Sender()
        pass_99, pass_1 = bench.pass_ms(HEARTBEAT_MS, -1), bench.pass_ms(0, 1)
        rounds = [pass_99, pass_1, master.say(transfer(0, b"")), pass_99, pass_1]
        bench.follow(master, *rounds[:count])
        assert master.reports() == told


def test_a_report_that_is_not_taken_yet_is_replaced_by_the_next() -> None:
    """A started report is sent to its end."""
    bench, master = Bench(), Sender(room=0)
    watched: list[tuple[bool, bool]] = []

    def look(room: int) -> Callable[[], None]:
        def looked() -> None:
            watched.extend(bench.watched.values())
            master.room = room
            bench.now_ns += HEARTBEAT_MS * MS
            master.said.append(transfer(len(bench.log), record(20)))

        return looked

    bench.follow(master, look(0), look(3), look(0), look(0), look(1 << 30), look(1 << 30))
    assert (watched, master.reports()) == ([(True, True)] * 5 + [(True, False)], [20, 80, 100, 120])


def test_a_master_that_says_nothing_is_left_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    bench, master = Bench(), Sender()
    bench.follow(
        master, bench.pass_ms(IDLE_MS - 1), master.say(transfer(0, b"")), bench.pass_ms(IDLE_MS), bench.pass_ms(0, 1)
    )
    assert reasons(caplog, "master_lost") == [f"it has sent nothing for {IDLE_MS} ms"]
    assert (master.is_closed, bench.left()) == (True, 0)


def test_what_comes_late_is_heard_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    bench, master = Bench(), Sender()
    master.said.append(transfer(0, b""))
    bench.follow(master, bench.pass_ms(IDLE_MS + 1))
    assert reasons(caplog, "master_lost") == []


@pytest.mark.parametrize(
    ("error", "reason"), [(ConnectionRefusedError("refused"), "refused"), (None, "it has closed the connection")]
)
def test_a_master_that_is_not_there_is_tried_again(
    caplog: pytest.LogCaptureFixture, error: OSError | None, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    bench, master = Bench(), Sender()
    gone = Sender(said=[b""])
    bench.masters += [error or gone]
    seen: list[bool] = []
    bench.follow(master, *([lambda: None] if error is None else []), lambda: seen.append(bench.follower.is_connected))
    assert (reasons(caplog, "master_lost"), seen) == ([reason], [True])
    assert not bench.follower.is_connected
    assert gone.is_closed == (error is None)
    assert bench.told() == [*TRIED, "forget_beginning", ("wait", RETRY_MS / 1_000), TRIED[1], "forget_beginning"]


def test_a_fault_of_ours_is_told_and_it_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, master, other = Bench(), Sender(), Sender()
    monkeypatch.setattr(bench, "put_copied", lambda *_: 1 // 0)
    bench.masters += [master]
    bench.follow(other, master.say(transfer(0, record(20))))
    assert (master.is_closed, other.reports()) == (True, [0])
    assert "ZeroDivisionError" in caplog.text


def test_a_master_that_is_unknown_or_elsewhere() -> None:
    bench = Bench(ha_address=None)
    waits: list[float] = []

    def wait(timeout: float) -> bool:
        waits.append(timeout)
        if len(waits) == 3:
            bench.master.heard(None, AT)
        return False

    bench.wait = wait  # type: ignore[method-assign] # of this bench
    bench.follow(Sender(), lambda: None)
    assert waits == [0.0, RETRY_MS / 1_000, RETRY_MS / 1_000]
    assert bench.told() == [TRIED[1], "forget_beginning"], "nothing was tried before"
    assert bench.follower.status.master_addr == "10.0.0.9:10912"
    bench, master, other = Bench(ha_address=None), Sender(), Sender()
    bench.master.heard(None, AT)
    bench.masters += [master]
    bench.follow(other, lambda: bench.master.heard(None, ("10.0.0.8", 1)), lambda: None)
    assert master.is_closed
    connected = [note for note in bench.told() if note[0] == "connect"]
    assert connected == [TRIED[1], ("connect", ("10.0.0.8", 1), CONNECT_S)]


def test_what_comes_without_end_is_shown_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "READS_MAX", 3)
    bench, master = Bench(), Sender()
    bench.follow(master, master.say(*(transfer(20 * n, record(20)) for n in range(5))), lambda: None)
    assert master.reports() == [0, 60, 100]
    monkeypatch.setattr(follower, "READS_MAX", 1_000)
    bench, master = Bench(), Sender()
    chunks = [RECEIVE_SIZE] * (TRANSFER_SIZE_MAX // RECEIVE_SIZE)
    chunks += [TRANSFER_SIZE_MAX - sum(chunks), 40, 40]
    records = [record(size - 12) for size in chunks]
    starts = [sum(map(len, records[:number])) for number in range(len(records) + 1)]
    bench.follow(master, master.say(*map(transfer, starts, records)), lambda: None)
    assert master.reports() == [0, starts[-2], starts[-1]]


def test_what_is_told_of_it() -> None:
    bench, master = Bench(), Sender()
    status = bench.follower.status
    assert (status.last_read_timestamp, status.last_write_timestamp, status.max_offset) == (0, 0, 0)
    sent = transfer(0, record(50))

    def later() -> None:
        bench.now_ns += 2_000 * MS
        master.said.append(sent)

    bench.follow(master, later, bench.pass_ms(HEARTBEAT_MS))
    status = bench.follower.status
    now_ms = bench.unix_ms()
    assert (status.last_read_timestamp, status.last_write_timestamp) == (now_ms - HEARTBEAT_MS, now_ms)
    assert (status.max_offset, status.transferred_byte_in_second) == (50, len(sent) // 2)
    assert Bench(ha_address=None).follower.status.master_addr is None


def test_it_ends_when_it_is_told_to() -> None:
    bench, master = Bench(), Sender()
    bench.follower.start()
    bench.follow(master, bench.follower.stop)
    assert master.is_closed
    assert bench.told() == [
        ("spawn", "follower"),
        *TRIED,
        *("stop", "wake", "stop", "join", "close"),
        "forget_beginning",
        ("wait", RETRY_MS / 1_000),
    ]
