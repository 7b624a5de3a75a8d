"""A queue's log: offsets given twice, fallen, left out, and visible ends past it; moments are numbers of ms."""

from __future__ import annotations

from typing import Any, Final

import pytest
from model_tests.judge.one_queue import Row, context, event, holes
from model_tests.support.judge.histories import table_of

from longpoll_judge.columns.batch import make_batch
from longpoll_judge.rules.logs import MISSING_MAX, judge_log
from longpoll_judge.rules.queue_case import Explanation, Suspects

Moment = float | tuple[float, float]
DELETED: Final[dict[str, Any]] = {"deleted": {("b", "T"): holes((8, 9))}}


def appended(offset: int, at: Moment, **fields: Any) -> Row:
    """A message got an offset."""
    return event("append", at, **({"queue_offset": offset} | fields))


def kept(offset: int, at: Moment) -> Row:
    """It was acknowledged."""
    return event("message_acknowledged", at, queue_offset=offset)


def shown(end: int, at: Moment, **fields: Any) -> Row:
    """Messages became visible."""
    return event("make_visible", at, **({"visible_end": end} | fields))


def suspects_of(*told: Row, first: int | None = None, **known: Any) -> list[Suspects]:
    """The suspects, without empty ones."""
    queues = list(make_batch(table_of(list(told))).queues()) if told else []
    found = [judge_log(events, context(**known), first) for _name, events in queues]
    return [each for several in found for each in several if len(each.members)]


def explained(*told: Row, **options: Any) -> list[Explanation]:
    """Every finding's explanation."""
    return [each.explain(member) for each in suspects_of(*told, **options) for member in each.members.tolist()]


def clauses(*told: Row, **options: Any) -> list[str]:
    """The clause of every finding, with a `?` after one that is not certain."""
    return [
        each.explain(member).clause + "?" * (each.verdict == "unknown")
        for each in suspects_of(*told, **options)
        for member in each.members.tolist()
    ]


TWICE, ORDERED, GAPLESS = "log.append.once", "log.append.ordered", "log.append.gapless"
MONOTONE, PAST = "log.visible.monotone", "log.visible.appended"


def test_a_log_as_it_should_be_has_no_findings() -> None:
    """Each offset once, one after the other, and visible after it was appended."""
    told = (
        appended(0, 1),
        kept(0, 2),
        shown(1, 3),
        appended(1, 4),
        appended(2, 5),
        shown(3, 6),
        kept(1, 7),
        kept(2, 8),
    )
    assert clauses(*told) == []
    assert clauses() == []


# -- twice -----------------------------------------------------------------------------------------------------------


def test_an_offset_is_given_once() -> None:
    """Each further message is found with the one before it; that it is, hangs on no moment."""
    (found,) = suspects_of(appended(0, (1, 9)), appended(1, (2, 9)), appended(1, (3, 9)), appended(1, (4, 9)))
    assert (found.members.tolist(), found.rows.tolist(), found.is_timeless) == ([2, 3], [2, 3], True)
    assert [found.explain(member).log_rows for member in (2, 3)] == [[1, 2], [2, 3]]
    why = found.explain(2)
    assert (why.clause, why.why) == (TWICE, "two messages were appended with queue offset 1")
    assert why.messages == [1]
    (why,) = explained(kept(4, 1), kept(4, 2))
    assert (why.clause, why.why) == (
        "log.acknowledged.once", "two messages were acknowledged with queue offset 4",
    )  # fmt: skip


def test_each_source_is_judged_by_itself() -> None:
    """And none that declares a law, which may take a queue's end back."""
    assert clauses(appended(1, 1), appended(1, 2, source="t")) == []
    assert clauses(appended(1, 1, source="t"), appended(1, 2), appended(1, 3)) == [TWICE]
    assert clauses(appended(1, 1), appended(1, 2), lawful=frozenset({"s"})) == []


def test_nothing_is_concluded_from_what_lacks_its_place() -> None:
    """An offset, a queue, or a topic."""
    for changes in ({"queue_offset": -1}, {"queue": -1}, {"topic": ""}):
        assert clauses(*(event("append", at, **({"queue_offset": 1} | changes)) for at in (1, 2))) == []
    assert clauses(shown(-1, 1), shown(-1, 2)) == []
    assert clauses(appended(0, 1), appended(0, 2)) == [TWICE]


def test_each_life_of_a_queue_is_judged_by_itself() -> None:
    told = [appended(1, 1), appended(1, 2), appended(1, 2), appended(1, 11), appended(1, 12)]
    (found,) = suspects_of(*told, deleted={("b", "T"): holes((2, 2), (10, 10))})
    assert (found.rows.tolist(), found.is_timeless) == ([4], False)


def test_what_was_appended_around_a_deletion_is_not_missed() -> None:
    """It may be of the life before it or behind it: neither lacks it, but what else is missing was left out."""
    assert clauses(appended(3, 4), appended(4, (7, 8)), appended(5, 7), **DELETED) == []
    (why,) = explained(appended(3, 4), appended(4, (7, 8)), appended(6, 7), **DELETED)
    assert (why.clause, why.messages) == (GAPLESS, [5])
    assert clauses(appended(3, 4), appended(4, (7, 8), source="t"), appended(5, 7), **DELETED) == [GAPLESS]
    assert clauses(appended(3, 4), appended(4, (6, 8)), shown(5, 7), **DELETED) == []
    assert clauses(appended(3, 4), appended(4, (6, 8)), shown(6, 7), **DELETED) == [PAST]
    assert clauses(appended(3, 4), appended(4, (8, 9)), appended(4, (7, 8)), shown(5, (6, 7)), **DELETED) == []
    (why,) = explained(appended(3, 4), appended(4, (8, 9)), shown(5, (6, 7)), **DELETED)
    assert why.why == "5 was made the visible end before message 4 was appended, in this life of the queue or another"
    other = [told | {"source": "t"} for told in (appended(3, 4), appended(4, (6, 8)), shown(5, 7))]
    assert clauses(appended(0, 1), *other, **DELETED) == []
    assert clauses(appended(3, 4), appended(4, (8, 9)), appended(4, (8, 9)), **DELETED) == []


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ((appended(1, (1, 4)), appended(0, 5)), [ORDERED]),
        ((appended(1, (1, 5)), appended(0, 5)), []),
        ((appended(0, 1), appended(1, 2)), []),
        ((shown(2, (1, 4)), shown(1, 5)), [MONOTONE]),
        ((shown(2, (1, 5)), shown(1, 5)), []),
        ((shown(2, 1), shown(2, 2)), []),
        ((shown(2, 1), shown(0, 2)), [MONOTONE]),
    ],
)
def test_nothing_falls_below_what_was_certainly_there(told: tuple[Row, ...], found: list[str]) -> None:
    """Offsets of appends, and visible ends."""
    assert clauses(*told, first=100) == found


def test_a_fall_is_told_with_the_highest_before_it() -> None:
    """And not with one that came later, or may have."""
    told = (shown(5, 1), shown(7, 2), shown(6, (3, 9)), shown(9, 8))
    (why,) = explained(*told, first=100)
    assert (why.why, why.log_rows, why.messages) == ("6 is the visible end, after it was 7", [1, 2], [])
    found = [each for each in explained(appended(0, 1), appended(1, 2), appended(0, 3)) if each.clause == ORDERED]
    assert [(each.why, each.log_rows, each.messages) for each in found] == [
        ("0 was appended after offset 1", [1, 2], [0, 1])
    ]


# -- left out --------------------------------------------------------------------------------------------------------


def test_no_offset_is_left_out() -> None:
    """Between two that were appended, in whatever order; what is missing is named, up to ten."""
    assert clauses(appended(5, 1), appended(6, 2)) == []
    (why,) = explained(appended(5, 1), appended(8, 2))
    assert (why.clause, why.log_rows, why.messages) == (GAPLESS, [0, 1], [6, 7])
    assert why.why == "no message was appended between the queue offsets 5 and 8"
    (why,) = explained(appended(5, 1), appended(7, 2), appended(8, 3))
    assert (why.log_rows, why.messages) == ([0, 1], [6])
    (why,) = explained(appended(0, 1), appended(100, 2))
    assert why.messages == list(range(1, MISSING_MAX + 1))


@pytest.mark.parametrize(
    ("hole", "is_certain"), [((0, 1), False), ((3, 4), False), ((8, 9), False), ((9, 9), True), ((0, 0), True)]
)
def test_what_is_left_out_may_have_been_lost(hole: tuple[int, int], is_certain: bool) -> None:
    """Where the record has a hole between the two."""
    assert clauses(appended(0, (1, 2)), appended(2, (5, 8)), broker_holes={"b": holes(hole)}) == [
        GAPLESS + "?" * (not is_certain)
    ]


def test_a_hole_somewhere_else_does_not_matter() -> None:
    """Between two that follow upon each other."""
    told = (appended(0, 1), appended(1, 10), appended(3, 20))
    assert clauses(*told, broker_holes={"b": holes((4, 5))}) == [GAPLESS]
    assert clauses(*told, broker_holes={"b": holes((14, 15))}) == [GAPLESS + "?"]
    told = (appended(0, 1), appended(1, (5, 20)), appended(3, (6, 8)))
    assert clauses(*told, broker_holes={"b": holes((15, 15))}) == [GAPLESS + "?"]


# -- visible ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ((appended(0, 1), shown(2, 5)), [PAST]),
        ((appended(0, 1), shown(1, 5)), []),
        ((appended(3, 1), shown(3, 5)), []),
        ((appended(3, 1), shown(4, 5)), []),
        ((appended(3, 6), shown(4, 5)), [PAST]),
        ((appended(3, 5), shown(4, (1, 5))), []),
        ((appended(3, (6, 9)), shown(4, (1, 5))), [PAST]),
        ((shown(4, 5),), []),
        ((appended(0, 1), appended(2, 2), shown(3, 5)), [GAPLESS]),
        ((appended(0, 1), appended(2, 2), shown(2, 5)), [GAPLESS, PAST]),
        ((appended(0, 1, source="t"), shown(5, 5)), []),
        ((appended(1, 1), appended(1, 2), shown(3, 5)), [TWICE, PAST]),
    ],
)
def test_what_is_visible_was_appended_before(told: tuple[Row, ...], found: list[str]) -> None:
    """By the same source, from its first append on."""
    assert clauses(*told) == found


def test_the_first_offset_of_the_whole_log_may_lie_elsewhere() -> None:
    """Where the events are not all of the log."""
    assert clauses(appended(3, 1), shown(3, 5), first=2) == [PAST]
    assert clauses(appended(3, 1), shown(3, 5), first=3) == []
    assert clauses(shown(3, 5), first=2) == [PAST]


def test_a_visible_end_past_the_log_is_told_with_what_shows_it() -> None:
    """The first append there is, the end, and the append that came too late."""
    (why,) = explained(appended(1, 1), appended(0, (1, 4)), shown(5, 5))
    assert (why.why, why.log_rows) == ("5 was made the visible end, and message 4 was never appended", [1, 2])
    assert (why.messages, why.roots, why.clause) == ([4], [2], PAST)
    (why,) = explained(appended(3, 1), appended(4, 2), shown(6, 5), appended(5, 7))
    assert (why.why, why.log_rows) == ("6 was made the visible end before message 5 was appended", [0, 2, 3])
    (why,) = explained(shown(4, 5), appended(3, 6))
    assert (why.why, why.log_rows) == ("4 was made the visible end before message 3 was appended", [1, 0])
    (why,) = explained(shown(3, 5), first=2)
    assert why.log_rows == [0]


@pytest.mark.parametrize(("hole", "is_certain"), [((0, 1), False), ((5, 9), False), ((6, 9), True), ((0, 0), True)])
def test_the_append_may_have_been_lost(hole: tuple[int, int], is_certain: bool) -> None:
    """Where the record has a hole since the first append."""
    assert clauses(appended(0, 1), shown(2, (4, 5)), broker_holes={"b": holes(hole)}) == [PAST + "?" * (not is_certain)]
