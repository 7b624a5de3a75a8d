"""Try every order up to a bound, the shortest first, then random orders; reduce what fails.

To play an order: reset, its moves, and an end at which everything owed is due. The moves that continue a paused
message are not counted. In a *plain* order a message that stops at a scheduling point continues at once; in an
*interleaved* one other moves may come first. Names are assigned in the order of first use, so no two orders differ
only in names.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

import msgspec
from attrs import asdict, define, field, frozen

from longpoll_dojo.errors import ProgramError, TokenError, ViolationError
from longpoll_dojo.model import LARGE_SIZE, Allowances, At, Kind, Message, Model, Reply, Step, without


class Partner(Protocol):
    """Answers messages: a `program.Program`, or a fake in a test."""

    def turn(self, message: bytes) -> list[Reply]:
        """Send it a message, and read until its turn has ended. Raises ProgramError."""
        ...


@frozen
class Turn:
    """A message and the program's output; the message is None for a move that sends nothing."""

    message: Message | None
    replies: tuple[Reply, ...] = ()

    def heard(self) -> tuple[str, ...]:
        """The output in a canonical order: answers of one turn may come in any order."""
        return tuple(sorted(map(repr, self.replies)))


@define(eq=False)
class Schedule:
    """An order in progress. Invariant: `moves` lead from the reset to the state of `world`; `turns` are its turns."""

    partner: Partner
    allowances: Allowances
    world: Model = field(init=False)
    moves: list[Step] = field(factory=list)
    turns: list[Turn] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.world = Model(self.allowances)

    def begin(self) -> None:
        """Reset the program. Raises ViolationError."""
        self._had({"type": "reset", "id": 0, "now_ms": 0, "wall_ms": self.world.wall_ms})

    def make(self, move: Step) -> None:
        """Make a move. Raises ViolationError, and TokenError if it is impossible."""
        message = self.world.message_of(move)
        self.moves.append(move)
        if message is None:
            self.turns.append(Turn(None))
        else:
            self._had(message)

    def finish(self) -> None:
        """Continue all paused messages, and tick until everything owed is due. Raises ViolationError."""
        self._let_go()
        for moment_ms in self.world.last_ticks_ms():
            self._had(self.world.tick_at(moment_ms))
            self._let_go()

    def _let_go(self) -> None:
        while self.world.paused:
            message = self.world.message_of(Step("go", message_id=next(iter(self.world.paused))))
            assert message is not None
            self._had(message)

    def _had(self, message: Message) -> None:
        try:
            replies = self.partner.turn(msgspec.json.encode(message))
            self.turns.append(Turn(message, tuple(replies)))
            self.world.take(replies)
        except ProgramError as error:
            if not self.turns or self.turns[-1].message is not message:
                self.turns.append(Turn(message))
            raise ViolationError("speaks_the_protocol", str(error)) from None


@frozen
class Played:
    """An order that was played to its end, or to a violation."""

    moves: tuple[Step, ...]
    turns: tuple[Turn, ...]
    violation: ViolationError | None

    def is_alike(self, other: Played) -> bool:
        """Whether the program behaved the same in both."""
        return [turn.heard() for turn in self.turns] == [turn.heard() for turn in other.turns]


Chooser = Callable[[Schedule], Step | None]
"""Chooses the next move; None ends the order."""


def play(partner: Partner, allowances: Allowances, choose: Chooser) -> Played:
    """Play the chosen order. Raises TokenError for impossible moves."""
    order = Schedule(partner, allowances)
    try:
        order.begin()
        while (move := choose(order)) is not None:
            order.make(move)
        order.finish()
    except ViolationError as error:
        return Played(tuple(order.moves), tuple(order.turns), error)
    return Played(tuple(order.moves), tuple(order.turns), None)


def given(moves: Sequence[Step]) -> Chooser:
    """Choose exactly these moves."""
    rest = iter(moves)
    return lambda _order: next(rest, None)


WAITS_MS: Final = (2_070, 1_530, 640, 2_950)
"""The timeouts of the first, second, ... pull of an order: not round, and a later pull may be due sooner."""
QUEUES: Final = "abcdefghi"
ODD_WAITS_MS: Final = (1, 7, 999, 1_000, 1_001, 3_600_000)
"""Timeouts that may be rounded wrongly, or taken for none; in orders of up to two moves."""
LARGE_COUNT: Final = 24
# No tick fits between a pull and its deadline of 1 ms, so `tick_before` is first.
EXTREME_KINDS: Final[tuple[Kind | None, ...]] = ("tick_before", None, "arrive", "arrive_late", "tick")
BURSTS: Final = (16, 150, 300)
"""How many messages arrive in a row, before the full burst."""
FRESH_ORDERS: Final = 3
"""Exhaustive orders that are played again by fresh processes."""
RANDOM_FACTOR: Final = 4
"""How many times as much of everything a random order may have."""
Name = TypeVar("Name")


class Driven(Partner, Protocol):
    """A partner for a search, with its error output."""

    def complaint(self) -> str:
        """The end of its standard error."""
        ...


Start = Callable[[], AbstractContextManager[Driven]]
Told = Callable[[str], None]
ODD: Final = ViolationError(
    "forgets_at_reset", "it answers differently than in another schedule with the same beginning"
)


@frozen
class Bounds:
    """Bounds of an order."""

    moves: int = 5
    """Moves of plain orders."""
    interleaved: int = 3
    """Moves of interleaved ones."""
    pulls: int = 3
    arrivals: int = 2
    closes: int = 1
    set_backs: int = 1
    queues: int = 2
    connections: int = 2
    burst: int = 1_100
    """Messages that arrive in a row, once."""

    def as_json(self) -> dict[str, int]:
        """The bounds for other tools."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.pulls} pulls, {self.arrivals} messages, {self.closes} closes, "
            f"{self.set_backs} steps of the wall clock, {self.queues} queues, {self.connections} connections; "
            f"alone, waits of {ODD_WAITS_MS[0]} to {ODD_WAITS_MS[-1]:,} ms, {self.burst:,} messages in a row, and "
            f"{LARGE_COUNT} of {LARGE_SIZE:,} letters"
        )


@frozen
class Finding:
    """A violation, in the smallest order that shows it."""

    played: Played
    violation: ViolationError
    complaint: str = ""
    """The end of the program's standard error."""


@define(eq=False)
class Search:
    """The search so far; it stays valid when Ctrl-C interrupts the search.

    Invariant: `plain` and `interleaved` have an entry for each completed number of moves.
    """

    bounds: Bounds
    allowances: Allowances
    plain: dict[int, int] = field(factory=dict)
    """Number of moves -> the number of all orders of that length."""
    interleaved: dict[int, int] = field(factory=dict)
    """The same; empty if the program has no scheduling points."""
    played: int = 0
    """All orders, including those of an incomplete number of moves."""
    drawn: int = 0
    turns: int = 0
    step_points: Counter[str] = field(factory=Counter)
    is_whole: bool = False
    """Whether every order up to the bound was played."""
    finding: Finding | None = None
    told: Told = lambda _text: None
    _kept: dict[int, Played] = field(factory=dict)

    def run(self, start: Start, *, seed: int | None, seconds: float) -> None:
        """Search until a violation is found or all orders are done. Raises StartError."""
        with start() as partner:
            broken = self._every(partner) or self._extreme(partner)
            if broken is None:
                broken = self._drawn(partner, start, seed, seconds)
        if broken is not None:
            self.finding = confirmed(broken, start, self.allowances)
            return
        self.finding = self._unlike_fresh(start)

    # -- every order -------------------------------------------------------------------------------------------------

    def _every(self, partner: Partner) -> Played | None:
        for moves in range(1, max(self.bounds.moves, self.bounds.interleaved) + 1):
            if moves <= self.bounds.moves and (broken := self._level(partner, moves, self.plain, plain=True)):
                return broken
            if moves > self.bounds.interleaved or (moves <= self.bounds.moves and not self.step_points):
                continue
            if broken := self._level(partner, moves, self.interleaved, plain=False):
                return broken
        self.is_whole = True
        return None

    def _level(self, partner: Partner, moves: int, counts: dict[int, int], *, plain: bool) -> Played | None:
        found = 0
        for played in orders(partner, self.bounds, self.allowances, moves, plain=plain):
            self.count(played)
            if played.violation is not None:
                return played
            found += sum(move.kind != "go" for move in played.moves) == moves
            self._kept[self.played % FRESH_ORDERS] = played
        counts[moves] = found
        return None

    # -- extremes ----------------------------------------------------------------------------------------------------

    def _extreme(self, partner: Partner) -> Played | None:
        """Odd timeouts, and more messages than a table may have room for; returns the fewest that break it."""
        for wait_ms in ODD_WAITS_MS:
            for kind in EXTREME_KINDS[wait_ms == 1 :]:
                moves = [Step("pull", 1, QUEUES[0], wait_ms), *([Step(kind, queue=QUEUES[0])] if kind else [])]
                if (played := self._once(partner, given(moves))).violation is not None:
                    return played
        counts = sorted({count for count in BURSTS if count < self.bounds.burst} | {self.bounds.burst})
        return self._burst(partner, "arrive", counts) or self._burst(partner, "arrive_large", [LARGE_COUNT])

    def _burst(self, partner: Partner, kind: Kind, counts: Sequence[int]) -> Played | None:
        right = 0
        for count in counts:
            broken = self._once(partner, burst(kind, count))
            if broken.violation is None:
                right = count
                continue
            while right + 1 < count:
                middle = (right + count) // 2
                played = self._once(partner, burst(kind, middle))
                if played.violation is None:
                    right = middle
                else:
                    count, broken = middle, played  # noqa: PLW2901 - the search for the smallest goes on below it
            return broken
        return None

    def _once(self, partner: Partner, choose: Chooser) -> Played:
        played = play(partner, self.allowances, choose)
        self.count(played)
        return played

    def count(self, played: Played) -> None:
        """Count a played order."""
        self.played += 1
        self.turns += len(played.turns)
        self.told(f"{self.played:,} orders, now with {max(self.plain, default=0) + 1} moves")
        for turn in played.turns:
            if turn.replies and isinstance(turn.replies[-1], At):
                self.step_points[turn.replies[-1].at] += 1

    # -- orders that are drawn ---------------------------------------------------------------------------------------

    def _drawn(self, partner: Partner, start: Start, seed: int | None, seconds: float) -> Played | None:
        if seed is None:
            return None
        until_s = time.monotonic() + seconds
        for number in itertools.count(seed):
            if time.monotonic() >= until_s and self.drawn:
                return None
            played = play(partner, self.allowances, drawn(random.Random(number), self.bounds))
            self.count(played)
            self.drawn += 1
            if played.violation is not None:
                return smaller(played, start, self.allowances)
        return None

    # -- whether a reset is a new beginning --------------------------------------------------------------------------

    def _unlike_fresh(self, start: Start) -> Finding | None:
        for played in self._kept.values():
            with start() as partner:
                fresh = play(partner, self.allowances, given(played.moves))
            if not fresh.is_alike(played):
                return _unlike(played, fresh, start, self.allowances)
        return None


def confirmed(broken: Played, start: Start, allowances: Allowances) -> Finding:
    """Play a violating order with a fresh process: it must fail too, or the program does not reset."""
    assert broken.violation is not None
    with start() as partner:
        fresh = play(partner, allowances, given(broken.moves))
        complaint = partner.complaint()
    if fresh.violation is not None:
        return Finding(fresh, fresh.violation, complaint)
    return _unlike(broken, fresh, start, allowances)


def replayed(moves: Sequence[Step], start: Start, allowances: Allowances, search: Search) -> Finding | None:
    """Play one order again, and once more after a reset. Raises TokenError if it cannot be played."""
    with start() as partner:
        played = play(partner, allowances, given(moves))
        complaint = partner.complaint()
    search.count(played)
    if played.violation is not None:
        return Finding(played, played.violation, complaint)
    return second_time(moves, start, allowances)


def _unlike(played: Played, fresh: Played, start: Start, allowances: Allowances) -> Finding:
    """A fresh process behaved differently: because of an incomplete reset, or because it is not deterministic."""
    with start() as partner:
        again = play(partner, allowances, given(played.moves))
        complaint = partner.complaint()
    if not again.is_alike(fresh):
        what = f"two new processes answer the same schedule differently: {first_difference(again, fresh)}"
        return Finding(again, ViolationError("same_again", what), complaint)
    remembering = twice(again, start, allowances)
    if remembering is None:
        what = "after other schedules it answers differently than a new process; this schedule alone does not show it"
        return Finding(played, ViolationError("forgets_at_reset", f"{what}: {first_difference(played, fresh)}"))
    return remembering


def twice(fresh: Played, start: Start, allowances: Allowances) -> Finding | None:
    """Play an order again after a reset, without the moves that are not needed for a difference."""
    found = None
    place = len(fresh.moves)
    while place >= 0:
        moves = fresh.moves if place == len(fresh.moves) else without(fresh.moves, place)
        less = second_time(moves, start, allowances)
        if less is not None:
            found, fresh = less, less.played
            place = len(fresh.moves)
        elif found is None:
            return None
        place -= 1
    return found


def second_time(moves: Sequence[Step], start: Start, allowances: Allowances) -> Finding | None:
    """The difference when a program plays an order, is reset, and plays it again; None if there is none."""
    with start() as partner:
        first = _tried(moves, partner, allowances)
        second = _tried(moves, partner, allowances) if first is not None else None
        if first is None or second is None or second.is_alike(first):
            return None
        what = f"run twice with a reset in between: {first_difference(first, second)}"
        return Finding(second, ViolationError("forgets_at_reset", what), partner.complaint())


def first_difference(one: Played, other: Played) -> str:
    """Where two plays of one order differ first."""
    for mine, theirs in itertools.zip_longest(one.turns, other.turns):
        if mine is None or theirs is None:
            return "one of them ends sooner"
        if mine.heard() != theirs.heard():
            number = mine.message["id"] if mine.message else "?"
            one_wrote, other_wrote = (" ".join(turn.heard()) or "nothing" for turn in (mine, theirs))
            return f"to message {number} one wrote {one_wrote}, the other {other_wrote}"
    return "in what came before"


def orders(partner: Partner, bounds: Bounds, allowances: Allowances, moves: int, *, plain: bool) -> Iterator[Played]:
    """Each order of a length, depth first; a violating one is included as the last.

    A program that behaves differently for the same prefix breaks `forgets_at_reset`, or else `same_again`.
    """
    path: list[tuple[list[Step], int]] = []
    before: Played | None = None
    while True:
        try:
            played = play(partner, allowances, _walk(path, bounds, moves, plain=plain))
        except TokenError:  # what it paused at before it does not pause at now
            assert before is not None
            played = Played(before.moves, before.turns, ODD)
        if played.violation is None and before is not None and _is_odd(before, played):
            played = Played(played.moves, played.turns, ODD)
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
    """Whether a move that two orders share, or the reset before them, was answered differently."""
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before.moves, played.moves, strict=False))
    shared = 1 + sum(1 for _ in alike)
    pairs = zip(before.turns[:shared], played.turns[:shared], strict=False)
    return any(one.heard() != other.heard() for one, other in pairs)


def _walk(path: list[tuple[list[Step], int]], bounds: Bounds, moves: int, *, plain: bool) -> Chooser:
    """Follow the path, then take the first choice and record the others."""
    depth = itertools.count()

    def choose(order: Schedule) -> Step | None:
        place = next(depth)
        if place < len(path):
            choices, at = path[place]
            return choices[at]
        choices = possible(order.world, order.moves, bounds, moves, plain=plain)
        if not choices:
            return None
        path.append((choices, 0))
        return choices[0]

    return choose


def possible(world: Model, made: Sequence[Step], bounds: Bounds, moves: int, *, plain: bool = False) -> list[Step]:
    """The possible next moves in an order with a given number of moves."""
    choices = [Step("go", message_id=number) for number in world.paused]
    if plain and choices:
        return choices[:1]
    counts = Counter[str](move.kind for move in made)
    if sum(counts.values()) - counts["go"] >= moves:
        return choices
    wanted = list(_wanted(world, made, counts, bounds))
    return choices + [move for move in wanted if world.is_possible(move)]


def _wanted(world: Model, made: Sequence[Step], counts: Mapping[str, int], bounds: Bounds) -> Iterator[Step]:
    queues = _names(QUEUES[: bounds.queues], (move.queue for move in made if move.queue))
    if counts["pull"] < bounds.pulls:
        used = (move.connection for move in made if move.connection)
        wait_ms = WAITS_MS[counts["pull"] % len(WAITS_MS)]
        for connection in _names(range(1, bounds.connections + 1), used):
            yield from (Step("pull", connection, queue, wait_ms) for queue in queues)
    if counts["arrive"] + counts["arrive_late"] < bounds.arrivals:
        yield from (Step("arrive", queue=queue) for queue in queues)
        yield from (Step("arrive_late", queue=queue) for queue in queues)
    yield from (Step("tick_before"), Step("tick"))
    if counts["close"] < bounds.closes:
        yield from (
            Step("close", connection) for connection in sorted({pull.connection for pull in world.pulls.values()})
        )
    if counts["set_back"] < bounds.set_backs and any(pull.is_open for pull in world.pulls.values()):
        yield Step("set_back")


def _names(known: Sequence[Name], used: Iterable[Name]) -> list[Name]:
    """The names in use, and the first unused one."""
    return list(known[: len(set(used)) + 1])


def burst(kind: Kind, count: int) -> Chooser:
    """A waiting pull, `count` messages in a row, and pulls on the same connection until all are read."""
    queue = QUEUES[0]

    def choose(order: Schedule) -> Step | None:
        world, made = order.world, Counter(move.kind for move in order.moves)
        if world.paused:
            return Step("go", message_id=next(iter(world.paused)))
        if made["pull"] and made[kind] < count:
            return Step(kind, queue=queue)
        is_read = made["pull"] and world.offsets.get((1, queue), 0) >= count
        pull = Step("pull", 1, queue, WAITS_MS[0])
        return pull if not is_read and made["pull"] <= count and world.is_possible(pull) else None

    return choose


def drawn(choices: random.Random, bounds: Bounds) -> Chooser:
    """A random order beyond the bound: more of everything, timeouts of any length."""
    longer = Bounds(
        moves=choices.randint(bounds.moves, bounds.moves * RANDOM_FACTOR),
        pulls=bounds.pulls * RANDOM_FACTOR, arrivals=bounds.arrivals * RANDOM_FACTOR,
        closes=bounds.closes * 2, set_backs=bounds.set_backs * 2,
        queues=min(bounds.queues + 1, len(QUEUES)), connections=min(bounds.connections + 2, 9),
    )  # fmt: skip

    def choose(order: Schedule) -> Step | None:
        wanted = possible(order.world, order.moves, longer, longer.moves)
        if not wanted:
            return None
        kind = choices.choice(sorted({move.kind for move in wanted}))
        move = choices.choice([move for move in wanted if move.kind == kind])
        if move.kind != "pull":
            return move
        return Step("pull", move.connection, move.queue, choices.choice((1, 7, 999, 1_000, 1_001, *WAITS_MS)))

    return choose


def smaller(broken: Played, start: Start, allowances: Allowances) -> Played:
    """The same violation in fewer moves: removes moves until none can be removed.

    Each attempt has a fresh process, because a failed one may not answer any more.
    """
    assert broken.violation is not None
    prop = broken.violation.property
    place = len(broken.moves) - 1
    while place >= 0:
        with start() as partner:
            found = _tried(without(broken.moves, place), partner, allowances)
        if found is not None and found.violation is not None and found.violation.property == prop:
            broken, place = found, len(found.moves)
        place -= 1
    return broken


def _tried(moves: Sequence[Step], partner: Partner, allowances: Allowances) -> Played | None:
    try:
        return play(partner, allowances, given(moves))
    except TokenError:
        return None
