"""Runs a reader's threads in every order of their lines up to a number of context switches.

Orders with few switches are tried first, so that the first failure is as simple as possible. Most races need two
switches (Musuvathi and Qadeer, Iterative context bounding, 2007). `threading` and `time` are simulated, and simulated
time passes only when no thread can run. An exception in the reader's code becomes one sentence, not an internal error.
"""

from __future__ import annotations

import builtins
import linecache
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from attrs import define, field, frozen

from longpoll.commands.lesson.exercise import UserCodeErrors
from longpoll_simulation.sync import SimulatedCondition, SimulatedEvent, SimulatedLock
from longpoll_simulation.world import Actor, LineTracing, Strategy, StuckError, World
from longpoll_spec.errors import UserError

HARMLESS: Final = frozenset(
    {"__future__", "collections", "dataclasses", "functools", "heapq", "itertools", "sys", "typing"}
)
"""Modules that a program may import unchanged, because none of them blocks."""


class _Condition(SimulatedCondition):
    """A simulated condition with the remaining methods of `threading.Condition`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._clock = world

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until_ns = None if timeout is None else self._clock.now_ns + int(timeout * 1e9)
        while not (said := predicate()):
            left_s = None if until_ns is None else (until_ns - self._clock.now_ns) / 1e9
            if left_s is not None and left_s <= 0:
                return said
            self.wait(left_s)
        return said

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


class _StandIn(SimpleNamespace):
    """Replaces a module and provides only some of its names."""

    _name: str

    def __getattr__(self, name: str) -> NoReturn:
        there = ", ".join(each for each in vars(self) if not each.startswith("_"))
        raise AttributeError(f"{self._name}.{name} is not available here; use {there}")


def modules_in(world: World) -> Mapping[str, Any]:
    """Return the simulated modules by name."""

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
    """Return Python's builtins with an import that allows only simulated and harmless modules."""
    found = modules_in(world)

    def import_module(name: str, *rest: Any) -> Any:
        if name in found:
            return found[name]
        if name not in HARMLESS:
            known = ", ".join((*found, *sorted(HARMLESS - {"__future__"})))
            raise UserError(f"cannot import {name[:40]}; this program may import only {known}")
        return __import__(name, *rest)

    return {**vars(builtins), "__import__": import_module}


POINTS_MAX: Final = 500
"""The maximum number of steps in one order; a longer order counts as an endless loop. A right program needs fewer than
100."""
POINTS_IN_ALL_MAX: Final = 200_000
"""The maximum number of steps in all schedules together, which take some seconds. A program of ten lines needs a tenth
of these steps."""
Thread = Callable[[Any, World], object]
"""The work of a thread on the program's object."""


@define
class _Chosen(Strategy):
    """A strategy that makes some prescribed choices, then prefers the running actor, and records the alternatives."""

    told: tuple[int, ...]
    """The prescribed choices, as numbers of actors."""
    made: list[tuple[int, tuple[int, ...], int | None]] = field(factory=list)
    """(the chosen actor, the actors that could run, the running actor if it could continue)"""

    def begin(self, world: World) -> None:
        self.made.clear()
        world.ask_at = 0

    def choose(self, world: World) -> Actor:
        current = world.current
        place = len(self.made)
        chosen = current or world.ready[0]
        if place < len(self.told):
            chosen = next(each for each in world.ready if each.number == self.told[place])
        running = None if current is None else current.number
        self.made.append((chosen.number, tuple(each.number for each in world.ready), running))
        return chosen


@frozen
class Schedule:
    """One order of a program's lines, and its result."""

    switches: int
    lines: tuple[tuple[str, int], ...]
    """(thread, line) in the order of execution."""
    gave: Mapping[str, object]
    """Maps each thread that ended to its return value."""
    ended_s: Mapping[str, float]
    """Maps each thread to its end, in seconds of virtual time from the start."""
    stuck: str
    """The blocked threads and what each waits for; empty if all threads have ended."""

    def story(self, path: Path) -> str:
        """Return the executed lines with their text, in one column per thread."""
        width = max(len(name) for name, _ in self.lines)
        told = [(name, line, linecache.getline(str(path), line).strip()) for name, line in self.lines]
        return "\n".join(f"  {name:{width}}  line {line:3}  {text}" for name, line, text in told)


@frozen
class _Program:
    path: Path
    code: Any
    make: str
    threads: Mapping[str, Thread]


def schedules_of(path: Path, make: str, threads: Mapping[str, Thread], switches_max: int) -> Iterator[Schedule]:
    """Yield every order of some threads with at most `switches_max` context switches, those with fewer first.

    Args:
        path: The program; its import runs again for each order.
        make: The name of a class in the program; each order gets a new object of this class.
        threads: Maps the name of a thread to a function of the object.
        switches_max: The maximum number of context switches in an order.

    Raises UserError if the program cannot run in the simulation, or has too many possible schedules.
    """
    linecache.checkcache(str(path))
    with UserCodeErrors(path):
        program = _Program(path, compile(path.read_text("utf-8"), str(path), "exec"), make, threads)
    waiting: list[deque[tuple[int, ...]]] = [deque() for _ in range(switches_max + 1)]
    waiting[0].append(())
    points = 0
    for switches, level in enumerate(waiting):
        while level:
            chosen = _Chosen(level.popleft())
            world = World(chosen, steps_max=POINTS_MAX)
            yield _run(program, world, switches)
            points += world.step
            if points > POINTS_IN_ALL_MAX:
                raise UserError(f"{path} has too many possible schedules; write it with fewer lines")
            _note_others(chosen, switches, waiting)


def _note_others(chosen: _Chosen, switches: int, waiting: list[deque[tuple[int, ...]]]) -> None:
    """Queue the schedules that differ from this schedule in exactly one choice that was not prescribed."""
    taken = [number for number, _, _ in chosen.made]
    for place in range(len(chosen.told), len(chosen.made)):
        number, could, running = chosen.made[place]
        cost = switches + (running is not None)
        if cost < len(waiting):
            waiting[cost].extend((*taken[:place], other) for other in could if other != number)


def _run(program: _Program, world: World, switches: int) -> Schedule:
    path, make, threads = program.path, program.make, program.threads
    lines: list[tuple[str, int]] = []
    gave: dict[str, object] = {}
    ended_s: dict[str, float] = {}

    def note(actor: Actor, operation: str, thing: object) -> None:
        if operation == "line" and actor.name in threads:
            lines.append((actor.name, int(str(thing).rpartition(":")[2])))

    def main() -> None:
        names: dict[str, Any] = {"__name__": "lesson", "__file__": str(path), "__builtins__": builtins_in(world)}
        exec(program.code, names)  # noqa: S102 - the reader's own program, on the reader's own machine
        if not isinstance(names.get(make), type):
            raise UserError(f"{path} has no class {make}; start from docs/lessons/poll.py")
        thing, began_ns = names[make](), world.now_ns

        def act(name: str, thread: Thread) -> None:
            gave[name] = thread(thing, world)
            ended_s[name] = (world.now_ns - began_ns) / 1e9

        for actor in [world.spawn(name, partial(act, name, thread)) for name, thread in threads.items()]:
            if not actor.done:
                world.wait(actor.joined_by, actor)

    LineTracing.of(world, [str(path)])
    world.note = note
    stuck = ""
    with UserCodeErrors(path):
        try:
            world.run(main)
        except StuckError as error:
            stuck = str(error)
    return Schedule(switches, tuple(lines), gave, ended_s, stuck)
