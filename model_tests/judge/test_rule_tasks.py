"""Rules over whole brokers: a task for each part of a history gives what one task for all of it gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_tests.support.judge.histories import without_time

from longpoll_judge.contract.result import Result
from longpoll_judge.generate import QUERY_CONSUMER_OFFSET, Load, simulate, simulated_meta, write
from longpoll_judge.read.source import find
from longpoll_judge.run import local, wide_pulls
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge, judge_on
from longpoll_judge.run.queue_verdict import RESULT_SCHEMA
from longpoll_judge.run.wide_pulls import independent_splits
from longpoll_spec.history import Event, Meta

ACKNOWLEDGED = "message_acknowledged"
Brokers = list[dict[str, set[str]]]


def changed(events: Iterable[Event], number: int) -> Iterator[Event]:
    """The events of another broker: number 0 acknowledges elsewhere, 1 forgets a committed offset.

    They give different offsets to one message, which was sent to number 0.
    """
    name, asked, is_changed = f"broker-{number}", set[str](), False
    for event in events:
        more: dict[str, object] = {"broker": name, "source": f"{name}#1", "ids": [], "bodies": []}
        if event.event == "request_received" and event.code == QUERY_CONSUMER_OFFSET:
            asked.add(event.request)
        if number == 0 and not is_changed and event.event == ACKNOWLEDGED:
            more, is_changed = more | {"connection": "another"}, True
        if number == 1 and not is_changed and event.event == "answer_sent" and event.request in asked:
            more, is_changed = more | {"offset": 0}, event.offset > 0
        if event.request == ("s6", "s4")[number] and event.event == ACKNOWLEDGED:
            more |= {"ids": [77], "bodies": [1]}
        elif event.request == "s6" and number == 0:
            more["ids"] = [77]
        yield msgspec.structs.replace(event, **more)


def test_brokers_are_judged_apart_as_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker has a fault, and a message that both have is found where its sends are judged: across brokers."""
    for number in range(2):
        load = Load(events=600, queues=1, timeout_ms=60, is_whole=True, seed=number)
        meta = msgspec.json.encode(simulated_meta()).replace(b"broker-a", f"broker-{number}".encode())
        events = changed(simulate(load), number)
        write(tmp_path / str(number), events, msgspec.json.decode(meta, type=Meta), events_per_part=200)

    def judged(parts: list[list[int]] | None) -> Result:
        def chosen(brokers: Brokers) -> list[list[int]]:
            assert len(independent_splits(brokers)) == 2
            return parts or independent_splits(brokers)

        monkeypatch.setattr(wide_pulls, "independent_splits", chosen)
        return without_time(judge(sorted(tmp_path.iterdir()), engine="local"))

    apart = judged(None)
    clauses = {one.clause for one in apart.findings}
    assert clauses == {"message.stored.once", "send.acknowledged.same_connection", "commit.told.kept"}
    assert apart.shares["commits"].judged > 1
    assert judged([[*range(8)]]) == apart


def clauses_of(directory: Path, answers: Iterable[tuple[int, int]]) -> set[str]:
    """The broken clauses of a commit of 9 and a later query, whose answers have these times and offsets."""
    rows: list[dict[str, Any]] = [
        {"event": "request_received", "after_ns": 0, "request": "r0", "code": 11, "commit_offset": 9},
        {"event": "answer_sent", "after_ns": 1, "request": "r0", "code": 19},
        {"event": "request_received", "after_ns": 20, "request": "r1", "code": QUERY_CONSUMER_OFFSET},
    ]
    rows += [
        {"event": "answer_sent", "after_ns": after_ns, "request": "r1", "code": 0, "offset": offset}
        for after_ns, offset in answers
    ]
    common: dict[str, Any] = {"source": "s", "broker": "b", "topic": "T", "queue": 0, "group": "G", "connection": "c"}
    events = [Event(**common, **row, before_ns=row["after_ns"], sequence=number) for number, row in enumerate(rows)]
    write(directory, events, simulated_meta(), events_per_part=3)
    engine = LocalEngine(window_events=1)
    result = judge_on(engine, find([directory]), wake_ms=9, late_ms=9, say=lambda _text: None)
    return {one.clause for one in result.findings}


def test_the_first_of_two_answers_counts_in_the_order_of_the_splits(tmp_path: Path) -> None:
    """Windows are in the order of time, and one answer is in an earlier window but in a later split."""
    assert "commit.told.kept" in clauses_of(tmp_path / "history", [(40, 5)] * 3 + [(35, 9)] * 3)


def test_what_no_window_has_read_is_not_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "judge_windows", lambda _windows, _context: RESULT_SCHEMA.empty_table())
    assert "commit.told.kept" in clauses_of(tmp_path / "history", [(40, 5)])


@pytest.mark.parametrize(
    ("brokers", "parts"),
    [
        ([{"a": {"x"}}, {"b": {"y"}}, {"a": {"x"}}, {}], [[0, 2], [1], [3]]),
        ([{"a": {"x"}}, {"b": {"y"}}, {"c": {"x", "y"}}], [[0, 1, 2]]),
        ([{"a": {"x"}, "b": {"y"}}, {"b": {"y"}}], [[0, 1]]),
        ([{"a": {"x"}}, {"b": set()}], [[0, 1]]),
        ([{}], [[0]]),
    ],
)
def test_parts_share_no_source_and_no_broker(brokers: Brokers, parts: list[list[int]]) -> None:
    """A source that names no broker may be of any, so nothing is judged apart."""
    assert independent_splits(brokers) == parts
