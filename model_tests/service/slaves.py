"""A master's side of replication without threads, sockets and time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_network
from typing import Any, Final

from attrs import define, evolve, field
from model_tests.support.service import HeldLock

from longpoll_broker.io.channel import Outbox
from longpoll_broker.rocketmq.replication.replicator import ReplicationSettings, Replicator, SlaveWait, SlaveWaits
from longpoll_protocol.replication import encode_head, encode_report
from longpoll_runtime import Address, Buffer

MS: Final = 1_000_000
BEGUN_NS: Final = 5_000 * MS
SETTINGS: Final = ReplicationSettings(
    transfer_size=64,
    heartbeat_ms=1_000,
    idle_ms_max=20_000,
    slave_count_max=3,
    networks=(),
    behind_bytes_max=100,
    timeout_ms=3_000,
    needed_count=None,
    begins_with_last_file=False,
    only_visible=False,
)


@define(slots=True, eq=False)
class Log:
    """A log as a master's store shows it; each of its bytes says where it stands."""

    log_end: int = 0
    log_start: int = 0
    log_file_size: int = 1_000
    visible_end: int = 1 << 40
    is_broken: bool = False

    def content(self, start: int, stop: int) -> bytes:
        first = start % 251
        return (bytes(range(251)) * ((first + stop - start) // 251 + 1))[first : first + stop - start]

    def log_part(self, physical_offset: int, size_max: int, *, only_visible: bool = False) -> memoryview | None:
        if self.is_broken:
            raise ZeroDivisionError("the log is broken")
        stop = min(self.log_end, physical_offset + size_max, self.visible_end if only_visible else self.log_end)
        if not self.log_start <= physical_offset < stop:
            return None
        return memoryview(self.content(physical_offset, stop))


@define(slots=True, eq=False)
class ScriptedSocket:
    """A socket that receives what a test wrote down, and sends while there is room."""

    said: list[bytes] = field(factory=list)
    room: int = 1 << 40
    taken: bytearray = field(factory=bytearray)

    def send(self, content: bytes) -> int:
        """Of nothing a socket takes nothing, again and again."""
        content = content[: self.room]
        if not content:
            raise BlockingIOError
        self.taken += content
        self.room -= len(content)
        return len(content)


@define(slots=True, eq=False, kw_only=True)
class Slave(ScriptedSocket):
    """The socket of a slave."""

    port: int = 1
    host: str = "10.0.0.1"
    asked_count: int = 0
    is_closed: bool = False
    close_error: OSError | None = None

    @property
    def peer(self) -> Address:
        return self.host, self.port

    def report(self, offset: int) -> None:
        self.said.append(encode_report(offset))

    def recv_into(self, buffer: bytearray) -> int:
        self.asked_count += 1
        if not self.said:
            raise BlockingIOError
        content = self.said.pop(0)
        buffer[: len(content)] = content
        return len(content)

    def send_parts(self, parts: Sequence[Buffer]) -> int:
        assert parts
        return self.send(b"".join(parts))

    def took(self) -> bytes:
        content, self.taken = bytes(self.taken), bytearray()
        return content

    def close(self) -> None:
        self.is_closed = True
        if self.close_error is not None:
            raise self.close_error


def transfers(log: Log, start: int, *sizes: int) -> bytes:
    """The transfers that a slave gets from an offset on, by their sizes."""
    content = b""
    for size in sizes:
        content += encode_head(start, size) + log.content(start, start + size)
        start += size
    return content


class Lock(HeldLock):
    """Says whether it is held; `meanwhile` is done just before it is taken, as by another thread."""

    meanwhile: Callable[[], None] | None = None

    def __enter__(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().__enter__()


@define(slots=True, eq=False)
class LockedWaits(SlaveWaits):
    """Sees to it that the lock is held whenever they change."""

    lock: Lock = field(kw_only=True)

    def add(self, wait: SlaveWait) -> bool:
        assert self.lock.is_held
        return SlaveWaits.add(self, wait)

    def take_copied(self, copied_end: int) -> list[SlaveWait]:
        assert self.lock.is_held
        return SlaveWaits.take_copied(self, copied_end)

    def take_late(self, now_ns: int | None) -> list[SlaveWait]:
        assert self.lock.is_held
        return SlaveWaits.take_late(self, now_ns)


class Bench:
    """Runtime, listener and poller of one replicator, whose rounds a test gives it."""

    address: Final = ("10.0.0.9", 10_912)

    def __init__(self, **changes: Any) -> None:
        if "networks" in changes:
            changes["networks"] = tuple(map(ip_network, changes["networks"]))
        self.log = Log()
        self.notes: list[Any] = []
        self.timeouts: list[float | None] = []
        self.waiting: list[Slave] = []
        self.accept_error: OSError | None = None
        self.now_ns = BEGUN_NS
        self._watched: dict[Any, tuple[bool, bool, object]] = {}
        self._rounds: list[Callable[[], None]] = []
        self._lock = Lock()
        bench: Any = self
        self.replicator = Replicator(bench, bench, bench, evolve(SETTINGS, **changes))
        self.replicator._waits = LockedWaits(lock=self._lock)
        self.notes.clear()

    # -- the runtime -------------------------------------------------------------------------------------------------

    def monotonic_ns(self) -> int:
        return self.now_ns

    def lock(self) -> Lock:
        return self._lock

    def poller(self) -> Bench:
        return self

    def spawn(self, name: str, target: Callable[[], None]) -> Bench:
        """No thread is started; a test runs its rounds."""
        assert target == self.replicator._run
        self.notes.append(("spawn", name))
        return self

    def join(self) -> None:
        self.notes.append("join")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    # -- the listener ------------------------------------------------------------------------------------------------

    def accept(self) -> tuple[Slave, Address]:
        if self.accept_error is not None:
            raise self.accept_error
        if not self.waiting:
            raise BlockingIOError
        slave = self.waiting.pop(0)
        return slave, slave.peer

    def close(self) -> None:
        self.notes.append("close")

    # -- the poller --------------------------------------------------------------------------------------------------

    def register(self, key: Any, *, read: bool, write: bool, data: object) -> None:
        """Watch one more: whether it can be written to is asked when something is left over."""
        assert key not in self._watched
        assert read
        assert not write
        self._watched[key] = (read, write, data)

    def modify(self, key: Any, *, read: bool, write: bool, data: object) -> None:
        assert key in self._watched
        self._watched[key] = (read, write, data)
        self.notes.append(("modify", self._name(key), read, write))

    def unregister(self, key: Any) -> None:
        del self._watched[key]

    def wake(self) -> None:
        self.notes.append("wake")

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        """Let what the test says come to pass; who is ready then."""
        assert not any(key.is_closed for key in self._watched if key is not self)
        if not self._rounds:
            raise _OverError
        self.timeouts.append(timeout)
        self._rounds.pop(0)()
        ready = [(data, *self._ready(key, read, write)) for key, (read, write, data) in self._watched.items()]
        return [each for each in ready if any(each[1:])]

    def _ready(self, key: Any, read: bool, write: bool) -> tuple[bool, bool]:
        if key is self:
            return read and bool(self.waiting or self.accept_error), False
        return read and bool(key.said), write and key.room > 0

    # -- the test ----------------------------------------------------------------------------------------------------

    def rounds(self, *rounds: Callable[[], None] | None) -> None:
        self._rounds = [each or _nothing for each in rounds]
        with suppress(_OverError):
            self.replicator._run()

    def connect(self, *slaves: Slave) -> None:
        """Connect slaves in one round."""
        self.waiting += slaves
        self.rounds(None)

    def report(self, slave: Slave, offset: int) -> None:
        """Let a slave report in one round."""
        slave.report(offset)
        self.rounds(None)

    def at(self, ms: int, ns: int = 0) -> None:
        """Let a round begin so long after the beginning."""
        self.now_ns = BEGUN_NS + ms * MS + ns
        self.rounds(None)

    def later_notes(self) -> list[Any]:
        notes, self.notes = self.notes, []
        return notes

    def peers(self) -> list[Address]:
        return [link.peer for link in self.replicator._links]

    def submit(self, log_end: int, told: list[Any]) -> None:
        """Wait for a slave's copy; `told` gets the answer."""
        box = Outbox()

        def copied(is_copied: bool, outbox: Outbox) -> None:
            where = "at once" if outbox is box else "later"
            outbox.after_flush(lambda: told.append((log_end, is_copied, where)))

        self.replicator.submit(log_end, copied, box)
        box.flush()

    def wait_quietly(self, log_end: int, told: list[Any]) -> None:
        wait = SlaveWait(log_end, 1 << 62, lambda is_copied, _outbox: told.append((log_end, is_copied, "later")))
        SlaveWaits.add(self.replicator._waits, wait)

    def _name(self, key: Any) -> str | int:
        return "listener" if key is self else int(key.port)


class _OverError(BaseException):
    """The rounds that a test has given are over."""


def _nothing() -> None:
    """A round in which nothing comes to pass."""


NO_DESCRIPTORS: Final = OSError(errno.EMFILE, "Too many open files")
