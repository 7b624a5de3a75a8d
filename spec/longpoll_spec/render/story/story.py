"""Describe a trace step by step: actor, target, changes, and at the end what is wrong.

Every sentence is made from the states before and after its step, so it describes this run and not the action in
general. The sentences are in `step_texts`, the faults in `wrong`.
"""

from __future__ import annotations

from attrs import frozen

from longpoll_spec.model import Trace
from longpoll_spec.render.notation import sizes_of
from longpoll_spec.render.story.diagnosis import diagnosis_of
from longpoll_spec.render.story.rocketmq_names import Participant, in_order, place_of
from longpoll_spec.render.story.step_texts import StepValues, text_of_step
from longpoll_spec.threads import thread_of


@frozen
class Scene:
    """One step. An arrow goes from `source` to `target`; both are empty when time passes."""

    number: int
    action: str
    source: str
    target: str
    short: str
    """A few words, for an arrow."""
    sentence: str
    place: str
    """Where the step lies in RocketMQ's source."""
    changes: tuple[str, ...]


@frozen
class Story:
    """The description of a whole trace. `wrong` is empty for a run that shows no violation."""

    policy: str
    bounds: str
    property_name: str
    participants: tuple[Participant, ...]
    scenes: tuple[Scene, ...]
    wrong: tuple[str, ...]

    @property
    def title(self) -> str:
        """One line that describes the trace."""
        what = f"{self.property_name} is violated" if self.wrong else self.property_name or "a run"
        return f"{self.policy}: {what}, in {len(self.scenes)} steps"


def story_of(trace: Trace) -> Story:
    """Describe a trace."""
    scenes = tuple(_scene(trace, index) for index in range(1, len(trace.steps)))
    keys = {key for scene in scenes for key in (scene.source, scene.target) if key}
    return Story(
        policy=trace.model.policy.name,
        bounds=sizes_of(trace.model.bounds),
        property_name=trace.property_name,
        participants=in_order(keys),
        scenes=scenes,
        wrong=diagnosis_of(trace),
    )


def _scene(trace: Trace, index: int) -> Scene:
    action = trace.steps[index].action
    assert action is not None
    names = [variable.name for variable in trace.model.variables]
    before, after = (dict(zip(names, step.state, strict=True)) for step in trace.steps[index - 1 : index + 1])
    target, short, rest = text_of_step(StepValues(trace.model, action, before, after))
    source = thread_of(action)
    return Scene(
        number=index,
        action=action.label,
        source=source,
        target=target,
        short=short,
        sentence=rest,
        place=place_of(action),
        changes=tuple(f"{each.name}: {each.show(old)} -> {each.show(new)}" for each, old, new in trace.changes(index)),
    )
