"""The recording proxy: one listener (door) per broker, one for the name server, and one history source per broker.

    with Observer.start(runtime, brokers=[("127.0.0.1", 10911)], record_directory="/tmp/history") as observer:
        observer.doors   # {"127.0.0.1:10911": ("127.0.0.1", 40001)}

A broker in a route gets its door when the route is read, but its round trip is measured later, because the broker may
be unreachable. Threads: `relay`, `measure`, `look-up` for host names, and a `history-writer` per broker.

A source's `uncertainty_ns` is measured: twice the median of a few TCP handshakes with the broker. The broker's kernel
answers a handshake without the broker's process, so the measurement covers only the round trip.

`relay_loop` relays the bytes, and `tap` decodes the commands.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Self

from longpoll_observe.arrival_time import HELD_MAX, SETTLE_NS
from longpoll_observe.events import Places, Subscriptions
from longpoll_observe.links import Door, Rewrite, Tap
from longpoll_observe.relay_loop import RelayLoop
from longpoll_observe.routes import RouteTap
from longpoll_observe.tap import ConnectionTap, TapTotals
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime import Address, Files, Listener, Queue, Runtime, Thread
from longpoll_runtime.services import Stoppable
from longpoll_spec.errors import UserError

log = logging.getLogger(__name__)

HANDSHAKES: Final = 5
HANDSHAKE_S: Final = 1.0
MEASURE_S: Final = 0.2
"""How often, in seconds, the measuring thread checks whether the proxy is stopping."""
UNCERTAINTY_NS_MIN: Final = 100_000
"""The minimum uncertainty in ns, which is the time that the kernel of a busy host takes to deliver a segment."""
UNCERTAINTY_NS_UNMEASURED: Final = 5_000_000
"""The uncertainty in ns for a broker that could not be reached at the start."""
WRITE_MEMORY: Final = (("/proc/sys/net/ipv4/tcp_wmem", 1), ("/proc/sys/net/core/wmem_max", 2))
"""Files with Linux's limits for a sender's buffer, each with a factor. The factor is 2 for the limit of buffers whose
size a program sets, because Linux doubles that size."""
PIECE: Final = 1024 * 1024
"""By how many bytes a sender's buffer may exceed its limit, because of the last segment."""
HOST_LENGTH_MAX: Final = 255
HOST: Final = re.compile(r"[\w.:%\[\]-]{1,255}", re.ASCII)
"""Matches a host name or address (RFC 1123, plus the underscore, which is common)."""
DOORS_MAX: Final = 1_000
"""The maximum number of brokers from routes."""


class ObserveError(UserError):
    """The proxy cannot listen, or has nothing to observe."""


def name_of(address: Address) -> str:
    """Format HOST:PORT, as in routes and events."""
    return f"{address[0]}:{address[1]}"


def held_max(files: Files) -> int:
    """The maximum number of bytes of one connection that a kernel holds, by this host's settings or Linux defaults."""
    sizes = [HELD_MAX]
    for path, times in WRITE_MEMORY:
        with contextlib.suppress(OSError, ValueError, IndexError):
            sizes.append(times * int(files.read(path).split()[-1]) + PIECE)
    return max(sizes)


class Observer(Stoppable):
    """A running proxy. Create it with `start`, end it with `stop`.

    Invariants: while the proxy runs, only the relay thread changes `_doors` and `_recorders`; `_meta_lock` protects the
    meta file.
    """

    def __init__(self, runtime: Runtime, record_directory: str, host: str, policy: str = "") -> None:
        """Do not call this directly; use `start`."""
        self._runtime = runtime
        self._directory = record_directory
        self._host = host
        self._policy = policy
        self.loop = RelayLoop(runtime)
        self._doors: dict[str, Door] = {}
        self._recorders: list[HistoryRecorder] = []
        self.totals: dict[str, TapTotals] = {}
        """Broker -> the counts of its taps."""
        self.name_server_address: Address | None = None
        self._held_max = held_max(runtime.files)
        self._meta_lock = runtime.lock()
        self._unmeasured: Queue[tuple[Door, HistoryRecorder]] = runtime.queue(DOORS_MAX)
        self._measuring: Thread | None = None
        self._connections = 0
        self._stopped = False

    @classmethod
    def start(
        cls,
        runtime: Runtime,
        *,
        brokers: Sequence[Address],
        record_directory: str,
        name_server: Address | None = None,
        listen: Address = ("127.0.0.1", 0),
        name_server_listen: Address | None = None,
        policy: str = "",
    ) -> Self:
        """Start a proxy that listens for clients and relays their connections to the brokers.

        The proxy listens at `listen` for clients of the first broker, and at other ports of this host for clients of
        the other brokers. `policy` is the brokers' declared policy, which the history contains for the judge. Raises
        ObserveError or RecordError with a message for the user, after stopping all threads and closing all sockets.
        """
        if not brokers and name_server is None:
            raise ObserveError("there is nothing to observe; add --broker or --name-server")
        names = [name_of(broker) for broker in brokers]
        if len(set(names)) < len(names):
            raise ObserveError("a broker is given twice; write each --broker once")
        with ExitStack() as undo:
            observer = cls(runtime, record_directory, listen[0], policy)
            undo.callback(observer.stop)
            for number, broker in enumerate(brokers):
                uncertainty_ns = observer._uncertainty_ns(broker)
                observer._add_broker(broker, listen if number == 0 else (listen[0], 0), uncertainty_ns)
            if name_server is not None:
                observer._add_name_server(name_server, name_server_listen or (listen[0], 0))
            undo.pop_all()
        observer.loop.start()
        if name_server is not None:
            observer._measuring = runtime.spawn("measure", observer._measure)
        return observer

    @property
    def doors(self) -> dict[str, Address]:
        """Maps each broker to the address at which the proxy listens for its clients."""
        return {name: door.address for name, door in self._doors.items()}

    @property
    def trouble(self) -> str:
        """What the history lacks after `stop`, as a sentence for the user; empty if the history is complete."""
        return "; ".join(recorder.trouble for recorder in self._recorders if recorder.trouble)

    def stop(self) -> None:
        """Close every connection and complete the history. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self.loop.stop()
        if self._measuring is not None:
            self._measuring.join()
        for recorder in self._recorders:
            recorder.stop()

    def _add_broker(self, broker: Address, listen: Address, uncertainty_ns: int | None) -> Door:
        """Listen for the clients of a broker. If `uncertainty_ns` is None, the uncertainty is measured later."""
        name = name_of(broker)
        listener = self._listen(listen)
        claimed_ns = UNCERTAINTY_NS_UNMEASURED if uncertainty_ns is None else uncertainty_ns
        try:
            with self._meta_lock:
                recorder = HistoryRecorder(
                    self._runtime,
                    self._directory,
                    broker=name,
                    policy=self._policy,
                    uncertainty_ns=claimed_ns,
                    wait_s=0,
                )
        except UserError:
            listener.close()
            raise
        self._recorders.append(recorder)
        subscriptions, totals, places = Subscriptions.none(), TapTotals(), Places()
        self.totals[name] = totals

        def make_tap() -> tuple[Tap, Rewrite | None]:
            self._connections += 1
            return ConnectionTap(recorder, subscriptions, str(self._connections), totals, places), None

        door = Door(listener, broker, make_tap, max(SETTLE_NS, claimed_ns), self._held_max)
        if uncertainty_ns is None:
            self._unmeasured.offer((door, recorder))
        self._doors[name] = door
        self.loop.add_door(door)
        return door

    def _add_name_server(self, name_server: Address, listen: Address) -> None:
        listener = self._listen(listen)

        def make_tap() -> tuple[Tap, Rewrite | None]:
            tap = RouteTap(self._door_of)
            return tap, tap.rewrite

        self.name_server_address = listener.address
        self.loop.add_door(Door(listener, name_server, make_tap))

    def _listen(self, address: Address) -> Listener:
        try:
            listener = self._runtime.bind(*address)
            listener.listen()
        except (OSError, OverflowError) as error:
            raise ObserveError(f"cannot listen on {name_of(address)}: {error}; choose another address") from None
        return listener

    def _door_of(self, address: str) -> str:
        """Returns the proxy's address for a broker in a route. An invalid address is returned unchanged."""
        door = self._doors.get(address)
        if door is None:
            host, colon, port = address.rpartition(":")
            if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
                return address
            if not HOST.fullmatch(host):
                log.warning("%r is not observed: that is no name of a host", address[:HOST_LENGTH_MAX])
                return address
            if len(self._doors) >= DOORS_MAX:
                log.warning("over %d brokers are named by routes: %s is not observed", DOORS_MAX, address)
                return address
            try:
                door = self._add_broker((host.strip("[]"), int(port)), (self._host, 0), None)
            except UserError as error:
                log.warning("%s is not observed: %s", address, error)
                return address
            self._doors[address] = door
            log.warning("%s is observed at %s", address, name_of(door.address))
        return name_of(door.address)

    def _measure(self) -> None:
        """Measure the round trips to brokers in routes; runs on its own thread."""
        while not self._stopped:
            found = self._unmeasured.take(MEASURE_S)
            if found is None:
                continue
            door, recorder = found
            uncertainty_ns = self._uncertainty_ns(door.target)
            door.settle_ns = max(SETTLE_NS, uncertainty_ns)
            with self._meta_lock:
                recorder.measured(uncertainty_ns)

    def _uncertainty_ns(self, broker: Address) -> int:
        taken_ns = []
        for _ in range(HANDSHAKES):
            begun_ns = self._runtime.monotonic_ns()
            try:
                with contextlib.closing(self._runtime.connect(*broker, HANDSHAKE_S)):
                    taken_ns.append(self._runtime.monotonic_ns() - begun_ns)
            except OSError:
                return UNCERTAINTY_NS_UNMEASURED
        return max(2 * sorted(taken_ns)[HANDSHAKES // 2], UNCERTAINTY_NS_MIN)
