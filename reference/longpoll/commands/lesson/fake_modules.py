"""Simulated `threading` and `time` modules for a reader's program that runs in every order.

Locks are simulated, and time passes only when no thread can run. The error for a missing name lists the available ones.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from longpoll_simulation.sync import SimulatedCondition, SimulatedEvent, SimulatedLock
from longpoll_simulation.world import World
from longpoll_spec.errors import UserError

HARMLESS: Final = frozenset(
    {"__future__", "collections", "dataclasses", "functools", "heapq", "itertools", "sys", "typing"}
)
"""Other modules that a program may import; none of them blocks."""


class _Condition(SimulatedCondition):
    """Adds the other methods of `threading.Condition`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._clock = world

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate is true, or `timeout` seconds; returns its last value."""
        until_ns = None if timeout is None else self._clock.now_ns + int(timeout * 1e9)
        while not (said := predicate()):
            left_s = None if until_ns is None else (until_ns - self._clock.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                return said
            self.wait(left_s)
        return said

    def acquire(self) -> bool:
        """Acquire its lock."""
        return self._lock.acquire()

    def release(self) -> None:
        """Release its lock."""
        self._lock.release()


class _StandIn(SimpleNamespace):
    """A module with only some of its names."""

    _name: str

    def __getattr__(self, name: str) -> NoReturn:
        there = ", ".join(each for each in vars(self) if not each.startswith("_"))
        raise AttributeError(f"{self._name}.{name} is not available here; use {there}")


def modules_in(world: World) -> Mapping[str, Any]:
    """The simulated modules by name."""

    def condition(lock: object = None) -> _Condition:
        if lock is not None:
            raise UserError("a Condition cannot take a lock here; write threading.Condition()")
        return _Condition(world)

    def sleep(seconds: float) -> None:
        world.wait([], "the end of a sleep", seconds)

    threading = _StandIn(
        _name="threading",
        Lock=lambda: SimulatedLock(world),
        Event=lambda: SimulatedEvent(world),
        Condition=condition,
    )
    return {
        "threading": threading,
        "time": _StandIn(_name="time", monotonic=lambda: world.now_ns / 1e9, sleep=sleep),
    }


def builtins_in(world: World) -> dict[str, Any]:
    """Python's builtins with an import that returns only simulated and harmless modules."""
    found = modules_in(world)

    def import_module(name: str, *rest: Any) -> Any:
        if name in found:
            return found[name]
        if name not in HARMLESS:
            known = ", ".join((*found, *sorted(HARMLESS - {"__future__"})))
            raise UserError(f"cannot import {name[:40]}; this program may import only {known}")
        return __import__(name, *rest)

    return {**vars(builtins), "__import__": import_module}
