"""A trace as data: our own JSON with the descriptions and every state's values, and the Informal Trace Format.

Apalache writes ITF, and the TLA+ tools around it read it:

| field     | content                                                                                   |
|-----------|-------------------------------------------------------------------------------------------|
| `#meta`   | the trace's description; in a state: its number, and the action that led to it            |
| `params`  | the open parameters: constants of the TLA+ module, here with their values                 |
| `vars`    | the variables, by the names of the TLA+ export                                            |
| `states`  | one object per state, from the first on: each variable's value                            |

An integer is `{"#bigint": "3"}` and a truth value a JSON one, as in the export. The parameters are set in the first
state. Source: Apalache's ADR-015. There is no `loop`: our traces are finite.
"""

from __future__ import annotations

from typing import Any

from longpoll_spec.model import Trace
from longpoll_spec.render.notation import parameters_of
from longpoll_spec.render.story import Scene, Story


def trace_itf(trace: Trace, token: str) -> dict[str, Any]:
    """The trace as JSON-compatible data."""
    parameters = parameters_of(trace.model)
    return {
        "#meta": {
            "format": "ITF",
            "format-description": "https://apalache-mc.org/docs/adr/015adr-trace.html",
            "source": token,
            "description": f"{trace.model.policy.name}: {trace.property_name or 'a run'}",
        },
        "params": list(parameters),
        "vars": [variable.name for variable in trace.model.variables],
        "states": [
            {"#meta": _meta(trace, index)}
            | ({} if index else {name: _integer(value) for name, value in parameters.items()})
            | {
                variable.name: bool(value) if variable.truth else _integer(value)
                for variable, value in zip(trace.model.variables, step.state, strict=True)
            }
            for index, step in enumerate(trace.steps)
        ],
    }


def _meta(trace: Trace, index: int) -> dict[str, Any]:
    action = trace.steps[index].action
    return {"index": index} if action is None else {"index": index, "action": action.label}


def _integer(value: int) -> dict[str, str]:
    return {"#bigint": str(value)}


def trace_json(trace: Trace, story: Story, token: str) -> dict[str, Any]:
    """The trace and its story as JSON-compatible data."""
    names = [variable.name for variable in trace.model.variables]
    states = [dict(zip(names, step.state, strict=True)) for step in trace.steps]
    bounds = trace.model.bounds
    return {
        "token": token,
        "policy": story.policy,
        "bounds": {
            "requests": bounds.requests,
            "messages": bounds.messages,
            "hold_ticks": bounds.hold_ticks,
            "scan_ticks": bounds.scan_ticks,
            "queues": bounds.queues,
            "tags": bounds.tags,
            "aspects": sorted(bounds.aspects),
        },
        "property": story.property_name,
        "initial": states[0],
        "steps": [_step_json(scene, state) for scene, state in zip(story.scenes, states[1:], strict=True)],
        "wrong": list(story.wrong),
    }


def _step_json(scene: Scene, state: dict[str, int]) -> dict[str, Any]:
    return {
        "number": scene.number,
        "action": scene.action,
        "who": scene.source,
        "whom": scene.target,
        "what": scene.sentence,
        "where": scene.place,
        "state": state,
    }
