"""What a broker does with a held pull: not before it came, nor after its answer, nor with one that may not be held.

Moments are numbers of nanoseconds; columns by hand. Leaves out the hold itself.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from attrs import frozen

from longpoll_judge.rules.pulls.handling import judge_handling
from longpoll_judge.rules.steps import STEPS

ALLOWED, LATER, UNANSWERED = "pull.step.allowed", "pull.step.after_request", "pull.step.unanswered"
RECEIPT: Final = (10, 20)
"""When a pull was received: after the first and before the second."""
ANSWER: Final = (100, 110)


@frozen
class Event:
    """An event of the queue, by the key of its request; -1 of one that names none."""

    event: str
    key: int
    after_ns: int
    before_ns: int


@frozen
class Pull:
    """A pull; by default one that may be held and is answered."""

    key: int = 0
    may_hold: bool = True
    is_answered: bool = True
    is_damaged: bool = False
    """Of one that is answered: the answer lacks what it needs."""


def step(event: str, after_ns: int, before_ns: int | None = None, key: int = 0) -> Event:
    """Something was done with a pull, at a moment or between two."""
    return Event(event, key, after_ns, after_ns if before_ns is None else before_ns)


def flags(values: Any) -> Any:
    """Truths as a column."""
    return np.array(list(values), dtype=np.bool_)


def numbers(values: Any) -> Any:
    """Numbers as a column."""
    return np.array(list(values), dtype=np.int64)


def looked_up(wanted: Any, key: Any, value: Any) -> Any:
    """What `Batch.look_up` gives."""
    known = dict(zip(key.tolist()[::-1], value.tolist()[::-1], strict=True))
    return numbers(known.get(each, -1) for each in wanted.tolist())


def judged(pulls: tuple[Pull, ...], *steps: Event, timeless: tuple[str, ...] = ()) -> list[Any]:
    """The suspects of a queue that has these pulls, received and answered behind the steps in the record."""
    events, row, answer_row = [*steps], [], []
    for pull in pulls:
        row.append(len(events))
        events.append(Event("request_received", pull.key, *RECEIPT))
        answer_row.append(len(events) if pull.is_answered else -1)
        if pull.is_answered:
            events.append(Event("answer_sent", pull.key, *ANSWER))
    columns = {name: numbers(getattr(each, name) for each in events) for name in ("after_ns", "before_ns")}
    case: Any = SimpleNamespace(
        pulls=Columns(
            row=numbers(row),
            answer_row=numbers(answer_row),
            may_hold=flags(pull.may_hold for pull in pulls),
            offset=np.arange(len(pulls)) + 5,
            received_after_ns=np.full(len(pulls), RECEIPT[0]),
            answered_before_ns=np.full(len(pulls), ANSWER[1]),
        ),
        events=SimpleNamespace(
            rows=lambda name: numbers(place for place, each in enumerate(events) if each.event == name),
            request_key=numbers(each.key for each in events),
            batch=SimpleNamespace(look_up=looked_up),
            integers=lambda name, rows: columns[name][rows],
            text=lambda name, place: getattr(events[place], name),
        ),
        is_answered=flags(pull.is_answered and not pull.is_damaged for pull in pulls),
        is_timeless=lambda clause: clause in timeless,
    )
    return [each for each in judge_handling(case) if len(each.members)]


@frozen(eq=False)
class Columns:
    """Those of the pulls that are looked at."""

    row: Any
    answer_row: Any
    may_hold: Any
    offset: Any
    received_after_ns: Any
    answered_before_ns: Any

    def __len__(self) -> int:
        return len(self.row)


def found(pulls: tuple[Pull, ...], *steps: Event) -> list[tuple[str, str, list[int]]]:
    """Each finding: its clause, its words and its rows; all are certain, and of one property."""
    told = []
    for each in judged(pulls, *steps):
        assert (each.property, each.verdict) == ("held_as_asked", "violated")
        explained = [each.explain(member) for member in each.members.tolist()]
        told += [(one.clause, one.why, one.rows) for one in explained]
    return told


def clauses(pulls: tuple[Pull, ...], *steps: Event) -> list[str]:
    """The clauses alone."""
    return [clause for clause, _why, _rows in found(pulls, *steps)]


@pytest.mark.parametrize("event", STEPS)
def test_what_is_done_with_a_pull_that_waits_is_in_order(event: str) -> None:
    """From the moment when it may have come until the moment when its answer may have been sent."""
    assert clauses((Pull(),), step(event, 10), step(event, 50), step(event, 110)) == []
    assert clauses((Pull(),), step(event, 5, 10), step(event, 110, 200)) == []


@pytest.mark.parametrize("event", STEPS)
def test_nothing_is_done_with_a_pull_before_it_came(event: str) -> None:
    """A step that was over before it can have come is found, with the pull and its answer."""
    why = f"a pull at offset 5 has the step {event!r}, and came later"
    assert found((Pull(),), step(event, 5, 9)) == [(LATER, why, [1, 0, 2])]


@pytest.mark.parametrize("event", STEPS)
def test_nothing_is_done_with_a_pull_after_its_answer(event: str) -> None:
    """A step that began when the answer had been sent for certain."""
    why = f"a pull at offset 5 has the step {event!r}, and was answered before"
    assert found((Pull(),), step(event, 111)) == [(UNANSWERED, why, [1, 0, 2])]


@pytest.mark.parametrize("event", STEPS)
def test_nothing_is_done_with_a_pull_that_may_not_be_held(event: str) -> None:
    """Whenever it is."""
    why = f"a pull at offset 5 has the step {event!r}, and may not be held"
    assert found((Pull(may_hold=False),), step(event, 50)) == [(ALLOWED, why, [1, 0, 2])]


def test_a_pull_without_an_answer_may_be_handled_for_ever() -> None:
    """So may one whose answer is damaged; what else is found of them shows no answer."""
    for pull in (Pull(is_answered=False), Pull(is_damaged=True)):
        assert clauses((pull,), step("take", 10_000)) == []
        assert [rows for _clause, _why, rows in found((pull,), step("take", 5))] == [[1, 0]]


def test_other_events_are_no_steps() -> None:
    """A hold and the look at the log after it are judged elsewhere."""
    assert clauses((Pull(may_hold=False),), step("hold", 5), step("recheck", 500)) == []


def test_steps_of_other_requests_are_left_out() -> None:
    """Of one that is not in the record, of none, and of a request that names no pull of this queue."""
    refused = Pull(key=3, may_hold=False)
    assert clauses((refused,), step("take", 50, key=4), step("keep", 50, key=-1)) == []
    assert clauses((), step("take", 50)) == []
    assert clauses((refused,)) == []
    # The key -1 of a step leads to no pull, be one without a key in the record.
    assert clauses((Pull(key=-1, may_hold=False),), step("take", 50, key=-1)) == []


def test_each_step_belongs_to_its_pull() -> None:
    """The first of two pulls with one key is meant; rows and words are those of the pull."""
    pulls = (Pull(key=7), Pull(key=2, may_hold=False), Pull(key=2), Pull(key=4, may_hold=False))
    steps = (step("run", 50, key=7), step("keep", 50, key=4), step("take", 50, key=2), step("take", 60, key=9))
    assert found(pulls, *steps) == [
        (ALLOWED, "a pull at offset 8 has the step 'keep', and may not be held", [10, 1, 11]),
        (ALLOWED, "a pull at offset 6 has the step 'take', and may not be held", [6, 2, 7]),
    ]


def test_suspects_stand_in_the_order_of_the_record() -> None:
    """Whatever their kinds are; one step may break several clauses."""
    suspects = judged((Pull(may_hold=False),), step("stop", 1), step("take", 2), step("run", 500), step("hold", 1))
    assert [(each.explain(0).clause, each.members.tolist(), each.rows.tolist()) for each in suspects] == [
        (ALLOWED, [0, 1, 2], [0, 1, 2]),
        (LATER, [0, 1], [0, 1]),
        (UNANSWERED, [2], [2]),
    ]


def test_a_clause_may_stand_whatever_the_moments_are() -> None:
    """The contract says which does."""
    suspects = judged((Pull(may_hold=False),), step("stop", 1), timeless=(ALLOWED,))
    assert [(each.explain(0).clause, each.is_timeless) for each in suspects] == [(ALLOWED, True), (LATER, False)]
