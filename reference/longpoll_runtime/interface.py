"""What there is of threads, locks, clock, sockets and files; real in the neighbours, simulated by `testing`.

`store`, `record` and `service` take a `Runtime` by argument and touch the outside through nothing else (an
import-linter contract says so), so the very same code runs on real threads, under a controlled scheduler with
virtual time, and over a file layer that loses unsynced pages. A step point, `runtime.step("hold")`, is a named place
between two critical sections; its names are the names of the law's actions. Here it does nothing.

Leaves out processes and signals, which belong to the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Address = tuple[str, int]
"""A host and its port."""


class Lock(AbstractContextManager[Any], Protocol):
    """A mutual exclusion lock, as `threading.Lock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; false if it could not be had in time (seconds, -1 for ever)."""
        ...

    def release(self) -> None:
        """Give the lock back."""
        ...


class Condition(AbstractContextManager[Any], Protocol):
    """A condition variable, as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; false after `timeout` seconds."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake up to n waiters."""
        ...

    def notify_all(self) -> None:
        """Wake every waiter."""
        ...


class Event(Protocol):
    """A flag that threads wait for, as `threading.Event`."""

    def set(self) -> None:
        """Raise the flag."""
        ...

    def clear(self) -> None:
        """Lower the flag."""
        ...

    def is_set(self) -> bool:
        """Whether the flag is up."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; false after `timeout` seconds."""
        ...


class Queue(Protocol[T]):
    """A bounded first-in-first-out queue between threads."""

    def offer(self, item: T) -> bool:
        """Add the item at the end; false when the queue is full."""
        ...

    def take(self, timeout: float | None = None) -> T | None:
        """The first item, waited for up to `timeout` seconds; None when none came."""
        ...

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """The first item if it is wanted; None, at once, when it is not or there is none."""
        ...

    def __len__(self) -> int: ...


class Thread(Protocol):
    """A started thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or `timeout` seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...

    def is_current(self) -> bool:
        """Whether it is the one that asks; then it cannot be joined."""
        ...


class MappedFile(Protocol):
    """One file of fixed length, mapped into memory."""

    @property
    def view(self) -> memoryview:
        """The whole file; writable if it was opened so."""
        ...

    def reserve(self, start: int, stop: int) -> None:
        """Have disk blocks for bytes [start, stop), so that a later write through `view` cannot fail.

        Raises OSError (ENOSPC, EDQUOT); without it a full disk would end the process with SIGBUS.
        """
        ...

    def clear_from(self, start: int) -> None:
        """Make zeros of everything from `start` to the end; no other thread may be using those bytes."""
        ...

    def data_from(self, position: int) -> int:
        """The first position at or after this one whose byte may not be zero: holes are skipped; the length if none."""
        ...

    def sync(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable (msync); returns when they are.

        After one that failed the system may take what it could not write for written, and the next sync says nothing.
        """
        ...

    def write_anew(self, start: int, stop: int) -> None:
        """Have the next sync write bytes [start, stop), whether or not the system takes them for written already.

        Pages of zeros are left out: they may be holes, and a full disk has no room for one.
        """
        ...

    @property
    def identity(self) -> int:
        """Which file this is; `Files.identity` says whether its path still leads to it."""
        ...

    def close(self) -> None:
        """Release `view`; the memory is unmapped when the last slice of it is gone."""
        ...


class NotRegularError(OSError):
    """A FIFO, a socket or a device stands in a file's place."""


class Files(Protocol):
    """The files below some directories; every path is absolute."""

    def map(self, path: str, size: int, *, writable: bool, create: bool = False) -> MappedFile:
        """Map a file of exactly `size` bytes; with `create`, make it, or fill a shorter one up, with zeros (sparse).

        Raises OSError (ENOSPC, EACCES, ...) as the operating system does.
        """
        ...

    def maps_max(self) -> int:
        """How many maps the system lets this process have, those of the program itself among them."""
        ...

    def read(self, path: str) -> bytes:
        """The file's bytes; raises FileNotFoundError."""
        ...

    def write_atomic(self, path: str, content: Buffer) -> None:
        """Replace the file's content durably: a crash leaves the old bytes or the new ones."""
        ...

    def open_append(self, path: str) -> AppendFile:
        """Open a file for appending, making it if needed."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory; raises OSError where the disk does not say."""
        ...

    def size(self, path: str) -> int:
        """Length in bytes; raises FileNotFoundError."""
        ...

    def identity(self, path: str) -> int:
        """A number of the file to which the path leads now: no other file has it while one has; FileNotFoundError."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when it is not there."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; no error if it is there."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the directory's list of names durable: files made or removed in it survive a power cut."""
        ...

    def changed_ms(self, path: str) -> int:
        """When the file's content was last changed, wall-clock milliseconds; raises FileNotFoundError."""
        ...

    def used_ratio(self, path: str) -> float:
        """How much of the disk that holds `path` is used, 0 to 1."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """Bytes of the disk that holds `path`: all of them, and those that are free."""
        ...

    def remove(self, path: str) -> None:
        """Remove one file; no error if it is gone."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Lock a file against other processes and return the unlock; raises BlockingIOError if it is locked."""
        ...


class AppendFile(Protocol):
    """A file that only grows."""

    def reserve(self, size: int) -> None:
        """Have disk blocks for the next `size` bytes, so that they can be appended to a full disk; the length stays.

        Raises OSError (ENOSPC, EDQUOT); where the file system does not know it, nothing is done.
        """
        ...

    def write(self, content: Buffer) -> None:
        """Append the bytes; they may be lost by a power cut until `sync`."""
        ...

    def sync(self) -> None:
        """Make everything written durable."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


PARTS_MAX = 512
"""Most parts of one `Socket.send_parts` call; Linux allows 1024 (IOV_MAX)."""


class Socket(Protocol):
    """A connected, non-blocking stream socket."""

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive into the buffer; 0 at end of stream; raises BlockingIOError when nothing is there."""
        ...

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes; raises BlockingIOError when none fit."""
        ...

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some of the bytes of the parts, in order, as if joined; raises BlockingIOError when none fit.

        No more than `PARTS_MAX` parts.
        """
        ...

    def fileno(self) -> int:
        """The descriptor, -1 when closed."""
        ...

    def close(self) -> None:
        """Close both directions."""
        ...


class PlainSocket(Socket, Protocol):
    """A socket without TLS, of which the kernel's own state can be asked."""

    def acknowledge(self) -> None:
        """Have the kernel acknowledge now what was read, if nothing unread waits."""
        ...

    def arrived(self) -> tuple[int, int]:
        """How many bytes had come when the kernel was asked; and how many more, at least, the peer may send unasked.

        The latter holds when `acknowledge` was called before and nothing had come in between; 0: it is not known.
        """
        ...

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes, and go on to receive. Raises OSError."""
        ...


class Listener(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it is bound to."""
        ...

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """A connection and its peer's address; raises BlockingIOError when none waits."""
        ...

    def fileno(self) -> int:
        """The descriptor."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Poller(Protocol):
    """Waits until one of many sockets is ready; `wake` may be called from any thread, also during and after `close`."""

    def register(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Watch a socket."""
        ...

    def modify(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Change what is watched."""
        ...

    def unregister(self, key: Socket | Listener) -> None:
        """Watch it no more."""
        ...

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        """Wait up to `timeout` seconds; (data, readable, writable) of every ready socket."""
        ...

    def wake(self) -> None:
        """Make a waiting `poll` return now."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class Forked(Protocol):
    """What has locks, and threads that may hold them: a process that is forked has the locks and not the threads."""

    def forked(self) -> None:
        """Be as one in whose process no other thread is, and none was: without waiting."""
        ...


class Runtime(Protocol):
    """Everything that the store and the service may ask of the outside."""

    @property
    def files(self) -> Files:
        """The file layer."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never steps back."""
        ...

    def unix_ms(self) -> int:
        """Wall-clock milliseconds since 1970, as RocketMQ stores them."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass (the dispatcher's poll; never a means to wait for another thread)."""
        ...

    def lock(self) -> Lock:
        """A new lock."""
        ...

    def condition(self) -> Condition:
        """A new condition variable with a lock of its own."""
        ...

    def event(self) -> Event:
        """A new flag, down."""
        ...

    def queue(self, capacity: int) -> Queue[Any]:
        """A new queue that holds up to `capacity` items."""
        ...

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread; one that ends by an exception must not do so unheard (`threads`)."""
        ...

    def listen(self, host: str, port: int) -> Listener:
        """Listen for connections; port 0 picks one. Raises OSError."""
        ...

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect, then switch the socket to non-blocking. Raises OSError."""
        ...

    def look_up(self, host: str, port: int) -> str:
        """The first address of a host, in digits; it may take many seconds. Raises OSError when there is none."""
        ...

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect to an address in digits, without waiting.

        The socket is writable once connected, readable once that failed. Raises OSError when it fails at once, and so
        does the socket's first `recv_into` when it fails later.
        """
        ...

    def poller(self) -> Poller:
        """A new poller."""
        ...

    def memory_size(self) -> int:
        """Bytes of physical memory of the machine."""
        ...

    @property
    def client_tls(self) -> SSLContext | None:
        """With what connections that are made are secured; None: they are plain."""
        ...

    def process_id(self) -> int:
        """The number of this process; another one after a fork."""
        ...

    def when_forked(self, one: Forked, /) -> None:
        """Have it told in each process that is forked from this one, at once, for as long as somebody holds it."""
        ...

    def identity(self) -> bytes:
        """Eight bytes that nobody else is given: the machine's IPv4 address, and four others each time it is asked."""
        ...

    def step(self, action: str) -> None:
        """A step point named as one of the law's actions; does nothing here."""
        ...
