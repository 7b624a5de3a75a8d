"""The states that must be reachable, so that no property holds vacuously: the `sometimes` properties.

Each action must occur, each phase must be reached, each cause of an answer must occur, each fix of the policy must be
needed at least once, and the two notifiers must interfere.

If the model's environment acted only while the broker is idle, every promise would be easier to keep, and no other
property would detect this. So each action of the environment must occur in each phase in which Java allows it (sources:
4.9.8, 5.3.3).

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

The combinations that the specification forbids are left out: a change that needs all locks during a traversal in place,
a second append if the bounds allow only one message, an append while its announcement is pending (`before_visible`),
truncation while the dispatcher is working, and a change of the role during a notification by a slave that never
notifies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.state import DUE, IDLE, WALKING, Request, State
from longpoll_spec.state.variables import sweeps
from longpoll_spec.terms import Bool, Int, after, all_of, any_of, substitute

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
"""Maps a phase to its meaning. If a request takes part in the action, "a pull" is the pull of that request."""
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
"""Maps an action of the environment to the phases in which it must occur."""
_UNDER_LOCK: Final = ("channel_closes", "role_change", "master_returns", "stop", "truncate", "queue_deleted")
"""Actions that wait for the end of a traversal in place. Some of the actions wait only if they take a request from its
bucket."""


def environment_of(model: Model) -> Iterator[Property]:
    """For every action of the environment and each of its phases, the property that the action occurs in the phase."""
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
    if name in {"role_change", "master_returns"} and phase == "dispatching":
        return policy.slave == "reads_only"
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


def sometimes_of(model: Model) -> Iterable[Property]:
    """Every `sometimes` property of a model."""
    for name in dict.fromkeys(action.name for action in model.actions):
        yield _sometimes(f"{name}_fires", f"The action {name} happens.", _enabled(model, name))
    for index, label in enumerate(model.state.phases.labels):
        there = any_of(request.phase.is_(index) for request in model.state.requests)
        yield _sometimes(f"some_{label}", f"A request is {label.replace('_', ' ')}.", there)
    own = model.policy.extension
    if own is None or not own.is_alone:
        yield from _of_broker(model)


def _of_broker(model: Model) -> Iterable[Property]:
    """The `sometimes` properties about the actions of a broker, which a file that is based on the core lacks."""
    yield from _answers(model)
    yield from _remedies(model)
    if not model.bounds.has("limit"):
        yield _two_notifiers(model.state)
    if len(model.state.queues) > 1:
        yield _two_queues(model.state)
    yield from _of_aspects(model)
    yield from _of_others(model)
    yield from environment_of(model)


def _of_others(model: Model) -> Iterable[Property]:
    """Properties that need several requests, which a feature that only restricts could make unreachable."""
    state = model.state
    if not model.bounds.has("limit") and len(state.requests) > 1:
        beside = [
            action.guard & after(request.is_listed, action.effect) & any_of(_beside(state, request))
            for action, request in zip(model.named("hold"), state.requests, strict=True)
        ]
        yield _sometimes("inserted_beside_another", "A pull enters a bucket that has another one.", any_of(beside))
    if not model.bounds.has("capacity"):
        alone = {
            each.index: all_of(other.copies <= 0 for other in state.requests if other is not each)
            for each in state.requests
        }
        refused = _enabled(model, "executor_rejects", alone)
        yield _sometimes("refused_alone", "The executor rejects the only request that it has.", refused)


def _beside(state: State, request: Request) -> Iterable[Bool]:
    """For every other request, whether it is in the table in the same bucket as this request."""
    for other in state.requests:
        if other is not request:
            yield other.in_table & any_of(request.at(queue) & other.at(queue) for queue in state.queues)


def _answers(model: Model) -> Iterable[Property]:
    state = model.state
    more = {request.index: state.has_more(request) for request in state.requests}
    reads = _enabled(model, "pull_read", more)
    woken = _enabled(model, "run", more)
    late = _enabled(model, "run", {request.index: ~more[request.index] for request in state.requests})
    yield _sometimes("answered_at_once", "A pull finds messages at its first read.", reads)
    yield _sometimes("answered_after_wake", "A held pull is woken and finds messages.", woken)
    yield _sometimes("answered_not_found", "A held pull expires and finds nothing.", late)
    if state.filters:
        yield from _filtered(model)
    if state.policy.on_stop == "answer":
        held = any_of(request.is_("held") for request in state.requests)
        yield _sometimes("answered_by_stop", "A held pull is answered on stop.", _enabled(model, "stop") & held)


def _filtered(model: Model) -> Iterable[Property]:
    state = model.state
    for name, sentence in (("pull_read", "A first read"), ("run", "A woken pull")):
        moved = _enabled(model, name, {each.index: state.has_more(each) & ~state.fits(each) for each in state.requests})
        yield _sometimes(f"offset_moved_by_{name}", f"{sentence} finds messages, and none passes its filter.", moved)
    passed_over = any_of(each.is_("held") & state.has_more(each) & ~state.fits(each) for each in state.requests)
    yield _sometimes("filter_leaves_held", "A request stays held while a message for others is visible.", passed_over)
    if state.bounds.tags > 2:
        unwanted = {each.index: state.fits(each) & ~each.wanted for each in state.requests}
        collides = _enabled(model, "run", unwanted)
        yield _sometimes("hash_collides", "A pull is woken for a message that its client then drops.", collides)


def _remedies(model: Model) -> Iterable[Property]:
    state = model.state
    rescues = {request.index: request.is_("held") & state.has_more(request) for request in state.requests}
    if state.policy.recheck_after_hold == "after_insert" and state.policy.recheck == "self":
        found = _enabled(model, "recheck", rescues)
        yield _sometimes("recheck_after_hold_rescues", "A recheck after an insert finds something to read.", found)
    if state.policy.recheck_after_keep:
        again = any_of(each.is_("held") & state.fits(each) for each in state.requests)
        found = any_of(action.guard & again for action in model.named("recheck") if isinstance(action.actors[0], str))
        yield _sometimes("recheck_after_keep_rescues", "A recheck after a put-back finds something to read.", found)


def _two_notifiers(state: State) -> Property:
    """The property that two notifiers interfere.

    If notifiers traverse in place, one waits for the other. If notifiers clone the list, both have requests of one
    bucket.
    """
    if state.policy.take == "in_place":
        meet = any_of(
            state.dispatcher.at(DUE, queue) & state.scanner.at(WALKING, queue) & ~state.lock_free(queue)
            for queue in state.queues
        )
        return _sometimes("notifier_waits_for_lock", "The dispatcher must notify while the scanner has the lock.", meet)
    both = [
        all_of(
            any_of(each.at(queue) & each.phase.is_one_of((notifier.taken, notifier.kept)) for each in state.requests)
            for notifier in (state.dispatcher, state.scanner)
        )
        for queue in state.queues
    ]
    return _sometimes("bucket_in_two_lists", "Both notifiers hold a part of one bucket at once.", any_of(both))


def _of_aspects(model: Model) -> Iterable[Property]:
    state = model.state
    if model.bounds.has("commits"):
        older = _enabled(model, "pull_read", {each.index: each.carried < each.committed for each in state.requests})
        yield _sometimes(
            "older_commit_arrives", "A pull being read carries a lower offset than its group has committed.", older
        )
        newer = [
            action.guard & (request.committed < _int_after(request.committed, action))
            for action in model.named("pull_read", "commit_pulled")
            for request in state.requests
        ]
        yield _sometimes("pull_commits", "A pull's offset advances its group's committed one.", any_of(newer))
    if model.bounds.has("truncate"):
        moved = _enabled(model, "run", {each.index: state.is_moved(each) for each in state.requests})
        trimmed = _enabled(model, "pull_read", {each.index: state.is_trimmed(each) for each in state.requests})
        yield _sometimes("told_beginning", "A read learns that its queue begins later.", trimmed)
        yield _sometimes("told_moved", "A held pull is answered that its offset has moved.", moved)
        cut = [
            action.guard & (_int_after(queue.log_end, action) < queue.log_end)
            for action in model.named("truncate")
            for queue in state.queues
        ]
        yield _sometimes("log_is_cut", "A queue's log is truncated.", any_of(cut))
        anew = [
            action.guard & (queue.log_end > 0) & (_int_after(queue.log_end, action) <= 0)
            for action in model.named("queue_deleted")
            for queue in state.queues
        ]
        yield _sometimes("queue_begins_anew", "A queue with messages is deleted, and begins at 0.", any_of(anew))
    if model.bounds.has("limit") and model.policy.hold_limit != "none":
        full = any_of(each.is_("missed") & state.is_full for each in state.requests)
        yield _sometimes("table_is_full", "A pull that missed finds no room in the table.", full)
    if sweeps(model.policy, model.bounds):
        swept = any_of(
            action.guard & queue.present & ~after(queue.present, action.effect)
            for action in model.named("sweep", "remove_bucket")
            for queue in state.queues
        )
        yield _sometimes("bucket_is_removed", "The scanner removes a bucket.", swept)


def _int_after(term: Int, action: Action) -> Int:
    made = substitute(term, action.effect)
    assert isinstance(made, Int)
    return made


def _two_queues(state: State) -> Property:
    """The property that two notifiers traverse different queues at the same time, because neither must wait then."""
    apart = [
        state.dispatcher.at(WALKING, one) & state.scanner.at(WALKING, other)
        for one in state.queues
        for other in state.queues
        if one is not other
    ]
    return _sometimes(
        "queues_walked_at_once", "The dispatcher and the scanner traverse two queues at once.", any_of(apart)
    )


def _enabled(model: Model, name: str, besides: dict[int, Bool] | None = None) -> Bool:
    """The condition that an instance of the action is enabled.

    `besides` has a further condition for each request, which the request that acts must satisfy.
    """
    found: list[Bool] = []
    for action in model.named(name):
        actor = action.actors[0] if action.actors else None
        if besides is None:
            found.append(action.guard)
        elif isinstance(actor, int):
            found.append(action.guard & besides[actor])
    return any_of(found)
