"""Deadlines: a request leaves the table, and is answered, within the very tick in which its time is over."""

from __future__ import annotations

from longpoll_spec.model import Model, Property
from longpoll_spec.properties.statement import Wrong, always, no_step, no_tick
from longpoll_spec.terms import FALSE, all_of


def queued_by_deadline(model: Model) -> Property | None:
    """No time passes while a request stands in the table or in a notifier's list past its deadline."""
    return no_tick(queued_by_deadline, model, lambda each: each.is_listed & (each.deadline <= 0))


def answered_by_deadline(model: Model) -> Property | None:
    """No time passes while a request that the broker has is past its deadline: it is answered within that very tick."""
    return no_tick(answered_by_deadline, model, lambda each: ~each.is_("idle") & (each.deadline <= 0))


def not_answered_early(model: Model) -> Property | None:
    """No woken pull is answered as not found before its deadline, but for a change of the broker's role."""
    if model.bounds.has("truncate"):
        return None  # what a request was woken for may be cut off before it runs
    return no_step(not_answered_early, _early(model))


def _early(model: Model) -> Wrong:
    state = model.state
    for action in model.named("run"):
        request = state.requests[int(action.actors[0])]
        nothing = ~state.is_answered_by_read(request) & ~state.changed
        yield action, request.is_("queued") & nothing & (request.deadline > 0)


def no_lost_deadline(model: Model) -> Property | None:
    """A held request past its deadline can expire as soon as the bucket's lock is free."""
    state = model.state
    guards = {action.actors[0]: action.guard for action in model.named("expire")}
    if state.policy.expiry == "scan":
        return None
    past = [
        each.is_("held") & (each.deadline <= 0) & state.running & state.lock_free_of(each) for each in state.requests
    ]
    pairs = zip(state.requests, past, strict=True)
    return always(no_lost_deadline, all_of(here.implies(guards.get(each.index, FALSE)) for each, here in pairs))
