"""Properties of the broker's own consistency: its ends, lists and rounds, and the ranges of all variables."""

from __future__ import annotations

from typing import Final

from longpoll_spec.model import Model, Property
from longpoll_spec.properties.statement import Wrong, always, int_after, no_step
from longpoll_spec.state import WALKING
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, after, all_of, any_of, truth

NEW_INCARNATION: Final = frozenset({"truncate", "queue_deleted", "crash_and_recover"})
"""The actions after which a queue counts as a new one with the same name."""


def visible_is_monotone(model: Model) -> Property:
    """A queue's beginning, its visible end and the end of its log are in this order.

    Neither the beginning nor the visible end moves back, except by truncation, deletion or a crash.
    """
    begins = TRUE
    if model.bounds.has("truncate"):
        begins = all_of(queue.visible_start <= queue.visible_end for queue in model.state.queues)
    return no_step(visible_is_monotone, _wrong_ends(model), also=begins)


def _wrong_ends(model: Model) -> Wrong:
    for action in model.actions:
        for queue in model.state.queues:
            if not {each.args[0] for each in (queue.visible_start, queue.visible_end, queue.log_end)} & set(
                action.effect
            ):
                continue
            start, visible = int_after(queue.visible_start, action), int_after(queue.visible_end, action)
            back = (visible < queue.visible_end) | (start < queue.visible_start)
            yield (
                action,
                (truth(action.name not in NEW_INCARNATION) & back) | (int_after(queue.log_end, action) < visible),
            )


def table_is_tidy(model: Model) -> Property:
    """A request outside the table and the lists has no pending recheck and no heap entry.

    An idle request has no closed channel, no reference to a bucket and no news of the broker's role.
    """
    tidy: list[Bool] = []
    for each in model.state.requests:
        tidy.append((~each.is_listed).implies(~each.recheck_due & ~each.armed))
        tidy.append(
            (each.is_("idle") & (each.copies <= 0)).implies(~each.closed & ~each.orphan & (each.role_news <= 0))
        )
    return always(table_is_tidy, all_of(tidy))


def round_is_whole(model: Model) -> Property | None:
    """A scan whose store fails for one queue still visits every other queue of its round."""
    if len(model.state.queues) == 1:
        return None
    return no_step(round_is_whole, _cut_short(model))


def _cut_short(model: Model) -> Wrong:
    queues = model.state.queues
    for action in model.named("scan_throws"):
        others = [other for other in queues if other.name not in action.actors]
        to_come = [model.state.round_is_due | other.unscanned for other in others]
        still = [after(other.unscanned, action.effect) for other in others]
        yield action, any_of(before & ~then for before, then in zip(to_come, still, strict=True))


def lists_have_owners(model: Model) -> Property:
    """A request is in a notifier's list only while that notifier traverses; in place only one notifier traverses."""
    return always(lists_have_owners, all_of((*_owned(model), *_alone(model))))


def _owned(model: Model) -> list[Bool]:
    state = model.state
    found: list[Bool] = []
    for each in state.requests:
        owners: dict[int, list[Bool]] = {}
        for notifier in state.notifiers:
            for phase in (notifier.taken, notifier.kept):
                owners.setdefault(phase, []).append(notifier.at(WALKING) & state.walks_for(notifier, each))
        found += [each.phase.is_(phase).implies(any_of(here)) for phase, here in owners.items()]
    return found


def _alone(model: Model) -> list[Bool]:
    state = model.state
    if state.policy.take != "in_place":
        return []
    pairs = [(one, two) for one in state.notifiers for two in state.notifiers if one.name < two.name]
    return [~(one.at(WALKING, queue) & two.at(WALKING, queue)) for queue in state.queues for one, two in pairs]


def stays_in_range(model: Model) -> Property:
    """No step takes a variable out of its range: at a bound a guard disables the step, and no value is clamped."""
    return no_step(stays_in_range, _leaving(model))


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
