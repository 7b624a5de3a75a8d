"""The evidence of a finding alone proves the violation, and one cause gives one finding."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from model_tests.judge.second.corpus import calm, troubled
from model_tests.judge.second.faults import Event, changed_histories
from model_tests.judge.second.observer import Sight, observe
from model_tests.judge.second.observer import write as write_observed
from model_tests.judge.second.parts import Plan
from model_tests.support.judge.faults import FAULTS, plant
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.generate_steps import FAULTS as STEP_FAULTS
from model_tests.support.judge.generate_steps import StepLoad, meta_of, observed
from model_tests.support.judge.recording import Recording, change, load, write
from model_tests.support.spec.cases import quick_if

from longpoll.cli import main
from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.run.pipeline import judge
from longpoll_judge.show.evidence import write_evidence
from longpoll_judge.show.page import render_html
from longpoll_spec.history import Law

QUICK = (
    *("answer_deleted", "forgotten_at_the_stop", "answer_before_visible", "append_missing", "message_missing"),
    *("acknowledged_not_appended", "told_too_little", "too_many_held", "answered_after_close"),
)
"""Faults for quick tests: one for each way in which a finding relies on events that the finding does not name."""
CHANGES, SEEDS = 6, 60
FAR = 500


def subject(finding: Finding) -> tuple[object, ...]:
    return finding.clause, finding.verdict, finding.topic, finding.queue, finding.request, finding.messages


def alone(finding: Finding, directory: Path) -> Result:
    assert write_evidence(directory, [finding]) == 1
    return judge(directory.iterdir(), engine="local")


def not_convicting(result: Result, directory: Path) -> list[object]:
    wrong: list[object] = []
    for number, finding in enumerate(result.findings):
        if finding.verdict == "violated":
            again = alone(finding, directory / f"{number}")
            told = [subject(one) for one in again.findings]
            if again.verdict != "invalid" or told != [subject(finding)]:
                wrong.append((subject(finding), told, again.gaps))
    return wrong


# -- evidence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", quick_if([name for name, fault in FAULTS.items() if fault.verdict == "invalid"], lambda name: name in QUICK)
)
def test_the_evidence_of_every_injected_fault_violates_alone(clean: Path, tmp_path: Path, name: str) -> None:
    plant(clean, name, tmp_path / "planted")
    result = judge([tmp_path / "planted"], engine="local")

    assert any(finding.verdict == "violated" for finding in result.findings)
    assert not_convicting(result, tmp_path / "alone") == []


@pytest.mark.long
@pytest.mark.parametrize("fault", STEP_FAULTS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_evidence_of_a_forbidden_step_is_the_whole_run(tmp_path: Path, fault: Any, seed: int) -> None:
    """A step that no state permits depends on all earlier steps, so all earlier steps are its evidence."""
    load_of_steps = StepLoad(Law(requests=2), "strict-clone", fault=fault, seed=seed)
    write(tmp_path / "history", observed(load_of_steps), meta_of(load_of_steps), events_per_part=50)
    result = judge([tmp_path / "history"], engine="local")

    assert [finding.clause for finding in result.findings] == ["law.step"]
    assert not_convicting(result, tmp_path / "alone") == []


@pytest.mark.long
@pytest.mark.parametrize("world", [calm, troubled], ids=["without troubles", "with troubles"])
def test_the_evidence_of_systematic_faults_violates_alone(tmp_path: Path, world: Any) -> None:
    used: Counter[tuple[str, str]] = Counter()
    found: Counter[str] = Counter()
    wrong = []
    for seed in range(SEEDS):
        history = observe(*world(seed, 100))
        for number, changed in enumerate(changed_histories(history, seed, CHANGES, used)):
            place = tmp_path / f"{seed}-{number}"
            write_observed(changed.history, place)
            result = judge([place], engine="local")
            found.update(finding.clause for finding in result.findings if finding.verdict == "violated")
            wrong += [(seed, changed.operation, one) for one in not_convicting(result, place / "alone")]
    assert wrong == []
    assert len(found) > 10, found


def test_an_excerpt_without_its_fault_is_unknown(clean: Path, tmp_path: Path) -> None:
    """An excerpt without its fault is unknown and not valid, because most of the history is missing."""
    plant(clean, "forgotten_at_the_stop", tmp_path / "planted")
    (finding,) = judge([tmp_path / "planted"], engine="local").findings
    shown = [event for event in finding.evidence if event["event"] != "omitted"]
    pulls = {event["sequence"] for event in shown if event["event"] == "request_received"}
    stand_ins = [
        event | {"event": "omitted", "cause": finding.clause, "lost_count": 1} if event["sequence"] in pulls else event
        for event in finding.evidence
    ]
    mended = alone(msgspec.structs.replace(finding, evidence=stand_ins), tmp_path / "mended")
    with_holes = alone(msgspec.structs.replace(finding, evidence=shown), tmp_path / "holes")

    assert (mended.verdict, [gap["clause"] for gap in mended.gaps][:1]) == ("unknown", ["evidence.excerpt"])
    assert with_holes.verdict == "unknown"
    assert [(one.clause, one.verdict) for one in with_holes.findings] == [(finding.clause, "unknown")]


def test_an_excerpt_is_judged_by_its_clause_only(clean: Path, tmp_path: Path) -> None:
    """The judge checks only the clause of an excerpt, so a second fault in the excerpt is not reported."""
    plant(clean, "next_wrong", tmp_path / "planted")
    (finding,) = judge([tmp_path / "planted"], engine="local").findings
    answer = next(event for event in finding.evidence if event["event"] == "answer_sent")
    again = {"sequence": answer["sequence"] + 1}
    both = [*finding.evidence, answer | again]
    result = alone(msgspec.structs.replace(finding, evidence=both), tmp_path / "alone")

    assert [one.clause for one in result.findings] == ["pull.found.next"]


def test_the_command_writes_evidence_that_can_be_judged(clean: Path, tmp_path: Path) -> None:
    plant(clean, "answer_deleted", tmp_path / "planted")
    arguments = ["judge", "--engine", "local", str(tmp_path / "planted"), "--evidence", str(tmp_path / "found")]
    first = CliRunner().invoke(main, [*arguments, "--json"])
    (history,) = (tmp_path / "found").iterdir()
    second = CliRunner().invoke(main, ["judge", "--engine", "local", str(history), "--json"])
    (told,), (again,) = (json.loads(run.stdout)["findings"] for run in (first, second))

    assert (first.exit_code, second.exit_code) == (1, 1)
    assert history.name == f"finding-0001-{told['clause']}"
    assert [told[name] for name in ("clause", "request", "messages", "offsets")] == [
        again[name] for name in ("clause", "request", "messages", "offsets")
    ]


# -- one finding per fault ---------------------------------------------------------------------------------------------


def of_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


@pytest.mark.parametrize("by", [FAR, -3, 3])
@pytest.mark.parametrize("inside", [False, True], ids=["seen by clients", "recorded by the broker"])
def test_one_wrong_acknowledgement_is_one_finding(tmp_path: Path, by: int, inside: bool) -> None:
    history = observe(Plan(3, 900), Sight(inside=inside))
    events = [dict(event) for event in history.events]
    told = of_kind(events, "message_acknowledged")
    wrong = told[len(told) // 3]
    wrong["queue_offset"] += by
    write_observed(history.with_events(events), tmp_path / "history")
    result = judge([tmp_path / "history"], engine="local")

    assert [finding.verdict for finding in result.findings] == ["violated"]
    assert result.findings_left_out == 0
    (finding,) = result.findings
    assert wrong["queue_offset"] in finding.messages
    if by == FAR and not inside:
        assert sum(each.count for each in finding.follows) > 20
    assert not_convicting(result, tmp_path / "alone") == []


def test_one_lost_append_is_one_finding(clean: Path, tmp_path: Path) -> None:
    plant(clean, "append_missing", tmp_path / "planted")
    result = judge([tmp_path / "planted"], engine="local")

    (finding,) = result.findings
    assert finding.clause == "log.append.gapless"
    assert {each.clause for each in finding.follows} == {"pull.found.appended", "log.visible.appended"}


def test_one_broken_connection_is_one_finding(tmp_path: Path) -> None:
    history = observe(Plan(5, 400, commits=0.0), Sight(inside=False))
    pulls = [event for event in of_kind(list(history.events), "request_received") if event["code"] == 11]
    connection = Counter(pull["connection"] for pull in pulls).most_common(1)[0][0]
    theirs = [event for event in history.events if event.get("connection") == connection]
    broken_ns = theirs[len(theirs) // 2]["after_ns"]
    kept = [
        event
        for event in history.events
        if event["event"] != "answer_sent" or event.get("connection") != connection or event["after_ns"] < broken_ns
    ]
    events = [event | {"sequence": number} for number, event in enumerate(kept)]
    write_observed(history.with_events(events), tmp_path / "history")
    result = judge([tmp_path / "history"], engine="local")

    assert len([finding for finding in result.findings if finding.verdict == "violated"]) == 1
    assert sum(each.count for each in result.findings[0].follows) > 5


@pytest.mark.parametrize("name", ["wake_delayed", "answer_deleted"])
def test_one_late_answer_is_one_finding(clean: Path, tmp_path: Path, name: str) -> None:
    plant(clean, name, tmp_path / "planted")
    (finding,) = judge([tmp_path / "planted"], engine="local").findings

    told = {finding.clause, *(follow.clause for follow in finding.follows)}
    assert "pull.wake.prompt" in told
    assert len(told) == 2
    assert [follow.requests for follow in finding.follows] == [[finding.request]]


def test_three_causes_are_three_findings(clean: Path, tmp_path: Path) -> None:
    recording = load(clean)
    for name in ("next_wrong", "wrong_tag", "append_missing"):
        FAULTS[name].apply(recording)
    write(tmp_path / "history", recording.events, recording.meta)
    result = judge([tmp_path / "history"], engine="local")

    told = {finding.clause for finding in result.findings}
    assert told == {"pull.found.next", "pull.found.tag", "log.append.gapless"}


# -- the events that a finding names -----------------------------------------------------------------------------------

STRANGE = "[/x]\x1b[31m<b>&"


def strange_history(directory: Path) -> Result:
    recording = Recording(list(simulate(Load(events=400, queues=1, timeout_ms=60))), simulated_meta())
    request, answer = next(pair for pair in recording.exchanges() if pair[0].expression == "a" and pair[1].offsets)
    recording.events = [
        change(event, tag=STRANGE) if event.queue_offset == answer.offsets[0] else event for event in recording.events
    ]
    events = [change(event, topic=STRANGE) if event.topic == request.topic else event for event in recording.events]
    write(directory, events, recording.meta)
    return judge([directory], engine="local")


def test_a_finding_names_message_tag_and_offsets(tmp_path: Path) -> None:
    result = strange_history(tmp_path / "history")
    finding = next(one for one in result.findings if one.clause == "pull.found.tag")
    page = render_html(result)
    shown = CliRunner().invoke(main, ["judge", "--engine", "local", str(tmp_path / "history")]).stdout

    assert len(finding.messages) == 1
    assert (finding.tag, finding.topic) == (STRANGE, STRANGE)
    assert set(finding.offsets) == {"offset", "offset_next", "offset_min", "offset_max"}
    assert f"message {finding.messages[0]}" in page
    assert f"offset {finding.offsets['offset']}" in page
    assert "\x1b" not in page
    assert "<b>&" not in page
    assert "\x1b" not in shown


# -- equal results of the local engine and Spark -----------------------------------------------------------------------
