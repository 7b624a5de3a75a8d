"""The answers of a queue as columns: their bodies and what the log shows about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from model_tests.judge.case_of_parts import CaseOfParts

from longpoll_judge.columns.expression import parse
from longpoll_judge.columns.lookup import Ascending
from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.rules.queue_case import (
    Answers,
    first_visible_before,
    matching_counts,
    pull_results,
    takes_everything,
    wrong_tags,
)
from longpoll_protocol.properties import java_hash

ROWS: Final = {
    "code": [0, 19, 1, 0, 21, 0],
    "offset_next": [3, 7, 0, 9, 4, 5],
    "offset_min": [1, 1, 0, 1, 1, 1],
    "offset_max": [8, 7, 0, 9, 9, 8],
}
"""The answers' fields: a body of two, a miss, a refusal, one without its fields, an illegal offset, a body of one."""
BODIES: Final = {0: [1, 2], 5: [4]}
VALUES: Final = np.array([99, 1, 2, 98, 4], dtype=np.int64)
"""What the bodies lie in: the first at place 1, the other at 4."""


def array(*values: Any) -> Any:
    """A column."""
    return np.array(values)


def bodies(rows: Any) -> Any:
    """Where each row's body begins, how long it is, and the values."""
    first = [1 if row == 0 else 4 for row in rows.tolist()]
    count = [len(BODIES.get(row, [])) for row in rows.tolist()]
    return np.array(first, dtype=np.int64), np.array(count, dtype=np.int64), VALUES


def case_of(expressions: Any = (None,), tags: tuple[str, ...] = (), answer_row: Any = (0, 1, 2, 3, -1, 4, 5)) -> Any:
    """A queue with the answers above and a pull that has none; `tags` are those of its log, from offset 0 on."""
    count = len(answer_row)
    rows = np.array(answer_row, dtype=np.int64)
    known = [None if each is None else parse("TAG", each) for each in expressions]
    pulls = SimpleNamespace(
        answer_row=rows,
        is_answered=rows >= 0,
        offset=10 * np.arange(count),
        received_after_ns=100 * np.arange(count),
        answered_before_ns=1000 * np.arange(count),
        expression=np.arange(count) % len(known),
        expressions=known,
    )
    offsets = np.arange(len(tags))
    return CaseOfParts(
        pulls=pulls,
        events=SimpleNamespace(integers=lambda name, at: np.array(ROWS[name])[at], bodies=bodies),
        is_sound=rows != 3,
        log=SimpleNamespace(
            offsets=offsets, tag_codes=np.array([java_hash(tag) for tag in tags], dtype=np.int64), slack_ns=7,
            ranks=Ascending(offsets),
        ),
    )  # fmt: skip


def test_answers_are_those_that_tell_of_a_read() -> None:
    answers = pull_results(case_of())
    assert answers.pull.tolist() == [0, 1, 5, 6]
    assert answers.code.tolist() == [0, 19, 21, 0]
    assert (answers.next.tolist(), answers.min.tolist(), answers.max.tolist()) == ([3, 7, 4, 5], [1] * 4, [8, 7, 9, 8])
    assert answers.asked.tolist() == [0, 10, 50, 60]
    assert answers.received_after_ns.tolist() == [0, 100, 500, 600]
    assert answers.answered_before_ns.tolist() == [0, 1000, 5000, 6000]


def test_the_bodies_lie_one_behind_the_other() -> None:
    """With the answer that each place belongs to, and the last offset of each; -1 of an empty one."""
    answers = pull_results(case_of())
    assert answers.body.tolist() == [1, 2, 4]
    assert answers.owner.tolist() == [0, 0, 3]
    assert (answers.body_first.tolist(), answers.body_count.tolist()) == ([0, 2, 2, 2], [2, 0, 0, 1])
    assert answers.last.tolist() == [2, -1, -1, 4]
    for flags, found in (
        ([True, True, False], [True, False, False, False]),
        ([False, False, True], [False, False, False, True]),
    ):
        assert answers.any_in_body(np.array(flags)).tolist() == found


def test_answers_without_bodies() -> None:
    """Of a queue in which nothing is found."""
    answers = pull_results(case_of(answer_row=(1, 4)))
    assert (answers.body.tolist(), answers.last.tolist()) == ([], [-1, -1])
    assert answers.any_in_body(np.zeros(0, dtype=np.bool_)).tolist() == [False, False]
    assert wrong_tags(answers).tolist() == []


def answers_of(case: Any, pull: Any, body: Any, owner: Any) -> Answers:
    """Answers to these pulls with these bodies."""
    none = np.zeros(len(pull), dtype=np.int64)
    return Answers(case, np.array(pull), none, none, none, none, none, none, np.array(body), np.array(owner))


def test_messages_that_an_expression_does_not_take_are_wrong() -> None:
    """By the tags of the log; what SQL92 asks for is not decided, nor what the log does not have."""
    case = case_of(("*", "a", None), ("a", "b"))
    answers = answers_of(case, [0, 1, 2], [0, 1, 0, 1, 1], [0, 0, 1, 1, 2])
    assert wrong_tags(answers).tolist() == [False, False, False, True, False]
    assert takes_everything(answers).tolist() == [True, False, False]
    beyond = answers_of(case_of(("a",), ("b", "a")), [0], [9], [0])
    assert wrong_tags(beyond).tolist() == [False]
    unknown = answers_of(case_of(("a",)), [0], [9], [0])
    assert wrong_tags(unknown).tolist() == [False]


def test_how_many_messages_an_answer_could_have_had() -> None:
    """By its own expression; 0 where that decides nothing."""
    case = case_of(("*", "a", None))
    case.matchings = [
        SimpleNamespace(count=lambda first, end: (end - first, end - first + 1)),
        SimpleNamespace(count=lambda first, end: (first, end)),
        None,
    ]
    least, most = matching_counts(answers_of(case, [0, 1, 2], [], []), array(1, 2, 3), array(5, 6, 7))
    assert (least.tolist(), most.tolist()) == ([4, 2, 0], [5, 6, 0])


def test_a_message_is_visible_for_certain_a_slack_after_it_may_be() -> None:
    case = case_of()
    case.first_visible = array(0, 0, 0), array(5, 6, NEVER)
    assert first_visible_before(answers_of(case, [1, 0, 2], [], [])).tolist() == [13, 12, NEVER]
