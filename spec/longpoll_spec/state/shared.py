"""The variables that no request has for itself: the queues, the notifiers, the scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import Policy
from longpoll_spec.state.lookup import fact, number
from longpoll_spec.state.parts import (
    DUE,
    IDLE,
    NOTIFIER_LABELS,
    RECHECKING,
    Notifier,
    Phases,
    Queue,
    notifiers_of,
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
        flag("running", "The broker has not been told to stop.", initial=True),
        next_scan,
        *_notifiers(policy),
        *_of_many_queues(policy, bounds),
        *_of_many_tags(policy, bounds),
    )


def _ends(bounds: Bounds, index: int) -> Sequence[Variable]:
    return (
        Variable(of_queue("log_end", index, bounds), 0, bounds.messages, 0, "Messages that were appended to the log."),
        Variable(
            of_queue("visible_end", index, bounds),
            0,
            bounds.messages,
            0,
            "Messages that pulls can read: the consume queue's end.",
        ),
    )


def _notifiers(policy: Policy) -> Sequence[Variable]:
    last = RECHECKING if policy.recheck_after_keep else DUE
    return [
        Variable(name, 0, last, IDLE, f"Where {THREADS[name]} stands in its program.", labels=NOTIFIER_LABELS)
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
            flag(of_queue("unscanned", index, bounds), "This round of the scan has yet to come to the queue.")
            for index in range(bounds.queues)
        ),
    )


def _of_many_tags(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    if not tells_tag(policy, bounds):
        return ()
    labels = (*(f"t{tag}" for tag in range(bounds.tags)), "none")
    sentence = "The tag of the message that the dispatcher announces; none for a walk that announces no message."
    return (Variable("announced", 0, bounds.tags, bounds.tags, sentence, labels=labels),)


def tells_tag(policy: Policy, bounds: Bounds) -> bool:
    """Whether the dispatcher looks at the tag of the message that it announces."""
    return bounds.tags > 1 and policy.notify_only_if_tag_matches


def queue_of(index: int, bounds: Bounds, variables: Mapping[str, Variable]) -> Queue:
    """One queue as terms."""
    return Queue(
        index=index,
        log_end=number(variables, of_queue("log_end", index, bounds)),
        visible_end=number(variables, of_queue("visible_end", index, bounds)),
        unscanned=fact(variables, of_queue("unscanned", index, bounds)),
    )


def notifier_of(name: str, phases: Phases, variables: Mapping[str, Variable]) -> Notifier:
    """One notifier as terms."""
    return Notifier(name, phases, number(variables, name), number(variables, f"{name}_queue"))
