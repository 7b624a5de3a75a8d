"""Scheduling points inside the code: before each line of chosen files, or before each access to shared state in them.

`sys.settrace` calls back for code of these files only, in every actor. A switch inside the callback leaves the
interpreter's tracing state with the old actor (`sys.call_tracing`), so each actor continues with its own state.

`sys.monitoring` (Python 3.12), which would cost other files nothing, is not used.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, Final, Literal

from attrs import define, field

from longpoll_simulation.world import World

Grain = Literal["line", "access"]
Trace = Callable[[FrameType, str, Any], Any]
SHARED: Final = ("ATTR", "METHOD", "SUBSCR", "CONTAINS_OP", "FOR_ITER", "GET_ITER", "CALL", "GLOBAL", "DEREF")
"""Parts of the names of instructions that may read or change what another actor sees, or call code that does."""


@define(eq=False)
class LineTracing:
    """The scheduling points in some files. Invariant: `_known` says for every code object seen how it is traced."""

    world: World
    files: frozenset[str]
    grain: Grain
    _known: dict[CodeType, Trace | None] = field(factory=dict)

    @classmethod
    def of(cls, world: World, files: Iterable[str], grain: Grain = "line") -> LineTracing:
        """Add scheduling points in these files to a world's next run."""
        lines = cls(world, frozenset(files), grain)
        world.tracer = lines
        return lines

    def act(self, target: Callable[[], None]) -> None:
        """Run an actor's target; called in the actor."""
        # A greenlet begins untraced, whatever the thread's state.
        sys.settrace(self._called)
        target()

    def go_on(self) -> None:
        """Trace again: an exception that leaves the callback, such as the end of a killed actor, stops all tracing."""
        sys.settrace(self._called)

    def stop(self) -> None:
        """End the run."""
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
    """The positions in a function's bytecode that read, change or call something shared between actors."""
    return frozenset(each.offset for each in dis.get_instructions(code) if any(part in each.opname for part in SHARED))
