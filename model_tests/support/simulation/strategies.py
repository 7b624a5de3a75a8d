"""Scheduling strategies: random, with few switches, by priorities, with pauses, or a replay of recorded choices.

Source: PCT, a randomized scheduler with probabilistic guarantees (Burckhardt et al., ASPLOS 2010).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from attrs import define, field

from longpoll_simulation.world import NEVER, Actor, Strategy, Turn, World


@define(eq=False)
class RandomWalk(Strategy):
    """Chooses a ready actor at random at every scheduling point, with equal probabilities."""

    seed: int
    _random: random.Random = field(init=False)

    def begin(self, world: World) -> None:
        self._random = random.Random(self.seed)
        world.ask_at = 0

    def choose(self, world: World) -> Actor:
        ready = world.ready
        return ready[int(self._random.random() * len(ready))]


@define(eq=False)
class FewSwitches(Strategy):
    """Keeps the default order except for a few switches at random points, or a switch every few points.

    Most runs have one to `few_max` switches within a number of first points drawn from `lengths`, because nearly every
    known race needs no more.
    """

    seed: int
    lengths: Sequence[int] = (60, 200, 600)
    few_max: int = 3
    few_share: float = 0.7
    _random: random.Random = field(init=False)
    _places: list[int] | None = field(init=False, default=None)
    _mean: int = field(init=False, default=1)

    def begin(self, world: World) -> None:
        draw = self._random = random.Random(self.seed)
        self._places = None
        if draw.random() < self.few_share:
            length = draw.choice(self.lengths)
            self._places = sorted(draw.sample(range(1, length + 1), draw.randint(1, self.few_max)), reverse=True)
        self._mean = 1 << draw.randint(0, 6)
        self._plan(world)

    def choose(self, world: World) -> Actor:
        """Returns a random ready actor at a drawn point or when the current actor waits."""
        draw, current = self._random, world.current
        if current is not None and world.step >= world.ask_at:
            self._plan(world)
        return world.ready[int(draw.random() * len(world.ready))]

    def _plan(self, world: World) -> None:
        if self._places is None:
            world.ask_at = world.step + 1 + int(self._random.expovariate(1 / self._mean))
            return
        while self._places and self._places[-1] <= world.step:
            self._places.pop()
        world.ask_at = self._places.pop() if self._places else NEVER


@define(eq=False)
class Priorities(Strategy):
    """PCT: chooses the ready actor of the highest priority, which drops at `depth` - 1 of the first `length` points.

    With k actors and n points, a bug of depth d is found with a probability of at least 1 / (k n^(d-1)) per run.
    """

    seed: int
    depth: int
    length: int
    _random: random.Random = field(init=False)
    _falls: list[int] = field(init=False, factory=list)
    _priorities: dict[int, float] = field(init=False, factory=dict)

    def begin(self, world: World) -> None:
        self._random = random.Random(self.seed)
        falls = self._random.choices(range(1, self.length + 1), k=self.depth - 1)
        self._falls = sorted(falls, reverse=True)
        self._priorities = {}
        world.ask_at = self._falls[-1] if self._falls else NEVER

    def choose(self, world: World) -> Actor:
        """Returns the ready actor of the highest priority; at a drawn point, the current one first drops below all."""
        while self._falls and self._falls[-1] <= world.step:
            self._falls.pop()
            if world.current is not None:
                # Later drops get lower priorities: -1, -2, ...
                self._priorities[world.current.number] = -float(self.depth - len(self._falls))
        world.ask_at = self._falls[-1] if self._falls else NEVER
        return max(world.ready, key=lambda actor: self._priorities[actor.number])

    def became_ready(self, world: World, actor: Actor) -> None:
        """Draw the priority of a new actor, and let the next point choose again."""
        if actor.number not in self._priorities:
            self._priorities[actor.number] = 1 + self._random.random()
        world.ask_at = 0


@define(eq=False)
class Replay(Strategy):
    """Follows the default order except for the given choices and pauses; skips a choice whose actor is not ready."""

    turns: Iterable[Turn] = ()
    _given: dict[tuple[int, int], int] = field(init=False, factory=dict)

    def begin(self, world: World) -> None:
        self._given = {(turn.actor, turn.point): turn.to for turn in self.turns}
        world.ask_at = 0 if any(to >= 0 for to in self._given.values()) else NEVER
        world.pause_at = 0 if any(to < 0 for to in self._given.values()) else NEVER

    def choose(self, world: World) -> Actor:
        last = world.last
        assert last is not None
        to = self._given.get((last.number, last.points))
        for actor in world.ready:
            if actor.number == to:
                return actor
        return world.current or world.ready[0]

    def pause_ms(self, world: World, actor: Actor) -> int:
        return max(-self._given.get((actor.number, actor.points), 0), 0)


@define(eq=False)
class WithPauses(Strategy):
    """Follows another strategy and adds `count` pauses at random ones of the first `length` points."""

    strategy: Strategy
    seed: int
    count: int
    length: int
    ms_max: int
    _random: random.Random = field(init=False)
    _points: list[int] = field(init=False, factory=list)

    def begin(self, world: World) -> None:
        self.strategy.begin(world)
        self._random = random.Random(self.seed)
        self._points = sorted(self._random.choices(range(1, self.length + 1), k=self.count), reverse=True)
        self._plan(world)

    def choose(self, world: World) -> Actor:
        return self.strategy.choose(world)

    def became_ready(self, world: World, actor: Actor) -> None:
        self.strategy.became_ready(world, actor)

    def pause_ms(self, world: World, actor: Actor) -> int:
        """Draw the length of a pause for the actor that runs at a drawn point."""
        self._plan(world)
        return self._random.randint(1, self.ms_max)

    def _plan(self, world: World) -> None:
        while self._points and self._points[-1] <= world.step:
            self._points.pop()
        world.pause_at = self._points[-1] if self._points else NEVER
