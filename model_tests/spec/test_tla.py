"""The quantified actions of the TLA+ module take the steps of our engines, also at sizes other than three."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import pytest
from attrs import frozen

from longpoll_spec.bounds import named
from longpoll_spec.custom import policy_from
from longpoll_spec.engines.evaluate import after_step, enabled_actions, values_of
from longpoll_spec.model import Model
from longpoll_spec.policy import POP_KNOBS
from longpoll_spec.render.export.quantified import Expression, generalised
from longpoll_spec.render.export.tla import Module, Operator, _changes
from longpoll_spec.specification import specification_of

Values: TypeAlias = dict[str, int]
Env: TypeAlias = Mapping[str, int]
Steps: TypeAlias = Counter[tuple[str, tuple[int, ...]]]
"""(Name of an action, next state) -> the number of the action's steps to this state."""


@frozen(eq=False, slots=False)
class Text:
    module: Module
    model: Model

    def members(self, kind: str) -> range:
        return range(len(self.model.state.requests if kind == "request" else self.model.state.queues))

    def name(self, base: str, kinds: tuple[str, ...], index: tuple[int, ...]) -> str:
        """The name in the model of a variable of the TLA+ module."""
        return base + "".join(f"_{'q' * (kind == 'queue')}{at}" for kind, at in zip(kinds, index, strict=True))

    def kinds(self, base: str) -> tuple[str, ...]:
        name = self.module.variables[base].name
        return tuple("queue" if part[0] == "q" else "request" for part in name.removeprefix(base).split("_")[1:])

    def value(self, expression: Expression, state: Values, env: Env) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case each
        """The value of an expression; words are texts, and queues are numbers."""

        def of(part: Expression) -> Any:
            return self.value(part, state, env)

        match expression:
            case ("name", "TRUE" | "FALSE" as word):
                return word == "TRUE"
            case ("name", "Messages"):
                return self.model.bounds.messages
            case ("name", word):
                return getattr(self.model.bounds, word)
            case ("num", number) | ("word", number):
                return number
            case ("letter", letter):
                return env[letter]
            case ("var", base, False, *index):
                found = state[self.name(base, self.kinds(base), tuple(map(of, index)))]
                variable = self.module.variables[base]
                return variable.labels[found] if variable.labels else bool(found) if variable.truth else found
            case ("call", name, False, *given):
                predicate, body = self.module.definitions[name]
                return self.value(
                    body, state, {"r" if predicate.kind == "request" else "q": of(each) for each in given}
                )
            case ("not", part):
                return not of(part)
            case ("and" | "or" as junction, *parts):
                return (all if junction == "and" else any)(map(of, parts))
            case ("eq" | "lt" | "le" | "add" | "sub" as sign, one, other):
                left, right = of(one), of(other)
                return {
                    "eq": lambda: left == right,
                    "lt": lambda: left < right,
                    "le": lambda: left <= right,
                    "add": lambda: left + right,
                    "sub": lambda: left - right,
                }[sign]()
            case ("in" | "notin" as sign, part, *words):
                return (of(part) in list(map(of, words))) == (sign == "in")
            case ("ite", condition, then, otherwise):
                return of(then) if of(condition) else of(otherwise)
            case ("every" | "some" as sign, letter, kind, (_, *but), body):
                those = [each for each in self.members(kind) if each not in {env[each] for each in but}]
                return (all if sign == "every" else any)(
                    self.value(body, state, {**env, letter: each}) for each in those
                )
        raise AssertionError(expression)

    def written(self, base: str, new: Expression, state: Values, env: Env) -> Iterator[tuple[str, int]]:
        cases: list[tuple[tuple[int, ...], Expression, Env]] = [((), new, env)]
        if new[0] == "function":
            cases = [((each,), new[3], {**env, new[1]: each}) for each in self.members(new[2])]
        for index, value, here in cases:
            at, body = index, value
            if value[0] == "except":
                at, body = (*index, *(here[letter] for letter in value[2].split("]["))), value[3]
            found = self.value(body, state, here)
            labels = self.module.variables[base].labels
            yield self.name(base, self.kinds(base), at), labels.index(found) if isinstance(found, str) else int(found)

    @cached_property
    def actions(self) -> list[tuple[Operator, Expression, dict[str, Expression]]]:
        read = self.module.read
        return [
            (each, generalised(read.expression(each.action.guard), each.bound), dict(_changes(self.module, each)))
            for each in sorted(self.module.operators, key=lambda each: each.action.name == "tick")
        ]

    def steps(self, state: Values) -> Steps:
        found: Steps = Counter()
        urgent = False
        for operator, guard, changes in self.actions:
            if operator.action.name == "tick" and urgent:
                continue
            letters = [letter for letter, _ in operator.parameters]
            for chosen in product(*(self.members(kind) for _, kind in operator.parameters)):
                env = dict(zip(letters, chosen, strict=True))
                if self.value(guard, state, env):
                    urgent |= operator.action.urgent
                    made = dict(state)
                    for base, (_, _, new) in changes.items():
                        made.update(self.written(base, new, state, env))
                    found[operator.action.name, tuple(made.values())] += 1
        return found


def _walked(policy: str, steps: int, requests: int = 2) -> Iterator[tuple[Model, Text, tuple[int, ...]]]:
    """The states of a random run, which starts again whenever no action is enabled."""
    chosen = policy_from(policy)
    model = specification_of(chosen, named("tiny", chosen, requests=requests, queues=2, messages=2))
    text = Text(Module(model), model)
    choice, state = random.Random(policy), model.initial
    for _ in range(steps):
        yield model, text, state
        enabled = enabled_actions(model, state)
        state = after_step(model, choice.choice(enabled), state) if enabled else model.initial


@pytest.mark.parametrize("policy", POP_KNOBS)
def test_the_module_takes_the_steps_of_the_specification(policy: str) -> None:
    seen = set()
    for model, text, state in _walked(policy, 100):
        ours = Counter((action.name, after_step(model, action, state)) for action in enabled_actions(model, state))
        assert text.steps(values_of(model, state)) == ours
        seen |= {name for name, _ in ours}

    assert len(seen) > 15


def test_an_assignment_for_the_wrong_request_is_another_step() -> None:
    """The comparison fails if the module's `pop_queue` does not record which queue the request pops."""
    differs = False
    for model, text, state in _walked("strict-pop", 30):
        for operator, _, changes in text.actions:
            if operator.action.name == "pop_queue":
                changes.pop("asks", None)
        ours = Counter((action.name, after_step(model, action, state)) for action in enabled_actions(model, state))
        differs |= text.steps(values_of(model, state)) != ours
    assert differs
