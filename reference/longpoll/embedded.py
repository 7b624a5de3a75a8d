"""A broker or a name server in this process, for tests and examples: real sockets on loopback, one `with` block.

`longpoll serve` runs the same broker as a separate process with signals, logs and metrics.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from longpoll_broker.broker import Broker as BrokerInThreads
from longpoll_broker.broker import bind, limits_of, listen_at
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.io.processors import RpcHook
from longpoll_broker.io.transport import IoLoop
from longpoll_broker.rocketmq.name_server.name_server import NameServer as NameServerHandler
from longpoll_runtime import Poller
from longpoll_runtime.real import RealPoller, RealRuntime
from longpoll_runtime.services import Closeable
from longpoll_spec.errors import UserError
from longpoll_spec.policy import STRICT, Policy, policy_of


class Broker(Closeable):
    """A broker with its name server. It serves from construction until `close` or the end of the block.

    Args:
        store: The store's directory, created if missing; None for a temporary one, which `close` removes.
        policy: The broker's behaviour: a preset's name (see `longpoll policies`), optionally followed by
            `+KNOB=VALUE`, or your own policy.
        port: The broker's port on 127.0.0.1; 0 takes any free port.
        name_server_port: The name server's port on 127.0.0.1; 0 takes any free port.
        record: A directory for a history that `longpoll.judge` can check; an existing history is continued.
        config: Names, limits and times of the broker.
        store_config: Sizes and times of the store.
        hooks: Hooks that the broker calls before and after each request; see
            `longpoll_broker.io.processors.RpcHook`.

    Raises:
        UserError: A port is taken, no policy has this name, or the store is in use or not a store.
        OSError: The store's directory cannot be used.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        *,
        policy: str | Policy = STRICT,
        port: int = 0,
        name_server_port: int = 0,
        record: str | Path | None = None,
        config: BrokerConfig | None = None,
        store_config: StoreConfig | None = None,
        hooks: Sequence[RpcHook] = (),
    ) -> None:
        self.runtime = RealRuntime()
        """Threads, clock, sockets and files; clients in this process may use the same runtime."""
        self._own_runtime = _PausableRuntime()
        with ExitStack() as undo:
            directory = store or undo.enter_context(tempfile.TemporaryDirectory(prefix="longpoll-store-"))
            self._serve = partial(
                BrokerInThreads.start,
                self._own_runtime,
                str(Path(directory).absolute()),
                policy=policy_of(policy),
                config=config,
                store_config=store_config,
                hooks=hooks,
                record_directory=None if record is None else str(Path(record).absolute()),
            )
            self.broker = self._serve(listen=("127.0.0.1", port), name_server=("127.0.0.1", name_server_port))
            undo.callback(self.stop)
            self._undo = undo.pop_all()
        self._is_closed = False

    @property
    def address(self) -> str:
        """The broker's address, HOST:PORT."""
        return "{}:{}".format(*self.broker.address)

    @property
    def name_server(self) -> str:
        """The name server's address for clients, HOST:PORT."""
        return "{}:{}".format(*self.broker.name_server_address)

    @property
    def record_trouble(self) -> str:
        """After `close`, a sentence about what the recorded history lacks; empty if the history is complete."""
        return self.broker.record_trouble

    def stop(self) -> None:
        """Stop the broker and its name server, and keep the store for `restart`. A second call does nothing."""
        self.resume()
        self.broker.stop()

    def restart(self) -> None:
        """Stop, then serve the same store at the same addresses; raises UserError after `close`."""
        if self._is_closed:
            raise UserError("the broker is closed and its store may be gone; create a new one")
        self.stop()
        broker = self.broker
        assert broker.name_server_address is not None
        self.broker = self._serve(listen=broker.address, name_server=broker.name_server_address)

    def pause(self) -> None:
        """Stop reading and answering until `resume`. The kernel still accepts connections, as for a stopped process."""
        self._own_runtime.goes_on.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._own_runtime.goes_on.set()

    def close(self) -> None:
        """Answer held pulls, stop, and remove a temporary store. A second call does nothing."""
        self._is_closed = True
        self._undo.close()


class _PausablePoller(RealPoller):
    """A poller whose thread blocks after each wait while its runtime is paused."""

    __slots__ = ("_goes_on",)

    def __init__(self, goes_on: threading.Event) -> None:
        super().__init__()
        self._goes_on = goes_on

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        found = super().poll(timeout)
        self._goes_on.wait()
        return found


class _PausableRuntime(RealRuntime):
    """The runtime of a broker whose network threads can be paused."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def poller(self) -> Poller:
        return _PausablePoller(self.goes_on)


class NameServer(Closeable):
    """A name server without a broker of its own; brokers of any kind can register with it until the end of its block.

    Args:
        port: The name server's port on 127.0.0.1; 0 takes any free port.

    Raises:
        UserError: The port is taken.
    """

    def __init__(self, *, port: int = 0) -> None:
        runtime = RealRuntime()
        with ExitStack() as undo:
            listener = bind(runtime, ("127.0.0.1", port), undo)
            self._address = listener.address
            self._loop = IoLoop(runtime, "name-server", limits_of(BrokerConfig()))
            self._loop.add_listener(listener, NameServerHandler(now_ms=runtime.unix_ms))
            listen_at(listener)
            self._loop.start()
            undo.pop_all()
        self._is_closed = False

    @property
    def address(self) -> str:
        """The name server's address for brokers and clients, HOST:PORT."""
        return "{}:{}".format(*self._address)

    def close(self) -> None:
        """Close every connection and stop. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.stop()
