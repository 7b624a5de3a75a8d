"""Answers: each pull gets one, the right one, and none is forgotten."""

from __future__ import annotations

from longpoll_spec.model import Model, Property
from longpoll_spec.properties.statement import Wrong, always, int_after, no_step
from longpoll_spec.state import Request
from longpoll_spec.terms import FALSE, TRUE, Bool, after, all_of, any_of, ite


def answered_once(model: Model) -> Property:
    """A pull is not answered twice: the executor has at most one copy of a request, and none of an answered one."""
    once = ((each.copies <= 1) & ((each.copies <= 0) | each.open) for each in model.state.requests)
    return always(answered_once, all_of(once))


def answer_is_right(model: Model) -> Property:
    """A read answers at once exactly if its offset is not the visible end, and moves it there or to the beginning."""
    return no_step(answer_is_right, _wrong_answers(model))


def _wrong_answers(model: Model) -> Wrong:
    state = model.state
    for action in model.named("pull_read", "run"):
        request = state.requests[int(action.actors[0])]
        offset_next = int_after(request.offset, action)
        answers = ~after(request.open, action.effect)
        # A first read that finds nothing goes on to the hold; a woken one is always answered.
        ends = state.is_answered_by_read(request)
        full = state.is_full if state.policy.hold_limit == "at_read" else FALSE
        should_answer = ends | full if action.name == "pull_read" else TRUE
        stays = offset_next.is_(request.offset)
        right_offset = ite(ends, offset_next.is_(state.offset_after_read(request)), stays)
        yield action, ~answers.is_(should_answer) | ~right_offset


def nothing_skipped(model: Model) -> Property | None:
    """No message with the very tag that a consumer wants is passed over: the broker's test by hash lets it through."""
    if not model.state.filters:
        return None
    let_through = (each.wanted.implies(each.passes) for each in model.state.requests)
    passed = (each.passes.implies(model.state.has_more(each)) for each in model.state.requests)
    return always(nothing_skipped, all_of((*let_through, *passed)))


def nothing_dropped(model: Model) -> Property:
    """A request whose pull waits for its answer stands somewhere: in a thread, the table, a list or the executor."""
    return always(nothing_dropped, all_of(_stands(each) for each in model.state.requests))


def dropped_by_reject(model: Model) -> Property:
    """No refusal by the executor drops a request."""
    return no_step(dropped_by_reject, _dropping(model, "executor_rejects"))


def dropped_by_throw(model: Model) -> Property:
    """No notifier that throws drops a request."""
    return no_step(dropped_by_throw, _dropping(model, "notifier_throws"))


def _dropping(model: Model, *names: str) -> Wrong:
    for action in model.named(*names):
        stands = [_stands(each) for each in model.state.requests]
        yield action, any_of(here & ~after(here, action.effect) for here in stands)


def _stands(request: Request) -> Bool:
    """If the request's pull waits for its answer, it is in a thread, the table, a list or the executor."""
    return request.open.implies(~request.is_("idle") | ~(request.copies <= 0))


def answered_on_stop(model: Model) -> Property:
    """No request stands in the table of a stopped broker."""
    nobody = all_of(~each.is_("held") for each in model.state.requests)
    return always(answered_on_stop, model.state.running | nobody)
