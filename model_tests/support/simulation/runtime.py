"""The runtime of one simulated process: its threads, clock, sockets and files.

Scheduling: see `world`. Faults: see `network.Weather` and the errors that `files` may raise.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from attrs import define, field
from model_tests.support.simulation.disk import Disk
from model_tests.support.simulation.files import SimulatedFiles
from model_tests.support.simulation.network import LOCAL, Network, SimulatedPoller

from longpoll_runtime import (
    Condition,
    Event,
    Files,
    Forked,
    Listener,
    Lock,
    PlainSocket,
    Poller,
    Queue,
    Socket,
    Thread,
)
from longpoll_simulation.sync import (
    SimulatedCondition,
    SimulatedEvent,
    SimulatedLock,
)
from longpoll_simulation.world import BEGIN_NS, Actor, World

T = TypeVar("T")
MEMORY_SIZE: Final = 8 << 30
BEGIN_UNIX_MS: Final = 1_700_000_000_000
"""The wall clock at the start of a world, in ms since 1970."""


class SimulatedThread:
    """The handle by which an actor's starter can wait for it."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    def join(self, timeout: float | None = None) -> None:
        """Wait until the actor has ended, or for `timeout` seconds."""
        self._world.point("join", self._actor)
        if not self._actor.done and not self._world.over:
            self._world.wait(self._actor.joined_by, self, timeout)

    def is_alive(self) -> bool:
        return not self._actor.done

    def is_current(self) -> bool:
        return self._world.current is self._actor

    def __str__(self) -> str:
        return f"the end of {self._actor}"


class SimulatedQueue(Generic[T]):
    """A bounded queue. Invariant: it has at most `_capacity` items."""

    def __init__(self, world: World, capacity: int) -> None:
        assert capacity > 0
        self._world = world
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._waiting: list[Actor] = []

    def offer(self, item: T) -> bool:
        """Add the item at the end; returns false if the queue is full."""
        self._world.point("offer", self)
        if len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        if self._waiting:
            self._world.wake(self._waiting[0])
        self._world.point("offer", self)
        return True

    def take(self, timeout: float | None = None) -> T | None:
        """Remove and return the first item; returns None if the queue stays empty for `timeout` seconds."""
        world = self._world
        world.point("take", self)
        until_ns = None if timeout is None else world.now_ns + int(timeout * 1e9)
        while not self._items:
            left_s = None if until_ns is None else (until_ns - world.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                return None
            world.wait(self._waiting, self, left_s)
        return self._items.popleft()

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """Remove and return the first item if `wanted` accepts it; otherwise return None without waiting."""
        self._world.point("take", self)
        items = self._items
        while items:
            first = items[0]
            if not wanted(first):
                return None
            # Another actor may have taken the item while `wanted` ran; a real queue is locked during this call.
            if items and items[0] is first:
                return items.popleft()
        return None

    def __len__(self) -> int:
        return len(self._items)

    def __str__(self) -> str:
        return f"a queue of {len(self._items)}"


@define(eq=False, slots=False)
class SimulatedRuntime:
    """A `Runtime` of one process. Invariant: `actors` has every actor that the process has started."""

    network: Network
    files: Files = field()
    """The process's files, by default on a new disk. Each call is a scheduling point."""
    process: str = ""
    unix_ahead_ms: int = 0
    """How many ms the wall clock is ahead of the world's time. A change of this value simulates a clock step."""
    actors: list[Actor] = field(factory=list, init=False)

    @files.default
    def _own_files(self) -> Files:
        return SimulatedFiles(Disk(), before=self.world.point)

    @property
    def world(self) -> World:
        return self.network.world

    def monotonic_ns(self) -> int:
        return self.network.world.now_ns

    def unix_ms(self) -> int:
        """Returns the wall clock in ms: the world's time plus the clock's offset."""
        return BEGIN_UNIX_MS + (self.network.world.now_ns - BEGIN_NS) // 1_000_000 + self.unix_ahead_ms

    def sleep(self, seconds: float) -> None:
        self.world.wait([], f"{seconds:g} s", seconds)

    def lock(self) -> Lock:
        return SimulatedLock(self.world)

    def condition(self) -> Condition:
        return SimulatedCondition(self.world)

    def event(self) -> Event:
        return SimulatedEvent(self.world)

    def queue(self, capacity: int) -> Queue[Any]:
        return SimulatedQueue(self.world, capacity)

    def spawn(self, name: str, target: Callable[[], None]) -> Thread:
        """Start an actor. If an exception ends the actor, it also ends the run."""
        self.world.point("spawn", name)
        actor = self.world.spawn(name, target, self.process)
        self.actors.append(actor)
        return SimulatedThread(self.world, actor)

    def bind(self, host: str, port: int) -> Listener:
        """Reserve an address for a listener; port 0 picks one. Raises OSError if it is taken."""
        return self.network.bind(self.process, host, port)

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        """Connect to an address. Raises OSError."""
        return self.network.connect(self.process, self.look_up(host, port), port)

    def look_up(self, host: str, port: int) -> str:
        """Returns the address of a numeric host or of localhost. Raises OSError for other names."""
        if host == "localhost":
            return LOCAL
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None

    def begin_connect(self, address: str, port: int) -> PlainSocket:
        """Begin to connect without waiting. Raises OSError."""
        return self.network.connect(self.process, address, port)

    def poller(self) -> Poller:
        return SimulatedPoller(self.network)

    def memory_size(self) -> int:
        """Returns the memory size of the simulated machine in bytes."""
        return MEMORY_SIZE

    @property
    def client_tls(self) -> None:
        """Returns None, because the simulated network has no TLS."""
        return

    def process_id(self) -> int:
        """Returns 1 for every process, because simulated processes never fork and `identity` distinguishes them."""
        return 1

    def when_forked(self, _one: Forked, /) -> None:
        """Do nothing, because simulated processes never fork."""

    def identity(self) -> bytes:
        """Returns the machine's address and a counter, so that equal runs get equal identities."""
        number: int = next(self.network.identities)
        return ipaddress.ip_address(LOCAL).packed + number.to_bytes(4, "big")

    def step(self, action: str) -> None:
        """Pass a scheduling point that has the name of an action of the specification."""
        self.world.point(action)

    def kill(self) -> None:
        """End the process as SIGKILL does: its actors stop at once, and its connections break."""
        self.world.abandon(self.actors)
        self.network.lose(self.process)
