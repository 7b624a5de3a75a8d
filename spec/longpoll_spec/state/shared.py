"""The variables that belong to no request: the queues, the notifiers, the scan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import Policy
from longpoll_spec.state.lookup import fact, number
from longpoll_spec.state.parts import (
    DUE,
    IDLE,
    NOTIFIER_LABELS,
    RECHECKING,
    REMOVING,
    SWEEPING,
    Notifier,
    Phases,
    Queue,
    may_orphan,
    notifiers_of,
    tags_of,
)
from longpoll_spec.state.variables import Variable, flag, of_queue, queue_number, scan_ticks_of

THREADS: Final = {
    "dispatcher": "the dispatcher",
    "scanner": "the scanner",
    "rechecker": "a pull's thread",
}


def shared_variables(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    """Every variable that is not a request's, in the order of the state."""
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
    if walks_on_master_return(policy, bounds):
        sentence = "The traversal after the master's return has not visited the queue's bucket yet."
        yield from (flag(of_queue("return_due", each, bounds), sentence) for each in queues)
        yield queue_number("return_queue", bounds, "The queue whose bucket that traversal saw with requests in it.")


def tells_tag(policy: Policy, bounds: Bounds) -> bool:
    """Whether the dispatcher reads the tag of the message that it announces."""
    return bounds.filters and policy.notify_only_if_tag_matches


def queue_of(index: int, bounds: Bounds, variables: Mapping[str, Variable]) -> Queue:
    """One queue as terms."""
    return Queue(
        index=index,
        log_end=number(variables, of_queue("log_end", index, bounds)),
        visible_end=number(variables, of_queue("visible_end", index, bounds)),
        visible_start=number(variables, of_queue("visible_start", index, bounds)),
        flushed_end=number(variables, of_queue("flushed_end", index, bounds)),
        unscanned=fact(variables, of_queue("unscanned", index, bounds)),
        present=fact(variables, of_queue("present", index, bounds)),
        return_due=fact(variables, of_queue("return_due", index, bounds)),
    )


def notifier_of(name: str, phases: Phases, variables: Mapping[str, Variable]) -> Notifier:
    """One notifier as terms."""
    return Notifier(name, phases, number(variables, name), number(variables, f"{name}_queue"))
