"""The types of lessons, exercises and verdicts on answers."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


@frozen
class Grade:
    """The verdict on an answer."""

    right: bool
    why: str
    """What a right answer shows, or what a wrong one lacks."""
    more: str = ""
    """More lines, such as a run step by step."""


def right(why: str, more: str = "") -> Grade:
    """A right answer."""
    return Grade(right=True, why=why, more=more)


def missing(why: str, more: str = "") -> Grade:
    """An answer that is not right yet."""
    return Grade(right=False, why=why, more=more)


@frozen
class Exercise:
    """One exercise."""

    asks: str
    """The task in a sentence; the lesson's page explains it."""
    answer: str
    """The form of an answer."""
    check: Callable[[str], Grade]
    """Checks an answer; raises UserError if it has the wrong form."""


@frozen
class Lesson:
    """A lesson: its page is `docs/lessons/{number}-{name}.md`."""

    number: int
    name: str
    title: str
    exercises: tuple[Exercise, ...]

    @property
    def page(self) -> str:
        """The path of its page in the project."""
        return f"docs/lessons/{self.number}-{self.name}.md"
