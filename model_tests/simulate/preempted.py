"""Real threads of which one runs, with a switch possible between any two bytecodes of the code under test.

The controlled scheduler (`longpoll_broker.testing.schedules.scheduled`) stops at step points, so it never enters a
critical section; this one does nothing else. An actor is a thread with a trace function on the files under test: after
a random number of bytecodes the turn goes to another actor that can go on. Locks are the scheduler's own, so an actor
that finds one taken lets another run. The same seed gives the same run.

Leaves out searching cleverly, and making a run that fails shorter.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import pairwise
from types import FrameType
from typing import Any, Final, Self

from attrs import define, field

PATIENCE_S: Final = 30.0
"""How long a run may take; only one that hangs takes so long."""
MEANS: Final = (2, 4, 8, 16, 32, 64, 128)
"""Bytecodes between two switches, in the mean; one of these for a whole run."""
LENGTHS: Final = (60, 200, 600)
"""Within so many bytecodes are the switches of a run that has few of them."""
FEW_SHARE: Final = 0.7
"""How many runs have few switches."""
NEVER: Final = 1 << 60
FEW_MAX: Final = 3
"""How many these are at most: nearly every known race needs no more (Burckhardt et al., ASPLOS 2010)."""


class StuckError(AssertionError):
    """Every actor that is left waits for a lock."""


class _AbandonedError(BaseException):
    """Ends an actor of a run that is over; nothing under test may catch it."""


@define(eq=False)
class _Actor:
    """One thread. Invariant: it runs only while it is `Preemption.current`."""

    name: str
    target: Callable[[], None]
    turn: threading.Semaphore = field(factory=lambda: threading.Semaphore(0), init=False)
    waits_for: PreemptedLock | None = field(default=None, init=False)
    done: bool = field(default=False, init=False)

    @property
    def can_go(self) -> bool:
        return not self.done and (self.waits_for is None or self.waits_for.owner is None)


class PreemptedLock:
    """A lock between actors. Invariant: `owner` is who has it; None when it is free."""

    def __init__(self, preemption: Preemption) -> None:
        self._preemption = preemption
        self.owner: object | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; other actors run as long as one of them has it."""
        me = self._preemption.current
        while self.owner is not None:
            assert me is not None, "nobody is left to give this lock back"
            assert self.owner is not me, f"{me.name} waits for itself"
            me.waits_for = self
            self._preemption.give_turn()
        if me is not None:
            me.waits_for = None
        self.owner = me or self
        return True

    def release(self) -> None:
        """Give it back."""
        assert self.owner is not None
        self.owner = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class Preemption:
    """One run. Invariants: `current` is the actor that runs, if one does; the next switch is `_left` bytecodes away."""

    def __init__(self, seed: int, files: Iterable[str]) -> None:
        self.random = random.Random(seed)
        self.current: _Actor | None = None
        self.switches = 0
        self._files = frozenset(files)
        choose = self.random
        self._few: list[int] | None = None
        """Bytecodes before each of the next switches, last first, in a run that has few; else they never end."""
        if choose.random() < FEW_SHARE:
            length = choose.choice(LENGTHS)
            places = sorted(choose.sample(range(1, length), choose.randint(1, FEW_MAX)))
            self._few = [after - before for before, after in pairwise((0, *places))][::-1]
        self._mean = choose.choice(MEANS)
        self._left = 0
        self._actors: list[_Actor] = []
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def lock(self) -> PreemptedLock:
        """A new lock."""
        return PreemptedLock(self)

    def run(self, targets: dict[str, Callable[[], None]]) -> None:
        """Run the targets, each on a thread of its own, to their ends; raises what the first that failed raised."""
        self._actors = [_Actor(name, target) for name, target in targets.items()]
        self._left = self._gap()
        threads = [
            threading.Thread(target=self._act, args=(actor,), name=actor.name, daemon=True) for actor in self._actors
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        assert self._over.wait(PATIENCE_S), "the run does not come to its end"
        for thread in threads:
            thread.join(PATIENCE_S)
        self.current = None
        if self._failure is not None:
            raise self._failure

    def give_turn(self) -> None:
        """Let any actor run that can go on, perhaps the one that asks; called on the current one's thread."""
        me = self.current
        assert me is not None
        able = [actor for actor in self._actors if actor.can_go]
        if not able:
            raise StuckError(f"{me.name} and everybody else waits for a lock")
        following = self.random.choice(able)
        if following is not me:
            self.switches += 1
            self.current = following
            following.turn.release()
            me.turn.acquire()
            if self._failure is not None:
                raise _AbandonedError

    # -- on the actors' threads --------------------------------------------------------------------------------------

    def _act(self, actor: _Actor) -> None:
        actor.turn.acquire()
        with ExitStack() as stack:
            stack.push(self._note)
            if self._failure is None:
                sys.settrace(self._trace_call)
                stack.callback(sys.settrace, None)
                actor.target()
        actor.done = True
        self._pass_on()

    def _note(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if self._failure is None and error is not None:
            self._failure = error
        return True

    def _pass_on(self) -> None:
        """Hand the turn to another actor; after a failure each is woken to end where it stands."""
        left = [actor for actor in self._actors if not actor.done]
        able = left if self._failure is not None else [actor for actor in left if actor.can_go]
        if left and not able:
            self._failure = StuckError("everybody who is left waits for a lock")
            able = left
        if able:
            self.current = self.random.choice(able)
            self.current.turn.release()
        else:
            self._over.set()

    def _trace_call(self, frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._trace

    def _trace(self, _frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        if event == "opcode":
            self._left -= 1
            if self._left <= 0:
                self._left = self._gap()
                self.give_turn()
        return self._trace

    def _gap(self) -> int:
        if self._few is not None:
            return self._few.pop() if self._few else NEVER
        return 1 + int(self.random.expovariate(1 / self._mean))
