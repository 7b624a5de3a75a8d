"""The history's rows by what a judge says: what a policy does not promise is excused, and nothing else is.

The judge is scripted, so that each case is one finding beside another; that a real one says such things is
`test_foreign`'s and `test_page`'s. One case is a real history, of what is no property of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from attrs import define, field
from model_tests.judge.second.observer import write
from model_tests.judge.second.smallest import strictly, watched

from longpoll.verification import history
from longpoll.verification.declared import Declared, Limits, declared
from longpoll.verification.page import Row
from longpoll_judge.contract.rate import rate
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    COMMIT_NEVER_REGRESSES,
    NO_LOST_WAKEUP,
    Finding,
    FindingVerdict,
    Follow,
    Percentiles,
    Result,
    Verdict,
)
from longpoll_judge.run.job import judge
from longpoll_judge.testing.fault import Fault
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT

LIMITS: Final = Limits(100, 50)
RACES: Final = Declared(ROCKETMQ_4_9, {NO_LOST_WAKEUP: ("a", "b")}, 0)
"""It may lose a wakeup, until the pull's own deadline; and nothing else."""
SCANS: Final = Declared(ROCKETMQ_4_9, {ANSWERED_BY_DEADLINE: ("c",)}, 1_000)
BOTH: Final = Declared(ROCKETMQ_4_9, {NO_LOST_WAKEUP: ("a",), ANSWERED_BY_DEADLINE: ("c",)}, 1_000)
OTHERS: Final = Declared(ROCKETMQ_4_9, {ANSWERED_ON_STOP: ("p",), COMMIT_NEVER_REGRESSES: ("h",)}, 1_000)


def finding(name: str, *follows: str, verdict: FindingVerdict = "violated", at_ms: float = 0) -> Finding:
    """A property that is broken, and what follows from the same cause."""
    place: dict[str, Any] = {"clause": name, "verdict": verdict, "topic": "T", "queue": 0, "why": f"{name} at {at_ms}"}
    return Finding(
        property=name,
        **place,
        request="1-1",
        window_start_ms=at_ms,
        window_end_ms=at_ms,
        evidence=[],
        follows=[Follow(property=each, **place, count=1, requests=[]) for each in follows],
    )


def said(verdict: Verdict, *findings: Finding, gaps: Sequence[str] = (), requests: int = 9, **fields: object) -> Result:
    nothing = Percentiles(0, None, None, None)
    one = Result(
        verdict=verdict,
        events=10,
        queues=1,
        requests=requests,
        seconds=0,
        start_seconds=0,
        engine="local",
        findings=list(findings),
        findings_left_out=0,
        gaps=[{"why": why} for why in gaps],
        latency={"wake_ms": nothing, "late_ms": nothing},
        thresholds={"wake_ms": 100, "late_ms": 50},
    )
    return msgspec.structs.replace(one, **fields)


@define
class Script:
    """A judge that says one thing after the other."""

    says: list[Result] = field(factory=list)
    asked: list[tuple[float, float]] = field(factory=list)
    """By which limits it was asked: a wake and a deadline, ms."""

    def judge(self, _paths: Sequence[Path], *, wake_ms: float, late_ms: float, **_options: object) -> Result:
        self.asked.append((wake_ms, late_ms))
        return self.says.pop(0)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The judge of the history's rows from here on."""
    one = Script()
    monkeypatch.setattr(history, "judge", one.judge)
    return one


def promised(script: Script, known: Declared, found: Result, again: Result) -> tuple[Result, dict[str, int]]:
    """What is left of the findings where the judge says something else by longer limits, and what is excused."""
    script.says.append(again)
    result, excused = history.by_promises(found, Path("h"), known, LIMITS)
    return result, dict(excused)


def row_of(script: Script, known: Declared, result: Result, limits: Limits = LIMITS) -> Sequence[Row]:
    """The rows of what the judge says each time."""
    script.says += [result, result]
    return history.judged(Path("h"), known, limits, lambda _text: None)[1]


@pytest.mark.parametrize(
    ("known", "asked"),
    [(RACES, (10_100, 50)), (SCANS, (100, 1_150)), (BOTH, (1_200, 1_150))],
    ids=["races", "scan", "both"],
)
def test_each_limit_is_longer_by_its_own_remedy(known: Declared, asked: tuple[float, float], script: Script) -> None:
    """A wake may be late by what finds a lost one, a deadline by the scan: neither by the other's."""
    (name, *_rest) = known.broken
    found = said("invalid", finding(name))
    result, excused = promised(script, known, found, said("valid"))

    assert script.asked == [asked]
    assert (result.verdict, result.findings, excused) == ("valid", [], {name: 1})
    assert result.thresholds == found.thresholds | dict(
        zip(("declared_wake_ms", "declared_late_ms"), asked, strict=True)
    )


@pytest.mark.parametrize("name", [NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE])
def test_what_is_later_than_the_remedy_convicts(name: str, script: Script) -> None:
    """Of two late ones one was so late that no scan explains it: it stays, and one is excused."""
    late = finding(name, at_ms=7)
    result, excused = promised(script, BOTH, said("invalid", finding(name), late), said("invalid", late))

    assert (result.verdict, result.findings, excused) == ("invalid", [late], {name: 1})


@pytest.mark.parametrize("name", [ANSWERED_ON_STOP, COMMIT_NEVER_REGRESSES])
def test_what_is_no_matter_of_time_is_excused_though_it_is_found_again(name: str, script: Script) -> None:
    """No remedy makes a lost answer of a stop better; a policy that does not promise one is not convicted of it."""
    found = said("invalid", finding(name))
    result, excused = promised(script, OTHERS, found, found)

    assert (result.verdict, result.findings, excused) == ("valid", [], {name: 1})


def test_an_older_offset_that_a_pull_carries_is_excused_in_the_old_policy_alone(tmp_path: Path) -> None:
    """4.9 lets a pull overwrite a newer offset (hazard h); strict promises that none does."""
    events: list[dict[str, Any]] = []
    for number, (code, asked, told) in enumerate([(15, {"commit_offset": 9}, {}), (14, {}, {"offset": 5})]):
        about = {"topic": "T", "queue": 0, "connection": "2", "request": f"2-{number}", "at": 50 + 10 * number}
        events.append({**about, **asked, "event": "request_received", "code": code, "group": "g"})
        events.append({**about, **told, "event": "answer_sent", "code": 0, "at": 51 + 10 * number})
    made = strictly(watched(10, 900, events), policy="")
    write(made, tmp_path)
    found = judge([tmp_path], engine="local", wake_ms=100, late_ms=50)
    old, excused = history.by_promises(found, tmp_path, declared(ROCKETMQ_4_9), LIMITS)

    assert [one.property for one in found.findings] == [COMMIT_NEVER_REGRESSES]
    assert (found.verdict, old.verdict, dict(excused)) == ("invalid", "valid", {COMMIT_NEVER_REGRESSES: 1})
    assert history.by_promises(found, tmp_path, declared(STRICT), LIMITS) == (found, [])


@pytest.mark.parametrize(
    "mixed",
    [finding(NO_LOST_WAKEUP, ANSWER_IS_RIGHT), finding(ANSWER_IS_RIGHT, NO_LOST_WAKEUP), finding(ANSWER_IS_RIGHT)],
    ids=["its cause", "its consequence", "beside it"],
)
def test_what_is_promised_convicts_beside_what_is_not(mixed: Finding, script: Script) -> None:
    """Whether it has the same cause or not, and whichever of both the finding is called by."""
    found = said("invalid", finding(NO_LOST_WAKEUP), mixed)
    result, excused = promised(script, RACES, found, said("invalid", mixed))

    assert (result.verdict, result.findings, excused) == ("invalid", [mixed], {NO_LOST_WAKEUP: 1})


def test_violations_stand_first_and_a_gap_makes_none_of_them_unknown(script: Script) -> None:
    doubted = finding(ANSWER_IS_RIGHT, verdict="unknown", at_ms=1)
    early, late = (finding(NO_LOST_WAKEUP, at_ms=at_ms) for at_ms in (2, 3))
    found = said("invalid", early, late, doubted, gaps=["a hole"])
    result, _excused = promised(script, RACES, found, said("invalid", late, early))

    assert (result.verdict, result.findings) == ("invalid", [early, late, doubted])


def test_what_was_left_out_is_counted(script: Script) -> None:
    """A queue lists 50 late answers; how many there were is told by the rate."""
    found = said("invalid", finding(NO_LOST_WAKEUP), rates={NO_LOST_WAKEUP: rate(70, 100)})

    assert promised(script, RACES, found, said("valid"))[1] == {NO_LOST_WAKEUP: 70}


@pytest.mark.parametrize(
    ("result", "coarse", "outcome"),
    [
        (said("valid"), False, "ok"),
        (said("valid"), True, "unknown"),
        (said("unknown", gaps=["a hole"]), False, "unknown"),
        (said("invalid", finding(ANSWER_IS_RIGHT)), True, "violated"),
        (said("invalid", finding(ANSWER_IS_RIGHT), requests=0), False, "violated"),
    ],
    ids=["valid", "by coarse limits", "unknown", "invalid by coarse limits", "invalid without a pull"],
)
@pytest.mark.parametrize("known", [RACES, SCANS], ids=["races", "scan"])
def test_a_row_is_as_good_as_the_verdict(
    known: Declared, result: Result, coarse: bool, outcome: str, script: Script
) -> None:
    """Limits by which nobody is slow take from a valid run alone, where either property of time is promised."""
    rows = row_of(script, known, result, Limits(100, 50, are_coarse=coarse))

    assert [row.outcome for row in rows] == [outcome]
    assert "a hole" in rows[0].detail or not result.gaps


def test_what_is_excused_has_a_row_of_its_own(script: Script) -> None:
    """It says how often, by which hazard, and within what; the run is as the policy declares."""
    script.says += [said("invalid", finding(NO_LOST_WAKEUP)), said("valid")]
    result, rows = history.judged(Path("h"), RACES, LIMITS, lambda _text: None)

    assert (result.verdict, [row.outcome for row in rows]) == ("valid", ["ok", "ok"])
    assert rows[1].what == "not promised by rocketmq-4.9"
    assert "no_lost_wakeup (a, b) 1 times" in rows[1].detail
    assert "wake 10100 ms, late 50 ms" in rows[1].detail


# -- planted faults ------------------------------------------------------------------------------------------------


@pytest.fixture
def planted(script: Script, monkeypatch: pytest.MonkeyPatch) -> Callable[[Result, Result], Row]:
    """The row where the judge says one thing of the run, and the other of it with either of two planted faults."""
    fault = Fault("", lambda _recording: None, "invalid", frozenset({NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE}))
    monkeypatch.setattr(history, "plant", lambda _history, _name, _directory: fault)
    monkeypatch.setattr(history, "PLANTED", ("one", "another"))

    def row(clean: Result, faulty: Result) -> Row:
        script.says += [clean, faulty, faulty]
        (found,) = history.faults_are_found(Path("h"), Limits(9_000, 9_000), Path("s"))
        return found

    return row


NAMED: Final = said("invalid", finding(NO_LOST_WAKEUP, ANSWERED_BY_DEADLINE))


@pytest.mark.parametrize(
    ("faulty", "outcome"),
    [
        (NAMED, "ok"),
        (said("unknown", *NAMED.findings), "violated"),
        (said("invalid"), "violated"),
        (said("invalid", *NAMED.findings, finding(ANSWER_IS_RIGHT)), "violated"),
        (said("invalid", finding(NO_LOST_WAKEUP, ANSWER_IS_RIGHT)), "violated"),
    ],
    ids=["named", "doubted", "by nothing", "with another", "with another that follows"],
)
def test_a_planted_fault_is_found_by_its_name_and_no_other(
    faulty: Result, outcome: str, planted: Callable[[Result, Result], Row], script: Script
) -> None:
    """By limits of half of what it is late by, however wide the run's own are."""
    row = planted(said("valid"), faulty)

    assert (row.outcome, row.detail.count("another (")) == (outcome, int(outcome == "violated"))
    assert set(script.asked) == {(1_000, 250)}


@pytest.mark.parametrize("verdict", ["unknown", "invalid"])
def test_nothing_is_planted_into_a_run_that_is_not_valid(
    verdict: Verdict, planted: Callable[[Result, Result], Row]
) -> None:
    row = planted(said(verdict), NAMED)

    assert row.outcome == "skipped"
    assert verdict in row.detail


def test_the_faults_that_any_judge_must_find_are_planted() -> None:
    assert set(history.PLANTED) == {
        "answer_deleted", "answer_delayed", "wake_delayed", "answer_duplicated", "next_wrong",
    }  # fmt: skip
