"""The exercises of lesson 10: a Java broker that follows a run.

The specification computes the answers without Java; the lesson's commands show them on the broker itself.
"""

from __future__ import annotations

from typing import Final

from longpoll.commands.lesson.answers import broken_at, chosen_of, explored, run_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right
from longpoll.commands.lesson.exercises.races import A_RUN, JAVA, told
from longpoll_spec.policy import preset
from longpoll_spec.render.java_breakpoints import STEPS

RACES: Final = ("hold", "keep")


def left_by_pull_request(answer: str) -> Grade:
    """The races that pull request #7359 leaves open."""
    chosen = chosen_of(answer, "race", (*RACES, "none")) - {"none"}
    names = [f"lost_by_{race}" for race in RACES]
    found = explored(preset("rocketmq-pr7359"), *names)
    left = {race for race in RACES if found.verdict(f"lost_by_{race}").verdict == "violated"}
    if chosen - left:
        return missing(f"lost_by_{min(chosen - left)} holds with the second look; no run loses a wakeup this way")
    if left - chosen:
        return missing(f"a run still loses a wakeup in another way than {told(sorted(chosen))}")
    return right(f"the second look leaves {told(sorted(left))} open, and closes {told(sorted(set(RACES) - left))}")


def both_threads(answer: str) -> Grade:
    """A run of lost_by_keep that Java can be made to follow: each of its steps is one of a thread or of the driver."""
    trace = run_of(answer, JAVA)
    step = broken_at(trace, "lost_by_keep")
    if step is None:
        return missing("no put-back of this run loses a wakeup")
    if step < trace.depth:
        return missing(f"the wakeup is lost at step {step}, but the run continues; end it there")
    actions = [each.action for each in trace.steps[1:] if each.action is not None]
    ticks = sum(each.name == "tick" for each in actions)
    gates = [each.name for each in actions if each.name in STEPS]
    if ticks < trace.model.bounds.scan_ticks:
        return missing("no scan has run; its ticks must pass first")
    return right(
        f"{len(gates)} of its {trace.depth} steps are between breakpoints of the broker; driver and time do the rest"
    )


REPLAYED: Final = (
    Exercise(
        "Which races does the second look of pull request #7359 leave open?",
        f"some of: {', '.join(RACES)}, or none",
        left_by_pull_request,
    ),
    Exercise(
        "Give a run that loses a wakeup by a put-back and ends there, so that --on java-5.5.0 can follow it.",
        A_RUN,
        both_threads,
    ),
)
