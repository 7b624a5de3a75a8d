"""Properties of the features: buckets, commits, limits, channels, truncated queues, crashes, roles.

The function of a property returns None if its feature is off or the policy does not promise the property.
"""

from __future__ import annotations

from itertools import product

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.properties.statement import Wrong, always, int_after, no_step, no_tick
from longpoll_spec.state import IDLE, MASTER_BACK, NEW_MASTER, Queue, Request, State
from longpoll_spec.state.variables import walks_on_master_return
from longpoll_spec.terms import Bool, after, all_of, any_of, truth


def no_orphan(model: Model) -> Property | None:
    """No request is held in a bucket that was removed from the table: no arrival and no scan would find it."""
    if not model.bounds.has("buckets"):
        return None
    found = [
        each.is_("held").implies(~each.orphan & model.state.at_queue_of(each, lambda queue: queue.present))
        for each in model.state.requests
    ]
    return always(no_orphan, all_of(found))


def buckets_are_swept(model: Model) -> Property | None:
    """No scan of a queue leaves an unused bucket of that queue in the table."""
    if not model.bounds.has("buckets"):
        return None
    return no_step(buckets_are_swept, _unswept(model))


def _unswept(model: Model) -> Wrong:
    state = model.state
    for action in model.named("scan_start", "scan_end", "recheck", "sweep", "remove_bucket", "notifier_throws"):
        ended = after(state.scanner.at(IDLE), action.effect) & ~state.scanner.at(IDLE)
        if action.name == "scan_start":
            ended = after(state.scanner.at(IDLE), action.effect)
        left = [_walks(state, action, queue) & after(_is_left(state, queue), action.effect) for queue in state.queues]
        yield action, ended & any_of(left)


def _walks(state: State, action: Action, queue: Queue) -> Bool:
    return truth(queue.name in action.actors) if action.name == "scan_start" else state.scanner.queue.is_(queue.index)


def _is_left(state: State, queue: Queue) -> Bool:
    used = [each.at(queue) & (each.is_listed | each.is_("has_bucket", "rechecked")) for each in state.requests]
    return queue.present & ~any_of(used)


def commit_never_regresses(model: Model) -> Property | None:
    """The offset in a pull never lowers its group's committed offset; only an explicit commit may.

    An explicit commit does not exceed what its consumer received. A queue that shrinks lowers no offset of another
    queue.
    """
    if not model.bounds.has("commits"):
        return None
    return no_step(commit_never_regresses, _regressing(model))


def _regressing(model: Model) -> Wrong:
    for action in model.named("pull_read", "commit_pulled"):
        request = model.state.requests[int(action.actors[0])]
        yield action, int_after(request.committed, action) < request.committed
    for action in model.named("offset_commit"):
        request = model.state.requests[int(action.actors[0])]
        yield action, request.offset < int_after(request.committed, action)
    for queue, action in product(model.state.queues, model.named("truncate", "queue_deleted")):
        if action.actors == (queue.name,):
            yield (
                action,
                any_of(
                    ~each.at(queue) & (int_after(each.committed, action) < each.committed)
                    for each in model.state.requests
                ),
            )


def commit_in_queue(model: Model) -> Property | None:
    """No group's committed offset is past its queue's end: if the queue is recreated, the group would skip messages."""
    if not model.bounds.has("commits"):
        return None
    queues = model.state.queues
    within = [
        ~any_of(each.at(queue) & (each.committed > queue.visible_end) for queue in queues)
        for each in model.state.requests
    ]
    return always(commit_in_queue, all_of(within))


def hold_limit_kept(model: Model) -> Property | None:
    """If the policy has a limit, the broker holds at most that many requests."""
    if not model.bounds.has("limit") or model.policy.hold_limit == "none":
        return None
    return no_step(hold_limit_kept, _overfilling(model))


def _overfilling(model: Model) -> Wrong:
    """The steps that exceed the limit: a request becomes held, and it does not act or another request is held already.

    This condition compares no two requests, because a proof for any number of requests requires that.
    """
    requests = model.state.requests
    for action in model.actions:
        wrong: list[Bool] = []
        for each in requests:
            if each.phase.args[0] in action.effect:
                comes = ~each.is_listed & after(each.is_listed, action.effect)
                others = any_of(other.is_listed for other in requests if other is not each)
                wrong.append(comes & others if each.index in action.actors else comes)
        yield action, model.state.is_limited & any_of(wrong)


def closed_is_let_go(model: Model) -> Property | None:
    """No request of a closed channel is in the table."""
    if not model.bounds.has("channels"):
        return None
    return always(closed_is_let_go, all_of(~(each.is_("held") & each.closed) for each in model.state.requests))


def moved_is_told(model: Model) -> Property | None:
    """Time does not pass while the offset of a held request is past the end of its queue."""
    if not model.bounds.has("truncate"):
        return None
    state = model.state

    def is_gone(request: Request) -> Bool:
        return any_of(request.at(queue) & (request.offset > queue.visible_end) for queue in state.queues)

    return no_tick(moved_is_told, model, lambda each: state.running & each.is_listed & is_gone(each))


def seen_survives(model: Model) -> Property | None:
    """No crash removes a visible message."""
    if not model.bounds.has("crash"):
        return None
    return no_step(seen_survives, _taking_back(model))


def _taking_back(model: Model) -> Wrong:
    for action in model.named("crash_and_recover"):
        ends = [queue.visible_end for queue in model.state.queues]
        yield action, any_of(int_after(end, action) < end for end in ends)


def told_of_role_change(model: Model) -> Property | None:
    """A running broker holds no request that it read as a slave, before it became master."""
    if not model.bounds.has("role"):
        return None
    waits_on = (each.is_("held") & each.role_news.is_(NEW_MASTER) for each in model.state.requests)
    untold = _untold(model, "role_change", NEW_MASTER)
    return no_step(told_of_role_change, untold, also=model.state.running.implies(~any_of(waits_on)))


def told_of_master_return(model: Model) -> Property | None:
    """While a slave runs, a traversal is due for each request that it has held since before its master's return."""
    if not model.bounds.has("role"):
        return None
    state = model.state

    def is_to_come(queue: Queue) -> Bool:
        due = queue.return_due
        return due | state.return_queue.is_(queue.index) if walks_on_master_return(model.policy, model.bounds) else due

    waits_on = (
        each.is_("held") & each.role_news.is_(MASTER_BACK) & ~state.at_queue_of(each, is_to_come)
        for each in state.requests
    )
    untold = _untold(model, "master_returns", MASTER_BACK)
    return no_step(told_of_master_return, untold, also=state.running.implies(~any_of(waits_on)))


def _untold(model: Model, name: str, news: int) -> Wrong:
    """The steps that lose the news of a role change: the change itself, or a later step before the request's answer."""
    for action in model.actions:
        forgotten = [
            (each.has_missed if action.name == name else each.role_news.is_(news))
            & after(~each.is_("idle") & ~each.role_news.is_(news), action.effect)
            for each in model.state.requests
            if action.name == name or each.role_news.args[0] in action.effect
        ]
        yield action, any_of(forgotten)


def return_is_whole(model: Model) -> Property | None:
    """The traversal after the master's return visits every bucket."""
    if not walks_on_master_return(model.policy, model.bounds):
        return None
    return no_step(return_is_whole, _breaking_off(model))


def _breaking_off(model: Model) -> Wrong:
    for action in model.named("return_take"):
        others = [other.return_due for other in model.state.queues if other.name not in action.actors]
        yield action, any_of(due & ~after(due, action.effect) for due in others)


def only_disk_survives(model: Model) -> Property | None:
    """After a crash each log ends where it was flushed, no notifier or request is active, and a scan period begins."""
    if not model.bounds.has("crash"):
        return None
    return no_step(only_disk_survives, _surviving(model))


def _surviving(model: Model) -> Wrong:
    for action in model.named("crash_and_recover"):
        yield action, _something_else(model.state, action)


def _something_else(state: State, action: Action) -> Bool:
    walks = [~after(each.at(IDLE), action.effect) for each in state.notifiers]
    stands = [~after(each.is_("idle") & ~each.open, action.effect) for each in state.requests]
    ends = [~int_after(queue.log_end, action).is_(queue.flushed_end) for queue in state.queues]
    return any_of([*walks, *stands, *ends, ~int_after(state.next_scan, action).is_(state.scan_ticks)])
