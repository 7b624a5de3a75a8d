"""The exercises of lesson 12: explores the specification with an action that the reader has changed.

The reader's program runs in this process, without its `__main__` block.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from typing import Final

from longpoll.commands.lesson.answers import program_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right
from longpoll.commands.lesson.user_code import UserCodeErrors
from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import named
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.errors import UserError
from longpoll_spec.model import Action, Family, Model
from longpoll_spec.mutants.own_action import broken_by, rewritten
from longpoll_spec.policy import preset
from longpoll_spec.state import state_of

POLICY: Final = "strict"
BOUNDS: Final = "tiny"
ACTION: Final = "hold"
WANTED: Final = "deadline_is_its_pulls"
A_PROGRAM: Final = "a changed docs/lessons/mutant.py"


def mutant_of(answer: str) -> Model:
    """The model with the reader's `hold`; raises UserError if the program has none."""
    path = program_of(answer)
    with UserCodeErrors(path):
        names = runpy.run_path(str(path), run_name="lesson")
    family = names.get(ACTION)
    if not isinstance(family, Family) or family.name != ACTION:
        raise UserError(f"{path} has no action {ACTION}; start from docs/lessons/mutant.py")
    chosen = preset(POLICY)
    with UserCodeErrors(path):
        return rewritten(state_of(chosen, named(BOUNDS, chosen)), family)


def is_changed(model: Model) -> bool:
    """Whether guard or effect of the action differ from the specification's; equal terms are identical objects."""
    own = {each.label: _parts(each) for each in actions_of(model.state)}
    return any(own[each.label] != _parts(each) for each in model.named(ACTION))


def _parts(action: Action) -> tuple[int, dict[str, int]]:
    return id(action.guard), {name: id(term) for name, term in action.effect.items()}


def told(wrong: Sequence[Verdict]) -> str:
    """The violated properties, the shortest run first."""
    return "\n".join(f"{each.name} is {each.verdict}" for each in wrong)


def is_caught(answer: str) -> Grade:
    """A hold that violates the property of deadlines, but loses no wakeup."""
    model = mutant_of(answer)
    _, wrong = broken_by(model)
    names = {each.name for each in wrong if each.verdict == "violated"}
    if WANTED not in names:
        return missing(f"{WANTED} is not violated" + (", but:" if wrong else ": nothing breaks"), told(wrong))
    if "no_lost_wakeup" in names:
        return missing("it also loses wakeups; restore the last line of the effect", told(wrong))
    return right(f"{WANTED} catches your hold, and no wakeup is lost", told(wrong))


def is_equal(answer: str) -> Grade:
    """A hold that is written differently but behaves the same."""
    model = mutant_of(answer)
    if not is_changed(model):
        return missing("guard and effect are unchanged; change one of them")
    found, wrong = broken_by(model)
    if wrong:
        return missing("that breaks a property:", told(wrong))
    entry = pinned_entry(POLICY, BOUNDS)
    if _numbers(found) != (entry.distinct_states, entry.transitions, entry.depth):
        return missing(
            f"nothing breaks, but it has {found.distinct_states:,} states instead of {entry.distinct_states:,}"
        )
    return right("the text differs, but every state, transition and property is the same")


def _numbers(found: Exploration) -> tuple[int, int, int]:
    return found.distinct_states, found.transitions, found.depth


MUTANT: Final = (
    Exercise(f"Change the hold so that {WANTED} catches you, and no wakeup is lost.", A_PROGRAM, is_caught),
    Exercise("Change the hold's text so that nothing changes.", A_PROGRAM, is_equal),
)
