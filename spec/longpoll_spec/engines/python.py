"""The plain engine: it compiles terms to Python source and searches breadth-first, keeping each state's parent.

A state is a tuple of integers in which a truth value is 0 or 1. One generated function computes all successors of a
state, and each question about a state has its own function. Every guard is computed once, into a local variable,
because the guard of `tick` contains the guards of the urgent actions. The search finishes a level before it begins the
next, so the first witness that it finds is a shortest one. The faster engines must find the same results.

`never_after` checks progress properties, such as that no fair run leaves a pull unanswered for ever (`unanswered`). A
deadline in ticks does not imply an answer, because time may stop: a run may append, show and truncate a message for
ever. The assumed fairness is `specification.fairness_of`. A fair run that leaves a pull open ends up in one strongly
connected component of the states in which this pull is open. Therefore `never_after` checks for each component whether
fairness allows a run to stay in it (Emerson and Lei, 1987). As in TLA+, a run may stutter for ever, so a single state
counts as a component, and a step that changes nothing is not a step of an action. Use small bounds, because each state
is a Python object in memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Final, TypeAlias

from attrs import define, field, frozen

from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.errors import EngineLimitError
from longpoll_spec.model import Action, LeadsTo, Model, Property
from longpoll_spec.specification import Fairness, fairness_of
from longpoll_spec.state import Variable
from longpoll_spec.terms import FALSE, Bool, Term, nodes

Packed: TypeAlias = tuple[int, ...]
Successors: TypeAlias = Callable[[Packed], list[tuple[int, Packed]]]
Question: TypeAlias = Callable[[Packed], bool]
StepFunction: TypeAlias = Callable[[Packed], Packed | None]

_SIGNS: Final = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=="}
_LEAVES: Final = frozenset({"var", "const", "parameter", "true", "false"})


def source(term: Term, names: Mapping[int, str]) -> str:
    """The term as a Python expression.

    `names` maps the id of a node to the local variable that has its value already.
    """
    known = names.get(id(term))
    if known is not None:
        return known
    return _source(term, [source(arg, names) for arg in term.args if isinstance(arg, Term)])


def _source(term: Term, args: Sequence[str]) -> str:
    match term.op:
        case "var" | "const":
            text = str(term.args[0])
        case "parameter":
            text = str(term.args[1])
        case "true" | "false":
            text = term.op.capitalize()
        case "not":
            text = f"(not {args[0]})"
        case "ite":
            text = f"({args[1]} if {args[0]} else {args[2]})"
        case "and" | "or":
            text = f"({f' {term.op} '.join(args)})"
        case _:
            text = f"({args[0]} {_SIGNS[term.op]} {args[1]})"
    return text


def successors(model: Model) -> Successors:
    """The function from a state to every (index of an enabled action, state after it), in the order of the spec."""
    lines = ["def successors(state):", _unpack(model.variables), "    found = []"]
    names: dict[int, str] = {}
    for index, action in enumerate(model.actions):
        guard = names.get(id(action.guard))
        if guard is None:
            guard = f"guard_{index}"
            lines.append(f"    {guard} = {source(action.guard, names)}")
            names[id(action.guard)] = guard
        after = ", ".join(_value(action.effect.get(each.name), each, names) for each in model.variables)
        lines.append(f"    if {guard}:")
        lines.append(f"        found.append(({index}, ({after},)))")
    lines.append("    return found")
    made: Successors = _define("successors", lines)
    return made


def _value(term: Term | None, variable: Variable, names: Mapping[int, str]) -> str:
    if term is None:
        return variable.name
    text = source(term, names)
    return f"(1 if {text} else 0)" if isinstance(term, Bool) else text


def question(model: Model, term: Bool) -> Question:
    """The function that evaluates the term in a state."""
    lines = ["def question(state):", _unpack(model.variables)]
    names: dict[int, str] = {}
    lines += _shared([term], names)
    lines.append(f"    return {source(term, names)}")
    made: Question = _define("question", lines)
    return made


def questions(
    model: Model, properties: Sequence[Property]
) -> tuple[dict[int, Question], dict[int, list[tuple[int, Question]]]]:
    """The questions that decide the properties: about states, by property index, and about steps, by action index."""
    labels = {action.label: index for index, action in enumerate(model.actions)}
    here: dict[int, Question] = {}
    closing: dict[int, list[tuple[int, Question]]] = {}
    for number, item in enumerate(properties):
        decisive = item.here if item.kind == "sometimes" else ~item.here
        if decisive is not FALSE:
            here[number] = question(model, decisive)
        for label, condition in item.closing:
            closing.setdefault(labels[label], []).append((number, question(model, condition)))
    return here, closing


def step_of(model: Model, action: Action) -> StepFunction:
    """The function from a state to the state after the action, or None where it is not enabled."""
    lines = ["def step(state):", _unpack(model.variables)]
    names: dict[int, str] = {}
    lines += _shared([action.guard], names)
    lines.append(f"    if not {source(action.guard, names)}:")
    lines.append("        return None")
    lines += _shared(list(action.effect.values()), names)
    after = ", ".join(_value(action.effect.get(each.name), each, names) for each in model.variables)
    lines.append(f"    return ({after},)")
    made: StepFunction = _define("step", lines)
    return made


def _shared(terms: Sequence[Term], names: dict[int, str]) -> Iterator[str]:
    every = list(nodes(*terms))
    uses = Counter(id(arg) for node in every for arg in node.args if isinstance(arg, Term))
    for node in every:
        if uses[id(node)] > 1 and node.op not in _LEAVES and id(node) not in names:
            name = f"shared_{len(names)}"
            yield f"    {name} = {source(node, names)}"
            names[id(node)] = name


def _unpack(variables: Sequence[Variable]) -> str:
    return f"    ({', '.join(variable.name for variable in variables)},) = state"


def _define(name: str, lines: Sequence[str]) -> Any:
    space: dict[str, Any] = {}
    exec(_compiled(name, "\n".join(lines)), space)  # noqa: S102 - the text is made from terms above
    return space[name]


@lru_cache(maxsize=1 << 11)
def _compiled(name: str, text: str) -> CodeType:
    """Compile a function. The cache helps because all searches of one model ask the same questions."""
    return compile(text, f"<law: {name}>", "exec")


NAME = "python"
REPORT_EVERY = 20_000
"""The number of states that the search expands between two progress reports."""


@define
class _Search:
    """A breadth-first search. Invariant: `parents` has every state reached, and `level` those not expanded yet."""

    model: Model
    ledger: Ledger
    successors: Successors
    here: dict[int, Question]
    """Maps a property's index to the question that decides the property when true in a state."""
    closing: dict[int, list[tuple[int, Question]]]
    """Maps an action's index to (property index, question that decides the property for the step)."""
    parents: dict[Packed, tuple[Packed, int] | None] = field(factory=dict)
    level: list[Packed] = field(factory=list)
    fired: Counter[int] = field(factory=Counter)
    depth: int = 0
    complete: bool = False

    def start(self) -> None:
        first = self.model.initial
        self.parents[first] = None
        self.level = [first]
        self._ask_here(first)

    def grow(self, limit: int | None, report: Report | None) -> None:
        while self.level:
            following: list[Packed] = []
            for number, state in enumerate(self.level):
                self._expand(state, following)
                if report is not None and number % REPORT_EVERY == 0:
                    report(self.progress(len(self.level) - number + len(following)))
            if following:
                self.depth += 1
            self.level = following
            if limit is not None and len(self.parents) >= limit and following:
                return
        self.complete = True

    def _expand(self, state: Packed, following: list[Packed]) -> None:
        for index, after in self.successors(state):
            self.fired[index] += 1
            for item, ask in self.closing.get(index, ()):
                if self.ledger.is_open(item) and ask(state):
                    self.ledger.note(item, Witness(state, self.depth, index))
            if after not in self.parents:
                self.parents[after] = (state, index)
                following.append(after)
                self._ask_here(after, deeper=1)

    def _ask_here(self, state: Packed, deeper: int = 0) -> None:
        for item in [item for item, ask in self.here.items() if ask(state)]:
            self.ledger.note(item, Witness(state, self.depth + deeper, None))
            del self.here[item]

    def progress(self, frontier: int) -> Progress:
        return Progress(len(self.parents), self.fired.total(), self.depth, frontier)

    def runs_to(self, witnesses: Sequence[Witness]) -> list[list[Action]]:
        return [self._run_to(witness) for witness in witnesses]

    def _run_to(self, witness: Witness) -> list[Action]:
        chosen = [] if witness.closing is None else [witness.closing]
        assert isinstance(witness.state, tuple)
        parent = self.parents[witness.state]
        while parent is not None:
            chosen.append(parent[1])
            parent = self.parents[parent[0]]
        return [self.model.actions[index] for index in reversed(chosen)]


def explore(
    model: Model, properties: Sequence[Property], *, report: Report | None = None, limit_states: int | None = None
) -> Exploration:
    """Explore the model; Ctrl-C ends the search and returns the results so far."""
    began = time.perf_counter()
    search = _Search(model, Ledger(properties), successors(model), *questions(model, properties))
    compiled = time.perf_counter()
    try:
        search.start()
        search.grow(limit_states, report)
    except KeyboardInterrupt:
        search.complete = False
    seconds = time.perf_counter() - compiled
    return Exploration(
        model=model,
        engine=NAME,
        distinct_states=len(search.parents),
        transitions=search.fired.total(),
        depth=search.depth,
        seconds=seconds,
        compile_seconds=compiled - began,
        complete=search.complete,
        verdicts=search.ledger.verdicts(model, search.complete, search.runs_to),
        fired={action.label: search.fired[index] for index, action in enumerate(model.actions)},
    )


def shorten(model: Model, item: Property, run: Sequence[Action]) -> list[Action]:
    """Drop steps from the run until it would no longer break the property if any other single step were dropped."""
    step, breaks = successors(model), question(model, ~item.here)
    closing = {label: question(model, condition) for label, condition in item.closing}
    index = {action.label: number for number, action in enumerate(model.actions)}
    kept, at = list(run), 0
    while at < len(kept):
        shorter = [*kept[:at], *kept[at + 1 :]]
        if _breaks(step, breaks, closing, model.initial, [(index[each.label], each.label) for each in shorter]):
            kept, at = shorter, 0
        else:
            at += 1
    return kept


def _breaks(
    step: Successors, here: Question, closing: dict[str, Question], state: Packed, run: Sequence[tuple[int, str]]
) -> bool:
    for number, (index, label) in enumerate(run, start=1):
        is_last = number == len(run)
        following = next((after for found, after in step(state) if found == index), None)
        if following is None:
            return False
        if is_last and label in closing and closing[label](state):
            return True
        state = following
    return here(state)


Step: TypeAlias = tuple[str, Packed]
"""The label of an action instance, and the state after it."""
Graph: TypeAlias = Mapping[Packed, Sequence[Step]]
TICK: Final = "tick"
STILL: Final = "tick that changes nothing"


@frozen
class Endless:
    """A fair run that goes on for ever and never reaches a state in which the conclusion of a property is true."""

    run: tuple[int, ...]
    """The indices of the actions that lead from the first state to one of `states`."""
    states: tuple[Packed, ...]
    """The states that the run visits for ever after `run`."""
    steps: tuple[str, ...]
    """The labels of the steps between the states in `states`, each label once; empty if the run stutters."""


def unanswered(model: Model, fairness: Fairness | None = None) -> Endless | None:
    """A fair run that leaves some pull open for ever; None if every fair run answers every pull."""
    graph = graph_of(model)
    pulls = (LeadsTo("", "", each.open, ~each.open) for each in model.state.requests)
    return next((found for each in pulls if (found := never_after(model, each, graph, fairness)) is not None), None)


def never_after(model: Model, said: LeadsTo, graph: Graph, fairness: Fairness | None = None) -> Endless | None:
    """A fair run in which the premise is true at some time and the conclusion never from then on; None if none exists.

    `graph` is the result of `graph_of` for this model.
    """
    begins, waits = question(model, said.premise & ~said.conclusion), question(model, ~said.conclusion)
    within, pending = set[Packed](), [state for state in graph if begins(state)]
    while pending:
        state = pending.pop()
        if state not in within:
            within.add(state)
            pending += (after for _, after in graph[state] if waits(after))
    for part in _fair_parts(graph, within, fairness_of(model) if fairness is None else fairness):
        return _endless(model, graph, part)
    return None


def no_time(model: Model, graph: Graph) -> Endless | None:
    """A run after which time stops, because urgent actions follow one another for ever or no action is enabled."""
    urgent = {action.label for action in model.actions if action.urgent}
    moves = {state: [step for step in steps if step[0] in urgent] for state, steps in graph.items()}
    stuck = next((state for state, steps in graph.items() if not moves[state] and not _has_tick(steps)), None)
    if stuck is not None:
        return _endless(model, graph, {stuck})
    parts = (part for part in parts_of(moves, set(moves)) if len(part) > 1)
    return next((_endless(model, moves, part, graph) for part in parts), None)


def _has_tick(steps: Sequence[Step]) -> bool:
    return any(label in {TICK, STILL} for label, _ in steps)


def _endless(model: Model, graph: Graph, part: set[Packed], whole: Graph | None = None) -> Endless:
    labels = dict.fromkeys(label for state in part for label, after in graph[state] if after in part)
    return Endless(_run_into(model, graph if whole is None else whole, part), tuple(sorted(part)), tuple(labels))


def _run_into(model: Model, graph: Graph, part: set[Packed]) -> tuple[int, ...]:
    """The indices of the actions of a shortest run from the first state to a state in `part`."""
    number = {action.label: index for index, action in enumerate(model.actions)}
    runs: dict[Packed, tuple[int, ...]] = {model.initial: ()}
    for state in (waiting := [model.initial]):
        if state in part:
            return runs[state]
        for label, after in graph[state]:
            if after not in runs:
                runs[after] = (*runs[state], number[label])
                waiting.append(after)
    raise AssertionError("the states of a part are reachable")


def graph_of(model: Model, limit: int | None = None) -> Graph:
    """Map every reachable state to its steps that change something; `STILL` labels a tick that changes nothing.

    Raises `EngineLimitError` if more than `limit` states are reachable.
    """
    step, labels = successors(model), [action.label for action in model.actions]
    graph: dict[Packed, list[Step]] = {}
    waiting = [model.initial]
    while waiting:
        state = waiting.pop()
        if limit is not None and len(graph) > limit:
            raise EngineLimitError(f"the bounds have more than {limit:,} states, too many to check what leads to what")
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
            # A run without ticks can stay only in states where a tick would change nothing, because fairness makes time
            # pass.
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
    """The strongly connected components of these states (Tarjan, 1972).

    The function uses an explicit stack, because recursion would be too deep for long runs.
    """
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
