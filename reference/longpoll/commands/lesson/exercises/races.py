"""The exercises of lessons 1, 2, 4, 5 and 10: lost wakeups and requests, tags and commits, a Java broker.

The specification computes the answers without Java; the lesson's commands show them on the broker itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longpoll.commands.lesson.exercise import (
    Exercise,
    Grade,
    broken_at,
    changed,
    chosen_of,
    explored,
    is_true,
    missing,
    right,
    run_of,
    see,
    settings_known,
    settings_of,
)
from longpoll_spec.model import Trace
from longpoll_spec.policy import Policy, preset
from longpoll_spec.properties.wakeups import lost
from longpoll_spec.render.java_breakpoints import STEPS

JAVA: Final = "rocketmq-4.9"
A_RUN: Final = "a token: click the run together in the explorer, and copy the part after # from the address"


def told(names: Sequence[str]) -> str:
    """Join names for a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "none"


def lost_by_other(answer: str) -> Grade:
    """Grade a run in which the hold of request 1 loses its wakeup."""
    trace = run_of(answer, JAVA)
    step = broken_at(trace, "lost_by_hold")
    if step is None:
        return missing(
            f"nothing is lost in these {trace.depth} steps: a message must arrive after a read and before its hold"
        )
    action = trace.steps[step].action
    assert action is not None
    if action.actors != (1,):
        return missing(f"step {step}, {action.label}, loses request {action.actors[0]}; let it be request 1")
    return right(f"step {step}, {action.label}, loses the wakeup of request 1")


def found_again(answer: str) -> Grade:
    """Grade a run in which a request is lost by its hold, but answered in the end."""
    trace = run_of(answer, JAVA)
    step = broken_at(trace, "lost_by_hold")
    if step is None:
        return missing("no hold of this run loses a wakeup; start like the run of the lesson")
    action = trace.steps[step].action
    assert action is not None
    request = trace.model.state.requests[int(action.actors[0])]
    answered = next(
        (at for at in range(step, len(trace.steps)) if not is_true(trace, request.open, trace.steps[at].state)), None
    )
    if answered is None:
        return missing(f"request {request.index} is lost at step {step}, and after step {trace.depth} it still waits")
    ticks = sum(each.action is not None and each.action.name == "tick" for each in trace.steps[step + 1 : answered + 1])
    return right(
        f"request {request.index} is lost at step {step} and answered at step {answered}, {ticks} tick(s) later"
    )


def predicted(answer: str, knob: str, base: str, name: str, bounds: str = "tiny", **numbers: int) -> Grade:
    """Grade a claim about which values of a knob make a policy keep a property."""
    closing = {
        value
        for value in settings_known(knob)
        if explored(changed(base, [f"{knob}={value}"]), name, bounds=bounds, **numbers).verdict(name).verdict == "holds"
    }
    chosen = chosen_of(answer, f"value of {knob}", settings_known(knob))
    wrong, left = sorted(chosen - closing), sorted(closing - chosen)
    if wrong:
        sizes = " ".join(["--bounds", bounds, *(f"--{each} {number}" for each, number in numbers.items())])
        call = f"longpoll check --policy {base} --knob {knob}={wrong[0]} {sizes} --property {name} --explain"
        return missing(f"with {knob}={wrong[0]} {name} is violated; see {call}")
    if left:
        return missing(f"{told(sorted(chosen))} is right, and there are more: {len(left)} other value(s) of {knob}")
    return right(f"{name} holds with {told(sorted(closing))}, and with no other value of {knob}")


def closes_hold(answer: str) -> Grade:
    """Grade the values of recheck_after_hold that close the race in RocketMQ 4.9."""
    knob = "recheck_after_hold"
    return predicted(answer, knob, JAVA, "lost_by_hold")


def one_setting(answer: str, base: str) -> Policy | Grade:
    """Parse a policy that differs from a preset by one knob; return a grade for an answer with several settings."""
    settings = settings_of(answer)
    policy = changed(base, settings)
    if len(settings) > 1:
        return missing(f"you gave {len(settings)} settings; one is enough")
    return policy


def closes_pull_request(answer: str) -> Grade:
    """Grade one more knob with which the policy of pull request #7359 loses no wakeup."""
    policy = one_setting(answer, "rocketmq-pr7359")
    if isinstance(policy, Grade):
        return policy
    verdict = explored(policy, "no_lost_wakeup").verdict("no_lost_wakeup")
    if verdict.verdict != "holds":
        return missing(f"with it no_lost_wakeup is violated, in {verdict.depth} steps", see(verdict.token))
    return right("with it no wakeup is lost, under the bounds tiny")


def only_hold(answer: str) -> Grade:
    """Grade one knob with which strict-clone violates `lost_by_hold` but not `lost_by_keep`."""
    policy = one_setting(answer, "strict-clone")
    if isinstance(policy, Grade):
        return policy
    found = explored(policy, "lost_by_hold", "lost_by_keep")
    verdicts = {name: found.verdict(name).verdict for name in ("lost_by_hold", "lost_by_keep")}
    if verdicts == {"lost_by_hold": "violated", "lost_by_keep": "holds"}:
        return right("with it lost_by_hold is violated, and lost_by_keep holds")
    return missing(
        "with it " + " and ".join(f"{name} is {said}" for name, said in verdicts.items()).replace("is holds", "holds")
    )


def two_lost(answer: str) -> Grade:
    """Grade a run in which both requests lose their wakeups in one step, when a notifier puts its list back."""
    trace = run_of(answer, JAVA)
    step = broken_at(trace, "lost_by_keep")
    if step is None:
        return missing("no put-back of this run loses a wakeup; the message must arrive between take and put-back")
    names = _lost_at(trace, step)
    if len(names) < 2:
        return missing(f"step {step} loses request {names[0]} only; both must be in the scanner's list")
    return right(f"step {step} loses the wakeups of requests {told(names)} at once")


def _lost_at(trace: Trace, step: int) -> list[str]:
    model, state = trace.model, trace.steps[step].state
    return [str(each.index) for each in model.state.requests if is_true(trace, lost(model.state, each), state)]


def no_orphans(answer: str) -> Grade:
    """Grade the values of bucket_removal with which no request is orphaned."""
    knob, name = "bucket_removal", "no_orphan"
    return predicted(answer, knob, "rocketmq-lmq", name, "buckets", requests=1)


def swept_and_whole(answer: str) -> Grade:
    """Grade the settings with which rocketmq-lmq removes unused buckets but orphans no request."""
    policy = changed("rocketmq-lmq", settings_of(answer))
    names = ("no_orphan", "buckets_are_swept")
    found = explored(policy, *names, bounds="buckets", requests=1)
    broken = [name for name in names if found.verdict(name).verdict != "holds"]
    if broken:
        return missing(f"with that {told(broken)} is violated")
    return right("no pull is orphaned, and no empty bucket stays")


HOLD: Final = (
    Exercise("Lose the wakeup of request 1, not of request 0.", A_RUN, lost_by_other),
    Exercise(
        "With which values of recheck_after_hold does rocketmq-4.9 keep lost_by_hold?",
        f"some of: {', '.join(settings_known('recheck_after_hold'))}",
        closes_hold,
    ),
    Exercise("Continue from the lost wakeup until the request gets an answer.", A_RUN, found_again),
)
KEEP: Final = (
    Exercise("Which one additional knob makes rocketmq-pr7359 lose no wakeup?", "NAME=VALUE", closes_pull_request),
    Exercise("Which one knob makes strict-clone lose wakeups by a hold, but not by a keep?", "NAME=VALUE", only_hold),
    Exercise("Lose both requests by one put-back.", A_RUN, two_lost),
)
FOR_GOOD: Final = (
    Exercise(
        "With which values of bucket_removal does rocketmq-lmq orphan no pull?",
        f"some of: {', '.join(settings_known('bucket_removal'))}",
        no_orphans,
    ),
    Exercise("Make rocketmq-lmq orphan no pull and leave no empty bucket.", "NAME=VALUE, one or more", swept_and_whole),
)


RACES: Final = ("hold", "keep")


def left_by_pull_request(answer: str) -> Grade:
    """Grade the races that pull request #7359 leaves open."""
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
    """Grade a run that breaks lost_by_keep in its last step, after the ticks of a scan."""
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


BATCH: Final = "notify_grain=batch"
WAKEUP: Final = "no_lost_wakeup"
COMMIT: Final = "commit_never_regresses"


def in_order(answer: str) -> Grade:
    """Grade the values of the knob `commit` with which no committed offset goes back."""
    return predicted(answer, "commit", "rocketmq-5", COMMIT, "commits", requests=1)


def batch_made_safe(answer: str) -> Grade:
    """Grade one more setting with which a broker that announces batches loses no wakeup."""
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
