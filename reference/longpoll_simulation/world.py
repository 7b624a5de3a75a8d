"""Runs actors (simulated threads) on one thread: a strategy chooses which actor runs.

Virtual time passes only when no actor can run. An actor is a greenlet that runs from one scheduling point to the next.
A scheduling point is an operation of the runtime, such as acquiring a lock, or with `LineTracing` a line or bytecode.
At each scheduling point the strategy may switch to another ready actor. In the default order an actor runs until it
must wait or has ended, and then the ready actor with the lowest number runs. A run is determined by its seed and its
`Turn`s, which are the deviations from the default order.

For locks, sockets and disks see `sync`, `network` and `disk`; for other orders see `strategies`.
"""

from __future__ import annotations

import dis
import functools
import heapq
import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from attrs import define, field, frozen
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped] # its types are a package of their own

from longpoll_spec.errors import LongpollError


class StuckError(LongpollError):
    """A run has a deadlock without a timer, or takes too many steps. The text lists the waiting actors."""


class AbandonedError(BaseException):
    """Ends an actor of a finished run, or of a killed process; code under test must not catch it."""


class Greenlet(Protocol):
    """A running function. A greenlet is true after its start and before its end."""

    parent: Greenlet
    """The greenlet that continues when this greenlet ends."""

    def switch(self) -> object:
        """Start or continue the greenlet; returns when another greenlet switches back."""
        ...

    def throw(self, error: type[BaseException]) -> object:
        """Raise an error in the greenlet, at its current position; returns when it ends or switches back."""
        ...

    def __bool__(self) -> bool: ...


def new_greenlet(run: Callable[[], None], parent: Greenlet | None = None) -> Greenlet:
    """Create a greenlet that runs this function. Its parent, by default the current greenlet, continues afterwards."""
    return cast("Greenlet", greenlet(run, cast("Any", parent)))


def current_greenlet() -> Greenlet:
    """Return the running greenlet."""
    return cast("Greenlet", getcurrent())


T = TypeVar("T")
STEP_NS: Final = 1_000
"""The virtual duration of a scheduling point, ns."""
BEGIN_NS: Final = 1_000_000_000_000
"""The virtual monotonic clock at the start of a run, ns."""
NEVER: Final = 1 << 62
"""The number of a scheduling point that is never reached."""
STEPS_MAX: Final = 2_000_000
"""A run with more scheduling points than this counts as an endless loop."""


@frozen
class Turn:
    """A deviation from the default order at one of an actor's scheduling points.

    Scheduling points are counted per actor, so that most deviations stay valid when an earlier deviation is left out.
    """

    actor: int
    point: int
    """The number of a scheduling point of the actor, from 1. The number after its last scheduling point stands for its
    end."""
    to: int
    """The number of the actor that ran. A number below 0 means that the actor paused for that many milliseconds."""


@define(eq=False)
class Actor:
    """A simulated thread. Invariant: an actor runs only while it is `World.current`."""

    number: int
    name: str
    process: str
    greenlet: Greenlet = field(init=False)
    is_ready: bool = True
    done: bool = False
    waits_for: object = None
    """The object that the actor waits for; None while it runs."""
    at: str | None = None
    """The `pause` at which the actor stopped last; None before its first `pause`."""
    points: int = 0
    """The number of scheduling points that the actor has passed so far."""
    waits: int = 0
    """The number of waits of the actor, so that the timer of an earlier wait does not end a later wait."""
    woken: bool = False
    """Whether another actor, and not a timeout, ended the actor's last wait."""
    waits_in: list[Actor] | None = None
    joined_by: list[Actor] = field(factory=list)

    def __str__(self) -> str:
        return f"{self.process}/{self.name}" if self.process else self.name


class Strategy:
    """Chooses which actor runs, and which actor pauses. This base class keeps the default order, without pauses."""

    def begin(self, world: World) -> None:
        """Forget the last run and begin another. Sets `world.ask_at` and `world.pause_at`."""
        world.ask_at = NEVER

    def choose(self, world: World) -> Actor:
        """Choose from the two or more actors in `world.ready`, possibly `world.current`.

        This method may set `world.ask_at` to the number of a scheduling point. While the chosen actor can run, the
        method is not called before that point.
        """
        return world.current or world.ready[0]

    def became_ready(self, world: World, actor: Actor) -> None:
        """Note that an actor became ready. Sets `world.ask_at` to 0 if the strategy wants to choose now."""

    def pause_ms(self, world: World, actor: Actor) -> int:  # noqa: ARG002 - here no one pauses
        """Return for how many milliseconds an actor pauses here, like a thread without a processor; 0 for no pause.

        Sets `world.pause_at` to the next scheduling point for which to call this method.
        """
        world.pause_at = NEVER
        return 0


@define(eq=False)
class World:
    """One run of some actors.

    Invariants: `ready` has the actors that can run, including `current`, in the order of their numbers; `_timers` is a
    heap of timers; `turns` has all choices so far that differ from the default order.
    """

    strategy: Strategy
    steps_max: int = STEPS_MAX
    step_ns: int = STEP_NS
    now_ns: int = BEGIN_NS
    step: int = 0
    """The number of scheduling points so far."""
    ask_at: int = 0
    """The strategy does not choose before this scheduling point while the current actor can run."""
    pause_at: int = NEVER
    """The scheduling point before which the strategy is not asked for pauses."""
    paused_ms: int = 0
    """The total duration of pauses so far, ms."""
    current: Actor | None = None
    last: Actor | None = None
    """The last actor that ran, which may have just ended or begun to wait."""
    ready: list[Actor] = field(factory=list)
    actors: list[Actor] = field(factory=list)
    """All actors so far, in the order of their numbers."""
    turns: list[Turn] = field(factory=list)
    note: Callable[[Actor, str, object], None] | None = None
    """Called at every scheduling point with the actor, the operation, and its object."""
    tracer: LineTracing | None = None
    """Adds scheduling points inside the code."""
    over: bool = False
    lock_count: int = 0
    """The number of locks so far, which names locks in traces."""
    _timers: list[tuple[int, int, Callable[[], None]]] = field(factory=list)
    _timer_numbers: Any = field(factory=itertools.count)
    _failure: BaseException | None = None
    _hub: Greenlet = field(factory=current_greenlet, init=False)
    _is_driven: bool = field(default=False, init=False)
    """Whether `go` chooses which actor runs, instead of the strategy."""

    # -- running the actors ------------------------------------------------------------------------------------------

    def run(self, main: Callable[[], T]) -> T:
        """Run `main` as the first actor to its end, with all actors that it starts, then abandon the other actors.

        Raises the error of `main` or of any other actor, and StuckError.
        """
        results: list[T] = []
        self._hub = current_greenlet()
        self.strategy.begin(self)
        first = self.spawn("main", lambda: results.append(main()))
        with ExitStack() as stack:
            stack.callback(self.close)
            following: Actor | None = first
            while following is not None and not first.done and self._failure is None:
                self._switch(following)
                following = None if first.done or self._failure is not None else self._next()
            self.current = None
        if self._failure is not None:
            raise self._failure
        return results[0]

    def go(self, actor: Actor) -> None:
        """Run one actor from outside, up to its next `pause`, its next wait, or its end; raises the actor's error."""
        self._is_driven, self._hub = True, current_greenlet()
        self._switch(actor)
        self.current = None
        if self._failure is not None:
            raise self._failure

    def spawn(self, name: str, target: Callable[[], None], process: str = "") -> Actor:
        """Add a ready actor."""
        actor = Actor(len(self.actors), name, process)
        self.actors.append(actor)
        actor.greenlet = new_greenlet(lambda: self._act(actor, target), self._hub)
        self.ready.append(actor)
        self.strategy.became_ready(self, actor)
        return actor

    def abandon(self, actors: Iterable[Actor]) -> None:
        """End actors at their positions, such as those of a killed process. The caller must not be among them."""
        for actor in actors:
            assert actor is not self.current
            if not actor.done:
                self._end(actor)

    # -- methods that an actor calls ---------------------------------------------------------------------------------

    def point(self, operation: str, thing: object = None) -> None:
        """Let other actors run at this scheduling point of the current actor. Outside a run, do nothing."""
        me = self.current
        if me is None or self.over:
            return
        self.step = step = self.step + 1
        me.points += 1
        self.now_ns += self.step_ns
        if self.note is not None:
            self.note(me, operation, thing)
        if self._timers and self._timers[0][0] <= self.now_ns:
            self._fire()
        if step > self.steps_max:
            self.give_up()
        if step >= self.pause_at and self._pauses(me):
            return
        if step >= self.ask_at and len(self.ready) > 1:
            self.offer_turn()

    def pause(self, operation: str) -> None:
        """Stop the current actor until the next `go`. Outside of `go`, this method does nothing."""
        if self.current is not None:
            self.current.at = operation
            self._hub.switch()

    def give_up(self) -> None:
        """End the run as an endless loop."""
        self._failure = StuckError(f"no end after {self.steps_max} steps: {self.who_waits()}")
        self._hub.switch()

    def _pauses(self, me: Actor) -> bool:
        """Pause the current actor if a pause is due; returns whether it paused."""
        for_ms = self.strategy.pause_ms(self, me)
        if for_ms:
            self.turns.append(Turn(me.number, me.points, -for_ms))
            self.paused_ms += for_ms
            self.wait([], "a processor", for_ms / 1000)
        return for_ms > 0

    def offer_turn(self) -> None:
        """Let the strategy choose an actor, and switch to it; returns when the current actor is chosen again."""
        me = self.current
        assert me is not None
        chosen = self.strategy.choose(self)
        if chosen is me:
            return
        self.turns.append(Turn(me.number, me.points, chosen.number))
        self._switch(chosen)

    def wait(self, waiting: list[Actor], thing: object, timeout_s: float | None = None) -> bool:
        """Add the current actor to `waiting` until another actor wakes it; returns false after `timeout_s`.

        Raises StuckError outside a run, where no actor could wake it.
        """
        me = self.current
        if self.over:
            raise AbandonedError
        if me is None:
            raise StuckError(f"no actor exists to end the wait for {thing}")
        self.step += 1
        me.points += 1
        self.now_ns += self.step_ns
        if self.note is not None:
            self.note(me, "wait", thing)
        me.waits += 1
        me.woken, me.is_ready, me.waits_for, me.waits_in = False, False, thing, waiting
        waiting.append(me)
        self.ready.remove(me)
        if timeout_s is not None:
            number = me.waits
            self.at(self.now_ns + int(timeout_s * 1e9), lambda: self._time_out(me, number))
        following = None if self._is_driven else self._next()
        if following is None:
            self._hub.switch()
        elif following is not me:
            self._switch(following)
        me.waits_for = None
        return me.woken

    def wake(self, actor: Actor) -> None:
        """End an actor's wait, if it waits."""
        if actor.is_ready or actor.done:
            return
        actor.woken = True
        self._make_ready(actor)

    def wake_all(self, waiting: list[Actor]) -> None:
        """Wake all actors of a list."""
        for actor in list(waiting):
            self.wake(actor)

    def at(self, moment_ns: int, do: Callable[[], None]) -> None:
        """Call `do` when the clock reaches this time. Calls for equal times are made in the order of their requests."""
        heapq.heappush(self._timers, (moment_ns, next(self._timer_numbers), do))

    # -- scheduling and timers ---------------------------------------------------------------------------------------

    def _switch(self, to: Actor) -> None:
        self.current = self.last = to
        to.greenlet.switch()

    def _next(self) -> Actor | None:
        """Return the next actor when the current actor cannot run; None for a deadlock, which fails the run."""
        while not self.ready:
            if not self._timers:
                self._failure = self._failure or StuckError(self.who_waits())
                return None
            self.now_ns = max(self.now_ns, self._timers[0][0])
            self._fire()
        plain = self.ready[0]
        if len(self.ready) == 1:
            return plain
        last = self.last
        assert last is not None
        self.current = None
        chosen = self.strategy.choose(self)
        if chosen is not plain:
            self.turns.append(Turn(last.number, last.points, chosen.number))
        self.current = chosen
        return chosen

    def who_waits(self) -> str:
        """Return all remaining actors and the objects that they wait for, as text."""
        left = [actor for actor in self.actors if not actor.done]
        said = [f"{actor} waits for {actor.waits_for}" if not actor.is_ready else f"{actor} is ready" for actor in left]
        return "; ".join(said) or "nobody is left"

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now_ns:
            heapq.heappop(timers)[2]()

    def _time_out(self, actor: Actor, number: int) -> None:
        if not actor.is_ready and not actor.done and actor.waits == number:
            self._make_ready(actor)

    def _make_ready(self, actor: Actor) -> None:
        assert actor.waits_in is not None
        actor.waits_in.remove(actor)
        actor.waits_in = None
        actor.is_ready = True
        ready, number = self.ready, actor.number
        place = len(ready)
        while place and ready[place - 1].number > number:
            place -= 1
        ready.insert(place, actor)
        self.strategy.became_ready(self, actor)

    def _act(self, actor: Actor, target: Callable[[], None]) -> None:
        with ExitStack() as stack:
            stack.push(self._keep_failure)
            if self.tracer is not None:
                self.tracer.act(target)
            else:
                target()
        self._leave(actor)

    def _keep_failure(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is not None and not isinstance(error, AbandonedError) and self._failure is None:
            self._failure = error
        return True

    def _leave(self, actor: Actor) -> None:
        actor.done = True
        actor.points += 1
        if actor.is_ready:
            self.ready.remove(actor)
            actor.is_ready = False
        elif actor.waits_in is not None:
            actor.waits_in.remove(actor)
            actor.waits_in = None
        self.wake_all(actor.joined_by)

    def _end(self, actor: Actor) -> None:
        """Raise AbandonedError in an actor. An actor that has not begun is only removed."""
        if not actor.greenlet:
            self._leave(actor)
            return
        # While an actor ends, it may release locks and close connections, but without scheduling points and without
        # effects on other processes.
        self.over = True
        actor.greenlet.parent = current_greenlet()
        actor.greenlet.throw(AbandonedError)
        self.over = False
        if self.tracer is not None:
            self.tracer.go_on()

    def close(self) -> None:
        """End the run, with all remaining actors."""
        self.over = True
        self.current = None
        for actor in self.actors:
            if actor.greenlet:
                actor.greenlet.parent = current_greenlet()
                actor.greenlet.throw(AbandonedError)
            actor.done = True
        self.ready.clear()
        self._timers.clear()
        if self.tracer is not None:
            self.tracer.stop()


Grain = Literal["line", "access"]
Trace = Callable[[FrameType, str, Any], Any]
SHARED: Final = ("ATTR", "METHOD", "SUBSCR", "CONTAINS_OP", "FOR_ITER", "GET_ITER", "CALL", "GLOBAL", "DEREF")
"""Parts of the names of bytecode instructions that may access data of other actors, or call code that does."""


@define(eq=False)
class LineTracing:
    """Scheduling points in some source files: before each line, or before each access to shared state.

    `sys.settrace` calls back for code of these files only, in every actor. A switch inside the callback leaves the
    interpreter's tracing state with the old actor (`sys.call_tracing`), so each actor continues with its own state.
    `sys.monitoring` (Python 3.12), which would not slow other files down, is not used.

    Invariant: `_known` says for every code object seen how it is traced.
    """

    world: World
    files: frozenset[str]
    grain: Grain
    _known: dict[CodeType, Trace | None] = field(factory=dict)

    @classmethod
    def of(cls, world: World, files: Iterable[str], grain: Grain = "line") -> LineTracing:
        """Add scheduling points in these source files to a world's next run."""
        lines = cls(world, frozenset(files), grain)
        world.tracer = lines
        return lines

    def act(self, target: Callable[[], None]) -> None:
        """Run an actor's target with tracing. The actor itself calls this method."""
        # A greenlet begins untraced, whatever the state of its thread.
        sys.settrace(self._called)
        target()

    def go_on(self) -> None:
        """Trace again, because an exception that leaves the callback, such as an actor's end, stops all tracing."""
        sys.settrace(self._called)

    def stop(self) -> None:
        """End tracing at the end of the run."""
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> Trace | None:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._trace_of(code)
        trace = self._known[code]
        if trace is not None and self.grain == "access":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    def _trace_of(self, code: CodeType) -> Trace | None:
        if code.co_filename not in self.files:
            return None
        return self._line_trace() if self.grain == "line" else self._access_trace(code)

    def _line_trace(self) -> Trace:
        reached = self._reached

        def trace(frame: FrameType, event: str, _argument: Any) -> Trace:
            if event == "line":
                reached(frame)
            return trace

        return trace

    def _access_trace(self, code: CodeType) -> Trace:
        reached = self._reached
        places = shared_places(code)

        def trace(frame: FrameType, event: str, _argument: Any) -> Trace:
            if event == "opcode" and frame.f_lasti in places:
                reached(frame)
            return trace

        return trace

    def _reached(self, frame: FrameType) -> None:
        world = self.world
        me = world.current
        if me is None or world.over:
            return
        world.step += 1
        me.points += 1
        if world.step > world.steps_max:
            sys.call_tracing(world.give_up, ())
        if world.note is not None:
            world.note(me, "line", f"{frame.f_code.co_filename}:{frame.f_lineno}")
        if world.step >= world.ask_at and len(world.ready) > 1:
            sys.call_tracing(world.offer_turn, ())


@functools.lru_cache(maxsize=4096)
def shared_places(code: CodeType) -> frozenset[int]:
    """Return the positions in a function's bytecode that read, change or call an object that actors share."""
    return frozenset(each.offset for each in dis.get_instructions(code) if any(part in each.opname for part in SHARED))
