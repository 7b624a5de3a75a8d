"""Progress: no fair run leaves a pull unanswered for ever.

That every deadline is kept in ticks is a safety property, which is empty if time stops: a run may append, show and
truncate a message for ever. The fairness assumed is `law.fairness_of`. This module searches for a fair run in which one
pull stays open from some point on. Such a run ends up in one strongly connected part of the states in which the pull is
open; for each part it checks whether fairness allows staying there (Emerson and Lei, 1987).

A run may also stutter for ever, as in TLA+: each state is a part, and a step that changes nothing is not a step of an
action. Bounds must be small: the states are in Python's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from longpoll_spec.engines.python.compile import Packed, question, successors
from longpoll_spec.model import Model
from longpoll_spec.specification import Fairness, fairness_of

Step: TypeAlias = tuple[str, Packed]
"""The label of an action instance, and the state after it."""
Graph: TypeAlias = Mapping[Packed, Sequence[Step]]
TICK: Final = "tick"
STILL: Final = "tick that changes nothing"


@frozen
class Unanswered:
    """A pull that a fair run leaves open for ever: the request's slot, and the states among which the run stays."""

    request: int
    states: tuple[Packed, ...]
    steps: tuple[str, ...]
    """The labels of the steps among those states, each once; empty for a run that stutters."""


def unanswered(model: Model, fairness: Fairness | None = None) -> Unanswered | None:
    """A pull that some fair run never answers; None if every fair run answers every pull."""
    assumed = fairness_of(model) if fairness is None else fairness
    graph = graph_of(model)
    for request in model.state.requests:
        is_open = question(model, request.open)
        within = {state for state in graph if is_open(state)}
        for part in _fair_parts(graph, within, assumed):
            labels = dict.fromkeys(label for state in part for label, after in graph[state] if after in part)
            return Unanswered(request.index, tuple(sorted(part)), tuple(labels))
    return None


def graph_of(model: Model) -> Graph:
    """Every reachable state with its steps that change something; `STILL` marks a tick that changes nothing."""
    step, labels = successors(model), [action.label for action in model.actions]
    graph: dict[Packed, list[Step]] = {}
    waiting = [model.initial]
    while waiting:
        state = waiting.pop()
        if state not in graph:
            steps = [(labels[index], after) for index, after in step(state)]
            still = [(STILL, after) for label, after in steps if label == TICK and after == state]
            graph[state] = [each for each in steps if each[1] != state] + still
            waiting.extend(after for _, after in graph[state])
    return graph


def _fair_parts(graph: Graph, within: set[Packed], fairness: Fairness) -> Iterator[set[Packed]]:
    for part in parts_of(graph, within):
        taken = {label for state in part for label, after in graph[state] if after in part}
        if not fairness.time_passes or TICK in taken:
            if _is_weakly_fair(graph, part, taken, fairness.weak):
                yield part
        else:
            # Without a tick, only states in which time changes nothing can go on.
            still = {state for state in part if _is_still(graph[state])}
            for rest in parts_of(graph, still):
                moves = {label for state in rest for label, after in graph[state] if after in rest}
                if _is_weakly_fair(graph, rest, moves, fairness.weak):
                    yield rest


def _is_weakly_fair(graph: Graph, part: set[Packed], taken: set[str], weak: Iterable[str]) -> bool:
    always = set.intersection(*({label for label, _ in graph[state]} for state in part))
    return all(label in taken or label not in always for label in weak)


def _is_still(steps: Sequence[Step]) -> bool:
    """Whether a tick is enabled and changes nothing; `graph_of` records such a step as `STILL`."""
    return any(label == STILL for label, _ in steps)


def parts_of(graph: Graph, within: set[Packed]) -> Iterable[set[Packed]]:
    """The strongly connected components of some states (Tarjan, 1972), with an explicit stack because runs are long."""
    number: dict[Packed, int] = {}
    least: dict[Packed, int] = {}
    stack: list[Packed] = []
    on_stack: set[Packed] = set()
    found: list[set[Packed]] = []
    for root in within:
        if root in number:
            continue
        work = [(root, iter(graph[root]))]
        number[root] = least[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            state, steps = work[-1]
            after = next((after for _, after in steps if after in within and _is_news(after, number, on_stack)), None)
            if after is None:
                work.pop()
                if work:
                    least[work[-1][0]] = min(least[work[-1][0]], least[state])
                if least[state] == number[state]:
                    found.append(_popped(stack, on_stack, state))
            elif after in number:
                least[state] = min(least[state], number[after])
            else:
                number[after] = least[after] = len(number)
                stack.append(after)
                on_stack.add(after)
                work.append((after, iter(graph[after])))
    return found


def _is_news(state: Packed, number: Mapping[Packed, int], on_stack: set[Packed]) -> bool:
    return state not in number or state in on_stack


def _popped(stack: list[Packed], on_stack: set[Packed], last: Packed) -> set[Packed]:
    part: set[Packed] = set()
    while last not in part:
        state = stack.pop()
        on_stack.discard(state)
        part.add(state)
    return part
