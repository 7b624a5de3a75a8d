"""Faults: the executor rejects, a notifier throws, the broker stops or crashes, a channel closes, a queue is truncated.

| fault    | source (4.9.8 unless noted)                                                                         |
|----------|-----------------------------------------------------------------------------------------------------|
| reject   | the executor's AbortPolicy                                                                          |
| throw    | no try/finally around the notify loop; `ReputMessageService.run` catches the exception and          |
|          | dispatches the same record again a millisecond later                                                |
| stop     | `BrokerController.shutdown` stops the hold service without answering                                |
| channel  | nothing in `PullRequestHoldService` listens for a closed channel (issue #8362); a wake reads the    |
|          | store, and its answer cannot be written                                                             |
| truncate | nothing notifies the hold service; a request whose offset no longer exists waits until its          |
|          | deadline, and the answer says that its offset moved                                                 |
| crash    | `DefaultMessageStore.recover`: the process restarts with the state on disk; with synchronous        |
|          | flushing, 5.3.2 and later show only flushed messages (b86059c7c1), 4.9.8 shows appended ones        |
"""

from __future__ import annotations

from longpoll_spec.actions.commits import cut_commit
from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.traversal import ends_walk, put_back
from longpoll_spec.actions.wake import Pairs, answered, dropped, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, WALKING, Notifier, Queue, Request, State, assign
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, all_of, any_of, const, ite, truth


@action("request", urgent=never)
def executor_rejects(state: State, request: Request) -> Step:
    """The executor rejects a request: the request is dropped, or answered as busy."""
    # GUARD
    guard = request.is_("queued") & ~(request.copies <= 0)
    others = any_of(~(other.copies <= 0) for other in state.requests if other is not request)
    guard &= state.refuses_beside.implies(others)
    # EFFECT
    outcome = answered if state.policy.on_reject == "answer_busy" else dropped
    effect = assign((request.copies, request.copies - 1), *outcome(request))
    return Step(guard, effect)


@action("notifier", "request", urgent=never)
def notifier_throws(state: State, notifier: Notifier, request: Request) -> Step:
    """A notifier throws while it checks a request. Either its whole list is dropped, and the dispatcher, interrupted by
    the exception, must announce the same message again; or the whole list goes back into the bucket and the
    traversal ends; or the one request is answered with an error and the traversal continues.
    """
    # GUARD
    guard = notifier.at(WALKING) & request.phase.is_(notifier.taken) & state.walks_for(notifier, request)
    # EFFECT
    if state.policy.on_throw == "answer_and_go_on":
        return Step(guard, assign(*answered(request)))
    mine = (notifier.taken, notifier.kept)
    lists = [(each, each.phase.is_one_of(mine) & state.walks_for(notifier, each)) for each in state.requests]
    if state.policy.on_throw == "drop_rest":
        pairs = [pair for each, here in lists for pair in dropped(each, here)]
        # `ReputMessageService.doReput` adds to `reputFromOffset` only after the listener has returned.
        ends = ((notifier.counter, DUE),) if notifier is state.dispatcher else ends_walk(state, notifier)
    else:
        pairs = [pair for each, here in lists for pair in put_back(state, each, here)]
        ends = ends_walk(state, notifier)
    return Step(guard, assign(*ends, *pairs))


@action(urgent=never)
def stop(state: State) -> Step:
    """The broker is stopped: no append, pull, dispatch or scan begins any more. Held requests are answered under the
    bucket's lock, or left unanswered.
    """
    # The model takes all buckets' locks at once. Taking the locks one after another makes no difference, because a
    # stopping broker that answers its requests holds no new requests. GUARD
    guard = state.running & all_of(state.lock_free(queue) for queue in state.queues)
    # EFFECT
    answers = state.policy.on_stop == "answer"
    pairs = [pair for each in state.requests if answers for pair in answered(each, each.in_table)]
    ended: list[tuple[Term, Term]] = [
        pair for queue in state.queues for pair in ((queue.unscanned, FALSE), (queue.return_due, FALSE))
    ]
    ended.append((state.return_queue, state.no_queue))
    effect = assign((state.running, FALSE), (state.next_scan, 0), *ended, *pairs)
    return Step(guard, effect)


@action("request", exists=lambda state: state.bounds.has("channels"), urgent=never)
def channel_closes(state: State, request: Request) -> Step:
    """The channel of a waiting pull closes. The request stays where it is, or leaves the table at once under the
    bucket's lock. The consumer no longer waits for an answer.
    """
    drops = state.policy.on_close == "drop"
    # GUARD
    guard = request.open & ~request.closed
    if drops:
        guard &= state.lock_free_of(request)
    # EFFECT
    forgotten = request.is_("idle") & (request.copies <= 0)
    ends = forgotten | request.is_("held") if drops else forgotten
    others = [pair for pair in answered(request, ends) if pair[0] is not request.closed]
    effect = assign(*others, (request.closed, ~ends))
    return Step(guard, effect)


def _has_truncate(state: State) -> bool:
    return state.bounds.has("truncate")


@action("queue", exists=_has_truncate, urgent=never)
def trim(state: State, queue: Queue) -> Step:
    """The queue's first message is deleted because of its age, so the queue begins later. Waiting requests are at the
    queue's end and are not affected. A read below the beginning returns where the queue begins.
    """
    # GUARD
    guard = state.running & (queue.visible_start < queue.visible_end)
    # EFFECT
    effect = assign((queue.visible_start, queue.visible_start + 1))
    return Step(guard, effect)


@action("queue", exists=_has_truncate, urgent=never)
def truncate(state: State, queue: Queue) -> Step:
    """The queue loses its last message. Requests that wait at a greater offset are woken under the bucket's lock, or
    left waiting.
    """
    # GUARD
    guard = _may_shrink(state, queue)
    # EFFECT
    effect = assign(*_shrunk(state, queue, queue.visible_end - 1, cuts=state.policy.on_truncate == "wake"))
    return Step(guard, effect)


@action("queue", exists=_has_truncate, urgent=never)
def queue_deleted(state: State, queue: Queue) -> Step:
    """The queue is deleted, and a queue of the same name begins at offset 0. Requests that wait at a greater offset are
    woken under the bucket's lock, or left waiting. The broker may delete the offsets that groups committed in the
    deleted queue."""
    # GUARD
    guard = _may_shrink(state, queue)
    # EFFECT
    effect = assign(*_shrunk(state, queue, const(0), cuts=state.policy.on_truncate != "ignore"))
    return Step(guard, effect)


def _may_shrink(state: State, queue: Queue) -> Bool:
    free = [state.lock_free(queue)] if state.policy.on_truncate == "wake" else []
    room = [each.may_be_queued for each in state.requests]
    return all_of((state.running, state.dispatcher.at(IDLE), queue.visible_end > 0, *free, *room))


def _shrunk(state: State, queue: Queue, end: Int, *, cuts: bool) -> Pairs:
    wakes = truth(state.policy.on_truncate == "wake")
    read_all = [(each, each.at(queue) & (each.offset >= end)) for each in state.requests]
    return (
        (queue.log_end, end),
        (queue.visible_end, end),
        (queue.visible_start, ite(queue.visible_start > end, end, queue.visible_start)),
        (queue.flushed_end, ite(queue.flushed_end > end, end, queue.flushed_end)),
        *(
            pair
            for each in state.requests
            for pair in to_executor(each, wakes & each.is_("held") & each.at(queue) & (each.offset > end))
        ),
        *(cut_commit(each, queue, end, cuts=cuts) for each in state.requests),
        *((each.passes, each.passes & ~here) for each, here in read_all),
        *((each.wanted, each.wanted & ~here) for each, here in read_all),
    )


def _has_crash(state: State) -> bool:
    return state.bounds.has("crash")


@action("queue", exists=_has_crash, urgent=lambda policy: policy.notify != "dispatcher_poll")
def flush(state: State, queue: Queue) -> Step:
    """The store flushes the appended messages to disk."""
    # GUARD
    guard = state.running & (queue.flushed_end < queue.log_end)
    # EFFECT
    effect = assign((queue.flushed_end, queue.log_end))
    return Step(guard, effect)


@action(exists=_has_crash, urgent=never)
def crash_and_recover(state: State) -> Step:
    """The broker's process dies and restarts: every connection and all memory are gone, and the log ends where it was
    last flushed. A queue that has lost all its remaining messages begins at that end.
    """
    # GUARD
    guard = state.running
    # EFFECT
    effect = assign(
        (state.next_scan, state.scan_ticks),
        (state.announced, state.no_tag),
        (state.return_queue, state.no_queue),
        *(pair for each in state.notifiers for pair in ((each.counter, IDLE), (each.queue, state.no_queue))),
        *(pair for queue in state.queues for pair in _recovered(queue)),
        *((each.committed, _committed_after_crash(state, each)) for each in state.requests),
        *(pair for each in state.requests for pair in _forgotten(each)),
    )
    return Step(guard, effect)


def _committed_after_crash(state: State, request: Request) -> Int:
    committed = request.committed
    for queue in state.queues:
        _, cut = cut_commit(request, queue, _shown(queue), cuts=state.policy.on_truncate == "wake")
        committed = ite(request.at(queue), cut, committed)
    return committed


def _shown(queue: Queue) -> Int:
    return ite(queue.flushed_end < queue.visible_end, queue.flushed_end, queue.visible_end)


def _recovered(queue: Queue) -> Pairs:
    end = queue.flushed_end
    return (
        (queue.log_end, end),
        (queue.visible_end, _shown(queue)),
        # Old messages may be deleted before they are flushed, so the log may end before the queue begins.
        (queue.visible_start, ite(end < queue.visible_start, end, queue.visible_start)),
        (queue.unscanned, FALSE),
        (queue.present, FALSE),
        (queue.return_due, FALSE),
    )


def _forgotten(request: Request) -> Pairs:
    nothing = [(each, FALSE) for each in (request.passes, request.wanted, request.commit_due)]
    return (*answered(request, TRUE), (request.copies, 0), *nothing)
