"""Answers as they are typed, read: runs, knobs, words, numbers and files. All raise UserError with what to do next.

Leaves out whether they are right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.tokens import parse, replay
from longpoll_spec.errors import UserError, not_known
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Property, Trace, select
from longpoll_spec.policy import Policy, knob_values, preset, with_knobs
from longpoll_spec.terms import Bool

ANSWER_MAX: Final = 8_000
"""Characters of an answer."""
FILE_MAX: Final = 64 * 1024
"""Bytes of a program that is an answer."""
STATES_MAX: Final = 200_000
"""States after which an exploration gives up; those of the exercises have some thousands."""
SEPARATORS: Final = re.compile(r"[\s,]+")


def words_of(answer: str) -> list[str]:
    """The words of an answer, which spaces or commas part."""
    if len(answer) > ANSWER_MAX:
        raise UserError(f"an answer has at most {ANSWER_MAX} characters, this one has {len(answer)}")
    found = [word for word in SEPARATORS.split(answer) if word]
    if not found:
        raise UserError("the answer is empty; see the exercise for what one looks like")
    return found


def chosen_of(answer: str, what: str, known: Collection[str]) -> set[str]:
    """Some of the known words."""
    words = words_of(answer)
    for word in words:
        if word not in known:
            raise UserError(not_known(what, word, known))
    return set(words)


def number_of(answer: str) -> int:
    """A whole number, not below nought."""
    (word, *more) = words_of(answer)
    if more or not word.isascii() or not word.isdigit() or len(word) > 9:
        raise UserError(f"the answer is a whole number, such as 3, and not {answer[:40]!r}")
    return int(word)


def settings_of(answer: str) -> list[str]:
    """Settings of knobs, `NAME=VALUE` each; whether knob and value are known is seen by `changed`."""
    settings = words_of(answer)
    for each in settings:
        if "=" not in each:
            raise UserError(f"{each[:40]!r} is no setting of a knob: write NAME=VALUE, as `longpoll policies` has them")
    return settings


def changed(base: str, settings: Collection[str]) -> Policy:
    """A preset with some knobs set otherwise."""
    return with_knobs(preset(base), settings)


def settings_known(knob: str) -> tuple[str, ...]:
    """What a knob may be set to."""
    return tuple(str(value).lower() for value in knob_values()[knob])


def run_of(answer: str, policy: str) -> Trace:
    """The run of a token of a preset, with none of its knobs set otherwise."""
    (word, *more) = words_of(answer)
    if more:
        raise UserError("the answer is one token, a word that begins with lp1.")
    named_policy = parse(word.partition("#")[2] or word).policy
    if named_policy != preset(policy):
        raise UserError(f"this token is of {named_policy.name}; the exercise asks for a run of {policy}")
    return replay(word.partition("#")[2] or word)


def explored(policy: Policy, *properties: str, bounds: str = "tiny", **numbers: int) -> Exploration:
    """What exploring says of some properties of a policy."""
    model = law_of(policy, named(bounds, policy, **numbers))  # type: ignore[arg-type] # numbers are ints
    return explore(model, select(properties_of(model), properties), engine="python", limit_states=STATES_MAX)


def broken_at(trace: Trace, name: str) -> int | None:
    """The step of a run that breaks a property, the first one; None if none does."""
    (item,) = select(properties_of(trace.model), [name])
    return next((step for step in range(len(trace.steps)) if _breaks(trace, item, step)), None)


def _breaks(trace: Trace, item: Property, step: int) -> bool:
    """Whether what is said of states is false after the step, or the step is one that must not be."""
    taken, state = trace.steps[step].action, trace.steps[step].state
    if not is_true(trace, item.here, state):
        return True
    closing = [condition for label, condition in item.closing if taken is not None and label == taken.label]
    return any(is_true(trace, condition, trace.steps[step - 1].state) for condition in closing)


def is_true(trace: Trace, term: Bool, state: Sequence[int]) -> bool:
    """Whether a statement is true in a state of a run."""
    return bool(evaluate(term, values_of(trace.model, state)))


def see(token: str | None) -> str:
    """How the run of a token is looked at; empty where there is none."""
    return f"see it: longpoll explain {token}" if token else ""


def program_of(answer: str) -> Path:
    """A Python file."""
    path = Path(answer)
    if len(answer) > ANSWER_MAX or "\0" in answer or not path.is_file():
        raise UserError(f"no file {answer[:200]!r}; the answer is the path of a Python file")
    if path.stat().st_size > FILE_MAX:
        raise UserError(f"{answer}: a program has at most {FILE_MAX} bytes, this one has {path.stat().st_size}")
    return path
