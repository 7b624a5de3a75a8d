"""The least and greatest value of a term over the ranges of its variables: how wide a column must be.

Interval arithmetic: sound, not tight. Relations between variables are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Model
from longpoll_spec.terms import Bool, Int, Term, nodes

Interval: TypeAlias = tuple[int, int]
_COLUMN_TYPES: Final = (np.int8, np.int16, np.int32)


def column_type(model: Model, terms: Iterable[Term]) -> np.dtype[Any]:
    """The narrowest signed type that holds every value of the model's and the given terms."""
    guards_and_effects = [term for action in model.actions for term in (action.guard, *action.effect.values())]
    lower, upper = extent(model, (*guards_and_effects, *terms))
    for kind in _COLUMN_TYPES:
        if np.iinfo(kind).min <= lower and upper <= np.iinfo(kind).max:
            return np.dtype(kind)
    raise BoundsError("these bounds need integers of more than 32 bits; lower --messages or --requests")


def ranges_of(model: Model) -> Mapping[str, Interval]:
    """The least and greatest value of every variable of a bounded model."""
    return {each.name: (each.lower, each.lower if each.upper is None else each.upper) for each in model.variables}


def extent(model: Model, terms: Iterable[Term]) -> Interval:
    """The least and greatest value of any integer in the terms."""
    ranges = ranges_of(model)
    known: dict[int, Interval] = {}
    reach = (0, 0)
    for node in nodes(*terms):
        if isinstance(node, Bool):
            known[id(node)] = (0, 1)
            continue
        known[id(node)] = _interval(node, known, ranges)
        reach = _hull(reach, known[id(node)])
    return reach


def _interval(node: Int, known: Mapping[int, Interval], ranges: Mapping[str, Interval]) -> Interval:
    args = [known[id(arg)] for arg in node.args if isinstance(arg, (Int, Bool))]
    match node.op:
        case "var":
            return ranges[node.args[0]]
        case "const" | "parameter":
            return (node.args[-1], node.args[-1])
        case "add":
            return (args[0][0] + args[1][0], args[0][1] + args[1][1])
        case "sub":
            return (args[0][0] - args[1][1], args[0][1] - args[1][0])
        case _:
            assert node.op == "ite", node.op
            return _hull(args[1], args[2])


def _hull(first: Interval, second: Interval) -> Interval:
    return (min(first[0], second[0]), max(first[1], second[1]))
