"""Sockets between the processes of a world: bytes arrive in order, but later, in chunks, or not at all.

A connection is two pipes. Data arrives after a delay, in order within a connection. A `Weather` limits how much a
reader gets at once. Data is lost only if the connection is cut, and then both ends are notified.

TLS, host names other than `localhost` and packets are not modelled, because a broker sees only TCP's stream.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from attrs import define, field

from longpoll_runtime import Address, Buffer, Listener, Socket
from longpoll_simulation.world import Actor, World

PIPE_SIZE: Final = 1 << 18
"""The number of bytes, including those in transit, that a pipe accepts before its reader has read them."""
BACKLOG: Final = 1024
"""The number of connections that may wait to be accepted. The network refuses further connections."""
FIRST_PORT: Final = 40_000
LOCAL: Final = "127.0.0.1"


@define(eq=False)
class Weather:
    """The behaviour of a network. By default all data arrives at once and whole."""

    delay_ns_max: int = 0
    """The longest delay of a chunk in ns."""
    is_pieced: bool = False
    """Whether readers get most chunks in several pieces."""
    random: random.Random = field(factory=lambda: random.Random(0))

    def delay_ns(self) -> int:
        """Draw the delay of the next chunk in ns."""
        return int(self.random.random() * self.delay_ns_max) if self.delay_ns_max else 0

    def piece(self, size: int) -> int:
        """Draw how many of `size` bytes a reader gets at once, at least one."""
        return self.random.randint(1, size) if self.is_pieced and self.random.random() < 0.7 else size


@define(eq=False)
class Pipe:
    """One direction of a connection.

    Invariant: `came` has the bytes that have arrived and are unread, in the order in which they were sent; `under_way`
    is the number of bytes in transit.
    """

    came: bytearray = field(factory=bytearray)
    under_way: int = 0
    arrives_ns: int = 0
    """The time in ns at which the last chunk arrives."""
    ended: bool = False
    """Whether the end of the stream has arrived, after the bytes in `came`."""
    cut: bool = False
    """Whether the connection was cut, so that the reader gets ECONNRESET and `came` is lost."""
    deaf: bool = False
    """Whether the reader has closed the pipe, so that sending breaks the connection."""
    count: int = 0
    """The total number of bytes that have arrived."""


class Watched:
    """A socket or listener that pollers watch. Invariant: each watching poller is notified of every change."""

    __slots__ = ("_pollers",)

    def __init__(self) -> None:
        self._pollers: list[SimulatedPoller] = []

    def watch(self, poller: SimulatedPoller) -> None:
        self._pollers.append(poller)

    def forget(self, poller: SimulatedPoller) -> None:
        self._pollers.remove(poller)

    def changed(self) -> None:
        """Notify the pollers that data or space may be available."""
        for poller in self._pollers:
            poller.changed()


class SimulatedSocket(Watched):
    __slots__ = ("_closed", "_network", "_number", "_out", "_waiting", "incoming", "other", "process")

    def __init__(self, network: Network, process: str, incoming: Pipe, out: Pipe) -> None:
        super().__init__()
        self._network = network
        self._number = network.number()
        self.process = process
        self.incoming = incoming
        self._out = out
        self._closed = False
        self._waiting: list[Actor] = []
        self.other: SimulatedSocket | None = None

    # -- what a runtime's socket does --------------------------------------------------------------------------------

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive available bytes; returns 0 at the end of the stream. Raises BlockingIOError, ConnectionResetError."""
        self._network.world.point("receive", self)
        self._check_open()
        pipe = self.incoming
        if pipe.cut:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was cut")
        if not pipe.came:
            if pipe.ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, "no data")
        size = self._network.weather.piece(min(len(pipe.came), len(buffer)))
        buffer[:size] = pipe.came[:size]
        was_full = len(pipe.came) + pipe.under_way >= PIPE_SIZE
        del pipe.came[:size]
        if was_full and self.other is not None:
            self.other.changed()
        return size

    def send(self, content: Buffer, /) -> int:
        """Send some of the bytes, and return their number.

        Raises BlockingIOError, BrokenPipeError, ConnectionResetError.
        """
        network, pipe = self._network, self._out
        network.world.point("send", self)
        self._check_open()
        if network.world.over:
            return len(content)
        if self.incoming.cut:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was cut")
        if pipe.deaf or pipe.ended:
            raise BrokenPipeError(errno.EPIPE, "the peer has closed")
        room = PIPE_SIZE - len(pipe.came) - pipe.under_way
        size = min(room, len(content))
        if size <= 0 and len(content):
            raise BlockingIOError(errno.EAGAIN, "none fit")
        size = network.weather.piece(size) if size else 0
        self._carry(bytes(memoryview(content)[:size]))
        return size

    def send_parts(self, parts: Sequence[Buffer], /) -> int:
        """Send some bytes of the parts, in order, as if the parts were joined; returns their number."""
        return self.send(b"".join(parts))

    def fileno(self) -> int:
        """Returns a unique number, or -1 if the socket is closed."""
        return -1 if self._closed else self._number

    def close(self) -> None:
        """Close both directions. The peer reads the sent data and then the end of the stream."""
        world = self._network.world
        world.point("close", self)
        if self._closed or world.over:
            return
        self._closed = True
        self.incoming.deaf = True
        self._end()
        if self.incoming.came and self.other is not None:
            # As in TCP, closing a socket with unread data resets the connection.
            self.other.cut_short()

    def end_sending(self) -> None:
        """Close the sending direction only."""
        self._network.world.point("end", self)
        self._check_open()
        self._end()

    def acknowledge(self) -> None:
        """Do nothing, because the simulation delays no acknowledgement."""

    def arrived(self) -> tuple[int, int]:
        """Returns the number of bytes that have arrived, and 0, because it is unknown how many may follow."""
        return self.incoming.count, 0

    # -- methods for the actors of a scenario ------------------------------------------------------------

    def wait_readable(self, timeout_s: float | None = None) -> bool:
        """Wait until data or the end of the stream arrives; returns false after `timeout_s`."""
        world = self._network.world
        if not self.is_readable:
            world.wait(self._waiting, self, timeout_s)
        return self.is_readable

    @property
    def is_readable(self) -> bool:
        """Whether `recv_into` would return data or the end of the stream, or raise ConnectionResetError."""
        return bool(self.incoming.came) or self.incoming.ended or self.incoming.cut

    @property
    def is_writable(self) -> bool:
        """Whether `send` would accept bytes or raise an error other than BlockingIOError."""
        pipe = self._out
        return len(pipe.came) + pipe.under_way < PIPE_SIZE or pipe.deaf or self.incoming.cut

    def cut(self) -> None:
        """Cut the connection: data in transit is lost, and both ends are notified."""
        self.cut_short()
        if self.other is not None:
            self.other.cut_short()

    def cut_short(self) -> None:
        """Notify this end that the connection was cut."""
        if not self._closed:
            self.incoming.cut = True
            self.incoming.came.clear()
            self.changed()

    def changed(self) -> None:
        super().changed()
        if self._waiting:
            self._network.world.wake_all(self._waiting)

    def __str__(self) -> str:
        return f"socket {self._number}"

    # -- private helpers ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the socket is closed")

    def _carry(self, content: bytes) -> None:
        pipe, world = self._out, self._network.world
        delay_ns = self._network.weather.delay_ns()
        if not delay_ns and not pipe.under_way:
            self._arrive(content)
            return
        pipe.under_way += len(content)
        pipe.arrives_ns = max(pipe.arrives_ns, world.now_ns + delay_ns)
        world.at(pipe.arrives_ns, lambda: self._arrive_late(content))

    def _arrive_late(self, content: bytes) -> None:
        self._out.under_way -= len(content)
        self._arrive(content)

    def _arrive(self, content: bytes) -> None:
        pipe = self._out
        if pipe.cut or pipe.deaf:
            if self.other is not None and pipe.deaf:
                self.cut_short()
            return
        pipe.came += content
        pipe.count += len(content)
        if self.other is not None:
            self.other.changed()

    def _end(self) -> None:
        """Let the end of the stream arrive after the data in transit."""
        pipe, world = self._out, self._network.world

        def arrive() -> None:
            pipe.ended = True
            if self.other is not None:
                self.other.changed()

        if pipe.under_way:
            world.at(pipe.arrives_ns, arrive)
        else:
            arrive()


class SimulatedListener(Watched):
    """A bound socket that refuses connections until `listen` is called.

    Invariant: `_waiting` has the connections that are not accepted yet.
    """

    def __init__(self, network: Network, process: str, address: Address) -> None:
        super().__init__()
        self._network = network
        self._number = network.number()
        self._address = address
        self.process = process
        self.is_listening = False
        self._waiting: deque[tuple[SimulatedSocket, Address]] = deque()
        self._closed = False

    @property
    def address(self) -> Address:
        return self._address

    def listen(self) -> None:
        """Accept connections from now on."""
        self._network.world.point("listen", self)
        self.is_listening = True

    def accept(self) -> tuple[SimulatedSocket, Address]:
        """Returns a new connection and its peer's address. Raises BlockingIOError if no connection waits."""
        self._network.world.point("accept", self)
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no connection is waiting")
        return self._waiting.popleft()

    def knock(self, sock: SimulatedSocket, peer: Address) -> bool:
        """Add a new connection; returns false if too many connections wait already."""
        if len(self._waiting) >= BACKLOG:
            return False
        self._waiting.append((sock, peer))
        self.changed()
        return True

    @property
    def is_readable(self) -> bool:
        return bool(self._waiting)

    is_writable = False

    def fileno(self) -> int:
        return -1 if self._closed else self._number

    def close(self) -> None:
        """Stop listening and cut the waiting connections."""
        self._network.world.point("close", self)
        if self._closed or self._network.world.over:
            return
        self._closed = True
        self._network.forget(self)
        for sock, _peer in self._waiting:
            sock.cut()
        self._waiting.clear()

    def __str__(self) -> str:
        return f"the listener of {self._address[0]}:{self._address[1]}"


@define
class _Watch:
    key: Any
    read: bool
    write: bool
    data: object


class SimulatedPoller:
    """Waits until a watched socket is ready, like level-triggered epoll."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._watched: dict[int, _Watch] = {}
        self._woken = False
        self._waiting: list[Actor] = []

    def register(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Watch a socket. Raises FileExistsError if it is watched already, OSError if it is closed."""
        number = key.fileno()
        if number < 0:
            raise OSError(errno.EBADF, "the socket is closed")
        if number in self._watched:
            raise FileExistsError(errno.EEXIST, "the socket is watched already")
        self._watched[number] = _Watch(key, read, write, data)
        _simulated(key).watch(self)
        self.changed()

    def modify(self, key: Socket | Listener, *, read: bool, write: bool, data: object) -> None:
        """Change the watched events of a socket. Raises FileNotFoundError if the socket is not watched."""
        watched = self._watched.get(key.fileno())
        if watched is None:
            raise FileNotFoundError(errno.ENOENT, "the socket is not watched")
        watched.read, watched.write, watched.data = read, write, data
        self.changed()

    def unregister(self, key: Socket | Listener) -> None:
        """Stop watching a socket. Raises FileNotFoundError if the socket is not watched."""
        if self._watched.pop(key.fileno(), None) is None:
            raise FileNotFoundError(errno.ENOENT, "the socket is not watched")
        _simulated(key).forget(self)

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        """Wait up to `timeout` seconds; returns (data, readable, writable) for every ready socket."""
        world = self._network.world
        world.point("poll", self)
        ready = self._ready()
        if not ready and not self._woken and timeout != 0:
            world.wait(self._waiting, self, timeout)
            ready = self._ready()
        self._woken = False
        return ready

    def wake(self) -> None:
        self._network.world.point("wake", self)
        self._woken = True
        if self._waiting:
            self._network.world.wake_all(self._waiting)

    def close(self) -> None:
        for watched in self._watched.values():
            watched.key.forget(self)
        self._watched.clear()

    def changed(self) -> None:
        """End the wait if a watched socket has become ready."""
        if self._waiting and self._ready():
            self._network.world.wake_all(self._waiting)

    def _ready(self) -> list[tuple[object, bool, bool]]:
        found = []
        for watched in self._watched.values():
            readable = watched.key.is_readable and (watched.read or watched.key.incoming.cut)
            writable = watched.write and watched.key.is_writable
            if readable or writable:
                found.append((watched.data, readable, writable))
        return found

    def __str__(self) -> str:
        return f"one of {len(self._watched)} sockets"


def _simulated(key: Socket | Listener) -> SimulatedSocket | SimulatedListener:
    assert isinstance(key, SimulatedSocket | SimulatedListener)
    return key


@define(eq=False)
class Network:
    """All addresses of a world and the behaviour of its network. Invariant: `_listeners` has the open listeners."""

    world: World
    weather: Weather = field(factory=Weather)
    _listeners: dict[int, SimulatedListener] = field(factory=dict)
    sockets: list[SimulatedSocket] = field(factory=list)
    """Both ends of every connection so far."""
    _numbers: Any = field(factory=lambda: itertools.count(3))
    _ports: Any = field(factory=lambda: itertools.count(FIRST_PORT))
    identities: Any = field(factory=lambda: itertools.count(1))
    """Numbers that make each `Runtime.identity` unique."""

    def number(self) -> int:
        return int(next(self._numbers))

    def bind(self, process: str, host: str, port: int) -> SimulatedListener:
        """Reserve a port for a listener; port 0 picks one. Raises OSError if the port is taken."""
        self.world.point("bind", f"{host}:{port}")
        port = port or int(next(self._ports))
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._listeners[port] = SimulatedListener(self, process, (host, port))
        return self._listeners[port]

    def connect(self, process: str, host: str, port: int) -> SimulatedSocket:
        """Connect to a listener; raises ConnectionRefusedError if no listener has the address."""
        self.world.point("connect", f"{host}:{port}")
        listener = self._listeners.get(port)
        if listener is None or not listener.is_listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        there, here = Pipe(), Pipe()
        near = SimulatedSocket(self, process, here, there)
        far = SimulatedSocket(self, listener.process, there, here)
        near.other, far.other = far, near
        if not listener.knock(far, (LOCAL, int(next(self._ports)))):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self.sockets += (near, far)
        return near

    def forget(self, listener: SimulatedListener) -> None:
        """Remove a closed listener."""
        self._listeners.pop(listener.address[1], None)

    def lose(self, process: str) -> None:
        """Close a killed process's listeners and sockets. Its peers read the data sent before and are then cut off."""
        for listener in [each for each in self._listeners.values() if each.process == process]:
            listener.close()
        for sock in self.sockets:
            if sock.process == process:
                sock.close()
