"""The states of a client: created, running, closed, in this order.

Source: `ServiceState.java`, as `DefaultMQPushConsumerImpl.start` and `makeSureStateOK` use it.
"""

from __future__ import annotations

import asyncio
import enum
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from longpoll_client.errors import LifecycleError
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import ANYTHING


class State(enum.Enum):
    """The state of a client."""

    CREATED = "created"
    RUNNING = "running"
    CLOSED = "closed"


class Lifecycle:
    """The state of one client.

    Invariant: the state changes under `_lock`, and goes back only after a failed start. `_is_left` means that a close
    was interrupted, and that the next close continues it. A running client belongs to its process, because a forked
    child has none of its threads.
    """

    def __init__(self, runtime: Runtime, what: str) -> None:
        """`what` names the client in errors, such as "the consumer of group G"."""
        self._what = what
        self._now_in = runtime.process_id
        self._started_in: int | None = None
        self._new_lock = runtime.lock
        self._lock = runtime.lock()
        self._state = State.CREATED
        self._is_left = False
        runtime.when_forked(self)

    def forked(self) -> None:
        """Give the child process its own lock, because the child may use a client that has not started."""
        self._lock = self._new_lock()

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._state is State.CLOSED

    def begin(self) -> None:
        """Begin the start; raises LifecycleError if the client was started or closed before."""
        self._check_here()
        with self._lock:
            if self._state is State.RUNNING:
                raise LifecycleError(f"{self._what} is already started")
            self._check_not_closed()
            self._state = State.RUNNING
            self._started_in = self._now_in()

    def begin_failed(self) -> None:
        """Undo `begin` after a failed start, which may be tried again."""
        with self._lock:
            if self._state is State.RUNNING:
                self._state = State.CREATED
                self._started_in = None

    def end(self) -> bool:
        """Begin the close. Returns false if the client is closed or being closed, or belongs to another process."""
        if self._is_elsewhere:
            return False
        with self._lock:
            is_first = self._state is not State.CLOSED or self._is_left
            self._state, self._is_left = State.CLOSED, False
            return is_first

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Enclose the close after `end`. If Ctrl-C interrupts the close, the next caller of `end` continues it."""
        try:
            yield
        except ANYTHING:
            with self._lock:
                self._is_left = True
            raise

    def check_created(self, asked: str) -> None:
        """Raise LifecycleError if the client was started or closed before."""
        self._check(State.RUNNING, f"is already started; call {asked} before start")

    def check_running(self, asked: str) -> None:
        """Raise LifecycleError unless the client runs."""
        self._check(State.CREATED, f"is not started; call {asked} after start")

    def check_open(self) -> None:
        """Raise LifecycleError if the client is closed."""
        self._check(None, "")

    def _check(self, refused: State | None, why: str) -> None:
        self._check_here()
        with self._lock:
            self._check_not_closed()
            if self._state is refused:
                raise LifecycleError(f"{self._what} {why}")

    @property
    def _is_elsewhere(self) -> bool:
        return self._started_in is not None and self._started_in != self._now_in()

    def _check_here(self) -> None:
        if self._is_elsewhere:
            raise LifecycleError(f"{self._what} belongs to the parent process of a fork; create a new one")

    def _check_not_closed(self) -> None:
        if self._state is State.CLOSED:
            raise LifecycleError(f"{self._what} is closed; create a new one")


class AsyncCloseable(ABC):
    """A client that is closed at the end of `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Close the client; it must not be used afterwards."""


class Closing:
    """The close of a client on an event loop, which happens once, in its own task.

    If a caller is cancelled, the close continues, and a second caller waits for it.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start the close, unless it is running or done. A close that was cancelled with its loop is started again."""
        task = self._task
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._task = asyncio.create_task(work())
        return task

    async def wait(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the close as `begin` does, and wait until it is done."""
        await asyncio.shield(self.begin(work))


def when_garbage_collected(client: object, abandon: Callable[[], None], what: str) -> Callable[[], object]:
    """Call `abandon` and issue a ResourceWarning when a client is garbage-collected without a close.

    Returns the function to call at the close. Neither `abandon` nor a thread may refer to `client`.
    """
    finalizer = weakref.finalize(client, _drop, abandon, what)
    # The end of the process closes all connections anyway.
    finalizer.atexit = False
    return finalizer.detach


def _drop(abandon: Callable[[], None], what: str) -> None:
    """Abandon a client. The garbage collector may call this on any thread, even inside code that holds locks."""
    abandon()
    warnings.warn(f"{what} was dropped and not closed: use `with`, or close it", ResourceWarning, stacklevel=3)
