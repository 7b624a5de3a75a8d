"""The actions of traversals: a notifier goes through the requests in a bucket. Notifiers are the threads in the table.

Each traversal takes the requests of the bucket, checks them in any order, puts the kept requests back, and may recheck.
Sources (4.9.8 unless noted):

| thread     | source                                                                                              |
|------------|-----------------------------------------------------------------------------------------------------|
| all        | `PullRequestHoldService.notifyMessageArriving` and `ManyPullRequest.cloneListAndClear`              |
| dispatcher | `NotifyMessageArrivingListener.arriving`, for a queue in which it made a message visible            |
| scanner    | `PullRequestHoldService.run` and `checkHoldRequest`: once per period, the queues in any order       |
| rechecker  | upstream pull request #7359 (not merged): `suspendPullRequest` ends with `notifyMessageArriving`    |

In the model one pull thread at a time rechecks by traversal and the next one waits. After its traversal the scanner
removes unused buckets. `LmqPullRequestHoldService.checkHoldRequest` (upstream issue #10754) checks whether a bucket's
list is empty and then removes the bucket, even if requests have entered it in between. The default service removes
nothing (#7481)."""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs, answered, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import (
    DUE,
    IDLE,
    RECHECKING,
    REMOVING,
    SWEEPING,
    WALKING,
    Notifier,
    Queue,
    Request,
    State,
    assign,
)
from longpoll_spec.state.parts import may_orphan, walks_to_recheck
from longpoll_spec.state.variables import sweeps
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, any_of, const, ite


def may_take(state: State, queue: Queue) -> Bool:
    """Whether a notifier can take the bucket now, or skip it."""
    free = state.lock_free(queue)
    return free | state.bucket_looks_empty(queue) if state.policy.empty_shortcut else free


def take(state: State, notifier: Notifier, queue: Queue) -> Pairs:
    """The notifier takes every request of the bucket to check, or skips an empty bucket."""
    passes = state.bucket_looks_empty(queue) if state.policy.empty_shortcut else FALSE
    taken = [(each, each.in_table & each.at(queue)) for each in state.requests]
    rest, place = at_rest(state, notifier, queue)
    return (
        (notifier.counter, ite(passes, rest, WALKING)),
        (notifier.queue, ite(passes, place, queue.index)),
        *_announcing(state, notifier, ite(passes, state.no_tag, state.announced)),
        *((each.phase, ite(here, notifier.taken, each.phase)) for each, here in taken),
    )


def _announcing(state: State, notifier: Notifier, tag: Int) -> Pairs:
    return ((state.announced, tag),) if notifier is state.dispatcher else ()


def at_rest(state: State, notifier: Notifier, queue: Queue) -> tuple[int, Int]:
    """The program counter and queue of a notifier that has finished with a bucket.

    The scanner may still have to remove unused buckets."""
    if notifier is state.scanner and sweeps(state.policy, state.bounds):
        return SWEEPING, const(queue.index)
    return IDLE, state.no_queue


def look(state: State, notifier: Notifier, request: Request) -> Step:
    """The notifier reads the visible end for one request it took: the request goes to the executor or is kept."""
    # GUARD
    mine = request.phase.is_(notifier.taken) & state.walks_for(notifier, request)
    guard = notifier.at(WALKING) & mine & request.may_be_queued
    # EFFECT
    news = (state.has_more(request) & state.announces_for(notifier, request)) | state.is_told_moved(request)
    wakes = news | (request.deadline <= 0)
    effect = assign(*to_executor(request, wakes, otherwise=notifier.kept))
    return Step(guard, effect)


def keep(state: State, notifier: Notifier, queue: Queue) -> Step:
    """The notifier has checked all requests: it puts the kept requests back, and ends or must recheck."""
    # GUARD
    left = any_of(each.phase.is_(notifier.taken) & each.at(queue) for each in state.requests)
    guard = notifier.at(WALKING, queue) & ~left & may_put_back(state, queue)
    # EFFECT
    rest, place = (RECHECKING, notifier.queue) if state.policy.recheck_after_keep else at_rest(state, notifier, queue)
    kept = [(each, each.phase.is_(notifier.kept) & each.at(queue)) for each in state.requests]
    effect = assign(
        (notifier.counter, rest),
        (notifier.queue, place),
        *_announcing(state, notifier, state.no_tag),
        *(pair for each, here in kept for pair in put_back(state, each, here)),
        (queue.present, queue.present | any_of(here & ~each.orphan for each, here in kept)),
    )
    return Step(guard, effect)


def may_put_back(state: State, queue: Queue) -> Bool:
    """Whether a notifier can put requests back now.

    A notifier that traverses in place holds the lock; a notifier that cloned the list must wait for the lock."""
    return TRUE if state.policy.take == "in_place" else state.lock_free(queue)


def put_back(state: State, request: Request, here: Bool) -> Pairs:
    """The effect that the request is in the table again, where `here` holds.

    If the broker has stopped or changed its role in the meantime, and its policy says to answer requests then, the
    broker answers the request instead."""
    refused = here & ~state.running if state.policy.on_stop == "answer" else FALSE
    if state.policy.on_close == "drop":
        refused |= here & request.closed
    refused |= here & state.is_told_of_role(request)
    _phase, *others = answered(request, refused)
    return (
        (request.phase, ite(refused, request.phases["idle"], ite(here, request.phases["held"], request.phase))),
        *others,
    )


def ends_walk(state: State, notifier: Notifier) -> Pairs:
    """The effect that the notifier aborts its traversal."""
    swept = notifier is state.scanner and sweeps(state.policy, state.bounds)
    return (
        (notifier.counter, SWEEPING if swept else IDLE),
        (notifier.queue, notifier.queue if swept else state.no_queue),
        *_announcing(state, notifier, state.no_tag),
    )


@action("notifier", "queue", name="recheck", exists=lambda state: state.policy.recheck_after_keep)
def recheck_after_keep(state: State, notifier: Notifier, queue: Queue) -> Step:
    """A notifier that has put requests back reads the visible end again. If a request in the bucket has something to
    read that passes its filter, the notifier must traverse again, announcing no message; otherwise the notifier is
    done."""
    # GUARD
    guard = notifier.at(RECHECKING, queue) & state.lock_free(queue)
    # EFFECT
    news = [(each, state.fits(each) | state.is_told_moved(each)) for each in state.requests]
    again = any_of(each.in_table & each.at(queue) & here for each, here in news)
    rest, place = at_rest(state, notifier, queue)
    effect = assign(
        (notifier.counter, ite(again, DUE, rest)),
        (notifier.queue, ite(again, queue.index, place)),
    )
    return Step(guard, effect)


@action("queue")
def notify_start(state: State, queue: Queue) -> Step:
    """The dispatcher takes the bucket's requests after a message became visible. With the shortcut the dispatcher skips
    a bucket that looks empty, without waiting for the lock."""
    # GUARD
    guard = state.dispatcher.at(DUE, queue) & may_take(state, queue)
    # EFFECT
    effect = assign(*take(state, state.dispatcher, queue))
    return Step(guard, effect)


@action("request")
def notify_each(state: State, request: Request) -> Step:
    """The dispatcher checks one request it took. If there is something to read and the announced message passes its
    filter, or the deadline has passed, the request goes to the executor; otherwise it is kept.
    """
    return look(state, state.dispatcher, request)


@action("queue")
def notify_end(state: State, queue: Queue) -> Step:
    """The dispatcher has checked all requests it took, and puts the kept requests back into the bucket."""
    return keep(state, state.dispatcher, queue)


def comes_to(state: State, queue: Queue) -> Bool:
    """Whether the scanner may take this queue next, at the start of a round or within a round."""
    return state.round_is_due | (state.running & state.scanner.at(IDLE) & queue.unscanned)


def _round(state: State, queue: Queue, begins: Bool) -> Pairs:
    others = [other for other in state.queues if other is not queue]
    return (
        (state.next_scan, ite(begins, state.scan_ticks, state.next_scan)),
        (queue.unscanned, False),
        *((other.unscanned, other.unscanned | begins) for other in others),
    )


@action("queue")
def scan_start(state: State, queue: Queue) -> Step:
    """The scanner takes the bucket's requests when its period is over or its recheck found something. With the shortcut
    the scanner skips a bucket that looks empty, without waiting for the lock. The scanner's round then visits each of
    the other queues."""
    # GUARD
    guard = (comes_to(state, queue) | state.scanner.at(DUE, queue)) & may_take(state, queue)
    # EFFECT
    effect = assign(*take(state, state.scanner, queue), *_round(state, queue, state.round_is_due))
    return Step(guard, effect)


@action("request")
def scan_each(state: State, request: Request) -> Step:
    """The scanner checks one request it took. If there is something to read, or the deadline has passed, the request
    goes to the executor; otherwise it is kept.
    """
    return look(state, state.scanner, request)


@action("queue")
def scan_end(state: State, queue: Queue) -> Step:
    """The scanner has checked all requests it took, and puts the kept requests back into the bucket."""
    return keep(state, state.scanner, queue)


@action("queue", exists=lambda state: len(state.queues) > 1, urgent=never)
def scan_throws(state: State, queue: Queue) -> Step:
    """The store fails when the scanner asks for the queue's end, before it takes the bucket. The scanner skips the
    queue, or the whole round ends.
    """
    # GUARD
    guard = comes_to(state, queue)
    # EFFECT
    effect = dict(assign(*_round(state, queue, state.round_is_due)))
    if state.policy.scan_throw == "abort_round":
        effect |= assign(*((each.unscanned, False) for each in state.queues))
    return Step(guard, effect)


def walks_itself(state: State) -> bool:
    """Whether pulls recheck by traversing the bucket."""
    return walks_to_recheck(state.policy)


@action("request", name="recheck", exists=walks_itself)
def recheck_by_walk(state: State, request: Request) -> Step:
    """After the insert the pull's thread reads the visible end again. If there is something to read, the thread must
    traverse the bucket, including requests that arrived later."""
    walker = state.rechecker
    # GUARD
    guard = request.recheck_due & walker.at(IDLE)
    # EFFECT
    found = state.has_more(request) | state.is_told_moved(request)
    effect = assign(
        (request.recheck_due, FALSE),
        (walker.counter, ite(found, DUE, IDLE)),
        (walker.queue, ite(found, request.queue, state.no_queue)),
    )
    return Step(guard, effect)


@action("queue", exists=walks_itself)
def walk_start(state: State, queue: Queue) -> Step:
    """The pull's thread, whose recheck found something, takes the bucket's requests."""
    # GUARD
    guard = state.rechecker.at(DUE, queue) & may_take(state, queue)
    # EFFECT
    effect = assign(*take(state, state.rechecker, queue))
    return Step(guard, effect)


@action("request", exists=walks_itself)
def walk_each(state: State, request: Request) -> Step:
    """The pull's thread checks one request it took. If there is something to read, or the deadline has passed, the
    request goes to the executor; otherwise it is kept.
    """
    return look(state, state.rechecker, request)


@action("queue", exists=walks_itself)
def walk_end(state: State, queue: Queue) -> Step:
    """The pull's thread has checked all requests it took, and puts the kept requests back into the bucket."""
    return keep(state, state.rechecker, queue)


def _in_two_steps(state: State) -> bool:
    return may_orphan(state.policy, state.bounds)


@action("queue", exists=lambda state: sweeps(state.policy, state.bounds))
def sweep(state: State, queue: Queue) -> Step:
    """After its traversal the scanner checks whether the bucket is empty. The scanner removes an empty bucket
    immediately under the bucket's lock, or in a later step."""
    # GUARD
    guard = state.scanner.at(SWEEPING, queue)
    empty = state.bucket_looks_empty(queue)
    # EFFECT
    if _in_two_steps(state):
        removes = empty & queue.present
        effect = assign(*_to(state, ite(removes, REMOVING, IDLE), ite(removes, queue.index, state.no_queue)))
        return Step(guard, effect)
    effect = assign(*_to(state, IDLE, state.no_queue), (queue.present, queue.present & ~empty))
    return Step(guard & state.lock_free(queue), effect)


@action("queue", exists=_in_two_steps)
def remove_bucket(state: State, queue: Queue) -> Step:
    """The scanner removes the bucket that it saw empty. A thread that already holds a reference to the bucket keeps
    using it.
    """
    # GUARD
    guard = state.scanner.at(REMOVING, queue)
    # EFFECT
    effect = assign(
        *_to(state, IDLE, state.no_queue),
        (queue.present, False),
        *((each.orphan, each.orphan | (each.at(queue) & _uses_bucket(each))) for each in state.requests),
    )
    return Step(guard, effect)


def _uses_bucket(request: Request) -> Bool:
    return request.is_listed | request.is_("has_bucket", "rechecked")


def _to(state: State, counter: int | Int, queue: int | Int) -> Pairs:
    return ((state.scanner.counter, counter), (state.scanner.queue, queue))
