"""Crash: the process dies and restarts with the state on disk.

Source: `DefaultMessageStore.recover`. With synchronous flushing, 5.3.2 and later show only flushed messages
(b86059c7c1); 4.9.8 shows appended messages.
"""

from __future__ import annotations

from longpoll_spec.actions.commits import cut_commit
from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs, answered
from longpoll_spec.model import Step
from longpoll_spec.state import IDLE, Queue, Request, State, assign
from longpoll_spec.terms import FALSE, TRUE, Int, ite


def _exists(state: State) -> bool:
    return state.bounds.has("crash")


@action("queue", exists=_exists, urgent=lambda policy: policy.notify != "dispatcher_poll")
def flush(state: State, queue: Queue) -> Step:
    """The store flushes the appended messages to disk."""
    # GUARD
    guard = state.running & (queue.flushed_end < queue.log_end)
    # EFFECT
    effect = assign((queue.flushed_end, queue.log_end))
    return Step(guard, effect)


@action(exists=_exists, urgent=never)
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
        *((each.committed, _committed(state, each)) for each in state.requests),
        *(pair for each in state.requests for pair in _forgotten(each)),
    )
    return Step(guard, effect)


def _committed(state: State, request: Request) -> Int:
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
        # Deleting old messages does not require that they were flushed.
        (queue.visible_start, ite(end < queue.visible_start, end, queue.visible_start)),
        (queue.unscanned, FALSE),
        (queue.present, FALSE),
        (queue.return_due, FALSE),
    )


def _forgotten(request: Request) -> Pairs:
    nothing = [(each, FALSE) for each in (request.passes, request.wanted, request.commit_due)]
    return (*answered(request, TRUE), (request.copies, 0), *nothing)
