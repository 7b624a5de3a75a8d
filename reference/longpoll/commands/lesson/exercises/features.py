"""The exercises of lesson 5: filters by tag, and commits of offsets."""

from __future__ import annotations

from typing import Final

from longpoll.commands.lesson.answers import changed, explored, see, settings_known, settings_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right
from longpoll.commands.lesson.exercises.races import closing_values, predicted

BATCH: Final = "notify_grain=batch"
WAKEUP: Final = "no_lost_wakeup"
COMMIT: Final = "commit_never_regresses"


def in_order(answer: str) -> Grade:
    """The values of commit with which no offset goes back."""
    closing = closing_values("commit", "rocketmq-5", COMMIT, "commits", requests=1)
    return predicted(answer, "commit", closing, COMMIT)


def batch_made_safe(answer: str) -> Grade:
    """One more setting with which a broker that announces batches loses no wakeup."""
    settings = settings_of(answer)
    policy = changed("strict", [BATCH, *settings])
    if len(settings) > 1:
        return missing(f"you gave {len(settings)} settings; one is enough")
    if policy.notify_grain != "batch":
        return missing("the broker must announce batches; change another knob")
    verdict = explored(policy, WAKEUP, bounds="tags", requests=1).verdict(WAKEUP)
    if verdict.verdict != "holds":
        return missing(f"with it {WAKEUP} is violated, in {verdict.depth} steps", see(verdict.token))
    return right(f"the broker announces batches, and {WAKEUP} holds")


FILTERS: Final = (
    Exercise(f"Which one additional setting makes strict with {BATCH} lose no wakeup?", "NAME=VALUE", batch_made_safe),
    Exercise(
        f"With which values of commit does rocketmq-5 keep {COMMIT}?",
        f"some of: {', '.join(settings_known('commit'))}",
        in_order,
    ),
)
