"""Recovery after a crash: disk contents survive, memory does not. Visible messages: see `aspects.seen_survives`."""

from __future__ import annotations

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.properties.statement import Wrong, int_after, no_step
from longpoll_spec.state import IDLE, State
from longpoll_spec.terms import Bool, after, any_of


def only_disk_survives(model: Model) -> Property | None:
    """After a crash each log ends where it was flushed, no notifier or request is active, and a scan period begins."""
    if not model.bounds.has("crash"):
        return None
    return no_step(only_disk_survives, _surviving(model))


def _surviving(model: Model) -> Wrong:
    for action in model.named("crash_and_recover"):
        yield action, _something_else(model.state, action)


def _something_else(state: State, action: Action) -> Bool:
    walks = [~after(each.at(IDLE), action.effect) for each in state.notifiers]
    stands = [~after(each.is_("idle") & ~each.open, action.effect) for each in state.requests]
    ends = [~int_after(queue.log_end, action).is_(queue.flushed_end) for queue in state.queues]
    return any_of([*walks, *stands, *ends, ~int_after(state.next_scan, action).is_(state.scan_ticks)])
