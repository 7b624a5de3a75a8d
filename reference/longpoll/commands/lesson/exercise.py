"""The types of lessons, exercises and verdicts, and the parsers of answers.

A parser raises UserError if the answer has the wrong form.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from attrs import frozen

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.tokens import parse, replay
from longpoll_spec.errors import UserError, not_known
from longpoll_spec.model import Property, Trace, select
from longpoll_spec.policy import Policy, knob_values, preset, with_knobs
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.terms import Bool


@frozen
class Grade:
    """The verdict on an answer."""

    right: bool
    why: str
    """A sentence that explains the verdict."""
    more: str = ""
    """More lines, such as a run step by step."""


def right(why: str, more: str = "") -> Grade:
    """Return the grade of a right answer."""
    return Grade(right=True, why=why, more=more)


def missing(why: str, more: str = "") -> Grade:
    """Return the grade of an answer that is not right yet."""
    return Grade(right=False, why=why, more=more)


@frozen
class Exercise:
    """One exercise."""

    asks: str
    """The task in a sentence; the lesson's page explains it."""
    answer: str
    """A description of the form of an answer."""
    check: Callable[[str], Grade]
    """Checks an answer; raises UserError if the answer has the wrong form."""


@frozen
class Lesson:
    """A lesson: its page is `docs/lessons/{number}-{name}.md`."""

    number: int
    name: str
    title: str
    exercises: tuple[Exercise, ...]

    @property
    def page(self) -> str:
        """The path of the lesson's page in the project."""
        return f"docs/lessons/{self.number}-{self.name}.md"


ANSWER_MAX: Final = 8_000
"""The longest answer, in characters."""
FILE_MAX: Final = 64 * 1024
"""The largest program, in bytes."""
STATES_MAX: Final = 200_000
"""The maximum number of states of an exploration; the exercises need a few thousand."""
SEPARATORS: Final = re.compile(r"[\s,]+")


def words_of(answer: str) -> list[str]:
    """Split an answer into words, at spaces or commas."""
    if len(answer) > ANSWER_MAX:
        raise UserError(f"the answer has {len(answer)} characters; at most {ANSWER_MAX} are allowed")
    found = [word for word in SEPARATORS.split(answer) if word]
    if not found:
        raise UserError("the answer is empty; the exercise shows what an answer looks like")
    return found


def chosen_of(answer: str, what: str, known: Collection[str]) -> set[str]:
    """Parse an answer that lists some of the known words."""
    words = words_of(answer)
    for word in words:
        if word not in known:
            raise UserError(not_known(what, word, known))
    return set(words)


def number_of(answer: str) -> int:
    """Parse a whole number from 0 up."""
    (word, *more) = words_of(answer)
    if more or not word.isascii() or not word.isdigit() or len(word) > 9:
        raise UserError(f"the answer must be a whole number, such as 3, not {answer[:40]!r}")
    return int(word)


def settings_of(answer: str) -> list[str]:
    """Parse settings `NAME=VALUE`; `changed` checks the names and values."""
    settings = words_of(answer)
    for each in settings:
        if "=" not in each:
            raise UserError(f"{each[:40]!r} is not NAME=VALUE; `longpoll policies` lists the knobs and their values")
    return settings


def changed(base: str, settings: Collection[str]) -> Policy:
    """Return a preset with some knobs changed."""
    return with_knobs(preset(base), settings)


def settings_known(knob: str) -> tuple[str, ...]:
    """The values of a knob."""
    return tuple(str(value).lower() for value in knob_values()[knob])


def run_of(answer: str, policy: str) -> Trace:
    """Parse a token into its run. Raises UserError if the answer is not one token of a run of this preset."""
    (word, *more) = words_of(answer)
    if more:
        raise UserError("the answer must be one token, a word that begins with lp1.")
    named_policy = parse(word.partition("#")[2] or word).policy
    if named_policy != preset(policy):
        raise UserError(f"the token's policy is {named_policy.name}; the exercise needs a run of {policy}")
    return replay(word.partition("#")[2] or word)


def explored(policy: Policy, *properties: str, bounds: str = "tiny", **numbers: int) -> Exploration:
    """Explore a policy and check some properties."""
    model = specification_of(policy, named(bounds, policy, **numbers))  # type: ignore[arg-type] # numbers are ints
    return explore(model, select(properties_of(model), properties), engine="python", limit_states=STATES_MAX)


def broken_at(trace: Trace, name: str) -> int | None:
    """Return the first step of a run that violates a property; None if no step does."""
    (item,) = select(properties_of(trace.model), [name])
    return next((step for step in range(len(trace.steps)) if _breaks(trace, item, step)), None)


def _breaks(trace: Trace, item: Property, step: int) -> bool:
    """Whether the step is forbidden, or the state after it violates the property."""
    taken, state = trace.steps[step].action, trace.steps[step].state
    if not is_true(trace, item.here, state):
        return True
    closing = [condition for label, condition in item.closing if taken is not None and label == taken.label]
    return any(is_true(trace, condition, trace.steps[step - 1].state) for condition in closing)


def is_true(trace: Trace, term: Bool, state: Sequence[int]) -> bool:
    """Whether a statement is true in a state of a run."""
    return bool(evaluate(term, values_of(trace.model, state)))


def see(token: str | None) -> str:
    """Return a sentence with the command that shows the run of a token; empty if `token` is None or empty."""
    return f"see it: longpoll explain {token}" if token else ""


def program_of(answer: str) -> Path:
    """Return the path of the Python file that the answer names."""
    path = Path(answer)
    if len(answer) > ANSWER_MAX or "\0" in answer or not path.is_file():
        raise UserError(f"there is no file {answer[:200]!r}; the answer must be the path of a Python file")
    if path.stat().st_size > FILE_MAX:
        raise UserError(f"{answer} has {path.stat().st_size} bytes; a program may have at most {FILE_MAX}")
    return path


TEXT_MAX: Final = 300
"""Texts of exceptions are cut to this many characters."""


@frozen
class UserCodeErrors:
    """A block that turns an exception in the reader's program into a UserError with file and line."""

    path: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise UserError for an exception; Ctrl-C and UserError pass unchanged."""
        if error is None or isinstance(error, (UserError, KeyboardInterrupt)):
            return
        lines = [each.lineno for each in traceback.extract_tb(trace) if Path(each.filename) == self.path]
        place = f"{self.path}, line {lines[-1]}" if lines else str(self.path)
        raise UserError(f"{place}: {type(error).__name__}: {str(error)[:TEXT_MAX]}") from None
