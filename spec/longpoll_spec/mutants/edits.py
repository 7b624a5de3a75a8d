"""What a reader of the explorer may change by hand: every part of every guard, and every line of every effect.

The parts have the names that planted slips (`generated`) give them. The properties are stated of actions whose guards
and new values are variables: whatever the actions come to say, an interpreter puts it in their places, and nothing of
the properties is written a second time. Leaves out the changes themselves, which `law.js` makes.
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
    """What may be changed in a model's actions, as they are before `tick` is made to wait."""
    actions = tuple(actions_of(model.state))
    parts = tuple(part_names(model.policy, action) for action in actions)
    return ByHand(tuple(_texts(model, actions, parts)), parts, stated_of_named(model))


def stated_of_named(model: Model) -> tuple[Property, ...]:
    """The model's properties, over actions that are named only."""
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
    """What the effect writes, by the variables' names without numbers; what only keeps its value is left out."""
    written: dict[str, list[str]] = {}
    for name, term in action.effect.items():
        if term.op != "var" or term.args[0] != name:
            written.setdefault(called(name), []).append(f"{name} := {bare(writer.value(term, name))}")
    for name, lines in written.items():
        yield name, "\n".join(lines)
