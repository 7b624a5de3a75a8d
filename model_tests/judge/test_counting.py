"""How much was judged, for each property; columns by hand, each pull differing from the others in one thing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from attrs import frozen
from model_tests.judge.case_of_parts import CaseOfParts

from longpoll_judge.rules.counting import judged_counts


@frozen
class One:
    """A pull and its answer; by default one of which everything is asked."""

    code: int | None = 0
    """Of the answer; None of a pull without one."""
    is_sound: bool = True
    is_decidable: bool = True
    was_held: bool = True
    may_hold: bool = True
    source: int = 0


STOPPED = (True, False)
"""By source: whether it was stopped in order."""


def counts(*ones: One, answers_on_stop: bool = True) -> dict[str, int]:
    """What is told of these pulls."""

    def flags(name: str) -> Any:
        return np.array([getattr(one, name) for one in ones], dtype=np.bool_)

    class Pulls(SimpleNamespace):
        def __len__(self) -> int:
            return len(ones)

    codes = np.array([21 if one.code is None else one.code for one in ones], dtype=np.int64)
    is_answered = np.array([one.code is not None for one in ones], dtype=np.bool_)
    case: Any = CaseOfParts(
        pulls=Pulls(
            is_answered=is_answered,
            # Of a pull without an answer -1, which is the last event: its code must not be looked at.
            answer_row=np.where(is_answered, np.arange(len(ones)), -1),
            was_held=flags("was_held"),
            may_hold=flags("may_hold"),
            source=np.array([one.source for one in ones], dtype=np.int64),
            source_facts=[SimpleNamespace(stopped_ns=1 if stopped else None) for stopped in STOPPED],
        ),
        events=SimpleNamespace(
            integers=lambda name, rows: {"code": codes}[name][rows],
            rows=lambda name: {"answer_sent": np.flatnonzero(is_answered)}[name],
        ),
        context=SimpleNamespace(answers_on_stop=answers_on_stop),
        is_sound=flags("is_sound"),
        is_decidable=flags("is_decidable"),
    )
    return dict(judged_counts(case))


def test_each_property_counts_what_it_was_asked_of() -> None:
    """A pull that lacks something is counted where that does not matter."""
    every = counts(One())
    assert every == {
        "pulls": 1,
        "no_lost_wakeup": 1,
        "answered_by_deadline": 1,
        "answered_on_stop": 1,
        "answered_once": 1,
        "answer_is_right": 1,
        "held_as_asked": 1,
    }

    def lost(one: One) -> set[str]:
        """Which properties are not asked of it."""
        return {name for name, count in counts(one).items() if count != 1}

    assert lost(One(is_sound=False)) == {"pulls", "no_lost_wakeup", "answered_by_deadline", "answer_is_right"}
    assert lost(One(is_decidable=False)) == {"pulls", "no_lost_wakeup"}
    assert lost(One(was_held=False)) == {"no_lost_wakeup"}
    assert lost(One(may_hold=False)) == {"answered_by_deadline"}
    assert lost(One(source=1)) == {"answered_on_stop"}
    assert lost(One(code=None)) == {"pulls", "answered_once", "answer_is_right", "held_as_asked"}
    assert lost(One(code=1)) == {"pulls", "answer_is_right"}
    assert lost(One(code=-1)) == {"pulls", "answer_is_right"}
    assert [lost(One(code=code)) for code in (19, 20, 21)] == [set()] * 3


def test_pulls_are_counted_together() -> None:
    """Each for itself."""
    found = counts(One(), One(code=None), One(source=1, was_held=False), One(code=16), One(code=21))
    assert found == {
        "pulls": 3,
        "no_lost_wakeup": 4,
        "answered_by_deadline": 5,
        "answered_on_stop": 4,
        "answered_once": 4,
        "answer_is_right": 3,
        "held_as_asked": 4,
    }


def test_a_stop_is_counted_where_it_is_asked_for() -> None:
    """That is, where the rules say that a stop answers what is held, and pulls are there at all."""
    assert "answered_on_stop" not in counts(One(), answers_on_stop=False)
    assert counts(One(), One(), answers_on_stop=True)["answered_on_stop"] == 2
    assert "answered_on_stop" not in counts()
    assert counts()["pulls"] == 0
