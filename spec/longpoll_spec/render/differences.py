"""Compares two policies: it finds the knobs in which they differ, and each action that differs.

To find whether properties differ, explore or prove both policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

from attrs import frozen

from longpoll_spec.actions import families_of
from longpoll_spec.bounds import EXPLORATIONS, Bounds
from longpoll_spec.errors import UserError
from longpoll_spec.policy import Policy, knobs_of, setting_of
from longpoll_spec.render.spec_page import OPEN, action_lines, opened

NO_FEATURE: Final = ""
"""The value of `Changed.aspect` for a difference without any feature."""
Pair = tuple[str, str]
"""Corresponding lines of the first and the second policy; a line that only one policy has is paired with ""."""


@frozen
class Changed:
    """One action that differs between two policies."""

    action: str
    aspect: str
    """The feature with which the action differs; `NO_FEATURE` if it differs without any feature."""
    pairs: tuple[Pair, ...]


@frozen
class Difference:
    """All differences between two policies."""

    first: Policy
    second: Policy
    knobs: tuple[tuple[str, str, str], ...]
    """(knob, its value in the first policy, its value in the second)."""
    actions: tuple[Changed, ...]


def difference(first: Policy, second: Policy) -> Difference:
    """The differences between two policies; raises `UserError` if they specify two different tables."""
    if _table_of(first) != _table_of(second):
        raise UserError(f"{first.name} and {second.name} hold different requests: compare two policies of one table")
    values = ((knob, *(str(setting_of(each, knob)).lower() for each in (first, second))) for knob in knobs_of(first))
    knobs = tuple((knob, one, other) for knob, one, other in values if one != other)
    return Difference(first, second, knobs, tuple(_changed(first, second)))


def _table_of(policy: Policy) -> str:
    return "" if policy.extension is None else policy.extension.path


def _changed(first: Policy, second: Policy) -> Iterator[Changed]:
    sizes = EXPLORATIONS if first.extension is None else {"queues": EXPLORATIONS["queues"]}
    for name in dict.fromkeys(each.name for policy in (first, second) for each in families_of(policy)):
        told: set[Pair] = set()
        for aspect, bounds in {NO_FEATURE: OPEN, **{each: opened(size) for each, size in sizes.items()}}.items():
            pairs = _pairs(name, first, second, bounds)
            new = {(one, other) for one, other in pairs if one != other} - told
            if new:
                told |= new
                yield Changed(name, aspect, tuple(pairs))


def _pairs(name: str, first: Policy, second: Policy, bounds: Bounds) -> list[Pair]:
    return list(aligned(action_lines(name, first, bounds), action_lines(name, second, bounds)))


def aligned(first: Sequence[str], second: Sequence[str]) -> Iterator[Pair]:
    """The lines of two texts as pairs, so that equal lines are paired with each other."""
    for kind, start, end, other_start, other_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        left, right = list(first[start:end]), list(second[other_start:other_end])
        if kind != "equal":
            length = max(len(left), len(right))
            left += [""] * (length - len(left))
            right += [""] * (length - len(right))
        yield from zip(left, right, strict=True)
