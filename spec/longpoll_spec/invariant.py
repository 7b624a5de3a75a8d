"""The strengthening of the induction: statements that hold in every reachable state and that only the proof needs.

A property such as `no_lost_wakeup` is not inductive alone, because a step from an unreachable state that satisfies it
may lead to a state that breaks it. The statements in this module exclude the unreachable states from which a step
breaks a property. The statements are candidates and not axioms: `engines.smt.inductive` proves them together, and drops
those that a policy does not satisfy.

The engine also takes the properties themselves, and `lists_have_owners`, as candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from longpoll_spec.model import Model, Property
from longpoll_spec.state import DUE, IDLE, RECHECKING, WALKING, Request, State, Variable
from longpoll_spec.terms import FALSE, Bool, Int, all_of, any_of

Text = Callable[[Model], Iterable[Bool]]


def in_range(model: Model) -> Iterable[Bool]:
    """Every variable is within its range, for any timeout, scan period and number of messages."""
    for variable in model.variables:
        if not variable.truth:
            yield _within(variable)


def _within(variable: Variable) -> Bool:
    term, greatest = variable.term, variable.greatest
    assert isinstance(term, Int)
    above = term >= variable.lower
    return above if greatest is None else above & (term <= greatest)


def ends_in_order(model: Model) -> Iterable[Bool]:
    """Every visible message was appended, and flushed where visibility requires it; no more is flushed than appended.

    A queue does not begin after its visible end.
    """
    state = model.state
    for queue in state.queues:
        yield queue.visible_end <= state.end_to_show(queue)
        yield queue.visible_end <= queue.log_end
        yield queue.flushed_end <= queue.log_end
        yield queue.visible_start <= queue.visible_end


def nobody_waits_ahead(model: Model) -> Iterable[Bool]:
    """No request waits beyond the visible end, and without crashes no consumer has read beyond the visible end.

    A crash may lose messages that a consumer has read; the consumer's next read reports this. The statement leaves out
    queues that are truncated while requests wait in them.
    """
    state = model.state
    if not state.bounds.has("truncate"):
        early = ("idle", "pulling") if state.bounds.has("crash") else ()
        for each in state.requests:
            for queue in state.queues:
                yield each.at(queue).implies(each.is_(*early) | (each.offset <= queue.visible_end))


def queued_is_in_executor(model: Model) -> Iterable[Bool]:
    """A request is queued exactly if the executor has a copy of it."""
    for each in model.state.requests:
        yield each.is_("queued").is_(each.copies >= 1)


def standing_is_open(model: Model) -> Iterable[Bool]:
    """The pull of each request in a table, list or executor waits for its answer."""
    for each in model.state.requests:
        yield each.is_("idle") | each.open


def names_are_of_somebody(model: Model) -> Iterable[Bool]:
    """A request in a table, list or executor has a queue, and a notifier that is not idle has one too.

    A notifier that announces a tag is due or traversing.
    """
    state = model.state
    if len(state.queues) > 1:
        for each in state.requests:
            yield each.is_("idle") | ~each.queue.is_(state.no_queue)
        for notifier in state.notifiers:
            yield notifier.at(IDLE).is_(notifier.queue.is_(state.no_queue))
    yield state.announced.is_(state.no_tag) | state.dispatcher.at(DUE) | state.dispatcher.at(WALKING)


def passing_is_unread(model: Model) -> Iterable[Bool]:
    """If a message passes a request's filter, the request has not read this message yet."""
    state = model.state
    if state.filters:
        for each in state.requests:
            yield each.passes.implies(state.has_more(each))


def kept_is_watched(model: Model) -> Iterable[Bool]:
    """If traversals work in place, some thread will check a taken request that has something to read.

    The request's own recheck or a due dispatcher will check the request; both wait for the lock. The traversal itself
    may check a request that is not checked yet, unless the traversal announces another tag.
    """
    state = model.state
    if state.policy.take == "in_place":
        for each in state.requests:
            kept = each.phase.is_one_of({notifier.kept for notifier in state.notifiers})
            taken = each.phase.is_one_of({notifier.taken for notifier in state.notifiers})
            looks = any_of(
                notifier.at(WALKING) & state.walks_for(notifier, each) & state.announces_for(notifier, each)
                for notifier in state.notifiers
            )
            yield (kept & state.fits(each)).implies(_watched(state, each))
            if state.filters:
                yield (taken & state.fits(each)).implies(looks | _watched(state, each))


def held_is_watched(model: Model) -> Iterable[Bool]:
    """A held request that has something to read has a pending recheck, or a notifier that is due or rechecks."""
    # This statement is stronger than no_lost_wakeup, because a notifier that has taken the bucket does not count here.
    state = model.state
    for each in state.requests:
        rechecks = any_of(
            notifier.at(RECHECKING) & state.walks_for(notifier, each)
            for notifier in state.notifiers
            if state.policy.recheck_after_keep
        )
        yield (each.is_("held") & state.fits(each)).implies(_watched(state, each) | rechecks)


def _watched(state: State, request: Request) -> Bool:
    """Whether the request's own recheck is pending, or a notifier that would wake the request is due at its bucket."""
    due = any_of(
        notifier.at(DUE) & state.walks_for(notifier, request) & state.announces_for(notifier, request)
        for notifier in state.notifiers
    )
    return request.recheck_due | due


def rechecked_is_watched(model: Model) -> Iterable[Bool]:
    """If a request has something to read between its recheck under the lock and its insert, the dispatcher is due."""
    state = model.state
    if state.policy.recheck_after_hold == "in_lock":
        for each in state.requests:
            yield (each.is_("rechecked") & state.has_more(each)).implies(state.dispatcher.at(DUE))


def kept_has_time(model: Model) -> Iterable[Bool]:
    """A request that a notifier keeps is not past its deadline: the notifier has checked it, and no time has passed."""
    state = model.state
    for each in state.requests:
        kept = each.phase.is_one_of({notifier.kept for notifier in state.notifiers})
        yield kept.implies(each.deadline > 0)


def spent_is_taken(model: Model) -> Iterable[Bool]:
    """A one-shot heap entry is used up only while a notifier that will check the deadline has the request."""
    state = model.state
    if any(variable.name.startswith("armed_") for variable in model.variables):
        for each in state.requests:
            taken = each.phase.is_one_of({notifier.taken for notifier in state.notifiers})
            yield (each.is_listed & ~each.armed).implies(taken & (each.deadline <= 0))


def moved_is_watched(model: Model) -> Iterable[Bool]:
    """A held request whose offset no longer exists has a pending recheck, its own or a notifier's."""
    state = model.state
    if state.bounds.has("truncate"):
        for each in state.requests:
            rechecks = any_of(
                notifier.at(RECHECKING) & state.walks_for(notifier, each)
                for notifier in state.notifiers
                if state.policy.recheck_after_keep
            )
            kept = each.phase.is_one_of({notifier.kept for notifier in state.notifiers})
            waits = each.is_("held") | (kept if state.policy.take == "in_place" else FALSE)
            yield (waits & state.is_moved(each)).implies(_watched(state, each) | rechecks)


def queued_has_reason(model: Model) -> Iterable[Bool]:
    """A queued request has something to read, its deadline has passed, or a role change must be reported to it."""
    state = model.state
    if not state.bounds.has("truncate"):  # The message that woke a request may be truncated before the request runs.
        for each in state.requests:
            reason = state.is_answered_by_read(each) | (each.role_news > 0) | (each.deadline <= 0)
            yield each.is_("queued").implies(reason)


def held_knows_the_role(model: Model) -> Iterable[Bool]:
    """A running broker that answers on a role change holds no request whose read came before the change.

    Only after a change of the role can a request have news of the role, or a traversal have buckets to visit. The
    traversal is at a bucket that it has yet to visit.
    """
    state = model.state
    for queue in state.queues:
        yield queue.return_due.implies(state.changed)
        yield state.return_queue.is_(queue.index).implies(queue.return_due)
    yield state.is_master.implies(state.changed)
    for each in state.requests:
        yield (each.role_news > 0).implies(state.changed)
        yield ~(state.running & each.is_("held") & state.is_told_of_role(each))


STRENGTHENING: Final[tuple[Text, ...]] = (
    in_range,
    ends_in_order,
    nobody_waits_ahead,
    queued_is_in_executor,
    standing_is_open,
    names_are_of_somebody,
    passing_is_unread,
    kept_is_watched,
    held_is_watched,
    rechecked_is_watched,
    kept_has_time,
    spent_is_taken,
    moved_is_watched,
    queued_has_reason,
    held_knows_the_role,
)


def strengthening_of(model: Model) -> tuple[Property, ...]:
    """The statements that are added to a model's properties to make them inductive.

    Statements that do not apply to the model's policy are left out.
    """
    made = []
    own = model.policy.extension
    for text in (in_range,) if own is not None and own.is_alone else STRENGTHENING:
        term = all_of(text(model))
        if term.op != "true":
            made.append(Property(text.__name__, "inductive", " ".join((text.__doc__ or "").split()), term, here=term))
    return tuple(made)
