"""Converts a run of the specification to a schedule: requests, and the order in which threads leave gates.

A gate is a breakpoint at which a thread asks whether it may continue.

`schedule_of` is a pure function from a trace to moves. `replay` plays the moves, and `exported` writes them as files
that need only Java. `violations` adds the moves that show the violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal, TypeAlias

from attrs import define, evolve, field, frozen

from longpoll_java.byteman_rules import SCAN_MS
from longpoll_java.errors import NotOnJavaError
from longpoll_spec.model import Action, Model, Trace
from longpoll_spec.render.java_breakpoints import Breakpoint

Kind: TypeAlias = Literal[
    "create", "send", "pull", "close", "commit", "offset", "tick", "deadline", "align", "stop",
    "until", "go", "throw", "free",
    "answer", "silent", "gone", "untouched", "look", "visit", "unvisited",
    "acts", "returns", "broke_off", "ordered",
    "pop", "turn", "expired",
]  # fmt: skip
"""The kinds of moves; `docs/java.md` describes each."""

HOLD_MS: Final = 15_000
"""For how many milliseconds a pull may be held if deadlines do not matter, as Java's push consumer requests."""
DISPATCHER: Final = "dispatcher"
SCANNER: Final = "scanner"
OPERATOR: Final = "operator"
"""The actor that notifies a slave of its master's return: the name server's request and the thread that serves it."""
WITNESS: Final = 200
"""The first number of additional consumers, which wait at queues that a traversal should reach. The specification does
not have these consumers."""
FOUND, NOTHING = "found", "nothing"


@frozen
class Move:
    """An action, wait or check of a replay schedule."""

    kind: Kind
    thread: str = ""
    """The thread that the move concerns: `dispatcher`, `scanner`, `operator`, `pull N` or `run N`."""
    gates: tuple[str, ...] = ()
    slot: int = -1
    """The consumer that the move concerns; -1 without a consumer."""
    queue: int = -1
    """The specification's number of the queue that the move concerns; -1 without a queue."""
    number: int = -1
    """An offset, or a number of ticks; -1 without a number."""
    commits: int = -1
    """The offset that a pull commits; -1 without a commit."""
    word: str = ""
    """The required answer: `found` or `nothing`."""

    def __str__(self) -> str:
        words = {"thread": self.thread.replace(" ", ""), "gates": ",".join(self.gates), "word": self.word}
        numbers = {"slot": self.slot, "queue": self.queue, "number": self.number, "commits": self.commits}
        said = {**{name: word for name, word in words.items() if word}, **{n: v for n, v in numbers.items() if v >= 0}}
        return " ".join([self.kind, *(f"{name}={value}" for name, value in said.items())])


@frozen
class Step:
    """One step of the specification, and the moves that make the broker take it."""

    label: str
    moves: tuple[Move, ...]
    open: tuple[bool, ...]
    """For each consumer, whether its pull is unanswered in the specification after the step."""


@frozen
class Schedule:
    """A run of the specification, translated into the moves that make a Java broker follow it."""

    property_name: str
    queues: int
    slots: int
    tick_ms: int
    hold_ms: int
    lmq: bool
    """Whether the queues belong to a light message queue, which the broker must enable."""
    slave: bool
    """Whether the broker is a slave that acts as master, and gets messages from its master."""
    before: tuple[Move, ...]
    """The moves that bring the broker into the specification's first state."""
    steps: tuple[Step, ...]
    after: tuple[Move, ...] = ()
    """The moves that show that the run violated its property."""
    pops: bool = False
    """Whether the consumers pop instead of pulling."""


IMPOSSIBLE: Final[Mapping[str, str]] = {
    "recheck": "no shipped broker rechecks: this is upstream's pull request #7359, which was never merged",
    "walk_start": "no shipped broker rechecks: the traversal is upstream's pull request #7359, which was never merged",
    "expire": "no shipped broker watches individual deadlines",
    "trim": "a broker deletes whole files, once they are days old",
    "truncate": "a broker truncates a queue only during recovery, before it serves clients",
    "queue_deleted": "pulls of a deleted topic are rejected, and replay does not create the topic again",
    "flush": "replay cannot cut the power: data that a killed process wrote to a mapped file is not lost",
    "crash_and_recover": "replay cannot cut the power: data that a killed process wrote to a mapped file is not lost",
    "role_change": "replay starts no controller, which would make a slave master",
}
"""Maps each action that no replay schedule can contain to the reason."""


def schedule_of(trace: Trace, gates: Sequence[Breakpoint], scan_ms: int = SCAN_MS) -> Schedule:
    """Return the moves that make a broker with these gates and this scan period follow a run. Raises NotOnJavaError."""
    _refuse(trace, {gate.name for gate in gates})
    model = trace.model
    labels = [step.action.name for step in trace.steps if step.action is not None]
    first_pull = labels.index("next_pull") if "next_pull" in labels else len(labels)
    # Ticks before the first pull only cause the scan. Without later ticks, deadlines are far away, because a slow
    # machine would miss near ones.
    by_time = "tick" in labels[first_pull:] or trace.property_name in TIMED
    bounds = model.bounds
    tick_ms = scan_ms // bounds.scan_ticks
    maker = _Maker(trace, frozenset(gate.name for gate in gates))
    return Schedule(
        trace.property_name,
        len(model.state.queues),
        len(model.state.requests),
        tick_ms,
        bounds.hold_ticks * tick_ms if by_time else HOLD_MS,
        lmq=model.policy.name == "rocketmq-lmq",
        slave=bounds.has("role"),
        before=_before(trace),
        steps=tuple(maker.steps()),
    )


LATE: Final = frozenset({"queued_by_deadline", "answered_by_deadline"})
"""Properties that a scan violates by coming late after a deadline, so the scan must keep its own period."""
TIMED: Final = frozenset({"dropped_by_reject", "dropped_by_throw", "nothing_dropped", "no_orphan", "closed_is_let_go"})
"""Properties whose violation becomes visible when a deadline passes."""


def _refuse(trace: Trace, gates: AbstractSet[str]) -> None:
    for number, step in enumerate(trace.steps):
        name = step.action.name if step.action is not None else ""
        why = IMPOSSIBLE.get(name)
        if name == "master_returns" and "return" not in gates:
            why = "a slave of this version is not notified: it only copies from its master again"
        if name == "return_look" and trace.property_name == "told_of_master_return":
            why = "replay has no gate at which a traversal skips a bucket"
        if step.action is not None and why is not None:
            raise NotOnJavaError(f"step {number} of the run is {step.action.label}, and {why}")
    if trace.model.bounds.filters:
        raise NotOnJavaError("this run has tags or filters, which replay does not support; use a run without them")


def _before(trace: Trace) -> tuple[Move, ...]:
    """Return the moves before the run, which end with a wait for a scan.

    The moves create the topic, and a bucket for each queue that is scanned while it is empty.
    """
    held: set[int] = set()
    primed: list[int] = []
    queues = [queue.name for queue in trace.model.state.queues]
    for before, step in zip(trace.steps, trace.steps[1:], strict=False):
        action = step.action
        assert action is not None
        if action.name in {"find_bucket", "hold"}:
            held.add(value_of(trace.model, before.state, f"queue_{action.actors[0]}", 0))
        elif action.name in {"scan_start", "scan_throws"}:
            queue = _queue(action, queues)
            # A queue that a round must skip has to be in the table too.
            wanted = range(len(queues)) if action.name == "scan_throws" else (queue,)
            primed += [each for each in wanted if each not in held and each not in primed]
        elif action.name == "master_returns":
            # Every queue must be in the traversed table, in an order that a scan shows.
            primed += [each for each in range(len(queues)) if each not in primed]
    moves = [Move("create", number=len(queues))]
    if trace.model.bounds.has("role"):
        moves.append(Move("acts"))
    if primed:
        moves += [Move("pull", slot=100 + each, queue=each, number=0, word="prime") for each in sorted(primed)]
        moves += [Move("answer", slot=100 + each, word=NOTHING) for each in sorted(primed)]
    moves += [Move("ordered"), *_witnesses(trace)]
    if trace.property_name in LATE:
        moves.append(Move("align"))
    return tuple(moves)


def _witnesses(trace: Trace) -> Iterator[Move]:
    """Return the moves that make an additional consumer wait at each queue that an aborted traversal will not reach."""
    if trace.property_name == "return_is_whole":
        for number in _not_taken(trace):
            yield Move("pull", slot=WITNESS + number, queue=number, number=0)
            yield Move("until", f"pull {WITNESS + number}", ("held",), slot=WITNESS + number)


def _not_taken(trace: Trace) -> list[int]:
    names = [queue.name for queue in trace.model.state.queues]
    taken = [step.action.actors for step in trace.steps if step.action and step.action.name == "return_take"]
    return [number for number, name in enumerate(names) if not any(name in actors for actors in taken)]


def witnesses_of(trace: Trace) -> list[int]:
    """Return the additional consumers that wait at queues that the run's traversal should reach."""
    return [move.slot for move in _witnesses(trace) if move.kind == "pull"]


def value_of(model: Model, state: Sequence[int], name: str, otherwise: int) -> int:
    """Return the value of a variable in a state, or `otherwise` if the model has no such variable."""
    for variable, value in zip(model.variables, state, strict=True):
        if variable.name == name:
            return value
    return otherwise


def _queue(action: Action, queues: Sequence[str]) -> int:
    named = [queues.index(each) for each in action.actors if each in queues]
    return named[0] if named else 0


WALKED: Final = ("each", "submit", "keep", "done")
"""The breakpoints that a traversal may reach next, after it has checked a request."""


@define
class _Maker:
    """Derives the moves of one trace, step by step."""

    trace: Trace
    gates: frozenset[str]
    at: int = 0
    submitting: dict[int, str] = field(factory=dict)
    """Maps each request to the traversing thread that is about to pass the request to the executor."""

    def steps(self) -> Iterator[Step]:
        model = self.trace.model
        for number in range(1, len(self.trace.steps)):
            self.at = number
            action = self.action
            moves = tuple(_MAKERS[action.name](self, action))
            still = tuple(bool(self.after(f"open_{each.index}")) for each in model.state.requests)
            yield Step(action.label, moves, still)

    @property
    def action(self) -> Action:
        action = self.trace.steps[self.at].action
        assert action is not None
        return action

    def before(self, name: str, otherwise: int = 0) -> int:
        """Return a variable's value before the current step, or `otherwise` if the model has no such variable."""
        return value_of(self.trace.model, self.trace.steps[self.at - 1].state, name, otherwise)

    def after(self, name: str, otherwise: int = 0) -> int:
        """Return a variable's value after the current step, or `otherwise` if the model has no such variable."""
        return value_of(self.trace.model, self.trace.steps[self.at].state, name, otherwise)

    def phase(self, request: int) -> str:
        name = f"phase_{request}"
        labels = next(each.labels for each in self.trace.model.variables if each.name == name)
        return labels[self.after(name)]

    def queue(self, action: Action) -> int:
        return _queue(action, [queue.name for queue in self.trace.model.state.queues])

    def is_refused_later(self, request: int) -> bool:
        """Whether the executor will reject this request in the current state."""
        for step in self.trace.steps[self.at + 1 :]:
            action = step.action
            if action is not None and action.actors == (request,) and action.name in {"run", "executor_rejects"}:
                return action.name == "executor_rejects"
        return False

    def append(self, action: Action) -> Iterator[Move]:
        yield Move("send", queue=self._shown_as(action))

    def _shown_as(self, action: Action) -> int:
        """Return the queue to which the run's next message is sent.

        The dispatcher follows the order of the log, so the n-th message sent must be the n-th that becomes visible.
        """
        sent = [each.action for each in self.trace.steps[1:] if each.action and each.action.name == "append"]
        shown = [each.action for each in self.trace.steps[1:] if each.action and each.action.name == "make_visible"]
        number = sum(1 for each in self.trace.steps[1 : self.at] if each.action and each.action.name == "append")
        left = [self.queue(each) for each in sent]
        order = []
        for each in shown:
            order.append(self.queue(each))
            left.remove(self.queue(each))
        return (order + left)[number] if sent else self.queue(action)

    def next_pull(self, action: Action) -> Iterator[Move]:
        request = int(action.actors[0])
        commits = self.after(f"carried_{request}", -1)
        yield Move(
            "pull",
            slot=request,
            queue=self.after(f"queue_{request}", 0) if len(self.trace.model.state.queues) > 1 else 0,
            number=self.after(f"offset_{request}"),
            commits=commits,
        )
        yield Move("until", f"pull {request}", ("read",))

    def pull_read(self, action: Action) -> Iterator[Move]:
        request = int(action.actors[0])
        thread = f"pull {request}"
        yield Move("go", thread, ("read",))
        if self.phase(request) == "missed":
            yield Move("until", thread, ("hold",))
            return
        if "commit" in self.gates and self.after(f"carried_{request}", -1) >= 0:
            yield Move("until", thread, ("commit",))
            yield Move("go", thread, ("commit",))
        yield from self.answered(request)

    def answered(self, request: int) -> Iterator[Move]:
        """Wait for the answer, unless the client has closed its connection."""
        if self.before(f"closed_{request}"):
            return
        is_found = self.after(f"offset_{request}") > self.before(f"offset_{request}")
        yield Move("answer", slot=request, word=FOUND if is_found else NOTHING)

    def find_bucket(self, action: Action) -> Iterator[Move]:
        thread = f"pull {action.actors[0]}"
        yield Move("go", thread, ("hold",))
        yield Move("until", thread, ("put",))

    def hold(self, action: Action) -> Iterator[Move]:
        thread = f"pull {action.actors[0]}"
        yield Move("go", thread, ("hold",))
        yield Move("until", thread, ("put",))
        yield Move("go", thread, ("put",))
        yield Move("until", thread, ("held",))
        if "commit" in self.gates and self.after(f"carried_{action.actors[0]}", -1) >= 0:
            yield Move("until", thread, ("commit",))

    def commit_pulled(self, action: Action) -> Iterator[Move]:
        thread = f"pull {action.actors[0]}"
        yield Move("go", thread, ("commit",))
        yield Move("until", thread, ("served",))

    def make_visible(self, action: Action) -> Iterator[Move]:
        queue = self.queue(action)
        yield Move("go", DISPATCHER, ("done",))
        yield Move("until", DISPATCHER, ("dispatch",), queue=queue)
        yield Move("go", DISPATCHER, ("dispatch",))
        yield Move("until", DISPATCHER, ("notify",), queue=queue)

    def notify_start(self, _action: Action) -> Iterator[Move]:
        yield Move("go", DISPATCHER, ("notify",))
        # Without a bucket, the notifier takes nothing and is done at once.
        yield Move("until", DISPATCHER, ("taken", "done"))

    def scan_start(self, action: Action) -> Iterator[Move]:
        yield from self._scanner_at(self.queue(action))
        yield Move("go", SCANNER, ("queue",))
        yield Move("until", SCANNER, ("taken", "done"))

    def _scanner_at(self, queue: int) -> Iterator[Move]:
        """Return the moves that bring the scanner to a queue, at the start of a round or within a round."""
        yield Move("go", SCANNER, ("done",))
        yield Move("until", SCANNER, ("round", "queue"))
        yield Move("go", SCANNER, ("round",))
        yield Move("until", SCANNER, ("queue",), queue=queue)

    def look(self, action: Action) -> Iterator[Move]:
        thread = DISPATCHER if action.name == "notify_each" else SCANNER
        request = int(action.actors[0])
        yield from self._looking(thread, request)
        yield Move("go", thread, ("each",))
        if self.phase(request) == "queued":
            yield Move("until", thread, ("submit",), slot=request)
            if self.is_refused_later(request):
                self.submitting[request] = thread
                return
            yield Move("go", thread, ("submit",))
        yield Move("until", thread, WALKED)

    def _looking(self, thread: str, request: int) -> Iterator[Move]:
        yield Move("go", thread, ("taken",))
        yield Move("until", thread, ("each",), slot=request)

    def end(self, action: Action) -> Iterator[Move]:
        thread = DISPATCHER if action.name == "notify_end" else SCANNER
        yield Move("go", thread, ("taken", "keep"))
        yield Move("until", thread, ("done",))
        yield Move("go", thread, ("done",))

    def master_returns(self, _action: Action) -> Iterator[Move]:
        yield Move("returns")
        yield Move("until", OPERATOR, ("return",))

    def return_look(self, action: Action) -> Iterator[Move]:
        # An empty bucket is skipped between two breakpoints, so there is no move.
        if not self.after(f"return_due_q{self.queue(action)}"):
            return
        yield Move("go", OPERATOR, ("return",))
        yield Move("until", OPERATOR, ("take",), queue=self.queue(action))

    def return_take(self, _action: Action) -> Iterator[Move]:
        yield Move("go", OPERATOR, ("take",))
        woken = [
            each.index
            for each in self.trace.model.state.requests
            if self.phase(each.index) == "queued" and self.changed(f"phase_{each.index}")
        ]
        for _ in woken:
            yield Move("until", OPERATOR, ("submit",))
            yield Move("go", OPERATOR, ("submit",))

    def changed(self, name: str) -> bool:
        return self.before(name) != self.after(name)

    def run(self, action: Action) -> Iterator[Move]:
        request = int(action.actors[0])
        thread = f"run {request}"
        yield Move("until", thread, ("read",))
        yield Move("go", thread, ("read",))
        yield Move("until", thread, ("served",))
        if self.before(f"open_{request}") and not self.after(f"open_{request}"):
            yield from self.answered(request)

    def executor_rejects(self, action: Action) -> Iterator[Move]:
        thread = self.submitting.pop(int(action.actors[0]))
        yield Move("throw", thread, ("submit",))
        yield Move("until", thread, WALKED)

    def notifier_throws(self, action: Action) -> Iterator[Move]:
        thread = str(action.actors[0])
        yield from self._looking(thread, int(action.actors[1]))
        yield Move("throw", thread, ("each",))
        if thread == DISPATCHER:
            # The dispatcher dispatches the same message again.
            yield Move("until", DISPATCHER, ("dispatch",))
            yield Move("go", DISPATCHER, ("dispatch",))
            yield Move("until", DISPATCHER, ("notify",))

    def scan_throws(self, action: Action) -> Iterator[Move]:
        yield from self._scanner_at(self.queue(action))
        yield Move("throw", SCANNER, ("queue",))

    def sweep(self, _action: Action) -> Iterator[Move]:
        yield Move("until", SCANNER, ("sweep",))
        yield Move("go", SCANNER, ("sweep",))
        yield Move("until", SCANNER, ("remove",))

    def remove_bucket(self, _action: Action) -> Iterator[Move]:
        yield Move("go", SCANNER, ("remove",))
        yield Move("until", SCANNER, ("rounded",))

    def offset_commit(self, action: Action) -> Iterator[Move]:
        request = int(action.actors[0])
        offset = self.after(f"committed_{request}")
        yield Move("commit", slot=request, number=offset)
        yield Move("offset", slot=request, number=offset)

    def offset_reset(self, action: Action) -> Iterator[Move]:
        """Commit the older offset, as `mqadmin resetOffsetByTime` does if no consumer is connected."""
        yield from self.offset_commit(action)

    def channel_closes(self, action: Action) -> Iterator[Move]:
        yield Move("close", slot=int(action.actors[0]))

    def tick(self, _action: Action) -> Iterator[Move]:
        yield Move("tick", number=1)
        if not self.after("next_scan") and not self.after("scanner") and self.after("running"):
            yield Move("go", SCANNER, ("done",))
            yield Move("until", SCANNER, ("round", "queue"))

    def stop(self, _action: Action) -> Iterator[Move]:
        yield Move("stop")


_MAKERS: Final[Mapping[str, Callable[[_Maker, Action], Iterator[Move]]]] = {
    "append": _Maker.append,
    "make_visible": _Maker.make_visible,
    "next_pull": _Maker.next_pull,
    "pull_read": _Maker.pull_read,
    "find_bucket": _Maker.find_bucket,
    "hold": _Maker.hold,
    "commit_pulled": _Maker.commit_pulled,
    "notify_start": _Maker.notify_start,
    "notify_each": _Maker.look,
    "notify_end": _Maker.end,
    "scan_start": _Maker.scan_start,
    "scan_each": _Maker.look,
    "scan_end": _Maker.end,
    "scan_throws": _Maker.scan_throws,
    "sweep": _Maker.sweep,
    "remove_bucket": _Maker.remove_bucket,
    "master_returns": _Maker.master_returns,
    "return_look": _Maker.return_look,
    "return_take": _Maker.return_take,
    "run": _Maker.run,
    "executor_rejects": _Maker.executor_rejects,
    "notifier_throws": _Maker.notifier_throws,
    "offset_commit": _Maker.offset_commit,
    "offset_reset": _Maker.offset_reset,
    "channel_closes": _Maker.channel_closes,
    "tick": _Maker.tick,
    "stop": _Maker.stop,
}


def with_after(schedule: Schedule, moves: Sequence[Move]) -> Schedule:
    """Return the schedule with additional moves that show the violation."""
    return evolve(schedule, after=tuple(moves))
