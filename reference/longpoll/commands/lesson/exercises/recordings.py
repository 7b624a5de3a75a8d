"""The exercises of lesson 9: judging recordings of Java brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from longpoll.api import judge
from longpoll.commands.lesson.answers import number_of, words_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right
from longpoll_spec.errors import UserError

if TYPE_CHECKING:
    from longpoll_judge.contract.result import Finding

RECORDINGS: Final = "model_tests/judge/recordings"
LOST_5: Final = f"{RECORDINGS}/java-5.5.0-lost-wakeup"
LOST_4: Final = f"{RECORDINGS}/java-4.9.7-lost-wakeup"
WAKE: Final = "pull.wake.prompt"


def violations(recording: str, wake_ms: float | None = None) -> list[Finding]:
    """The violations in a recording, optionally with a different threshold."""
    return [each for each in judge(recording, wake_ms=wake_ms).findings if each.verdict == "violated"]


def lost_pulls(answer: str) -> Grade:
    """The pulls in the recording of 5.5.0 that waited although their message was there."""
    named = set(words_of(answer))
    found = {each.request: each.why for each in violations(LOST_5) if each.clause == WAKE and each.request}
    other = sorted(named - found.keys())
    if other:
        return missing(f"the judge finds no violation for {other[0][:40]}")
    if found.keys() - named:
        return missing(f"{', '.join(sorted(named))} is right, and there is {len(found.keys() - named)} more")
    return right(f"{len(found)} pulls waited for a message that was there", "\n".join(found.values()))


def certain_ms(answer: str) -> Grade:
    """The least threshold, in whole ms, with which the recording of 4.9.7 shows no violation."""
    given = number_of(answer)
    if not 1 <= given <= 60_000:
        raise UserError("the answer must be a number of milliseconds from 1 to 60000")
    if violations(LOST_4, given):
        return missing(f"with --wake-ms {given} a pull is still found too late")
    if not violations(LOST_4, given - 1) and given > 1:
        return missing(f"with --wake-ms {given} there is no violation, and with {given - 1} neither")
    return right(f"with --wake-ms {given} there is no violation, and with {given - 1} there is one")


RECORDED: Final = (
    Exercise(
        f"Which pulls of {LOST_5} waited for a message that was there?", "their requests, such as 3-17", lost_pulls
    ),
    Exercise(f"From which --wake-ms on has {LOST_4} no violation?", "a number of milliseconds", certain_ms),
)
