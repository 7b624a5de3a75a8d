"""What keeps a verdict from being valid though nothing is violated: evidence that is there and cannot be used.

Each history is the smallest on either side of what counts as such; the second judge says the same of
each, or nothing against it. Leaves out evidence that is missing (`test_second_certain`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from model_tests.judge.second.compare import disagreement, judge_it
from model_tests.judge.second.edges import closed, gone, held, pull
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.parts import Told
from model_tests.judge.second.smallest import agreed, shown, strictly, watched

SQL: Final[Told] = {"expression_type": "SQL92", "expression": "a > 1"}
PLAIN = pull(60, "1-1", 0, 19, end=0)


def answered(code: int, *, end: int, offset: int = 0, expression: str = "mine") -> list[Told]:
    """A selective pull, and an answer that may pass over messages of which nobody told the tags."""
    asked, answer = pull(900, "1-2", offset, code, end=end, expression=expression)
    return [asked, answer | ({"offset_min": end} if code == 21 else {})]


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (answered(20, end=1), "unknown"),
        (answered(20, end=2), "unknown"),
        (answered(0, end=1), "unknown"),
        (answered(0, end=1, expression="*"), "valid"),
        ([*pull(800, "1-3", 0, 19, end=0, expression="mine"), *answered(0, end=1, expression="*")], "valid"),
        (answered(19, end=0), "valid"),
        (answered(21, end=5, offset=3), "valid"),
    ],
    ids=[
        "passed one",
        "passed two",
        "found",
        "found by all",
        "found by all, and another chooses",
        "nothing new",
        "illegal",
    ],
)
def test_what_a_selective_answer_passed_over_has_to_be_known(told: list[Told], verdict: str, tmp_path: Path) -> None:
    """One message is enough; where to begin instead passes over nothing, and who takes everything needs no tag."""
    assert agreed(strictly(watched(10, 990, told)), tmp_path) == verdict


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (pull(900, "1-2", 0, 19, end=0, **SQL), "unknown"),
        ([*pull(900, "1-2", 0, 19, end=0, **SQL)[:1], *closed(950)], "unknown"),
        ([pull(900, "1-2", 0, 19, end=0, **SQL)[0], pull(900, "1-2", 0, 23, end=0)[1]], "valid"),
        (pull(900, "1-2", 0, 19, end=0), "valid"),
    ],
    ids=["answered", "not answered", "refused", "by tags"],
)
def test_a_subscription_that_tags_cannot_decide_is_told(told: list[Told], verdict: str, tmp_path: Path) -> None:
    """Whether the pull was answered or not; who refused it had not to decide it."""
    refusal = [
        one | {"offset_next": -1, "offset_min": -1, "offset_max": -1} if one.get("code") == 23 else one for one in told
    ]
    one = strictly(watched(10, 990, PLAIN, refusal))
    found = judge_it(one, tmp_path)
    assert (found.verdict, disagreement(found, weigh(one.meta, one.events))) == (verdict, "")


def test_requests_without_identifiers_are_not_one_that_came_twice(tmp_path: Path) -> None:
    """Two deletions of which nobody told who asked for them."""
    assert agreed(strictly(watched(10, 990, PLAIN, gone(100), gone(200))), tmp_path) == "valid"


@pytest.mark.parametrize("event", ["hold", "take", "keep", "expire", "run", "stop"])
def test_a_step_of_a_pull_that_nobody_saw_is_told_in_a_queue_of_its_own(event: str, tmp_path: Path) -> None:
    """Though nothing else happened there; from a source that tells of requests."""
    other = [one | {"queue": 1, "event": event} for one in held(100, "1-7")]
    asked, alone = watched(10, 990, PLAIN), watched(10, 990, other)
    assert agreed(strictly(watched(10, 990, PLAIN, other)), tmp_path / "one") == "unknown"
    assert agreed(strictly(asked, alone), tmp_path / "two") == "valid"


def test_an_answer_in_another_queue_than_its_request_is_told_once(tmp_path: Path) -> None:
    """It is no answer to the pull, which has none; and it is about nothing of its own queue."""
    asked, answer = pull(500, "1-2", 0, 19, end=0)
    told = watched(10, 990, PLAIN, [asked, answer | {"queue": 1}], shown(600, 1)[:1])
    assert agreed(strictly(told), tmp_path) == "unknown"
