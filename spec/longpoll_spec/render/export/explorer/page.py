"""Writes the explorer as one HTML file, with data of the specification, an interpreter, a script and Chinese texts.

The content security policy of the page allows only two scripts, whose hashes it names, and their worker, but no access
to the network. The data have the terms of several models in one table, with each node once:

| of the data | content                                                                                        |
|-------------|------------------------------------------------------------------------------------------------|
| `texts`     | every sentence, name and word, referred to by number                                           |
| `nodes`     | [operator, arguments...]; a node comes after its arguments, which are numbers of nodes         |
| `entries`   | every variable, action and property, each once for all models                                  |
| `laws`      | one per model: its setting as a token, and its entries by number                               |
| `slips`     | mutants of the first model: changed definitions of some actions and terms of some properties   |
| `hand`      | what a reader may edit in the first model: its actions, and properties over the edited actions |

A constant is [`const`, value], a variable [`var`, number of its name's text]. Guards are stored without the waiting of
`tick`: where `waits` holds, the interpreter makes `tick` wait for every urgent action, also in mutants. [`after`,
action, variable] is the variable's value after that action of the first model as edited, and [`guard`, action] whether
the action is enabled. So the data state a property once for all edits of its actions. `law.js` is the interpreter.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_spec.actions import actions_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.render.notation import sizes_of
from longpoll_spec.render.rocketmq_names import participant_of, place_of
from longpoll_spec.specification import properties_of
from longpoll_spec.state import Variable
from longpoll_spec.terms import Term, nodes
from longpoll_spec.threads import thread_of

FORMAT_VERSION: Final = 1
OPERATORS: Final = ("const", "var", "add", "sub", "lt", "le", "eq", "not", "ite", "and", "or", "after", "guard")
"""The operators of nodes in the data, by their numbers. `law.js` has the same list."""
_CONSTANTS: Final = {"true": 1, "false": 0}
OF: Final = "@"
"""The separator in names: `phase_0@hold(0)` is the value of `phase_0` after the action `hold(0)`, and `@hold(0)` says
whether this action is enabled."""


@frozen
class Mistake:
    """A mutant of the first model: its action, its description, and the changed model."""

    action: str
    what: str
    actions: tuple[Action, ...]
    """All actions of the mutant, before `tick` is made to wait for the urgent actions."""
    model: Model


@frozen
class Text:
    """The definition of an action of the first model, shared by several instances, as a reader may edit it."""

    action: str
    who: str
    """The acting threads in parentheses, if several definitions have the action's name; otherwise empty."""
    instances: tuple[int, ...]
    """The indices of the model's actions that have this definition."""
    parts: tuple[tuple[str, str], ...]
    """(name, text for the first instance) of each part of the guard."""
    lines: tuple[tuple[str, str], ...]
    """(variable's name without a number, text for the first instance) of each line of the effect."""


@frozen
class ByHand:
    """The editable parts of the first model."""

    texts: tuple[Text, ...]
    parts: tuple[tuple[str, ...], ...]
    """For each action of the model, the names of the parts of its guard, in order."""
    properties: tuple[Property, ...]
    """The properties of the model, over actions whose guards and new values are variables (`OF`)."""


@define
class Pool:
    """The tables that the models share. Invariant: the arguments of a node have smaller numbers than the node."""

    texts: dict[str, int] = field(factory=dict)
    nodes: list[list[int]] = field(factory=list)
    entries: dict[str, int] = field(factory=dict)
    labels: Mapping[str, int] = field(factory=dict)
    """Maps a label to the index of the action in the first model."""
    _numbers: dict[int, int] = field(factory=dict)
    _shapes: dict[tuple[int, ...], int] = field(factory=dict)
    # The terms whose ids are keys of `_numbers`, so that ids stay unique.
    _kept: list[Term] = field(factory=list)

    def text(self, text: str) -> int:
        """Return the number of a text in the table of texts, after adding the text if it is new."""
        return self.texts.setdefault(text, len(self.texts))

    def entry(self, entry: Mapping[str, Any]) -> int:
        """Return the number of a variable, action or property in the table of entries, after adding it if it is new."""
        return self.entries.setdefault(_json(entry), len(self.entries))

    def term(self, term: Term) -> int:
        """Return the number of a term in the table of nodes, after adding it and its arguments if they are new."""
        for node in nodes(term, done=self._numbers):
            shape = self._shape(node)
            if shape not in self._shapes:
                self._shapes[shape] = len(self.nodes)
                self.nodes.append(list(shape))
            self._numbers[id(node)] = self._shapes[shape]
            self._kept.append(node)
        return self._numbers[id(term)]

    def _shape(self, node: Term) -> tuple[int, ...]:
        match node.op:
            case "const":
                return OPERATORS.index("const"), int(node.args[0])
            case "true" | "false":
                return OPERATORS.index("const"), _CONSTANTS[node.op]
            case "parameter":
                return OPERATORS.index("const"), int(node.args[1])
            case "var":
                return self._variable(node.args[0])
            case _:
                return OPERATORS.index(node.op), *(self._numbers[id(arg)] for arg in node.args)

    def _variable(self, name: str) -> tuple[int, ...]:
        variable, after, label = name.partition(OF)
        if not after:
            return OPERATORS.index("var"), self.text(name)
        action = self.labels[label]
        return (
            (OPERATORS.index("after"), action, self.text(variable)) if variable else (OPERATORS.index("guard"), action)
        )


def data_of(
    models: Sequence[tuple[Model, str]], mistakes: Iterable[Mistake] = (), by_hand: ByHand | None = None
) -> str:
    """The data of the page as JSON text: models with the tokens of their empty runs, and mutants of the first model.

    `by_hand` has the editable parts of the first model. The text has no `<`, so it can be embedded in HTML.
    """
    pool = Pool(labels={action.label: number for number, action in enumerate(models[0][0].actions)})
    laws = [_law(model, token, pool) for model, token in models]
    slips = [_slip(mistake, models[0][0], pool) for mistake in mistakes]
    hand = _by_hand(by_hand, pool) if by_hand else None
    document = {
        "format": FORMAT_VERSION,
        "operators": OPERATORS,
        "texts": list(pool.texts),
        "nodes": pool.nodes,
        "entries": list(map(json.loads, pool.entries)),
        "laws": laws,
        "slips": slips,
        "hand": hand,
    }
    text = _json(document)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _law(model: Model, token: str, pool: Pool) -> dict[str, Any]:
    return {
        "policy": model.policy.name,
        "sizes": sizes_of(model.bounds),
        "token": token,
        "waits": model.policy.tick == "maximal_progress",
        "variables": [pool.entry(_variable(each, pool)) for each in model.variables],
        "actions": [pool.entry(_action(action, pool)) for action in actions_of(model.state)],
        "properties": [pool.entry(_property(item, pool)) for item in properties_of(model)],
    }


def _variable(variable: Variable, pool: Pool) -> dict[str, Any]:
    words = map(variable.show, (0, 1)) if variable.truth else variable.labels
    return {
        "name": pool.text(variable.name),
        "sentence": pool.text(variable.sentence),
        "first": variable.initial,
        "words": list(map(pool.text, words)),
    }


def _action(action: Action, pool: Pool) -> dict[str, Any]:
    thread = thread_of(action)
    actor = participant_of(thread) if thread else None
    return {
        "label": action.label,
        "name": action.name,
        "sentence": pool.text(action.sentence),
        "place": pool.text(place_of(action)),
        "thread": pool.text(f"{actor.name} ({actor.java})" if actor else "Time"),
        "urgent": action.urgent,
        **_text(action, pool),
    }


def _text(action: Action, pool: Pool) -> dict[str, Any]:
    effect = [[pool.text(name), pool.term(term)] for name, term in action.effect.items()]
    return {"guard": pool.term(action.guard), "effect": effect}


def _property(item: Property, pool: Pool) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "sentence": pool.text(item.sentence),
        "term": pool.term(item.term),
        "here": pool.term(item.here),
        "closing": [[pool.text(label), pool.term(condition)] for label, condition in item.closing],
    }


def _slip(mistake: Mistake, model: Model, pool: Pool) -> dict[str, Any]:
    right: Mapping[str, Any] = {action.label: _text(action, pool) for action in actions_of(model.state)}
    wrong = [_text(action, pool) for action in mistake.actions]
    stated = [_property(item, pool) for item in properties_of(model)]
    restated = [_property(item, pool) for item in properties_of(mistake.model)]
    return {
        "action": mistake.action,
        "what": mistake.what,
        "actions": [[at, text] for at, text in enumerate(wrong) if text != right[mistake.actions[at].label]],
        "properties": [[at, item] for at, item in enumerate(restated) if item != stated[at]],
    }


def _by_hand(by_hand: ByHand, pool: Pool) -> dict[str, Any]:
    return {
        "texts": [
            {
                "action": text.action,
                "who": text.who,
                "instances": text.instances,
                "parts": [list(map(pool.text, part)) for part in text.parts],
                "lines": [list(map(pool.text, line)) for line in text.lines],
            }
            for text in by_hand.texts
        ],
        "parts": [list(map(pool.text, names)) for names in by_hand.parts],
        "properties": [pool.entry(_property(item, pool)) for item in by_hand.properties],
    }


def page_of(data: str, title: str) -> str:
    """The page as HTML, with data that `data_of` wrote."""
    law, script = part("law.js"), part("page.js")
    put = {
        "TITLE": escape(title),
        "HASHES": f"'{_hash(law)}' '{_hash(script)}'",
        "STYLE": part("page.css"),
        "WORDS": part("zh.json").replace("<", "\\u003c"),
        "LAW": law,
        "SCRIPT": script,
        "DATA": data,
    }
    text = part("page.html")
    for name, value in put.items():
        # The data come last, so that nothing in them is taken for a placeholder.
        text = text.replace(f"@{name}@", value)
    return text


def part(name: str) -> str:
    """The text of a file in this package, which is a part of the page."""
    return (resources.files("longpoll_spec.render.export.explorer") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
