"""Observations and unknown findings about messages. `stories/messages.txt` tests the violations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.support.judge.histories import judged

from longpoll_judge.contract.clauses import CLAUSES
from longpoll_judge.contract.result import MESSAGE_IS_DELIVERED, Result
from longpoll_judge.kernel.messages import OF_MESSAGES, OF_POLLS
from longpoll_judge.kernel.sends import FINDINGS_MAX
from longpoll_spec.history import Event, Meta, Source

MS: Final = 1_000_000
Told = dict[str, Any]
PLACE: Final = {"broker": "b", "topic": "T", "queue": 0}
META: Final = Meta(format_version=1, sources=[Source(name="s", clock="monotonic")])


def at(kind: str, moment_ms: float, **fields: Any) -> Told:
    """An event whose interval is 1 ms long; `where` names its connection."""
    place = PLACE | {"connection": fields.pop("where", "c")}
    begin_ns = round((10_000 + moment_ms) * MS)
    return {"event": kind, "after_ns": begin_ns, "before_ns": begin_ns + MS} | place | fields


def sent(moment_ms: float, request: str, message: int, *, offset: int = -1, **fields: Any) -> list[Told]:
    """A send and its acknowledgement after 2 ms; without an offset the answer does not name the message's offset."""
    own = {"request": request, "where": "p"}
    identity = {"ids": [message], "bodies": [100 + message]}
    asked = at("request_received", moment_ms, code=10, **own, **identity, **fields)
    if offset < 0:
        return [asked, at("answer_sent", moment_ms + 2, code=0, **own)]
    told = {name: fields[name] for name in ("queue",) if name in fields}
    return [asked, at("message_acknowledged", moment_ms + 2, queue_offset=offset, **own, **identity, **told)]


def got(moment_ms: float, request: str, first: int, messages: list[int], **fields: Any) -> list[Told]:
    """A pull and its answer after 2 ms, or after `held` ms; without messages the answer has code 19."""
    wait_ms, own = fields.pop("held", 2), {"request": request, "where": fields.pop("where", "c")}
    bodies, told = fields.pop("bodies", [100 + message for message in messages]), fields.pop("told", {})
    end = first + len(messages)
    pull = {"code": 11, "offset": first, "count_max": 32, "may_hold": True, "timeout_ms": 60_000, "group": "G"}
    answer = {"code": 0 if messages else 19, "offset_next": end, "offset_min": 0, "offset_max": end}
    place = {name: fields[name] for name in ("queue",) if name in fields}
    lists = {"offsets": list(range(first, end)), "ids": messages, "bodies": bodies} if messages else {}
    return [
        at("request_received", moment_ms, expression_type="TAG", expression="*", **own, **(pull | fields)),
        at("answer_sent", moment_ms + wait_ms, **own, **(answer | place | told), **lists),
    ]


def ended(moment_ms: float, message: int, outcome: str) -> list[Told]:
    return [at("request_received", moment_ms, code=37, ids=[message], transaction=outcome, where="p")]


def judge_these(directory: Path, *several: list[Told]) -> Result:
    events = sorted((event for each in several for event in each), key=lambda event: event["before_ns"])
    opened = [at("connection_opened", -5, where=name) for name in ("p", "c", "d")]
    whole = [at("source_started", -10), *opened, *events, at("source_stopped", 120_000)]
    made = [Event(sequence=number, source="s", **event) for number, event in enumerate(whole)]
    return judged(directory / "history", made, META)


def said(result: Result) -> set[tuple[str, str]]:
    found = [*result.findings, *result.observations]
    return {(one.clause, one.verdict) for one in found if one.property == MESSAGE_IS_DELIVERED}


def test_the_tables_have_the_clauses_of_the_contract() -> None:
    assert {each.id for each in CLAUSES if each.property == MESSAGE_IS_DELIVERED} == {*OF_MESSAGES, *OF_POLLS}


OBSERVED: Final[dict[str, tuple[list[list[Told]], str]]] = {
    "sent twice": (
        [sent(0, "s1", 1, offset=0), sent(4, "s2", 1, offset=1), got(10, "r1", 0, [1, 1])],
        "message.stored.again",
    ),
    "committed twice": (
        [
            sent(0, "s1", 1, transaction="prepared"),
            ended(4, 1, "commit"),
            ended(5, 1, "commit"),
            got(10, "r1", 0, [1, 1]),
        ],
        "message.stored.again",
    ),
    "late": ([sent(0, "s1", 1, delay_ms=5_000), got(10, "r1", 0, [1], held=11_000)], "message.late"),
    "skipped": ([got(10, "r1", 0, [1]), got(20, "r2", 2, [3])], "message.skipped"),
    "skipped by another member": ([got(10, "r1", 0, [1]), got(20, "r2", 2, [3], where="d")], "message.skipped"),
    "read back": ([got(10, "r1", 0, [1, 2]), got(20, "r2", 1, [2])], "message.read_back"),
    "unseen": ([sent(0, "s1", 1, offset=0), got(10, "r1", 0, [1]), sent(50, "s2", 2, offset=1)], "message.unseen"),
}


@pytest.mark.parametrize("name", OBSERVED)
def test_an_observation_does_not_change_the_verdict(tmp_path: Path, name: str) -> None:
    history, clause = OBSERVED[name]
    result = judge_these(tmp_path, *history)
    about = {told for told in said(result) if told[0] != "message.unseen" or clause == "message.unseen"}
    assert about == {(clause, "observed")}, (result.findings, result.observations)
    assert result.verdict == "valid", result.gaps


def test_a_popped_message_was_given_to_a_group(tmp_path: Path) -> None:
    history, _clause = OBSERVED["unseen"]
    popped = at("message_popped", 60, request="p1", queue_offset=1, ids=[2], bodies=[102])
    asked = at("request_received", 58, request="p1", code=200_050, group="G", timeout_ms=9_000)
    told = said(judge_these(tmp_path, *history, [asked, popped, at("answer_sent", 60, request="p1", code=0)]))
    assert "message.unseen" not in {clause for clause, _verdict in told}


def test_another_groups_offset_is_not_a_skip(tmp_path: Path) -> None:
    """Each group has its own offset, and a group may begin anywhere without skipping messages."""
    pulls = got(10, "r1", 0, [1]), got(20, "r2", 5, [6], group="H", where="d")
    assert said(judge_these(tmp_path, *pulls)) == set()


def test_a_gap_makes_a_delivery_unknown(tmp_path: Path) -> None:
    """A commit may be among the lost events, so a delivery after a rollback is unknown."""
    lost = [at("lost", 5, lost_count=1)]
    history = sent(0, "s1", 1, transaction="prepared"), ended(4, 1, "rollback"), lost, got(10, "r1", 0, [1])
    assert ("message.committed", "unknown") in said(judge_these(tmp_path, *history))


@pytest.mark.parametrize(("offset", "verdict"), [(5, "unknown"), (6, "violated")])
def test_a_message_without_an_append_may_be_older_than_the_record(tmp_path: Path, offset: int, verdict: str) -> None:
    """A producer may have sent the message before the record began, so one refusal does not decide."""
    inside = [at("append", 0, queue_offset=6), at("append", 1, queue_offset=7), at("make_visible", 2, visible_end=8)]
    refused = at("request_received", 0, code=10, request="s1", ids=[1]), at("answer_sent", 2, code=2, request="s1")
    again = sent(0, "s2", 2, offset=7)
    pulls = [got(10, "r1", offset, [message], told={"offset_max": 8}) for message in (1, 2)]
    for clause, history in (
        ("message.committed", (inside, [*refused], pulls[0])),
        ("message.stored.once", (inside, again, pulls[1])),
    ):
        (tmp_path / clause).mkdir()
        assert (clause, verdict) in said(judge_these(tmp_path / clause, *history))


def test_a_recreated_topic_may_have_other_messages(tmp_path: Path) -> None:
    deleted = [at("request_received", 1_000, code=215, queue=-1)]
    later = got(20_000, "r2", 0, [2])
    assert said(judge_these(tmp_path, got(10, "r1", 0, [1]), deleted, later)) == set()


def test_findings_that_are_not_listed_are_counted_once(tmp_path: Path) -> None:
    count = FINDINGS_MAX + 9
    answers = ((at("request_received", 0, code=10, request=f"s{n}", ids=[n]), f"s{n}") for n in range(1, count + 1))
    sends = [[asked, at("answer_sent", 2, code=19, request=request)] for asked, request in answers]
    result = judge_these(tmp_path, *sends)
    assert {one.clause for one in result.findings} == {"send.code.known"}
    assert len(result.findings) + result.findings_left_out == count
