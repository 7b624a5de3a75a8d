"""Findings with one cause are reported once, whether a request, a message or an offset connects them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from longpoll_judge.contract.causes import Cause, alone, finding_order, keys_of, told_once
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import Finding, FindingVerdict

PLACE: Final = ("b", "T", 0)


def event(name: str, request: str = "1", connection: str = "1", source: str = "s") -> dict[str, Any]:
    return {"event": name, "request": request, "connection": connection, "source": source, "sequence": 1}


ASKED, ANSWERED = event("request_received"), event("answer_sent")


def keys(clause: str, *others: dict[str, Any], messages: tuple[int, ...] = ()) -> set[str]:
    return set(keys_of(clause, messages, PLACE, (), others))


def found(clause: str, *own: str, verdict: FindingVerdict = "violated", at_ms: float = 1) -> Cause:
    finding = Finding(
        property=CLAUSE[clause].property,
        clause=clause,
        verdict=verdict,
        topic="T",
        queue=0,
        request="",
        window_start_ms=at_ms,
        window_end_ms=at_ms,
        why="",
        evidence=[],
    )
    return Cause(finding, own)


def told(*causes: Cause) -> list[list[str]]:
    return [[one.clause, *(each.clause for each in one.follows)] for one in told_once(causes)]


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (("pull.found.next", ASKED, ANSWERED), ("commit.told.kept", ANSWERED), True),
        (("pull.found.next", ANSWERED), ("pull.found.next", event("answer_sent", request="2")), False),
        (("pull.found.next", ANSWERED), ("pull.found.next", event("answer_sent", source="t")), False),
        (("pull.deadline.met", ASKED, ANSWERED), ("pull.wake.prompt", ASKED), True),
        (("pull.deadline.met", ASKED, ANSWERED), ("pull.found.next", ASKED, ANSWERED), False),
        (("send.answered", ASKED), ("pull.found.next", ASKED, ANSWERED), False),
        (("pull.answered", ASKED), ("commit.answered", event("request_received", request="2")), True),
        (("pull.answered", ASKED), ("commit.answered", event("request_received", "2", connection="2")), False),
        (("pull.wake.prompt", ASKED, ANSWERED), ("pull.answered", event("request_received", request="2")), False),
        (("answer.open_connection", ANSWERED), ("answer.same_connection", event("answer_sent", request="2")), True),
    ],
)
def test_findings_share_the_keys_of_a_possible_cause(one: Any, other: Any, share: bool) -> None:
    assert bool(keys(*one) & keys(*other)) == share


def test_a_message_key_contains_the_queue() -> None:
    mine = keys("pull.found.complete", messages=(3,))
    assert mine & keys("pull.none.true", messages=(3, 4))
    assert not mine & keys("pull.none.true", messages=(4,))
    assert not mine & set(keys_of("pull.none.true", (3,), ("b", "T", 1), (), ()))


def test_findings_are_connected_through_other_findings() -> None:
    ends = found("pull.found.next", "a", at_ms=1), found("pull.found.tag", "b", at_ms=2)
    between = found("pull.found.complete", "a", "b", at_ms=3)
    more = found("pull.none.true", "c", at_ms=4), found("pull.none.next", "b", "c", at_ms=5)
    apart = found("pull.none.empty", "d", at_ms=6)
    assert [len(each) for each in told(*ends, *more, apart, between)] == [5, 1]
    assert [len(each) for each in told(*ends, *more, apart)] == [1, 3, 1]


def test_a_lost_wakeup_joins_a_cause_but_starts_none() -> None:
    losses = found("pull.wake.prompt", "m", at_ms=1), found("pull.wake.prompt", "m", at_ms=2)
    assert told(*losses) == [["pull.wake.prompt"]] * 2
    assert told(*losses, found("log.append.gapless", "m", at_ms=9)) == [["log.append.gapless", "pull.wake.prompt"]]


def test_the_strongest_finding_of_a_cause_is_reported() -> None:
    """A certain finding is reported first, then a finding of the log, then the finding whose clause ranks first."""
    wrong, log = found("pull.found.next", "k", at_ms=1), found("log.append.gapless", "k", at_ms=2)
    perhaps = found("log.append.once", "k", verdict="unknown", at_ms=0)
    assert told(wrong, log, perhaps) == [["log.append.gapless", "pull.found.next", "log.append.once"]]
    late, falls = found("pull.wake.prompt", "k", at_ms=3), found("pull.max.never_falls", "k", at_ms=0)
    assert told(falls, wrong, late) == [["pull.found.next", "pull.wake.prompt", "pull.max.never_falls"]]


def test_consequences_are_counted_by_clause_and_verdict() -> None:
    one, same = found("log.append.gapless", "k"), found("pull.found.next", "k", at_ms=2)
    perhaps = found("pull.found.next", "k", verdict="unknown", at_ms=3)
    (finding,) = told_once([one, same, same, perhaps])
    assert [(each.verdict, each.count) for each in finding.follows] == [("violated", 2), ("unknown", 1)]


def test_a_finding_across_queues_has_its_queues_message_keys() -> None:
    finding = msgspec.structs.replace(
        found("send.sequential").finding, messages=[3], evidence=[ASKED | {"broker": "b"}]
    )
    (cause,) = alone([finding])
    assert set(cause.keys) & keys("pull.none.true", messages=(3,))


def test_violations_come_first_then_earlier_findings() -> None:
    early, late = found("pull.none.true", at_ms=1).finding, found("pull.none.true", at_ms=2).finding
    perhaps = found("pull.none.true", verdict="unknown", at_ms=0).finding
    assert sorted([perhaps, late, early], key=finding_order) == [early, late, perhaps]


def late(came_ms: float, clause: str = "send.answered", *, due_ms: float = 0, **fields: Any) -> Cause:
    name = f"{came_ms} {due_ms} {fields}"
    asked = event("request_received", name, **fields) | {"after_ns": int(due_ms * 10**6), "timeout_ms": 100}
    answered = event("answer_sent", name, **fields) | {"after_ns": int(came_ms * 10**6)}
    finding = msgspec.structs.replace(found(clause).finding, request=name, evidence=[asked, answered], why="w; it fits")
    return Cause(finding, ())


@pytest.mark.parametrize(
    ("causes", "is_pause"),
    [
        ([late(500), late(510), late(520)], True),
        ([late(500), late(510)], False),
        ([late(500), late(510), late(560)], False),
        ([late(500), late(510), late(520, source="t")], False),
        ([late(500), late(510), late(520, due_ms=505)], False),
        ([late(2_500), late(2_510), late(2_520)], False),
        ([late(500), late(510), late(520, "pull.deadline.met", due_ms=399)], True),
        ([late(500), late(510), late(520, "pull.deadline.met", due_ms=400)], False),
    ],
)
def test_answers_delayed_by_one_pause_have_one_cause(causes: list[Cause], *, is_pause: bool) -> None:
    """In a pause of the host, all answers are due before the first of them comes, and then they come close together."""
    findings = told_once(causes)
    assert len(findings) == (1 if is_pause else len(causes))
    assert findings[0].why.startswith("w; 3 answers" if is_pause else "w; it fits")
