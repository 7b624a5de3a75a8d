"""Runs the hold table's real threads under a controlled scheduler and compares each step with the specification.

Consumers, a dispatcher, a scanner and an executor use the real `HoldService`, `BucketTraversal` and `HoldTable`. The
scheduler runs one thread at a time, up to the thread's next scheduling point. The specification's variables, read from
the table and the threads, must then match a state that this thread's own actions can reach, possibly with no action.
The code is coarser than the specification in an in-place bucket traversal, and where a traversal skips an empty bucket
without a step.

On request, the executor may become full and empty again, the broker may stop, and a notifier's read may throw.
`refinement` chooses the schedules. Messages are in `MemoryQueues`, the minimum that these threads need of a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import ANSWERED, HELD, MISSED, PULLING, QUEUED, TAKEN, Pull
from longpoll_broker.hold.notifier import BucketTraversal
from longpoll_broker.hold.pull import Found, look
from longpoll_broker.io.channel import Outbox
from longpoll_broker.shared.filters import TagFilter
from longpoll_broker.shared.sql92 import Lookup
from longpoll_broker.store.messages import ALL, GetResult, GetStatus, Matches
from longpoll_broker.store.selection import nothing
from longpoll_simulation.sync import SimulatedLock
from longpoll_simulation.world import NEVER, Actor, Strategy, World
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, Successors
from longpoll_spec.model import Action, Model
from longpoll_spec.state import DUE, IDLE, RECHECKING, WALKING
from longpoll_spec.tables import with_table

Key = tuple[str, int]


@frozen
class Message:
    """A message of a simulated run."""

    tags_code: int = 0
    properties: Mapping[str, str] = field(factory=dict)


@define(slots=True, eq=False)
class MemoryQueues:
    """Queues in memory. Invariant: the visible messages of queue `key` are from `start[key]` up to `visible[key]`."""

    messages: dict[Key, list[Message]] = field(factory=dict)
    visible: dict[Key, int] = field(factory=dict)
    start: dict[Key, int] = field(factory=dict)
    failing: set[Key] = field(factory=set)
    """Queues whose reads fail."""

    log_start: Final = 0

    def append(self, key: Key, message: Message | None = None) -> None:
        """Append a message to the log; it is not visible yet."""
        self.messages.setdefault(key, []).append(message or Message())

    def make_visible(self, key: Key) -> int:
        """Make the next appended message visible; returns the end of the visible messages."""
        end = self.visible.get(key, 0) + 1
        assert end <= len(self.messages[key])
        self.visible[key] = end
        return end

    def visible_end(self, topic: str, queue_id: int) -> int:
        """Return the end of the queue's visible messages; raises OSError if the queue cannot be read."""
        if (topic, queue_id) in self.failing:
            raise OSError(f"queue {queue_id} of {topic} cannot be read")
        return self.visible.get((topic, queue_id), 0)

    def properties_at(self, topic: str, queue_id: int, offset: int) -> Lookup | None:
        """Return the properties of one visible message."""
        if not self.start.get((topic, queue_id), 0) <= offset < self.visible_end(topic, queue_id):
            return None
        return self.messages[topic, queue_id][offset].properties.get

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """Read visible messages from an offset on, with the statuses of the real store."""
        start, end = self.start.get((topic, queue_id), 0), self.visible_end(topic, queue_id)
        if end == 0:
            return nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, start, end)
        if offset < start:
            return nothing(GetStatus.OFFSET_TOO_SMALL, start, start, end)
        if offset >= end:
            is_next = offset == end
            status = GetStatus.OFFSET_OVERFLOW_ONE if is_next else GetStatus.OFFSET_OVERFLOW_BADLY
            return nothing(status, end, start, end)
        tags, by_properties = matches
        found: list[int] = []
        offset_next = offset
        for message in self.messages[topic, queue_id][offset:end]:
            if len(found) == count_max:
                break
            wanted = tags is None or tags(message.tags_code)
            if wanted and (by_properties is None or by_properties.matches_properties(message.properties.get)):
                found.append(offset_next)
            offset_next += 1
        status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, offset_next, start, end, [], found, 0, False)


TOPIC: Final = "T"
KEY: Final = (TOPIC, 0)
MS: Final = 1_000_000
STEPS_MAX: Final = 9
"""Maximum steps of the specification between two scheduling points: an in-place traversal of a whole bucket."""

Move = tuple[str, int]
"""A step of the schedule: its kind, and the number of its request or actor."""
NOTIFIERS: Final = ("dispatcher", "scanner")
OF_ACTOR: Final = {
    "dispatcher": {"make_visible", "notify_start", "notify_each", "notify_end", "recheck"},
    "scanner": {"scan_start", "scan_each", "scan_end", "recheck"},
    "pull": {"pull_read", "hold", "recheck"},
}
"""Maps each actor (thread) to its actions in the specification."""
OWN_STEPS: Final = {"append", "next_pull", "expire", "run", "stop", "throw"}
"""Kinds of moves that are each exactly one step of the specification."""
POSITION: Final = {"start": DUE, "each": WALKING, "end": WALKING}


def can_go(actor: Actor) -> bool:
    """Whether an actor can run, because it does not wait for a lock."""
    return getattr(actor.waits_for, "owner", None) is None


class InjectedError(LookupError):
    """An injected fault: a notifier's check raises this error when the schedule requests it."""


@with_table
class FaultyFilter(TagFilter, frozen=True):
    """A filter that accepts everything, and raises InjectedError on request."""

    world: Any

    def matches(self, _tags_code: int | None) -> bool:
        """Accept every tag, or raise InjectedError."""
        self.world.may_throw()
        return True


@define(eq=False)
class FaultyQueues(MemoryQueues):
    """Queues that raise InjectedError on request when their end is read."""

    world: Any = None

    def visible_end(self, topic: str, queue_id: int) -> int:
        """Return the end of the queue's visible messages, or raise InjectedError."""
        self.world.may_throw()
        return super().visible_end(topic, queue_id)


@define(eq=False)
class Slot:
    """The state of a consumer: its next offset and its pull."""

    offset: int = 0
    pull: Pull | None = None
    thread: str = ""
    """The actor that serves the pull."""
    dropped: bool = False
    """Whether a full executor dropped the pull, so that its consumer waits forever."""


@define(eq=False)
class Lockstep:
    """A run of the hold service next to the specification. Invariant: between two moves, their states match."""

    model: Model
    law: Successors
    rejects: bool = False
    """Whether the executor may become full."""
    full: bool = False
    faults: bool = False
    """Whether the broker may stop, and a notifier's check may raise InjectedError."""
    running: bool = True
    throws: bool = False
    """Whether the next check raises InjectedError."""
    wanted: FaultyFilter = field(init=False)
    """The subscription of every pull."""
    scheduler: World = field(factory=lambda: World(Strategy(), step_ns=0, now_ns=0, ask_at=NEVER))
    actors: dict[str, Actor] = field(factory=dict)
    """The actors that have not ended, by name."""
    queues: FaultyQueues = field(init=False)
    executor: list[Pull] = field(factory=list)
    walks: dict[str, BucketTraversal] = field(factory=dict)
    held_by: dict[Pull, str] = field(factory=dict)
    """Maps each pull to the action that last put the pull into the table."""
    done: Counter[str] = field(factory=Counter)
    """How often each action of the specification was taken so far."""
    spawned: int = 0
    next_scan_ms: int = 0
    state: Packed = ()
    service: HoldService = field(init=False)
    slots: list[Slot] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.queues = FaultyQueues(world=self)
        self.wanted = FaultyFilter("a", "TAG", frozenset(), all_tags=False, world=self)
        self.service = HoldService(
            self,  # type: ignore[arg-type]
            self.model.policy,
            self.queues,
            self,
            refuse=self.refuse,
            held_count_max=100,
            # One queue lives in one shard, and further shards would only cost time.
            shard_count=1,
        )
        make = self.service._new_traversal

        def noted(*place: Any) -> BucketTraversal:
            walk = make(*place)
            current = self.scheduler.current
            assert current is not None
            self.walks[current.name] = walk
            return walk

        self.service._new_traversal = noted  # type: ignore[method-assign,assignment]
        self.slots = [Slot() for _ in range(self.bounds.requests)]
        self.next_scan_ms = self.bounds.scan_ticks
        self.state = self.model.initial

    @property
    def bounds(self) -> Bounds:
        """The bounds of the model."""
        return self.model.bounds

    # -- what a hold table asks of a runtime: locks, a clock and scheduling points -----------------------------------

    def lock(self) -> SimulatedLock:
        """Create a lock."""
        return SimulatedLock(self.scheduler)

    def monotonic_ns(self) -> int:
        """Return the virtual time, ns."""
        return self.scheduler.now_ns

    @property
    def now_ms(self) -> int:
        """The virtual time, ms. One tick of the specification is a millisecond."""
        return self.scheduler.now_ns // MS

    def step(self, action: str) -> None:
        """Wait at a scheduling point until the actor's next move."""
        self.scheduler.pause(action)

    def go(self, name: str) -> None:
        """Run an actor up to its next scheduling point. Raises the errors of the actor."""
        actor = self.actors[name]
        assert can_go(actor)
        self.scheduler.go(actor)
        if actor.done:
            del self.actors[name]

    def may_throw(self) -> None:
        """Raise InjectedError if the schedule has requested it."""
        if self.throws:
            raise InjectedError("a look throws")

    # -- work of the threads ---------------------------------------------------------------------------------------

    def serve(self, number: int) -> None:
        """Serve a consumer's pull: read the queue, then answer or hold the pull."""
        slot = self.slots[number]
        pull = slot.pull
        assert pull is not None
        self.step("pull_read")
        decision = look(pull, self.wanted, self.queues)
        if isinstance(decision, Found):
            self.answer(pull, decision.read.offset_next)
        else:
            pull.phase = MISSED
            pull.filter = self.wanted
            self.service.hold(pull, Outbox())

    def dispatch(self) -> None:
        """Make one message visible, then notify. If a traversal raises InjectedError, the dispatcher notifies again."""
        self.step("make_visible")
        end = self.queues.make_visible(KEY)
        told = False
        while not told:
            with suppress(InjectedError):
                self.service.notify(KEY, end, 0, Outbox())
                told = True

    def scan(self) -> None:
        """Run one round of the scanner."""
        self.service.scan(Outbox())

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:
        """Add a pull that left the table to the executor; returns false and drops the pull if the executor is full."""
        assert pull.phase is QUEUED, cause
        assert pull not in self.executor, "queued twice"
        if self.full:
            self.slots[self.slot_of(pull)].dropped = True
            return False
        self.executor.append(pull)
        return True

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Submit all pulls that one message woke. Returns the pulls that the executor does not accept."""
        return [pull for pull in pulls if not self.submit(pull, "woken", outbox)]

    def refuse(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        """Answer that a pull found nothing, so that its consumer pulls again from the same offset."""
        assert cause == "busy" or self.faults
        slot = self.slots[self.slot_of(pull)]
        slot.dropped = False
        self.answer(pull, slot.offset)

    def answer(self, pull: Pull, offset_next: int) -> None:
        """Answer a pull, which must not have an answer yet."""
        slot = next(slot for slot in self.slots if slot.pull is pull)
        assert pull.phase is not ANSWERED
        pull.phase = ANSWERED
        slot.offset, slot.pull = offset_next, None

    # -- moves -------------------------------------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """Return the possible moves: those that bounds and time allow, and every actor that can run."""
        stale = self.stale()
        if stale is not None:
            return [("go", self.number_of(stale))]
        allowed = {(action.name, action.actors) for action, _after in self.successors(self.state)}
        names = {name for name, _actors in allowed}
        found: list[Move] = [(name, -1) for name in ("append", "tick") if name in names]
        found += [("next_pull", slot) for slot in range(len(self.slots)) if ("next_pull", (slot,)) in allowed]
        if "dispatcher" not in self.actors and "make_visible" in names:
            found.append(("dispatch", -1))
        if "scanner" not in self.actors and "scan_start" in names:
            found.append(("scan", -1))
        if "expire" in names:
            found.append(("expire", -1))
        found += [("run", self.slot_of(pull)) for pull in self.executor]
        if self.faults:
            found += self.faulty_moves(allowed)
        if self.rejects:
            found.append(("empty" if self.full else "fill", -1))
        return found + [("go", self.number_of(name)) for name, actor in self.actors.items() if can_go(actor)]

    def faulty_moves(self, allowed: set[tuple[str, tuple[Any, ...]]]) -> list[Move]:
        """Return the possible fault moves: the stop, once all notifiers have ended, and an error in the next check."""
        actors = self.actors
        found: list[Move] = []
        if ("stop", ()) in allowed and not any(name in actors for name in NOTIFIERS):
            found.append(("stop", -1))
        for name in NOTIFIERS:
            walk = self.walks.get(name)
            looks = name in actors and (actors[name].at or "").endswith("_each") and can_go(actors[name])
            next_seen = walk._waiting[0] if walk is not None and looks and walk._waiting else None
            if next_seen is not None and ("notifier_throws", (name, self.slot_of(next_seen))) in allowed:
                found.append(("throw", self.number_of(name)))
        return found

    def do(self, move: Move) -> None:
        """Make one move and the matching steps of the specification; raises AssertionError if none match."""
        kind, number = move
        before = self.state
        if kind == "go":
            name = list(self.actors)[number]
            self.go(name)
            own: set[str] = OF_ACTOR[name.partition(" ")[0]]
        elif kind == "throw":
            self.throws = True
            self.go(list(self.actors)[number])
            self.throws = False
            own = {"notifier_throws"}
        elif kind in {"dispatch", "scan"}:
            own = self.begin("dispatcher" if kind == "dispatch" else "scanner")
        else:
            own = {kind}
            getattr(self, f"do_{kind}")(number)
        self.follow(move, own | {"executor_rejects"} if self.rejects else own)
        assert kind not in OWN_STEPS or self.state != before, (
            f"{move} does nothing, but the specification has a step for it"
        )
        for slot in self.slots:
            pull = slot.pull
            if pull is not None and pull.phase is HELD:
                self.held_by.setdefault(pull, "by hold")
            elif pull is not None and pull.phase is TAKEN:
                self.held_by[pull] = "by keep"
        self.service.assert_tidy(settled=not any(walk.unsettled for walk in self.walks.values()))

    def begin(self, name: str) -> set[str]:
        """Start a notifier, and run it to its first scheduling point; returns its actions in the specification."""
        if name == "scanner":
            self.next_scan_ms = self.now_ms + self.bounds.scan_ticks
        self.actors[name] = self.scheduler.spawn(name, self.dispatch if name == "dispatcher" else self.scan)
        self.go(name)
        if name in self.actors:
            self.go(name)
        return OF_ACTOR[name]

    def do_append(self, _number: int) -> None:
        """Append a message to the log."""
        self.queues.append(KEY)

    def do_tick(self, _number: int) -> None:
        """Advance the time by one tick, which is one millisecond."""
        self.scheduler.now_ns += MS

    def do_next_pull(self, number: int) -> None:
        """Let a consumer pull, and run the pull's thread up to its read."""
        slot = self.slots[number]
        deadline_ms = self.now_ms + self.bounds.hold_ticks
        slot.pull = Pull(number, self.spawned, "G", TOPIC, 0, slot.offset, 32, 2, deadline_ms=deadline_ms)
        slot.thread = f"pull {self.spawned}"
        self.spawned += 1
        self.actors[slot.thread] = self.scheduler.spawn(slot.thread, lambda: self.serve(number))
        self.go(slot.thread)

    def do_stop(self, _number: int) -> None:
        """Stop the broker, which answers held pulls."""
        self.running = False
        self.service.stop(Outbox())

    def do_expire(self, _number: int) -> None:
        """Let the clock's thread release all pulls that are past their deadline."""
        self.service.wait_s()
        self.service.run(Outbox())

    def do_fill(self, _number: int) -> None:
        """Let the executor reject every pull from now on. This move is not a step of the specification."""
        self.full = True

    def do_empty(self, _number: int) -> None:
        """Let the executor accept pulls again."""
        self.full = False

    def do_run(self, number: int) -> None:
        """Let the executor read the queue again for a pull, and answer it."""
        pull = self.slots[number].pull
        assert pull is not None
        self.executor.remove(pull)
        decision = look(pull, self.wanted, self.queues)
        self.answer(pull, decision.read.offset_next)

    def stale(self) -> str | None:
        """Return a pull's thread that will do nothing at its recheck, because the pull has left the table; or None."""
        serving = {slot.thread for slot in self.slots if slot.pull is not None and slot.pull.phase in {HELD, TAKEN}}
        for name, actor in self.actors.items():
            if actor.at == "recheck" and name.startswith("pull") and name not in serving:
                return name
        return None

    def number_of(self, name: str) -> int:
        """Return an actor's number in schedules."""
        return list(self.actors).index(name)

    def slot_of(self, pull: Pull) -> int:
        """Return the number of a pull's slot."""
        return next(number for number, slot in enumerate(self.slots) if slot.pull is pull)

    # -- the specification -------------------------------------------------------------------------------------------

    def successors(self, state: Packed) -> Iterator[tuple[Action, Packed]]:
        """Return the specification's next states, with the actions that lead to them."""
        return ((self.model.actions[index], after) for index, after in self.law(state))

    def follow(self, move: Move, own: set[str]) -> None:
        """Advance the specification to the observed state, by steps of the actor's own actions."""
        seen = self.observe()
        reached: dict[Packed, tuple[str, ...]] = {self.state: ()}
        edge = [self.state]
        for _ in range(STEPS_MAX):
            if seen in reached:
                self.state = seen
                self.done.update(reached[seen])
                return
            steps = [
                (after, (*reached[state], action.name)) for state in edge for action, after in self.own(state, own)
            ]
            edge = [after for after, _names in steps if after not in reached]
            reached = dict(steps) | reached
        before, after = self.show(self.state), self.show(seen)
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        raise AssertionError(f"{move} is not a step of the specification: {changed} from {before}")

    def own(self, state: Packed, names: set[str]) -> Iterator[tuple[Action, Packed]]:
        """Return the specification's next states by the named actions."""
        return ((action, after) for action, after in self.successors(state) if action.name in names)

    def observe(self) -> Packed:
        """Return the state of the run as values of the specification's variables."""
        seen = {
            "log_end": len(self.queues.messages.get(KEY, ())),
            "visible_end": self.queues.visible_end(*KEY),
            "running": int(self.running),
            "next_scan": max(self.next_scan_ms - self.now_ms, 0) if self.running else 0,
            "dispatcher": self.counter("dispatcher"),
            "scanner": self.counter("scanner"),
        }
        for number, slot in enumerate(self.slots):
            pull = None if slot.dropped or self.is_lost(slot.pull) else slot.pull
            seen[f"phase_{number}"] = self.model.state.phases[self.phase_of(pull)]
            seen[f"offset_{number}"] = slot.offset
            seen[f"deadline_{number}"] = 0 if pull is None else max(pull.deadline_ms - self.now_ms, 0)
            seen[f"copies_{number}"] = int(pull is not None and pull.phase is QUEUED)
            seen[f"open_{number}"] = int(slot.pull is not None)
            seen[f"recheck_due_{number}"] = int(self.rechecks(slot))
        return tuple(seen[variable.name] for variable in self.model.variables)

    def counter(self, name: str) -> int:
        """Return a notifier's program counter, from its scheduling point."""
        actor = self.actors.get(name)
        if actor is None or actor.at in {None, "make_visible"}:
            return IDLE
        assert actor.at is not None
        if actor.at == "recheck":
            return RECHECKING
        # With "in_place", the whole traversal is one critical section, so the traversal is over and only woken pulls
        # are left.
        walked = self.model.policy.take == "in_place" and not actor.at.endswith("start")
        return IDLE if walked else POSITION[actor.at.rpartition("_")[2]]

    def is_lost(self, pull: Pull | None) -> bool:
        """Whether a traversal that raised InjectedError has dropped a pull that it had taken."""
        return (
            pull is not None
            and pull.phase is TAKEN
            and not any(
                self.counter(name) == WALKING and pull in (*walk._waiting, *walk._kept)
                for name, walk in self.walks.items()
            )
        )

    def phase_of(self, pull: Pull | None) -> str:
        """Return a pull's phase in the specification."""
        if pull is None:
            return "idle"
        if pull.phase is TAKEN:
            walking = [(name, walk) for name, walk in self.walks.items() if self.counter(name) == WALKING]
            name, walk = next((name, walk) for name, walk in walking if pull in (*walk._waiting, *walk._kept))
            return f"kept_by_{name}" if pull in walk._kept else f"taken_by_{name}"
        return {PULLING: "pulling", MISSED: "missed", HELD: "held", QUEUED: "queued"}[pull.phase]

    def rechecks(self, slot: Slot) -> bool:
        """Whether a pull's thread is before a recheck that it must do."""
        actor = self.actors.get(slot.thread)
        in_table = slot.pull is not None and slot.pull.phase in {HELD, TAKEN}
        return in_table and actor is not None and actor.at == "recheck"

    def show(self, state: Packed) -> dict[str, str]:
        """Return a state as text with variable names, for the message of a failure."""
        return {v.name: v.show(value) for v, value in zip(self.model.variables, state, strict=True)}

    def place(self) -> tuple[object, ...]:
        """Return everything that determines the future: the specification's state, and each actor's position."""
        serves = {slot.thread: f"pull of {number}" for number, slot in enumerate(self.slots)}
        actors = self.actors.items()
        standing = sorted((serves.get(name, name), actor.at or "") for name, actor in actors)
        ways = tuple(self.held_by.get(slot.pull, "") if slot.pull is not None else "" for slot in self.slots)
        # If a broker stopped without an answer, its pulls are late forever.
        late = tuple(min(self.late_ms(slot), self.bounds.scan_ticks) for slot in self.slots)
        return (self.state, tuple(standing), ways, late, self.full)

    def late_ms(self, slot: Slot) -> int:
        """Return how many milliseconds past its deadline a pull still waits in the table or in a list."""
        pull = slot.pull
        if pull is None or pull.phase not in {HELD, TAKEN}:
            return 0
        return max(self.now_ms - pull.deadline_ms, 0)


def remembered(law: Successors) -> Successors:
    """Return a function that caches the specification's next states, because runs reach the same states repeatedly."""
    known: dict[Packed, list[tuple[int, Packed]]] = {}

    def after(state: Packed) -> list[tuple[int, Packed]]:
        found = known.get(state)
        if found is None:
            found = known[state] = list(law(state))
        return found

    return after


@contextmanager
def run(model: Model, law: Successors, *, rejects: bool = False, faults: bool = False) -> Iterator[Lockstep]:
    """Provide a run whose threads end with the `with` block."""
    world = Lockstep(model, law, rejects, faults=faults)
    try:
        yield world
    finally:
        world.scheduler.close()
