"""Checks whether the declared specification of a history allows all of its steps (full-model conformance).

The steps of a source are judged as one run from the specification's first state. Findings have the property
`follows_the_law`. The property is violated if no order of the events that their times allow is a run of the
specification. The result is unknown if the record may lack events, or if the checker would have to follow too many
possible states. The window of a finding begins at the last time when only one state was possible and ends with the step
that no state allows. After that step the state is unknown, so a source has at most one finding.

Both the local engine and Spark judge histories of steps in this process, because a step takes microseconds and the
steps of one run cannot be judged in parallel. `longpoll_spec.engines.conform` contains the search.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from longpoll_judge.contract.result import FOLLOWS_THE_LAW, Finding, Gap, Share
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.kernel.pulls import MS
from longpoll_judge.read.schema import REQUIRED, event_dict
from longpoll_judge.read.source import History, events_by_source
from longpoll_judge.step_reader import COLUMNS, model_of, reader_of, reason
from longpoll_spec.engines.conform import Checker, Conformance
from longpoll_spec.errors import SpecUserError
from longpoll_spec.model import ACTION_NAMES, OPEN_MAX

WINDOW_MAX: Final = 50
"""The maximum number of events, the last ones, that a finding with the verdict unknown shows."""
REASONS_MAX: Final = 3
"""The maximum number of reasons that a finding lists for a step which does not fit."""
SHOWN: Final = tuple(dict.fromkeys((*REQUIRED, "broker", "topic", "queue", "request", "connection", "tag", *COLUMNS)))
"""The fields of a step that the checker reads, or that a finding shows as evidence."""
Events: TypeAlias = list[dict[str, Any]]


def judge_conformance(history: History, context: Context) -> tuple[list[Finding], list[Gap], Share]:
    """Judge the sources that declare a specification; report a gap for each specification that does not exist.

    Returns the findings, the gaps, and how many of all steps were judged. Steps after a step that does not fit, and
    steps of an unknown specification, are not judged.
    """
    findings: list[Finding] = []
    gaps: list[Gap] = []
    judged = of = 0
    for source, events in sorted(events_by_source(history, history.laws, SHOWN, ACTION_NAMES).items()):
        policy, law = history.laws[source]
        of += len(events)
        try:
            checker = Checker(model_of(policy, law), frozenset(law.hidden))
        except SpecUserError as error:
            gaps.append(
                Gap(
                    "unknown law", source, 1, f"source {source!r} declares a specification that does not exist: {error}"
                )
            )
            continue
        facts = context.sources.get(source, UNSEEN)
        found, placed = judge_run(checker, events, is_whole=facts.is_steady and not len(facts.holes))
        findings += found
        judged += placed + sum(finding.verdict == "violated" for finding in found)
    return findings, gaps, Share(judged, of)


def judge_run(checker: Checker, events: Events, *, is_whole: bool) -> tuple[list[Finding], int]:
    """Judge the steps of one source; `is_whole` is false if some of the source's events are missing.

    Also returns the number of steps that fit a run of the specification.
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
    # Show all earlier steps, because whether a step fits depends on every step before it.
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
    """Returns the index of the step to report: of the steps that may come next, the one that ends first."""
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
    return f"{place} the specification does not allow this step: {'; or '.join([*told, *more])}"
