"""A trace told step by step: who does what to whom, what it changes, and at the end what is wrong.

Every sentence is made from the states before and after its step, so that it says what happened in this run and not what
the action may do in general. Leaves out layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.model import Action, Trace
from longpoll_spec.render.notation import sizes_of
from longpoll_spec.render.terms_of_rocketmq import Participant, in_order, place_of
from longpoll_spec.render.wrong import wrong_in
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
    """A whole trace, told. `wrong` is empty for a run that shows no violation."""

    policy: str
    bounds: str
    property_name: str
    participants: tuple[Participant, ...]
    scenes: tuple[Scene, ...]
    wrong: tuple[str, ...]

    @property
    def title(self) -> str:
        """One line that says what this is."""
        what = f"{self.property_name} is violated" if self.wrong else self.property_name or "a run"
        return f"{self.policy}: {what}, in {len(self.scenes)} steps"


@frozen
class Beat:
    """One step with the values around it, which the tellers read."""

    action: Action
    before: Mapping[str, int]
    after: Mapping[str, int]
    labels: Sequence[str]
    """The phases' words."""

    @property
    def slot(self) -> int:
        """The request that takes part."""
        return next(actor for actor in reversed(self.action.actors) if isinstance(actor, int))

    def phase(self, slot: int, *, after: bool = True) -> str:
        """Where a request stands."""
        return self.labels[(self.after if after else self.before)[f"phase_{slot}"]]

    def has_more(self, slot: int) -> bool:
        """Whether there was something to read for the request before the step."""
        return self.before[f"offset_{slot}"] < self.end("visible_end", self.before)

    def end(self, name: str, values: Mapping[str, int]) -> int:
        """An end of the queue that the step is about: the one it names, or the one that its request reads."""
        if name in values:
            return values[name]
        named = [actor for actor in self.action.actors if isinstance(actor, str) and actor.startswith("q")]
        queue = named[0] if named else f"q{self.after[f'queue_{self.slot}']}"
        return values[f"{name}_{queue}"]

    def moved(self, prefix: str) -> list[int]:
        """The requests that this step brought into a phase that begins so."""
        return [
            slot
            for slot in self.slots
            if self.phase(slot).startswith(prefix) and not self.phase(slot, after=False).startswith(prefix)
        ]

    @property
    def slots(self) -> range:
        """All requests."""
        return range(sum(name.startswith("phase_") for name in self.after))


Told = tuple[str, str, str]
"""(key of the arrow's target, a few words for the arrow, the rest of the sentence after who acts)."""


def _append(beat: Beat) -> Told:
    number = beat.end("log_end", beat.before)
    return "store", f"append message {number}", f"appends message {number} to the log; pulls do not see it yet"


def _make_visible(beat: Beat) -> Told:
    end = beat.end("visible_end", beat.after)
    return (
        "store",
        f"maxOffset = {end}",
        f"writes message {end - 1} into the consume queue: maxOffset is now {end}, and arriving() is to follow",
    )


def _next_pull(beat: Beat) -> Told:
    offset = beat.before[f"offset_{beat.slot}"]
    return (
        f"pull {beat.slot}",
        f"PULL_MESSAGE offset {offset}",
        f"sends PULL_MESSAGE for offset {offset}, to be held for {beat.after[f'deadline_{beat.slot}']} tick(s)",
    )


def _pull_read(beat: Beat) -> Told:
    offset, end = beat.before[f"offset_{beat.slot}"], beat.end("visible_end", beat.before)
    if beat.has_more(beat.slot):
        return (
            f"consumer {beat.slot}",
            f"FOUND, next {end}",
            f"reads offset {offset}, maxOffset is {end}: answers FOUND",
        )
    return (
        "store",
        f"getMessage({offset}): nothing",
        f"reads offset {offset} and finds nothing, for maxOffset is {end}: PULL_NOT_FOUND, the request is to be held",
    )


def _hold(beat: Beat) -> Told:
    if beat.phase(beat.slot) != "held":
        return f"consumer {beat.slot}", "answer: stopping", "finds the broker stopped and answers instead of holding"
    offset, end = beat.before[f"offset_{beat.slot}"], beat.end("visible_end", beat.before)
    late = f", though maxOffset is {end} by now" if offset < end else ""
    return (
        "bucket",
        f"hold request {beat.slot}",
        f"puts request {beat.slot} into the bucket, waiting for offset {offset}{late}",
    )


def _recheck(beat: Beat) -> Told:
    if isinstance(beat.action.actors[0], str):
        counter = beat.after[beat.action.actors[0]]
        again = "finds something to read and is due to walk again" if counter else "finds nothing new"
        return (
            "store",
            "recheck: walk again" if counter else "recheck: nothing new",
            f"looks at maxOffset again and {again}",
        )
    slot, end = beat.slot, beat.end("visible_end", beat.before)
    if beat.moved("queued"):
        return (
            "executor",
            f"recheck: wake {slot}",
            f"looks again: maxOffset is {end}; request {slot} goes to the executor",
        )
    where = beat.phase(slot, after=False).replace("_", " ")
    return (
        "store",
        "recheck: nothing to do",
        f"looks again: maxOffset is {end}, request {slot} is {where}; nothing to do",
    )


def _take(beat: Beat) -> Told:
    taken = beat.moved("taken")
    if not taken:
        return "bucket", "list is empty", "goes to the bucket and finds no request in it: there is nobody to wake"
    names = _requests(taken)
    return "bucket", f"take {names}", f"takes {names} out of the bucket, to look at one after the other"


def _look(beat: Beat) -> Told:
    slot, end = beat.slot, beat.end("visible_end", beat.before)
    if beat.moved("queued"):
        why = f"maxOffset is {end}" if beat.has_more(slot) else "its deadline has passed"
        return "executor", f"wake {slot}", f"looks at request {slot}: {why}; wakes it, to be run by the executor"
    return (
        thread_of(beat.action),
        f"keep {slot}",
        f"looks at request {slot}: maxOffset is {end}, nothing for it; keeps it",
    )


def _put_back(beat: Beat) -> Told:
    back = beat.moved("held")
    refused = beat.moved("idle")
    if back:
        return "bucket", f"put back {_requests(back)}", f"puts {_requests(back)} back into the bucket"
    if refused:
        return "bucket", f"answer {_requests(refused)}", f"finds the broker stopped and answers {_requests(refused)}"
    return "bucket", "nothing to put back", "has nothing to put back and ends its walk"


def _expire(beat: Beat) -> Told:
    slot = beat.slot
    if beat.moved("queued"):
        return "executor", f"expire {slot}", f"finds the deadline of request {slot} passed and hands it to the executor"
    return "bucket", f"entry of {slot} spent", f"spends the entry of request {slot}, which a notifier has at the moment"


def _run(beat: Beat) -> Told:
    slot = beat.slot
    status = "FOUND" if beat.has_more(slot) else "PULL_NOT_FOUND"
    return f"consumer {slot}", status, f"runs pull {slot} again, may not hold it, and answers {status}"


def _rejects(beat: Beat) -> Told:
    slot = beat.slot
    if beat.after[f"open_{slot}"]:
        return "executor", f"reject {slot}: lost", f"refuses request {slot}; it is logged and forgotten, nobody answers"
    return f"consumer {slot}", "SYSTEM_BUSY", f"refuses request {slot}, which is answered SYSTEM_BUSY"


def _throws(beat: Beat) -> Told:
    slot, back = beat.slot, beat.moved("held")
    gone = [each for each in beat.moved("idle") if beat.after[f"open_{each}"]]
    if gone:
        names = _requests(gone)
        return "bucket", f"throws: {names} lost", f"gets an exception at request {slot}: its list with {names} is lost"
    if back:
        return "bucket", "throws: puts all back", f"gets an exception at request {slot} and puts {_requests(back)} back"
    return f"consumer {slot}", "error", f"gets an exception at request {slot}, answers it and goes on"


def _scan_throws(_beat: Beat) -> Told:
    return "store", "getMaxOffsetInQueue throws", "asks for maxOffset and gets an exception: the queue is passed over"


def _stop(beat: Beat) -> Told:
    answered = beat.moved("idle")
    end = f"and {_requests(answered)} is answered" if answered else "and nothing is answered"
    return "bucket", "shutdown", f"stops the broker: no append, dispatch, pull or scan begins any more, {end}"


def _tick(beat: Beat) -> Told:
    return (
        "",
        "time passes",
        "One tick passes." if beat.before != beat.after else "One tick passes; nothing waits for it.",
    )


_TELLERS: Final[Mapping[str, Callable[[Beat], Told]]] = {
    "append": _append,
    "make_visible": _make_visible,
    "next_pull": _next_pull,
    "pull_read": _pull_read,
    "hold": _hold,
    "recheck": _recheck,
    "notify_start": _take,
    "notify_each": _look,
    "notify_end": _put_back,
    "scan_start": _take,
    "scan_each": _look,
    "scan_end": _put_back,
    "walk_start": _take,
    "walk_each": _look,
    "walk_end": _put_back,
    "expire": _expire,
    "run": _run,
    "tick": _tick,
    "executor_rejects": _rejects,
    "notifier_throws": _throws,
    "scan_throws": _scan_throws,
    "stop": _stop,
}


def story_of(trace: Trace) -> Story:
    """Tell a trace."""
    scenes = tuple(_scene(trace, index) for index in range(1, len(trace.steps)))
    keys = {key for scene in scenes for key in (scene.source, scene.target) if key}
    return Story(
        policy=trace.model.policy.name,
        bounds=sizes_of(trace.model.bounds),
        property_name=trace.property_name,
        participants=in_order(keys),
        scenes=scenes,
        wrong=wrong_in(trace),
    )


def _scene(trace: Trace, index: int) -> Scene:
    action = trace.steps[index].action
    assert action is not None
    names = [variable.name for variable in trace.model.variables]
    before, after = (dict(zip(names, step.state, strict=True)) for step in trace.steps[index - 1 : index + 1])
    target, short, rest = _TELLERS[action.name](Beat(action, before, after, trace.model.state.phases.labels))
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


def _requests(slots: Sequence[int]) -> str:
    return f"request {slots[0]}" if len(slots) == 1 else "requests " + ", ".join(map(str, slots))
