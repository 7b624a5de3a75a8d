"""Maps each event of a history of steps to the possible actions of the spec, and to facts about the state.

| field           | of                     | fact about the state after the step                       |
|-----------------|------------------------|-----------------------------------------------------------|
| `actors`        | every step             | no fact, only who took part; `?` for an unknown actor     |
| `queue`         | a step with a queue    | no fact, only the queue if `actors` does not name it      |
| `queue_offset`  | `append`               | the log of the queue ends after this offset               |
| `visible_end`   | any step               | the visible end of the queue                              |
| `offset`        | a step with a request  | the next offset that the request's consumer reads         |

The module also explains why a step does not fit. `longpoll_spec.engines.conform` checks whether the steps are a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import define, field

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.conform import Refusal
from longpoll_spec.history import Law
from longpoll_spec.model import Action, Actor, Model, SeenStep
from longpoll_spec.policy import policy_named
from longpoll_spec.render.notation import NOTATION, Writer, bare, named_parts
from longpoll_spec.specification import specification_of
from longpoll_spec.state.variables import of_queue
from longpoll_spec.terms import Bool, variables_of

ANYBODY: Final = "?"
COLUMNS: Final = ("actors", "queue", "queue_offset", "visible_end", "offset")
"""The fields that this module reads, in addition to the fields of every event."""
VALUES_MAX: Final = 6
"""If a part of a guard reads more variables than this, the values of the variables are not shown."""
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_QUEUE: Final = re.compile(r"q([0-9]{1,3})")


def model_of(policy: str, law: Law) -> Model:
    """Return the model that a history declares, with unlimited messages. Raises `SpecUserError` if there is none."""
    bounds = Bounds(
        "declared",
        requests=law.requests,
        messages=None,
        hold_ticks=law.hold_ticks,
        scan_ticks=law.scan_ticks,
        queues=law.queues,
        tags=law.tags,
        aspects=frozenset(law.aspects),
    )
    return specification_of(policy_named(policy), bounds)


@define
class StepReader:
    """Reads events as steps of one model. `_labels` caches the results of `_fitting`."""

    model: Model
    by_name: Mapping[str, tuple[Action, ...]]
    variables: frozenset[str]
    _labels: dict[tuple[str, str, int], tuple[str, ...]] = field(factory=dict)
    """For each combination of an event's name, actors and queue, the labels of the possible actions."""

    def step(self, event: Mapping[str, Any]) -> SeenStep:
        """Return the step that an event describes. The step has no actions if no action of the spec fits."""
        actors = event["actors"].split(",") if event["actors"] else []
        known = tuple(self._known(event, actors))
        is_known = all(name in self.variables for name, _value in known)
        labels = self._fitting(event["event"], event["actors"], actors, event["queue"]) if is_known else ()
        return SeenStep(labels, event["after_ns"], event["before_ns"], known)

    def _fitting(self, name: str, text: str, actors: list[str], queue: int) -> tuple[str, ...]:
        key = (name, text, queue)
        if key not in self._labels:
            self._labels[key] = tuple(each.label for each in self.by_name.get(name, ()) if _fits(each, actors, queue))
        return self._labels[key]

    def _known(self, event: Mapping[str, Any], actors: list[str]) -> list[tuple[str, int]]:
        named = [queue for actor in actors if (queue := _queue_of(actor)) is not None]
        queue = named[0] if named else max(event["queue"], 0)
        bounds = self.model.bounds
        known = []
        if event["queue_offset"] >= 0:
            known.append((of_queue("log_end", queue, bounds), event["queue_offset"] + 1))
        if event["visible_end"] >= 0:
            known.append((of_queue("visible_end", queue, bounds), event["visible_end"]))
        if event["offset"] >= 0 and actors and _NUMBER.fullmatch(actors[0]):
            known.append((f"offset_{actors[0]}", event["offset"]))
        return known


def reader_of(model: Model) -> StepReader:
    """The reader of a model's steps."""
    by_name: dict[str, tuple[Action, ...]] = {}
    for action in model.actions:
        by_name[action.name] = (*by_name.get(action.name, ()), action)
    return StepReader(model, by_name, frozenset(variable.name for variable in model.variables))


def _fits(action: Action, actors: list[str], queue: int) -> bool:
    """Whether the event may be this action: its actors match, or its queue matches if it names no actors."""
    if not actors:
        return queue < 0 or all(_queue_of(actor) in {None, queue} for actor in action.actors)
    pairs = zip(actors, action.actors, strict=False)
    return len(actors) == len(action.actors) and all(seen in {ANYBODY, str(actor)} for seen, actor in pairs)


def _queue_of(actor: Actor) -> int | None:
    """Returns the number of the queue if the actor is a queue; else None."""
    found = _QUEUE.fullmatch(str(actor))
    return None if found is None else int(found[1])


def reason(model: Model, refusal: Refusal) -> str:
    """Returns why a step does not fit in one state: the false parts of its guard, or the facts that differ."""
    if not refusal.action:
        return "there is no such action, or nothing of the kind that it tells"
    if refusal.contradicted:
        seen = (f"{name} is {value}, but {other} was seen" for name, value, other in refusal.contradicted)
        return f"after {refusal.action} {' and '.join(seen)}"
    return f"{refusal.action} needs {' and '.join(contradiction(model, refusal))}"


def contradiction(model: Model, refusal: Refusal) -> list[str]:
    """Returns the false parts of the guard in words, each with the values that it reads."""
    return [_part(model, part, refusal) for part in refusal.false]


def _part(model: Model, part: Bool, refusal: Refusal) -> str:
    """Returns one part of a guard with the values that it reads. Guards of other actions in the part appear by name."""
    labels = {variable.name: variable.labels for variable in model.variables if variable.labels}
    others = [(action, f"{action.label} to be possible") for action in model.actions if action.label != refusal.action]
    text = bare(Writer(NOTATION, labels).naming(named_parts(others)).text(part))
    values = [
        f"{variable.name} is {variable.show(value)}"
        for variable, value in zip(model.variables, refusal.state, strict=True)
        if variable.name in variables_of(part)
    ]
    return f"{text} ({', '.join(values)})" if len(values) <= VALUES_MAX else text
