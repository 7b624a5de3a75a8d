"""Messages that were not shown in time, by themselves: queues, lives and moments, on either side of each limit.

Moments are milliseconds. Leaves out how a finding is written, and where the rows come from.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from attrs import evolve, frozen

from longpoll_judge.contract.clause import SHOWN_MS
from longpoll_judge.evidence.holes import Holes, holes_of
from longpoll_judge.evidence.survey import Context, SourceFacts
from longpoll_judge.rules.across import WEIGHT, Gathered, hash_of
from longpoll_judge.rules.shown import are_doubted, not_shown
from longpoll_judge.rules.steps import MS

LONG: Final = 100_000
"""When every source ends by default; far behind any limit."""
NOW: Final = 1_000
"""When messages are told by default: between this and the next millisecond."""
DUE: Final = NOW + 1 + SHOWN_MS
"""When they must be shown."""


@frozen
class Message:
    """One that was acknowledged, or appended."""

    queue_offset: int = 0
    at: tuple[float, float] = (NOW, NOW + 1)
    queue: int = 0
    source: str = "s"
    broker: str = "b"
    topic: str = "T"


@frozen
class End:
    """A visible end that was told."""

    visible_end: int
    at: tuple[float, float] = (NOW, NOW + 1)
    queue: int = 0
    source: str = "s"
    broker: str = "b"
    topic: str = "T"


def ns(moment: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(moment * MS)


def gathered(rows: list[Any], column: str) -> Gathered:
    """Rows as columns; places are equal for equal source, broker, topic and queue."""
    numbers: dict[str, Any] = {
        name: np.array([ns(each.at[side]) for each in rows], dtype=np.int64)
        for side, name in enumerate(("after_ns", "before_ns"))
    }
    keys: dict[str, Any] = {
        name: np.array([hash_of(getattr(each, name)) if getattr(each, name) else 0 for each in rows], dtype=np.uint64)
        for name in ("source", "broker", "topic")
    }
    queue = np.array([each.queue for each in rows], dtype=np.int64)
    place = ((keys["source"] * WEIGHT + keys["broker"]) * WEIGHT + keys["topic"]) * WEIGHT + queue.astype(np.uint64)
    nothing = np.zeros(len(rows), dtype=np.uint64)
    return Gathered(
        slice=np.zeros(len(rows), dtype=np.int64),
        row=np.arange(len(rows)),
        request=nothing,
        place=place,
        connection=nothing,
        tag=nothing,
        queue=queue,
        values={column: np.array([getattr(each, column) for each in rows], dtype=np.int64)},
        **numbers,
        **keys,
    )


def holes(*pairs: tuple[float, float]) -> Holes:
    """From moment to moment."""
    return holes_of((ns(start), ns(end)) for start, end in pairs)


def context(**fields: Any) -> Context:
    """A history whose sources go on for long."""
    sources = {name: SourceFacts(ns(LONG), None) for name in ("s", "t")}
    return evolve(Context(0, 0, answers_on_stop=False, sources=sources, closes={}), **fields)


PLAIN: Final = context()


def late(messages: list[Message], ends: list[End], known: Context = PLAIN) -> list[tuple[int, int]]:
    """The messages that were late, each with the end that was told instead, by their rows."""
    found = not_shown(gathered(messages, "queue_offset"), gathered(ends, "visible_end"), known)
    return list(zip(*(rows.tolist() for rows in found), strict=True))


# -- in time ---------------------------------------------------------------------------------------------------------


def test_an_end_behind_the_message_shows_it() -> None:
    """Told by the moment when it must be; just before, with, or long before it."""
    for moment in (0, NOW, DUE):
        assert late([Message(3)], [End(4, (moment, moment + 1))]) == []
        assert late([Message(3)], [End(9, (moment, moment + 1))]) == []


def test_an_end_that_stops_before_the_message_does_not() -> None:
    """The offset of the message itself is the end of those before it."""
    assert late([Message(3)], [End(3)]) == [(0, 0)]
    assert late([Message(0)], [End(0)]) == [(0, 0)]


def test_the_limit_is_counted_from_when_the_message_was_there_for_certain() -> None:
    """An end that can only have been told afterwards comes too late."""
    shown = End(4, (DUE, DUE + 50))
    assert late([Message(3)], [shown]) == []
    just_late = End(4, (DUE + 0.000001, DUE + 50))
    assert late([Message(3)], [just_late]) == [(0, 0)]
    assert late([Message(3, (0, NOW + 1))], [shown]) == []
    assert late([Message(3, (NOW, NOW + 0.9))], [shown]) == [(0, 0)]


def test_the_highest_end_counts_that_was_told_by_then() -> None:
    """It is what is shown; where none was told by then, the first of the queue."""
    ends = [End(1), End(3), End(2), End(9, (DUE + 1, DUE + 2))]
    assert late([Message(3)], ends) == [(0, 1)]
    assert late([Message(2)], ends) == []
    assert late([Message(3)], [End(9, (DUE + 5, DUE + 6)), End(8, (DUE + 1, DUE + 2))]) == [(0, 0)]


# -- which are asked -------------------------------------------------------------------------------------------------


def test_a_queue_of_which_no_end_is_told_is_not_asked() -> None:
    """Another queue's ends, another source's, broker's or topic's are none of it."""
    assert late([Message(3)], []) == []
    assert late([], [End(0)]) == []
    others = [End(0, queue=1), End(0, source="t"), End(0, broker="c"), End(0, topic="U")]
    assert late([Message(3)], others) == []
    assert late([Message(3), Message(3, queue=1)], [*others, End(1)]) == [(0, 4), (1, 0)]


def test_a_source_that_ends_before_the_limit_is_not_asked() -> None:
    """It has to go on for longer."""
    for last, expected in ((DUE, []), (DUE + 0.000001, [(0, 0)])):
        known = context(sources={"s": SourceFacts(ns(last), None), "t": SourceFacts(ns(LONG), None)})
        assert late([Message(3)], [End(1)], known) == expected
        assert late([Message(3, source="t")], [End(1, source="t")], known) == [(0, 0)]
    assert late([Message(3)], [End(1)], context(sources={})) == []


def test_a_law_is_not_asked() -> None:
    """It may take an end back; a source beside it is asked."""
    known = context(lawful=frozenset({"s"}))
    messages, ends = [Message(3), Message(3, source="t")], [End(1), End(1, source="t")]
    assert late(messages, ends, known) == [(1, 1)]
    assert late(messages, ends) == [(0, 0), (1, 1)]


# -- which are told --------------------------------------------------------------------------------------------------


def test_the_first_late_message_of_a_queue_is_told() -> None:
    """By its moment, and by its row where moments are equal; those behind it are late for the same reason."""
    assert late([Message(4, (NOW + 9, NOW + 10)), Message(3), Message(5), Message(1)], [End(2)]) == [(1, 0)]
    assert late([Message(5), Message(4)], [End(2)]) == [(0, 0)]


def test_each_queue_has_its_own() -> None:
    """In the order of the moments."""
    messages = [Message(3, (NOW + 9, NOW + 10)), Message(3, queue=1), Message(4), Message(5, queue=1)]
    assert late(messages, [End(2, queue=1), End(1)]) == [(1, 0), (2, 1)]
    assert late(messages[:2], [End(2, queue=1), End(1)]) == [(1, 0), (0, 1)]


# -- deletions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["T", ""])
def test_a_message_that_its_topic_s_deletion_may_have_taken_is_not_asked(topic: str) -> None:
    """One that touches the time from when it was there first until it must be shown; an empty name is any topic."""
    for start, end in ((0, NOW), (NOW + 1, NOW + 2), (DUE, LONG), (0, LONG)):
        assert late([Message(3)], [End(1)], context(deleted={("b", topic): holes((start, end))})) == []
    for later in (DUE + 1, DUE + 0.000001):
        assert late([Message(3)], [End(1)], context(deleted={("b", topic): holes((later, LONG))})) == [(0, 0)]
    for name in (("c", topic), ("b", "U")):
        assert late([Message(3)], [End(1)], context(deleted={name: holes((0, LONG))})) == [(0, 0)]


def test_other_changes_of_a_queue_excuse_too() -> None:
    """A queue that began anew without a deletion, and a time in which nobody watched for one."""
    assert late([Message(3)], [End(1)], context(begun_anew={("b", "T", 0): holes((DUE, DUE))})) == []
    assert late([Message(3)], [End(1)], context(begun_anew={("b", "T", 1): holes((DUE, DUE))})) == [(0, 0)]
    assert late([Message(3)], [End(1)], context(life_holes={"b": holes((DUE, DUE))})) == []
    assert late([Message(3)], [End(1)], context(life_holes={"c": holes((DUE, DUE))})) == [(0, 0)]


def test_only_its_own_message_is_excused() -> None:
    """The next one of the queue is asked, and stands for it."""
    known = context(deleted={("b", "T"): holes((10, NOW))})
    assert late([Message(3), Message(4, (NOW + 1, NOW + 2))], [End(9, (0, 1))], known) == [(1, 0)]


@pytest.mark.parametrize(("broker", "topic"), [("b", "T"), ("b", ""), ("", "T"), ("", "")])
def test_an_end_of_the_life_before_shows_nothing(broker: str, topic: str) -> None:
    """After a deletion a queue begins at 0, and only ends of its new life count."""
    known = context(deleted={(broker, topic): holes((100, 200))})
    message = Message(3, broker=broker, topic=topic)
    before, after = (End(9, at, broker=broker, topic=topic) for at in ((50, 60), (300, 301)))
    assert late([message], [before], known) == [(0, 0)]
    assert late([message], [before, after], known) == []
    assert late([message], [before]) == []
    other = context(deleted={("c", "T"): holes((100, 200)), ("b", "U"): holes((100, 200))})
    assert late([message], [before], other) == []


def test_of_several_lives_each_has_its_own_first() -> None:
    """One late message of each is told."""
    known = context(deleted={("b", "T"): holes((20_000, 20_001))})
    messages = [Message(3), Message(4), Message(5, (30_000, 30_001)), Message(6, (30_002, 30_003))]
    assert late(messages, [End(1), End(2, (30_000, 30_001))], known) == [(0, 0), (2, 1)]
    assert late(messages, [End(1), End(2, (30_000, 30_001))]) == [(0, 0)]


def test_an_end_that_touches_a_deletion_counts_on_either_side_of_it() -> None:
    """It may have been told in the life before, or in the one after."""
    known = context(deleted={("b", "T"): holes((100, 200), (20_000, 20_100))})
    early, later = Message(3, (300, 301)), Message(3, (20_200, 20_201))
    for at in ((150, 160), (50, 150), (100, 200), (90, 210), (200, 300)):
        assert late([early], [End(9, at)], known) == [], at
    assert late([early], [End(9, (90, 99))], known) == [(0, 0)]
    # Of the message's own life until the next deletion begins, and not of the one after it.
    assert late([early], [End(9, (201, 202))], known) == []
    assert late([later], [End(9, (201, 202))], known) == [(0, 0)]
    assert late([later], [End(9, (19_999, 20_050))], known) == []
    assert late([early], [End(9, (5_000, 20_050))], known) == []
    assert late([early], [End(2, (5_000, 20_050))], known) == [(0, 0)]


def test_what_is_told_instead_is_a_row_of_the_ends() -> None:
    """Also where the best one was counted in the life after a deletion."""
    known = context(deleted={("b", "T"): holes((100, 200))})
    ends = [End(1, (10, 11)), End(2, (150, 160)), End(0, (170, 180))]
    assert late([Message(3, (300, 301))], ends, known) == [(0, 1)]
    # Nothing was told of this life: the first of the queue stands there.
    assert late([Message(3, (300, 301))], [End(5, (12, 13), queue=1), End(1, (10, 11)), End(9, (5, 6))], known) == [
        (0, 1)
    ]


# -- doubts ----------------------------------------------------------------------------------------------------------


def doubted(messages: list[Message], known: Context) -> list[bool]:
    """Of which messages it is not certain."""
    found: list[bool] = are_doubted(gathered(messages, "queue_offset"), known).tolist()
    return found


def test_a_hole_before_the_limit_makes_it_uncertain() -> None:
    """From the beginning on, for the end may have been told in it; only of its own source."""
    for start, end, expected in ((0, 1, True), (DUE, LONG, True), (DUE + 0.000001, LONG, False)):
        sources = {"s": SourceFacts(ns(LONG), None, holes((start, end))), "t": SourceFacts(ns(LONG), None)}
        assert doubted([Message(), Message(source="t")], context(sources=sources)) == [expected, False]
    assert doubted([Message(at=(NOW, NOW + 2))], context(sources={"s": SourceFacts(0, None, holes((DUE + 1, LONG)))}))[
        0
    ]


def test_a_clock_that_can_be_set_makes_it_uncertain() -> None:
    """It may have been set forward; no other source's clock matters."""
    messages = [Message(), Message(source="t")]
    assert doubted(messages, context(settable=frozenset({"s"}))) == [True, False]
    assert doubted(messages, context(settable=frozenset({"u"}))) == [False, False]
    assert doubted(messages, context(settable=frozenset({"s", "t"}))) == [True, True]
    assert doubted([], context(settable=frozenset({"s"}))) == []
