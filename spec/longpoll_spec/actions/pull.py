"""Pull: a consumer asks, the broker reads, holds a pull that found nothing, and answers it when it is woken or expires.

Source: `PullMessageProcessor.processRequest` and `PullRequestHoldService.suspendPullRequest` (4.9.8). The recheck is
the fix that upstream PR #7359 proposed for issue #7358. Rejected pulls are not modelled. The executor runs a woken pull
again with holding off (`executeRequestWhenWakeup`). The deadline heap is our own design.
"""

from __future__ import annotations

from longpoll_spec.actions.commits import by_read, carried_by
from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs, after_read, left, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import Queue, Request, State, Wish, assign
from longpoll_spec.terms import FALSE, TRUE, Bool, ite


@action("request", "queue", "wish", urgent=never)
def next_pull(state: State, request: Request, queue: Queue, wish: Wish) -> Step:
    """A consumer whose last pull was answered sends the next one, from its next offset and with a new deadline. A
    consumer that switches to another queue or subscription starts at that queue's end."""
    # GUARD
    guard = state.running & request.is_("idle") & ~request.open & ~request.commit_due
    # EFFECT
    stays = request.at(queue) & (request.wants.is_(wish.index) if state.filters else TRUE)
    effect = assign(
        (request.phase, request.phases["pulling"]),
        (request.deadline, state.hold_ticks),
        (request.open, TRUE),
        (request.queue, queue.index),
        (request.wants, wish.index),
        (request.passes, request.passes & stays),
        (request.wanted, request.wanted & stays),
        *(() if stays is TRUE else ((request.offset, ite(stays, request.offset, queue.visible_end)),)),
        *carried_by(request, ite(stays, request.committed, queue.visible_end)),
    )
    return Step(guard, effect)


@action("request")
def pull_read(state: State, request: Request) -> Step:
    """The pull's thread reads the store. If there is something to read the thread answers at once, even if no message
    passes the filter and only the offset moves. Otherwise the pull has missed. A slave whose master is back may answer
    a pull that missed, so that the consumer goes to the master."""
    # GUARD
    guard = request.is_("pulling")
    # EFFECT
    found = state.is_answered_by_read(request)
    refused = ~found & (state.is_full | state.redirects if state.policy.hold_limit == "at_read" else state.redirects)
    ends = found | refused
    effect = assign(
        (request.phase, ite(ends, request.phases["idle"], request.phases["missed"])),
        *after_read(state, request),
        (request.deadline, ite(ends, 0, request.deadline)),
        (request.open, request.open & ~ends),
        *left(request, ends),
        *by_read(state, request, ends),
    )
    return Step(guard, effect)


def _finds_first(state: State) -> bool:
    return "has_bucket" in state.phases


@action("request", exists=_finds_first)
def find_bucket(state: State, request: Request) -> Step:
    """The pull's thread looks up its queue's bucket in the table, and creates the bucket if it is missing. If the
    bucket is removed from the table in the meantime, later lookups do not see the requests that the thread puts into
    it."""
    # GUARD
    guard = request.is_("missed")
    # EFFECT
    effect = assign(
        (request.phase, request.phases["has_bucket"]),
        *((queue.present, queue.present | request.at(queue)) for queue in state.queues),
    )
    return Step(guard, effect)


def _rechecks_first(state: State) -> bool:
    return state.policy.recheck_after_hold in {"before_lock", "in_lock"}


@action("request", name="recheck", exists=_rechecks_first)
def recheck_first(state: State, request: Request) -> Step:
    """Before it inserts the request, the pull's thread reads the visible end again. If there is something to read the
    request goes to the executor, otherwise to the insert. With `in_lock` the thread holds the bucket's lock from
    here on.
    """
    # GUARD
    guard = request.is_("has_bucket" if _finds_first(state) else "missed") & request.may_be_queued
    if state.policy.recheck_after_hold == "in_lock":
        guard &= state.lock_free_of(request)
    # EFFECT
    found = state.has_more(request) | state.is_told_moved(request)
    effect = assign(
        (request.phase, ite(found, request.phases["queued"], request.phases["rechecked"])),
        (request.copies, ite(found, request.copies + 1, request.copies)),
        (request.orphan, request.orphan & ~found),
        (request.commit_due, found),
    )
    return Step(guard, effect)


@action("request")
def hold(state: State, request: Request) -> Step:
    """The pull's thread puts the request that missed into the bucket, under the bucket's lock. Some brokers answer the
    request instead: if they have stopped and answer on stop, if the table is full, or if their role changed after the
    read and they answer on a role change. Some brokers drop the request if its channel is closed."""
    # GUARD
    ready = "rechecked" if _rechecks_first(state) else "has_bucket" if _finds_first(state) else "missed"
    guard = request.is_(ready)
    if state.policy.recheck_after_hold != "in_lock":
        guard &= state.lock_free_of(request)
    # EFFECT
    refused = _refused(state, request)
    effect = assign(
        (request.phase, ite(refused, request.phases["idle"], request.phases["held"])),
        (request.open, request.open & ~refused),
        (request.deadline, ite(refused, 0, request.deadline)),
        (request.recheck_due, ~refused),
        (request.armed, ~refused),
        (request.commit_due, TRUE),
        *left(request, refused),
        *(() if _finds_first(state) else _with_bucket(state, request, ~refused)),
    )
    return Step(guard, effect)


def _with_bucket(state: State, request: Request, here: Bool) -> Pairs:
    return tuple((queue.present, queue.present | (request.at(queue) & here)) for queue in state.queues)


def _refused(state: State, request: Request) -> Bool:
    """Whether the broker answers the request instead of holding it: it has stopped, its role changed, the channel is
    closed, or the table is full.
    """
    policy = state.policy
    refused = ~state.running if policy.on_stop == "answer" else FALSE
    if policy.on_close == "drop":
        refused |= request.closed
    refused |= state.is_told_of_role(request)
    return refused | state.is_full if policy.hold_limit == "in_lock" else refused


def _rechecks_itself(state: State) -> bool:
    return state.policy.recheck_after_hold == "after_insert" and state.policy.recheck == "self"


@action("request", name="recheck", exists=_rechecks_itself)
def recheck_after_hold(state: State, request: Request) -> Step:
    """After the insert the pull's thread reads the visible end again. If there is something to read, the thread removes
    the request from the table under the bucket's lock, and only then hands it to the executor. If a notifier has taken
    the request in the meantime, the thread does nothing."""
    # GUARD
    guard = request.recheck_due & state.lock_free_of(request) & request.may_be_queued
    # EFFECT
    wakes = request.is_("held") & (state.has_more(request) | state.is_told_moved(request))
    effect = assign(*to_executor(request, wakes, recheck_due=FALSE))
    return Step(guard, effect)


@action("request", exists=lambda state: state.policy.expiry == "own_deadline")
def expire(state: State, request: Request) -> Step:
    """The heap entry of a request fires at its deadline: the request leaves the table under the bucket's lock and goes
    to the executor. A one-shot entry is used up even if a notifier has the request; any other entry waits until the
    request is put back."""
    one_shot = state.policy.heap_entry == "one_shot"
    # GUARD
    entry = request.armed & request.is_listed if one_shot else request.is_("held")
    guard = entry & state.running & (request.deadline <= 0) & state.lock_free_of(request) & request.may_be_queued
    # EFFECT
    *queue, (armed, _) = to_executor(request, request.is_("held"))
    effect = assign(*queue, (armed, FALSE))
    return Step(guard, effect)


@action("request")
def run(state: State, request: Request) -> Step:
    """The executor runs a woken pull again with holding off. The executor reads the store and answers with messages,
    with a moved offset, or with "not found"."""
    # GUARD
    guard = ~(request.copies <= 0)
    # EFFECT
    queued = request.is_("queued")
    effect = assign(
        (request.copies, request.copies - 1),
        *after_read(state, request),
        (request.phase, ite(queued, request.phases["idle"], request.phase)),
        (request.deadline, ite(queued, 0, request.deadline)),
        (request.open, FALSE),
        *left(request, queued),
    )
    return Step(guard, effect)
