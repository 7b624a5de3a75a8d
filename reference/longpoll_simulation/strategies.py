"""Scheduling strategies: random, by priorities, by weights, or a replay of turns.

Sources: PCT, a randomized scheduler with probabilistic guarantees (Burckhardt et al., ASPLOS 2010); selectively uniform
random walks (Zhao et al., ASPLOS 2025).

Trying every schedule: `exhaust`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from attrs import define, field

from longpoll_simulation.world import NEVER, Actor, Turn, World


@define(eq=False)
class RandomWalk:
    """At every point a uniformly random ready actor."""

    seed: int
    _random: random.Random = field(init=False)

    def begin(self, world: World) -> None:
        """Restart the random generator from the seed."""
        self._random = random.Random(self.seed)
        world.ask_at = 0

    def choose(self, world: World) -> Actor:
        """Any ready actor."""
        ready = world.ready
        return ready[int(self._random.random() * len(ready))]

    def became_ready(self, world: World, actor: Actor) -> None:
        """Do nothing: it is drawn with the others."""


@define(eq=False)
class FewSwitches:
    """The default order with a few switches, at random points among the first ones; or one every few points.

    Most runs have one to `few_max` switches, within a number of points drawn from `lengths`:
    nearly every known race needs no more.
    """

    seed: int
    lengths: Sequence[int] = (60, 200, 600)
    few_max: int = 3
    few_share: float = 0.7
    _random: random.Random = field(init=False)
    _places: list[int] | None = field(init=False, default=None)
    _mean: int = field(init=False, default=1)

    def begin(self, world: World) -> None:
        """Draw the number and points of switches."""
        draw = self._random = random.Random(self.seed)
        self._places = None
        if draw.random() < self.few_share:
            length = draw.choice(self.lengths)
            self._places = sorted(draw.sample(range(1, length + 1), draw.randint(1, self.few_max)), reverse=True)
        self._mean = 1 << draw.randint(0, 6)
        self._plan(world)

    def choose(self, world: World) -> Actor:
        """Another actor at a drawn point, otherwise the current one; the successor of a waiting actor is random."""
        draw, current = self._random, world.current
        if current is not None and world.step >= world.ask_at:
            self._plan(world)
        return world.ready[int(draw.random() * len(world.ready))]

    def became_ready(self, world: World, actor: Actor) -> None:
        """Ready actors wait for the next drawn switch."""

    def _plan(self, world: World) -> None:
        if self._places is None:
            world.ask_at = world.step + 1 + int(self._random.expovariate(1 / self._mean))
            return
        while self._places and self._places[-1] <= world.step:
            self._places.pop()
        world.ask_at = self._places.pop() if self._places else NEVER


@define(eq=False)
class Priorities:
    """PCT: the ready actor of the highest priority; at `depth` - 1 random points of the first `length` it drops.

    With k actors and n points, a bug of depth d is found with a probability of at least 1 / (k n^(d-1)) per run.
    """

    seed: int
    depth: int
    length: int
    _random: random.Random = field(init=False)
    _falls: list[int] = field(init=False, factory=list)
    _priorities: dict[int, float] = field(init=False, factory=dict)

    def begin(self, world: World) -> None:
        """Draw the points of change."""
        self._random = random.Random(self.seed)
        falls = self._random.choices(range(1, self.length + 1), k=self.depth - 1)
        self._falls = sorted(falls, reverse=True)
        self._priorities = {}
        world.ask_at = self._falls[-1] if self._falls else NEVER

    def choose(self, world: World) -> Actor:
        """The highest priority; at a point of change the current actor first drops below all others."""
        while self._falls and self._falls[-1] <= world.step:
            self._falls.pop()
            if world.current is not None:
                # Later drops are lower: -1, -2, ...
                self._priorities[world.current.number] = -float(self.depth - len(self._falls))
        world.ask_at = self._falls[-1] if self._falls else NEVER
        return max(world.ready, key=lambda actor: self._priorities[actor.number])

    def became_ready(self, world: World, actor: Actor) -> None:
        """Draw a new actor's priority; one higher than the current actor's runs at the next point."""
        if actor.number not in self._priorities:
            self._priorities[actor.number] = 1 + self._random.random()
        world.ask_at = 0


@define(eq=False)
class WeightedWalk:
    """SURW: an actor's weight is its number of remaining points, from the count of an earlier run."""

    seed: int
    counts: Mapping[str, int]
    """Name of an actor -> its points in a run of the default order (`count_points`)."""
    _random: random.Random = field(init=False)
    _left: dict[int, int] = field(init=False, factory=dict)

    def begin(self, world: World) -> None:
        """Reset all remaining points."""
        self._random = random.Random(self.seed)
        self._left = {}
        world.ask_at = 0

    def choose(self, world: World) -> Actor:
        """A random actor, weighted by remaining points, at least one."""
        left = self._left
        if world.current is not None:
            left[world.current.number] -= 1
        sums = list(accumulate(max(left[actor.number], 1) for actor in world.ready))
        drawn = self._random.random() * sums[-1]
        return next(actor for actor, upto in zip(world.ready, sums, strict=True) if drawn < upto)

    def became_ready(self, world: World, actor: Actor) -> None:  # noqa: ARG002 - as the others
        """A new actor gets the count of its name."""
        self._left.setdefault(actor.number, self.counts.get(str(actor), 1))


@define(eq=False)
class Replay:
    """The default order except for the given turns; a turn whose actor is not ready is skipped."""

    turns: Iterable[Turn] = ()
    _told: dict[tuple[int, int], int] = field(init=False, factory=dict)

    def begin(self, world: World) -> None:
        """Go back to the first turn."""
        self._told = {(turn.actor, turn.point): turn.to for turn in self.turns if turn.to >= 0}
        world.ask_at = 0 if self._told else NEVER

    def choose(self, world: World) -> Actor:
        """The given turn, else the default order."""
        last = world.last
        assert last is not None
        told = self._told.get((last.number, last.points))
        for actor in world.ready:
            if actor.number == told:
                return actor
        return world.current or world.ready[0]

    def became_ready(self, world: World, actor: Actor) -> None:
        """Do nothing: it waits for its turn."""


@define(eq=False)
class RareHostPauses:
    """Some pauses, at random points of the first `length`, of up to `ms_max` each."""

    seed: int
    count: int
    length: int
    ms_max: int
    _random: random.Random = field(init=False)
    _points: list[int] = field(init=False, factory=list)

    def begin(self, world: World) -> None:
        """Draw the points."""
        self._random = random.Random(self.seed)
        self._points = sorted(self._random.choices(range(1, self.length + 1), k=self.count), reverse=True)
        self._plan(world)

    def due_ms(self, world: World, actor: Actor) -> int:  # noqa: ARG002 - its number does not matter
        """A pause for any actor at a drawn point."""
        self._plan(world)
        return self._random.randint(1, self.ms_max)

    def _plan(self, world: World) -> None:
        while self._points and self._points[-1] <= world.step:
            self._points.pop()
        world.stall_at = self._points[-1] if self._points else NEVER


@define(eq=False)
class GivenHostPauses:
    """The pauses among a run's turns."""

    turns: Iterable[Turn]
    _told: dict[tuple[int, int], int] = field(init=False, factory=dict)

    def begin(self, world: World) -> None:
        """Request a call at every point, if there are any pauses."""
        self._told = {(turn.actor, turn.point): -turn.to for turn in self.turns if turn.to < 0}
        world.stall_at = 0 if self._told else NEVER

    def due_ms(self, world: World, actor: Actor) -> int:  # noqa: ARG002 - the actor's own points are told
        """The pause given by the turns."""
        return self._told.get((actor.number, actor.points), 0)


class PointCount:
    """Counts the points of each actor: a world's `note`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, actor: Actor, _operation: str, _thing: object) -> None:
        """Count a point."""
        self.counts[str(actor)] += 1
