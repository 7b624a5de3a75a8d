"""Try every schedule up to a bound, the shortest first, then extreme and random ones; shorten a failing schedule.

A play of a schedule consists of a reset, the steps, and ticks at the end until every owed answer is due. Steps that
continue a paused message are not counted. In a *plain* schedule, a message that stops at a scheduling point continues
at once; in an *interleaved* schedule, other steps may come first. Names are assigned in the order of first use, so no
two schedules differ only in names.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
from attrs import asdict, define, field, frozen

from longpoll_kit.errors import ViolationError
from longpoll_kit.model import Allowances
from longpoll_kit.programs.protocol import At, TokenError, broken
from longpoll_kit.programs.schedule import (
    LARGE_SIZE,
    STRICT,
    Chooser,
    Kind,
    Partner,
    Played,
    Schedule,
    Step,
    given,
    play,
    token_of,
    without,
)
from longpoll_runtime import Runtime

WAITS_MS: Final = (2_070, 1_530, 640, 2_950)
"""The timeouts of the successive pulls of a schedule. No value is round, and a later pull may be due before an earlier
one."""
QUEUES: Final = "abcdefghi"
ODD_WAITS_MS: Final = (1, 7, 999, 1_000, 1_001, 3_600_000)
"""Timeouts that a program may round wrongly or treat as no timeout; used in schedules of up to two steps."""
LARGE_COUNT: Final = 24
# `tick_before` comes first, because a pull with a timeout of 1 ms skips it: no tick fits before its deadline.
EXTREME_KINDS: Final[tuple[Kind | None, ...]] = ("tick_before", None, "arrive", "arrive_late", "tick")
BURSTS: Final = (16, 150, 300)
"""Numbers of messages in a row that the search tries before the full burst."""
HERDS: Final = (12, 40)
"""Numbers of waiting pulls that the search tries before the largest number (`Bounds.herd`)."""
FRESH_SCHEDULES: Final = 3
"""How many schedules of the exhaustive search are played again by new processes."""
RANDOM_FACTOR: Final = 4
"""A random schedule may exceed the bounds of the exhaustive search by up to this factor."""
Name = TypeVar("Name")


class Driven(Partner, Protocol):
    """The program's side of a search, with access to the program's standard error."""

    def complaint(self) -> str:
        """Return the last bytes of the program's standard error."""
        ...


Start = Callable[[], AbstractContextManager[Driven]]
ODD: Final = broken("forgets_at_reset", "it answers differently than in another schedule with the same beginning")


@frozen
class Bounds:
    """Limits on the schedules of a search."""

    moves: int = 5
    """The maximum number of steps of a plain schedule."""
    interleaved: int = 3
    """The maximum number of steps of an interleaved schedule."""
    pulls: int = 3
    arrivals: int = 2
    closes: int = 1
    set_backs: int = 1
    queues: int = 2
    connections: int = 2
    burst: int = 1_100
    """How many messages the longest burst sends in a row."""
    herd: int = 200
    """The largest number of pulls that wait at once."""

    def as_json(self) -> dict[str, int]:
        """The bounds as a JSON object for other tools."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.pulls} pulls, {self.arrivals} messages, {self.closes} closes, "
            f"{self.set_backs} steps of the wall clock, {self.queues} queues, {self.connections} connections; "
            f"alone, waits of {ODD_WAITS_MS[0]} to {ODD_WAITS_MS[-1]:,} ms, {self.burst:,} messages in a row, "
            f"{LARGE_COUNT} of {LARGE_SIZE:,} letters, and {self.herd:,} pulls at once"
        )


@frozen
class Finding:
    """A violation, and the smallest schedule that shows it."""

    played: Played
    violation: ViolationError
    complaint: str = ""
    """The end of the program's standard error."""

    def as_json(self) -> dict[str, Any]:
        """The finding as a JSON object for other tools."""
        return {
            "property": self.violation.property,
            "said": str(self.violation),
            "token": token_of(self.played.steps),
            "story": list(self.played.story),
            "turns": [
                {"message": turn.message, "replies": [msgspec.to_builtins(reply) for reply in turn.replies]}
                for turn in self.played.turns
            ],
            "complaint": self.complaint,
        }


@define(eq=False)
class Search:
    """The state of the search, which stays valid when Ctrl-C interrupts the search.

    Invariant: `plain` and `interleaved` have an entry for each number of steps whose schedules were all played.
    """

    bounds: Bounds = field(factory=Bounds)
    limits: Allowances = STRICT
    plain: dict[int, int] = field(factory=dict)
    """Maps a number of steps to the number of plain schedules of that length."""
    interleaved: dict[int, int] = field(factory=dict)
    """Maps a number of steps to the number of interleaved schedules; empty for a program without scheduling points."""
    played: int = 0
    """The number of schedules played so far, even if not all schedules of that length were played."""
    drawn: int = 0
    turns: int = 0
    step_points: Counter[str] = field(factory=Counter)
    is_whole: bool = False
    """Whether every schedule up to the bound was played."""
    finding: Finding | None = None
    told: Callable[[str], None] = lambda _text: None
    _kept: dict[int, Played] = field(factory=dict)

    def run(self, start: Start) -> None:
        """Search until a violation is found or all schedules are done. Raises StartError."""
        with start() as partner:
            failed = self._every(partner) or self._extreme(partner)
        for played in self._kept.values() if failed is None else [failed]:
            self.finding = self.finding or examined(start, self.limits, played.steps, played)

    def run_drawn(self, start: Start, seed: int, seconds: float, runtime: Runtime) -> None:
        """Play random schedules for some time, at least one, and reduce a schedule that fails."""
        until_ns = runtime.monotonic_ns() + seconds * 1e9
        with start() as partner:
            for number in itertools.count(seed):
                if self.finding is not None or (self.drawn and runtime.monotonic_ns() >= until_ns):
                    return
                played = self._once(partner, drawn(random.Random(number), self.bounds))
                self.drawn += 1
                if played.violation is not None:
                    found = examined(start, self.limits, played.steps, played)
                    self.finding = found and shortest(found, start, self.limits)

    def _every(self, partner: Partner) -> Played | None:
        for moves in range(1, max(self.bounds.moves, self.bounds.interleaved) + 1):
            if moves <= self.bounds.moves and (failed := self._level(partner, moves, self.plain, plain=True)):
                return failed
            if moves > self.bounds.interleaved or (moves <= self.bounds.moves and not self.step_points):
                continue
            if failed := self._level(partner, moves, self.interleaved, plain=False):
                return failed
        self.is_whole = True
        return None

    def _level(self, partner: Partner, moves: int, counts: dict[int, int], *, plain: bool) -> Played | None:
        found = 0
        for played in orders(partner, self.bounds, self.limits, moves, plain=plain):
            self.count(played)
            if played.violation is not None:
                return played
            found += sum(step.kind != "go" for step in played.steps) == moves
            self._kept[self.played % FRESH_SCHEDULES] = played
        counts[moves] = found
        return None

    def _extreme(self, partner: Partner) -> Played | None:
        """Play odd timeouts, many waiting pulls and long bursts; return a violation with few pulls or messages."""
        for wait_ms in ODD_WAITS_MS:
            for kind in EXTREME_KINDS[wait_ms == 1 :]:
                steps = [Step("pull", 1, QUEUES[0], wait_ms), *([Step(kind, queue=QUEUES[0])] if kind else [])]
                if (played := self._once(partner, given(steps))).violation is not None:
                    return played
        herds, bursts = up_to(HERDS, self.bounds.herd), up_to(BURSTS, self.bounds.burst)
        return (
            self._fewest(partner, partial(herd, "arrive"), herds)
            or self._fewest(partner, partial(herd, "tick_before"), herds)
            or self._fewest(partner, partial(burst, "arrive"), bursts)
            or self._fewest(partner, partial(burst, "arrive_large"), [LARGE_COUNT])
        )

    def _fewest(self, partner: Partner, chooser: Callable[[int], Chooser], counts: Sequence[int]) -> Played | None:
        """Return the violation with the fewest pulls or messages, found by bisection; None without a violation."""
        right, failed = 0, None
        for count in counts:
            failed = self._once(partner, chooser(count))
            if failed.violation is not None:
                break
            right, failed = count, None
        while failed is not None and right + 1 < count:
            middle = (right + count) // 2
            played = self._once(partner, chooser(middle))
            right, count, failed = (middle, count, failed) if played.violation is None else (right, middle, played)
        return failed

    def _once(self, partner: Partner, choose: Chooser) -> Played:
        played = play(partner, self.limits, choose)
        self.count(played)
        return played

    def count(self, played: Played) -> None:
        """Count a played schedule."""
        self.played += 1
        self.turns += len(played.turns)
        self.told(f"{self.played:,} schedules, now with {max(self.plain, default=0) + 1} steps")
        for turn in played.turns:
            if turn.replies and isinstance(turn.replies[-1], At):
                self.step_points[turn.replies[-1].at] += 1


def up_to(counts: Iterable[int], most: int) -> list[int]:
    """Return the counts that are below `most`, followed by `most`."""
    return sorted({count for count in counts if count < most} | {most})


def shortest(found: Finding, start: Start, limits: Allowances) -> Finding:
    """Remove steps from a failing schedule while it still fails."""
    place = len(found.played.steps) - 1
    while place >= 0:
        try:
            less = examined(start, limits, without(found.played.steps, place))
        except TokenError:
            less = None
        if less is not None and less.violation.property == found.violation.property:
            found, place = less, len(less.played.steps)
        place -= 1
    return found


def examined(start: Start, limits: Allowances, steps: Sequence[Step], odd: Played | None = None) -> Finding | None:
    """Play a schedule twice in one new process and once in a second one; all three results must be equal and correct.

    Args:
        start: Starts a process. Each process is used once, because a failed process may not answer any more.
        limits: How late the program may be.
        steps: The schedule. Raises TokenError if it cannot be played.
        odd: The result of an earlier play of this schedule, by a process that had played other schedules before.
    """
    with start() as partner:
        first = play(partner, limits, given(steps))
        if first.violation is not None:
            return Finding(first, first.violation, partner.complaint())
        second = play(partner, limits, given(steps))
        complaint = partner.complaint()
    with start() as partner:
        other = play(partner, limits, given(steps))
    if not other.is_alike(first):
        what = f"two new processes answer the same schedule differently: {first_difference(other, first)}"
        return Finding(other, broken("same_again", what), complaint)
    if not second.is_alike(first):
        what = f"run twice with a reset in between: {first_difference(first, second)}"
        found = Finding(second, broken("forgets_at_reset", what), complaint)
        return found if odd is None else shortest(found, start, limits)
    if odd is None or (odd.violation is None and odd.is_alike(first)):
        return None
    what = "after other schedules it answers differently than a new process; this schedule alone does not show it"
    return Finding(odd, broken("forgets_at_reset", f"{what}: {first_difference(odd, first)}"))


def first_difference(one: Played, other: Played) -> str:
    """Describe the first difference between two plays of the same schedule."""
    for mine, theirs in itertools.zip_longest(one.turns, other.turns):
        if mine is None or theirs is None:
            return "one of them ends sooner"
        if mine.heard() != theirs.heard():
            number = mine.message["id"] if mine.message else "?"
            one_wrote, other_wrote = (" ".join(turn.heard()) or "nothing" for turn in (mine, theirs))
            return f"to message {number} one wrote {one_wrote}, the other {other_wrote}"
    return "in what came before"


def orders(partner: Partner, bounds: Bounds, limits: Allowances, moves: int, *, plain: bool) -> Iterator[Played]:
    """Play each schedule of a given length, depth first, and stop after a schedule with a violation.

    If the program answers the same prefix differently, it breaks the property `forgets_at_reset` or `same_again`.
    """
    path: list[tuple[list[Step], int]] = []
    before: Played | None = None
    while True:
        try:
            played = play(partner, limits, _walk(path, bounds, moves, plain=plain))
        except TokenError:  # The program no longer pauses where it paused in the previous schedule.
            assert before is not None
            played = Played(before.steps, before.turns, ODD)
        if played.violation is None and before is not None and _is_odd(before, played):
            played = Played(played.steps, played.turns, ODD)
        yield played
        if played.violation is not None:
            return
        before = played
        while path and path[-1][1] + 1 >= len(path[-1][0]):
            path.pop()
        if not path:
            return
        choices, at = path[-1]
        path[-1] = (choices, at + 1)


def _is_odd(before: Played, played: Played) -> bool:
    """Whether the program answered the reset or a shared first step of two schedules differently."""
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before.steps, played.steps, strict=False))
    shared = 1 + sum(1 for _ in alike)
    pairs = zip(before.turns[:shared], played.turns[:shared], strict=False)
    return any(one.heard() != other.heard() for one, other in pairs)


def _walk(path: list[tuple[list[Step], int]], bounds: Bounds, moves: int, *, plain: bool) -> Chooser:
    """Return a chooser that follows the path, then always takes the first choice, and records the other choices."""
    depth = itertools.count()

    def choose(order: Schedule) -> Step | None:
        place = next(depth)
        if place == len(path):
            choices = possible(order, bounds, moves, plain=plain)
            if not choices:
                return None
            path.append((choices, 0))
        choices, at = path[place]
        return choices[at]

    return choose


def possible(order: Schedule, bounds: Bounds, moves: int, *, plain: bool = False) -> list[Step]:
    """The possible next steps of a schedule that may have at most `moves` steps."""
    choices = [Step("go", number) for number in order.paused]
    if plain and choices:
        return choices[:1]
    counts = Counter[str](step.kind for step in order.steps)
    if sum(counts.values()) - counts["go"] >= moves:
        return choices
    wanted = list(_wanted(order, counts, bounds))
    return choices + [step for step in wanted if order.is_possible(step)]


def _wanted(order: Schedule, counts: Mapping[str, int], bounds: Bounds) -> Iterator[Step]:
    queues = _names(QUEUES[: bounds.queues], (step.queue for step in order.steps if step.queue))
    if counts["pull"] < bounds.pulls:
        used = (pull.connection for pull in order.pulls.values())
        wait_ms = WAITS_MS[counts["pull"] % len(WAITS_MS)]
        for connection in _names(range(1, bounds.connections + 1), used):
            yield from (Step("pull", connection, queue, wait_ms) for queue in queues)
    if counts["arrive"] + counts["arrive_late"] < bounds.arrivals:
        yield from (Step("arrive", queue=queue) for queue in queues)
        yield from (Step("arrive_late", queue=queue) for queue in queues)
    yield from (Step("tick_before"), Step("tick"))
    if counts["close"] < bounds.closes:
        connections = sorted({pull.connection for pull in order.pulls.values()})
        yield from (Step("close", connection) for connection in connections)
    if counts["set_back"] < bounds.set_backs and any(pull.is_open for pull in order.pulls.values()):
        yield Step("set_back")


def _names(known: Sequence[Name], used: Iterable[Name]) -> list[Name]:
    """Return the used names and the first unused name."""
    return list(known[: len(set(used)) + 1])


def herd(then: Kind, count: int) -> Chooser:
    """Send many pulls of one queue, then a message that wakes all of them, or a tick before their deadlines."""
    pulls = [Step("pull", connection, QUEUES[0], WAITS_MS[0]) for connection in range(1, count + 1)]
    rest = iter([*pulls, Step(then, queue=QUEUES[0] * (then == "arrive"))])
    return lambda order: Step("go", next(iter(order.paused))) if order.paused else next(rest, None)


def burst(kind: Kind, count: int) -> Chooser:
    """Send a waiting pull, then `count` messages in a row, then pulls on its connection until all messages are read."""
    queue = QUEUES[0]

    def choose(order: Schedule) -> Step | None:
        made = Counter(step.kind for step in order.steps)
        if order.paused:
            return Step("go", next(iter(order.paused)))
        if made["pull"] and made[kind] < count:
            return Step(kind, queue=queue)
        is_read = made["pull"] and order.offsets.get((1, queue), 0) >= count
        pull = Step("pull", 1, queue, WAITS_MS[0])
        return pull if not is_read and made["pull"] <= count and order.is_possible(pull) else None

    return choose


def drawn(choices: random.Random, bounds: Bounds) -> Chooser:
    """Choose a random schedule beyond the bounds, with more events and with timeouts of any length."""
    longer = Bounds(
        moves=choices.randint(bounds.moves, bounds.moves * RANDOM_FACTOR),
        pulls=bounds.pulls * RANDOM_FACTOR, arrivals=bounds.arrivals * RANDOM_FACTOR,
        closes=bounds.closes * 2, set_backs=bounds.set_backs * 2,
        queues=min(bounds.queues + 1, len(QUEUES)), connections=min(bounds.connections + 2, 9),
    )  # fmt: skip

    def choose(order: Schedule) -> Step | None:
        wanted = possible(order, longer, longer.moves)
        if not wanted:
            return None
        kind = choices.choice(sorted({step.kind for step in wanted}))
        step = choices.choice([step for step in wanted if step.kind == kind])
        if step.kind != "pull":
            return step
        return Step("pull", step.number, step.queue, choices.choice((1, 7, 999, 1_000, 1_001, *WAITS_MS)))

    return choose
