"""The contract: one line an id, printed in the docs as it stands in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from longpoll_judge.contract.clauses import CLAUSES, clause_tables
from longpoll_judge.contract.result import EVIDENCE, PROPERTIES
from longpoll_judge.run.job import judge
from longpoll_judge.testing.plant import FAULTS, plant

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
BEGIN, END = "<!-- clauses: printed from longpoll_judge.contract.clauses -->", "<!-- end of clauses -->"


def test_the_page_prints_the_clauses() -> None:
    """docs/contract.md says what the code says; `clause_tables()` gives the text between the two marks."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == clause_tables().strip()


def test_ids_are_unique_and_belong_to_properties() -> None:
    """Every property of the report has a clause, and no clause belongs to anything else."""
    ids = [clause.id for clause in CLAUSES]
    assert len(ids) == len(set(ids))
    assert {clause.property for clause in CLAUSES} == {*PROPERTIES, EVIDENCE}


ALONE = {
    "answer_duplicated": "answer.once",
    "next_wrong": "pull.found.next",
    "message_missing": "pull.found.complete",
    "message_from_the_future": "pull.found.visible",
    "too_many_messages": "pull.found.at_most",
    "messages_out_of_order": "pull.found.ordered",
    "next_stays": "pull.passed.next",
    "wrong_tag": "pull.found.tag",
    "end_too_high": "pull.max.most",
    "end_too_low": "pull.max.least",
    "legal_called_illegal": "pull.illegal.outside",
    "half_line": "evidence.damage",
    "sequence_gap": "evidence.sequence_gap",
    "found_empty": "pull.found.some",
    "message_before_asked": "pull.found.from_asked",
    "bounds_crossed": "pull.min.below_max",
    "nothing_with_messages": "pull.none.empty",
    "nothing_moves_on": "pull.none.next",
    "passes_over_a_match": "pull.passed.none_match",
    "answer_before_request": "answer.after_request",
    "deadline_missed": "pull.deadline.met",
    "offset_given_twice": "log.append.once",
    "visible_moves_back": "log.visible.monotone",
    "sequence_repeated": "evidence.sequence_repeated",
    "event_unknown": "evidence.unknown_event",
    "request_missing": "evidence.not_judged",
    "clock_set_back": "evidence.clock_jump",
    "lost_declared": "evidence.lost",
} | {name: fault.clause for name, fault in FAULTS.items() if fault.clause}
"""Faults that break one clause and no other; those of the second part are held to it in test_faults."""
TOGETHER = {
    "denies_message": {"pull.none.true"},
    "illegal_to_nowhere": {"pull.illegal.next"},
    "wake_late": {"pull.wake.prompt"},
    "answer_deleted": {"pull.answered"},
    "append_missing": {"log.append.gapless", "pull.found.appended"},
    "appends_swapped": {"log.append.ordered", "log.visible.appended"},
    "source_undeclared": {"evidence.undeclared_source"},
}
"""Faults that break a clause and, as the clause is, others with it."""
ELSEWHERE = {
    "pull.next.visible": "told after others that the same fault breaks as a rule: no fault shows it alone yet",
    "pull.stop.answered": "test_faults, where the history ends with a pull that is open",
    "law.step": "test_conformance",
    "evidence.unknown_law": "test_conformance",
    "evidence.begun_anew": "test_lives",
    "evidence.excerpt": "test_evidence",
}


def test_every_clause_has_a_planted_fault() -> None:
    """No line of the contract is a check that cannot fail."""
    planted = {*ALONE.values(), *ELSEWHERE}.union(*TOGETHER.values())
    assert planted == {clause.id for clause in CLAUSES}


@pytest.mark.parametrize("name", [*(name for name in ALONE if not FAULTS[name].clause), *TOGETHER])
def test_a_fault_breaks_its_clause(clean: Path, tmp_path: Path, name: str) -> None:
    """The finding, or the gap, names the clause; alone where the fault breaks no other."""
    plant(clean, name, tmp_path / "planted")
    result = judge([tmp_path / "planted"], engine="local")
    told = [one for finding in result.findings for one in finding.told()]
    named = {one.clause for one in told} | {str(gap["clause"]) for gap in result.gaps}
    if name in ALONE:
        assert named == {ALONE[name]}
    else:
        assert named >= TOGETHER[name]
