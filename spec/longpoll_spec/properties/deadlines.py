"""Properties of deadlines: each request has its pull's deadline, and is answered in the tick in which it expires.

`deadline_is_its_pulls` is needed, because a broker that renews the deadlines of kept requests would never be late.
"""

from __future__ import annotations

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.properties.statement import Wrong, always, int_after, no_step, no_tick
from longpoll_spec.state import Request
from longpoll_spec.terms import FALSE, Bool, after, all_of, any_of


def deadline_is_its_pulls(model: Model) -> Property:
    """A request's deadline is set once, by its pull, and falls by one with each tick until it has passed."""
    return no_step(deadline_is_its_pulls, _other_deadlines(model))


def _other_deadlines(model: Model) -> Wrong:
    for action in model.actions:
        yield action, any_of(_is_other(model, action, each) for each in model.state.requests)


def _is_other(model: Model, action: Action, request: Request) -> Bool:
    """Whether the step changes the request's deadline in another way than by one less for each tick.

    This function repeats the rule, independently of `tick` and `next_pull`. Idle slots are not checked.
    """
    before, then = request.deadline, int_after(request.deadline, action)
    stood, stands = ~request.is_("idle"), after(~request.is_("idle"), action.effect)
    left = then.is_(before)
    if action.name == "tick":
        left = ((before > 0) & (then + 1).is_(before)) | (before.is_(0) & then.is_(0))
    return stands & ((stood & ~left) | (~stood & ~then.is_(model.state.hold_ticks)))


def queued_by_deadline(model: Model) -> Property | None:
    """No time passes while a request is in the table or in a notifier's list past its deadline."""
    return no_tick(queued_by_deadline, model, lambda each: each.is_listed & (each.deadline <= 0))


def answered_by_deadline(model: Model) -> Property | None:
    """No time passes while a request that the broker has is past its deadline: it is answered in the same tick."""
    return no_tick(answered_by_deadline, model, lambda each: ~each.is_("idle") & (each.deadline <= 0))


def not_answered_early(model: Model) -> Property:
    """No woken pull is answered as not found before its deadline, except to report a change of the broker's role.

    The messages that a pull was woken for may be truncated before it runs. If truncation is possible, the check is that
    no pull is woken early without a reason.
    """
    return no_step(not_answered_early, _woken_early(model) if model.bounds.has("truncate") else _early(model))


def _early(model: Model) -> Wrong:
    for action in model.named("run"):
        request = model.state.requests[int(action.actors[0])]
        yield action, request.is_("queued") & _has_time_and_no_news(model, request)


def _woken_early(model: Model) -> Wrong:
    for action in model.actions:
        woken = [
            ~each.is_("queued") & after(each.is_("queued") & _has_time_and_no_news(model, each), action.effect)
            for each in model.state.requests
            if each.phase.args[0] in action.effect
        ]
        yield action, any_of(woken)


def _has_time_and_no_news(model: Model, request: Request) -> Bool:
    """Whether the request has nothing to read and no news, and its deadline has not passed.

    This function repeats the rule, because `answer_is_right` checks the condition under which a read answers at once.
    """
    at_end = any_of(request.at(queue) & request.offset.is_(queue.visible_end) for queue in model.state.queues)
    return at_end & (request.role_news <= 0) & (request.deadline > 0)


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
