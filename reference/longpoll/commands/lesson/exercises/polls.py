"""The exercises of lesson 0: runs a reader's own long poll in every order of its lines (`orders`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from longpoll.commands.lesson.answers import number_of, program_of
from longpoll.commands.lesson.exercise import Exercise, Grade, missing, right

if TYPE_CHECKING:
    from longpoll.commands.lesson.schedules import Schedule, Thread
    from longpoll_simulation.world import World

TIMEOUT_S: Final = 1.0
LATE_S: Final = 0.5
"""Virtual time passes only when no thread can run, so a thread that ends later than this waited for nothing."""
PROGRAM: Final = Path("docs/lessons/poll.py")
A_PROGRAM: Final = "a file with a class Mailbox, such as docs/lessons/poll.py"


def _poll(box: Any, _world: World) -> object:
    return box.poll(TIMEOUT_S)


def threads_of(polls: int) -> Mapping[str, Thread]:
    """Threads that poll once each, and one that puts as many messages, one after another."""

    def put(box: Any, _world: World) -> object:
        for number in range(1, polls + 1):
            box.put(f"message {number}")
        return None

    return {f"poll-{number}": _poll for number in range(1, polls + 1)} | {"put": put}


def wrong_with(order: Schedule, polls: int) -> str:
    """What a poll did wrong in an order; empty if nothing."""
    messages = sorted(f"message {number}" for number in range(1, polls + 1))
    if order.stuck:
        return f"a thread waits forever: {order.stuck}"
    for name in (name for name in order.gave if name.startswith("poll")):
        if order.ended_s[name] > LATE_S:
            return f"{name} slept its whole second, although there was a message for it"
        if order.gave[name] is None:
            return f"{name} returned None at once, although it had a second left"
    given = sorted(str(said) for name, said in order.gave.items() if name.startswith("poll"))
    return "" if given == messages else f"the polls were given {', '.join(given)}"


@define
class Tried:
    """The result of trying a program's orders."""

    orders: int = 0
    wrong: int = 0
    first: Schedule | None = None
    """The first failing order: no failing order has fewer switches."""
    why: str = ""


def tried(path: Path, polls: int, switches_max: int) -> Tried:
    """Run a program in every order."""
    found = Tried()
    for order in _orders(path, polls, switches_max):
        found.orders += 1
        why = wrong_with(order, polls)
        if why:
            found.wrong += 1
            if found.first is None:
                found.first, found.why = order, why
        if order.stuck:
            break  # a program that turns in circles does so in most orders, and each takes its time
    return found


def _orders(path: Path, polls: int, switches_max: int) -> Iterator[Schedule]:
    from longpoll.commands.lesson.schedules import schedules_of  # noqa: PLC0415 - the other lessons need no greenlet

    return schedules_of(path, "Mailbox", threads_of(polls), switches_max)


def _said(path: Path, polls: int, switches_max: int) -> Grade:
    found = tried(path, polls, switches_max)
    what = f"orders of {polls} poll{'s' * (polls > 1)} and {polls} put{'s' * (polls > 1)}"
    if found.first is None:
        return right(f"nothing goes wrong in {found.orders:,} {what}, with up to {_counted(switches_max)}")
    return missing(
        f"in {found.wrong:,} of {found.orders:,} {what} something goes wrong; in the simplest one, {found.why}",
        found.first.story(path),
    )


def _counted(switches: int) -> str:
    return "1 switch" if switches == 1 else f"{switches} switches"


def one_poll(answer: str) -> Grade:
    """A mailbox that loses no wakeup of one poll."""
    return _said(program_of(answer), 1, 4)


def two_polls(answer: str) -> Grade:
    """A mailbox that is right for two polls and two messages."""
    return _said(program_of(answer), 2, 1)


def fewest(answer: str) -> Grade:
    """The fewest switches that lose a wakeup in the lesson's first program."""
    given = number_of(answer)
    first = tried(program_of(str(PROGRAM)), 1, 4).first
    assert first is not None
    if given < first.switches:
        return missing(f"no order with {_counted(given)} loses a wakeup; all orders were tried")
    if given > first.switches:
        return missing(f"an order with fewer than {_counted(given)} loses a wakeup too")
    return right(
        f"with {_counted(first.switches)} a wakeup is lost, and with fewer switches never", first.story(PROGRAM)
    )


POLLS: Final = (
    Exercise("Fix the mailbox so that no order of the lines of a poll and a put loses a wakeup.", A_PROGRAM, one_poll),
    Exercise("How many switches between threads does it take to lose a wakeup?", "a number", fewest),
    Exercise(
        "Fix it for two polls and two messages: each poll gets one, and no poll returns None early.",
        A_PROGRAM,
        two_polls,
    ),
)
