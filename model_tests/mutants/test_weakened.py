"""For each part of a property, the pinned table has a weakened specification that breaks the property."""

from __future__ import annotations

import pytest
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.weakened import JUMPS, PINNED, Row, is_true, pinned, weakenings

from longpoll_spec.properties import ALWAYS, INDUCTIVE

ROWS = pinned()
ONCE_UNBROKEN = ("hold_limit_kept", "not_answered_early", "no_lost_deadline", "stays_in_range")
"""Properties that no preset breaks."""
EVERY = 24


def _name(row: Row) -> str:
    return f"{row.property} {row.part or 'whole'}"


KNOWN = [row for row in ROWS if row.policy]
QUICK = {_name(row) for row in KNOWN if row.mutant in JUMPS}
QUICK |= {_name(row) for row in KNOWN[::EVERY]} | {f"{name} whole" for name in ONCE_UNBROKEN}
ONLY_IN_PROOFS = ["_overfilling: without `model.state.is_limited` (58.1)"]
"""Mutants that only proofs can detect.

A proof covers brokers with and without a limit on held requests. An exploration with this feature always has a limit.
"""


def test_each_property_is_violated_by_some_specification() -> None:
    whole = [row.property for row in ROWS if not row.part]

    assert whole == [text.__name__ for text in (*ALWAYS, *INDUCTIVE)]
    assert [row.property for row in ROWS if not row.part and not row.policy] == []


def test_the_table_has_the_parts_of_the_text() -> None:
    parts = {each.name for each in weakenings()}

    assert {row.part for row in ROWS} - {""} == parts, f"python -m model_tests.support.spec.weakened --write ({PINNED})"
    assert [row.part for row in ROWS if not row.policy] == ONLY_IN_PROOFS
    assert {row.mutant for row in ROWS} >= set(JUMPS)


@pytest.mark.parametrize("row", quick_if(KNOWN, lambda row: _name(row) in QUICK), ids=_name)
def test_a_specification_distinguishes_a_property_from_its_weakened_form(row: Row) -> None:
    assert is_true(row)
