"""The exercises of lessons 6 and 12: inductive statements, and an action that the reader has changed.

The reader's program runs in this process, without its `__main__` block.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import attrs

from longpoll.commands.lesson.exercise import Exercise, Grade, UserCodeErrors, missing, program_of, right
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.custom import load
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.errors import UserError
from longpoll_spec.model import Action, Model, Property, select
from longpoll_spec.policy import preset
from longpoll_spec.render.notation import state_text
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state import State
from longpoll_spec.terms import Bool, all_of

if TYPE_CHECKING:
    from longpoll_spec.engines.smt.inductive import Outcome


POLICY: Final = "rocketmq-4.9"
GOAL: Final = "answered_once"
REQUESTS: Final = 2
TIMEOUT_S: Final = 10.0
STATEMENTS_MAX: Final = 40
"""The maximum number of statements in a reader's file, counted over all requests."""
NAME_MAX: Final = 60
A_PROGRAM: Final = "a changed docs/lessons/invariant.py"


def open_law() -> Model:
    """Return the model of a proof: any number of messages, any timeout, and two requests."""
    return specification_of(preset(POLICY), Bounds("lesson", requests=REQUESTS, messages=None))


def statements_of(answer: str, model: Model) -> list[Property]:
    """Read the statements in a reader's file, grouped by name; raises UserError if there are none."""
    path = program_of(answer)
    with UserCodeErrors(path):
        text = runpy.run_path(str(path), run_name="lesson").get("statements")
    if not callable(text):
        raise UserError(f"{path} has no function statements; start from docs/lessons/invariant.py")
    with UserCodeErrors(path):
        said = list(islice(cast("Callable[[State], Iterable[object]]", text)(model.state), STATEMENTS_MAX + 1))
    return _together(path, said)


def _together(path: Path, said: Sequence[object]) -> list[Property]:
    parts: dict[str, list[Bool]] = {}
    for each in said:
        if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) and isinstance(each[1], Bool)):
            raise UserError(f'{path}: each statement must be a pair; write, for example: yield "name", request.open')
        parts.setdefault(each[0][:NAME_MAX], []).append(each[1])
    if not 0 < len(said) <= STATEMENTS_MAX:
        raise UserError(f"{path} must have 1 to {STATEMENTS_MAX} statements")
    if GOAL in parts:
        raise UserError(f"{path}: {GOAL} is the property to prove; give your statements other names")
    made = {name: all_of(terms) for name, terms in parts.items()}
    return [Property(name, "inductive", name, term, here=term) for name, term in made.items()]


def first_failure(model: Model, candidates: Sequence[Property]) -> tuple[str, Outcome] | None:
    """Return the first candidate that the initial state or a step violates; None if all are inductive together."""
    from longpoll_spec.engines.smt.inductive import prover_of  # noqa: PLC0415 - z3 takes its time to import

    prover = prover_of(model, candidates, TIMEOUT_S)
    for item in candidates:
        outcome = prover.first_state(item.here)
        if outcome.verdict != "proved":
            return item.name, outcome
    prover.assume(candidates)
    for item in candidates:
        outcome = prover.steps(item.here, model.actions)
        if outcome.verdict != "proved":
            return item.name, outcome
    return None


def _why_not(model: Model, name: str, outcome: Outcome) -> Grade:
    found = outcome.counterexample
    if found is None:
        return missing(f"z3 could not decide {name}; write it in a simpler way")
    if found.action is None:
        return missing(f"{name} is false in the first state")
    more = (
        f"the state before {found.action.label}, where all your statements are true:\n{state_text(model, found.state)}"
    )
    return missing(f"{name} is not inductive: the step {found.action.label} breaks it", more)


def is_inductive(answer: str) -> Grade:
    """Grade the reader's statements, which must be inductive together with the goal."""
    model = open_law()
    mine = statements_of(answer, model)
    goal = select(properties_of(model), [GOAL])
    failure = first_failure(model, [*goal, *mine])
    if failure is not None:
        return _why_not(model, *failure)
    names = ", ".join(each.name for each in mine)
    return right(f"{GOAL} is proved: it is inductive together with {names}")


def is_true_only(answer: str) -> Grade:
    """Grade one statement that is true in every reachable state, but not inductive."""
    model = open_law()
    mine = statements_of(answer, model)
    if len(mine) > 1:
        return missing(f"the file has {len(mine)} statements; keep one")
    tiny = specification_of(model.policy, attrs.evolve(named("tiny", model.policy), requests=REQUESTS))
    (asked,) = [attrs.evolve(each, kind="always") for each in statements_of(answer, tiny)]
    verdict = explore(tiny, [asked], engine="python").verdict(asked.name)
    if verdict.verdict != "holds":
        return missing(f"{asked.name} is not true: a run of {verdict.depth} steps leads to a state where it is false")
    failure = first_failure(model, mine)
    if failure is None:
        return missing(f"{asked.name} is true, but also inductive alone")
    return right(f"{asked.name} is true in every reachable state, but not inductive", _why_not(model, *failure).more)


PROOF: Final = (
    Exercise(f"Find the statements with which {GOAL} of {POLICY} is inductive.", A_PROGRAM, is_inductive),
    Exercise("Find one statement that is always true, but not inductive alone.", A_PROGRAM, is_true_only),
)


MUTANT_POLICY: Final = "strict"
BOUNDS: Final = "tiny"
LIMIT_STATES: Final = 100_000
"""The search stops at this many states, because a reader's change may make the state space infinite. Violations appear
long before this number."""
ACTION: Final = "hold"
WANTED: Final = "deadline_is_its_pulls"
MUTANT_A_PROGRAM: Final = "a changed docs/lessons/mutant.py"


def mutant_of(answer: str) -> Model:
    """Return the model with the reader's `hold` as its action `hold`; raises UserError if the program has no `hold`."""
    path = program_of(answer)
    policy = load(str(path))
    own = policy.extension
    if own is None or own.is_alone or [each.name for each in own.families] != [ACTION]:
        raise UserError(f"{path} must change the action {ACTION} alone; start from docs/lessons/mutant.py")
    return specification_of(policy, named(BOUNDS, policy))


def broken_by(model: Model) -> tuple[Exploration, list[Verdict]]:
    """Explore the model; return the exploration and its `violated` or `unreached` verdicts, the shortest run first."""
    found = explore(model, properties_of(model), engine="python", limit_states=LIMIT_STATES)
    wrong = [verdict for verdict in found.verdicts if verdict.verdict in {"violated", "unreached"}]
    return found, sorted(wrong, key=lambda verdict: (verdict.depth is None, verdict.depth or 0))


def is_changed(model: Model) -> bool:
    """Whether the guard or the effect of the action differs from the specification's; equal terms are identical."""
    right = specification_of(preset(MUTANT_POLICY), model.bounds)
    own = {each.label: _parts(each) for each in right.named(ACTION)}
    return any(own[each.label] != _parts(each) for each in model.named(ACTION))


def _parts(action: Action) -> tuple[int, dict[str, int]]:
    return id(action.guard), {name: id(term) for name, term in action.effect.items()}


def told(wrong: Sequence[Verdict]) -> str:
    """Return one line for each wrong verdict, with the property's name."""
    return "\n".join(f"{each.name} is {each.verdict}" for each in wrong)


def is_caught(answer: str) -> Grade:
    """Grade a hold that violates the property of deadlines, but loses no wakeup."""
    model = mutant_of(answer)
    _, wrong = broken_by(model)
    names = {each.name for each in wrong if each.verdict == "violated"}
    if WANTED not in names:
        return missing(f"{WANTED} is not violated" + (", but:" if wrong else ": nothing breaks"), told(wrong))
    if "no_lost_wakeup" in names:
        return missing("it also loses wakeups; restore the last line of the effect", told(wrong))
    return right(f"{WANTED} catches your hold, and no wakeup is lost", told(wrong))


def is_equal(answer: str) -> Grade:
    """Grade a hold that is written differently but behaves the same."""
    model = mutant_of(answer)
    if not is_changed(model):
        return missing("guard and effect are unchanged; change one of them")
    found, wrong = broken_by(model)
    if wrong:
        return missing("that breaks a property:", told(wrong))
    entry = pinned_entry(MUTANT_POLICY, BOUNDS)
    if _numbers(found) != (entry.distinct_states, entry.transitions, entry.depth):
        return missing(
            f"nothing breaks, but it has {found.distinct_states:,} states instead of {entry.distinct_states:,}"
        )
    return right("the text differs, but every state, transition and property is the same")


def _numbers(found: Exploration) -> tuple[int, int, int]:
    return found.distinct_states, found.transitions, found.depth


MUTANT: Final = (
    Exercise(f"Change the hold so that {WANTED} catches you, and no wakeup is lost.", MUTANT_A_PROGRAM, is_caught),
    Exercise("Change the hold's text so that nothing changes.", MUTANT_A_PROGRAM, is_equal),
)
