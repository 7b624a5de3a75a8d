"""The engines: independent implementations of one specification, which the tests compare with one another.

`python` is the plain engine and `packed` is the fast one. An engine's module is imported when the engine is first used,
because some need large libraries. On the command line, `--engine` chooses the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from longpoll_spec.engines.exploration import Exploration, Report
from longpoll_spec.errors import EngineLimitError, UnknownEngineError, not_known
from longpoll_spec.model import Model, Property
from longpoll_spec.specification import properties_of

EXPLORERS: Final = ("packed", "python")
"""The engines that explore the state space and need only this package; the first is the default."""
ENGINES: Final = (*EXPLORERS, "spark")
"""All engines; `spark` also needs a Spark session."""
_MODULES: Final = {
    "packed": "longpoll_spec.engines.packed.search",
    "python": "longpoll_spec.engines.python",
    "spark": "longpoll_spec.engines.spark.search",
}
"""Maps an engine to the module with its function `explore`."""
_OPTIONS: Final = {
    "packed": ("symmetry", "workers", "memory_mb"),
    "python": (),
    "spark": ("session", "parallel", "travelling", "checkpoint"),
}
"""Maps an engine to its options, apart from those that every engine has."""
_USUAL: Final = {"symmetry": False, "workers": 1}
"""Maps an option to the value that changes nothing; for other options this value is None."""


def explore(
    model: Model,
    properties: Sequence[Property] | None = None,
    *,
    engine: str = EXPLORERS[0],
    report: Report | None = None,
    limit_states: int | None = None,
    **options: Any,
) -> Exploration:
    """Explore a model with the engine of this name, and decide the properties (by default, all of the spec).

    `report` is called with the progress about every second. If a search passes `limit_states`, it ends at the next
    level, and undecided properties are `unknown`; Ctrl-C has the same effect. The `explore` of each engine documents
    its options: `symmetry`, `workers` and `memory_mb` of packed, `session`, `parallel`, `travelling` and `checkpoint`
    of spark. Raises `UnknownEngineError`, `SymmetryError`, `BoundsError` for bounds that the engine cannot take, and
    `EngineLimitError` for a run beyond its limits.
    """
    if engine not in ENGINES:
        raise UnknownEngineError(not_known("engine", engine, ENGINES))
    judged = properties_of(model) if properties is None else properties
    given = {name: value for name, value in options.items() if value != _USUAL.get(name)}
    for name in given.keys() - set(_OPTIONS[engine]):
        able = next(other for other, has in _OPTIONS.items() if name in has)
        raise EngineLimitError(f"the {engine} engine has no {name}; use --engine {able}")
    made: Exploration = import_module(_MODULES[engine]).explore(
        model, judged, report=report, limit_states=limit_states, **given
    )
    return made
