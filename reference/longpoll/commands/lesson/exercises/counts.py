"""The exercises of lessons 3, 7 and 8: deadlines that a scan notices late, any number of requests, infinite runs."""

from __future__ import annotations

from functools import partial
from typing import Final

import attrs

from longpoll.commands.lesson.exercise import (
    Exercise,
    Grade,
    changed,
    chosen_of,
    explored,
    missing,
    number_of,
    right,
    see,
    settings_of,
)
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Endless, unanswered
from longpoll_spec.engines.survey import BOUNDS, response_bounds
from longpoll_spec.policy import preset, with_knobs
from longpoll_spec.specification import Fairness, fairness_of, specification_of

REQUESTS_MAX: Final = 6
SCAN_TICKS: Final = 3
ASSUMED: Final = ("threads", "tick")
NOTHING: Final = "nothing"
CUT: Final = Bounds("cut", requests=1, messages=1, aspects=frozenset({"truncate"}))
"""Bounds with a queue that can be truncated and recreated, so that a run can be infinite."""


def enough_to_break(answer: str) -> Grade:
    """Grade the least number of requests with which a broker that checks its limit too early holds too many pulls."""
    given = number_of(answer)
    if not 1 <= given <= REQUESTS_MAX:
        return missing(f"the answer is between 1 and {REQUESTS_MAX}")
    policy = with_knobs(preset("strict"), ["hold_limit=at_read"])
    for requests in range(1, given + 1):
        verdict = explored(policy, "hold_limit_kept", bounds="limit", requests=requests).verdict("hold_limit_kept")
        if verdict.verdict == "violated":
            if requests < given:
                return missing(f"fewer than {given} are enough")
            return right(
                f"with {requests} requests the limit is exceeded, in {verdict.depth} steps", see(verdict.token)
            )
    return missing(f"with {given} request(s) the limit is kept")


def cutoff(answer: str) -> Grade:
    """Grade the number of requests that is enough to prove strict's properties for any number."""
    given = number_of(answer)
    from longpoll_spec.engines.smt import any_number  # noqa: PLC0415 - z3 takes its time to import

    read = any_number.statements_of(partial(specification_of, preset("strict")), any_number.SAMPLE)
    names = {each.name for each in read.candidates}
    most = any_number.numbers_of(read, names, any_number.Readers())[-1]
    if given != most:
        return missing(f"{given} is too {'small' if given < most else 'large'}")
    return right(f"a proof for {most} requests, and for the smallest numbers, is a proof for any number")


def fair_enough(answer: str) -> Grade:
    """Grade the fairness assumptions under which every pull of strict is answered."""
    chosen = chosen_of(answer, "assumption", (*ASSUMED, NOTHING)) - {NOTHING}
    found = left_open(chosen)
    if found is not None:
        stays = ", ".join(found.steps) or "no step at all"
        return missing(f"a run never answers the pull: from some point on it takes {stays}")
    if any(left_open(chosen - {each}) is None for each in chosen):
        return missing("every pull gets an answer, but fewer assumptions are enough")
    return right("every fair run answers every pull; with fewer assumptions some run does not")


def left_open(chosen: set[str]) -> Endless | None:
    """Return an infinite run with the chosen fairness that never answers a pull; None if there is no such run."""
    model = specification_of(preset("strict"), CUT)
    weak = [each for each in fairness_of(model).weak if ("tick" if each == "tick" else "threads") in chosen]
    return unanswered(model, Fairness(tuple(weak), time_passes=False))


def longest(answer: str, name: str, scan_ticks: int) -> Grade:
    """Grade a response bound of RocketMQ 4.9, in ticks, with a scan every `scan_ticks` ticks."""
    given = number_of(answer)
    found = response_bounds(preset("rocketmq-4.9"), attrs.evolve(BOUNDS, scan_ticks=scan_ticks))
    bound = next(each for each in found if each.name == name)
    assert bound.ticks is not None
    if given < bound.ticks:
        return missing(f"in some run it is more than {given} tick(s)", see(bound.token))
    if given > bound.ticks:
        return missing(f"in no run is it {given} ticks")
    return right(f"in one run it is {bound.ticks} ticks, and in no run more", see(bound.token))


ANY: Final = (
    Exercise(
        "How many requests does it take for strict with hold_limit=at_read to exceed its limit?",
        "a number",
        enough_to_break,
    ),
    Exercise("What is the cutoff of strict for a proof of all its properties?", "a number", cutoff),
)
FAIR: Final = (
    Exercise(
        "Which assumptions, and no more, are needed so that strict answers every pull in every run?",
        f"some of: {', '.join(ASSUMED)}, or {NOTHING}",
        fair_enough,
    ),
    Exercise(
        f"With a scan every {SCAN_TICKS} ticks, how many ticks does a pull wait at most although its message is there?",
        "a number",
        partial(longest, name="woken", scan_ticks=SCAN_TICKS),
    ),
)


LATE_SCAN_TICKS: Final = 4
NAME: Final = "answered_by_deadline"


def smallest(answer: str) -> Grade:
    """Grade the fewest settings with which RocketMQ 5 never answers late."""
    settings = settings_of(answer)
    verdict = explored(changed("rocketmq-5", settings), NAME).verdict(NAME)
    if verdict.verdict != "holds":
        return missing(f"{NAME} is still violated, in {verdict.depth} steps", see(verdict.token))
    for each in settings:
        fewer = [other for other in settings if other != each]
        if explored(changed("rocketmq-5", fewer), NAME).verdict(NAME).verdict == "holds":
            return missing(f"{NAME} holds, but also without {each}; remove what is not needed")
    return right(f"{NAME} holds, and it needs every one of these settings")


LATE: Final = (
    Exercise(
        f"With a scan every {LATE_SCAN_TICKS} ticks, how many ticks late is a pull of rocketmq-4.9 at most?",
        "a number",
        partial(longest, name="late", scan_ticks=LATE_SCAN_TICKS),
    ),
    Exercise("Which settings, and no more, make sure that rocketmq-5 is never late?", "NAME=VALUE ...", smallest),
)
