"""What must always be true of the pull path, and why time can always pass.

Every property is a term over the state. Where it speaks of a step (`no time passes while ...`), its term says that no
such step is possible now. What has to be reached for these properties to mean something is in `reached`.

Leaves out properties of layers that the state does not have yet: tags, commits, limits, channels, several queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.state import DUE, RECHECKING, WALKING, Request, State
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, after, all_of, any_of, const, ite, substitute

Text = Callable[[Model], Property | None]
Wrong = Iterable[tuple[Action, Bool]]
"""Steps, each with the condition under which it breaks the property."""


def lost(state: State, request: Request) -> Bool:
    """A held request has something to read, and nobody will look at it but a scan or the next arrival.

    Its own pending recheck will; so will a notifier that is due and has not taken the bucket yet, and one that rechecks
    after it puts back. A walker past its take will not.
    """
    will_look = [notifier.at(DUE) for notifier in state.notifiers]
    if state.policy.recheck_after_keep:
        will_look += [notifier.at(WALKING) | notifier.at(RECHECKING) for notifier in state.notifiers]
    return request.is_("held") & state.has_more(request) & ~(request.recheck_due | any_of(will_look))


def no_lost_wakeup(model: Model) -> Property:
    """No held request with something to read is left without anybody who will look at it."""
    return _always(no_lost_wakeup, all_of(~lost(model.state, each) for each in model.state.requests))


def lost_by_hold(model: Model) -> Property:
    """No insert into the table leaves its request lost: the message came between the read and the insert."""
    return _no_step(lost_by_hold, _losing(model, "hold"))


def lost_by_keep(model: Model) -> Property:
    """No put-back by a notifier leaves a request lost: the message came between the take and the put-back."""
    return _no_step(lost_by_keep, _losing(model, "notify_end", "scan_end", "notifier_throws"))


def _losing(model: Model, *names: str) -> Wrong:
    for action in model.named(*names):
        new = [
            ~lost(model.state, each) & after(lost(model.state, each), action.effect) for each in model.state.requests
        ]
        yield action, any_of(new)


def queued_by_deadline(model: Model) -> Property | None:
    """No time passes while a request stands in the table or in a notifier's list past its deadline."""
    return _no_tick(queued_by_deadline, model, lambda each: each.is_listed & (each.deadline <= 0))


def answered_by_deadline(model: Model) -> Property | None:
    """No time passes while a request that the broker has is past its deadline: it is answered within that very tick."""
    return _no_tick(answered_by_deadline, model, lambda each: ~each.is_("idle") & (each.deadline <= 0))


def woken_within(model: Model) -> Property | None:
    """Within no tick: no time passes between an append and the answer to a request that has waited for it."""
    appended = model.state.log_end
    return _no_tick(
        woken_within, model, lambda each: model.state.running & ~each.is_("idle") & (each.offset < appended)
    )


def no_lost_deadline(model: Model) -> Property | None:
    """A held request past its deadline can expire as soon as the bucket's lock is free."""
    state = model.state
    guards = {action.actors[0]: action.guard for action in model.named("expire")}
    if state.policy.expiry == "scan":
        return None
    past = [each.is_("held") & (each.deadline <= 0) & state.running & state.lock_free for each in state.requests]
    pairs = zip(state.requests, past, strict=True)
    return _always(no_lost_deadline, all_of(here.implies(guards.get(each.index, FALSE)) for each, here in pairs))


def answered_once(model: Model) -> Property:
    """A pull is not answered twice: the executor has at most one copy of a request, and none of an answered one."""
    once = ((each.copies <= 1) & ((each.copies <= 0) | each.open) for each in model.state.requests)
    return _always(answered_once, all_of(once))


def answer_is_right(model: Model) -> Property:
    """A read answers FOUND exactly if something is visible, and FOUND moves the next offset to the visible end."""
    return _no_step(answer_is_right, _wrong_answers(model))


def _wrong_answers(model: Model) -> Wrong:
    state = model.state
    for action in model.named("pull_read", "run"):
        request = state.requests[int(action.actors[0])]
        offset_next = substitute(request.offset, action.effect)
        assert isinstance(offset_next, Int)
        answers = ~after(request.open, action.effect)
        # A first read that finds nothing goes on to the hold; a woken one is always answered.
        should_answer = state.has_more(request) if action.name == "pull_read" else TRUE
        stays = offset_next.is_(request.offset)
        right_offset = ite(state.has_more(request), offset_next.is_(state.visible_end), stays)
        yield action, ~answers.is_(should_answer) | ~right_offset


def nothing_dropped(model: Model) -> Property:
    """A request whose pull waits for its answer stands somewhere: in a thread, the table, a list or the executor."""
    return _always(nothing_dropped, all_of(_stands(each) for each in model.state.requests))


def dropped_by_reject(model: Model) -> Property:
    """No refusal by the executor drops a request."""
    return _no_step(dropped_by_reject, _dropping(model, "executor_rejects"))


def dropped_by_throw(model: Model) -> Property:
    """No notifier that throws drops a request."""
    return _no_step(dropped_by_throw, _dropping(model, "notifier_throws"))


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
    return _always(answered_on_stop, model.state.running | nobody)


def visible_is_monotone(model: Model) -> Property:
    """The visible end never moves back, and never past the end of the log."""
    return _no_step(visible_is_monotone, _wrong_ends(model))


def _wrong_ends(model: Model) -> Wrong:
    state = model.state
    for action in model.actions:
        if {"visible_end", "log_end"} & set(action.effect):
            visible, log = _after(state.visible_end, action), _after(state.log_end, action)
            yield action, (visible < state.visible_end) | (log < visible)


def table_is_tidy(model: Model) -> Property:
    """Nothing is left of a request that is not in the table or a list: no recheck to come, no entry in the heap."""
    tidy = ((~each.is_listed).implies(~each.recheck_due & ~each.armed) for each in model.state.requests)
    return _always(table_is_tidy, all_of(tidy))


def lists_have_owners(model: Model) -> Property:
    """A request is in a notifier's list only while that notifier walks, and in place only one notifier walks."""
    state = model.state
    walks: dict[int, list[Bool]] = {}
    for notifier in state.notifiers:
        for phase in (notifier.taken, notifier.kept):
            walks.setdefault(phase, []).append(notifier.at(WALKING))
    owned = [each.phase.is_(phase).implies(any_of(at)) for each in state.requests for phase, at in walks.items()]
    alone = ~all_of(notifier.at(WALKING) for notifier in state.notifiers) if state.policy.take == "in_place" else TRUE
    return _always(lists_have_owners, all_of(owned) & alone)


def stays_in_range(model: Model) -> Property:
    """No step takes a variable out of its range: at a bound a guard disables the step, and nothing is cut off."""
    return _no_step(stays_in_range, _leaving(model))


def _leaving(model: Model) -> Wrong:
    ranges = {each.name: each for each in model.variables}
    for action in model.actions:
        outside: list[Bool] = []
        for name, value in action.effect.items():
            if isinstance(value, Int):
                outside.append(value < ranges[name].lower)
                greatest = ranges[name].greatest
                outside.append(FALSE if greatest is None else value > greatest)
        yield action, any_of(outside)


def time_can_pass(model: Model) -> Property | None:
    """From every state a tick can be reached: whatever time waits for brings the tick nearer, and something can act."""
    if model.state.policy.tick == "free":
        return None
    urgent = [action for action in model.actions if action.urgent]
    parts = rank(model.state)
    wrong = [(action, ~_gets_less(parts, action)) for action in urgent]
    return _no_step(time_can_pass, wrong, also=any_of(action.guard for action in model.actions))


Rank = tuple[tuple[tuple[Int, ...], ...], ...]
"""Parts, most significant first; a part is made of sums, one for each request or thread; a sum has its terms."""


def rank(state: State) -> Rank:
    """What every urgent step makes smaller; no part is below zero.

    The messages to make visible; how far each request is from its answer; requests that a notifier keeps though they
    have something to read; a scan that is due; how far each notifier is from rest; requests that it has yet to look at.
    """
    stages = {"pulling": 10, "missed": 8, "rechecked": 6}
    distance = [
        (
            *(_one_if(each.is_(label), far) for label, far in stages.items()),
            _one_if(each.is_listed, 4),
            each.copies + each.copies,
            _one_if(each.recheck_due),
            _one_if(each.armed),
        )
        for each in state.requests
    ]
    kept = {notifier.kept for notifier in state.notifiers}
    taken = {notifier.taken for notifier in state.notifiers}
    waits = any_of(each.is_("held") & state.has_more(each) for each in state.requests)
    unrest: dict[int, Int | int] = {DUE: 3, RECHECKING: ite(waits, 4, 1), WALKING: ite(waits, 5, 2)}
    return (
        ((state.log_end - state.visible_end,),),
        tuple(distance),
        tuple((_one_if(each.phase.is_one_of(kept) & state.has_more(each)),) for each in state.requests),
        ((_one_if(state.running & (state.next_scan <= 0)),),),
        tuple((_choose(notifier.counter, unrest),) for notifier in state.notifiers),
        tuple((_one_if(each.phase.is_one_of(taken)),) for each in state.requests),
    )


def _choose(selector: Int, cases: Mapping[int, Int | int]) -> Int:
    chosen = const(0)
    for value, result in cases.items():
        chosen = ite(selector.is_(value), result, chosen)
    return chosen


def _one_if(condition: Bool, weight: int = 1) -> Int:
    return ite(condition, weight, 0)


def _gets_less(parts: Rank, action: Action) -> Bool:
    """Whether the step makes the rank smaller, in lexicographic order; what the step does not touch cancels out.

    A part is smaller if one of its sums falls and none rises: more than the total asks for, and plain to a solver.
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
        after_step = _after(term, action)
        if after_step is not term:
            change = change + (after_step - term)
    return change


def _after(term: Int, action: Action) -> Int:
    result: Term = substitute(term, action.effect)
    assert isinstance(result, Int)
    return result


def _always(text: Text, term: Bool) -> Property:
    return Property(text.__name__, "always", _sentence(text), term, here=term)


def _no_step(text: Text, wrong: Wrong, also: Bool = TRUE) -> Property:
    closing = [(action, condition) for action, condition in wrong if condition is not FALSE]
    term = all_of(~(action.guard & condition) for action, condition in closing) & also
    labels = tuple((action.label, condition) for action, condition in closing)
    return Property(text.__name__, "always", _sentence(text), term, also, labels)


def _no_tick(text: Text, model: Model, condition: Callable[[Request], Bool]) -> Property | None:
    """None under free time, where time may pass at any moment and no deadline can be promised."""
    if model.state.policy.tick == "free":
        return None
    here = any_of(condition(request) for request in model.state.requests)
    return _no_step(text, [(tick, here) for tick in model.named("tick")])


def _sentence(text: Text) -> str:
    return " ".join((text.__doc__ or "").split())


ALWAYS: Final[tuple[Text, ...]] = (
    no_lost_wakeup,
    lost_by_hold,
    lost_by_keep,
    queued_by_deadline,
    answered_by_deadline,
    woken_within,
    no_lost_deadline,
    answered_once,
    answer_is_right,
    nothing_dropped,
    dropped_by_reject,
    dropped_by_throw,
    answered_on_stop,
    visible_is_monotone,
    table_is_tidy,
    time_can_pass,
)
INDUCTIVE: Final[tuple[Text, ...]] = (lists_have_owners, stays_in_range)
