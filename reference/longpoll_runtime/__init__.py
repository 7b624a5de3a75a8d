"""The interface to threads, locks, clock, sockets and files; implemented by the other modules and by simulations.

Broker, recorder, client and proxy get a `Runtime` as an argument and use nothing else of the outside (checked by the
import-linter contract `runtime-only`). So the same code runs on real threads, under a controlled scheduler with virtual
time, and over a file layer that loses unsynced pages. A step point, `runtime.step("hold")`, is a named place between
two critical sections, named after the specification's actions. In production it does nothing.

Processes and signals belong to the command line.
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
        """Acquire the lock; returns false after `timeout` seconds (-1: no limit)."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


class Condition(AbstractContextManager[Any], Protocol):
    """A condition variable, as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; returns false after `timeout` seconds."""
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
        """Set the flag."""
        ...

    def clear(self) -> None:
        """Clear the flag."""
        ...

    def is_set(self) -> bool:
        """Whether the flag is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; returns false after `timeout` seconds."""
        ...


class Queue(Protocol[T]):
    """A bounded first-in-first-out queue between threads."""

    def offer(self, item: T) -> bool:
        """Append an item; returns false when the queue is full."""
        ...

    def take(self, timeout: float | None = None) -> T | None:
        """Remove and return the first item, waiting up to `timeout` seconds; None after that."""
        ...

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """Remove and return the first item if `wanted` accepts it; otherwise None, without waiting."""
        ...

    def __len__(self) -> int: ...


class Thread(Protocol):
    """A started thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, up to `timeout` seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it is running."""
        ...

    def is_current(self) -> bool:
        """Whether it is the calling thread, which cannot be joined."""
        ...


class MappedFile(Protocol):
    """One file of fixed length, mapped into memory."""

    @property
    def view(self) -> memoryview:
        """The whole file; writable if it was opened so."""
        ...

    def reserve(self, start: int, stop: int) -> None:
        """Reserve disk blocks for bytes [start, stop), so that later writes through `view` cannot fail.

        Raises OSError (ENOSPC, EDQUOT). Without it, a full disk would end the process with SIGBUS.
        """
        ...

    def clear_from(self, start: int) -> None:
        """Clear everything from `start` to the end; no other thread may be using those bytes."""
        ...

    def data_from(self, position: int) -> int:
        """Returns the first possibly non-zero position at or after this one, skipping holes; the length without one."""
        ...

    def sync(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable (msync).

        After a failure the system may treat unwritten pages as written, and the next sync succeeds.
        """
        ...

    def write_anew(self, start: int, stop: int) -> None:
        """Make the next sync write bytes [start, stop), even if the system considers them written.

        Skips pages of zeros: they may be holes, and a full disk has no room for one.
        """
        ...

    @property
    def identity(self) -> int:
        """The file's identity; `Files.identity` returns the one at its path now."""
        ...

    def close(self) -> None:
        """Release `view`; the memory is unmapped with its last slice."""
        ...


class NotRegularError(OSError):
    """A FIFO, a socket or a device in place of a file."""


class Files(Protocol):
    """Files; every path is absolute."""

    def map(self, path: str, size: int, *, writable: bool, create: bool = False) -> MappedFile:
        """Map a file of exactly `size` bytes; with `create`, create it or extend it with zeros (sparse).

        Raises OSError (ENOSPC, EACCES, ...) as the operating system does.
        """
        ...

    def maps_max(self) -> int:
        """Returns how many maps this process may have, including those of the program."""
        ...

    def read(self, path: str) -> bytes:
        """Read a file; raises FileNotFoundError."""
        ...

    def write_atomic(self, path: str, content: Buffer) -> None:
        """Replace the file's content durably: a crash leaves the old or the new content."""
        ...

    def open_append(self, path: str) -> AppendFile:
        """Open a file for appending, creating it if needed."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists; raises OSError if the disk does not answer."""
        ...

    def size(self, path: str) -> int:
        """Returns the length in bytes; raises FileNotFoundError."""
        ...

    def identity(self, path: str) -> int:
        """Returns the file's identity, unique among existing files; raises FileNotFoundError."""
        ...

    def list(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted; empty if it does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless they exist."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the directory's names durable: created and removed files survive a power cut."""
        ...

    def changed_ms(self, path: str) -> int:
        """Returns the time of the last content change, wall-clock ms; raises FileNotFoundError."""
        ...

    def used_ratio(self, path: str) -> float:
        """Returns the used share of the disk with `path`, 0 to 1."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """Returns the total and free bytes of the disk with `path`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Lock a file against other processes; returns the unlock function. Raises BlockingIOError if it is locked."""
        ...


class AppendFile(Protocol):
    """A file that only grows."""

    def reserve(self, size: int) -> None:
        """Reserve disk blocks for the next `size` bytes, so that appending works on a full disk; the length stays.

        Raises OSError (ENOSPC, EDQUOT); does nothing on a file system without this feature.
        """
        ...

    def write(self, content: Buffer) -> None:
        """Append bytes; a power cut may lose them until `sync`."""
        ...

    def sync(self) -> None:
        """Make everything written durable."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


PARTS_MAX = 512
"""Maximum parts of one `Socket.send_parts` call; Linux allows 1024 (IOV_MAX)."""


class Socket(Protocol):
    """A connected, non-blocking stream socket."""

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive into the buffer; returns 0 at the end of the stream. Raises BlockingIOError without data."""
        ...

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes; raises BlockingIOError if nothing fits."""
        ...

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some bytes of the parts, in order, as if joined; raises BlockingIOError if nothing fits.

        At most `PARTS_MAX` parts.
        """
        ...

    def fileno(self) -> int:
        """The descriptor, -1 when closed."""
        ...

    def close(self) -> None:
        """Close both directions."""
        ...


class PlainSocket(Socket, Protocol):
    """A socket without TLS that gives access to kernel state."""

    def acknowledge(self) -> None:
        """Make the kernel acknowledge the read bytes now, if no unread ones wait."""
        ...

    def arrived(self) -> tuple[int, int]:
        """Returns the bytes arrived at the call, and a lower bound of those that the peer may send next.

        The bound requires that `acknowledge` was called and nothing arrived since; 0 means unknown.
        """
        ...

    def end_sending(self) -> None:
        """End sending and continue to receive. Raises OSError."""
        ...


class Listener(Protocol):
    """A bound socket, which refuses connections until `listen`."""

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        ...

    def listen(self) -> None:
        """Take connections from now on. Raises OSError if another socket listens there."""
        ...

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Returns a connection and its peer's address; raises BlockingIOError if none waits."""
        ...

    def fileno(self) -> int:
        """The descriptor."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Poller(Protocol):
    """Waits until one of many sockets is ready; any thread may call `wake`, even during and after `close`."""

    def register(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Watch a socket."""
        ...

    def modify(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Change the watched conditions."""
        ...

    def unregister(self, key: Socket | Listener) -> None:
        """Stop watching a socket."""
        ...

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        """Wait up to `timeout` seconds; returns (data, readable, writable) of every ready socket."""
        ...

    def wake(self) -> None:
        """Make a waiting `poll` return now."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


class Forked(Protocol):
    """An object with locks that must be reset in a forked process, which has the locks but not their threads."""

    def forked(self) -> None:
        """Reset to the state of a process with one thread, without waiting."""
        ...


class Runtime(Protocol):
    """Everything that the store and the services use of the outside."""

    @property
    def files(self) -> Files:
        """The file layer."""
        ...

    def monotonic_ns(self) -> int:
        """Returns a monotonic time, ns."""
        ...

    def unix_ms(self) -> int:
        """Returns wall-clock milliseconds since 1970, as RocketMQ stores them."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass (for the dispatcher's poll; never as synchronisation)."""
        ...

    def lock(self) -> Lock:
        """Create a lock."""
        ...

    def condition(self) -> Condition:
        """Create a condition variable with its lock."""
        ...

    def event(self) -> Event:
        """Create a flag, not set."""
        ...

    def queue(self, capacity: int) -> Queue[Any]:
        """Create a queue for up to `capacity` items."""
        ...

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread; one that ends by an exception must be reported (`threads`)."""
        ...

    def bind(self, host: str, port: int) -> Listener:
        """Reserve an address for a listener; port 0 picks one. Raises OSError if something listens there."""
        ...

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect and return a non-blocking socket. Raises OSError."""
        ...

    def look_up(self, host: str, port: int) -> str:
        """Resolve a host to its first address, in digits; may take many seconds. Raises OSError without one."""
        ...

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect to an address in digits, without waiting.

        The socket becomes writable when connected, readable on failure. Raises OSError on an immediate failure; on a
        later one, the socket's first `recv_into` raises it.
        """
        ...

    def poller(self) -> Poller:
        """Create a poller."""
        ...

    def memory_size(self) -> int:
        """Returns the machine's physical memory, bytes."""
        ...

    @property
    def client_tls(self) -> SSLContext | None:
        """The TLS context of outgoing connections; None: no TLS."""
        ...

    def process_id(self) -> int:
        """Returns this process's id, which changes after a fork."""
        ...

    def when_forked(self, one: Forked, /) -> None:
        """Call its `forked` in each process forked from this one, as long as the object exists."""
        ...

    def identity(self) -> bytes:
        """Returns eight unique bytes: the machine's IPv4 address, and four different ones for each call."""
        ...

    def step(self, action: str) -> None:
        """A step point named after an action of the specification; does nothing here."""
        ...
