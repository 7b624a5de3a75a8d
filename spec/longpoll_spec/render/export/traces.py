"""Exports a trace as JSON, with the description of each step and the values of all variables in each state."""

from __future__ import annotations

from typing import Any

from longpoll_spec.model import Trace
from longpoll_spec.render.story import Scene, Story


def trace_json(trace: Trace, story: Story, token: str) -> dict[str, Any]:
    """The trace and its story as a dictionary that can be written as JSON."""
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
