"""Finds the condition under which a part of the specification exists, in words, by trying policies and bounds.

The samples are every preset, every preset with one knob changed, and presets with each feature. The condition is the
smallest set of knobs and features whose values separate the samples that have the part from those that do not. A
question can be any function of policy and bounds. A test compares the found conditions with the answers for other
policies and bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Final, TypeAlias

from attrs import frozen

from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, Bounds
from longpoll_spec.policy import PRESETS, Policy, knob_values, other_settings, with_knob

PARTS_MAX: Final = 3
"""The greatest number of knobs and features in a condition; no part of the specification needs more."""
PLAIN: Final = Bounds("plain", requests=2, messages=None)
"""Bounds without features and with an unbounded log."""
YES, NO = "yes", "no"
CHANGED_WITH_ASPECTS: Final = ("strict", "rocketmq-pr7359")
"""The presets whose knobs are also changed under each feature. Two presets are enough, because they differ in most
knobs."""
Question: TypeAlias = Callable[[Policy, Bounds], bool]
Features: TypeAlias = Mapping[str, str]
"""Maps a knob or feature to its value as text; a feature is "yes" or "no"."""


Part: TypeAlias = tuple[str, frozenset[str]]
"""(knob or feature, its values under which the condition can hold)."""


@frozen
class Condition:
    """A condition: all parts of at least one alternative must hold.

    A condition without alternatives never holds, and an alternative without parts always holds.
    """

    alternatives: tuple[tuple[Part, ...], ...]

    def holds(self, features: Features) -> bool:
        """Whether the condition holds for these knobs and features."""
        return any(all(features[name] in values for name, values in parts) for parts in self.alternatives)

    @property
    def text(self) -> str:
        """The condition in words, such as "where `expiry` is `scan`", "always" or "never"."""
        return ", or ".join(_told(parts) or "always" for parts in self.alternatives) or "never"


def _told(parts: Sequence[Part]) -> str:
    knobs = [f"`{name}` is {_either(name, values)}" for name, values in parts if name in knob_values()]
    aspects = [_aspect(name, values) for name, values in parts if name not in knob_values()]
    where = f"where {' and '.join(knobs)}" if knobs else ""
    return " ".join(words for words in (where, " and ".join(aspects)) if words)


def _either(name: str, values: frozenset[str]) -> str:
    ordered = [str(value).lower() for value in knob_values()[name] if str(value).lower() in values]
    return " or ".join(f"`{value}`" for value in ordered)


def _aspect(name: str, values: frozenset[str]) -> str:
    with_it = YES in values
    if name in ASPECTS:
        return f"{'with' if with_it else 'without'} the aspect `{name}`"
    return f"with {'several' if with_it else 'one'} {name if with_it else name.removesuffix('s')}"


@cache
def features_of(policy: Policy, bounds: Bounds) -> Features:
    """The values of all knobs and features of a policy under bounds."""
    knobs = {name: str(getattr(policy, name)).lower() for name in knob_values()}
    numbers = {"queues": bounds.queues > 1, "tags": bounds.tags > 1}
    aspects = numbers | {name: name in bounds.aspects for name in ASPECTS}
    return knobs | {name: YES if there else NO for name, there in aspects.items()}


@cache
def samples() -> tuple[tuple[Policy, Bounds], ...]:
    """The samples: presets, and presets with one changed knob, without features and (fewer) with each feature."""
    return tuple(_samples())


def _samples() -> Iterator[tuple[Policy, Bounds]]:
    for policy in PRESETS.values():
        for changed in (policy, *changes_of(policy)):
            yield changed, PLAIN
    for bounds in EXPLORATIONS.values():
        for policy in PRESETS.values():
            yield policy, bounds
        for name in CHANGED_WITH_ASPECTS:
            yield from ((policy, bounds) for policy in changes_of(PRESETS[name]))


def changes_of(policy: Policy) -> Iterator[Policy]:
    """The policies that differ from this one in one knob."""
    return (with_knob(policy, setting) for setting in other_settings(policy))


def condition_of(question: Question, tried: Sequence[tuple[Policy, Bounds]] | None = None) -> Condition:
    """The condition under which the answer to a question is yes, found from the samples, by default all of them.

    The function asserts that at most two alternatives are enough.
    """
    asked = [(features_of(*sample), question(*sample)) for sample in (samples() if tried is None else tried)]
    those, others = ([features for features, yes in asked if yes is wanted] for wanted in (True, False))
    if not those:
        return Condition(())
    whole = _separating(those, others)
    if whole is not None:
        return Condition((whole,))
    found = [
        Condition((first, second))
        for name, value in _splits(those)
        if (first := _separating([each for each in those if each[name] == value], others)) is not None
        if (second := _separating([each for each in those if each[name] != value], others)) is not None
    ]
    assert found, "no two alternatives of few knobs and aspects say when this is so"
    return min(found, key=lambda condition: sum(map(len, condition.alternatives)))


def _splits(those: Sequence[Features]) -> Iterator[tuple[str, str]]:
    for name in those[0]:
        values = sorted({features[name] for features in those})
        yield from ((name, value) for value in values if len(values) > 1)


def _separating(those: Sequence[Features], others: Sequence[Features]) -> tuple[Part, ...] | None:
    values = {name: frozenset(features[name] for features in those) for name in those[0]}
    excluded = {
        name: frozenset(number for number, other in enumerate(others) if other[name] not in taken)
        for name, taken in values.items()
    }
    for size in range(PARTS_MAX + 1):
        for names in combinations([name for name, numbers in excluded.items() if numbers], size):
            if len(frozenset[int]().union(*(excluded[name] for name in names))) == len(others):
                return tuple((name, values[name]) for name in names)
    return None
