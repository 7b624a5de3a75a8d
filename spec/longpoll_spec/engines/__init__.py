"""The engines: meanings of one text, equal by test.

`python` is the plain one, `packed` the fast one. Engines that need heavy imports are imported when asked for. Leaves
out choosing for the user: the command line does.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from longpoll_spec.engines.exploration import Exploration, Report
from longpoll_spec.errors import EngineLimitError, UnknownEngineError
from longpoll_spec.law import properties_of
from longpoll_spec.model import Model, Property

EXPLORERS: Final = ("packed", "python")
"""The engines that explore, the default first."""


def explore(
    model: Model,
    properties: Sequence[Property] | None = None,
    *,
    engine: str = EXPLORERS[0],
    report: Report | None = None,
    limit_states: int | None = None,
    symmetry: bool = False,
    workers: int = 1,
    memory_mb: int | None = None,
) -> Exploration:
    """Explore a model with an engine by name and judge the properties, all of the law's if none are given.

    `report` is called with the progress about every second or oftener. Past `limit_states` the search ends at the next
    level, with `unknown` for what is not decided; Ctrl-C ends it in the same way. `symmetry` explores one state for all
    that differ only in which request is which, and gives the same counts. `workers` are processes that share the
    search. Raises `UnknownEngineError`, `BoundsError` for bounds that the engine cannot take, `SymmetryError`, and
    `EngineLimitError` for what the engine cannot do.
    """
    if engine not in EXPLORERS:
        raise UnknownEngineError(f"unknown engine {engine!r}; known: {', '.join(EXPLORERS)}")
    judged = properties_of(model) if properties is None else properties
    options = {
        name: value
        for name, value, usual in (
            ("symmetry", symmetry, False),
            ("workers", workers, 1),
            ("memory_mb", memory_mb, None),
        )
        if value != usual
    }
    if options and engine != "packed":
        raise EngineLimitError(f"the {engine} engine has no {', '.join(options)}; use --engine packed")
    made: Exploration = import_module(f"longpoll_spec.engines.{engine}").explore(
        model, judged, report=report, limit_states=limit_states, **options
    )
    return made
