"""Locks, conditions and flags for the actors (simulated threads) of `world`, as in `longpoll_runtime.threads`.

Each operation is a scheduling point, including the release of a lock. When a lock becomes free, an actor that waits for
it is woken, and acquires it when the strategy runs this actor. As on real machines, another actor may acquire the lock
first.
"""

from __future__ import annotations

from typing import Self

from longpoll_simulation.world import Actor, StuckError, World

OUTSIDE = object()
"""The owner of a lock that was acquired outside a run."""


class SimulatedLock:
    """A lock. Invariant: `owner` is the actor that has it, or None while it is free."""

    __slots__ = ("_number", "_waiting", "_world", "owner")

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = world.lock_count = world.lock_count + 1
        self._waiting: list[Actor] = []
        self.owner: object | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, waiting up to `timeout` seconds; returns false after that.

        Raises StuckError if the current actor already has the lock.
        """
        world = self._world
        world.point("acquire", self)
        if self.owner is None or world.over:
            self.owner = world.current or OUTSIDE
            return True
        return blocking and self._wait(None if timeout < 0 else world.now_ns + int(timeout * 1e9))

    def _wait(self, until_ns: int | None) -> bool:
        world = self._world
        while self.owner is not None:
            if self.owner is world.current:
                raise StuckError(f"{world.current} waits for its own lock")
            left_s = None if until_ns is None else (until_ns - world.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                return False
            world.wait(self._waiting, self, left_s)
        self.owner = world.current
        return True

    def release(self) -> None:
        """Release the lock. Raises RuntimeError if the lock is free."""
        if self.owner is None and not self._world.over:
            raise RuntimeError("release of a free lock")
        self.give_back()
        self._world.point("release", self)

    def give_back(self) -> None:
        """Release the lock without a scheduling point, because its owner is about to wait."""
        self.owner = None
        if self._waiting:
            self._world.wake_all(self._waiting)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __str__(self) -> str:
        return f"lock {self._number}" if self.owner is None else f"lock {self._number}, which {self.owner} has"


class SimulatedCondition:
    """A condition with its own lock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = SimulatedLock(world)
        self._waiting: list[Actor] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait to be notified, and acquire the lock again; returns false after `timeout` seconds.

        Raises RuntimeError if the current actor does not have the lock.
        """
        self._check_owned()
        self._lock.give_back()
        woken = self._world.wait(self._waiting, self, timeout)
        self._lock.acquire()
        return woken

    def notify(self, n: int = 1) -> None:
        """Wake up to `n` waiting actors, the longest waiting first.

        Raises RuntimeError if the current actor does not have the lock.
        """
        self._check_owned()
        for actor in self._waiting[:n]:
            self._world.wake(actor)
        self._world.point("notify", self)

    def _check_owned(self) -> None:
        if self._lock.owner is not (self._world.current or OUTSIDE) and not self._world.over:
            raise RuntimeError("the condition's lock is not the current actor's")

    def notify_all(self) -> None:
        """Wake every waiting actor."""
        self.notify(len(self._waiting))

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def __str__(self) -> str:
        return "a condition"


class SimulatedEvent:
    """A flag that actors wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Actor] = []
        self._is_set = False

    def set(self) -> None:
        """Set the flag."""
        self._world.point("set", self)
        self._is_set = True
        self._world.wake_all(self._waiting)
        self._world.point("set", self)

    def clear(self) -> None:
        """Clear the flag."""
        self._world.point("clear", self)
        self._is_set = False

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; returns false after `timeout` seconds."""
        self._world.point("wait", self)
        if self._is_set:
            return True
        self._world.wait(self._waiting, self, timeout)
        return self._is_set

    def __str__(self) -> str:
        return "a flag"
