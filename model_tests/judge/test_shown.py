"""Messages that were not shown in time: queues, lives and moments in ms, on either side of each limit."""

from __future__ import annotations

from typing import Any, Final

import pytest
from model_tests.judge.one_queue import Row, context, event, facts, holes
from model_tests.support.judge.histories import table_of

from longpoll_judge.contract.clause import SHOWN_MS
from longpoll_judge.evidence.survey import Context
from longpoll_judge.rules.cross_queue import Gathered, Gathering, rows_where
from longpoll_judge.rules.logs import are_doubted, not_shown

NOW: Final = 1_000
"""When messages are told by default: between this and the next millisecond."""
DUE: Final = NOW + 1 + SHOWN_MS
"""When they must be shown."""
LONG: Final = 100_000
PLAIN: Final = context()
Moment = tuple[float, float]


def message(queue_offset: int = 0, at: Moment = (NOW, NOW + 1), **fields: Any) -> Row:
    """A message was acknowledged."""
    return event("message_acknowledged", at, queue_offset=queue_offset, **fields)


def end(visible_end: int, at: Moment = (NOW, NOW + 1), **fields: Any) -> Row:
    """A reported visible end."""
    return event("make_visible", at, visible_end=visible_end, **fields)


def gathered(rows: list[Row], column: str) -> Gathered:
    """Rows as the judge gathers them."""
    found = Gathering((column,))
    table = table_of(rows)
    found.add(table, 0, (rows_where(table, "make_visible") | rows_where(table, "message_acknowledged")).nonzero()[0])
    return found.all()


def late(messages: list[Row], ends: list[Row], known: Context = PLAIN) -> list[tuple[int, int]]:
    """The late messages, each with the end that was reported instead, by their rows."""
    found = not_shown(gathered(messages, "queue_offset"), gathered(ends, "visible_end"), known)
    return list(zip(*(rows.tolist() for rows in found), strict=True))


# -- in time ---------------------------------------------------------------------------------------------------------


def test_an_end_behind_the_message_shows_it() -> None:
    """Told by the moment when it must be; just before, with, or long before it."""
    for moment in (0, NOW, DUE):
        assert late([message(3)], [end(4, (moment, moment + 1))]) == []
        assert late([message(3)], [end(9, (moment, moment + 1))]) == []


def test_an_end_that_stops_before_the_message_does_not() -> None:
    """The offset of the message itself is the end of those before it."""
    assert late([message(3)], [end(3)]) == [(0, 0)]
    assert late([message(0)], [end(0)]) == [(0, 0)]


def test_the_limit_is_counted_from_when_the_message_was_there_for_certain() -> None:
    """An end that can only have been told afterwards comes too late."""
    shown = end(4, (DUE, DUE + 50))
    assert late([message(3)], [shown]) == []
    just_late = end(4, (DUE + 0.000001, DUE + 50))
    assert late([message(3)], [just_late]) == [(0, 0)]
    assert late([message(3, (0, NOW + 1))], [shown]) == []
    assert late([message(3, (NOW, NOW + 0.9))], [shown]) == [(0, 0)]


def test_the_highest_end_counts_that_was_told_by_then() -> None:
    ends = [end(1), end(3), end(2), end(9, (DUE + 1, DUE + 2))]
    assert late([message(3)], ends) == [(0, 1)]
    assert late([message(2)], ends) == []
    assert late([message(3)], [end(9, (DUE + 5, DUE + 6)), end(8, (DUE + 1, DUE + 2))]) == [(0, 0)]


# -- which are asked -------------------------------------------------------------------------------------------------


def test_a_queue_of_which_no_end_is_told_is_not_asked() -> None:
    """Another queue's ends, another source's, broker's or topic's are none of it."""
    assert late([message(3)], []) == []
    assert late([], [end(0)]) == []
    others = [end(0, queue=1), end(0, source="t"), end(0, broker="c"), end(0, topic="U")]
    assert late([message(3)], others) == []
    assert late([message(3), message(3, queue=1)], [*others, end(1)]) == [(0, 4), (1, 0)]


def test_a_source_that_ends_before_the_limit_is_not_asked() -> None:
    """It has to go on for longer."""
    for last, expected in ((DUE, []), (DUE + 0.000001, [(0, 0)])):
        known = context(sources={"s": facts(last), "t": facts(LONG)})
        assert late([message(3)], [end(1)], known) == expected
        assert late([message(3, source="t")], [end(1, source="t")], known) == [(0, 0)]
    assert late([message(3)], [end(1)], context(sources={})) == []


def test_a_law_is_not_asked() -> None:
    known = context(lawful=frozenset({"s"}))
    messages, ends = [message(3), message(3, source="t")], [end(1), end(1, source="t")]
    assert late(messages, ends, known) == [(1, 1)]
    assert late(messages, ends) == [(0, 0), (1, 1)]


# -- which are told --------------------------------------------------------------------------------------------------


def test_the_first_late_message_of_a_queue_is_told() -> None:
    """By its moment, and by its row where moments are equal; those behind it are late for the same reason."""
    assert late([message(4, (NOW + 9, NOW + 10)), message(3), message(5), message(1)], [end(2)]) == [(1, 0)]
    assert late([message(5), message(4)], [end(2)]) == [(0, 0)]


def test_each_queue_has_its_own() -> None:
    """In the order of the moments."""
    messages = [message(3, (NOW + 9, NOW + 10)), message(3, queue=1), message(4), message(5, queue=1)]
    assert late(messages, [end(2, queue=1), end(1)]) == [(1, 0), (2, 1)]
    assert late(messages[:2], [end(2, queue=1), end(1)]) == [(1, 0), (0, 1)]


# -- deletions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["T", ""])
def test_a_message_that_its_topic_s_deletion_may_have_taken_is_not_asked(topic: str) -> None:
    for start, stop in ((0, NOW), (NOW + 1, NOW + 2), (DUE, LONG), (0, LONG)):
        assert late([message(3)], [end(1)], context(deleted={("b", topic): holes((start, stop))})) == []
    for later in (DUE + 1, DUE + 0.000001):
        assert late([message(3)], [end(1)], context(deleted={("b", topic): holes((later, LONG))})) == [(0, 0)]
    for name in (("c", topic), ("b", "U")):
        assert late([message(3)], [end(1)], context(deleted={name: holes((0, LONG))})) == [(0, 0)]


def test_other_changes_of_a_queue_excuse_too() -> None:
    assert late([message(3)], [end(1)], context(begun_anew={("b", "T", 0): holes((DUE, DUE))})) == []
    assert late([message(3)], [end(1)], context(begun_anew={("b", "T", 1): holes((DUE, DUE))})) == [(0, 0)]
    assert late([message(3)], [end(1)], context(life_holes={"b": holes((DUE, DUE))})) == []
    assert late([message(3)], [end(1)], context(life_holes={"c": holes((DUE, DUE))})) == [(0, 0)]


def test_only_its_own_message_is_excused() -> None:
    known = context(deleted={("b", "T"): holes((10, NOW))})
    assert late([message(3), message(4, (NOW + 1, NOW + 2))], [end(9, (0, 1))], known) == [(1, 0)]


@pytest.mark.parametrize(("broker", "topic"), [("b", "T"), ("b", ""), ("", "T"), ("", "")])
def test_an_end_of_the_life_before_shows_nothing(broker: str, topic: str) -> None:
    """After a deletion a queue begins at 0, and only ends of its new life count."""
    known = context(deleted={(broker, topic): holes((100, 200))})
    late_one = message(3, broker=broker, topic=topic)
    before, after = (end(9, at, broker=broker, topic=topic) for at in ((50, 60), (300, 301)))
    assert late([late_one], [before], known) == [(0, 0)]
    assert late([late_one], [before, after], known) == []
    assert late([late_one], [before]) == []
    other = context(deleted={("c", "T"): holes((100, 200)), ("b", "U"): holes((100, 200))})
    assert late([late_one], [before], other) == []


def test_of_several_lives_each_has_its_own_first() -> None:
    known = context(deleted={("b", "T"): holes((20_000, 20_001))})
    messages = [message(3), message(4), message(5, (30_000, 30_001)), message(6, (30_002, 30_003))]
    assert late(messages, [end(1), end(2, (30_000, 30_001))], known) == [(0, 0), (2, 1)]
    assert late(messages, [end(1), end(2, (30_000, 30_001))]) == [(0, 0)]


def test_an_end_that_touches_a_deletion_counts_on_either_side_of_it() -> None:
    """It may have been told in the life before, or in the one after."""
    known = context(deleted={("b", "T"): holes((100, 200), (20_000, 20_100))})
    early, later = message(3, (300, 301)), message(3, (20_200, 20_201))
    for at in ((150, 160), (50, 150), (100, 200), (90, 210), (200, 300)):
        assert late([early], [end(9, at)], known) == [], at
    assert late([early], [end(9, (90, 99))], known) == [(0, 0)]
    # Of the message's own life until the next deletion begins, and not of the one after it.
    assert late([early], [end(9, (201, 202))], known) == []
    assert late([later], [end(9, (201, 202))], known) == [(0, 0)]
    assert late([later], [end(9, (19_999, 20_050))], known) == []
    assert late([early], [end(9, (5_000, 20_050))], known) == []
    assert late([early], [end(2, (5_000, 20_050))], known) == [(0, 0)]


def test_what_is_told_instead_is_a_row_of_the_ends() -> None:
    """Also where the best one was counted in the life after a deletion."""
    known = context(deleted={("b", "T"): holes((100, 200))})
    ends = [end(1, (10, 11)), end(2, (150, 160)), end(0, (170, 180))]
    assert late([message(3, (300, 301))], ends, known) == [(0, 1)]
    # Nothing was told of this life: the first of the queue stands there.
    assert late([message(3, (300, 301))], [end(5, (12, 13), queue=1), end(1, (10, 11)), end(9, (5, 6))], known) == [
        (0, 1)
    ]


# -- doubts ----------------------------------------------------------------------------------------------------------


def doubted(messages: list[Row], known: Context) -> list[bool]:
    """Of which messages it is not certain."""
    found: list[bool] = are_doubted(gathered(messages, "queue_offset"), known).tolist()
    return found


def test_a_hole_before_the_limit_makes_it_uncertain() -> None:
    for start, stop, expected in ((0, 1, True), (DUE, LONG, True), (DUE + 0.000001, LONG, False)):
        sources = {"s": facts(LONG, holes=holes((start, stop))), "t": facts(LONG)}
        assert doubted([message(), message(source="t")], context(sources=sources)) == [expected, False]
    assert doubted([message(at=(NOW, NOW + 2))], context(sources={"s": facts(0, holes=holes((DUE + 1, LONG)))}))[0]


def test_a_clock_that_can_be_set_makes_it_uncertain() -> None:
    """It may have been set forward; no other source's clock matters."""
    messages = [message(), message(source="t")]
    assert doubted(messages, context(settable=frozenset({"s"}))) == [True, False]
    assert doubted(messages, context(settable=frozenset({"u"}))) == [False, False]
    assert doubted(messages, context(settable=frozenset({"s", "t"}))) == [True, True]
    assert doubted([], context(settable=frozenset({"s"}))) == []
