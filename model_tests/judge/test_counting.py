"""How much was judged, by property: one pull at a time, each lacking one thing."""

from __future__ import annotations

from typing import Any

import pytest
from model_tests.judge.one_queue import Row, asked, case_of, context, event, facts, ns, told

from longpoll_judge.evidence.survey import SourceFacts
from longpoll_judge.rules.queue_case import judged_counts

ASKED = {"pulls", "no_lost_wakeup", "answered_by_deadline", "answered_on_stop", "answered_once"}
ASKED |= {"answer_is_right", "held_as_asked"}


def counts(rows: list[Row], *, answers_on_stop: bool = True) -> dict[str, int]:
    """The counts of a queue whose source `s` stopped in order and whose source `t` broke off."""
    sources = {"s": SourceFacts(ns(10**6), ns(10**6)), "t": facts()}
    return dict(judged_counts(case_of(rows, context(sources=sources, answers_on_stop=answers_on_stop))))


def pull(request: str = "r", *, code: int | None = 19, answer: Row | None = None, **fields: Any) -> list[Row]:
    """A pull of which everything is asked, or one that lacks something."""
    source = {"source": fields.get("source", "s")}
    answers = [] if code is None else [told(5, code, request, **source, **(answer or {}))]
    return [asked(0, request, **fields), event("hold", 1, request=request, **source), *answers]


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        (pull(), set()),
        (pull(answer={"offset_next": None}), {"pulls", "no_lost_wakeup", "answered_by_deadline", "answer_is_right"}),
        (pull(expression_type="SQL92"), {"pulls", "no_lost_wakeup"}),
        (pull(may_hold=False), {"answered_by_deadline", "no_lost_wakeup"}),
        (pull(source="t"), {"answered_on_stop"}),
        (pull(code=None), {"pulls", "answered_once", "answer_is_right", "held_as_asked"}),
        (pull(code=1), {"pulls", "answer_is_right"}),
        *((pull(code=code), set()) for code in (0, 20, 21)),
    ],
    ids=["all", "damaged", "SQL92", "may not be held", "broke off", "no answer", "refused", "0", "20", "21"],
)
def test_each_property_counts_what_it_was_asked_of(rows: list[Row], lost: set[str]) -> None:
    """A pull that lacks something is counted where that does not matter."""
    assert counts(rows) == {name: int(name not in lost) for name in ASKED}


def test_pulls_are_counted_together() -> None:
    """A stop is counted where the policy answers what is held, and pulls are there at all."""
    rows = [*pull("a"), *pull("b", code=None), *pull("c", code=16), *pull("d", source="t")]
    found = {"pulls": 2, "no_lost_wakeup": 4, "answered_by_deadline": 4, "answered_on_stop": 3, "answered_once": 3}
    assert counts(rows) == found | {"answer_is_right": 2, "held_as_asked": 3}
    assert "answered_on_stop" not in counts(pull(), answers_on_stop=False)
    alone = counts([event("append", 0, queue_offset=0)])
    assert (alone["pulls"], "answered_on_stop" in alone) == (0, False)
