"""The specification as JANI: one JSON file that other checkers read, and that a small interpreter can run.

One automaton with one location, and one edge per action instance, under its label. A property is a reachability
question: for `always`, that no violating state is reached; for `sometimes`, that one is. The specification has no
probabilities, so every maximum probability is 0 or 1.

| in JANI              | content                                                                            |
|----------------------|------------------------------------------------------------------------------------|
| `metadata.version`   | `FORMAT_VERSION`, for readers of this file                                         |
| `actions`            | the labels; their comments give sentence, location in RocketMQ, thread, mutants    |
| `constants`          | the open parameters with their values, and words such as PHASE_HELD                |
| `variables`          | the state, with ranges, first values and sentences                                 |
| `properties`         | every property, by its name                                                        |
| `edges`              | guard and effect; the parts of a guard are joined by `∧` at its top                |

The assignments of an edge are simultaneous, as in the specification. The type is `mdp`, because Storm does not accept
`lts`. Source: jani-spec.org, version 1 of the format, without optional features. JANI has no fairness.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.render.notation import name_of, parameters_of, setting_of, words_of
from longpoll_spec.render.rocketmq_names import place_of
from longpoll_spec.state import Variable
from longpoll_spec.terms import TRUE, Int, Term, const, nodes
from longpoll_spec.threads import thread_of

JANI_VERSION: Final = 1
FORMAT_VERSION: Final = "1"
"""Increased when readers of the file have to change; new comments or actions leave it as it is."""
AUTOMATON: Final = "law"
LOCATION: Final = "here"
Expression: TypeAlias = "bool | int | str | dict[str, Any]"

_SIGNS: Final = {"and": "∧", "or": "∨", "lt": "<", "le": "≤", "eq": "=", "add": "+", "sub": "-"}  # noqa: RUF001 - JANI's


def jani_of(model: Model, properties: Sequence[Property], slips: Mapping[str, Sequence[str]] | None = None) -> str:
    """The model and its properties as JANI text. `slips`: label -> mutants of that action, in words.

    An open log becomes an unbounded `int`, which can be run but not explored.
    """
    document = {
        "jani-version": JANI_VERSION,
        "name": name_of(model),
        "metadata": {
            "version": FORMAT_VERSION,
            "description": f"The specification of broker long polling, {setting_of(model)}.",
        },
        "type": "mdp",
        "features": [],
        "actions": [_action(action, (slips or {}).get(action.label, ())) for action in model.actions],
        "constants": list(_constants(model)),
        "variables": [_variable(variable, model) for variable in model.variables],
        "properties": [_property(item, model) for item in properties],
        "automata": [_automaton(model)],
        "system": {"elements": [{"automaton": AUTOMATON}]},
    }
    return _laid_out(document)


def _laid_out(document: Mapping[str, Any]) -> str:
    """JSON with one line per named thing, so that exports can be compared by eye."""
    lines = ["{"]
    for key, value in document.items():
        comma = "" if key == "system" else ","
        if key == "automata":
            automaton = value[0]
            edges = automaton.pop("edges")
            head = _json(automaton)[:-1]
            lines += [f'"{key}": [{head}, "edges": [', *_each(edges), f"]}}]{comma}"]
        elif isinstance(value, list) and value:
            lines += [f'"{key}": [', *_each(value), f"]{comma}"]
        else:
            lines.append(f'"{key}": {_json(value)}{comma}')
    return "\n".join([*lines, "}", ""])


def _each(entries: Sequence[Any]) -> Iterator[str]:
    for entry in entries[:-1]:
        yield f"  {_json(entry)},"
    yield f"  {_json(entries[-1])}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _action(action: Action, slips: Sequence[str]) -> dict[str, Any]:
    said = [action.sentence]
    said += [f"RocketMQ: {place}" for place in [place_of(action)] if place]
    said += [f"By: {thread}" for thread in [thread_of(action)] if thread]
    said += ["Time waits for it."] if action.urgent else []
    said += [f"Planted slips: {'; '.join(slips)}"] if slips else []
    return {"name": action.label, "comment": "\n".join(said)}


def _constants(model: Model) -> Iterator[dict[str, Any]]:
    for name, value in parameters_of(model).items():
        yield {"name": name, "type": "int", "value": value, "comment": "A parameter of the law."}
    words = {word: value for each in words_of(model.variables).values() for value, word in enumerate(each)}
    for word, value in words.items():
        yield {"name": word, "type": "int", "value": value}


def _variable(variable: Variable, model: Model) -> dict[str, Any]:
    # Its end and first value may be a parameter, which becomes a constant of the file if the actions read it.
    first = variable.first if _is_told(variable.first, model) else const(variable.initial)
    return {
        "name": variable.name,
        "type": _type(variable),
        "initial-value": _Writer(words_of(model.variables)).value(first, variable.name),
        "comment": variable.sentence,
    }


def _is_told(term: Term, model: Model) -> bool:
    return all(node.args[0] in parameters_of(model) for node in nodes(term) if node.op == "parameter")


def _type(variable: Variable) -> str | dict[str, Any]:
    if variable.truth:
        return "bool"
    ends = {"lower-bound": variable.lower} | ({} if variable.upper is None else {"upper-bound": variable.upper})
    return {"kind": "bounded", "base": "int", **ends}


def _property(item: Property, model: Model) -> dict[str, Any]:
    """Whether a deciding state is reachable: the maximum probability of reaching one is 0, or not."""
    decisive = _decisive(item, model)
    # Storm 2.0 reads `0 < P` as `P < 0`, so the probability is on the left, and "not 0" replaces "more than 0".
    never = {"op": "≤", "left": {"op": "Pmax", "exp": {"op": "F", "exp": decisive}}, "right": 0}
    asked = {"op": "¬", "exp": never} if item.kind == "sometimes" else never
    return {
        "name": item.name,
        "expression": {"op": "filter", "fun": "∀", "values": asked, "states": {"op": "initial"}},
        "comment": f"{item.kind}: {item.sentence}",
    }


def _decisive(item: Property, model: Model) -> Expression:
    """The condition on a state that decides the property; for a forbidden step, its whole guard and a condition.

    A reader that caches equal expressions evaluates each guard once per state.
    """
    writer = _Writer(words_of(model.variables))
    if item.kind == "sometimes":
        return writer.text(item.term)
    guards = {action.label: action.guard for action in model.actions}
    steps = [_binary("∧", writer.text(guards[label]), writer.text(condition)) for label, condition in item.closing]
    here = [] if item.here is TRUE else [writer.text(~item.here)]
    return _joined("∨", [*here, *steps]) if here or steps else False  # noqa: RUF001 - JANI's sign


def _automaton(model: Model) -> dict[str, Any]:
    return {
        "name": AUTOMATON,
        "locations": [{"name": LOCATION}],
        "initial-locations": [LOCATION],
        "edges": [_edge(action, words_of(model.variables)) for action in model.actions],
    }


def _edge(action: Action, words: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    writer = _Writer(words)
    assignments = [{"ref": name, "value": writer.value(term, name)} for name, term in action.effect.items()]
    return {
        "location": LOCATION,
        "action": action.label,
        "guard": {"exp": writer.text(action.guard)},
        "destinations": [{"location": LOCATION, "assignments": assignments}],
    }


class _Writer:
    """Writes terms as expressions; constants become words where a variable with words is compared or assigned.

    Invariant: `_written` caches results by the identity of the term and the words; `_kept` keeps those terms alive.
    """

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._words = words
        self._written: dict[tuple[int, Sequence[str]], Expression] = {}
        self._kept: list[Term] = []

    def text(self, term: Term) -> Expression:
        """The term."""
        return self._write(term, ())

    def value(self, term: Term, variable: str) -> Expression:
        """The term as a value of the variable."""
        return self._write(term, self._words.get(variable, ()))

    def _write(self, term: Term, words: Sequence[str]) -> Expression:
        key = (id(term), words)
        if key not in self._written:
            self._written[key] = self._make(term, words)
            self._kept.append(term)
        return self._written[key]

    def _make(self, term: Term, words: Sequence[str]) -> Expression:
        made: Expression
        match term.op:
            case "var" | "parameter":
                made = str(term.args[0])
            case "const":
                number = int(term.args[0])
                made = words[number] if 0 <= number < len(words) else number
            case "true" | "false":
                made = term.op == "true"
            case "not":
                made = self._negated(term.args[0])
            case "ite":
                condition, then, otherwise = term.args
                branches = {"then": self._write(then, words), "else": self._write(otherwise, words)}
                made = {"op": "ite", "if": self.text(condition), **branches}
            case "and" | "or":
                made = _joined(_SIGNS[term.op], [self.text(arg) for arg in term.args])
            case "eq":
                made = self._equality(term, "=")
            case _:
                made = _binary(_SIGNS[term.op], *(self.text(arg) for arg in term.args))
        return made

    def _negated(self, inner: Term) -> Expression:
        return self._equality(inner, "≠") if inner.op == "eq" else {"op": "¬", "exp": self.text(inner)}

    def _equality(self, term: Term, sign: str) -> Expression:
        left, right = term.args
        return _binary(sign, self._write(left, self._words_of(right)), self._write(right, self._words_of(left)))

    def _words_of(self, term: Int) -> Sequence[str]:
        return self._words.get(term.args[0], ()) if term.op == "var" else ()


def _binary(sign: str, left: Expression, right: Expression) -> Expression:
    return {"op": sign, "left": left, "right": right}


def _joined(sign: str, parts: Sequence[Expression]) -> Expression:
    """Two or more parts as a balanced binary tree, so that readers do not recurse deeply."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return _binary(sign, _joined(sign, parts[:half]), _joined(sign, parts[half:]))
