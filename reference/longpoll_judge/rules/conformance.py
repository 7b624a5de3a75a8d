"""Full-model conformance: whether every step of a history that declares its law is one that the law allows.

A source is one run from the law's first state. Findings bear the property `follows_the_law`: violated where no order
that the moments allow is a run, unknown where events are missing before the step that does not fit, or where more was
possible at once than is followed. The window begins at the last moment at which one state alone was possible, and ends
with the step that no state allows: after that nothing is known, so a source has one finding at most.

Histories of steps are judged in this process on both engines: a step takes microseconds, and one run is one chain.
The search: `longpoll_spec.engines.conform`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa
from attrs import define, field

from longpoll_judge.contract.result import FOLLOWS_THE_LAW, Finding, Gap, Share
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import REQUIRED, compute, event_dict
from longpoll_judge.read.source import History, read_split
from longpoll_judge.rules.queue_columns import MS
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.conform import Checker, Conformance, Refusal, fitting
from longpoll_spec.errors import SpecUserError
from longpoll_spec.history import Law
from longpoll_spec.model import ACTION_NAMES, OPEN_MAX, Action, Actor, Model, SeenStep, TraceStep
from longpoll_spec.policy import policy_named
from longpoll_spec.render.notation import NOTATION, Writer, bare, named_parts
from longpoll_spec.specification import specification_of
from longpoll_spec.state.variables import of_queue
from longpoll_spec.terms import Bool, variables_of

ANYBODY: Final = "?"
COLUMNS: Final = ("actors", "queue", "queue_offset", "visible_end", "offset")
"""The fields that are read here, besides those that every event has."""
VALUES_MAX: Final = 6
"""A part of a guard that reads more variables is shown without their values."""
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_QUEUE: Final = re.compile(r"q([0-9]{1,3})")


def model_of(policy: str, law: Law) -> Model:
    """The law that a history declares, with an open log; raises a `SpecUserError` where there is none such."""
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


def is_step(event: Mapping[str, Any]) -> bool:
    """Whether the event is named after an action; other events are about observers and connections."""
    return event["event"] in ACTION_NAMES


@define
class StepReader:
    """Reads events as steps of one model. Invariant: `_labels` has what was looked up before."""

    model: Model
    by_name: Mapping[str, tuple[Action, ...]]
    variables: frozenset[str]
    _labels: dict[tuple[str, str, int], tuple[str, ...]] = field(factory=dict)
    """By an event's name, actors and queue the labels of the actions that it may be."""

    def step(self, event: Mapping[str, Any]) -> SeenStep:
        """The step that an event describes; it has no actions if the spec has none that fits."""
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
    """Whether the action may be the one that was seen with these actors, of this queue if it is known."""
    if not actors:
        return queue < 0 or all(_queue_of(actor) in {None, queue} for actor in action.actors)
    pairs = zip(actors, action.actors, strict=False)
    return len(actors) == len(action.actors) and all(seen in {ANYBODY, str(actor)} for seen, actor in pairs)


def _queue_of(actor: Actor) -> int | None:
    """The number of the queue that an actor is; None for another one."""
    found = _QUEUE.fullmatch(str(actor))
    return None if found is None else int(found[1])


def reason(model: Model, refusal: Refusal) -> str:
    """Why a step does not fit in one state: each part of its guard that is false, or what was seen and is not so."""
    if not refusal.action:
        return "there is no such action, or nothing of the kind that it tells"
    if refusal.contradicted:
        seen = (f"{name} is {value}, but {other} was seen" for name, value, other in refusal.contradicted)
        return f"after {refusal.action} {' and '.join(seen)}"
    return f"{refusal.action} needs {' and '.join(contradiction(model, refusal))}"


def contradiction(model: Model, refusal: Refusal) -> list[str]:
    """The parts of the guard that are false, in words, each with the values that it reads."""
    return [_part(model, part, refusal) for part in refusal.false]


def _part(model: Model, part: Bool, refusal: Refusal) -> str:
    """A part of a guard, with the values that it reads; other actions' guards in it are shown by their names."""
    labels = {variable.name: variable.labels for variable in model.variables if variable.labels}
    others = [(action, f"{action.label} to be possible") for action in model.actions if action.label != refusal.action]
    text = bare(Writer(NOTATION, labels).naming(named_parts(others)).text(part))
    values = [
        f"{variable.name} is {variable.show(value)}"
        for variable, value in zip(model.variables, refusal.state, strict=True)
        if variable.name in variables_of(part)
    ]
    return f"{text} ({', '.join(values)})" if len(values) <= VALUES_MAX else text


WINDOW_MAX: Final = 50
"""Most events that are shown of what is left open: the last ones."""
REASONS_MAX: Final = 3
"""Most ways in which a step does not fit that a finding lists."""
SHOWN: Final = tuple(dict.fromkeys((*REQUIRED, "broker", "topic", "queue", "request", "connection", "tag", *COLUMNS)))
"""The fields of a step that are read, or shown as evidence."""
Events: TypeAlias = list[dict[str, Any]]


def judge_conformance(history: History, context: Context) -> tuple[list[Finding], list[Gap], Share]:
    """Judge the sources whose histories declare a law, and name those that declare none that there is.

    The share is of steps: those after a step that fits nowhere are not judged, nor those of a law that there is not.
    """
    findings: list[Finding] = []
    gaps: list[Gap] = []
    judged = of = 0
    for source, events in sorted(_events_by_source(history).items()):
        policy, law = history.laws[source]
        of += len(events)
        try:
            checker = Checker(model_of(policy, law), frozenset(law.hidden))
        except SpecUserError as error:
            gaps.append(Gap("unknown law", source, 1, f"source {source!r} declares no law that there is: {error}"))
            continue
        facts = context.sources.get(source, UNSEEN)
        found, placed = judge_run(checker, events, is_whole=facts.is_steady and not len(facts.holes))
        findings += found
        judged += placed + sum(finding.verdict == "violated" for finding in found)
    return findings, gaps, Share(judged, of)


def fitting_runs(history: History) -> Iterator[tuple[Model, int, list[TraceStep]]]:
    """Of every source that declares a law: that law, how many steps were seen, and a run of the law that fits them."""
    for source, events in sorted(_events_by_source(history).items()):
        policy, law = history.laws[source]
        checker = Checker(model_of(policy, law), frozenset(law.hidden))
        reader = reader_of(checker.model)
        yield checker.model, len(events), fitting(checker, map(reader.step, events))


def _events_by_source(history: History) -> dict[str, Events]:
    """The steps of every source that declares a law."""
    found: dict[str, Events] = {source: [] for source in history.laws}
    wanted = pa.array(sorted(found), pa.string())
    for part in history.splits:
        names = {part.rename.get(name, name) for name in part.clocks}
        if names & found.keys():
            table, _damages = read_split(part, SHOWN)
            is_mine = compute.is_in(table["source"].cast(pa.string()), wanted)
            for event in table.filter(is_mine).select(SHOWN).to_pylist():
                if is_step(event):
                    found[event["source"]].append(event)
    return found


def judge_run(checker: Checker, events: Events, *, is_whole: bool) -> tuple[list[Finding], int]:
    """Judge the steps of one source; `is_whole` unless some of its events are missing.

    The number is of steps that have a place in a run of the law: all of them, or those before what the finding tells.
    """
    events = sorted(events, key=lambda event: (event["before_ns"], event["after_ns"], event["sequence"]))
    reader = reader_of(checker.model)
    found = checker.check(reader.step(event) for event in events)
    if found.conforms:
        return [], len(events)
    blamed = _blamed(found)
    window = [events[number] for number in range(found.certain, blamed + 1)]
    first, last = window[0], events[blamed]
    is_violated = is_whole and not found.undecided
    # That a step fits in no state rests on every step before it, from the law's first state on.
    shown = events[: blamed + 1] if is_violated else window[-WINDOW_MAX:]
    finding = Finding(
        property=FOLLOWS_THE_LAW,
        clause="law.step",
        verdict="violated" if is_violated else "unknown",
        topic=last["topic"],
        queue=last["queue"],
        request=last["request"],
        window_start_ms=min(first["after_ns"], last["after_ns"]) / MS,
        window_end_ms=last["before_ns"] / MS,
        why=_why(checker, found, blamed),
        evidence=[event_dict(event) for event in shown],
    )
    return [finding], found.placed


def _blamed(found: Conformance) -> int:
    """The step at which the run breaks off: of those that could come next by their moments the one that ends first."""
    if found.refusals:
        return min(refusal.step for refusal in found.refusals)
    return min(found.placed, len(found.order.steps) - 1)


def _why(checker: Checker, found: Conformance, blamed: int) -> str:
    place = f"after {found.placed} steps of {checker.model.policy.name}"
    if found.undecided:
        limits = f"{checker.possible_max} possibilities, or {OPEN_MAX} steps each of which may come next"
        return f"{place} more was possible at once than is followed: {limits}"
    reasons = dict.fromkeys(reason(checker.model, refusal) for refusal in found.refusals if refusal.step == blamed)
    told = list(reasons)[:REASONS_MAX]
    more = [f"and {len(reasons) - len(told)} more ways"] if len(reasons) > len(told) else []
    return f"{place} this is no step of the law: {'; or '.join([*told, *more])}"
