"""A controlled scheduler: one actor runs at a time, from one scheduling point to the next, as the test chooses.

The code under test is unchanged: it gets its locks, clock and scheduling points from a `ScheduledRuntime`. An actor is
a greenlet that is at a scheduling point, waits for a lock, or has ended. `Scheduler.go` runs an actor's next segment
and returns when it stops again. So a schedule is a list of names, and the same list gives the same run.

Actors and checks: `model_tests/simulate`. No faults are injected: waiting for a lock that is never released is a
failure of the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from attrs import define, field

from longpoll_simulation.world import AbandonedError, Greenlet, current_greenlet, new_greenlet


@define(eq=False)
class Actor:
    """One thread of control. Invariant: it runs only during `Scheduler.go`."""

    name: str
    target: Callable[[], None]
    at: str | None = None
    """Its scheduling point; None before its first one and after its end."""
    waits_for: ScheduledLock | None = None
    done: bool = False
    failure: BaseException | None = None
    _greenlet: Greenlet | None = field(default=None, init=False)

    @property
    def can_go(self) -> bool:
        """Whether it has not ended and waits for no lock."""
        return not self.done and (self.waits_for is None or self.waits_for.owner is None)

    def run_segment(self) -> None:
        """Run it until it stops again. Raises what it raises."""
        if self._greenlet is None:
            self._greenlet = new_greenlet(self._run)
        self._greenlet.parent = current_greenlet()
        self._greenlet.switch()
        if self.failure is not None:
            raise self.failure

    def stand(self) -> None:
        """Wait for the next turn; called in the actor."""
        assert self._greenlet is not None
        self._greenlet.parent.switch()

    def abandon(self) -> None:
        """End it at its current position."""
        if self._greenlet:
            self._greenlet.parent = current_greenlet()
            self._greenlet.throw(AbandonedError)

    def _run(self) -> None:
        with ExitStack() as stack:
            stack.push(self._note)
            self.target()
        self.at = None
        self.done = True

    def _note(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Keep the target's exception, which the scheduler raises again."""
        self.failure = error
        return True


class ScheduledLock:
    """A lock between actors; an actor that finds it taken waits until it is free."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.owner: object | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002 - as `threading.Lock`
        """Acquire it, waiting while another actor has it."""
        me = self._scheduler.current
        while self.owner is not None:
            assert me is not None, "no actor is left to release this lock"
            assert self.owner is not me, "an actor waits for itself"
            me.waits_for = self
            me.stand()
        if me is not None:
            me.waits_for = None
        self.owner = me or self
        return True

    def release(self) -> None:
        """Release it."""
        assert self.owner is not None
        self.owner = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


@define(eq=False)
class Scheduler:
    """The actors of one run. Invariant: `current` is the running one, if any."""

    actors: dict[str, Actor] = field(factory=dict)
    current: Actor | None = None

    def spawn(self, name: str, target: Callable[[], None]) -> Actor:
        """Add an actor; it does nothing before `go`."""
        assert name not in self.actors
        actor = self.actors[name] = Actor(name, target)
        return actor

    def go(self, name: str) -> None:
        """Run one actor's next segment; an ended one is removed. Raises what the actor raised."""
        actor = self.actors[name]
        assert actor.can_go
        self.current = actor
        try:
            actor.run_segment()
        finally:
            self.current = None
        if actor.done:
            del self.actors[name]

    def close(self) -> None:
        """End every actor."""
        for actor in self.actors.values():
            self.current = actor
            actor.abandon()
        self.current = None
        self.actors.clear()


class ScheduledRuntime:
    """The part of a runtime that the hold table's threads need, under a scheduler and with virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        """Virtual time."""
        return self.now_ms * 1_000_000

    def lock(self) -> ScheduledLock:
        """A new lock."""
        return ScheduledLock(self._scheduler)

    def step(self, action: str) -> None:
        """Wait here until the scheduler continues it."""
        actor = self._scheduler.current
        if actor is not None:
            actor.at = action
            actor.stand()
