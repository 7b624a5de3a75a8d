"""What an exercise is, and what is said of an answer. Leaves out the exercises."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


@frozen
class Said:
    """What is said of an answer to an exercise."""

    right: bool
    why: str
    """Of a right answer what it shows, of another what is missing."""
    more: str = ""
    """Lines below, such as a run step by step."""


def right(why: str, more: str = "") -> Said:
    """The answer is right."""
    return Said(right=True, why=why, more=more)


def missing(why: str, more: str = "") -> Said:
    """Something is missing."""
    return Said(right=False, why=why, more=more)


@frozen
class Exercise:
    """One thing that is asked."""

    asks: str
    """A sentence; the lesson's page says more."""
    answer: str
    """What an answer looks like."""
    check: Callable[[str], Said]
    """Finds out what is to be said of an answer; raises UserError for what cannot be read as one."""


@frozen
class Lesson:
    """A lesson: its page is `docs/lessons/{number}-{name}.md`."""

    number: int
    name: str
    title: str
    exercises: tuple[Exercise, ...]

    @property
    def page(self) -> str:
        """Where its text is, in the project's folder."""
        return f"docs/lessons/{self.number}-{self.name}.md"
