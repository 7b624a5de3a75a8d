"""Terms as Python source over a tuple of integers: one function for all successors, one per question.

Truth values are 0 and 1 in the tuple. A node used more than once becomes a local in an eager function; guards always
do, because `tick` uses them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Final, TypeAlias

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.state import Variable
from longpoll_spec.terms import FALSE, Bool, Term, nodes

Packed: TypeAlias = tuple[int, ...]
Successors: TypeAlias = Callable[[Packed], list[tuple[int, Packed]]]
Question: TypeAlias = Callable[[Packed], bool]
StepFunction: TypeAlias = Callable[[Packed], Packed | None]

_SIGNS: Final = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=="}
_LEAVES: Final = frozenset({"var", "const", "parameter", "true", "false"})


def source(term: Term, names: Mapping[int, str]) -> str:
    """The term as a Python expression; a node with a local is written as the local's name."""
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
    """The questions that decide each property: by property index about a state, by action index about its steps."""
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
    uses = Counter(id(arg) for node in nodes(*terms) for arg in node.args if isinstance(arg, Term))
    for node in nodes(*terms):
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
    """Cached by its text: searches of one model ask the same questions."""
    return compile(text, f"<law: {name}>", "exec")
