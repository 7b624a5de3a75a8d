"""Properties of answers: each pull gets exactly one answer, the answer is right, and no pull is lost."""

from __future__ import annotations

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.properties.statement import Wrong, always, int_after, no_step
from longpoll_spec.state import Queue, Request
from longpoll_spec.terms import FALSE, Bool, after, all_of, any_of, ite


def answered_once(model: Model) -> Property:
    """A pull is not answered twice: the executor has at most one copy of a request, and none of an answered one."""
    once = ((each.copies <= 1) & ((each.copies <= 0) | each.open) for each in model.state.requests)
    return always(answered_once, all_of(once))


def answer_is_right(model: Model) -> Property:
    """A read answers at once exactly if its offset is not the visible end; the next offset is that end or the start."""
    return no_step(answer_is_right, _wrong_answers(model))


def _wrong_answers(model: Model) -> Wrong:
    """The steps that answer wrongly.

    The condition repeats the rule for each queue, independently of the read's action.
    """
    for action in model.named("pull_read", "run"):
        request = model.state.requests[int(action.actors[0])]
        yield (
            action,
            any_of(request.at(queue) & _is_wrong(model, action, request, queue) for queue in model.state.queues),
        )


def _is_wrong(model: Model, action: Action, request: Request, queue: Queue) -> Bool:
    """Whether a read of this queue has another effect than the queue's ends require."""
    offset_next, answers = int_after(request.offset, action), ~after(request.open, action.effect)
    misses = request.offset.is_(queue.visible_end)
    # A first read that finds nothing continues to the hold, if there is room and the broker does not redirect the
    # consumer to the master. The read of a woken pull always answers.
    full = FALSE
    if model.policy.hold_limit == "at_read" and model.bounds.has("limit"):
        full = any_of(each.is_listed for each in model.state.requests)
    if model.policy.after_return == "redirect":
        full |= model.state.changed & ~model.state.is_master
    may_go_on = misses & ~full if action.name == "pull_read" else FALSE
    before_beginning = request.offset < queue.visible_start
    moves_to = ite(before_beginning, queue.visible_start, queue.visible_end)
    return ~answers.is_(~may_go_on) | ~offset_next.is_(ite(misses, request.offset, moves_to))


def offset_goes_on(model: Model) -> Property:
    """A client's offset follows its last message: only an answer, or a switch to a queue's end, changes the offset."""
    return no_step(offset_goes_on, _moving_offsets(model))


def _moving_offsets(model: Model) -> Wrong:
    for action in model.actions:
        if action.name not in {"pull_read", "run"}:
            yield action, any_of(_is_moved(model, action, each) for each in model.state.requests)


def _is_moved(model: Model, action: Action, request: Request) -> Bool:
    """Whether the step changes the request's offset, other than by a switch to the end of another queue.

    This function repeats the rule, independently of `next_pull`. The first pull of a request is a switch too.
    """
    moved = ~int_after(request.offset, action).is_(request.offset)
    if action.name != "next_pull" or moved is FALSE:
        return moved
    may_turn = FALSE
    for queue in model.state.queues:
        stays = request.at(queue)
        if model.state.filters:
            stays &= int_after(request.wants, action).is_(request.wants)
        begins_there = int_after(request.offset, action).is_(queue.visible_end)
        may_turn |= after(request.at(queue), action.effect) & ~stays & begins_there
    return moved & ~may_turn


def nothing_skipped(model: Model) -> Property | None:
    """No message with the exact tag that a consumer wants is skipped: the broker's hash test lets it through."""
    if not model.state.filters:
        return None
    let_through = (each.wanted.implies(each.passes) for each in model.state.requests)
    passed = (each.passes.implies(model.state.has_more(each)) for each in model.state.requests)
    return always(nothing_skipped, all_of((*let_through, *passed)))


def nothing_dropped(model: Model) -> Property:
    """A request whose pull waits for its answer is somewhere: in a thread, the table, a list or the executor."""
    return always(nothing_dropped, all_of(stands(each) for each in model.state.requests))


def dropped_by_reject(model: Model) -> Property:
    """No rejection by the executor drops a request."""
    return no_step(dropped_by_reject, _dropping(model, "executor_rejects"))


def dropped_by_throw(model: Model) -> Property:
    """No exception in a notifier drops a request."""
    return no_step(dropped_by_throw, _dropping(model, "notifier_throws"))


def _dropping(model: Model, *names: str) -> Wrong:
    for action in model.named(*names):
        before = [stands(each) for each in model.state.requests]
        yield action, any_of(here & ~after(here, action.effect) for here in before)


def stands(request: Request) -> Bool:
    """If the request's pull waits for its answer, it is in a thread, the table, a list or the executor."""
    return request.open.implies(~request.is_("idle") | ~(request.copies <= 0))


def answered_on_stop(model: Model) -> Property:
    """The table of a stopped broker is empty."""
    nobody = all_of(~each.is_("held") for each in model.state.requests)
    return always(answered_on_stop, model.state.running | nobody)
