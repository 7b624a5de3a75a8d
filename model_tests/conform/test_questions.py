"""Questions and recordings belong to each other: each was asked of both versions, as it stands here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from model_tests.conform.questions import EXPRESSIONS, FIRST, questions

from longpoll_conform.clauses import BY_VECTOR
from longpoll_conform.vectors import RECORDED, recorded

ASKED = ("id", "title", "profile", "serialize", "request")
ANSWERS = {"response", "held_ms", "sent_ms"}


def without_answers(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is done, less what came of it."""
    return [{name: value for name, value in step.items() if name not in ANSWERS} for step in steps]


@pytest.mark.parametrize("version", RECORDED)
def test_each_question_was_asked(version: str) -> None:
    """And nothing from that number on that is no question."""
    cases = {vector.id: vector.case for vector in recorded(version) if int(vector.id.split("-")[1]) >= FIRST}
    asked = {question["id"]: question for question in questions()}

    assert list(cases) == list(asked)
    for name, question in asked.items():
        case = cases[name]
        assert {part: case[part] for part in ASKED} == {part: json.loads(json.dumps(question[part])) for part in ASKED}
        for part in ("setup", "after"):
            assert without_answers(case.get(part, [])) == json.loads(json.dumps(question.get(part, [])))
        assert case.get("normalised", []) == question.get("normalised", [])


def test_a_changed_question_is_seen() -> None:
    """A recording of another expression is not taken for an answer to this one."""
    case = next(vector.case for vector in recorded("5.5.0") if vector.id == "sql-512")
    question = next(question for question in questions() if question["id"] == "sql-513")

    assert without_answers(case["setup"]) != question["setup"]


def test_there_are_enough() -> None:
    """Over five hundred recorded conversations, and in each family of expressions one that lets some through."""
    assert sum(len(recorded(version)) for version in RECORDED) >= 500
    for title, expressions in EXPRESSIONS.items():
        codes = {
            vector.case["response"]["code"] for vector in recorded("5.5.0") if vector.title.startswith(f"{title}: ")
        }
        assert len(expressions) >= 7
        assert codes & {0, 20}
    assert {(vector.case["response"] or {}).get("code") for vector in recorded("4.9.7")} >= {25, 27, 28}


def test_no_message_is_let_through_by_every_expression_of_a_clause() -> None:
    """So that a filter that lets everything through, or nothing, fails each clause of expressions but the refused."""
    for clause in {
        BY_VECTOR[vector.id] for vector in recorded("4.9.7") if vector.profile == "sql" and vector.id > "sql-512"
    }:
        found = [vector.case["response"] for vector in recorded("4.9.7") if vector.id in clause.vectors]
        if clause.id == "PULL-SQL-12":
            assert {answer["code"] for answer in found} == {20, 27}
            continue
        offsets = [frozenset(record["queueOffset"] for record in answer["body"].get("records", ())) for answer in found]
        assert len(set(offsets)) >= 3, clause.id
