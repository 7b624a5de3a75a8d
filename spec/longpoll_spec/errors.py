"""What every exception of the project is, and those of the law, one class a fault.

Leaves out control flow: nothing here is raised to be caught by the package itself. The other packages' own exceptions
stand in their `errors`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

LISTED_MAX: Final = 20
"""Most names that a sentence lists where a command lists them all."""
GUESSED_MAX: Final = 100
"""Longest name, characters, for which a near one is looked for, and which is shown whole."""


def not_known(what: str, name: str, known: Iterable[str], command: str = "") -> str:
    """What to say of a name that nobody has: the nearest one there is, and all of them, each once.

    Args:
        what: What it should be the name of, such as `policy`.
        name: The name as it was given.
        known: The names there are.
        command: The command that lists them, for lists that are too long for a sentence.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - who makes no mistake need not wait for it

    names = list(dict.fromkeys(known))
    is_long = len(name) > GUESSED_MAX
    near = [] if is_long else get_close_matches(name, names, n=1)
    shown = f"{name[:GUESSED_MAX]!r}... ({len(name)} characters)" if is_long else repr(name)
    said = f"unknown {what} {shown}; " + "".join(f"did you mean {each!r}? " for each in near)
    if command and len(names) > LISTED_MAX:
        return f"{said}`{command}` lists all {len(names)}"
    return f"{said}known: {', '.join(names) or 'none'}" + (f" (see `{command}`)" if command else "")


class LongpollError(Exception):
    """Whatever any package of the project raises on purpose; it can be copied and pickled, whatever its fields."""

    retriable: bool = False
    """Whether the same call may succeed later, though nobody changes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the arguments and fields. `Exception` would call `__init__` with the text alone."""
        reduced = super().__reduce__()
        assert not isinstance(reduced, str), "an exception is no global name"
        return _made_again, (type(self), reduced[1]), *reduced[2:]


def _made_again(kind: type[LongpollError], arguments: tuple[Any, ...]) -> LongpollError:
    error = kind.__new__(kind, *arguments)
    super(LongpollError, error).__init__(*arguments)
    return error


class UserError(LongpollError):
    """The user asked for something that does not exist or cannot be; the text says what to do next."""


class ConfigError(UserError):
    """A configuration file or option cannot be used."""


class SpecError(LongpollError):
    """Whatever the law's own code raises on purpose."""


class SpecUserError(SpecError, UserError):
    """The user asked the law for something that does not exist or cannot be; the text says what to do next."""


class UnknownPolicyError(SpecUserError):
    """No preset has this name."""


class UnknownKnobError(SpecUserError):
    """No knob has this name, or the knob does not take this value."""


class UnknownPropertyError(SpecUserError):
    """No property has this name."""


class UnknownWorldError(SpecUserError):
    """No world of a proof has this name."""


class UnknownEngineError(SpecUserError):
    """No engine has this name."""


class BoundsError(SpecUserError):
    """These bounds cannot be explored: one is out of range, or they do not fit the engine's packed words."""


class SymmetryError(SpecUserError):
    """Requests are not interchangeable in what is to be checked."""


class EngineLimitError(SpecUserError):
    """The engine cannot run this search: an option it lacks, memory it may not use, a worker that is gone."""


class MemoryShortError(EngineLimitError):
    """There is too little memory or disk for this search, or a process was ended for want of it."""


class CheckpointError(SpecUserError):
    """The directory of a search is missing, damaged, of another search, or cannot be written."""


class SparkFailedError(SpecUserError):
    """Spark could not do a step of a search."""


class TokenError(SpecUserError):
    """A counterexample token is damaged, from another version, or does not replay."""


class OutputError(SpecUserError):
    """What was to be shown cannot be written where the user wants it."""
