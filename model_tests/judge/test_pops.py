"""Pops: each injected fault is reported with its clause, and the two judges agree on any change of the record.

`test_cluster.test_a_hot_queue_and_many_buckets_change_nothing` tests pops on Spark.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.judge.second.compare import Agreement
from model_tests.judge.second.faults import changed_histories
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History
from model_tests.judge.test_evidence import not_convicting
from model_tests.support.judge.pops import ACK, CHANGE, FAULTS, META, MS, World
from model_tests.support.judge.recording import write

from longpoll_judge.contract.pops import POP_CLAUSES
from longpoll_judge.contract.result import Result
from longpoll_judge.read.schema import event_dict
from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge_on
from longpoll_spec.history import Event

HOW: Final[dict[str, Any]] = {"wake_ms": 100.0, "late_ms": 50.0, "say": lambda _text: None}
OTHERS: Final = {
    "swapped": {"pop.wake.prompt"},
    "never_answered": {"pop.wake.prompt"},
    "strange_code": {"pop.wake.prompt"},
}
"""Maps a fault to other clauses that it may violate too, because a message waits or the wrong request gets the message.
"""
RARE: Final = ("never_again", "too_many", "wrong_tag")
"""Faults that show only in a record of a whole minute, while half a minute is enough for the other faults."""
CHANGED: Final = {"": 14, "after_ack": 6}


def history_of(events: list[Event]) -> History:
    told = tuple(event_dict(msgspec.structs.asdict(event)) for event in events)
    return History(msgspec.to_builtins(META), told)


def judged(directory: Path, events: list[Event], engine: Any = None) -> Result:
    write(directory, events, META)
    return judge_on(engine or LocalEngine(), find([directory]), **HOW)


def said(result: Result) -> set[tuple[str, ...]]:
    return {(one.clause, one.verdict, one.request, one.why) for one in result.findings}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_its_clause(name: str, tmp_path: Path) -> None:
    fault, events = FAULTS[name], World(seed=0, fault=name, seconds=60 if name in RARE else 30).run()
    result = judged(tmp_path / "whole", events)
    clauses = {one.clause for one in result.findings}

    assert {fault.clause} <= clauses <= {fault.clause} | OTHERS.get(name, set())
    assert result.verdict == ("invalid" if fault.is_certain else "unknown"), result.findings
    assert result.gaps == []
    assert said(judged(tmp_path / "cut", events, LocalEngine(threads=1, window_events=60))) == said(result)
    assert not_convicting(result, tmp_path) == []
    history = history_of(events)
    opinion = weigh(history.meta, history.events)
    assert opinion.verdict == result.verdict, opinion.reasons
    assert opinion.violated == {one.clause for one in result.findings if one.verdict == "violated"}


@pytest.mark.parametrize("seed", range(3))
def test_a_correct_broker_is_valid(seed: int, tmp_path: Path) -> None:
    events = World(seed=seed).run()
    result = judged(tmp_path / "history", events)
    counts = Counter((one.event, one.code, one.cause) for one in events)

    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    assert result.shares["pops"].judged > 100
    assert result.rates["pop.wake.prompt"].of > 30
    assert min(counts["message_popped", -1, "retry"], counts["request_received", 200_053, ""]) > 0
    assert weigh(history_of(events).meta, history_of(events).events).verdict == "valid"


@pytest.mark.parametrize("name", CHANGED)
def test_both_judges_agree_on_changed_records(name: str, tmp_path: Path) -> None:
    found, used = Agreement(), Counter[tuple[str, str]]()
    history = history_of(World(seed=5, fault=name, seconds=30).run())
    for changed in changed_histories(history, 1, CHANGED[name], used):
        found.compare(changed.history, f"{changed.operation} {changed.place}", tmp_path / "history", was_open=False)
    assert not found.disagreements, found.told()


# -- small histories ---------------------------------------------------------------------------------------------------

Told = dict[str, Any]
PLACE: Final = {"broker": "b", "topic": "T"}


def at(ms: float, event: str, **fields: Any) -> Told:
    """One event that takes half a millisecond."""
    after_ns = round((10_000 + ms) * MS)
    return (
        {"event": event, "after_ns": after_ns, "before_ns": after_ns + MS // 2} | PLACE | {"connection": "c"} | fields
    )


def sent(ms: float, number: int = 1, offset: int = 0) -> list[Told]:
    """A message, acknowledged after 1 ms."""
    own = {"request": f"p{offset}", "connection": "p", "queue": 0, "ids": [number]}
    told = at(ms + 1, "message_acknowledged", queue_offset=offset, **own)
    return [at(ms, "request_received", code=10, **own), told]


def pop(ms: float, end_ms: float, got: int | None = None, code: int = 0, **fields: Any) -> list[Told]:
    """A pop that may wait for 2 s, and its answer: the message at an offset of queue 0, or no message."""
    own = {"request": f"r{ms:g}", "queue": fields.pop("queue", -1), "connection": fields.pop("connection", "c")}
    popped = {"ids": [1], "delay_ms": 6_000, "queue_offset": got, "group": fields.get("group", "G"), "queue": 0}
    popped["cause"] = fields.pop("cause_got", "")
    popped |= fields.pop("got_as", {})
    told = fields.pop("told", {})
    asked = {
        "code": fields.pop("code_asked", 200_050),
        "group": "G",
        "count_max": 8,
        "may_hold": True,
        "timeout_ms": 2_000,
        "delay_ms": 6_000,
    }
    asked |= {"expression_type": "TAG", "expression": "*"} | fields
    answered = {"code": code if got is None else 0} | told
    return [
        at(ms, "request_received", **own, **asked),
        at(end_ms, "answer_sent", **(own | answered)),
        *([] if got is None else [at(end_ms, "message_popped", **(own | popped))]),
    ]


def about(ms: float, code: int, **fields: Any) -> list[Told]:
    """An acknowledgement of the message at offset 0, or a change of its invisible time, answered after 1 ms."""
    own = {"request": f"a{ms:g}", "queue": 0}
    asked = at(ms, "request_received", code=code, group="G", queue_offset=0, **own, **fields)
    return [asked, at(ms + 1, "answer_sent", code=0, **own)]


def asks(ms: float, code: int, **fields: Any) -> list[Told]:
    """A producer's request about message 1, and an answer after 1 ms that names no queue and offset."""
    own = {"request": f"q{ms:g}", "connection": "p"} | ({"queue": 0} if code == 10 else {})
    return [at(ms, "request_received", code=code, ids=[1], **own, **fields), at(ms + 1, "answer_sent", code=0, **own)]


def pulled(ms: float, ids: list[int]) -> list[Told]:
    """A pull from offset 0 of queue 0, and its answer 1 ms later."""
    own = {"request": f"l{ms:g}", "queue": 0}
    asked = {"code": 11, "group": "H", "offset": 0, "count_max": 8, "expression_type": "TAG", "expression": "*"}
    found = {"code": 0, "offset_next": 1, "offset_min": 0, "offset_max": 1, "offsets": [0], "ids": ids}
    return [at(ms, "request_received", **own, **asked), at(ms + 1, "answer_sent", **own, **found)]


GOT: Final = [*sent(0), *pop(-100, 3, 0)]
"""The events of a message that a waiting pop gets at once, and that is then invisible for 6 s."""
AGAIN: Final[dict[str, Any]] = {"cause_got": "retry"}
LONG: Final[dict[str, Any]] = {"timeout_ms": 15_000}
WAKE, KEPT, FINAL = "pop.wake.prompt", "pop.invisible.kept", "pop.acknowledged.final"
VALUE, DELIVERED = "message.one_value", "send.delivered.after_request"
STORIES: Final[dict[str, tuple[list[list[Told]], str]]] = {
    "a waiting pop gets a message at once": ([GOT], "valid"),
    "a message just before the pop": ([sent(0), pop(50, 400, 0)], WAKE),
    "a slow read of an older message": ([sent(0), pop(1_000, 2_000, 0)], "valid"),
    "a very slow read of an older message": ([sent(0), pop(1_000, 3_200, 0, timeout_ms=5_000)], WAKE),
    "a pop that times out next to a message": ([sent(0), pop(-500, 1_500, code=210), pop(1_600, 1_602, 0)], WAKE),
    "a notification that does": (
        [sent(0), pop(-500, 1_500, told={"cause": "expired"}, code_asked=200_054), pop(1_600, 1_602, 0)],
        WAKE,
    ),
    "a message of another queue": ([sent(0), pop(-500, 1_500, code=210, queue=1), pop(1_600, 1_602, 0)], "valid"),
    "a message that came from the retry topic first": (
        [sent(0), pop(-500, 1_500, code=210), pop(1_600, 1_602, 0, **AGAIN)],
        "valid",
    ),
    "a late wake in a hole": (
        [sent(0), pop(-500, 1_500, code=210), pop(1_600, 1_602, 0), [at(700, "lost", lost_count=1)]],
        "unknown",
    ),
    "again after its time": ([GOT, pop(6_100, 6_102, 0, **AGAIN)], "valid"),
    "again before its time, which begins at the send": ([GOT, pop(5_990, 5_992, 0, **AGAIN)], KEPT),
    "a copy again before its time, of a pop that waited": (
        [GOT, pop(10, 8_000, 0, **LONG, **AGAIN), pop(9_000, 9_002, 0, connection="d", **AGAIN)],
        KEPT,
    ),
    "a copy again after its time": (
        [GOT, pop(10, 8_000, 0, **LONG, **AGAIN), pop(14_100, 14_102, 0, connection="d", **AGAIN)],
        "valid",
    ),
    "another copy, of a pop that waited": (
        [GOT, pop(10, 8_000, 0, **LONG, **AGAIN), pop(9_000, 9_002, 1, connection="d", **AGAIN)],
        "valid",
    ),
    "an orderly pop gets it again": ([GOT, pop(1_000, 1_002, 0, cause="orderly", **AGAIN)], "valid"),
    "one id at two places": ([GOT, sent(500, 1, 1), pop(600, 602, 1)], "valid"),
    "again after the topic was deleted": (
        [GOT, [at(500, "request_received", code=215)], pop(1_000, 1_002, 0, **AGAIN)],
        "unknown",
    ),
    "again after its offsets were reset": (
        [GOT, [at(500, "request_received", code=222, group="G")], pop(1_000, 1_002, 0, **AGAIN)],
        "unknown",
    ),
    "again after a time without connections": (
        [
            GOT,
            [at(100, "connection_closed"), at(110, "connection_closed", connection="p")],
            [at(2_500, "connection_opened", connection="d")],
            pop(3_000, 3_002, 0, connection="d", **AGAIN),
        ],
        "unknown",
    ),
    "acknowledged, and again": ([GOT, about(100, ACK), pop(8_000, 8_002, 0, **AGAIN)], FINAL),
    "acknowledged in the last second, and again": ([GOT, about(5_500, ACK), pop(8_000, 8_002, 0, **AGAIN)], "valid"),
    "changed, acknowledged by the old handle, and again": (
        [GOT, about(100, CHANGE, delay_ms=6_000), about(200, ACK), pop(8_000, 8_002, 0, **AGAIN)],
        "valid",
    ),
    "changed to a shorter time, and again": (
        [GOT, about(100, CHANGE, delay_ms=50), pop(900, 902, 0, **AGAIN)],
        "valid",
    ),
    "changed to a longer time, and again": (
        [GOT, about(100, CHANGE, delay_ms=60_000), pop(8_000, 8_002, 0, **AGAIN)],
        KEPT,
    ),
    "not again after 20 s": ([GOT, pop(24_000, 26_000, code=210)], "valid"),
    "not again after 31 s": ([GOT, pop(36_000, 38_000, code=210)], "unknown"),
    "not again, but acknowledged": ([GOT, about(100, ACK), pop(36_000, 38_000, code=210)], "valid"),
    "nothing 55 ms early": ([pop(0, 1_945, code=210)], "valid"),
    "nothing 70 ms early": ([pop(0, 1_925, code=210)], "pop.hold.not_early"),
    "nothing early, and the connection is closed": (
        [pop(0, 1_000, code=210), [at(4_000, "connection_closed")]],
        "unknown",
    ),
    "a refusal at once": ([pop(0, 5, code=16), GOT], "valid"),
    "an answer that names another topic": ([GOT, pop(5_000, 9_000, code=210, told={"topic": "U"})], "unknown"),
    "a message with another body": (
        [GOT, pop(500, 501, 0, got_as={"bodies": [7]}, group="H"), pop(600, 601, 0, got_as={"bodies": [8]}, group="I")],
        VALUE,
    ),
    "another message than was acknowledged": ([sent(0), pop(50, 51, 0, got_as={"ids": [2]})], VALUE),
    "a pull that gets another message": ([sent(0), pop(50, 51, 0), pulled(100, [2])], VALUE),
    "another message of the retry topic": ([sent(0), pop(50, 51, 0, got_as={"ids": [2]}, **AGAIN)], "valid"),
    "a message before its send": ([pop(0, 1, 0), sent(2_000)], DELIVERED),
    "a later message before a send": ([pop(0, 1, 5, got_as={"ids": [9]}), sent(2_000)], DELIVERED),
    "a later message after a send began": ([pop(0, 1, 5, got_as={"ids": [9]}), sent(1.2)], "valid"),
    "a later message of the retry topic before a send": (
        [pop(0, 1, 5, got_as={"ids": [9]}, **AGAIN), sent(2_000)],
        "valid",
    ),
    "a message twice in one answer": ([GOT, GOT[-1:]], "pop.found.once"),
    "a message of the retry topic twice in one answer": (
        [sent(0), pop(50, 51, 0, **AGAIN), pop(50, 51, 0, **AGAIN)[-1:]],
        "valid",
    ),
    "a message twice in two answers": (
        [GOT, GOT[-1:], [at(4, "answer_sent", code=0, request="r-100", queue=-1)]],
        "answer.once",
    ),
    "a message before its send, by its id": ([pop(3_000, 3_001, 0), sent(4_000, 1, 9)], DELIVERED),
    "a message that was rolled back": (
        [asks(0, 10, transaction="prepared"), asks(50, 37, transaction="rollback"), pop(100, 101, 0)],
        "message.committed",
    ),
    "a message before its delay": ([asks(0, 10, delay_ms=9_000), pop(3_000, 3_001, 0)], "message.early"),
    "a message after its delay": ([asks(0, 10, delay_ms=9_000), pop(9_000, 9_001, 0)], "valid"),
    "an acknowledgement without an answer": ([GOT, about(100, ACK)[:1]], "pop.answered"),
    "a change without an answer": ([GOT, about(100, CHANGE, delay_ms=6_000)[:1]], "pop.answered"),
    "an acknowledgement without an answer on a closed connection": (
        [GOT, about(100, ACK)[:1], [at(1_500, "connection_closed")]],
        "valid",
    ),
    "an answer 100 ms late": ([pop(0, 2_100, code=210)], "pop.deadline.met"),
}


@pytest.mark.parametrize("title", STORIES)
def test_both_judges_judge_a_small_history_alike(title: str, tmp_path: Path) -> None:
    several, expected = STORIES[title]
    told = sorted((one for each in several for one in each), key=lambda one: one["after_ns"])
    opened = [at(-900, "connection_opened", connection=name) for name in ("c", "p")]
    whole = [at(-1_000, "source_started"), *opened, *told, at(70_000, "source_stopped")]
    events = [Event(sequence=number, source="s", **one) for number, one in enumerate(whole)]
    result, history = judged(tmp_path / "history", events), history_of(events)
    opinion = weigh(history.meta, history.events)
    violated = {one.clause for one in result.findings if one.verdict == "violated"}

    is_clause = "." in expected
    assert violated == opinion.violated == ({expected} if is_clause else set()), opinion.reasons
    assert result.verdict == opinion.verdict == ("invalid" if is_clause else expected), opinion.reasons
    if is_clause and not expected.startswith("pop."):
        assert said(judged(tmp_path / "cut", events, LocalEngine(threads=1, window_events=1))) == said(result)


def test_each_clause_has_a_fault() -> None:
    assert {fault.clause for fault in FAULTS.values()} - {"answer.once"} == {clause.id for clause in POP_CLAUSES}
