"""The engines: meanings of one text, equal by test.

`python` is the plain one, `packed` the fast one. Engines that need heavy imports are imported when asked for. Leaves
out choosing for the user: the command line does.
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
"""The engines that explore all there is and need nothing but this package, the default first."""
ENGINES: Final = (*EXPLORERS, "spark", "simulate")
"""All of them: `spark` explores on a Spark session that it is given, `simulate` tries random runs."""
_MODULES: Final = {
    "packed": "longpoll_spec.engines.packed.search",
    "python": "longpoll_spec.engines.python.search",
    "spark": "longpoll_spec.engines.spark.search",
    "simulate": "longpoll_spec.engines.packed.simulate",
}
"""Engine -> where its `explore` is."""
_OPTIONS: Final = {
    "packed": ("symmetry", "workers", "memory_mb"),
    "python": (),
    "spark": ("session", "parallel", "travelling", "checkpoint"),
    "simulate": ("runs", "steps", "seed"),
}
"""Engine -> the options that it has besides those of every engine."""
_USUAL: Final = {"symmetry": False, "workers": 1}
"""Options that say nothing with this value; every other one with none."""


def explore(
    model: Model,
    properties: Sequence[Property] | None = None,
    *,
    engine: str = EXPLORERS[0],
    report: Report | None = None,
    limit_states: int | None = None,
    **options: Any,
) -> Exploration:
    """Explore a model with an engine by name and judge the properties, all of the law's if none are given.

    `report` is called with the progress about every second or oftener. Past `limit_states` the search ends at the next
    level, with `unknown` for what is not decided; Ctrl-C ends it in the same way. Each engine's `explore` says what its
    own options mean: `symmetry`, `workers` and `memory_mb` of packed, `session`, `parallel`,
    `travelling` and `checkpoint` of spark, `runs`,
    `steps` and `seed` of simulate. Raises `UnknownEngineError`, `BoundsError` for bounds that the engine cannot take,
    `SymmetryError`, and `EngineLimitError` for what the engine cannot do.
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
