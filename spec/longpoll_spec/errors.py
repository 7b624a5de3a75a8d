"""The base classes of every exception of the project, and the exceptions of the specification, one class per fault.

The other packages define their exceptions in their own `errors` modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

LISTED_MAX: Final = 20
"""The maximum number of names in an error message. Instead of a longer list, the message has the command that prints
the names."""
GUESSED_MAX: Final = 100
"""The longest name, in characters, that is shown whole and gets a suggestion."""


def not_known(what: str, name: str, known: Iterable[str], command: str = "") -> str:
    """The error message for an unknown name, with the nearest known name and the list of all.

    Args:
        what: The kind of name, such as `policy`.
        name: The name as it was given.
        known: The known names.
        command: The command that lists the known names; the message has this command if the list is long.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only mistakes need this slow import

    names = list(dict.fromkeys(known))
    is_long = len(name) > GUESSED_MAX
    near = [] if is_long else get_close_matches(name, names, n=1)
    shown = f"{name[:GUESSED_MAX]!r}... ({len(name)} characters)" if is_long else repr(name)
    said = f"unknown {what} {shown}; " + "".join(f"did you mean {each!r}? " for each in near)
    if command and len(names) > LISTED_MAX:
        return f"{said}`{command}` lists all {len(names)}"
    return f"{said}known: {', '.join(names) or 'none'}" + (f" (see `{command}`)" if command else "")


class LongpollError(Exception):
    """Base class of the project's exceptions; each can be copied and pickled with its fields."""

    retriable: bool = False
    """Whether the same call may succeed later without a change by the caller."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the arguments and fields. The method of `Exception` would call `__init__` with the text alone."""
        reduced = super().__reduce__()
        assert not isinstance(reduced, str), "an exception is not a global name"
        return _made_again, (type(self), reduced[1]), *reduced[2:]


def _made_again(kind: type[LongpollError], arguments: tuple[Any, ...]) -> LongpollError:
    error = kind.__new__(kind, *arguments)
    super(LongpollError, error).__init__(*arguments)
    return error


class UserError(LongpollError):
    """A mistake of the user, such as an unknown name. The message contains the next step."""


class ConfigError(UserError):
    """A configuration file or option cannot be used."""


class SpecError(LongpollError):
    """Base class of the exceptions of the specification."""


class SpecUserError(SpecError, UserError):
    """A mistake of the user in a request to the specification. The message contains the next step."""


class UnknownPolicyError(SpecUserError):
    """No preset has this name."""


class UnknownKnobError(SpecUserError):
    """No knob has this name, or the knob does not take this value."""


class UnknownPhaseError(SpecUserError):
    """No phase of a request has this name."""


class SpecificationFileError(SpecUserError):
    """A specification file cannot be used. The message begins with the file and the line."""


class UnknownPropertyError(SpecUserError):
    """No property has this name."""


class UnknownWorldError(SpecUserError):
    """No configuration of a proof has this name."""


class UnknownEngineError(SpecUserError):
    """No engine has this name."""


class BoundsError(SpecUserError):
    """These bounds cannot be explored: one is out of range, or they do not fit the engine's packed words."""


class SymmetryError(SpecUserError):
    """Requests are not interchangeable in the properties to be checked."""


class EngineLimitError(SpecUserError):
    """The engine cannot run this search: a missing option, a limit of memory, or a worker that died."""


class MemoryShortError(EngineLimitError):
    """There is too little memory or disk for this search, or a process was killed for lack of it."""


class CheckpointError(SpecUserError):
    """The directory of a search is missing, damaged, of another search, or not writable."""


class SparkFailedError(SpecUserError):
    """Spark failed in a step of a search."""


class TokenError(SpecUserError):
    """A counterexample token is damaged, from another version, or does not replay."""


class OutputError(SpecUserError):
    """The output cannot be written to the requested place."""
