"""What a client may be asked when: it is made, it runs, it is closed, each once and in this order.

Source: `ServiceState.java`, as `DefaultMQPushConsumerImpl.start` and `makeSureStateOK` look at it.
"""

from __future__ import annotations

import enum

from longpoll_client.errors import LifecycleError
from longpoll_runtime import Runtime


class State(enum.Enum):
    """Where a client is in its life."""

    CREATED = "created"
    RUNNING = "running"
    CLOSED = "closed"


class Lifecycle:
    """One client's state. Invariant: it changes under `_lock`, and never back but for a start that failed."""

    def __init__(self, runtime: Runtime, what: str) -> None:
        """`what` names the client in errors, such as "the consumer of group G"."""
        self._what = what
        self._lock = runtime.lock()
        self._state = State.CREATED

    @property
    def state(self) -> State:
        """Where the client is now."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._state is State.CLOSED

    def begin(self) -> None:
        """It starts; raises LifecycleError if it has been started or closed."""
        with self._lock:
            if self._state is State.RUNNING:
                raise LifecycleError(f"{self._what} is started already")
            self._check_not_closed()
            self._state = State.RUNNING

    def begin_failed(self) -> None:
        """The start came to nothing: it may be tried again."""
        with self._lock:
            if self._state is State.RUNNING:
                self._state = State.CREATED

    def end(self) -> bool:
        """It closes; false if somebody else has closed it."""
        with self._lock:
            is_first = self._state is not State.CLOSED
            self._state = State.CLOSED
            return is_first

    def check_created(self, asked: str) -> None:
        """Raise LifecycleError for what is done before the start only."""
        with self._lock:
            self._check_not_closed()
            if self._state is State.RUNNING:
                raise LifecycleError(f"{self._what} is started already: {asked} comes before start")

    def check_running(self, asked: str) -> None:
        """Raise LifecycleError for what is done by a client that runs only."""
        with self._lock:
            self._check_not_closed()
            if self._state is State.CREATED:
                raise LifecycleError(f"{self._what} is not started: {asked} comes after start")

    def check_open(self) -> None:
        """Raise LifecycleError if it is closed."""
        with self._lock:
            self._check_not_closed()

    def _check_not_closed(self) -> None:
        if self._state is State.CLOSED:
            raise LifecycleError(f"{self._what} is closed: make a new one")
