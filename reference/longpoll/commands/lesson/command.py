"""`longpoll lesson`: lists the lessons, shows exercises and checks answers."""

from __future__ import annotations

from typing import Any, Final

import click

from longpoll.api import needing
from longpoll.commands.lesson.exercise import Exercise, Grade, Lesson
from longpoll.commands.lesson.exercises.counts import ANY, FAIR, LATE
from longpoll.commands.lesson.exercises.invariants import MUTANT, PROOF
from longpoll.commands.lesson.exercises.programs import POLLS, RECORDED, TABLES
from longpoll.commands.lesson.exercises.races import FILTERS, FOR_GOOD, HOLD, KEEP, REPLAYED
from longpoll.output import Exit, emit_json, json_option, out, say, styled, table, user_mistakes
from longpoll_spec.errors import UserError, not_known

LESSONS: Final = (
    Lesson(0, "broken-threads", "Broken threads", POLLS),
    Lesson(1, "lost-by-hold", "A wakeup lost before the hold", HOLD),
    Lesson(2, "lost-by-keep", "A wakeup lost in a list", KEEP),
    Lesson(3, "late-by-a-scan", "Late by a scan", LATE),
    Lesson(4, "lost-for-good", "Lost for good", FOR_GOOD),
    Lesson(5, "filters-and-commits", "Filters and commits", FILTERS),
    Lesson(6, "prove-it", "Prove it", PROOF),
    Lesson(7, "any-number", "Any number", ANY),
    Lesson(8, "fairness-and-time", "Fairness and time", FAIR),
    Lesson(9, "judge-a-recording", "Judge a recording", RECORDED),
    Lesson(10, "the-real-broker", "The real broker", REPLAYED),
    Lesson(11, "write-your-own", "Write your own hold table", TABLES),
    Lesson(12, "your-own-mutant", "Your own mutant", MUTANT),
)


NUMBERS: Final = {str(each.number): each for each in LESSONS}


@click.command()
@click.argument("number", required=False)
@click.option("--check", "answer", metavar="ANSWER", help="Check this answer to the exercise NUMBER.")
@json_option
@user_mistakes
def lesson(*, number: str | None, answer: str | None, as_json: bool) -> None:
    """List the lessons, show the exercises of a lesson, or check an answer.

    NUMBER is the number of a lesson, such as 1, or of an exercise, such as 1.2. The pages of the lessons (docs/lessons)
    contain hints and solutions. If the answer is a program, the command runs it.

    \b
    Examples:
      longpoll lesson
      longpoll lesson 1
      longpoll lesson 1.1 --check lp1.lqxyb2NrZXRt...
      longpoll lesson 1.2 --check "none before_lock"
      longpoll lesson 0.2 --check my_poll.py

    Exit codes: 0 the answer is right, or there was none to check, 1 the answer is not right yet, 2 a mistake in the
    command line.
    """
    if number is None:
        if answer is not None:
            raise UserError(
                "--check needs the number of an exercise; write, for example: longpoll lesson 1.1 --check ANSWER"
            )
        _list(as_json=as_json)
        return
    found = _lesson_of(number)
    asked = _asked_of(number, found)
    if answer is None:
        _ask(found, asked, as_json=as_json)
        return
    if len(asked) > 1:
        numbers = ", ".join(asked)
        raise UserError(f"lesson {number} has {len(asked)} exercises; name one of {numbers} for --check")
    ((name, exercise),) = asked.items()
    with needing():
        said = exercise.check(answer)
    _tell(name, said, as_json=as_json)


def _lesson_of(number: str) -> Lesson:
    whole = number.partition(".")[0]
    if whole not in NUMBERS:
        raise UserError(not_known("lesson", whole, NUMBERS, "longpoll lesson"))
    return NUMBERS[whole]


def _asked_of(number: str, found: Lesson) -> dict[str, Exercise]:
    exercises = {f"{found.number}.{place}": each for place, each in enumerate(found.exercises, start=1)}
    if "." not in number:
        return exercises
    if number not in exercises:
        raise UserError(not_known("exercise", number, exercises, f"longpoll lesson {found.number}"))
    return {number: exercises[number]}


def _list(*, as_json: bool) -> None:
    if as_json:
        emit_json({"exit_code": 0, "lessons": [_as_json(each) for each in LESSONS]})
        return
    rows = [(each.number, each.title, len(each.exercises), each.page) for each in LESSONS]
    table("Lessons", ("lesson", "title", "exercises", "page"), rows)


def _as_json(found: Lesson) -> dict[str, Any]:
    asked = _asked_of(str(found.number), found)
    exercises = [{"exercise": name, "asks": each.asks, "answer": each.answer} for name, each in asked.items()]
    return {"lesson": found.number, "title": found.title, "page": found.page, "exercises": exercises}


def _ask(found: Lesson, asked: dict[str, Exercise], *, as_json: bool) -> None:
    if as_json:
        emit_json({"exit_code": 0} | _as_json(found))
        return
    out.print(f"Lesson {found.number}: {found.title} ({found.page})")
    table(
        "Exercises",
        ("exercise", "asks", "an answer is"),
        [(name, each.asks, each.answer) for name, each in asked.items()],
    )
    say(f"longpoll lesson {next(iter(asked))} --check ANSWER")


def _tell(name: str, said: Grade, *, as_json: bool) -> None:
    code = Exit.OK if said.right else Exit.VIOLATED
    if as_json:
        emit_json({"exit_code": int(code), "exercise": name, "right": said.right, "why": said.why, "more": said.more})
    else:
        out.tell(styled("[green]right[/green]: {}" if said.right else "[yellow]not yet[/yellow]: {}", said.why))
        if said.more:
            say(said.more)
    if code:
        raise SystemExit(code)
