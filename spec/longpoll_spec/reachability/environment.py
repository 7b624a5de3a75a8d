"""The phases in which the environment acts: `sometimes` properties that keep it as free as in Java.

An environment that acts only while the broker is idle makes every promise easier, and no other property would detect
it. So each of its actions has to occur in each phase in which Java allows it (sources: 4.9.8, 5.3.3).

| phase         | in Java                                                    |
|---------------|------------------------------------------------------------|
| `dispatching` | `ReputMessageService.doReput`, while `arriving` runs       |
| `scanning`    | `PullRequestHoldService.checkHoldRequest`, in its loop     |
| `pulling`     | a task in the queue of `PullMessageProcessor`'s executor   |
| `inserting`   | `processRequest` from `getMessage` to `suspendPullRequest` |
| `held`        | an entry of `ManyPullRequest`                              |
| `queued`      | `pullMessageExecutor`, after `executeRequestWhenWakeup`    |
| `unflushed`   | `CommitLog`, until `FlushRealTimeService` has run          |
| `early`       | `pullMessageExecutor`, full when a message arrives         |

| action                                | in Java                                                                     |
|---------------------------------------|-----------------------------------------------------------------------------|
| `append`                              | `SendMessageProcessor`'s threads, under no lock of the pull path            |
| `next_pull`                           | a consumer: another thread of `PullMessageProcessor` for each pull          |
| `scan_start`, `scan_throws`           | the hold service's thread: `run`, and `getMaxOffsetInQueue` in it           |
| `notifier_throws`                     | a filter in `notifyMessageArriving`, on whichever thread called that        |
| `executor_rejects`                    | `submit` throws `RejectedExecutionException`                                |
| `channel_closes`                      | Netty's thread, `ClientHousekeepingService`                                 |
| `offset_commit`, `offset_reset`       | `ConsumerManageProcessor`, `AdminBrokerProcessor`                           |
| `trim`                                | `CleanCommitLogService`                                                     |
| `truncate`, `queue_deleted`           | `AutoSwitchHAClient` of a slave, `AdminBrokerProcessor.deleteTopic`         |
| `role_change`, `master_returns`       | `BrokerController.changeToMaster`, `onMinBrokerChange`                      |
| `flush`, `crash_and_recover`, `stop`  | `FlushRealTimeService`, the operating system, `BrokerController.shutdown`   |

Excluded are combinations that the specification forbids: a change that needs all locks during a traversal in place, a
second append where there is only one message, an append that waits for its announcement (`before_visible`), and
truncation while the dispatcher is working.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.state import IDLE, WALKING, State
from longpoll_spec.terms import Bool, any_of

PHASES: Final[Mapping[str, str]] = {
    "dispatching": "the dispatcher is at work",
    "scanning": "the scanner traverses a bucket",
    "pulling": "a pull has not read yet",
    "inserting": "a pull is between its read and its insert",
    "held": "a pull is held",
    "queued": "a woken pull waits in the executor",
    "unflushed": "a message is not on disk",
    "early": "the request has time left",
}
"""Phase -> its meaning. If one request takes part in the action, the pull is that request's."""
_IN_A_THREAD: Final = ("inserting", "held", "queued")
_ANY: Final = ("dispatching", "scanning", *_IN_A_THREAD)
ACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "append": _ANY,
    "next_pull": ("pulling", *_ANY),
    "scan_start": ("dispatching", *_IN_A_THREAD),
    "scan_throws": ("dispatching", *_IN_A_THREAD),
    "executor_rejects": ("dispatching", "scanning", "early"),
    "channel_closes": ("pulling", *_ANY),
    "offset_commit": _IN_A_THREAD,
    "offset_reset": _IN_A_THREAD,
    "trim": ("scanning", *_IN_A_THREAD),
    "truncate": ("scanning", *_IN_A_THREAD),
    "queue_deleted": ("scanning", *_IN_A_THREAD),
    "role_change": _ANY,
    "master_returns": _ANY,
    "flush": ("dispatching", *_IN_A_THREAD),
    "crash_and_recover": ("unflushed", *_ANY),
    "stop": _ANY,
}
"""Action of the environment -> the phases in which it has to occur."""
_UNDER_LOCK: Final = ("channel_closes", "role_change", "master_returns", "stop", "truncate", "queue_deleted")
"""Actions that wait for the end of a traversal in place, some only where they take a request from its bucket."""


def environment_of(model: Model) -> Iterator[Property]:
    """For every action of the environment and each of its phases: the action occurs in the phase."""
    for name, phases in ACTS.items():
        actions = model.named(name)
        for phase in phases:
            if actions and not _forbidden(model, name, phase):
                term = any_of(each.guard & _is_in(model.state, each, phase) for each in actions)
                yield _sometimes(f"{name}_while_{phase}", f"The action {name} happens while {PHASES[phase]}.", term)
    for notifier in model.state.notifiers:
        thrown = any_of(each.guard for each in model.named("notifier_throws") if notifier.name in each.actors)
        yield _sometimes(f"{notifier.name}_throws", f"Checking a request throws in the {notifier.name}.", thrown)


def _sometimes(name: str, sentence: str, term: Bool) -> Property:
    return Property(name, "sometimes", sentence, term, here=term)


def _forbidden(model: Model, name: str, phase: str) -> bool:
    """Whether the specification, its policy or its bounds exclude the action from the phase."""
    policy, bounds = model.policy, model.bounds
    if (name, phase) == ("append", "dispatching"):
        return policy.notify == "before_visible" or bounds.messages == bounds.queues == 1
    if name == "next_pull" and phase not in {"dispatching", "scanning"}:
        return bounds.requests == 1
    return phase == "scanning" and name in _UNDER_LOCK and policy.take == "in_place"


def _is_in(state: State, action: Action, phase: str) -> Bool:
    own = [state.requests[actor] for actor in action.actors if isinstance(actor, int)]
    requests = own if own and action.name != "next_pull" else state.requests
    labels = {"inserting": ("missed", "has_bucket", "rechecked")}.get(phase, (phase,))
    match phase:
        case "dispatching":
            return ~state.dispatcher.at(IDLE)
        case "scanning":
            return state.scanner.at(WALKING)
        case "unflushed":
            return any_of(queue.flushed_end < queue.log_end for queue in state.queues)
        case "early":
            return any_of(each.deadline > 0 for each in requests)
        case _:
            return any_of(each.is_(*labels) for each in requests)
