"""Properties of wakeups: a request that is held while a message for it is visible will be checked."""

from __future__ import annotations

from longpoll_spec.model import Model, Property
from longpoll_spec.properties.statement import Wrong, always, no_step, no_tick
from longpoll_spec.state import DUE, RECHECKING, WALKING, Request, State
from longpoll_spec.terms import Bool, after, all_of, any_of


def lost(state: State, request: Request) -> Bool:
    """Whether a held request has a message to read that passes its filter, and only a scan or arrival will check it.

    The request is not lost if another step will check it: its own pending recheck, a notifier that rechecks after it
    puts requests back, or a notifier that is due at the bucket, has not taken it yet and announces no tag that excludes
    the request. A notifier that has taken the bucket before does not check the request.
    """
    will_look = [
        notifier.at(DUE) & ~request.orphan & state.walks_for(notifier, request) & state.announces_for(notifier, request)
        for notifier in state.notifiers
    ]
    if state.policy.recheck_after_keep:
        will_look += [
            (notifier.at(WALKING) | notifier.at(RECHECKING)) & ~request.orphan & state.walks_for(notifier, request)
            for notifier in state.notifiers
        ]
    return request.is_("held") & state.fits(request) & ~(request.recheck_due | any_of(will_look))


def no_lost_wakeup(model: Model) -> Property:
    """Every held request with something to read will be checked by some thread."""
    return always(no_lost_wakeup, all_of(~lost(model.state, each) for each in model.state.requests))


def lost_by_hold(model: Model) -> Property:
    """No request is lost because a message came between its read and its insert into the table."""
    return no_step(lost_by_hold, _losing(model, "hold"))


def lost_by_keep(model: Model) -> Property:
    """No request is lost because a message came between a notifier's take and its put-back."""
    return no_step(lost_by_keep, _losing(model, "notify_end", "scan_end", "walk_end", "notifier_throws"))


def _losing(model: Model, *names: str) -> Wrong:
    for action in model.named(*names):
        new = [
            ~lost(model.state, each) & after(lost(model.state, each), action.effect) for each in model.state.requests
        ]
        yield action, any_of(new)


def woken_within(model: Model) -> Property | None:
    """No time passes between an append that may be shown and the answer to a request that waits for it."""
    state = model.state
    return no_tick(woken_within, model, lambda each: state.running & ~each.is_("idle") & _waits(state, each))


def _waits(state: State, request: Request) -> Bool:
    """Whether the log contains a message for the request. A message that is not visible yet may match any request."""
    if not state.filters:
        return state.at_queue_of(request, lambda queue: request.offset < state.end_to_show(queue))
    return state.fits(request) | state.at_queue_of(request, lambda queue: queue.visible_end < state.end_to_show(queue))
