"""The variables of the state: their class, and functions that list those of a policy under bounds.

First come the variables that belong to no request (queues, notifiers, scan), then the variables of each request slot. A
variable that does not exist under the policy and bounds is a constant term.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import Policy
from longpoll_spec.state.parts import (
    COPIES_MAX,
    DUE,
    IDLE,
    NOTIFIER_LABELS,
    RECHECKING,
    REMOVING,
    ROLE_NEWS,
    SWEEPING,
    Notifier,
    Phases,
    Queue,
    Request,
    may_orphan,
    notifiers_of,
    tags_of,
    wishes_of,
)
from longpoll_spec.terms import FALSE, Bool, Int, Term, bool_variable, const, int_variable, parameter, truth


@frozen
class Variable:
    """One state variable, with its range and first value.

    Both ends are inclusive, and an unbounded variable has no upper end.
    """

    name: str
    lower: int
    upper: int | None
    initial: int
    sentence: str
    truth: bool = False
    """Whether the variable is a truth value, which is 0 or 1 in every engine."""
    labels: tuple[str, ...] = ()
    """The name of each value, if the values are not quantities."""
    limit: Int | None = None
    """The parameter whose value is the upper end; None if the upper end is fixed. A proof that leaves the parameter
    open leaves the upper end open."""
    numbers_queues: bool = False
    """Whether the value is the number of a queue (or the count of queues for none), which a renaming of queues changes.
    """

    @property
    def term(self) -> Term:
        """The variable as a term."""
        return bool_variable(self.name) if self.truth else int_variable(self.name)

    @property
    def greatest(self) -> Int | None:
        """The upper end as a term; None if the variable is unbounded."""
        if self.upper is None:
            return None
        return const(self.upper) if self.limit is None else self.limit

    @property
    def first(self) -> Term:
        """The first value as a term, which is the parameter `limit` if the variable starts at its upper end."""
        if self.truth:
            return truth(bool(self.initial))
        return self.limit if self.limit is not None and self.initial == self.upper else const(self.initial)

    def show(self, value: int) -> str:
        """The value as text for readers."""
        if self.truth:
            return "yes" if value else "no"
        return self.labels[value] if self.labels else str(value)


@frozen
class Declared:
    """The variables that a specification file declares under one name: one variable for each choice of participants.

    `each[request]` or `each[request, queue]` is the term of one such variable. The name of a variable has all numbers,
    as in `watched_q0_1`.
    """

    name: str
    sentence: str
    who: tuple[str, ...]
    """The kinds of participants: `queue`, `request`, both in this order, or neither."""
    truth: bool = False
    greatest: int | None = 1
    """The upper end; None for the number of messages."""
    initial: int = 0
    labels: tuple[str, ...] = ()

    def __getitem__(self, participants: Any) -> Any:
        given = participants if isinstance(participants, tuple) else (participants,)
        numbers = {getattr(each, "kind", ""): getattr(each, "index", None) for each in given}
        if set(numbers) != set(self.who) or len(given) != len(self.who):
            raise TypeError(f"{self.name} needs one {' and one '.join(self.who)} in brackets")
        return self.term(numbered(self.name, numbers.get("queue"), numbers.get("request")))

    def term(self, name: str) -> Term:
        """The variable of this name as a term."""
        return bool_variable(name) if self.truth else int_variable(name)

    def variables(self, bounds: Bounds, slot: int | None = None) -> Iterator[Variable]:
        """The variables that belong to the request with index `slot`, or for None those that belong to no request."""
        if ("request" in self.who) is (slot is None):
            return
        upper = bounds.messages if self.greatest is None else self.greatest
        for queue in range(bounds.queues) if "queue" in self.who else (None,):
            name = numbered(self.name, queue, slot)
            yield Variable(name, 0, upper, self.initial, self.sentence, self.truth, self.labels)


def numbered(name: str, queue: int | None = None, request: int | None = None) -> str:
    """The name of a declared variable, such as `watched_q0_1`."""
    return name + ("" if queue is None else f"_q{queue}") + ("" if request is None else f"_{request}")


def flag(name: str, sentence: str, *, initial: bool = False) -> Variable:
    """A truth-valued variable."""
    return Variable(name, 0, 1, int(initial), sentence, truth=True)


def queue_number(name: str, bounds: Bounds, sentence: str) -> Variable:
    """A variable whose value is the number of a queue, or at first the value for "no queue"."""
    labels = (*(f"q{index}" for index in range(bounds.queues)), "none")
    return Variable(name, 0, bounds.queues, bounds.queues, sentence, labels=labels, numbers_queues=True)


def of_queue(name: str, index: int, bounds: Bounds) -> str:
    """The name of a queue's variable, such as `log_end_q0`; without a number if there is one queue."""
    return f"{name}_q{index}" if bounds.queues > 1 else name


def hold_ticks_of(bounds: Bounds) -> Int:
    """The hold time of a pull, in ticks, as a parameter, which a proof may leave open."""
    return parameter("hold_ticks", bounds.hold_ticks)


def scan_ticks_of(bounds: Bounds) -> Int:
    """The period of the scan, in ticks, as a parameter, which a proof may leave open."""
    return parameter("scan_ticks", bounds.scan_ticks)


HELD_LIMIT: Final = parameter("held_limit", 1)
"""The parameter of the feature `limit`: with 1, at most one request is held; with 0, there is no limit."""
REFUSAL_NEEDS: Final = parameter("refusal_needs", 1)
"""The parameter of the feature `capacity`: with 1, the executor rejects a request only while it has another request;
with 0, it may also reject its only request."""
SWITCHES: Final = {"limit": HELD_LIMIT, "capacity": REFUSAL_NEEDS}
"""Maps a feature that only restricts behaviour to its parameter. A proof leaves the parameter open, because a proof
with the restriction would cover fewer brokers."""


def number(variables: Mapping[str, Variable], name: str, otherwise: int = 0) -> Int:
    """The integer variable of this name, or `otherwise` as a constant if it does not exist."""
    if name not in variables:
        return const(otherwise)
    made = variables[name].term
    assert isinstance(made, Int)
    return made


def fact(variables: Mapping[str, Variable], name: str) -> Bool:
    """The truth-valued variable of this name; false if it does not exist."""
    if name not in variables:
        return FALSE
    made = variables[name].term
    assert isinstance(made, Bool)
    return made


THREADS: Final = {
    "dispatcher": "the dispatcher",
    "scanner": "the scanner",
    "rechecker": "a pull's thread",
}


def shared_variables(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    """Every variable that belongs to no request, in the order of the state."""
    own = policy.extension
    declared = [] if own is None else [each for one in own.variables for each in one.variables(bounds)]
    if own is not None and own.is_alone:
        return (*(variable for index in range(bounds.queues) for variable in _core_queue(bounds, index)), *declared)
    next_scan = Variable(
        "next_scan",
        0,
        bounds.scan_ticks,
        bounds.scan_ticks,
        "Ticks left to the next scan.",
        limit=scan_ticks_of(bounds),
    )
    return (
        *(variable for index in range(bounds.queues) for variable in _ends(bounds, index)),
        flag("running", "The broker is not stopping.", initial=True),
        next_scan,
        *_notifiers(policy, bounds),
        *_of_many_queues(policy, bounds),
        *_of_many_tags(policy, bounds),
        *_of_aspects(policy, bounds),
        *declared,
    )


def _core_queue(bounds: Bounds, index: int) -> Sequence[Variable]:
    return (
        _ends(bounds, index)[1],
        flag(of_queue("due", index, bounds), "A message was appended, and no action has handled that yet."),
    )


def _ends(bounds: Bounds, index: int) -> Sequence[Variable]:
    return (
        Variable(
            of_queue("log_end", index, bounds), 0, bounds.messages, 0, "The number of messages appended to the log."
        ),
        Variable(
            of_queue("visible_end", index, bounds),
            0,
            bounds.messages,
            0,
            "The number of messages that pulls can read: the consume queue's end.",
        ),
    )


def _notifiers(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    last = RECHECKING if policy.recheck_after_keep else DUE
    lasts = {"scanner": max(last, _last_of_sweep(policy, bounds))}
    return [
        Variable(
            name,
            0,
            lasts.get(name, last),
            IDLE,
            f"The program counter of {THREADS[name]}.",
            labels=NOTIFIER_LABELS,
        )
        for name in notifiers_of(policy)
    ]


def _of_many_queues(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    if bounds.queues == 1:
        return ()
    return (
        *(
            queue_number(f"{name}_queue", bounds, f"The queue whose bucket {THREADS[name]} is at.")
            for name in notifiers_of(policy)
        ),
        *(
            flag(of_queue("unscanned", index, bounds), "This round of the scan has not visited the queue yet.")
            for index in range(bounds.queues)
        ),
    )


def _of_many_tags(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    if not tells_tag(policy, bounds):
        return ()
    labels = (*(tag.name for tag in tags_of(bounds)), "none")
    none = len(labels) - 1
    sentence = "The tag of the message that the dispatcher announces; none for a traversal without a message."
    return (Variable("announced", 0, none, none, sentence, labels=labels),)


def _last_of_sweep(policy: Policy, bounds: Bounds) -> int:
    if not sweeps(policy, bounds):
        return IDLE
    return REMOVING if may_orphan(policy, bounds) else SWEEPING


def sweeps(policy: Policy, bounds: Bounds) -> bool:
    """Whether the scanner removes empty buckets."""
    return bounds.has("buckets") and policy.bucket_removal != "never"


def walks_on_master_return(policy: Policy, bounds: Bounds) -> bool:
    """Whether the master's return starts a traversal of the buckets."""
    return bounds.has("role") and policy.on_master_return == "look_then_take"


def _of_aspects(policy: Policy, bounds: Bounds) -> Iterator[Variable]:
    queues = range(bounds.queues)
    if bounds.has("buckets"):
        yield from (flag(of_queue("present", each, bounds), "The table has a bucket for the queue.") for each in queues)
    if bounds.has("truncate"):
        for each in queues:
            name = of_queue("visible_start", each, bounds)
            yield Variable(name, 0, bounds.messages, 0, "The queue's first offset; earlier messages are deleted.")
    if bounds.has("crash"):
        for each in queues:
            name = of_queue("flushed_end", each, bounds)
            yield Variable(name, 0, bounds.messages, 0, "The number of messages on disk.")
    if bounds.has("role"):
        yield flag("changed", "The broker's master is back, or the broker has become master itself.")
        if policy.slave == "reads_only" or policy.after_return == "redirect":
            yield flag("is_master", "The broker has become master.")
    if walks_on_master_return(policy, bounds):
        sentence = "The traversal after the master's return has not visited the queue's bucket yet."
        yield from (flag(of_queue("return_due", each, bounds), sentence) for each in queues)
        yield queue_number("return_queue", bounds, "The queue whose bucket that traversal saw with requests in it.")


def tells_tag(policy: Policy, bounds: Bounds) -> bool:
    """Whether the dispatcher reads the tag of the message that it announces."""
    return bounds.filters and policy.notify_only_if_tag_matches


def queue_of(index: int, bounds: Bounds, variables: Mapping[str, Variable]) -> Queue:
    """The attributes of one queue, as terms over the model's variables."""
    return Queue(
        index=index,
        log_end=number(variables, of_queue("log_end", index, bounds)),
        visible_end=number(variables, of_queue("visible_end", index, bounds)),
        visible_start=number(variables, of_queue("visible_start", index, bounds)),
        flushed_end=number(variables, of_queue("flushed_end", index, bounds)),
        unscanned=fact(variables, of_queue("unscanned", index, bounds)),
        present=fact(variables, of_queue("present", index, bounds)),
        return_due=fact(variables, of_queue("return_due", index, bounds)),
        due=fact(variables, of_queue("due", index, bounds)),
    )


def notifier_of(name: str, phases: Phases, variables: Mapping[str, Variable]) -> Notifier:
    """The phase and the queue of one notifier, as terms over the model's variables."""
    return Notifier(name, phases, number(variables, name), number(variables, f"{name}_queue"))


def slot_variables(policy: Policy, bounds: Bounds, phases: Phases, index: int) -> Sequence[Variable]:
    """Every variable of one request slot, in the order of the state."""
    deadline = Variable(
        f"deadline_{index}",
        0,
        bounds.hold_ticks,
        0,
        "Ticks left to the request's deadline.",
        limit=hold_ticks_of(bounds),
    )
    own = policy.extension
    declared = [] if own is None else [each for one in own.variables for each in one.variables(bounds, index)]
    slot = [
        Variable(f"phase_{index}", 0, len(phases.labels) - 1, 0, "Where the request stands.", labels=phases.labels),
        Variable(f"offset_{index}", 0, bounds.messages, 0, "The next offset that the consumer reads."),
        deadline,
        Variable(f"copies_{index}", 0, COPIES_MAX, 0, "How often the request is in the executor."),
        flag(f"open_{index}", "A pull waits for its answer."),
    ]
    if own is not None and own.is_alone:
        return (slot[0], deadline, *declared)
    if policy.recheck_after_hold == "after_insert":
        slot.append(flag(f"recheck_due_{index}", "The pull's thread has not rechecked yet."))
    if policy.expiry == "own_deadline" and policy.heap_entry == "one_shot":
        slot.append(flag(f"armed_{index}", "Its entry is in the deadline heap."))
    if bounds.queues > 1:
        slot.append(queue_number(f"queue_{index}", bounds, "The queue that the consumer reads."))
    return (*slot, *_about_tags(bounds, index), *_of_slot_aspects(policy, bounds, index), *declared)


def _of_slot_aspects(policy: Policy, bounds: Bounds, index: int) -> Iterator[Variable]:
    if may_orphan(policy, bounds):
        yield flag(f"orphan_{index}", "Its bucket is no longer in the table.")
    if bounds.has("channels"):
        yield flag(f"closed_{index}", "The channel of its pull is closed.")
    if bounds.has("commits"):
        yield Variable(f"committed_{index}", 0, bounds.messages, 0, "The offset that its consumer's group committed.")
        yield Variable(f"carried_{index}", 0, bounds.messages, 0, "The committed offset that its pull carries.")
        if policy.commit == "after_hold":
            yield flag(f"commit_due_{index}", "The pull's thread has not committed the pull's offset yet.")
    if bounds.has("role"):
        sentence = "The change of the broker's role since the pull's read, not yet reported to the request."
        yield Variable(f"role_news_{index}", 0, len(ROLE_NEWS) - 1, 0, sentence, labels=ROLE_NEWS)
    if bounds.has("lateness"):
        yield Variable(f"late_{index}", 0, bounds.late_max, 0, "Ticks since the request's deadline passed.")
        yield Variable(f"waited_{index}", 0, bounds.late_max, 0, "Ticks since the request has something to read.")


def _about_tags(bounds: Bounds, index: int) -> Sequence[Variable]:
    if not bounds.filters:
        return ()
    labels = (*(wish.name for wish in wishes_of(bounds)), "nothing")
    nothing = len(labels) - 1
    passes = "A visible message at or after its offset passes the broker's test for it, which compares hashes."
    found = [
        Variable(f"wants_{index}", 0, nothing, nothing, "What the consumer wants.", labels=labels),
        flag(f"passes_{index}", passes),
    ]
    if bounds.tags > 2:
        found.append(flag(f"wanted_{index}", "A visible message at or after its offset has exactly the tag it wants."))
    return found


def request_of(index: int, phases: Phases, variables: Mapping[str, Variable]) -> Request:
    """One request slot as terms. A variable that does not exist under the policy and bounds is a constant."""
    return Request(
        index=index,
        phases=phases,
        phase=number(variables, f"phase_{index}"),
        offset=number(variables, f"offset_{index}"),
        deadline=number(variables, f"deadline_{index}"),
        copies=number(variables, f"copies_{index}"),
        open=fact(variables, f"open_{index}"),
        recheck_due=fact(variables, f"recheck_due_{index}"),
        armed=fact(variables, f"armed_{index}"),
        queue=number(variables, f"queue_{index}"),
        wants=number(variables, f"wants_{index}"),
        passes=fact(variables, f"passes_{index}"),
        wanted=fact(variables, f"wanted_{index}"),
        orphan=fact(variables, f"orphan_{index}"),
        closed=fact(variables, f"closed_{index}"),
        committed=number(variables, f"committed_{index}"),
        carried=number(variables, f"carried_{index}"),
        commit_due=fact(variables, f"commit_due_{index}"),
        late=number(variables, f"late_{index}"),
        waited=number(variables, f"waited_{index}"),
        role_news=number(variables, f"role_news_{index}"),
    )
