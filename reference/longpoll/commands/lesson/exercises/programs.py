"""Exercises of lessons 0, 9 and 11: the reader's long poll, recordings of Java brokers, the reader's hold table."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from longpoll.api import judge
from longpoll.commands.lesson.exercise import (
    Exercise,
    Grade,
    chosen_of,
    missing,
    number_of,
    program_of,
    right,
    words_of,
)
from longpoll_kit.errors import HINTS
from longpoll_kit.programs import protocol
from longpoll_kit.programs.explore import Bounds, Search
from longpoll_kit.programs.process import Program
from longpoll_kit.programs.starters import starters
from longpoll_spec.errors import UserError

if TYPE_CHECKING:
    from longpoll.commands.lesson.schedules import Schedule, Thread
    from longpoll_judge.contract.result import Finding
    from longpoll_simulation.world import World


TIMEOUT_S: Final = 1.0
LATE_S: Final = 0.5
"""A thread that ends later than this, in seconds of virtual time, missed its wakeup, because virtual time passes only
when no thread can run."""
PROGRAM: Final = Path("docs/lessons/poll.py")
A_PROGRAM: Final = "a file with a class Mailbox, such as docs/lessons/poll.py"


def _poll(box: Any, _world: World) -> object:
    return box.poll(TIMEOUT_S)


def threads_of(polls: int) -> Mapping[str, Thread]:
    """Return threads that poll once each, and one thread that puts one message for each of them."""

    def put(box: Any, _world: World) -> object:
        for number in range(1, polls + 1):
            box.put(f"message {number}")
        return None

    return {f"poll-{number}": _poll for number in range(1, polls + 1)} | {"put": put}


def wrong_with(order: Schedule, polls: int) -> str:
    """Describe what is wrong with a poll in a schedule; empty if nothing is wrong."""
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
    """The result of running a program in all schedules."""

    orders: int = 0
    wrong: int = 0
    first: Schedule | None = None
    """A failing schedule with the fewest context switches."""
    why: str = ""


def tried(path: Path, polls: int, switches_max: int) -> Tried:
    """Run a program in every schedule."""
    found = Tried()
    for order in _orders(path, polls, switches_max):
        found.orders += 1
        why = wrong_with(order, polls)
        if why:
            found.wrong += 1
            if found.first is None:
                found.first, found.why = order, why
        if order.stuck:
            # Stop at the first endless loop: such a program loops in most schedules, and each of these schedules takes
            # long.
            break
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
    """Grade the reader's mailbox, which must lose no wakeup while one thread polls."""
    return _said(program_of(answer), 1, 4)


def two_polls(answer: str) -> Grade:
    """Grade the reader's mailbox, which must be right for two polling threads and two messages."""
    return _said(program_of(answer), 2, 1)


def fewest(answer: str) -> Grade:
    """Grade the fewest switches that lose a wakeup in the lesson's first program."""
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


BOUNDS: Final = Bounds(moves=4, interleaved=2)
ODD_ONE: Final = "only_first"
LOST: Final = "no_lost_wakeup"


def driven(path: Path) -> Search:
    """Run the dojo on a Python program."""
    search = Search(BOUNDS)
    search.run(partial(Program, [sys.executable, str(path)]))
    return search


def is_right(answer: str) -> Grade:
    """Grade a hold table with scheduling points that is right in every order."""
    search = driven(program_of(answer))
    if search.finding is not None:
        return missing(str(search.finding.violation), "\n".join(search.finding.played.story))
    if not search.step_points:
        return missing(
            "it is right, but announces no scheduling points; keep them, so that other messages can come in between"
        )
    return right(f"nothing goes wrong in {search.played:,} orders")


def breaks(answer: str) -> Grade:
    """Grade the property that a hold table violates if it wakes only the first waiter."""
    chosen = chosen_of(answer, "property", sorted({*HINTS, *protocol.HINTS}))
    (program,) = [each for each in starters("python") if each.name == ODD_ONE]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / program.file
        path.write_text(program.source, "utf-8")
        finding = driven(path).finding
    assert finding is not None
    if chosen != {finding.violation.property}:
        return missing(f"{min(chosen)} is not the first finding; think of the second waiting pull")
    return right(str(finding.violation), "\n".join(finding.played.story))


TABLES: Final = (
    Exercise("Fix lost_wakeup.py, the example that forgets to look again.", "a Python program for the dojo", is_right),
    Exercise(
        f"Which property does {ODD_ONE}.py break? It wakes only the first waiting pull.",
        "a property's name",
        breaks,
    ),
)


RECORDINGS: Final = "model_tests/judge/recordings"
LOST_5: Final = f"{RECORDINGS}/java-5.5.0-lost-wakeup"
LOST_4: Final = f"{RECORDINGS}/java-4.9.7-lost-wakeup"
WAKE: Final = "pull.wake.prompt"


def violations(recording: str, wake_ms: float | None = None) -> list[Finding]:
    """Judge a recording and return the violations; `wake_ms` replaces the judge's limit for the time of a wakeup."""
    return [each for each in judge(recording, wake_ms=wake_ms).findings if each.verdict == "violated"]


def lost_pulls(answer: str) -> Grade:
    """Grade the pulls in the recording of 5.5.0 that waited although their message was there."""
    named = set(words_of(answer))
    found = {each.request: each.why for each in violations(LOST_5) if each.clause == WAKE and each.request}
    other = sorted(named - found.keys())
    if other:
        return missing(f"the judge finds no violation for {other[0][:40]}")
    if found.keys() - named:
        return missing(f"{', '.join(sorted(named))} is right, and there is {len(found.keys() - named)} more")
    return right(f"{len(found)} pulls waited for a message that was there", "\n".join(found.values()))


def certain_ms(answer: str) -> Grade:
    """Grade the least threshold, in whole ms, with which the recording of 4.9.7 shows no violation."""
    given = number_of(answer)
    if not 1 <= given <= 60_000:
        raise UserError("the answer must be a number of milliseconds from 1 to 60000")
    if violations(LOST_4, given):
        return missing(f"with --wake-ms {given} a pull is still found too late")
    if not violations(LOST_4, given - 1) and given > 1:
        return missing(f"with --wake-ms {given} there is no violation, and with {given - 1} neither")
    return right(f"with --wake-ms {given} there is no violation, and with {given - 1} there is one")


RECORDED: Final = (
    Exercise(
        f"Which pulls of {LOST_5} waited for a message that was there?", "their requests, such as 3-17", lost_pulls
    ),
    Exercise(f"From which --wake-ms on has {LOST_4} no violation?", "a number of milliseconds", certain_ms),
)
