"""Drives the broker's core beside the law, one of the law's actions at a time, and compares all that can be seen.

The machine draws any action that the law allows, does it in the core (`HoldTable`, `Walk`, virtual time) and in the
law's compiled Python successors, and compares every variable of the law. What lies between critical sections in the
threaded broker (reads, the executor's queue, who is due) is written out here, in the order in which `service` has it.

Not one to one: where a walk is in place the core does take, looks and put-back under one lock hold, so the law's
steps of that walk are taken together; and the core expires all that is late at once.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import ClassVar, Final

import pytest
from attrs import define, field
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from longpoll_broker.core.filter.filters import TagFilter, tag_filter
from longpoll_broker.core.hold import ANSWERED, HELD, MISSED, PULLING, QUEUED, TAKEN, HoldTable, Pull
from longpoll_broker.core.notifier import Walk
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python.compile import Packed, Successors, successors
from longpoll_spec.law import law_of
from longpoll_spec.model import Action, Model
from longpoll_spec.policy import Policy, preset
from longpoll_spec.state import DUE, IDLE, RECHECKING, WALKING

BOUNDS: Final = Bounds("core", requests=3, messages=4, hold_ticks=2, scan_ticks=3)
TOPIC: Final = "T"
KEY: Final = (TOPIC, 0)
STARTS: Final = {"notify_start": "dispatcher", "scan_start": "scanner"}
LOOKS: Final = {"notify_each": "dispatcher", "scan_each": "scanner"}
ENDS: Final = {"notify_end": "dispatcher", "scan_end": "scanner"}


class RaisingFilter(TagFilter, frozen=True):
    """A filter that fails."""

    def matches(self, tags_code: int | None) -> bool:
        """Fail."""
        raise ValueError(f"no filter for {tags_code}")


STOP_CHANCE: Final = 0.05
Actors = tuple[int | str, ...]
Done = tuple[str, Actors]
"""An action of the law by name and actors."""

RAISING: Final = RaisingFilter("*", "TAG", frozenset(), all_tags=True)


@define
class Slot:
    """One consumer: its next offset, its pull, and whether the pull's thread has yet to recheck."""

    offset: int = 0
    pull: Pull | None = None
    open: bool = False
    recheck_due: bool = False


@define
class Core:
    """The broker around the core: what `service` does between critical sections, action by action."""

    policy: Policy
    slots: list[Slot]
    table: HoldTable = field(factory=HoldTable)
    now_ms: int = 0
    next_scan_ms: int = BOUNDS.scan_ticks
    log_end: int = 0
    visible_end: int = 0
    running: bool = True
    counters: dict[str, int] = field(factory=lambda: {"dispatcher": IDLE, "scanner": IDLE})
    walks: dict[str, Walk] = field(factory=dict)
    waiting: dict[str, deque[Pull]] = field(factory=dict)
    """The pulls that a walk will look at, in its order."""
    executor: list[Pull] = field(factory=list)

    def act(self, action: Action) -> list[Done]:
        """Do one action of the law; which further actions of the law were done with it, as (name, actors)."""
        name, actors = action.name, action.actors
        if name in STARTS:
            return self.start(STARTS[name], name)
        if name in LOOKS:
            return self.look(LOOKS[name])
        if name in ENDS:
            return self.end(ENDS[name])
        if name == "recheck" and isinstance(actors[0], str):
            return self.recheck_after_keep(actors[0])
        if name == "notifier_throws":
            assert isinstance(actors[0], str)
            return self.throw(actors[0])
        done: Callable[..., list[Done] | None] = getattr(self, name)
        return done(*actors) or []

    # -- outside the table -------------------------------------------------------------------------------------------

    def append(self) -> None:
        """A message is in the log."""
        self.log_end += 1

    def make_visible(self) -> None:
        """The visible end moves, and the dispatcher is due."""
        self.visible_end += 1
        self.counters["dispatcher"] = DUE

    def tick(self) -> None:
        """One tick is one millisecond."""
        self.now_ms += 1

    def next_pull(self, number: int) -> None:
        """A consumer sends its next pull."""
        slot = self.slots[number]
        slot.open = True
        slot.pull = Pull(number, number, "G", TOPIC, 0, slot.offset, 32, 2, deadline_ms=self.now_ms + BOUNDS.hold_ticks)
        slot.pull.filter = tag_filter("*", None)

    def pull_read(self, number: int) -> None:
        """Read; answer or miss."""
        pull = self.pull(number)
        if pull.offset < self.visible_end:
            self.answer(pull, self.visible_end)
        else:
            pull.phase = MISSED

    def run(self, number: int) -> None:
        """Read again and answer."""
        pull = self.pull(number)
        self.executor.remove(pull)
        self.answer(pull, max(self.visible_end, pull.offset))

    def executor_rejects(self, number: int) -> None:
        """Answer busy."""
        pull = self.pull(number)
        self.executor.remove(pull)
        self.answer(pull, pull.offset)

    # -- the table ---------------------------------------------------------------------------------------------------

    def hold(self, number: int) -> None:
        """Insert, or answer when the broker has stopped."""
        pull = self.pull(number)
        if not self.running:
            self.answer(pull, pull.offset)
            return
        self.table.hold(pull)
        self.slots[number].recheck_due = True

    def recheck(self, number: int) -> None:
        """The recheck after the insert."""
        slot = self.slots[number]
        slot.recheck_due = False
        pull = slot.pull
        if pull is not None and pull.offset < self.visible_end and self.table.recheck(pull):
            self.queue(pull)

    def expire(self, number: int) -> list[Done]:
        """Everything late leaves, the one meant among it."""
        late = self.table.expire(self.now_ms)
        for pull in late:
            self.queue(pull)
        assert self.pull(number) in late
        return [("expire", (pull.opaque,)) for pull in late if pull.opaque != number]

    def stop(self) -> None:
        """Answer what is held."""
        self.running = False
        for pull in self.table.drain():
            self.answer(pull, pull.offset)

    # -- the notifiers -----------------------------------------------------------------------------------------------

    def start(self, who: str, action: str) -> list[Done]:
        """Take the bucket; in place the whole walk."""
        if who == "scanner" and self.counters[who] == IDLE:
            self.next_scan_ms = self.now_ms + BOUNDS.scan_ticks
        if self.policy.empty_shortcut and not self.table.has(KEY):
            self.counters[who] = IDLE
            return []
        bucket = [slot.pull for slot in self.slots if slot.pull is not None and slot.pull.phase is HELD]
        walk = Walk(self.policy, self.table, KEY, self.visible_end, None, self.now_ms, lambda: self.visible_end)
        taken = walk.start()
        if self.policy.take == "in_place":
            while walk.unseen:
                wake = walk.each()
                assert wake is not None
                self.queue(wake.pull)
            walk.end()
            self.counters[who] = IDLE
            prefix = action.removesuffix("start")
            return [*((f"{prefix}each", (pull.opaque,)) for pull in bucket), (f"{prefix}end", ())]
        self.walks[who], self.waiting[who] = walk, deque(taken)
        self.counters[who] = WALKING
        return []

    def look(self, who: str) -> list[Done]:
        """Look at the next pull."""
        pull = self.waiting[who].popleft()
        wake = self.walks[who].each()
        if wake is not None:
            assert wake.pull is pull
            assert self.table.queue_taken(pull)
            self.queue(pull)
        return []

    def throw(self, who: str) -> list[Done]:
        """Whoever is next in the walk has something to read and a filter that fails."""
        pull = self.waiting[who].popleft()
        pull.filter = RAISING
        walk = self.walks[who]
        walk.visible_end = pull.offset + 1
        wake = walk.each()
        walk.visible_end = self.visible_end
        assert wake is not None
        assert wake.cause == "thrown"
        assert self.table.queue_taken(pull)
        self.answer(pull, pull.offset)
        return []

    def end(self, who: str) -> list[Done]:
        """Put the rest back."""
        kept = self.walks.pop(who).end()
        self.counters[who] = RECHECKING if self.policy.recheck_after_keep else IDLE
        if not self.running:
            for pull in self.table.drain():
                assert pull in kept
                self.answer(pull, pull.offset)
        return []

    def recheck_after_keep(self, who: str) -> list[Done]:
        """The law walks again for what is behind; the core takes it out at once, so here only whether there is any."""
        held = [slot.pull for slot in self.slots if slot.pull is not None and slot.pull.phase is HELD]
        self.counters[who] = DUE if any(pull.offset < self.visible_end for pull in held) else IDLE
        return []

    # -- the parts ---------------------------------------------------------------------------------------------------

    def pull(self, number: int) -> Pull:
        """The pull of a slot that has one."""
        pull = self.slots[number].pull
        assert pull is not None
        return pull

    def queue(self, pull: Pull) -> None:
        """Hand a pull to the executor; its own thread has nothing left to recheck then."""
        assert pull.phase is QUEUED
        self.executor.append(pull)
        self.slots[pull.opaque].recheck_due = False

    def answer(self, pull: Pull, offset_next: int) -> None:
        """Answer a pull; once."""
        slot = self.slots[pull.opaque]
        assert slot.open
        assert slot.pull is pull
        pull.phase = ANSWERED
        slot.offset, slot.pull, slot.open, slot.recheck_due = offset_next, None, False, False

    # -- what can be seen --------------------------------------------------------------------------------------------

    def observe(self, model: Model) -> Packed:
        """The core's state in the law's variables."""
        seen = {
            "log_end": self.log_end,
            "visible_end": self.visible_end,
            "running": int(self.running),
            "next_scan": max(self.next_scan_ms - self.now_ms, 0) if self.running else 0,
            **self.counters,
        }
        for number, slot in enumerate(self.slots):
            pull = slot.pull
            seen[f"phase_{number}"] = model.state.phases[self.phase_label(pull)]
            seen[f"offset_{number}"] = slot.offset
            seen[f"deadline_{number}"] = 0 if pull is None else max(pull.deadline_ms - self.now_ms, 0)
            seen[f"copies_{number}"] = sum(pull is each for each in self.executor)
            seen[f"open_{number}"] = int(slot.open)
            seen[f"recheck_due_{number}"] = int(slot.recheck_due)
        return tuple(seen[variable.name] for variable in model.variables)

    def phase_label(self, pull: Pull | None) -> str:
        """The law's word for where a pull is."""
        if pull is None:
            return "idle"
        if pull.phase is TAKEN:
            for who, waiting in self.waiting.items():
                if pull in waiting:
                    return f"taken_by_{who}"
            return next(f"kept_by_{who}" for who, walk in self.walks.items() if pull in walk._kept)
        return {PULLING: "pulling", MISSED: "missed", HELD: "held", QUEUED: "queued"}[pull.phase]


@define
class SideBySide:
    """The core and the law of one policy, in the same state."""

    model: Model
    successors: Successors
    state: Packed = field(init=False)
    core: Core = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.state = self.model.initial
        self.core = Core(self.model.policy, [Slot() for _ in range(BOUNDS.requests)])

    def enabled(self) -> list[tuple[Action, Packed]]:
        """What both can do now, each with the law's state after it."""
        found = ((self.model.actions[index], after) for index, after in self.successors(self.state))
        return [(action, after) for action, after in found if self.can_do(action)]

    def can_do(self, action: Action) -> bool:
        """A walk of the core looks at its pulls in order, and in place it is one lock hold."""
        if action.name not in LOOKS and action.name != "notifier_throws":
            return True
        waiting = self.core.waiting.get(LOOKS.get(action.name) or str(action.actors[0]))
        return bool(waiting) and waiting is not None and waiting[0].opaque == action.actors[-1]

    def act(self, action: Action, after: Packed) -> None:
        """Do one action in both and compare every variable."""
        self.state = after
        for name, actors in self.core.act(action):
            self.state = self.law_step(name, actors)
        assert self.show(self.core.observe(self.model)) == self.show(self.state), f"after {action.label}"
        self.core.table.assert_tidy()

    def law_step(self, name: str, actors: Actors) -> Packed:
        """The law's state after an action that the core did together with another; the law must allow it."""
        for index, after in self.successors(self.state):
            if (self.model.actions[index].name, self.model.actions[index].actors) == (name, actors):
                return after
        raise AssertionError(f"the core did {name}{actors}, which the law does not allow here")

    def show(self, state: Packed) -> dict[str, str]:
        """A state with names and words, for the failure text."""
        return {v.name: v.show(value) for v, value in zip(self.model.variables, state, strict=True)}


class CoreMachine(RuleBasedStateMachine):
    """The core and the law side by side."""

    acted: ClassVar[int] = 0

    def make(self) -> SideBySide:
        """The pair; `run_machine` says of which policy."""
        raise AssertionError("run this machine by run_machine, which says of which policy")

    @initialize()
    def begin(self) -> None:
        """Both start empty."""
        self.pair = self.make()

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """Do one action that the law allows now, in both, and compare."""
        enabled = self.pair.enabled()
        if not enabled:
            return
        # The name first: there are as many instances of a pull's actions as slots, and one append.
        names = list(dict.fromkeys(action.name for action, _after in enabled))
        name = data.draw(st.sampled_from(names), label="action")
        instances = [each for each in enabled if each[0].name == name]
        self.pair.act(*instances[data.draw(st.integers(0, len(instances) - 1), label="instance")])
        type(self).acted += 1


def run_machine(policy_name: str, *, planted: bool = False) -> int:
    """Run the machine under a policy; how many actions were compared."""
    model = law_of(preset(policy_name), BOUNDS)
    law = successors(model)

    class Machine(CoreMachine):
        def make(self) -> SideBySide:
            return SideBySide(model, law)

    Machine.acted = 0

    profile = settings.get_profile(settings.get_current_profile_name())
    steps = max(60, profile.stateful_step_count)
    chosen = settings(profile, stateful_step_count=steps)
    if planted:
        # The first red example ends it, so many are cheap; shrinking it would only take time.
        chosen = settings(chosen, phases=(Phase.explicit, Phase.generate), max_examples=3000)
    run_state_machine_as_test(Machine, settings=chosen)
    return Machine.acted


@pytest.mark.parametrize("policy_name", ["strict", "strict-clone"])
def test_the_core_does_what_the_law_says(policy_name: str) -> None:
    """Every variable of the law is equal after every action."""
    assert run_machine(policy_name) > 500


@pytest.mark.parametrize("policy_name", ["strict", "strict-clone"])
def test_a_long_walk_meets_every_action(policy_name: str) -> None:
    """So the machine above is not vacuous: each of the law's actions is done in the core, many times over."""
    model = law_of(preset(policy_name), BOUNDS)
    law = successors(model)
    seed = 7
    draw = random.Random(seed)
    fired: Counter[str] = Counter()
    for _ in range(200):
        pair = SideBySide(model, law)
        for _ in range(100):
            enabled = pair.enabled()
            if not enabled:
                break
            # The stop ends a run, so it comes late.
            wanted = [each for each in enabled if each[0].name != "stop" or draw.random() < STOP_CHANCE]
            action, after = draw.choice(wanted or enabled)
            fired[action.name] += 1
            pair.act(action, after)
    in_one_lock_hold = {*LOOKS, *ENDS, "notifier_throws"} if model.policy.take == "in_place" else set()
    expected = {action.name for action in model.actions} - in_one_lock_hold
    assert set(fired) == expected, f"seed {seed}: {expected ^ set(fired)}"
    assert min(fired.values()) >= 10, f"seed {seed}: {fired}"


def test_planted_a_recheck_that_never_removes_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recheck removed: a pull stays held that the law has queued."""
    monkeypatch.setattr(HoldTable, "recheck", lambda _table, _pull: False)
    with pytest.raises(AssertionError, match="recheck"):
        run_machine("strict", planted=True)


def test_planted_a_deadline_that_never_fires_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap forgotten: the law expires a pull that the core keeps."""
    monkeypatch.setattr(HoldTable, "expire", lambda _table, _now_ms: [])
    with pytest.raises(AssertionError):
        run_machine("strict", planted=True)


def test_planted_a_walk_that_forgets_what_it_keeps_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """The put-back left out."""
    monkeypatch.setattr(HoldTable, "keep", lambda _table, _pulls: [])
    with pytest.raises((AssertionError, StopIteration)):
        run_machine("strict-clone", planted=True)
