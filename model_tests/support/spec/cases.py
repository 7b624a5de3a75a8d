"""Models by name, quick and long cases of a parametrised test, and a check of traces.

A test over every preset, knob or part checks the same for each of them; the quick suite runs one case of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest

from longpoll_spec.bounds import named
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.model import Model, Trace
from longpoll_spec.policy import policy_named
from longpoll_spec.specification import properties_of, specification_of

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


Case = TypeVar("Case")


def quick_if(cases: Iterable[Case], is_quick: Callable[[Case], bool]) -> list[ParameterSet]:
    """Returns all cases in order, with the mark `long` on each case that is not quick."""
    return [pytest.param(case, marks=() if is_quick(case) else pytest.mark.long) for case in cases]


def model_named(policy_name: str, bounds: str = "tiny", *, requests: int | None = None) -> Model:
    """Returns the model of a policy, such as `strict+recheck=walk`, within bounds. `requests` overrides their number.

    Raises the errors of `policy_named` and `named`.
    """
    policy = policy_named(policy_name)
    return specification_of(policy, named(bounds, policy, requests=requests))


def breaks_its_property(trace: Trace) -> bool:
    """Whether the trace ends with a state or a step that its property forbids."""
    item = next(each for each in properties_of(trace.model) if each.name == trace.property_name)
    last = trace.steps[-1]
    if not evaluate(item.here, values_of(trace.model, last.state)):
        return True
    if last.action is None:
        return False
    before = values_of(trace.model, trace.steps[-2].state)
    return any(bool(evaluate(condition, before)) for label, condition in item.closing if label == last.action.label)
