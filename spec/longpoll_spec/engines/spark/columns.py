"""Terms as Spark columns: guards and effects as expressions over rows that are states.

A row has a column for every variable, integers as `int` and truth values as `boolean`. So one filter checks a recorded
or computed set of steps in place. Exploration uses packed words instead (`search`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

from attrs import define, field
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from longpoll_spec.model import Action, Model
from longpoll_spec.terms import Bool, Int, Term, nodes

_MEANINGS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "not": operator.invert,
    "ite": lambda condition, then, otherwise: F.when(condition, then).otherwise(otherwise),
    "and": lambda *parts: reduce(operator.and_, parts),
    "or": lambda *parts: reduce(operator.or_, parts),
}


def state_ddl(model: Model, prefix: str = "") -> str:
    """The columns of a state as Spark DDL."""
    kinds = ((f"{prefix}{each.name}", "boolean" if each.truth else "int") for each in model.variables)
    return ", ".join(f"{name} {kind}" for name, kind in kinds)


@define
class Columns:
    """Terms as columns over variables with this prefix. Invariant: `made` has a node's column by its identity."""

    prefix: str = ""
    made: dict[int, Column] = field(factory=dict)
    kept: list[Term] = field(factory=list)
    """Keeps the nodes in `made` alive, so that identities stay unique."""

    def of(self, term: Term) -> Column:
        """The term as a column."""
        for node in nodes(term):
            if id(node) not in self.made:
                self.kept.append(node)
                self.made[id(node)] = self._column(node)
        return self.made[id(term)]

    def _column(self, node: Term) -> Column:
        match node.op:
            case "var":
                return F.col(f"{self.prefix}{node.args[0]}")
            case "const" | "parameter":
                return F.lit(int(node.args[-1]))
            case "true" | "false":
                return F.lit(node.op == "true")
            case _:
                args = (self.made[id(arg)] for arg in node.args if isinstance(arg, (Int, Bool)))
                made: Column = _MEANINGS[node.op](*args)
                return made


def guard_column(action: Action) -> Column:
    """Whether the action is enabled in the row's state."""
    return Columns().of(action.guard)


def effect_columns(action: Action) -> dict[str, Column]:
    """Variable -> its value after the action; a variable that is not named keeps its value."""
    columns = Columns()
    return {name: columns.of(term) for name, term in action.effect.items()}


def legal_step(model: Model, before: str = "before_", after: str = "after_") -> Column:
    """Whether some action leads from the row's first state to its second; their columns have these prefixes."""
    columns = Columns(before)
    return reduce(operator.or_, (_is_step(model, action, columns, after) for action in model.actions))


def _is_step(model: Model, action: Action, columns: Columns, after: str) -> Column:
    ends = (
        F.col(f"{after}{each.name}") == columns.of(action.effect.get(each.name, each.term)) for each in model.variables
    )
    return reduce(operator.and_, ends, columns.of(action.guard))
