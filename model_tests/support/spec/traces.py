"""Checks with the plainest engine whether a trace shows what it claims; used for every other engine's tokens."""

from __future__ import annotations

from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.model import Trace
from longpoll_spec.specification import properties_of


def breaks_its_property(trace: Trace) -> bool:
    """Whether the trace ends in a state, or with a step, that its property forbids."""
    item = next(each for each in properties_of(trace.model) if each.name == trace.property_name)
    last = trace.steps[-1]
    if not evaluate(item.here, values_of(trace.model, last.state)):
        return True
    if last.action is None:
        return False
    before = values_of(trace.model, trace.steps[-2].state)
    return any(bool(evaluate(condition, before)) for label, condition in item.closing if label == last.action.label)
