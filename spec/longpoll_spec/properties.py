"""What must always be true of the pull path, and why time can always pass.

Every property is a term over the state. Where it speaks of a step (`no time passes while ...`), its term says that no
such step is possible now. What has to be reached for these properties to mean something is in `reached`.

Leaves out properties of layers that the state does not have yet: tags, commits, limits, channels, several queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from longpoll_spec.model import Action, Kind, Model, Property
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
    somewhere = (each.open.implies(~each.is_("idle") | ~(each.copies <= 0)) for each in model.state.requests)
    return _always(nothing_dropped, all_of(somewhere))


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


def time_can_pass(model: Model) -> Property | None:
    """From every state a tick can be reached: whatever time waits for brings the tick nearer, and something can act."""
    if model.state.policy.tick == "free":
        return None
    urgent = [action for action in model.actions if action.urgent]
    before = rank(model.state)
    wrong = [(action, ~_less([_after(part, action) for part in before], before)) for action in urgent]
    return _no_step(time_can_pass, wrong, also=any_of(action.guard for action in model.actions))


def rank(state: State) -> tuple[Int, ...]:
    """What every urgent step makes smaller, most significant part first; no part is below zero.

    The messages to make visible; how far each request is from its answer; requests that a notifier keeps though they
    have something to read; a scan that is due; how far each notifier is from rest; requests that it has yet to look at.
    """
    stages = {"pulling": 10, "missed": 8, "rechecked": 6, "queued": 2}
    distance = [
        _sum(
            [
                _choose(each.phase, {each.phases[label]: n for label, n in stages.items() if label in each.phases})
                + ite(each.is_listed, 4, 0),
                each.copies,
                ite(each.recheck_due, 1, 0),
                ite(each.armed, 1, 0),
            ]
        )
        for each in state.requests
    ]
    in_lists = [
        each.phase.is_one_of({notifier.kept for notifier in state.notifiers}) & state.has_more(each)
        for each in state.requests
    ]
    scan_due = state.running & (state.next_scan <= 0)
    waits = any_of(each.is_("held") & state.has_more(each) for each in state.requests)
    rest = [
        _choose(notifier.counter, {DUE: 3, RECHECKING: ite(waits, 4, 1), WALKING: ite(waits, 5, 2)})
        for notifier in state.notifiers
    ]
    unseen = [each.phase.is_one_of({notifier.taken for notifier in state.notifiers}) for each in state.requests]
    return (
        state.log_end - state.visible_end,
        _sum(distance),
        _sum([ite(each, 1, 0) for each in in_lists]),
        ite(scan_due, 1, 0),
        _sum(rest),
        _sum([ite(each, 1, 0) for each in unseen]),
    )


def _choose(selector: Int, cases: dict[int, Int | int]) -> Int:
    chosen = const(0)
    for value, result in cases.items():
        chosen = ite(selector.is_(value), result, chosen)
    return chosen


def _sum(parts: list[Int]) -> Int:
    total = const(0)
    for part in parts:
        total = part + total
    return total


def _less(left: Iterable[Int], right: Iterable[Int]) -> Bool:
    """Lexicographic order."""
    less: Bool = FALSE
    for a, b in reversed(list(zip(left, right, strict=True))):
        less = (a < b) | (a.is_(b) & less)
    return less


def _after(term: Int, action: Action) -> Int:
    result: Term = substitute(term, action.effect)
    assert isinstance(result, Int)
    return result


def _always(text: Text, term: Bool, kind: Kind = "always") -> Property:
    return Property(text.__name__, kind, _sentence(text), term, here=term)


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
    answered_on_stop,
    visible_is_monotone,
    table_is_tidy,
    time_can_pass,
)
INDUCTIVE: Final[tuple[Text, ...]] = (lists_have_owners,)
