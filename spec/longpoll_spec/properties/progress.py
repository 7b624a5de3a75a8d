"""The property that time can always pass: every urgent step lowers a rank, so a tick comes nearer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.properties.statement import int_after, no_step
from longpoll_spec.state import DUE, RECHECKING, REMOVING, SWEEPING, WALKING, Notifier, Request, State
from longpoll_spec.terms import FALSE, Bool, Int, all_of, any_of, const, ite


def time_can_pass(model: Model) -> Property | None:
    """From every state a tick can be reached: urgent steps bring it nearer, and one of them or a tick is enabled."""
    if model.state.policy.tick == "free" or model.bounds.has("lateness"):
        return None
    urgent = [action for action in model.actions if action.urgent]
    parts = rank(model.state)
    wrong = [(action, ~_gets_less(parts, action)) for action in urgent]
    due = [action.guard for action in (*urgent, *model.named("tick"))]  # Actions that are not urgent need never happen.
    return no_step(time_can_pass, wrong, also=any_of(due))


Rank = tuple[tuple[tuple[Int, ...], ...], ...]
"""The parts of a rank, most significant first. A part has one sum per request or thread, and a sum is a tuple of terms.
"""


def rank(state: State) -> Rank:
    """A rank that every urgent step lowers.

    No part is negative, so only finitely many urgent steps can follow each other.

    The parts are, in this order: messages to flush and to make visible; each request's distance from its answer;
    whether a tag is announced; requests that a notifier keeps although they have something to read; the rest of a due
    scan, and of a traversal after the master's return; each notifier's distance from rest; requests that a notifier has
    yet to check. The announced tag comes before the kept requests, because a traversal that announces a tag may keep a
    request that has something to read, and a traversal that announces none follows it.
    """
    taken = {notifier.taken for notifier in state.notifiers}
    due = _one_if(state.running & (state.next_scan <= 0), len(state.queues))
    return (
        tuple((queue.log_end - queue.flushed_end,) for queue in state.queues if state.bounds.has("crash")),
        tuple((queue.log_end - queue.visible_end,) for queue in state.queues),
        tuple(_distance(each) for each in state.requests),
        ((_one_if(~state.announced.is_(state.no_tag)),),),
        tuple((_one_if(_kept_for_nothing(state, each)),) for each in state.requests),
        ((due, *(_one_if(queue.unscanned) for queue in state.queues)),),
        (_return_walk(state),),
        tuple((_unrest(state, notifier),) for notifier in state.notifiers),
        tuple((_one_if(each.phase.is_one_of(taken)),) for each in state.requests),
    )


def _distance(request: Request) -> tuple[Int, ...]:
    stages = {"pulling": 12, "missed": 10, "has_bucket": 9, "rechecked": 8}
    return (
        *(_one_if(request.is_(label), far) for label, far in stages.items()),
        _one_if(request.is_listed, 4),
        request.copies + request.copies,
        _one_if(request.recheck_due),
        _one_if(request.armed),
        _one_if(request.commit_due),
    )


def _return_walk(state: State) -> tuple[Int, ...]:
    unseen = _one_if(state.return_queue.is_(state.no_queue)) if state.return_queue.op == "var" else const(0)
    return (unseen, *(_one_if(queue.return_due, 2) for queue in state.queues))


def _kept_for_nothing(state: State, request: Request) -> Bool:
    """Whether a notifier keeps a request that has something to read, without an announced tag that explains this."""
    kept = {notifier.kept for notifier in state.notifiers}
    explained = request.phase.is_(state.dispatcher.kept) & state.walks_for(state.dispatcher, request)
    told = explained & state.dispatcher.at(WALKING) & ~state.announced.is_(state.no_tag)
    return request.phase.is_one_of(kept) & (state.fits(request) | state.is_told_moved(request)) & ~told


def _unrest(state: State, notifier: Notifier) -> Int:
    """A notifier's distance from rest, greater if a request in the bucket will make it traverse again."""
    waits = any_of(
        each.in_table & (state.fits(each) | state.is_told_moved(each)) & state.walks_for(notifier, each)
        for each in state.requests
    )
    return _choose(
        notifier.counter,
        {
            DUE: 5,
            RECHECKING: ite(waits, 6, 3),
            WALKING: ite(waits, 7, 4),
            SWEEPING: 2,
            REMOVING: 1,
        },
    )


def _choose(selector: Int, cases: Mapping[int, Int | int]) -> Int:
    chosen = const(0)
    for value, result in cases.items():
        chosen = ite(selector.is_(value), result, chosen)
    return chosen


def _one_if(condition: Bool, weight: int = 1) -> Int:
    return ite(condition, weight, 0)


def _gets_less(parts: Rank, action: Action) -> Bool:
    """Whether the step lowers the rank, in lexicographic order.

    A part of the rank is lower if one of its sums falls and no sum rises. Comparing sums is stronger than comparing
    totals, and easier for a solver, because unchanged sums cancel.
    """
    less: Bool = FALSE
    for part in reversed(parts):
        changes = [_change(terms, action) for terms in part]
        falls = all_of(change <= 0 for change in changes) & any_of(change < 0 for change in changes)
        less = falls | (all_of(change.is_(0) for change in changes) & less)
    return less


def _change(terms: Iterable[Int], action: Action) -> Int:
    change = const(0)
    for term in terms:
        after_step = int_after(term, action)
        if after_step is not term:
            change = change + (after_step - term)
    return change
