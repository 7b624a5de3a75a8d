"""The interface to threads, locks, clock, sockets and files, which the other modules and simulations implement.

Broker, recorder, client and proxy get a `Runtime` as an argument, and use the operating system only through it (the
import-linter contract `runtime-only` checks this). Therefore the same code runs on real threads, under a controlled
scheduler with virtual time, and over a file layer that loses unsynced pages. A scheduling point, such as
`runtime.step("hold")`, marks a place between two critical sections and is named after an action of the specification. A
scheduling point does nothing in production.

The interface excludes processes and signals, which the command line handles.
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
    """A mutual exclusion lock, like `threading.Lock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; returns false if it is not free within `timeout` seconds. -1 means no limit."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


class Condition(AbstractContextManager[Any], Protocol):
    """A condition variable, like `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; returns false if none comes within `timeout` seconds."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake at most `n` of the threads that wait."""
        ...

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        ...


class Event(Protocol):
    """A flag that threads wait for, like `threading.Event`."""

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
        """Wait until the flag is set; returns false if it is not set within `timeout` seconds."""
        ...


class Queue(Protocol[T]):
    """A bounded first-in-first-out queue between threads."""

    def offer(self, item: T) -> bool:
        """Append an item; returns false if the queue is full."""
        ...

    def take(self, timeout: float | None = None) -> T | None:
        """Remove and return the first item, waiting up to `timeout` seconds; returns None if no item comes."""
        ...

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """Remove and return the first item if `wanted` accepts it; otherwise None, without waiting."""
        ...

    def __len__(self) -> int: ...


class Thread(Protocol):
    """A started thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, up to `timeout` seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether the thread is running."""
        ...

    def is_current(self) -> bool:
        """Whether this is the calling thread, which cannot join itself."""
        ...


class MappedFile(Protocol):
    """One file of fixed length, mapped into memory."""

    @property
    def view(self) -> memoryview:
        """The bytes of the whole file, which can be written if the file was mapped as writable."""
        ...

    def reserve(self, start: int, stop: int) -> None:
        """Reserve disk blocks for bytes [start, stop), so that later writes through `view` cannot fail.

        Raises OSError (ENOSPC, EDQUOT). Without reserved blocks, a full disk would end the process with SIGBUS.
        """
        ...

    def clear_from(self, start: int) -> None:
        """Replace everything from `start` to the end by zeros. No other thread may be using those bytes."""
        ...

    def data_from(self, position: int) -> int:
        """Return the first position at or after `position` that is not in a hole, or the file's length."""
        ...

    def sync(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) durable (msync).

        After a failure, the operating system may regard unwritten pages as written, so that the next sync succeeds
        without writing them (see `write_anew`).
        """
        ...

    def write_anew(self, start: int, stop: int) -> None:
        """Make the next sync write bytes [start, stop), even if the operating system considers them written.

        Pages of zeros are skipped, because they may be holes, for which a full disk has no room.
        """
        ...

    @property
    def identity(self) -> int:
        """The identity of the mapped file, which differs from `Files.identity` if the file at the path was replaced."""
        ...

    def close(self) -> None:
        """Release `view`. The memory stays mapped until the last slice of `view` is released."""
        ...


class NotRegularError(OSError):
    """A FIFO, a socket or a device exists at the path of a file."""


class Files(Protocol):
    """Access to files. Every path is absolute."""

    def map(self, path: str, size: int, *, writable: bool, create: bool = False) -> MappedFile:
        """Map a file of exactly `size` bytes; with `create`, create it or extend it with zeros (sparse).

        Raises OSError (ENOSPC, EACCES, ...) as the operating system does.
        """
        ...

    def maps_max(self) -> int:
        """Return the maximum number of memory maps of this process, including those of the program."""
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
        """Returns the sorted names in a directory; an empty list if the directory does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless they exist."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable, so that created and removed files survive a power cut."""
        ...

    def changed_ms(self, path: str) -> int:
        """Returns the time of the last content change, wall-clock ms; raises FileNotFoundError."""
        ...

    def used_ratio(self, path: str) -> float:
        """Returns the used part of the disk that has `path`, from 0 to 1."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """Returns the total and free bytes of the disk with `path`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Lock a file against other processes; returns a function that unlocks it.

        Raises BlockingIOError if the file is locked.
        """
        ...


class AppendFile(Protocol):
    """A file that only grows."""

    def reserve(self, size: int) -> None:
        """Reserve disk blocks for the next `size` bytes, so that appending works on a full disk.

        The length of the file stays the same. Raises OSError (ENOSPC, EDQUOT); does nothing on a file system without
        this feature.
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
        """Receive into the buffer; returns 0 at the end of the stream. Raises BlockingIOError if there is no data."""
        ...

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes; raises BlockingIOError if nothing fits."""
        ...

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some bytes of the parts, in order, as if joined; raises BlockingIOError if nothing fits.

        `parts` may have at most `PARTS_MAX` items.
        """
        ...

    def fileno(self) -> int:
        """The descriptor; -1 after the close."""
        ...

    def close(self) -> None:
        """Close both directions."""
        ...


class PlainSocket(Socket, Protocol):
    """A socket without TLS that gives access to kernel state."""

    def acknowledge(self) -> None:
        """Make the kernel acknowledge the read bytes now, unless other received bytes are still unread."""
        ...

    def arrived(self) -> tuple[int, int]:
        """Return the number of bytes that have arrived, and a lower bound of the number that the peer may send next.

        The bound is right if `acknowledge` was called and nothing has arrived since. A bound of 0 means unknown.
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
        """Accept connections from now on; raises OSError if another socket listens at the address."""
        ...

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        """Returns a connection and its peer's address; raises BlockingIOError if no connection waits."""
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
        """Release the poller's resources."""
        ...


class Forked(Protocol):
    """An object whose locks must be reset in a forked process, in which the threads that hold them do not exist."""

    def forked(self) -> None:
        """Reset the object to the state in a process with one thread, without waiting for a lock."""
        ...


class Runtime(Protocol):
    """The services of the operating system that the other packages use."""

    @property
    def files(self) -> Files:
        """The files that the store and the services may use, real or simulated."""
        ...

    def monotonic_ns(self) -> int:
        """Returns the time of a monotonic clock, in nanoseconds."""
        ...

    def unix_ms(self) -> int:
        """Returns wall-clock milliseconds since 1970, as RocketMQ stores them."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds. The dispatcher uses this method to poll. Never use `sleep` to synchronise threads."""
        ...

    def lock(self) -> Lock:
        """Create a lock."""
        ...

    def condition(self) -> Condition:
        """Create a condition variable with its lock."""
        ...

    def event(self) -> Event:
        """Create a flag that is not set."""
        ...

    def queue(self, capacity: int) -> Queue[Any]:
        """Create a queue for up to `capacity` items."""
        ...

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start a thread. An implementation must report a thread that ends by an exception (see `threads`)."""
        ...

    def bind(self, host: str, port: int) -> Listener:
        """Reserve an address for a listener; port 0 picks a free one. Raises OSError if the address is in use."""
        ...

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect and return a non-blocking socket. Raises OSError."""
        ...

    def look_up(self, host: str, port: int) -> str:
        """Resolve a host to its first numeric address; raises OSError if it has none. This may take many seconds."""
        ...

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect to a numeric address, without waiting.

        The socket becomes writable when it is connected, and readable if connecting fails. An immediate failure raises
        OSError here, and a later failure raises it in the socket's first `recv_into`.
        """
        ...

    def poller(self) -> Poller:
        """Create a poller."""
        ...

    def memory_size(self) -> int:
        """Returns the physical memory of the machine, in bytes."""
        ...

    @property
    def client_tls(self) -> SSLContext | None:
        """The TLS context of outgoing connections; None for connections without TLS."""
        ...

    def process_id(self) -> int:
        """Returns this process's id, which changes after a fork."""
        ...

    def when_forked(self, one: Forked, /) -> None:
        """Call `forked` of an object in each process that is forked from this one, for as long as the object exists."""
        ...

    def identity(self) -> bytes:
        """Returns eight unique bytes: the IPv4 address of the machine, and four bytes that differ between calls."""
        ...

    def step(self, action: str) -> None:
        """Mark a scheduling point that is named after an action of the specification, and do nothing in production."""
        ...
