"""Each injected fault in a simulated history is found, with its clause of the contract."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec
import pytest
from model_tests.support.judge.contract_faults import CONTRACT_FAULTS, EXCHANGE_FAULTS
from model_tests.support.judge.faults import FAULTS, plant
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.histories import judged
from model_tests.support.judge.recording import NoVictimError, change, load, write

from longpoll_judge.contract.clause import Clause
from longpoll_judge.contract.clauses import (
    CLAUSES,
    COMMIT_CLAUSES,
    EVIDENCE_CLAUSES,
    LAW_CLAUSES,
    LOG_CLAUSES,
    SEND_CLAUSES,
)
from longpoll_judge.contract.pops import POP_CLAUSES
from longpoll_judge.contract.pulls import MESSAGE_CLAUSES, PULL_CLAUSES
from longpoll_judge.contract.result import (
    ANSWERED_BY_DEADLINE,
    EVIDENCE,
    NO_LOST_WAKEUP,
    OFFSETS_IN_ORDER,
    PROPERTIES,
    VISIBLE_IS_MONOTONE,
)
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import PART_GLOB, Event

SAYS: Final[dict[str, tuple[str, str]]] = {
    "answer_deleted": ("was never answered", "+pull.answered"),
    "answer_delayed": ("after its deadline", ""),
    "wake_delayed": ("while it was held", ""),
    "answer_duplicated": ("2 answers", "answer.once"),
    "next_wrong": ("it must be", "pull.found.next"),
    "message_missing": ("although 2 messages", "pull.found.complete"),
    "message_from_the_future": ("not yet visible", "pull.found.visible"),
    "too_many_messages": ("asked were at most", "pull.found.at_most"),
    "messages_out_of_order": ("out of order", "pull.found.ordered"),
    "next_stays": ("passed over nothing", "pull.passed.next"),
    "wrong_tag": ("tag does not match", "pull.found.tag"),
    "answer_before_visible": ("not yet visible", ""),
    "denies_message": ("a matching message was visible", "+pull.none.true"),
    "end_too_high": ("can have been visible", "pull.max.most"),
    "end_too_low": ("was visible before its request came", "pull.max.least"),
    "legal_called_illegal": ("calls the offset illegal", "pull.illegal.outside"),
    "half_line": ("damaged line", "evidence.damage"),
    "meta_missing": ("missing", ""),
    "sequence_gap": ("misses 1 events", "evidence.sequence_gap"),
    "events_lost": ("was never answered", ""),
    "found_empty": ("carries 0 messages", "pull.found.some"),
    "message_before_asked": ("carries messages before that offset", "pull.found.from_asked"),
    "message_twice": ("out of order", ""),
    "last_message_missing": ("it must be", ""),
    "next_back": ("it must be", ""),
    "next_too_far": ("match", ""),
    "bounds_crossed": ("above offset_max", "pull.min.below_max"),
    "nothing_with_messages": ("carries 1 messages", "pull.none.empty"),
    "nothing_moves_on": ("with nothing new it must be", "pull.none.next"),
    "passes_over_a_match": ("passes over", "pull.passed.none_match"),
    "illegal_to_nowhere": ("not the end of the queue", "+pull.illegal.next"),
    "answer_before_request": ("before its request was received", "answer.after_request"),
    "tag_changed": ("tag does not match", ""),
    "answered_much_later": ("2 answers", ""),
    "wake_late": ("while it was held", "+pull.wake.prompt"),
    "deadline_missed": ("after its deadline", "pull.deadline.met"),
    "timeout_cut": ("after its deadline", ""),
    "forgotten_at_the_stop": ("when the broker stops", ""),
    "offset_given_twice": ("two messages were appended", "log.append.once"),
    "append_missing": ("no message was appended between", "+log.append.gapless pull.found.appended"),
    "appends_swapped": ("was appended after offset", "+log.append.ordered log.visible.appended"),
    "visible_moves_back": ("is the visible end, after it was", "log.visible.monotone"),
    "interval_reversed": ("damaged", ""),
    "sequence_repeated": ("sequence numbers more than once", "evidence.sequence_repeated"),
    "event_unknown": ("teleport", "evidence.unknown_event"),
    "source_undeclared": ("not in meta.json", "+evidence.undeclared_source"),
    "subscription_unknown": ("tags cannot decide", ""),
    "request_missing": ("requests are not in the history", "evidence.not_judged"),
    "request_twice": ("received twice", ""),
    "format_newer": ("format 99", ""),
    "clock_set_back": ("was set back, by up to 120.0 s", "evidence.clock_jump"),
    "lost_declared": ("says that it lost 3 events", "evidence.lost"),
    **dict.fromkeys((*CONTRACT_FAULTS, *EXCHANGE_FAULTS), ("", "")),
}
"""Fault -> the text of a finding or gap, and the violated clause. A `+` means that the fault violates other clauses
too.

Faults that are named after a clause of the contract have empty entries."""
ELSEWHERE = {
    "pull.next.visible": "told after others that the same fault breaks as a rule: no fault shows it alone yet",
    "pull.stop.answered": "the history ends with a pull that is open",
    **dict.fromkeys(("pull.found.within", "pull.min.kept", "pull.filter.agrees", "pull.step.held"), "test_outsider"),
    **dict.fromkeys(("pull.take.once", "send.code.known", "send.batch.gapless"), "test_outsider"),
    **dict.fromkeys(("pull.found.identified", "send.acknowledged.identity"), "test_outsider"),
    **dict.fromkeys((each.id for each in MESSAGE_CLAUSES), "test_messages"),
    **dict.fromkeys((each.id for each in POP_CLAUSES), "test_pops"),
    "commit.told.within": "test_committed_offsets",
    "law.step": "test_conformance",
    "evidence.unknown_law": "test_conformance",
    "evidence.begun_anew": "test_generations",
    "evidence.excerpt": "test_evidence",
    "evidence.restart": "test_outsider",
}
PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
BEGIN, END = "<!-- clauses: printed from longpoll_judge.contract.clauses -->", "<!-- end of clauses -->"
OF_THE_LOG = {OFFSETS_IN_ORDER, VISIBLE_IS_MONOTONE}


def clause_tables() -> str:
    groups = (
        ("Pulls", PULL_CLAUSES),
        ("Pops", POP_CLAUSES),
        ("Logs", LOG_CLAUSES),
        ("Sends", SEND_CLAUSES),
        ("Messages", MESSAGE_CLAUSES),
        ("Committed offsets", COMMIT_CLAUSES),
        ("The specification", LAW_CLAUSES),
        ("Evidence", EVIDENCE_CLAUSES),
    )
    return "\n".join(_table(title, clauses) for title, clauses in groups)


def _table(title: str, clauses: tuple[Clause, ...]) -> str:
    lines = [
        f"### {title}",
        "",
        "| clause | what must hold | property | seen | needs | at most | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for clause in clauses:
        needs = ", ".join(f"`{one}`" for one in clause.needs) + ("; a whole record" if clause.whole_record else "")
        cells = (clause.says, clause.property, clause.seen, needs, clause.verdict, clause.source)
        lines.append(f"| `{clause.id}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def test_the_page_prints_the_clauses() -> None:
    """docs/contract.md has the output of `clause_tables()`; ids are unique, and every property has a clause."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == clause_tables().strip()
    assert len({clause.id for clause in CLAUSES}) == len(CLAUSES)
    assert {clause.property for clause in CLAUSES} == {*PROPERTIES, EVIDENCE}


def test_every_clause_has_an_injected_fault() -> None:
    """For each clause some fault violates the clause, which shows that the clause's check can fail."""
    broken = {each for _says, clauses in SAYS.values() for each in clauses.strip("+").split()}
    assert broken | {fault.clause for fault in FAULTS.values()} - {""} | ELSEWHERE.keys() == {
        each.id for each in CLAUSES
    }


def test_a_simulated_history_is_valid(clean: Path) -> None:
    result = judge([clean], engine="local")

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.latency["wake_ms"].count > 50
    assert result.latency["late_ms"].count > 5


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("longer") / "history"
    write(directory, simulate(Load(events=4_000, timeout_ms=60)), simulated_meta())
    return directory


@pytest.mark.parametrize("name", FAULTS)
def test_every_injected_fault_is_found_and_named(clean: Path, longer: Path, tmp_path: Path, name: str) -> None:
    needs_more = name in {"tag_changed", "unheld_late", "question_unanswered"}
    fault = plant(longer if needs_more else clean, name, tmp_path / "planted")
    result = judge([tmp_path / "planted"], engine="local")
    named = {finding.property for finding in result.findings}
    told = [one for finding in result.findings for one in finding.told()]
    certain = "violated" if fault.verdict == "invalid" else "unknown"
    reasons = [one.why for one in told if one.verdict == certain] + [gap["why"] for gap in result.gaps]
    says, clauses = SAYS[name]
    gaps = {str(gap["clause"]) for gap in result.gaps}

    assert (result.verdict, bool(named)) == (fault.verdict, bool(fault.properties)), (result.findings, result.gaps)
    assert named <= fault.properties
    assert any(says in reason for reason in reasons), reasons
    if fault.clause:
        assert {finding.clause for finding in result.findings} | gaps == {fault.clause}
    elif clauses.startswith("+"):
        assert {one.clause for one in told} | gaps >= set(clauses[1:].split())
    elif clauses:
        assert {one.clause for one in told} | gaps == {clauses}
    for finding in result.findings:
        assert finding.evidence
        assert finding.window_start_ms <= finding.window_end_ms
        assert bool(finding.request) == (finding.property not in OF_THE_LOG)


def test_a_deleted_line_leaves_a_gap_and_no_violation(clean: Path, tmp_path: Path) -> None:
    """A line deleted by hand leaves a gap in the sequence numbers, and the missing line may have been the answer."""
    request = next(
        answer.request for pull, answer in load(clean).exchanges() if answer.cause == "expired" and pull.offset > 0
    )
    shutil.copytree(clean, tmp_path / "cut")
    for part in (tmp_path / "cut").glob(PART_GLOB):
        lines = part.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if f'"{request}"'.encode() not in line or b"answer_sent" not in line]
        part.write_bytes(b"".join(kept))
    result = judge([tmp_path / "cut"], engine="local")

    assert result.verdict == "unknown"
    assert (ANSWERED_BY_DEADLINE, "unknown") in {(finding.property, finding.verdict) for finding in result.findings}
    assert all("the record has a hole in that time" in finding.why for finding in result.findings)
    assert [gap["kind"] for gap in result.gaps] == ["sequence gap"]


def test_limits_and_clock_uncertainty_decide_the_verdict(clean: Path, tmp_path: Path) -> None:
    """A wake that is 2 s late is permitted by a limit of 10 s. If a clock may be 5 s wrong, the verdict is unknown."""
    plant(clean, "wake_delayed", tmp_path / "planted")
    recording = load(tmp_path / "planted")
    assert recording.meta is not None
    sources = [msgspec.structs.replace(recording.meta.sources[0], uncertainty_ns=5 * 10**9)]
    vague = judged(tmp_path / "vague", recording.events, msgspec.structs.replace(recording.meta, sources=sources))

    assert judge([tmp_path / "planted"], engine="local").verdict == "invalid"
    assert judge([tmp_path / "planted"], engine="local", wake_ms=10_000, late_ms=10_000).verdict == "valid"
    assert vague.verdict == "unknown"
    assert NO_LOST_WAKEUP in {finding.property for finding in vague.findings if finding.verdict == "unknown"}


@pytest.mark.parametrize("code", [0, 24])
def test_an_sql92_subscription_is_noted_as_not_judged(clean: Path, tmp_path: Path, code: int) -> None:
    recording = load(clean)
    request, answer = next(pair for pair in recording.exchanges() if pair[1].code == 0)
    recording.replace(request, change(request, expression_type="SQL92", expression="a > 1"))
    if code:
        recording.replace(answer, change(answer, code=code, offsets=[], offset_next=-1, offset_min=-1, offset_max=-1))
    result = judged(tmp_path / "history", recording.events, recording.meta)

    assert (result.verdict, result.gaps) == ("valid", [])
    assert [note["kind"] for note in result.notes] == ([] if code else ["not judged"])


def test_an_illegal_offset_passes_over_no_message(clean: Path, tmp_path: Path) -> None:
    """A pull at offset -1 is sent to offset 0. No message is between these offsets, so no tag is missing."""
    recording = load(clean)
    request, answer = next(
        pair for pair in recording.exchanges() if pair[1].code == 0 and pair[0].expression not in {"", "*"}
    )
    recording.replace(request, change(request, offset=-1))
    recording.replace(answer, change(answer, code=21, offsets=[], offset_next=0))

    assert judged(tmp_path / "history", recording.events, recording.meta).gaps == []


def test_a_fault_without_a_suitable_event_is_a_usage_error(tmp_path: Path, clean: Path) -> None:
    few: list[Event] = load(clean).events[:1]
    (tmp_path / "few").mkdir()
    shutil.copy(clean / "meta.json", tmp_path / "few")
    (tmp_path / "few" / "part-000000.ndjson").write_bytes(msgspec.json.encode(few[0]) + b"\n")

    with pytest.raises(NoVictimError, match="longer run"):
        plant(tmp_path / "few", "answer_deleted", tmp_path / "out")
    assert not (tmp_path / "out").exists()
