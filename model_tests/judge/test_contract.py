"""The contract: one line an id, printed in the docs as it stands in the code."""

from __future__ import annotations

from pathlib import Path

from longpoll_judge.contract import CLAUSES, clause_tables
from longpoll_judge.result import EVIDENCE, PROPERTIES

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
BEGIN, END = "<!-- clauses: printed from longpoll_judge.contract -->", "<!-- end of clauses -->"


def test_the_page_prints_the_clauses() -> None:
    """docs/contract.md says what the code says; `clause_tables()` gives the text between the two marks."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == clause_tables().strip()


def test_ids_are_unique_and_belong_to_properties() -> None:
    """Every property of the report has a clause, and no clause belongs to anything else."""
    ids = [clause.id for clause in CLAUSES]
    assert len(ids) == len(set(ids))
    assert {clause.property for clause in CLAUSES} == {*PROPERTIES, EVIDENCE}
