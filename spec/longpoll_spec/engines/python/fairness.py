"""Progress: no run that is fair leaves a pull without its answer for ever.

That every deadline is kept in ticks is safety, and says nothing if nobody ticks: a run may append, show and cut back a
message again and again. What is assumed of a run is fairness (`law.fairness_of`); here every run is looked for that
is fair and in which one pull stays open from some moment on. Such a run stays at last in one strongly connected part of
the states in which the pull is open, and each part is asked whether fairness allows that (Emerson and Lei, 1987).

A run may also do nothing for ever, as in TLA+: each state is a part of its own at least, and a step that changes
nothing is no step of an action. Leaves out proofs, which need no bounds, and large spaces: the states are in Python's
memory.
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
    """The labels of what may happen among those states, each once; none if nothing does."""


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
    """Every state that a run reaches, with the steps from it that change something; `STILL` is a tick that does not."""
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
    """Each part of `within` in which a run can stay for ever and be fair."""
    for part in parts_of(graph, within):
        taken = {label for state in part for label, after in graph[state] if after in part}
        if not fairness.time_passes or TICK in taken:
            if _is_weakly_fair(graph, part, taken, fairness.weak):
                yield part
        else:
            # Without a tick only what time does not change any more may go on.
            still = {state for state in part if _is_still(graph[state])}
            for rest in parts_of(graph, still):
                moves = {label for state in rest for label, after in graph[state] if after in rest}
                if _is_weakly_fair(graph, rest, moves, fairness.weak):
                    yield rest


def _is_weakly_fair(graph: Graph, part: set[Packed], taken: set[str], weak: Iterable[str]) -> bool:
    """Whether each of these is taken in the part, or cannot be in some state of it."""
    always = set.intersection(*({label for label, _ in graph[state]} for state in part))
    return all(label in taken or label not in always for label in weak)


def _is_still(steps: Sequence[Step]) -> bool:
    """Whether a tick can come and would change nothing; `graph_of` keeps such a step under a name of its own."""
    return any(label == STILL for label, _ in steps)


def parts_of(graph: Graph, within: set[Packed]) -> Iterable[set[Packed]]:
    """The strongly connected parts of some states (Tarjan, 1972; with a stack of its own, for runs are long)."""
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
    """Whether a step there tells something: to a state not seen yet, or to one of a part that is not whole yet."""
    return state not in number or state in on_stack


def _popped(stack: list[Packed], on_stack: set[Packed], last: Packed) -> set[Packed]:
    part: set[Packed] = set()
    while last not in part:
        state = stack.pop()
        on_stack.discard(state)
        part.add(state)
    return part
