"""The parts of the specification that a reader of the explorer may edit: parts of guards and lines of effects.

The parts have the names that mutants (`generated`) use. The properties are stated over actions whose guards and new
values are variables, and the interpreter substitutes the edited actions. So no property is written a second time.
`law.js` makes the edits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from longpoll_spec.actions import actions_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.mutants.generated import called, conjuncts, kinds_of, part_names, thread_of_mutant
from longpoll_spec.render.export.explorer.data import OF, ByHand, Text
from longpoll_spec.render.notation import Writer
from longpoll_spec.render.readable import NOTATION, bare
from longpoll_spec.specification import properties_of
from longpoll_spec.terms import Bool, Term, bool_variable, int_variable


def edits_of(model: Model) -> ByHand:
    """The editable parts of a model's actions, before `tick` waits for urgent ones."""
    actions = tuple(actions_of(model.state))
    parts = tuple(part_names(model.policy, action) for action in actions)
    return ByHand(tuple(_texts(model, actions, parts)), parts, stated_of_named(model))


def stated_of_named(model: Model) -> tuple[Property, ...]:
    """The model's properties, over actions given by name only."""
    return properties_of(attrs.evolve(model, actions=tuple(map(_named, model.actions))))


def _named(action: Action) -> Action:
    effect = {name: _alike(term, f"{name}{OF}{action.label}") for name, term in action.effect.items()}
    return attrs.evolve(action, guard=bool_variable(f"{OF}{action.label}"), effect=effect)


def _alike(term: Term, name: str) -> Term:
    return bool_variable(name) if isinstance(term, Bool) else int_variable(name)


def _texts(model: Model, actions: Sequence[Action], parts: Sequence[tuple[str, ...]]) -> Iterator[Text]:
    alike: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number, action in enumerate(actions):
        alike.setdefault((action.name, kinds_of(action)), []).append(number)
    writer = Writer(NOTATION, {each.name: each.labels for each in model.variables if each.labels})
    for (name, kinds), instances in alike.items():
        first = actions[instances[0]]
        guard = [bare(writer.text(part)) for part in conjuncts(first)]
        said = tuple(
            (part, text)
            for part, text, term in zip(parts[instances[0]], guard, conjuncts(first), strict=True)
            if term.op != "true"
        )
        yield Text(name, thread_of_mutant(kinds), tuple(instances), said, tuple(_lines(writer, first)))


def _lines(writer: Writer, action: Action) -> Iterator[tuple[str, str]]:
    """The assignments of the effect, by variable names without numbers; those that keep a value are left out."""
    written: dict[str, list[str]] = {}
    for name, term in action.effect.items():
        if term.op != "var" or term.args[0] != name:
            written.setdefault(called(name), []).append(f"{name} := {bare(writer.value(term, name))}")
    for name, lines in written.items():
        yield name, "\n".join(lines)
