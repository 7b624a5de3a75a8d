"""The exercises of lesson 3: deadlines that a scan notices late."""

from __future__ import annotations

from typing import Final

import attrs

from longpoll.commands.lesson.answers import changed, explored, number_of, see, settings_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right
from longpoll_spec.engines.survey import BOUNDS, response_bounds
from longpoll_spec.policy import preset

SCAN_TICKS: Final = 4
NAME: Final = "answered_by_deadline"


def latest(answer: str) -> Grade:
    """How late a pull of RocketMQ 4.9 is at most, with a scan every four ticks."""
    given = number_of(answer)
    found = response_bounds(preset("rocketmq-4.9"), attrs.evolve(BOUNDS, scan_ticks=SCAN_TICKS))
    late = next(each for each in found if each.name == "late")
    assert late.ticks is not None
    if given < late.ticks:
        return missing(f"there is a run that is more than {given} tick(s) late", see(late.token))
    if given > late.ticks:
        return missing(f"no run is {given} ticks late; the search of all runs finds less")
    return right(f"a run is {late.ticks} ticks late, and none is later", see(late.token))


def smallest(answer: str) -> Grade:
    """The fewest settings with which RocketMQ 5 is never late."""
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
        f"With a scan every {SCAN_TICKS} ticks, how many ticks late is a pull of rocketmq-4.9 at most?",
        "a number",
        latest,
    ),
    Exercise("Which settings, and no more, make sure that rocketmq-5 is never late?", "NAME=VALUE ...", smallest),
)
